//! The depot: a handle to an allocator, its metadata and its memory.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Instant;

use pagedepot::{
    Census, CpuId, CpuStats, DrainResult, Fault, MetadataUse, Mode, PageSize, Pfn, Pressure,
    ResidencyCounts, Scope, Shortage, ZoneId, ZoneStats,
};
use pagedepot_contiguity::{Contiguity, PageblockStats};

use crate::Handover;
use crate::cpus::linux::Fronts;
use crate::depot::raw::RawDepot;
use crate::depot::state::{DepotState, Handle};
use crate::depot::teardown::{self, TeardownHost as _};
use crate::error::{BuildError, CallbackError};
use crate::giving_back::request::{self, GiveBackResult};
use crate::giving_back::trim::{self, TrimError, TrimResult};

/// A page allocator over memory of its own.
///
/// A depot is a handle: [`clone`](Clone::clone) makes another one to the same pages, at the cost of
/// one atomic operation. All methods take `&self` and may be called from any number of threads.
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
/// # Pages outlive handles
/// A [`Page`](crate::Page) owns what it needs of its depot, so it can be stored in a struct, sent
/// to a thread or returned from a function, without a lifetime. The memory stays mapped while there
/// is a handle or a page:
/// ```
/// use pagedepot_linux::{Depot, Order, Page};
///
/// fn one_page() -> Result<Page, Box<dyn std::error::Error>> {
///     Ok(Depot::new(1 << 20)?.page(Order::BASE)?)
/// }
/// let mut page = one_page()?; // the handle has gone
/// page.fill(7);
/// drop(page); // the last page: the memory is unmapped here
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// When the last handle is dropped, callbacks of [`on_pressure`](Self::on_pressure) and a
/// [registered mover](RawDepot::register_mover) are dropped, and every CPU's cache is closed, which
/// interrupts each CPU that runs this process once. It waits for no page. A page that is forgotten
/// keeps the memory mapped.
///
/// # A depot for the whole program
/// ```
/// use std::sync::LazyLock;
/// use pagedepot_linux::{Depot, Order, Page};
///
/// static POOL: LazyLock<Depot> = LazyLock::new(|| Depot::new(64 << 20).expect("64 MiB"));
///
/// let page: Page = POOL.page(Order::BASE)?;
/// # Ok::<(), pagedepot_linux::AllocError>(())
/// ```
/// (A forked child must not be the first to touch such a static while another thread of its parent
/// was doing so; make the depot before the fork.)
///
/// # Waiting
/// [`page_timeout`](Self::page_timeout) and [`page_async`](Self::page_async) wait until others free
/// pages. No other method waits for another caller, except a request that may reclaim and is about
/// to fail. Such a request sleeps while a [`trim`](Self::trim) has the pages, and while another
/// request runs a callback of [`on_pressure`](Self::on_pressure), a second at most for each. It
/// sleeps some milliseconds while other threads have pages in flight. At the ceiling of a
/// [monitor](crate::pressure) it sleeps while that makes room below the limit of the container,
/// about a second at most for each zone and each time that it looks again. It sleeps there while
/// another thread sets a ceiling, too: about a second at most, and then some milliseconds for each
/// zone and each time.
///
/// # Signal handlers
/// A handler may allocate and free at any moment, unless requests [wait](#waiting). While some do,
/// it must not free, and must request with [`Flags::atomic`](crate::Flags::atomic) or
/// [`Flags::no_reclaim`](crate::Flags::no_reclaim) alone: a free calls their wakers, and so does a
/// request that runs short, if a purge, compaction or a callback brings pages for it. Its request
/// may [compact](crate::Flags::compact). If it interrupted a callback, a trim or a purge of its own
/// thread, its request does not wait for that. If it interrupted code that has pages in
/// flight, its request naps for them in vain, some 130 ms at most. A request that would fail calls
/// the callbacks of [`on_pressure`](Self::on_pressure) in the handler, where they must not use the
/// heap. A handler that must not sleep, or whose callbacks use the heap, asks with
/// [`Flags::atomic`](crate::Flags::atomic) or [`Flags::no_reclaim`](crate::Flags::no_reclaim). A
/// handler must drop neither the last handle nor, after that, the last page: unmapping frees memory
/// of the heap.
///
/// Calls that change more than pages take a lock of the depot and use the heap:
/// [`trim`](Self::trim), [`Reporting::pass`](crate::reclaim::Reporting::pass),
/// [`pin_range`](Self::pin_range), [`unpin_range`](Self::unpin_range),
/// [`registered_iovecs`](Self::registered_iovecs), [`on_pressure`](Self::on_pressure),
/// [`Ceiling::set`](crate::reclaim::Ceiling::set), [`grow`](Self::grow), and making a
/// [`Vmalloc`](crate::Vmalloc) or a [monitor](crate::pressure). Handlers must not make them. One
/// that a handler or a callback makes above the same lock of its own thread does not wait for
/// itself: it fails, with an error that is called `Reentrant`.
///
/// # After fork
/// Every method that would change something fails in a child, with
/// [`AllocError::Forked`](crate::AllocError::Forked),
/// [`FreeError::Forked`](crate::FreeError::Forked) and the like, whatever its parent's threads were
/// doing at the fork. No call waits for them. Inherited pages can be read. Dropping them, or a
/// handle, has no effect. Pages of anonymous memory are copies. Pages of a memory file
/// ([`MemoryKind::Memfd`](crate::MemoryKind::Memfd)) are shared: the parent sees what the child
/// writes. So a child must not write to one that its parent may have freed meanwhile, which is
/// another's by then. A child makes a depot of its own.
///
/// A child that a signal handler forks above a call goes on with the call when the handler returns,
/// until this notices. In shared memory it may still write, after its parent, to one page that the
/// call was zeroing or copying. Such a child ends, or executes a program, in the handler.
pub struct Depot {
    /// The handle, with the pointer of `owner`, kept here to save a load.
    handle: Handle,
    owner: Arc<Owner>,
}

