//! The allocator and its fast paths, and what a request or a free of a single block does when this
//! CPU's front does not serve it.
#![allow(unsafe_code, reason = "shares raw pointers between threads")]

use core::marker::PhantomData;
use core::ptr::NonNull;

use super::error::{AllocError, FreeError};
use super::flags::Flags;
use super::layout::{Globals, Layout};
use super::pressure::{PendingRequest, SlowPath};
use super::walk::Want;
use super::zero_and_check::{Hooks, Options};
use crate::cpus::Cpus;
use crate::frame::pageblock::Tag;
use crate::frame::{Order, PageSize, Pfn};
use crate::front::WordOffset;
use crate::pcp::{Caches, Front};
use crate::zone::Reserve;

/// A page allocator over memory that its caller supplies.
///
/// `C` is how code reaches the CPU it runs on; see [`Cpus`]. All methods take `&self` and may be
/// called from any number of threads, and from interrupt or signal handlers at any moment, also in
/// the middle of another call on the same CPU.
///
/// No method waits for another caller, but for a request that may reclaim and is about to fail:
/// what is shared is changed by single atomic operations. That request sleeps
/// ([`Environment::wait`](crate::cpus::Environment::wait)) while another caller runs a
/// [`Reclaim`](crate::Reclaim) callback, a second at most for each, and some milliseconds while
/// others have pages in their hands; how long is bounded. Over a [`Backing`](crate::Backing) that
/// has a lock, what reaches it waits there.
pub struct Allocator<'m, C> {
    pub(crate) caches: Caches<'m, C>,
    pub(super) layout: Layout,
    pub(super) options: Options,
    /// The level of the only zone; more than any request takes where there are several, or options
    /// that make an allocation more than a pop.
    pub(super) simple_level: u8,
    pub(crate) globals: &'m Globals<'m, C>,
    pub(super) base: NonNull<u8>,
    pub(super) memory: PhantomData<&'m mut [u8]>,
}

