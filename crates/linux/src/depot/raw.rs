//! Calls by page number, behind [`Depot::raw`](crate::Depot::raw).

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::{AllocError, Flags, Order, PageSize, ZoneId};
pub use pagedepot::{Allocator, FrameRange, FreeError, FreeManyError, Pfn};
use pagedepot_contiguity::{Mover, MoverRegistered};

use crate::cpus::linux::LinuxCpus;
use crate::depot::state::{DepotState, Handle};
use crate::error::BuildError;
use crate::memory::frames::Frames;

/// Blocks named by their number, for which the caller takes the responsibility that a
/// [`Page`](crate::Page) takes otherwise.
///
/// A block that is never freed keeps the memory mapped when all handles have gone, as a forgotten
/// page does; [`Depot::unmap`](crate::Depot::unmap) helps.
#[derive(Clone, Copy)]
pub struct RawDepot<'d>(&'d Handle);

impl<'d> RawDepot<'d> {
    #[inline]
    pub(crate) fn new(handle: &'d Handle) -> Self {
        RawDepot(handle)
    }

    /// The [`allocator`](Self::allocator), for this crate.
    #[inline]
    pub(crate) fn frames(&self) -> &'d Frames {
        self.0.frames()
    }

    /// The state that all handles share.
    #[inline]
    pub(crate) fn shared(&self) -> &'d DepotState {
        self.0.shared()
    }

    /// Allocates a block, to be freed by [`free`](Self::free).
    ///
    /// # Errors
    /// Fails like [`Depot::page`](crate::Depot::page).
    #[inline]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        // Not by `?`: the result would be taken apart and put together again for each block. Nor in
        // a closure, which would be the caller that is noted.
        let found = self.frames().alloc(order, flags);
        if let Ok(pfn) = found {
            self.shared().sites().note(pfn, order.frames());
        }
        found
    }

    /// Attributes a block that the caller holds to a call in another language, which
    /// [`AllocInfo`](crate::allocinfo::AllocInfo) names for it from now on: for bindings. `block`
    /// is the first page of what one call allocated; of any other page it changes nothing.
    #[cfg(feature = "allocinfo")]
    pub fn attribute(&self, block: Pfn, site: &'static crate::sites::foreign::ForeignSite) {
        self.shared().sites().attribute(block, site);
    }

    /// The fast path of [`alloc`](Self::alloc) alone, which calls no function: a block that this
    /// CPU's front has. `None`: ask `alloc`. Always `None` where a lock guards the front.
    #[inline]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_fast(&self, order: Order, flags: Flags) -> Option<Pfn> {
        // Without sequences a pop is a call.
        let found = self.has_sequences().then(|| self.frames().alloc_fast(order, flags)).flatten();
        if let Some(pfn) = found {
            self.shared().sites().note(pfn, order.frames());
        }
        found
    }

    /// The fast path of [`free`](Self::free) alone, which calls no function: whether this CPU's
    /// front took the block. If not, nothing has changed: ask `free`. Always `false` where a lock
    /// guards the front.
    ///
    /// # Safety
    /// Requires what [`free`](Self::free) requires.
    #[inline]
    pub unsafe fn free_fast(&self, pfn: Pfn, order: Order) -> bool {
        let noted = self.shared().sites().take(pfn);
        let is_free = self.push(pfn, order);
        if !is_free {
            self.shared().sites().restore(pfn, noted);
        }
        is_free
    }

    /// Frees a block. Any thread may, on any CPU.
    ///
    /// # Errors
    /// [`FreeError`] when it can be none of this depot's; nothing is changed then.
    ///
    /// # Panics
    /// When a page reaches the store that is free there: it was freed twice, or with a wrong order.
    /// That may be found here, or later in another call that frees, drains, trims or allocates,
    /// which panics as the last thing it does: no other page is lost. The message names the
    /// page. [`Builder::checked`](crate::Builder::checked) refuses the second free itself, and
    /// panics nowhere; [`Builder::on_misuse`](crate::Builder::on_misuse) is told instead of a
    /// panic.
    ///
    /// # Safety
    /// The block was allocated by this depot with this order (or made by [`split`](Self::split)),
    /// is freed once, and its memory is no longer used.
    #[inline]
    pub unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let noted = self.shared().sites().take(pfn);
        if self.push(pfn, order) {
            return Ok(());
        }
        let freed = self.free_past_the_front(pfn, order);
        if freed.is_err() {
            self.shared().sites().restore(pfn, noted);
        }
        freed
    }

    /// Whether this CPU's front took the block. Never where a lock guards it: that way is a call,
    /// without which this is small enough to be inlined wherever a block is freed.
    #[inline]
    pub(crate) fn push(&self, pfn: Pfn, order: Order) -> bool {
        self.has_sequences() && self.frames().free_fast(pfn, order)
    }

    /// Whether threads run sequences.
    #[inline]
    fn has_sequences(&self) -> bool {
        self.frames().cpus().sequences().area().is_some()
    }

    /// Frees a block that [`push`](Self::push) did not take.
    ///
    /// A free to a front tells no waiter, although a magazine that it pushes out may end in the
    /// store, if the caches are taken away meanwhile: that move began before, so a waiter's look
    /// beside it cannot tell and is repeated (rule 4 of `waiters.rs`).
    #[cold]
    #[inline(never)]
    pub(crate) fn free_past_the_front(self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        if self.frames().free_to_front(pfn, order) { Ok(()) } else { self.bring(pfn, order) }
    }

    /// Frees a block that no front took, and wakes a request that waits.
    #[cold]
    #[inline(never)]
    fn bring(self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let _bringing = self.shared().bringing();
        self.frames().free_refused(pfn, order)
    }

    /// Registers a mover for blocks that the program holds by their numbers, for good:
    /// for [`Depot::compact`](crate::Depot::compact), and for requests with [`Flags::compact`].
    /// It is asked about what is no [`Movable`](crate::Movable) page. A move copies the block's
    /// memory, and that is the mover's part; the feature `allocinfo` no longer knows who allocated
    /// it. The mover is dropped with the depot's last handle, so it must not own one: use a
    /// [`WeakDepot`](crate::WeakDepot). It may own pages. A signal handler whose request may
    /// [compact](Flags::compact) calls the mover in the handler.
    ///
    /// # Errors
    /// [`MoverRegistered`]: there is one already.
    ///
    /// # Safety
    /// The mover keeps the contract of [`Mover`], for blocks that were allocated by this depot's
    /// raw calls and that no [`Page`](crate::Page) owns: of a move that it calls done, the memory
    /// is used at the new place alone.
    pub unsafe fn register_mover(
        &self,
        mover: Arc<dyn Mover + Send + Sync>,
    ) -> Result<(), MoverRegistered> {
        if self.shared().movables().register(mover) { Ok(()) } else { Err(MoverRegistered) }
    }

    /// Allocates up to `out.len()` blocks and returns how many. See [`Allocator::alloc_many`].
    ///
    /// ```
    /// use pagedepot_linux::raw::Pfn;
    /// use pagedepot_linux::{Depot, Flags, Order};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// let mut blocks = [Pfn::new(0); 100];
    /// let got = depot.raw().alloc_many(Order::BASE, Flags::default(), &mut blocks)?;
    /// // SAFETY: allocated above with this order, and not used.
    /// unsafe { depot.raw().free_many(Order::BASE, &blocks[..got]) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`alloc`](Self::alloc), when there was not even one.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_many(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
    ) -> Result<usize, AllocError> {
        let got = self.frames().alloc_many(order, flags, out)?;
        for &pfn in &out[..got] {
            self.shared().sites().note(pfn, order.frames());
        }
        Ok(got)
    }

    /// Frees blocks of one order, as [`alloc_many`](Self::alloc_many) returns them.
    ///
    /// # Errors
    /// Bad blocks are skipped and counted; all others are freed.
    ///
    /// # Safety
    /// Requires what [`free`](Self::free) requires, for each.
    pub unsafe fn free_many(&self, order: Order, blocks: &[Pfn]) -> Result<(), FreeManyError> {
        blocks.iter().for_each(|&pfn| self.shared().sites().clear_of(pfn, order));
        let done = self.frames().free_many_fast(order, blocks);
        match done == blocks.len() {
            true => Ok(()),
            false => self.bring_many(order, blocks, done),
        }
    }

    /// Frees the blocks of a batch behind the first `done`, which the fronts took, and wakes a
    /// request that waits.
    #[cold]
    #[inline(never)]
    fn bring_many(self, order: Order, blocks: &[Pfn], done: usize) -> Result<(), FreeManyError> {
        let _bringing = self.shared().bringing();
        let freed = self.frames().free_many_of(order, &blocks[done..]);
        freed.map_err(|bad| FreeManyError { first: done + bad.first, ..bad })
    }

    /// Frees a batch of blocks of any orders. See [`Allocator::free_many`].
    ///
    /// # Errors
    /// Bad blocks are skipped and counted; all others are freed.
    ///
    /// # Safety
    /// Requires what [`free`](Self::free) requires, for each.
    pub unsafe fn free_mixed(&self, batch: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        batch.iter().for_each(|&(pfn, order)| self.shared().sites().clear_of(pfn, order));
        let _bringing = self.shared().bringing();
        self.frames().free_many(batch)
    }

    /// Allocates contiguous pages, the first a multiple of `align` pages. See
    /// [`Allocator::alloc_contiguous`] for where they are looked for, in which order, and what
    /// that costs.
    ///
    /// # Errors
    /// [`AllocError::BadSize`], [`AllocError::Exhausted`] as
    /// [`Depot::pages`](crate::Depot::pages), or [`AllocError::Unsupported`] for more than a block
    /// over a [`Backing`](pagedepot::Backing) without ranges.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_contiguous(
        &self,
        count: u32,
        align: u32,
        flags: Flags,
    ) -> Result<Pfn, AllocError> {
        let start = self.frames().alloc_contiguous(count, align, flags)?;
        self.shared().sites().note_run(start, count);
        Ok(start)
    }

    /// Allocates exactly these pages. Before it fails, caches are drained and callbacks called. See
    /// [`Allocator::alloc_at`].
    ///
    /// # Errors
    /// [`AllocError::NotAvailable`] when not all of them can be had, [`AllocError::Unsupported`]
    /// over a [`Backing`](pagedepot::Backing) without ranges.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn alloc_at(&self, start: Pfn, count: u32, flags: Flags) -> Result<(), AllocError> {
        self.frames().alloc_at(start, count, flags)?;
        self.shared().sites().note_run(start, count);
        Ok(())
    }

    /// Allocates a range like [`alloc_at`](Self::alloc_at), by one look alone: it calls no
    /// callbacks, drains nothing, and a refusal counts as no failure. See
    /// [`Allocator::try_alloc_at`].
    ///
    /// # Errors
    /// Fails like [`alloc_at`](Self::alloc_at).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn try_alloc_at(&self, start: Pfn, count: u32, flags: Flags) -> Result<(), AllocError> {
        self.frames().try_alloc_at(start, count, flags)?;
        self.shared().sites().note_run(start, count);
        Ok(())
    }

    /// Frees contiguous pages. See [`Allocator::free_contiguous`].
    ///
    /// # Errors
    /// [`FreeError`].
    ///
    /// # Safety
    /// Requires what [`free`](Self::free) requires.
    pub unsafe fn free_contiguous(&self, start: Pfn, count: u32) -> Result<(), FreeError> {
        self.shared().sites().take_run(start, count);
        let _bringing = self.shared().bringing();
        let freed = self.frames().free_contiguous(start, count);
        if freed.is_err() {
            self.shared().sites().restore_run(start, count);
        }
        freed
    }

    /// Splits a block that the caller holds by its number; the parts are freed one by one.
    /// [`Page::split`](crate::Page::split) splits one that frees itself.
    ///
    /// # Errors
    /// Fails like [`Allocator::split`].
    ///
    /// # Safety
    /// The caller holds the block with this order, and no [`Page`](crate::Page) does.
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        self.shared().split(pfn, from, to)
    }

    /// Adds memory like [`Depot::grow`](crate::Depot::grow), and calls `ready` with its first byte
    /// and its size in bytes before any request can get one of its pages.
    ///
    /// # Errors
    /// Fails like [`Depot::grow`](crate::Depot::grow), and calls nothing.
    pub fn grow_with(
        &self,
        zone: ZoneId,
        bytes: usize,
        ready: impl FnOnce(NonNull<u8>, usize),
    ) -> Result<Pfn, BuildError> {
        self.shared().growth().add(self.shared(), zone, bytes, ready)
    }

    /// Whether a page is free in the store (not cached, not held) at this moment.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.frames().is_free(pfn)
    }

    /// Claims of the bitmap that found a page gone; what they had taken by then they put back.
    pub fn failed_claims(&self) -> u64 {
        self.frames().failed_claims()
    }

    /// The allocator underneath, for what has no method here.
    ///
    /// # Safety
    /// The allocator has safe methods because it never touches pages, but [`Page`](crate::Page)s
    /// do: through it, free only blocks whose memory is no longer used. What is freed through it
    /// wakes no [request that waits](crate::Depot::page_async).
    pub unsafe fn allocator(&self) -> &'d Allocator<'static, LinuxCpus<'static>> {
        self.frames()
    }

    /// The base page size.
    #[inline]
    pub fn page_size(&self) -> PageSize {
        self.shared().page_size()
    }

    /// The first byte of the memory, of page 0. Aligned to the next power of two of the depot's
    /// bytes, at least 2 MiB and at most 1 GiB: up to that, a range of pages is aligned in memory
    /// as its first page's number is.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.shared().base()
    }

    /// Bytes of memory, what it has [grown](crate::Depot::grow) by included.
    pub fn bytes(&self) -> usize {
        self.shared().bytes()
    }

    /// The memory file, if it is one ([`MemoryKind::Memfd`](crate::MemoryKind::Memfd)); page `n`
    /// begins at [`offset`](Self::offset) of it. `None` for a depot that processes share: its pages
    /// are a part of [`SharedDepot::file`](crate::shared::SharedDepot::file). For pages that stay
    /// registered after they are freed see [`Depot::pin_range`](crate::Depot::pin_range).
    ///
    /// The file cannot be made smaller, nor larger unless the depot can still
    /// [grow](crate::Depot::grow) (`F_SEAL_SHRINK`, `F_SEAL_GROW`): no access to the depot's memory
    /// ends in `SIGBUS` because of its length.
    ///
    /// ```compile_fail,E0133
    /// # use pagedepot_linux::{Depot, MemoryKind};
    /// let depot = Depot::builder(1 << 20).memory(MemoryKind::Memfd).build()?;
    /// let file = depot.raw().fd(); // needs `unsafe`
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    ///
    /// # Safety
    /// For as long as the depot lives, and through this descriptor, its duplicates, mappings made
    /// with them and whatever they are registered with:
    /// * only bytes of pages that the caller holds are written, and only while no reference to them
    ///   (such as a [`Page`](crate::Page)'s `&[u8]`) is in use; likewise, bytes that another thread
    ///   may be writing are not read where that would be a data race. Free pages belong to the
    ///   depot: it keeps metadata in some of them (magazines that are cut from pages), so one stray
    ///   byte corrupts the allocator;
    /// * holes are punched only into whole pages that the caller holds, which are zero afterwards;
    ///   nothing is allocated, and no seals are added (`fallocate`, `F_ADD_SEALS`), and the length
    ///   is not changed.
    pub unsafe fn fd(&self) -> Option<BorrowedFd<'d>> {
        self.shared().memory().fd()
    }

    /// Offset of a page in bytes from [`base`](Self::base) and in [`fd`](Self::fd).
    #[inline]
    pub fn offset(&self, pfn: Pfn) -> usize {
        self.shared().offset(pfn)
    }

    /// The address of a page.
    ///
    /// # Panics
    /// When the depot has no such page, nor can [grow](crate::Depot::grow) to have it.
    #[inline]
    pub fn address(&self, pfn: Pfn) -> NonNull<u8> {
        self.shared().address(pfn)
    }

    /// The page that an address lies in, if it is the depot's.
    #[inline]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        self.shared().pfn_of(address)
    }
}

impl fmt::Debug for RawDepot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawDepot({:p}, {} bytes)", self.base(), self.bytes())
    }
}
