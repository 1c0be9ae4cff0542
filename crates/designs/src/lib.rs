//! The designs that linux-mm threads propose for keeping CPUs off the zone lock. Each is a real
//! implementation behind one trait, [`PageCache`], so the same tests, traces and benchmarks run
//! over all of them.
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
//! | [`Local`] | a pcp that only its owner touches | is work that the owner does, or that a helper does on the owner's CPU |
//! | [`NohzConditional`] | one switch for the whole machine: as `Local`, or as `Spin` | as theirs |
//! | [`Spin`] | a pcp behind a spinlock; the owner waits for it (plain) or goes past it (trylock) | takes the locks |
//! | [`Qpw`] | for each CPU as `Local`, or as `Spin` whose owner waits | as theirs |
//! | [`PcpBuddy`] | a pcp behind a spinlock, which splits and merges the pageblocks that its CPU owns; frees go to the owner's | takes the locks |
//! | [`Rcu`] | a pcp behind a pointer | switches the pointers of all CPUs, waits for a grace period, and drains; or collects later |
//! | [`Magazine`] | magazines that CPUs share, each behind a spinlock | takes the locks |
//! | [`Depot`] | pagedepot's fronts and shelves, over its own bitmap or over a store | takes shelves, or fences and takes fronts too |
//!
//! `Local`, `NohzConditional`, `Spin`, `Qpw` and `Rcu` use the same lists and the same policy
//! (mainline's, [`Policy`]). So a comparison shows only which code may touch the lists, and how
//! they are drained. `PcpBuddy` has the policy, and lists of its own. `Magazine` has the lists and
//! the policy of the 2013 prototype.
//!
//! # Acting as a CPU
//! Callers say which CPU they act as. Locked designs need no proof of it. Designs whose owners take
//! no lock ([`Local`], [`Rcu`]) must know what excludes other owners: see [`Entry`].

mod census;
mod counters;
mod frames;
mod free_map;
#[cfg(any(not(loom), test))]
mod left;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod owned_lists;
mod owners;
mod pcp;
mod prim;
mod report;
#[cfg(not(loom))]
#[cfg_attr(feature = "simulated", path = "simulated/rseq.rs")]
mod rseq;
mod seen;
mod setup;
mod store;
mod taking;
mod walk;
mod zones;

mod local;
mod magazine;
mod nohz;
mod pcp_buddy;
mod qpw;
mod rcu;
mod spin;
mod zone_lock;

#[cfg(not(loom))]
mod depot;
#[cfg(not(loom))]
#[cfg_attr(feature = "simulated", path = "simulated/host.rs")]
mod host;
#[cfg(not(loom))]
pub mod vmap;

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
pub use local::{Local, LocalDrain};
pub use lock::LockWaits;
pub use magazine::{Magazine, MagazineOptions, ProcessMagazine};
pub use nohz::NohzConditional;
pub use owners::Entry;
pub use pagedepot::FreeHigh;
pub use pcp::free_high::{FreeHighLimit, FreeHighPolicy, FreeHighRule};
pub use pcp::policy::{Policy, Rules};
pub use pcp_buddy::PcpBuddy;
pub use qpw::Qpw;
pub use rcu::{Grace, Rcu};
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
/// interrupts off. Only [`Magazine`] treats such callers differently. A handler that interrupted
/// another call on its thread may call only [`Depot`] over its own bitmap: what the other designs
/// model ran with interrupts off there.
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