// SAFETY: everything behind the pointers is atomics, or written before the allocator exists;
// `Pressure` callbacks are `Sync`.
unsafe impl<C: Send> Send for Allocator<'_, C> {}
// SAFETY: as above.
unsafe impl<C: Sync> Sync for Allocator<'_, C> {}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Allocates a block of 2^order frames, aligned to its size.
    ///
    /// Costs one sequence on this CPU while its front has rounds, and one refill per magazine.
    /// Large blocks come from the store where a magazine of them (7 to 12) is more than a CPU may
    /// cache.
    ///
    /// # Errors
    /// [`AllocError`]; see [`shortage`](Self::shortage) for where the pages are.
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        let Some(word) = flags.simple_word(order, self.simple_level) else {
            return self.alloc_general(order, flags);
        };
        match self.caches.cpus.pop(self.caches.pcps.blocks(), word) {
            Some(frame) => Ok(Pfn::new(frame)),
            None => self.alloc_refused(order, flags, word),
        }
    }

    /// The fast path of [`alloc`](Self::alloc) alone: one pop from this CPU's front. `None`: ask
    /// `alloc`. The front has no rounds, or there are several zones or options.
    ///
    /// For callers that find out more about a request, such as whether it may wait, only once they
    /// know that it takes longer.
    #[inline]
    pub fn alloc_fast(&self, order: Order, flags: Flags) -> Option<Pfn> {
        let word = flags.simple_word(order, self.simple_level)?;
        self.caches.cpus.pop(self.caches.pcps.blocks(), word).map(Pfn::new)
    }

    /// [`alloc`](Self::alloc) when the fast path has no block. Where a lock guards the front this
    /// is the fast path, so it is a function of its own, which saves no registers.
    #[cold]
    #[inline(never)]
    fn alloc_refused(
        &self,
        order: Order,
        flags: Flags,
        word: WordOffset,
    ) -> Result<Pfn, AllocError> {
        match self.caches.cpus.pop_locked(self.caches.pcps.blocks(), word) {
            Some(frame) => Ok(Pfn::new(frame)),
            None => self.slow().alloc_turned(order, flags),
        }
    }

    /// [`alloc`](Self::alloc) with several zones or options: all that is left, behind one call, so
    /// that the fast paths carry nothing of it.
    #[cold]
    #[inline(never)]
    fn alloc_general(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.slow().alloc(order, self.options.classes.of(flags))
    }

    /// Frees a block that [`alloc`](Self::alloc) returned for this order, or a part that
    /// [`split`](Self::split) made. Any CPU may free it.
    ///
    /// # Errors
    /// [`FreeError`] when the block cannot be one of ours; nothing is changed then. Freeing what
    /// one does not hold is caught always by range, alignment and when the frames reach the store;
    /// at once if the frame holds the allocator's own magazines; and at once with
    /// [`Config::checked`](crate::Config::checked). Ranges are told by aligned runs
    /// of 512 frames: only `checked` tells frames of a smaller hole from allocated ones.
    #[inline]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        if self.free_fast(pfn, order) { Ok(()) } else { self.slow().free_turned(pfn, order) }
    }

    /// The fast path of [`free`](Self::free) alone: one push to this CPU's front. `false`: nothing
    /// has changed, and the caller still holds the block.
    ///
    /// After a push that succeeded this reads and writes nothing of the allocator. So an owner that
    /// has closed all gates ([`CpuCaches::disable`](crate::CpuCaches::disable)) may take the
    /// allocator away while callers return from here.
    #[inline]
    pub fn free_fast(&self, pfn: Pfn, order: Order) -> bool {
        self.caches.push_simple(pfn, order)
    }

    /// The address of this allocator's fronts, for [sequences in another
    /// language](crate::cpus::implement#sequences-in-c).
    #[inline]
    pub fn fronts_at(&self) -> *mut u8 {
        self.caches.pcps.blocks().base()
    }

    /// Pushes a block to this CPU's front where [`free_fast`](Self::free_fast) does not: under the
    /// CPU's lock, if one guards its fronts ([`Cpus::is_behind_lock`]), or into the front's other
    /// magazine. `false`: the caller still holds the block, and
    /// [`free_refused`](Self::free_refused) takes it.
    ///
    /// After a push that succeeded this drops the lock, if there is one, and then reads and writes
    /// nothing more.
    #[inline]
    pub fn free_to_front(&self, pfn: Pfn, order: Order) -> bool {
        // As most blocks are: then the order and its rounds are no loads.
        let pushed = match order == Order::BASE {
            true => self.caches.push_simple_locked(pfn, Order::BASE),
            false => self.caches.push_simple_locked(pfn, order),
        };
        pushed || self.caches.push_turned(pfn, order)
    }

    /// [`free`](Self::free) for a caller whose [`free_fast`](Self::free_fast) and
    /// [`free_to_front`](Self::free_to_front) have just refused the block: with options, when the
    /// front has no room, or of what is not ours.
    ///
    /// # Errors
    /// Fails like [`free`](Self::free).
    #[cold]
    #[inline(never)]
    pub fn free_refused(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.slow().free(pfn, order)
    }

    /// Splits an allocated block into blocks of order `to`, each of which is then freed by itself.
    ///
    /// O(parts) with `checked`, else O(1).
    ///
    /// # Errors
    /// When `to` is larger than `from`, the block cannot be one of ours, or (with `checked`) is
    /// not allocated with this order. [`FreeError::Forked`].
    pub fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        self.slow().hooks().split(pfn, from, to)
    }

    /// The value through which code reaches its CPU.
    pub fn cpus(&self) -> &C {
        &self.caches.cpus
    }

    /// CPUs that have caches.
    pub fn cpu_count(&self) -> u32 {
        self.caches.pcps.cpus()
    }

    /// The base page size.
    pub fn page_size(&self) -> PageSize {
        self.options.page_size
    }

    /// The checks and options that blocks pass on their way out and in.
    pub(crate) fn hooks(&self) -> Hooks<'_, 'm, C> {
        Hooks { caches: &self.caches, options: &self.options }
    }

    /// Requests for single blocks, and what they do before and after.
    #[inline]
    pub(super) fn slow(&self) -> SlowPath<'_, 'm, C> {
        SlowPath {
            caches: &self.caches,
            options: &self.options,
            last_resort: &self.globals.last_resort,
            relief: &self.globals.relief,
        }
    }
}

