//! Taking pages back from caches, and giving memory back to the system.
//!
//! | task | call |
//! |---|---|
//! | Free a program's own caches before a request fails | [`Depot::on_pressure`](crate::Depot::on_pressure) |
//! | Take pages back from CPUs | [`Depot::drain`](crate::Depot::drain) |
//! | Let the caches of idle CPUs shrink | [`CpuCaches::decay`](pagedepot::CpuCaches::decay) |
//! | Give memory back to the system | [`Depot::trim`](crate::Depot::trim) |
//! | Give back so many bytes by some time | [`Depot::give_back`](crate::Depot::give_back) |
//! | Give back whole free pageblocks only, every few seconds | [`Reporting::pass`] |
//! | Do the above when a cgroup or the system runs short | [`Monitor`](crate::pressure::Monitor) |
//! | Never use more than so many bytes | [`Ceiling::set`] |
//! | Move pages together, so that large blocks become free | [`Depot::compact`](crate::Depot::compact) |
//! | Keep the memory of pages that a device uses | [`Depot::pin_range`](crate::Depot::pin_range) |
//! | Keep all memory, as io_uring's fixed buffers | [`Depot::registered_iovecs`](crate::Depot::registered_iovecs) |

mod pinned_range;

pub use crate::error::{CallbackError, CeilingError};
pub use crate::giving_back::ceiling::Ceiling;
pub use crate::giving_back::reporting::Reporting;
pub use crate::giving_back::request::{GiveBackEnd, GiveBackResult};
pub use crate::giving_back::trim::{TrimError, TrimResult};
pub use crate::moving::pins::PinError;
pub use pagedepot::{Pressure, Reclaim, TooManyCallbacks};
pub use pagedepot_contiguity::{
    CompactEnd, CompactError, CompactResult, Compaction, Move, Mover, MoverRegistered, Occupant,
    ReportCounts, ReportEnd, ReportPass,
};
pub use pinned_range::{PinnedRange, RegisteredIovecs};

use crate::depot::handle::Depot;

impl<'d> Ceiling<'d> {
    /// The ceiling of a depot. A borrow: it can be made whenever it is needed.
    pub fn of(depot: &'d Depot) -> Self {
        let shared = depot.shared();
        Ceiling::over(shared, shared.common().map(|common| common as _))
    }
}

impl<'d> Reporting<'d> {
    /// The reporting of a depot: a borrow, which can be made whenever it is needed.
    pub fn of(depot: &'d Depot) -> Self {
        Reporting::over(depot.shared())
    }
}
