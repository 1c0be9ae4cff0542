//! What a [`Vmap`](super::Vmap) stands on: a [`Mapper`] for page tables, a [`Host`] for frames,
//! the CPU and waiting.

use core::num::NonZeroUsize;

use super::error::MapError;
use super::purge::FlushSpans;
use super::units::{Protection, Span, VirtAddr};
use pagedepot::AllocError;
use pagedepot::Flags;
use pagedepot::cpus::{Cpus, Unusable, WhichCpu};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering, spin_hint};
use pagedepot::sync::spin_while;
use pagedepot::{Allocator, FreeManyError};
use pagedepot::{CpuId, NodeId, Order, Pfn};
use pagedepot::{FrameRange, PageSize};

/// Makes and removes mappings in one range of addresses.
///
/// # Safety
/// [`span`](Mapper::span) is a range of addresses in which nobody but this mapper's one
/// [`Vmap`](super::Vmap) maps anything, and never changes. After `map` has returned `Ok`, the span
/// reaches exactly those frames, in order, until it is unmapped and flushed. After `unmap` and
/// `flush` of a span no access through it reaches a frame.
pub unsafe trait Mapper: Sync {
    /// Pages that one table of the lowest level maps: what is given back when it is empty.
    const TABLE_PAGES: u32 = 512;

    /// The range of addresses to manage, whole pages, not at address 0.
    fn span(&self) -> Span;

    /// The size of a page, as the frames have it.
    fn page_size(&self) -> PageSize;

    /// Maps `frames` from `at` on, in one piece, present at once (no later faults).
    ///
    /// Called by many at once, for pages that are disjoint. May allocate memory.
    ///
    /// # Errors
    /// Why not. Part of the pages may be mapped then; they will be unmapped like others.
    ///
    /// # Safety
    /// The pages lie in [`span`](Mapper::span), are the caller's alone and not mapped; the frames
    /// may be reached through them until they are unmapped.
    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        protection: Protection,
    ) -> Result<(), MapError>;

    /// Removes what is mapped in `span`, of which any part may be unmapped already.
    ///
    /// Whole tables are named whole: a span that covers one completely will leave it empty, and
    /// [`release_tables`](Mapper::release_tables) will follow. Called by one at a time. Does not
    /// allocate from the page allocator it stands on.
    ///
    /// # Errors
    /// Why not. Any part may be unmapped then; the call will be repeated later.
    ///
    /// # Safety
    /// Nobody uses what is mapped in `span`, and nobody maps anything there meanwhile.
    unsafe fn unmap(&self, span: Span) -> Result<(), MapError>;

    /// Waits until no CPU reaches a frame through spans that `unmap` has emptied: one call for a
    /// whole batch. A mapper whose `unmap` flushes has nothing to do here.
    fn flush(&self, spans: FlushSpans<'_>);

    /// Frees the page tables of `span`, which covers whole tables with nothing mapped in them.
    /// Tables of higher levels that become empty may be freed too.
    ///
    /// # Safety
    /// As for [`unmap`](Mapper::unmap); `span` was unmapped and flushed.
    unsafe fn release_tables(&self, span: Span);

    /// Writes `byte` to every byte of `span`.
    ///
    /// # Safety
    /// The span is mapped writable by this mapper, and the caller's alone.
    unsafe fn fill(&self, span: Span, byte: u8);

    /// Writes `byte` to every byte of `frames`, without going through a span: memory that is mapped
    /// without write access is zeroed so, through a linear map for example.
    ///
    /// # Errors
    /// Why not: the request that needs the memory fails with this.
    ///
    /// # Safety
    /// The frames are the caller's alone, and frames that this mapper maps.
    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError>;

    /// Copies from a frame, from `offset` on, without going through the span; `false` when the
    /// frame cannot be read that way, or `buf` reaches beyond it.
    ///
    /// The frame may be freed, handed out again or written at the same moment, by plain stores of
    /// its holder. So the copy must not consist of loads that the compiler knows of: volatile or
    /// atomic, beside a plain store they are a data race. An instruction in `asm!` will do, or a
    /// copy by the operating system. If the frame was freed meanwhile, its bytes are thrown away.
    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool;

    /// Pages of the range that this mapper has lost: after a call that failed they turned out to be
    /// another's, and they are never touched again. `map` fails there, `unmap` and
    /// [`release_tables`](Mapper::release_tables) leave them out. Never fewer than before.
    #[inline]
    fn lost_pages(&self) -> u32 {
        0
    }

    /// The first run of lost pages in `span`. What a call has lost is known here when it returns.
    fn lost_in(&self, span: Span) -> Option<Span> {
        let _ = span;
        None
    }

    /// Whether each run of frames costs something that runs out: then long runs are worth more
    /// effort.
    fn prefers_long_runs(&self) -> bool {
        false
    }
}