/// Requests and frees of single blocks that a front does not serve.
impl<C: Cpus> SlowPath<'_, '_, C> {
    /// Allocates a block: from the front of the zone to try first, else by the slow path.
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        match self.pop(order, flags).map(Pfn::new) {
            Some(pfn) => Ok(self.hooks().on_alloc(pfn, order, flags)?),
            None => self.alloc_slow(order, flags),
        }
    }

    /// Allocates a block for a simple request whose pop from its front had none.
    #[cold]
    #[inline(never)]
    pub fn alloc_turned(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        match self.caches.pop_turned(order, flags.kind()) {
            Some(pfn) => self.hooks().end_call(order.frames(), Ok(pfn)),
            None => self.alloc_slow(order, flags),
        }
    }

    /// One pop from the front of the zone to try first.
    #[inline]
    pub fn pop(&self, order: Order, flags: Flags) -> Option<u32> {
        let order = order.cached()?;
        let zone = self.caches.first_zone(self.caches.here()?, flags)?;
        let word = WordOffset::new(zone, order, flags.kind());
        self.caches.pop(word)
    }

    /// Allocates a block like [`alloc`](Self::alloc), for a caller that has just tried the front.
    #[cold]
    #[inline(never)]
    pub fn alloc_slow(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.check_usable()?;
        let hooks = self.hooks();
        let relieved = self.relief.get().and_then(|relief| {
            let request = self.request(Want::Block(order), flags);
            relief.before_mixing(&PendingRequest { hooks, request, reserve: Reserve::AboveLow })
        });
        let found = match relieved
            .or_else(|| self.caches.walk_for_block(order, flags, Reserve::AboveLow))
        {
            Some(pfn) => Ok(pfn),
            None => self.alloc_below_low(self.request(Want::Block(order), flags)),
        };
        let pfn = hooks.end_call(order.frames(), found)?;
        Ok(hooks.on_alloc(pfn, order, flags)?)
    }

    /// Frees a block that a push to its front did not take.
    #[cold]
    #[inline(never)]
    pub fn free_turned(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let caches = self.caches;
        let pushed = caches.push_simple_locked(pfn, order) || caches.push_turned(pfn, order);
        if pushed { Ok(()) } else { self.free(pfn, order) }
    }

    /// Frees a block that [`Caches::push_simple`] did not take.
    #[inline]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let tag = self.hooks().check_free(pfn, order)?;
        match order.cached() {
            Some(order) if self.push_untried(pfn, order, tag) => Ok(()),
            _ => self.free_slow(pfn, order, tag),
        }
    }

    /// Frees a block like [`free`](Self::free), if it has passed its checks.
    pub fn free_checked(&self, pfn: Pfn, order: Order, tag: Tag) -> Result<(), FreeError> {
        if self.push(pfn, order, tag) { Ok(()) } else { self.free_slow(pfn, order, tag) }
    }

    /// Frees a block if this CPU's front has room.
    pub fn push(&self, pfn: Pfn, order: Order, tag: Tag) -> bool {
        self.caches.push(WordOffset::of_tag(tag, order), order, pfn)
    }

    /// Pushes a block like [`push`](Self::push), which [`Caches::push_simple`] did not take: a
    /// front that it has tried is not tried again.
    #[inline]
    pub fn push_untried(&self, pfn: Pfn, order: Order, tag: Tag) -> bool {
        self.caches.store.simple_tag(pfn, order).is_none() && self.push(pfn, order, tag)
    }

    #[cold]
    #[inline(never)]
    pub fn free_slow(&self, pfn: Pfn, order: Order, tag: Tag) -> Result<(), FreeError> {
        let freed = self.free_slowly(pfn, order, tag);
        self.caches.store.end_call(|| ());
        freed
    }

    /// Frees a block like [`free_slow`](Self::free_slow), in the middle of a call.
    pub fn free_slowly(&self, pfn: Pfn, order: Order, tag: Tag) -> Result<(), FreeError> {
        self.check_usable()?;
        let (here, caches) = (self.caches.here(), self.caches);
        // Frames that a caller is removing go to the store, where that caller takes them.
        if let Some(front) = here.and_then(|here| Front::of_tag(here, order.cached()?, tag))
            && caches.share(front.here.cpu, front.zone).free(front, pfn)
        {
            return Ok(());
        }
        match caches.direct(here, tag.zone()).put(pfn, order) {
            0 => Ok(()),
            _ => Err(FreeError::NotAllocated),
        }
    }
}