impl Clone for Depot {
    /// One atomic operation, and a copy of some 700 bytes.
    fn clone(&self) -> Self {
        Self::from_owner(self.owner.clone())
    }
}

impl UnwindSafe for Depot {}
impl RefUnwindSafe for Depot {}

/// The state that all handles share: dropped with the last one.
struct Owner(NonNull<DepotState>);

// SAFETY: a shared reference, in all but name, to a `Shared`, which threads share.
unsafe impl Send for Owner where DepotState: Sync + Send {}
// SAFETY: as above.
unsafe impl Sync for Owner where DepotState: Sync + Send {}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: mapped until `close`.
        if unsafe { self.0.as_ref() }.check_parent().is_err() {
            // The parent's other threads may have had handles, which are in this count for good.
            return;
        }
        // SAFETY: this was the last handle, and the process is the one that made the depot.
        unsafe { teardown::close(self.0) };
    }
}

/// A handle that keeps nothing mapped: for callbacks of [`Depot::on_pressure`], which live as long
/// as the depot, and must not own it.
#[derive(Clone)]
pub struct WeakDepot(Weak<Owner>);

impl WeakDepot {
    /// A handle, if there is still one. The cost is that of [`Weak::upgrade`].
    pub fn upgrade(&self) -> Option<Depot> {
        self.0.upgrade().map(Depot::from_owner)
    }
}

impl fmt::Debug for WeakDepot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakDepot")
    }
}

impl UnwindSafe for WeakDepot {}
impl RefUnwindSafe for WeakDepot {}

impl Depot {
    pub(crate) fn from_shared(shared: Box<DepotState>) -> Self {
        Self::from_owner(Arc::new(Owner(NonNull::from(Box::leak(shared)))))
    }

    fn from_owner(owner: Arc<Owner>) -> Self {
        // SAFETY: mapped while there is an owner, which this value has.
        let handle = unsafe { Handle::new(owner.0) };
        Depot { handle, owner }
    }

