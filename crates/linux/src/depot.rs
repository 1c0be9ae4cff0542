//! The depot: an allocator, its metadata and its memory in one value.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::cpus::{Cpus, Unusable};
use pagedepot::{
    AllocError, Allocator, Backing, Census, CpuId, CpuStats, Drained, Fault, Flags, FreeError,
    FreeManyError, MetadataUse, Mode, Order, PageSize, Pfn, Pressure, Reclaim, Scope, Shortage,
    ZoneId, ZoneStats,
};

use crate::builder::Builder;
use crate::cpus::{ForkMark, Fronts, LinuxCpus};
use crate::error::{BuildError, CallbackError};
use crate::grow::Growth;
use crate::memory::Memory;
use crate::metadata::Metadata;
use crate::page::{Page, Pages};
use crate::pins::Pins;
use crate::sync::ForkLock;
use crate::trim::{self, Trimmed};
use crate::trim_state::TrimState;
use crate::vmalloc::Shrinkers;

/// The allocator of a depot.
pub(crate) type Frames = Allocator<'static, LinuxCpus<'static>>;

/// A page allocator over memory of its own.
///
/// Share it by reference or [`Arc`]; all methods take `&self`, may be called from
/// any number of threads, and none waits for another caller, but for a request that may reclaim and
/// is about to fail. It sleeps while a [`trim`](Self::trim) has the pages, while another request
/// runs a callback of [`on_pressure`](Self::on_pressure), a second at most for each, and some
/// milliseconds while other threads have pages in their hands.
///
/// Allocating and freeing may also be done from a signal handler, at any moment: a request on top
/// of a callback, a trim or a purge of its own thread does not wait for it. On top of code that has
/// pages in its hands it naps for them in vain, some 130 ms at most. A handler that must not sleep
/// asks with [`Flags::atomic`] or [`Flags::no_reclaim`].
///
/// ```
/// use pagedepot_linux::{Depot, Order};
///
/// let depot = Depot::new(64 << 20)?;
/// let mut page = depot.page(Order::BASE)?;
/// page[..5].copy_from_slice(b"hello");
/// drop(page); // back to this CPU's cache
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # After fork
/// A child gets [`AllocError::Forked`], [`FreeError::Forked`] and the like from every method that
/// would change something, whatever its parent's threads were doing at the fork; no call waits for
/// them. Pages it inherited can be read and are dropped without effect. Of anonymous memory they
/// are copies. Of a memory file ([`MemoryKind::Memfd`](crate::MemoryKind::Memfd)) they are the
/// parent's own: what a child writes to one, its parent sees. A child makes a depot of its own.
pub struct Depot {
    // Dropped in this order: the allocator refers to all that follows.
    allocator: Frames,
    trimming: Arc<TrimState>,
    // Boxed, so that nothing in a depot's own value changes: a loop that borrows one then keeps
    // its fields in registers (see `Globals` in the core).
    /// Behind pointers, because the allocator knows their addresses.
    callbacks: Box<ForkLock<Callbacks>>,
    pins: Box<ForkLock<Pins>>,
    is_pinned: bool,
    _backing: Option<Arc<dyn Backing + Send>>,
    _books: Metadata,
    growth: Growth,
    memory: Memory,
}

impl Depot {
    /// A depot of `bytes` with the defaults of [`Builder`].
    ///
    /// # Errors
    /// [`BuildError`]; its `Display` says what to do.
    pub fn new(bytes: usize) -> Result<Self, BuildError> {
        Self::builder(bytes).build()
    }

    /// A depot of `bytes`, rounded up to whole pages, with options.
    ///
    /// The system backs pages when they are first touched, so a depot can be larger than what is
    /// free now. It can never have more bytes in all than the system would map for one program
    /// at once, whether it is built so large or [grows](Self::grow) there, and whatever the
    /// kind of memory: RAM and swap with `vm.overcommit_memory=0`, anything with `1`, what is
    /// left below the commit limit with `2` (a memory file is counted there page by page).
    pub fn builder(bytes: usize) -> Builder {
        Builder::new(bytes)
    }

