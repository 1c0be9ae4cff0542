//! The state of a depot, which its handles and pages share.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::seam::register_relief;
use pagedepot::{Backing, FreeError, Order, Pfn};
use pagedepot_contiguity::Compactor;

use crate::depot::relief::CompactionRelief;
use crate::depot::teardown::{Gates, Teardown, TeardownHost};
use crate::error::CallbackError;
use crate::giving_back::callbacks::{Callbacks, KeptCallbacks};
use crate::giving_back::ceiling::Allowance;
use crate::giving_back::returnable::ReturnableFrames;
use crate::memory::frames::{Frames, MappedFrames};
use crate::memory::growth::Growth;
use crate::memory::metadata::Metadata;
use crate::memory::region::Memory;
use crate::moving::movables::{Movables, OtherMover, Surroundings};
use crate::moving::pins::Pins;
use crate::sites::table::SiteTable;
use crate::system::bits::Bits;
use crate::system::fork_mark::ForkMark;

/// A store that several processes take frames from.
pub(crate) trait CommonStore: Backing + Allowance + Send {
    /// Pages that this process has taken from it and not put back. No other process can change the
    /// count: memory is unmapped when it is 0.
    fn taken_pages(&self) -> u64;

    /// Whether this process has the page or may take it: others do not hold it, nor was it sent.
    fn is_room(&self, page: u32) -> bool;

    /// Counts pages that a value of this process held, and whose free failed: another process has
    /// written to the store.
    fn note_refused(&self, pages: u32);

    /// A request in the queue has found nothing. Other processes do not tell it when they free
    /// pages: from now on a thread tells it now and then. `false`: there is none, and the request
    /// looks by itself.
    fn await_others(&self) -> bool;
}

/// The state that all handles of a depot, and its pages, share: its frames, and what else they
/// need. It stays where it is.
pub(crate) struct DepotState {
    // Dropped in this order: the allocator, which `frames` drops first, refers to all that follows.
    frames: ReturnableFrames,
    callbacks: Box<Callbacks>,
    relief: Box<CompactionRelief>,
    movables: Box<Movables>,
    growth: Growth,
    teardown: Box<Teardown>,
    sites: SiteTable,
    _backing: Option<Arc<dyn Backing + Send>>,
    /// The store, if other processes have pages of it.
    common: Option<Arc<dyn CommonStore>>,
    _metadata: Metadata,
}

/// The parts of a depot.
pub(crate) struct Assembly {
    pub allocator: Frames,
    pub memory: Memory,
    pub backing: Option<Arc<dyn Backing + Send>>,
    pub common: Option<Arc<dyn CommonStore>>,
    pub metadata: Metadata,
    pub growth: Growth,
    pub sites: SiteTable,
    pub fork_mark: ForkMark<'static>,
    pub is_pinned: bool,
    /// Whether each page that there may come to be is pinned.
    pub pinned: Bits,
    /// Pages that there may come to be.
    pub pages_max: u32,
}

impl DepotState {
    pub(crate) fn assemble(parts: Assembly) -> Box<Self> {
        let pinned = Arc::new(parts.pinned);
        let movables = Box::new(Movables::new(Surroundings {
            pages: parts.pages_max,
            fork_mark: parts.fork_mark,
            base: parts.memory.start(),
            page_size: parts.allocator.page_size(),
            is_shared: parts.memory.file().is_some(),
            pinned: pinned.clone(),
            sites: parts.sites.clone(),
        }));
        // SAFETY: boxed, so it stays where it is, and dropped after allocator and relief.
        let mover: &'static Movables = unsafe { NonNull::from(&*movables).as_ref() };
        let mapped = MappedFrames::new(parts.allocator, parts.memory, parts.fork_mark);
        let pins = Pins::new(pinned);
        let kinds = (parts.is_pinned, parts.backing.is_some());
        let waiters = mapped.waiters().clone();
        let frames = ReturnableFrames::new(mapped, pins, kinds, parts.fork_mark);
        let relief = Box::new(CompactionRelief {
            compactor: Compactor::new(mover),
            movables: mover,
            waiters,
            fork_mark: parts.fork_mark,
        });
        let depot = Box::new(DepotState {
            frames,
            callbacks: Box::new(Callbacks::new(parts.fork_mark)),
            relief,
            movables,
            growth: parts.growth,
            teardown: Box::new(Teardown::new()),
            sites: parts.sites,
            _backing: parts.backing,
            common: parts.common,
            _metadata: parts.metadata,
        });
        // SAFETY: boxed, so it stays where it is, and dropped after the allocator.
        let relief: &'static CompactionRelief = unsafe { NonNull::from(&*depot.relief).as_ref() };
        let is_first = register_relief(depot.frames(), relief);
        assert!(is_first, "a new allocator has no relief");
        depot
    }

    /// The store that other processes use, too, if there is one.
    pub(crate) fn common(&self) -> Option<&dyn CommonStore> {
        self.common.as_ref().map(|common| &**common as _)
    }

