//! Designs to compare a page allocator's per-CPU layer with: the trait [`PageCache`], Linux's own
//! lists behind it, and pagedepot's. Other designs, which linux-mm threads propose, are in
//! `pagedepot-lab-designs`; the same tests, traces and benchmarks run over all of them.
//!
//! # Vocabulary
//! | word | meaning |
//! |---|---|
//! | store | all free frames of a zone, shared by all CPUs: [`Buddy`] or [`Bitmap`] |
//! | zone lock | the lock of a buddy store's free lists |
//! | pcp | a CPU's lists of free blocks of a zone: `3 * order + mobility` for orders 0..=3, two lists for [`Order::PAGEBLOCK`] |
//! | refill, spill | blocks moving from the store to a pcp, and back |
//! | batch, high | pages per refill; most pages a pcp may hold |
//! | drain | taking cached pages back |
//! | owner | the code that acts as a CPU now |
//!
//! # Designs
//! | type | caches | a drain |
//! |---|---|---|
//! | [`ZoneLock`] | none | has nothing to do |
//! | [`Spin`] | a pcp behind a spinlock; the owner waits for it (plain) or goes past it (trylock) | takes the locks |
//! | [`Depot`] | pagedepot's fronts and shelves, over its own bitmap or over a store | takes shelves, or fences and takes fronts too |
//!
//! `Spin` has mainline's lists and mainline's policy ([`Policy`]).
//!
//! # Acting as a CPU
//! Callers say which CPU they act as. Locked designs need no proof of it.
//!
//! # Parts
//! The hidden modules are what designs in other crates are made of. They are no interface for
//! programs, and change without notice.

#[doc(hidden)]
pub mod census;
#[doc(hidden)]
pub mod counters;
#[doc(hidden)]
pub mod frames;
#[doc(hidden)]
pub mod free_map;
#[doc(hidden)]
pub mod lock;
#[doc(hidden)]
pub mod pcp;
#[doc(hidden)]
pub mod prim;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod seen;
#[doc(hidden)]
pub mod setup;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod taking;
#[doc(hidden)]
pub mod walk;
#[doc(hidden)]
pub mod zones;

mod spin;
mod zone_lock;

#[cfg(not(loom))]
mod depot;
#[cfg(not(loom))]
#[cfg_attr(feature = "simulated", path = "simulated/host.rs")]
#[doc(hidden)]
pub mod host;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn, ZoneId};

pub use census::{Census, Fault};
#[cfg(not(loom))]
pub use depot::{ActAs, ByThread, Depot, Real};
pub use free_map::{FreeMap, GIB_LOG2, unusable_index};
#[cfg(not(any(loom, feature = "simulated")))]
pub use host::isolated_cpus;
#[cfg(not(loom))]
pub use host::{cache_slice_pages, has_nohz_full};
pub use lock::LockWaits;
pub use pagedepot::FreeHigh;
pub use pcp::free_high::{FreeHighLimit, FreeHighPolicy, FreeHighRule};
pub use pcp::policy::{Policy, Rules};
pub use report::{Counts, DrainResult, Scope, Volume};
pub use setup::{Setup, SetupError, ZONES_MAX, ZoneSetup};
pub use spin::{LockMode, Spin};
pub use store::Store;
#[cfg(not(loom))]
pub use store::backing::AsBacking;
#[cfg(not(loom))]
pub use store::bitmap::Bitmap;
pub use store::buddy::Buddy;
pub use store::buddy::held::BuddyStore;
pub use zone_lock::ZoneLock;
pub use zones::{Zone, Zones};

/// The per-CPU layer of a page allocator, over its store.
///
/// Every method takes the CPU and context that the caller acts as; see the crate's page. In
/// [`Context::Interrupt`](pagedepot::cpus::Context) the caller is an interrupt handler, or has
/// interrupts off. Only the lab's `Magazine` treats such callers differently. A handler that
/// interrupted another call on its thread may call only [`Depot`] over its own bitmap: what the
/// other designs model ran with interrupts off there.
pub trait PageCache: Sync {
    /// The design's name in reports.
    fn name(&self) -> &'static str;

    /// Allocates a block of 2^order frames, trying zones in the machine's order of preference.
    /// `None`: no zone has one, after a drain.
    fn alloc(&self, here: Here, order: Order, mobility: Mobility) -> Option<Pfn>;

    /// Allocates a block, trying `zone` before the others: for traces that tell the zone.
    fn alloc_from(&self, here: Here, zone: ZoneId, order: Order, mobility: Mobility)
    -> Option<Pfn>;

    /// Frees a block.
    ///
    /// # Panics
    /// When there is no memory, or the block is not aligned to its size. Frames that reach the
    /// store while they are free there panic too.
    fn free(&self, here: Here, pfn: Pfn, order: Order);

    /// Frees blocks of any orders, mobilities and zones by one call, as when a process exits.
    ///
    /// # Panics
    /// Panics like [`free`](Self::free).
    fn free_many(&self, here: Here, blocks: &[(Pfn, Order)]) {
        for &(pfn, order) in blocks {
            self.free(here, pfn, order);
        }
    }

    /// Splits an allocated block into two of `order - 1`, which are then freed separately.
    fn split(&self, pfn: Pfn, order: Order) {
        let _ = (pfn, order);
    }

    /// Drains caches, from a thread that acts as no CPU. `mode` matters only to designs with more
    /// than one kind of drain; the others ignore it.
    fn drain(&self, scope: Scope, mode: Mode) -> DrainResult;

    /// Does the work of the kernel's vmstat on each CPU about once a second: lowers `high`, and
    /// spills the cached pages of idle zones that are remote to this CPU.
    fn tick(&self, here: Here) {
        let _ = here;
    }

    /// This CPU stops using the design for a while: it sleeps, or its thread ends.
    fn idle(&self, here: Here) {
        let _ = here;
    }

    /// Counters since construction.
    fn counts(&self) -> Counts;

    /// Pages that a CPU caches, over all zones. Caches that no CPU owns count for the CPU that
    /// prefers them.
    fn cached_pages(&self, cpu: CpuId) -> u64;

    /// Pages in all caches, and pages that wait for grace periods.
    fn cached_pages_total(&self) -> u64;

    /// Free pages of the store.
    fn free_pages(&self) -> u64;

    /// The frames that are free in the store; those in caches are not. O(memory). Call it when all
    /// other threads have stopped.
    ///
    /// # Errors
    /// The first fault found in the store's metadata.
    fn free_map(&self) -> Result<FreeMap, Fault>;

    /// Checks every structure against every other: each frame must be in exactly one place.
    /// O(memory). Call it when all other threads have stopped.
    ///
    /// # Errors
    /// The first fault found.
    fn validate(&mut self) -> Result<Census, Fault>;
}

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