    pub(crate) fn assemble(
        allocator: Frames,
        backing: Option<Arc<dyn Backing + Send>>,
        metadata: Metadata,
        (memory, growth): (Memory, Growth),
        fork_mark: ForkMark<'static>,
        is_pinned: bool,
    ) -> Self {
        let trimming = Arc::<TrimState>::default();
        let callbacks = Box::new(ForkLock::new(fork_mark, Callbacks::new(fork_mark)));
        let pins = Box::new(ForkLock::new(fork_mark, Pins::default()));
        let (_backing, _books) = (backing, metadata);
        let depot = Depot {
            allocator,
            trimming,
            callbacks,
            pins,
            is_pinned,
            _backing,
            _books,
            growth,
            memory,
        };
        // SAFETY: shared, so it stays where it is, and dropped after the allocator.
        let state: &'static TrimState = unsafe { &*Arc::as_ptr(&depot.trimming) };
        depot.allocator.register_reclaim(state).expect("a new allocator has no callbacks");
        depot
    }

    /// Allocates a block of 2^order pages that frees itself. Its contents are whatever its last
    /// user left, zeroes at first.
    ///
    /// # Errors
    /// [`AllocError`]; after [`AllocError::Exhausted`], [`shortage`](Self::shortage) tells where
    /// the pages are.
    #[inline]
    pub fn page(&self, order: Order) -> Result<Page<'_>, AllocError> {
        self.page_with(order, Flags::default())
    }

    /// As [`page`](Self::page), with flags: zeroed, mobility, whether it may reclaim.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    #[inline]
    pub fn page_with(&self, order: Order, flags: Flags) -> Result<Page<'_>, AllocError> {
        let pfn = self.alloc(order, flags)?;
        // SAFETY: just allocated, and nobody else knows it.
        Ok(unsafe { Page::from_raw(self, pfn, order) })
    }

    /// Allocates `count` contiguous pages, up to 1 GiB of 4 KiB pages, that free themselves. They
    /// are looked for past the caches, as [`Allocator::alloc_contiguous`] says: quickly at first,
    /// then among all runs of free pages; before the request fails, what CPUs cache is taken
    /// back, callbacks are called and a trim's pages waited for, as for single ones.
    ///
    /// # Errors
    /// [`AllocError::BadSize`] for none or too many; [`AllocError::Exhausted`] when no run of so
    /// many pages is free, which scattered pages can cause while many are free.
    pub fn pages(&self, count: u32, flags: Flags) -> Result<Pages<'_>, AllocError> {
        let start = self.alloc_contiguous(count, 1, flags)?;
        // SAFETY: just allocated, and nobody else knows them.
        Ok(unsafe { Pages::from_raw(self, start, count) })
    }

    /// Allocates a block of 2^order pages, to be freed by [`free`](Self::free).
    ///
    /// # Errors
    /// As [`page`](Self::page).
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.allocator.alloc(order, flags)
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
    /// page. [`Builder::checked`] refuses the second free itself, and panics nowhere;
    /// [`Builder::on_misuse`] is told instead of a panic.
    ///
    /// # Safety
    /// The block was allocated by this depot with this order (or made by [`split`](Self::split)),
    /// is freed once, and nobody uses its memory any more.
    #[inline]
    pub unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.allocator.free(pfn, order)
    }

    /// Allocates up to `out.len()` blocks; how many. See [`Allocator::alloc_many`].
    ///
    /// # Errors
    /// As [`page`](Self::page), when there was not even one.
    pub fn alloc_many(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
    ) -> Result<usize, AllocError> {
        self.allocator.alloc_many(order, flags, out)
    }

    /// Frees a batch of blocks of any orders. See [`Allocator::free_many`].
    ///
    /// # Errors
    /// Bad blocks are skipped and counted; all others are freed.
    ///
    /// # Safety
    /// As [`free`](Self::free), for each.
    pub unsafe fn free_many(&self, batch: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.allocator.free_many(batch)
    }

    /// Allocates contiguous pages, the first a multiple of `align`. See
    /// [`Allocator::alloc_contiguous`] for where they are looked for, in which order, and what
    /// that costs.
    ///
    /// # Errors
    /// [`AllocError::BadSize`], [`AllocError::Exhausted`] as [`pages`](Self::pages), or
    /// [`AllocError::Unsupported`] for more than a block over a [`Backing`] without ranges.
    pub fn alloc_contiguous(
        &self,
        count: u32,
        align: u32,
        flags: Flags,
    ) -> Result<Pfn, AllocError> {
        self.allocator.alloc_contiguous(count, align, flags)
    }

    /// Allocates exactly these pages. Before it fails, caches are drained and callbacks called. See
    /// [`Allocator::alloc_at`].
    ///
    /// # Errors
    /// [`AllocError::NotAvailable`] when not all of them can be had, [`AllocError::Unsupported`]
    /// over a [`Backing`] without ranges.
    pub fn alloc_at(&self, start: Pfn, count: u32, flags: Flags) -> Result<(), AllocError> {
        self.allocator.alloc_at(start, count, flags)
    }

    /// As [`alloc_at`](Self::alloc_at), by one look alone: it calls no callbacks, drains nothing,
    /// and a refusal counts as no failure. See [`Allocator::try_alloc_at`].
    ///
    /// # Errors
    /// As [`alloc_at`](Self::alloc_at).
    pub fn try_alloc_at(&self, start: Pfn, count: u32, flags: Flags) -> Result<(), AllocError> {
        self.allocator.try_alloc_at(start, count, flags)
    }

    /// Frees contiguous pages. See [`Allocator::free_contiguous`].
    ///
    /// # Errors
    /// [`FreeError`].
    ///
    /// # Safety
    /// As [`free`](Self::free).
    pub unsafe fn free_contiguous(&self, start: Pfn, count: u32) -> Result<(), FreeError> {
        self.allocator.free_contiguous(start, count)
    }

    /// Splits a block that the caller holds by its number; the parts are freed one by one.
    /// [`Page::split`] splits one that frees itself.
    ///
    /// # Errors
    /// See [`Allocator::split`].
    ///
    /// # Safety
    /// The caller holds the block with this order, and no [`Page`] does.
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        self.allocator.split(pfn, from, to)
    }

    /// Takes pages back from CPUs' caches. *Quiet*: interrupts nobody. *Full*: fences each CPU that
    /// runs this process and is not isolated, once, and takes its fronts too.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Mode, Order, Scope};
    ///
    /// let depot = Depot::builder(64 << 20).per_cpu_locks(true).build()?;
    /// drop(depot.page(Order::BASE)?);
    /// let drained = depot.drain(Scope::ALL, Mode::Full);
    /// assert!(drained.taken_pages > 0 && drained.unreachable_pages == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, scope: Scope, mode: Mode) -> Drained {
        self.allocator.drain(scope, mode)
    }

    /// As [`drain`](Self::drain), and tells what it did CPU by CPU.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        tell: impl FnMut(CpuId, Drained),
    ) -> Drained {
        self.allocator.drain_each(scope, mode, tell)
    }

    /// Gives the memory of free pages back to the system. Drains quietly first; drain fully before
    /// if caches are large. See [`Trimmed`].
    ///
    /// What is given back is allocated meanwhile, at most 16 MiB at a time, so nobody can get a
    /// page whose contents are about to vanish. Costs system calls, and interrupts every CPU that
    /// runs this process: call it rarely. One caller trims, another returns at once; so does one
    /// that comes just after a request ran out of pages: what is free then is needed
    /// ([`Trimmed::cut_short`]).
    ///
    /// Pages that a device or the kernel keeps for longer than they are held (buffers registered
    /// with io_uring, VFIO, RDMA) must be marked by [`pin_range`](Self::pin_range): trims leave
    /// them alone.
    ///
    /// # Errors
    /// [`TrimError::Pinned`](crate::TrimError::Pinned) when the depot was built with
    /// [`Builder::pinned`]. [`TrimError::Refused`](crate::TrimError::Refused) when the system
    /// refuses: it counts what was taken before; call again.
    /// [`TrimError::Forked`](crate::TrimError::Forked) in a child.
    pub fn trim(&self) -> Result<Trimmed, crate::TrimError> {
        trim::trim(self, &self.trimming)
    }

    /// Calls `reclaim` when pages run short, for the depot's life: it frees pages that the program
    /// can do without and returns how many. See [`Reclaim`]. What it holds must not own the depot:
    /// use a [`Weak`](std::sync::Weak) reference.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use pagedepot_linux::{Depot, Order, Page, Pressure};
    ///
    /// let depot = Arc::new(Depot::new(16 << 20)?);
    /// // Pages that could be filled again, such as a cache's.
    /// let cache = Arc::new(Mutex::new(Vec::new()));
    /// let (weak, given) = (Arc::downgrade(&depot), cache.clone());
    /// depot.on_pressure(move |pressure: Pressure| {
    ///     let (Some(depot), Ok(mut cache)) = (weak.upgrade(), given.try_lock()) else { return 0 };
    ///     let wanted = cache.len().min(pressure.wanted_pages.max(1) as usize);
    ///     for (pfn, order) in cache.drain(..wanted) {
    ///         // SAFETY: the cache had charge of it.
    ///         drop(unsafe { Page::from_raw(&depot, pfn, order) });
    ///     }
    ///     wanted as u64
    /// })?;
    ///
    /// for _ in 0..4096 {
    ///     cache.lock().unwrap().push(depot.page(Order::BASE)?.into_raw());
    /// }
    /// assert!(depot.page(Order::BASE).is_ok(), "the cache gave up some");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallbackError::TooMany`]: at most 7 can be registered; [`CallbackError::Forked`] in a child.
    pub fn on_pressure(
        &self,
        reclaim: impl Fn(Pressure) -> u64 + Send + Sync + 'static,
    ) -> Result<(), CallbackError> {
        // Locked around the registration, so that a callback is never registered and not kept.
        let mut kept = self.callbacks.lock()?;
        self.keep_callback(&mut kept, Arc::new(Callback(reclaim)))
    }

    fn keep_callback(
        &self,
        kept: &mut Callbacks,
        callback: Arc<dyn Reclaim + Send>,
    ) -> Result<(), CallbackError> {
        // SAFETY: kept below, and dropped after the allocator, which alone gets this.
        let forever: &'static dyn Reclaim = unsafe { &*Arc::as_ptr(&callback) };
        kept.all.reserve(1);
        self.allocator.register_reclaim(forever)?;
        kept.all.push(callback);
        Ok(())
    }

    /// Address spaces that give up pages when they run short: one callback for all.
    pub(crate) fn shrinkers(&self) -> Result<Arc<Shrinkers>, CallbackError> {
        let mut kept = self.callbacks.lock()?;
        let shrinkers = kept.shrinkers.clone();
        if !std::mem::replace(&mut kept.has_shrinkers, true) {
            let kept_now = self.keep_callback(&mut kept, shrinkers.clone());
            kept.has_shrinkers = kept_now.is_ok();
            kept_now?;
        }
        Ok(shrinkers)
    }

    /// Where the pages are, for the log when a request failed.
    pub fn shortage(&self) -> Shortage<'_> {
        self.allocator.shortage()
    }

    /// A CPU's caches in a zone.
    pub fn cpu_stats(&self, cpu: CpuId, zone: ZoneId) -> Option<CpuStats> {
        self.allocator.cpu_stats(cpu, zone)
    }

    /// A zone's pages and counters.
    pub fn zone_stats(&self, zone: ZoneId) -> Option<ZoneStats> {
        self.allocator.zone_stats(zone)
    }

    /// The zones: one, or one per NUMA node.
    pub fn zone_ids(&self) -> impl Iterator<Item = ZoneId> {
        self.allocator.zone_ids()
    }

    /// Claims of the bitmap that found a page gone; what they had taken by then they put back.
    pub fn failed_claims(&self) -> u64 {
        self.allocator.failed_claims()
    }

    /// Memory that the depot uses for itself.
    pub fn metadata_use(&self) -> MetadataUse {
        self.allocator.metadata_use()
    }

    /// Checks that every page is in one place, and counts them. For tests: O(pages).
    ///
    /// # Errors
    /// What is wrong; [`Fault::Forked`] in a child.
    pub fn validate(&mut self) -> Result<Census, Fault> {
        self.allocator.validate()
    }

    /// Whether a page is free in the store (not cached, not held) at this moment.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.allocator.is_free(pfn)
    }

    /// How threads reach their CPU's caches, and why not the faster way.
    pub fn fronts(&self) -> Fronts {
        self.allocator.cpus().fronts()
    }

    /// The allocator underneath, for what has no method here.
    ///
    /// # Safety
    /// Through it, only blocks whose memory nobody uses any more are freed; its methods are safe
    /// because it never touches pages, but [`Page`]s do.
    pub unsafe fn allocator(&self) -> &Allocator<'static, LinuxCpus<'static>> {
        &self.allocator
    }

    /// The base page size.
    pub fn page_size(&self) -> PageSize {
        self.allocator.page_size()
    }

    /// The first byte of the memory, of page 0. Aligned to 2 MiB, or 1 GiB if it is that large.
    pub fn base(&self) -> NonNull<u8> {
        self.memory.start()
    }

    /// Bytes of memory, what it has [grown](Self::grow) by included.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The memory file, if it is one ([`MemoryKind::Memfd`](crate::MemoryKind::Memfd)); page `n`
    /// begins at [`offset`](Self::offset) of it. For pages that stay registered after they are
    /// freed see [`pin_range`](Self::pin_range).
    ///
    /// The file cannot be made smaller, nor larger unless the depot can still [grow](Self::grow)
    /// (`F_SEAL_SHRINK`, `F_SEAL_GROW`): no access to the depot's memory ends in `SIGBUS` because
    /// of its length.
    ///
    /// ```compile_fail,E0133
    /// # use pagedepot_linux::{Depot, MemoryKind};
    /// let depot = Depot::builder(1 << 20).memory(MemoryKind::Memfd).build()?;
    /// let file = depot.fd(); // needs `unsafe`
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    ///
    /// # Safety
    /// For as long as the depot lives, and through this descriptor, its duplicates, mappings made
    /// with them and whatever they are registered with:
    /// * only bytes of pages that the caller holds are written, and only while no reference to them
    ///   (such as a [`Page`]'s `&[u8]`) is in use; likewise, bytes that another thread may be
    ///   writing are not read where that would be a data race. Free pages belong to the depot: it
    ///   keeps metadata in some of them (magazines that are cut from pages), so one stray byte
    ///   corrupts the allocator;
    /// * no holes are punched, nothing is allocated, and no seals are added (`fallocate`,
    ///   `F_ADD_SEALS`), and the length is not changed.
    pub unsafe fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.fd()
    }

    /// Where a page begins, in bytes from [`base`](Self::base) and in [`fd`](Self::fd).
    #[inline]
    pub fn offset(&self, pfn: Pfn) -> usize {
        pfn.index() << self.page_size().shift()
    }

    /// The address of a page.
    ///
    /// # Panics
    /// When the depot has no such page, nor can [grow](Self::grow) to have it.
    #[inline]
    pub fn address(&self, pfn: Pfn) -> NonNull<u8> {
        let (offset, end) = (self.offset(pfn), self.memory.bytes_max());
        assert!(offset < end, "{pfn} is beyond the depot's {end} bytes");
        // SAFETY: inside the memory.
        unsafe { self.base().add(offset) }
    }

    /// The page that an address lies in, if it is the depot's.
    #[inline]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = address.addr().checked_sub(self.base().as_ptr().addr())?;
        (offset < self.bytes()).then(|| Pfn::new((offset >> self.page_size().shift()) as u32))
    }

    /// As [`allocator`](Self::allocator), for this crate.
    pub(crate) fn frames(&self) -> &Frames {
        &self.allocator
    }

    /// Fails in a forked child.
    pub(crate) fn check_parent(&self) -> Result<(), Unusable> {
        self.allocator.cpus().check_usable()
    }

    pub(crate) fn pins(&self) -> &ForkLock<Pins> {
        &self.pins
    }

    /// Whether it was built never to be trimmed.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    pub(crate) fn growth(&self) -> &Growth {
        &self.growth
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl fmt::Debug for Depot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Depot")
            .field("bytes", &self.bytes())
            .field("page_size", &self.page_size())
            .field("fronts", &self.fronts())
            .field("zones", &self.shortage())
            .finish()
    }
}

/// The callbacks that the allocator knows by address.
struct Callbacks {
    all: Vec<Arc<dyn Reclaim + Send>>,
    shrinkers: Arc<Shrinkers>,
    /// Whether they are among all.
    has_shrinkers: bool,
}

impl Callbacks {
    fn new(fork_mark: ForkMark<'static>) -> Self {
        let shrinkers = Arc::new(Shrinkers::new(fork_mark));
        Callbacks { all: Vec::new(), shrinkers, has_shrinkers: false }
    }
}

struct Callback<F>(F);

impl<F: Fn(Pressure) -> u64 + Sync> Reclaim for Callback<F> {
    fn reclaim(&self, pressure: Pressure) -> u64 {
        (self.0)(pressure)
    }
}
