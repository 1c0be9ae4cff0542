//! The seam between the core and crates that work on pageblocks as a whole: that isolate them, move
//! what callers hold in them, take them away, or report them as free. `pagedepot-contiguity` is
//! one.
//!
//! **Exempt from semantic versioning**: names and signatures here change with any version. Crates
//! of this repository depend on exactly this version.
//!
//! # What the core promises, and what it asks
//! 1. A frame is in one place: free in the store, cached, or a holder's. Methods that take frames
//!    ([`take`](ZoneAccess::take), [`take_from`](ZoneAccess::take_from),
//!    [`claim`](ZoneAccess::claim), [`take_whole`](ZoneAccess::take_whole)) make the caller their
//!    holder by the atomic operations that requests use; those that give frames back end that.
//! 2. A caller that has pageblocks out of use [announces](ZoneAccess::announce) their pages first,
//!    so that a request which finds nothing meanwhile looks again before it fails.
//! 3. Isolation is for progress alone: a search or a free that read the tag before goes on as if it
//!    had come first. Who owns a frame is decided by taking it.
//! 4. Misuse that is found on the way, such as a double free, is noted, and reported by
//!    [`end_call`](ZoneAccess::end_call), which the caller calls last.
//!
//! All methods may be called from any thread at any time, and wait for no other caller.
//!
//! | item | what |
//! |---|---|
//! | [`ZoneAccess`] | a zone: its pageblocks, frames and counts |
//! | [`Isolation`] | pageblocks that one caller has isolated |
//! | [`Relief`], [`PendingRequest`] | what requests ask before they mix pageblocks, and before they fail |
//! | [`Reports`] | the device that free pageblocks are reported to, and what was |

mod zone;

pub use crate::alloc::pressure::{PendingRequest, Relief};
pub use crate::alloc::walk::Want;
pub use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES};
pub use crate::store::backing::{DeviceRegistered, ReportCounts, ReportingDevice, Reports};
pub use crate::sync::InFlightGuard;
pub use zone::{Isolation, NoAccess, PageblockState, PageblockUse, ZoneAccess};

use crate::alloc::Allocator;
use crate::cpus::Cpus;

/// Registers the relief of an allocator's requests, for the allocator's life. `false`: there is one
/// already, or another call registers one at this moment.
pub fn register_relief<'m, C: Cpus>(
    allocator: &Allocator<'m, C>,
    relief: &'m dyn Relief<C>,
) -> bool {
    allocator.globals.relief.init(|| Ok::<_, ()>(relief)).is_ok()
}

impl<'a, 'm, C: Cpus> PendingRequest<'a, 'm, C> {
    /// The zones that may serve the request without going below the watermark that it heeds, the
    /// best first.
    pub fn zones(&self) -> impl Iterator<Item = ZoneAccess<'a, 'm, C>> {
        self.zone_ids().map(|id| ZoneAccess { hooks: self.hooks, id })
    }
}

/// The device of this allocator, and what was reported to it.
pub fn reports<'m, C>(allocator: &Allocator<'m, C>) -> &'m Reports<'m> {
    &allocator.globals.reports
}