    pub(crate) fn movables(&self) -> &Movables {
        &self.movables
    }

    /// The callbacks that the allocator calls when pages run short.
    pub(crate) fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Has requests that find a monitor's ceiling reached ring for the monitor.
    pub(crate) fn ring_at_ceilings(&self) -> Result<(), CallbackError> {
        let allowance = self.common.clone().map(|common| common as Arc<dyn Allowance>);
        self.callbacks.ring_at_ceilings(&self.frames, allowance)
    }

    pub(crate) fn growth(&self) -> &Growth {
        &self.growth
    }

    /// The calls that allocated the blocks in use.
    #[inline]
    pub(crate) fn sites(&self) -> &SiteTable {
        &self.sites
    }

    /// Splits a block that the caller holds.
    pub(crate) fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        self.frames().split(pfn, from, to)?;
        self.sites.split(pfn, from, to);
        Ok(())
    }

    /// The callbacks and the program's mover, for the last handle to drop. They may own pages of
    /// this depot, so they must not live as long as its pages.
    ///
    /// # Safety
    /// No request or compaction runs, now or later.
    pub(crate) unsafe fn take_callbacks(&self) -> (KeptCallbacks, Option<OtherMover>) {
        // SAFETY: the caller's promise.
        unsafe { (self.callbacks.take(), self.movables.take_other()) }
    }

    /// Sums `pages` over the zones.
    fn sum(&self, pages: impl Fn(pagedepot::ZoneStats) -> u64) -> u64 {
        let frames = self.frames();
        let zones = frames.zone_ids().filter_map(|zone| frames.zone_stats(zone));
        // Wrapping: see `absent_pages`.
        zones.map(pages).fold(0, u64::wrapping_add)
    }
}

impl Deref for DepotState {
    type Target = ReturnableFrames;

    #[inline]
    fn deref(&self) -> &ReturnableFrames {
        &self.frames
    }
}

/// Number of times that the last handle tries to fence a CPU whose lock is held.
const FENCES_MAX: u32 = 1000;

impl TeardownHost for DepotState {
    fn teardown(&self) -> &Teardown {
        &self.teardown
    }

    fn close_gates(&self) -> Gates {
        // SAFETY: requests and compaction are a handle's, and there is none any more.
        drop(unsafe { self.take_callbacks() });
        for _ in 0..FENCES_MAX {
            let done = self.frames().cpu_caches().disable();
            match done.busy_cpus {
                0 => return Gates::Fenced,
                busy if busy == done.unfenced_cpus => return Gates::Unfenced,
                // A thread holds a lock longer than a fence waits: it does not run. Let it.
                _ => std::thread::yield_now(),
            }
        }
        Gates::Held
    }

    fn absent_pages(&self) -> u64 {
        if let Some(common) = &self.common {
            // Others' pages are absent from the store, too, and none of this depot is carved.
            return common.taken_pages();
        }
        // Wrapping: a page freed twice may make this negative, and then nothing is unmapped.
        self.sum(|zone| {
            zone.managed_pages.wrapping_sub(zone.free_pages).wrapping_sub(zone.carved_pages)
        })
    }

    fn front_pages(&self) -> u64 {
        self.sum(|zone| zone.cached_pages)
    }

    unsafe fn unmap(this: NonNull<Self>) {
        // SAFETY: from a box (`Depot::from_raw`), and this was its last user.
        drop(unsafe { Box::from_raw(this.as_ptr()) });
    }
}

/// The part of a handle besides its share in the depot. A [`RawDepot`] is a pointer to it: a view
/// of two pointers would be read, or written to the stack, for each block that is freed.
pub(crate) struct Handle {
    /// A copy of the shared allocator's own value, in which nothing ever changes: a loop that
    /// borrows this handle keeps its fields in registers.
    allocator: ManuallyDrop<Frames>,
    shared: NonNull<DepotState>,
}

// SAFETY: a shared reference, in all but name, to a `DepotState`, which threads share.
unsafe impl Send for Handle where DepotState: Sync + Send {}
// SAFETY: as above.
unsafe impl Sync for Handle where DepotState: Sync + Send {}

impl Handle {
    /// # Safety
    /// `shared` is mapped while this value is used.
    pub unsafe fn new(shared: NonNull<DepotState>) -> Self {
        // SAFETY: the caller's promise; the copy is used by shared reference, and not dropped.
        let allocator = unsafe { shared.as_ref().copy_allocator() };
        Handle { allocator, shared }
    }

    #[inline]
    pub fn frames(&self) -> &Frames {
        &self.allocator
    }

    /// The state that all handles share.
    #[inline]
    pub fn shared(&self) -> &DepotState {
        // SAFETY: mapped (`new`), and used by shared reference alone.
        unsafe { self.shared.as_ref() }
    }

    /// The pointer behind [`shared`](Self::shared), with a life that the caller vouches for.
    #[inline]
    pub fn pointer(&self) -> NonNull<DepotState> {
        self.shared
    }
}