    /// Calls by page number, for callers that keep numbers instead of [`Page`](crate::Page)s: the
    /// allocator of a storage engine's table, a device's ring.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Flags, Order};
    ///
    /// let depot = Depot::new(1 << 20)?;
    /// let raw = depot.raw();
    /// let pfn = raw.alloc(Order::BASE, Flags::default())?;
    /// // SAFETY: allocated above with this order, and no longer used.
    /// unsafe { raw.free(pfn, Order::BASE) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn raw(&self) -> RawDepot<'_> {
        RawDepot::new(&self.handle)
    }

    /// The state that all handles share.
    #[inline]
    pub(crate) fn shared(&self) -> &DepotState {
        self.handle.shared()
    }

    /// The pointer behind [`shared`](Self::shared), with a life that the caller vouches for.
    #[inline]
    pub(crate) fn pointer(&self) -> NonNull<DepotState> {
        self.handle.pointer()
    }

    /// A handle that does not keep the memory mapped. [`on_pressure`](Self::on_pressure) has an
    /// example.
    pub fn downgrade(&self) -> WeakDepot {
        WeakDepot(Arc::downgrade(&self.owner))
    }

    /// Unmaps the memory now, whatever pages were forgotten or never freed, if this is the only
    /// handle. Reclaim callbacks are dropped.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Flags, Order};
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// // Never freed, so that dropping the depot would unmap nothing.
    /// depot.raw().alloc(Order::BASE, Flags::default())?;
    /// // SAFETY: nothing uses a page.
    /// assert!(unsafe { depot.unmap() }.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handle, when there are others, or a [`WeakDepot`] is being upgraded, or in a forked
    /// child.
    ///
    /// # Safety
    /// There is no [`Page`](crate::Page), no [`Pages`](crate::Pages), and nothing made of one; no
    /// thread accesses the memory, or frees a page of it, any more.
    #[allow(clippy::result_large_err, reason = "the handle comes back, once in its life")]
    pub unsafe fn unmap(self) -> Result<(), Self> {
        if self.shared().check_parent().is_err() {
            return Err(self);
        }
        let shared = self.pointer();
        match Arc::try_unwrap(self.owner) {
            Ok(owner) => {
                std::mem::forget(owner);
                // SAFETY: the last handle, and by the caller's promise no page outside of the
                // callbacks and the mover.
                unsafe {
                    drop(shared.as_ref().take_callbacks());
                    DepotState::unmap(shared);
                }
                Ok(())
            }
            Err(owner) => Err(Self::from_owner(owner)),
        }
    }

    /// Takes pages back from CPUs' caches. *Quiet*: interrupts no CPU. *Full*: fences each CPU that
    /// runs this process, is behind no [lock](crate::Builder::locked_cpus) and has magazines in its
    /// fronts, once, and takes those too; of a CPU behind a lock, as isolated ones are, it takes
    /// them by that lock, and interrupts nothing. *Handover*: interrupts no CPU, and asks each for
    /// its fronts; see [`drain_handover`](Self::drain_handover).
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
    pub fn drain(&self, scope: Scope, mode: Mode) -> DrainResult {
        self.handle.frames().drain(scope, mode)
    }

    /// Takes pages back from CPUs' caches without interrupting one: asks each CPU for its fronts,
    /// which the next thread there that allocates or frees hands over, and caches on. Returns at
    /// once. The [`Handover`] says what was taken and what is on its way; it can be polled, and
    /// waited for asleep. [`Builder::on_handover`](crate::Builder::on_handover) names a function to
    /// be called back.
    ///
    /// A CPU on which no thread of this process allocates does not answer. After `fence_after_ms`
    /// milliseconds a look fences it, unless it is isolated (`None`: never); of a CPU that runs no
    /// thread of this process that interrupts nothing. A thread can also [hand
    /// over](pagedepot::CpuCaches::hand_over) before it sleeps. With
    /// [locks](crate::Builder::per_cpu_locks) CPUs are taken at once.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Order, Scope};
    ///
    /// let depot = Depot::new(64 << 20)?;
    /// drop(depot.page(Order::BASE)?);
    /// let mut handover = depot.drain_handover(Scope::ALL, Some(10));
    /// println!("{} pages at once", handover.drained().taken_pages);
    /// if !handover.wait(1000) {
    ///     println!("{} CPUs are isolated, or busy", handover.drained().pending_cpus);
    /// }
    /// assert!(handover.drained().taken_pages > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain_handover(&self, scope: Scope, fence_after_ms: Option<u32>) -> Handover<'_> {
        self.handle.frames().drain_handover(scope, fence_after_ms)
    }

    /// Drains like [`drain`](Self::drain), and calls `tell` with each CPU's part.
    pub fn drain_each(
        &self,
        scope: Scope,
        mode: Mode,
        tell: impl FnMut(CpuId, DrainResult),
    ) -> DrainResult {
        self.handle.frames().drain_each(scope, mode, tell)
    }

    /// Gives the memory of free pages back to the system. Drains quietly first; drain fully before
    /// if caches are large. [`TrimResult`] has an example. From the first trim on the system makes
    /// no huge pages of a depot that did not ask for them by
    /// [`Builder::thp`](crate::Builder::thp).
    ///
    /// What is given back is allocated meanwhile, at most 16 MiB at a time, so that no caller gets
    /// a page whose contents are about to vanish. Costs system calls, and interrupts every CPU that
    /// runs this process: call it rarely. One caller trims, another returns at once; so does one
    /// that comes just after a request ran out of pages: what is free then is needed
    /// ([`TrimResult::cut_short`]).
    ///
    /// Pages that a device or the kernel keeps for longer than they are held (buffers registered
    /// with io_uring, VFIO, RDMA) must be marked by [`pin_range`](Self::pin_range): trims leave
    /// them alone.
    ///
    /// # Errors
    /// [`TrimError::Pinned`](crate::reclaim::TrimError::Pinned) when the depot was built with
    /// [`Builder::pinned`](crate::Builder::pinned).
    /// [`TrimError::Refused`](crate::reclaim::TrimError::Refused) when the system refuses: it
    /// counts what was taken before; call again.
    /// [`TrimError::Forked`](crate::reclaim::TrimError::Forked) in a child.
    /// [`TrimError::Reentrant`](crate::reclaim::TrimError::Reentrant) in a
    /// [signal handler](Self#signal-handlers).
    pub fn trim(&self) -> Result<TrimResult, TrimError> {
        trim::trim(self.shared())
    }

    /// Gives at least `bytes` bytes of free memory back to the system, if there are as many, by
    /// `deadline`: for a program that is told by a number what to give up, as by a hypervisor's
    /// balloon. Whole pageblocks go first, then parts of others. If that is not enough, CPUs are
    /// asked for what they cache, and address spaces purge. The [result](GiveBackResult) says how
    /// many bytes went back, and why not more. It has an example.
    ///
    /// An isolated CPU is not interrupted: memory goes back while none of this process's threads
    /// runs there. A thread that works there without ever sleeping keeps all memory
    /// ([`GiveBackEnd::Isolated`](crate::reclaim::GiveBackEnd::Isolated)), except where the
    /// processor flushes the TLBs of others by itself, as AArch64 does, or for
    /// [`trim`](Self::trim). Callbacks of [`on_pressure`](Self::on_pressure) are not called: first
    /// free what the program can do without.
    ///
    /// Costs what a [trim](Self::trim) costs, and ends after the deadline by a system call, of
    /// 16 MiB at most. While it waits for an isolated CPU, a request that needs the pages which it
    /// has taken gets them after a tenth of a second at most.
    ///
    /// # Errors
    /// Fails like [`trim`](Self::trim).
    pub fn give_back(&self, bytes: u64, deadline: Instant) -> Result<GiveBackResult, TrimError> {
        let shared = self.shared();
        request::give_back((shared, shared.callbacks()), bytes, deadline)
    }

    /// Calls `reclaim` when pages run short: it frees pages that the program can do without and
    /// returns how many. See [`Reclaim`](crate::reclaim::Reclaim). It is dropped with the last
    /// handle, so it must not own one: use a [`WeakDepot`], if it needs the depot at all. It may
    /// own pages.
    ///
    /// While a [ceiling](crate::reclaim::Ceiling::set) of this depot sinks, it is called under the
    /// ceiling's lock. Wakers of requests that wait for pages of this depot are called when the
    /// lock is free again, so the callback must not wait for such a request of another thread. Its
    /// own do not queue: [`page_timeout`](Self::page_timeout) looks each millisecond, and a future
    /// of [`page_async`](Self::page_async) wakes its task at once. The callback must not wait for a
    /// future that was polled before it began: requests behind that in the queue sleep on, beside
    /// pages that the future was woken for. Wakers for pages of another depot, which the callback
    /// frees, are called at once: they must not wait for a thread that sets a ceiling of this
    /// depot.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use pagedepot_linux::{Depot, Order, Page};
    /// use pagedepot_linux::reclaim::Pressure;
    ///
    /// let depot = Depot::new(16 << 20)?;
    /// // Pages that could be filled again, such as a cache's.
    /// let cache: Arc<Mutex<Vec<Page>>> = Arc::default();
    /// let given = cache.clone();
    /// depot.on_pressure(move |pressure: Pressure| {
    ///     let Ok(mut cache) = given.try_lock() else { return 0 };
    ///     let wanted = cache.len().min(pressure.wanted_pages.max(1) as usize);
    ///     drop(cache.drain(..wanted));
    ///     wanted as u64
    /// })?;
    ///
    /// for _ in 0..4096 {
    ///     cache.lock().unwrap().push(depot.page(Order::BASE)?);
    /// }
    /// assert!(depot.page(Order::BASE).is_ok(), "the cache gave up some");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallbackError::TooMany`]: at most 7 can be registered, and one less for each of: a
    /// segment, address spaces, a monitor that follows a limit; [`CallbackError::Forked`] in a
    /// child; [`CallbackError::Reentrant`] in a [signal handler](Self#signal-handlers).
    pub fn on_pressure(
        &self,
        reclaim: impl Fn(Pressure) -> u64 + Send + Sync + 'static,
    ) -> Result<(), CallbackError> {
        self.shared().callbacks().register(self.handle.frames(), reclaim)
    }

    /// Adds memory to a zone while other threads use the depot, and returns the first page of it.
    /// `bytes` is rounded up to a multiple of 2^18 pages (1 GiB of 4 KiB pages). The memory is of
    /// the kind that the depot was built with, and is bound and populated if the depot's memory is.
    /// Watermarks and cache limits do not change; [`settings`](Self::settings) changes them.
    ///
    /// Over a store of the program's own ([`Builder::build_over`](crate::Builder::build_over)) the
    /// pages may be put there once this has returned.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, ZoneId};
    ///
    /// let depot = Depot::builder(1 << 30).grow_to(4 << 30).build()?;
    /// depot.grow(ZoneId::new(0), 1 << 30)?;
    /// assert_eq!(depot.bytes(), 2 << 30);
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::ZeroGrowth`] for 0 bytes. [`BuildError::CannotGrow`] beyond
    /// [`Builder::grow_to`](crate::Builder::grow_to). [`BuildError::Forked`] in a child.
    /// [`BuildError::Reentrant`] in a [signal handler](Self#signal-handlers).
    /// [`ConfigError::NoSuchZone`](pagedepot::ConfigError::NoSuchZone). Errors of the system, as in
    /// [`Builder::build`](crate::Builder::build). After an error nothing was added. After one of
    /// mapping a [memory file](crate::MemoryKind::Memfd) there may be no addresses left to grow
    /// into: other threads can have taken them.
    pub fn grow(&self, zone: ZoneId, bytes: usize) -> Result<Pfn, BuildError> {
        self.raw().grow_with(zone, bytes, |_, _| ())
    }

    /// Counts pages by place, for the log when a request failed.
    ///
    /// ```
    /// let depot = pagedepot_linux::Depot::new(16 << 20)?;
    /// eprintln!("out of pages: {}", depot.shortage());
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn shortage(&self) -> Shortage<'_> {
        self.handle.frames().shortage()
    }

    /// A CPU's caches in a zone; `None` when there is no such CPU or zone.
    pub fn cpu_stats(&self, cpu: CpuId, zone: ZoneId) -> Option<CpuStats> {
        self.handle.frames().cpu_stats(cpu, zone)
    }

    /// A zone's pages and counters; `None` when there is no such zone. O(CPUs).
    ///
    /// ```
    /// let depot = pagedepot_linux::Depot::new(16 << 20)?;
    /// for zone in depot.zone_ids() {
    ///     println!("{zone}: {:?}", depot.zone_stats(zone));
    /// }
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn zone_stats(&self, zone: ZoneId) -> Option<ZoneStats> {
        self.handle.frames().zone_stats(zone)
    }

    /// Counts a zone's pageblocks (512 pages: 2 MiB of 4 KiB pages): those that are whole, that
    /// [evacuate](crate::Builder::evacuation), that unmovable pages were mixed into; `None` when
    /// there is no such zone. Beside other threads each count is as of some moment.
    ///
    /// O(pages of the zone / 64).
    ///
    /// ```
    /// let depot = pagedepot_linux::Depot::new(16 << 20)?;
    /// for zone in depot.zone_ids() {
    ///     let stats = depot.pageblock_stats(zone).expect("it exists");
    ///     assert_eq!((stats.whole, stats.all), (8, 8));
    /// }
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn pageblock_stats(&self, zone: ZoneId) -> Option<PageblockStats> {
        self.handle.frames().pageblock_stats(zone)
    }

    /// Counts pageblocks (512 pages: 2 MiB of 4 KiB pages) that were handed out when their memory
    /// was not present: for the first time, and after it had been given back to the system. What is
    /// present is handed out first, so the first count times a pageblock's bytes bounds what the
    /// depot has used at most. It includes pageblocks that a ceiling or a report took. O(depot's
    /// bytes / 1 GiB).
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Order};
    ///
    /// let depot = Depot::new(64 << 20)?;
    /// drop(depot.page(Order::MAX)?);
    /// let counts = depot.residency();
    /// assert!(counts.first_touches >= 2 && counts.refaults == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn residency(&self) -> ResidencyCounts {
        pagedepot::Residency::of(self.handle.frames()).counts()
    }

    /// The zones: one, or one per NUMA node.
    pub fn zone_ids(&self) -> impl Iterator<Item = ZoneId> {
        self.handle.frames().zone_ids()
    }

    /// Memory that the depot uses for itself, in bytes.
    pub fn metadata_use(&self) -> MetadataUse {
        self.handle.frames().metadata_use()
    }

    /// Checks that every page is in one place, and counts them. For tests: O(pages).
    ///
    /// Call it while no other thread allocates, frees or drains: such a thread makes it report
    /// faults that are none.
    ///
    /// ```
    /// let depot = pagedepot_linux::Depot::new(16 << 20)?;
    /// assert_eq!(depot.validate()?.held_pages(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first fault that it finds; [`Fault::Forked`] in a child.
    pub fn validate(&self) -> Result<Census, Fault> {
        self.handle.frames().validate_at_rest()
    }

    /// The way in which threads reach their CPU's caches, and the reason why it is not a faster
    /// one. Also says when the calling thread may use a CPU that has no caches: one system call.
    pub fn fronts(&self) -> Fronts {
        let frames = self.handle.frames();
        frames.cpus().sequences().fronts().on(frames.cpu_count())
    }

    /// The base page size.
    pub fn page_size(&self) -> PageSize {
        self.shared().page_size()
    }

    /// Bytes of memory, what it has [grown](Self::grow) by included.
    pub fn bytes(&self) -> usize {
        self.shared().bytes()
    }

    /// The page that an address lies in, if it is the depot's.
    #[inline]
    pub fn pfn_of(&self, address: *const u8) -> Option<Pfn> {
        self.shared().pfn_of(address)
    }
}

/// Whether both are handles to the same pages.
impl PartialEq for Depot {
    fn eq(&self, other: &Self) -> bool {
        self.pointer() == other.pointer()
    }
}

impl Eq for Depot {}

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