/// Where frames come from, which CPU this is, and how to wait.
///
/// # Safety
/// A [`Vmap`](super::Vmap) writes to the frames of its host, and hands them to its users.
/// 1. What [`alloc_block`](Host::alloc_block) and [`alloc_frames`](Host::alloc_frames) return was
///    free, and is not returned again until it is freed. `alloc_frames` returns the number of
///    places of `out` that it has written.
/// 2. [`split_block`](Host::split_block) returns `true` only if the frames of the block can be
///    freed one by one from then on.
/// 3. [`check_usable`](Host::check_usable) fails where frames are not this process's to write, as
///    in a forked child.
pub unsafe trait Host: Sync {
    /// The CPU this runs on, or any number that spreads callers: a hint.
    fn cpu(&self) -> Option<CpuId>;

    /// Allocates a block, as [`Allocator::alloc`].
    ///
    /// # Errors
    /// As there.
    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError>;

    /// Allocates up to `out.len()` single frames, at least one, as [`Allocator::alloc_many`].
    ///
    /// # Errors
    /// As there.
    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError>;

    /// Frees blocks, as [`Allocator::free_many`]. Never waits for a purge.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// The blocks came from this host, or are what [`split_block`](Host::split_block) made of such.
    /// They are the caller's, and are used no more.
    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError>;

    /// Makes single frames of a block, as [`Allocator::split`]; `false`: it stays whole.
    ///
    /// # Safety
    /// The block came from this host, and is the caller's.
    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        let _ = (frame, order);
        false
    }

    /// Whether requests may be served here at all. Asked on slow paths: where it says no, the
    /// metadata must be such that warm paths find nothing, as wiped ones are.
    ///
    /// # Errors
    /// Why not.
    fn check_usable(&self) -> Result<(), Unusable> {
        Ok(())
    }

    /// Tells that `pages` more (or fewer) pages, the first of them `frame`, are freed but still
    /// mapped.
    fn note_quarantined(&self, frame: Pfn, pages: i64) {
        let _ = (frame, pages);
    }

    /// The NUMA node of a frame, for reports.
    fn node_of(&self, frame: Pfn) -> NodeId {
        let _ = frame;
        NodeId::new(0)
    }

    /// Waits while `word` is `seen`, or for a while, or not at all: the caller looks again.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let _ = (word, seen);
        spin_hint();
    }

    /// As [`wait`](Host::wait), for about `limit_ms` milliseconds at most: reclaim waits so for a
    /// lock. By default it spins, some 10 us.
    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        let _ = limit_ms;
        spin_while(word, seen);
    }

    /// A name for the thread that calls, as [`Cpus::caller`]. Without one, reclaim in a signal
    /// handler waits a while for a lock that its own thread holds, before it gives up.
    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Ends the waiting of one who waits for `word`.
    fn wake_one(&self, word: &AtomicU32) {
        let _ = word;
    }

    /// Ends the waiting of all who wait for `word`.
    fn wake_all(&self, word: &AtomicU32) {
        let _ = word;
    }

    /// A lock was found taken: what follows until [`contention_ends`](Host::contention_ends), on
    /// the same thread, is waiting.
    fn contention_begins(&self) {}

    /// See [`contention_begins`](Host::contention_begins).
    fn contention_ends(&self) {}

    /// There is enough for a purge, and the configuration leaves purging to a helper, or the caller
    /// may not wait: run [`Vmap::purge`](super::Vmap::purge) soon, elsewhere.
    fn purge_wanted(&self) {}
}

// SAFETY: the allocator hands a free block to one caller, and splits blocks into single frames. It
// frees what any of its callers says: the contract of `Vmap::new` covers them. `check_usable` is
// that of its `Cpus`.
unsafe impl<C: Cpus> Host for Allocator<'_, C> {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        self.cpus().here().map(|here| here.cpu)
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.alloc(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.alloc_many(Order::BASE, flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.free_many(blocks)
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        self.split(frame, order, Order::BASE).is_ok()
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        Allocator::node_of(self, frame).unwrap_or(NodeId::new(0))
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        self.cpus().check_usable()
    }

    fn note_quarantined(&self, frame: Pfn, pages: i64) {
        Allocator::note_quarantined(self, frame, pages);
    }

    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        self.cpus().wait(word, seen, limit_ms);
    }

    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        self.cpus().caller()
    }
}

