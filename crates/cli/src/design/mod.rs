//! The designs, ready to be measured.
//!
//! # Vocabulary
//! * *design*: a way to hand out pages; [`names`](crate::names) lists them.
//! * *allocator*: a design with memory, made for what a workload demands: a type of its own, so
//!   that the measured loops are compiled for each and contain no virtual call. All of them
//!   implement [`Allocator`].
//! * *floor*: an allocator that does the least its mechanism allows and has no store behind it:
//!   when it runs out of frame numbers it makes some up, when it has too many it forgets some. No
//!   allocator built on that mechanism can be faster.
//! * *thread's design*: one that a linux-mm thread proposes, or mainline's: from
//!   `pagedepot-designs`, or from the lab.
//! * *variant*: what options of the command make of a design.
//! * *peer*: another project's allocator, which the lab can be built with.
//!
//! # A new design
//! Name it in `names`, implement [`Allocator`] in a file here, and add its type to [`lineup`]. The
//! lab has more designs, and a [`Lineup`] of its own.

pub mod allocator;
pub mod block;
pub mod demand;
pub mod depot;
pub mod floor_rseq;
pub mod floor_spin;
pub mod floor_tls;
pub mod lineup;
pub mod page_cache;
pub mod pool;
pub mod threads;
pub mod variant;
pub mod zone;

pub use allocator::{Allocator, alloc};
pub use block::observe;
pub use demand::{Demand, PAGE_BYTES, page_bytes};
pub use lineup::{AllocatorUser, Lineup, Product};