// SAFETY: each method is that of the host behind the reference.
unsafe impl<H: Host + ?Sized> Host for &H {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        (**self).cpu()
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        (**self).alloc_block(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        (**self).alloc_frames(flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        // SAFETY: the caller's promise.
        unsafe { (**self).free_blocks(blocks) }
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (**self).split_block(frame, order) }
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        (**self).check_usable()
    }

    fn note_quarantined(&self, frame: Pfn, pages: i64) {
        (**self).note_quarantined(frame, pages);
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        (**self).node_of(frame)
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        (**self).wait(word, seen);
    }

    fn wait_at_most(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        (**self).wait_at_most(word, seen, limit_ms);
    }

    #[inline]
    fn caller(&self) -> Option<NonZeroUsize> {
        (**self).caller()
    }

    fn wake_one(&self, word: &AtomicU32) {
        (**self).wake_one(word);
    }

    fn wake_all(&self, word: &AtomicU32) {
        (**self).wake_all(word);
    }

    fn contention_begins(&self) {
        (**self).contention_begins();
    }

    fn contention_ends(&self) {
        (**self).contention_ends();
    }

    fn purge_wanted(&self) {
        (**self).purge_wanted();
    }
}

/// A host without frames, for address space alone and for mappings of the caller's frames.
pub struct NoFrames<W>(pub W);

// SAFETY: it never returns a frame.
unsafe impl<W: WhichCpu> Host for NoFrames<W> {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        self.0.cpu()
    }

    fn alloc_block(&self, _order: Order, _flags: Flags) -> Result<Pfn, AllocError> {
        Err(AllocError::NoZone)
    }

    fn alloc_frames(&self, _flags: Flags, _out: &mut [Pfn]) -> Result<usize, AllocError> {
        Err(AllocError::NoZone)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let error = pagedepot::FreeError::OutOfRange;
        if blocks.is_empty() {
            Ok(())
        } else {
            Err(FreeManyError { first: 0, error, failed: blocks.len() })
        }
    }
}

/// A mapper that maps nothing and counts what it was asked: for measuring everything but the
/// mapping, and for tests. Nothing may be reached through its addresses.
#[derive(Default)]
pub struct NullMapper {
    base: usize,
    pages: u32,
    page_size: PageSize,
    calls: [AtomicU64; 4],
}

/// What a [`NullMapper`] mapper was asked, in calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapperCalls {
    /// Runs mapped.
    pub maps: u64,
    /// Spans unmapped.
    pub unmaps: u64,
    /// Batches flushed.
    pub flushes: u64,
    /// Spans of page tables given back.
    pub releases: u64,
}

impl NullMapper {
    /// For `span`, which is never touched.
    pub fn new(span: Span, page_size: PageSize) -> Self {
        NullMapper {
            base: span.start.get(),
            pages: span.pages,
            page_size,
            calls: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// What it was asked so far.
    pub fn calls(&self) -> MapperCalls {
        let [maps, unmaps, flushes, releases] =
            [0, 1, 2, 3].map(|i| self.calls[i].load(Ordering::Relaxed));
        MapperCalls { maps, unmaps, flushes, releases }
    }

    fn count(&self, what: usize) {
        pagedepot::sync::count(&self.calls[what], 1);
    }
}

// SAFETY: no access through its addresses reaches a frame, ever.
unsafe impl Mapper for NullMapper {
    fn span(&self) -> Span {
        Span::new(VirtAddr::new(self.base), self.pages)
    }

    fn page_size(&self) -> PageSize {
        self.page_size
    }

    unsafe fn map(
        &self,
        _at: VirtAddr,
        _frames: FrameRange,
        _how: Protection,
    ) -> Result<(), MapError> {
        self.count(0);
        Ok(())
    }

    unsafe fn unmap(&self, _span: Span) -> Result<(), MapError> {
        self.count(1);
        Ok(())
    }

    fn flush(&self, _spans: FlushSpans<'_>) {
        self.count(2);
    }

    unsafe fn release_tables(&self, _span: Span) {
        self.count(3);
    }

    unsafe fn fill(&self, _span: Span, _byte: u8) {}

    unsafe fn fill_frames(&self, _frames: FrameRange, _byte: u8) -> Result<(), MapError> {
        Ok(())
    }

    fn read(&self, _frame: Pfn, _offset: usize, _buf: &mut [u8]) -> bool {
        false
    }
}
