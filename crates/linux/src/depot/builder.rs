//! Making a depot: its options, and the types that they take.

use std::ptr::NonNull;
use std::sync::Arc;

pub use pagedepot::{
    Backing, BackingRanges, CacheLimits, ConfigError, DoubleFree, Evacuation, FreeHigh, HighPolicy,
    Misuse, Watermarks, ZoneConfig,
};
use pagedepot::{Classes, Config, CpuId, FrameRange, LinearMap, NodeId, PageSize, Pfn};
pub use pagedepot_rseq::{CpuListError, CpuSet};

pub use crate::cpus::linux::LinuxCpus;
use crate::cpus::linux::{self as cpus, LockChoice, Process};
use crate::depot::handle::Depot;
use crate::depot::state::{Assembly, CommonStore, DepotState};
pub use crate::error::Limit;
use crate::error::{BuildError, no_mapping, no_memory};
use crate::giving_back::ceiling::Ceiling;
use crate::memory::frames::Frames;
use crate::memory::growth::{self, Growth};
use crate::memory::metadata::{Metadata, Parts};
use crate::memory::region::{FilePart, HUGE_BYTES, Memory, MemoryKind, MemoryRequest};
use crate::sites::table::SiteTable;
use crate::system::bits::Bits;
use crate::system::numa;
pub use crate::system::topology::Topology;

/// The memory that several processes share, and its store.
pub(crate) struct Common {
    pub store: Arc<dyn CommonStore>,
    pub part: FilePart,
}

/// Options of a depot. Made by [`Depot::builder`]; each has a default that suits most programs.
///
/// ```
/// use pagedepot_linux::{Depot, MemoryKind, PageSize};
///
/// let depot = Depot::builder(64 << 20)
///     .memory(MemoryKind::Memfd)
///     .page_size(PageSize::Kib16)
///     .checked(true)
///     .build()?;
/// assert_eq!((depot.bytes(), depot.page_size()), (64 << 20, PageSize::Kib16));
/// # Ok::<(), pagedepot_linux::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    bytes: usize,
    bytes_max: usize,
    ceiling: Option<usize>,
    kind: MemoryKind,
    page_size: PageSize,
    /// The system's page size in bytes.
    system_page: usize,
    hugetlb: bool,
    thp: bool,
    numa: bool,
    populate: bool,
    cpus: Option<u32>,
    isolated: Option<CpuSet>,
    locking: LockChoice,
    caches: bool,
    checked: bool,
    watermarks: Option<Watermarks>,
    high: HighPolicy,
    free_high: FreeHigh,
    evacuation: Evacuation,
    classes: Classes,
    on_misuse: Option<fn(Misuse)>,
    on_handover: Option<fn(CpuId)>,
    pinned: bool,
}

impl Builder {
    pub(crate) fn new(bytes: usize) -> Self {
        Self::on_pages_of(rustix::param::page_size(), bytes)
    }

    /// Options on a system with pages of `system_page` bytes.
    fn on_pages_of(system_page: usize, bytes: usize) -> Self {
        Builder {
            bytes,
            bytes_max: 0,
            ceiling: None,
            kind: MemoryKind::default(),
            page_size: page_size_for(system_page),
            system_page,
            hugetlb: false,
            thp: false,
            numa: false,
            populate: false,
            cpus: None,
            isolated: None,
            locking: LockChoice::Undisturbed,
            caches: true,
            checked: false,
            watermarks: None,
            high: HighPolicy::Auto,
            free_high: FreeHigh::default(),
            evacuation: Evacuation::default(),
            classes: Classes::ALIKE,
            on_misuse: None,
            on_handover: None,
            pinned: false,
        }
    }

    /// Sets the kind of memory. Default: private anonymous memory.
    pub fn memory(mut self, kind: MemoryKind) -> Self {
        self.kind = kind;
        self
    }

    /// Reserves addresses, so that the depot can [grow](Depot::grow) to so many bytes in all. That
    /// size, and the size it begins with, are rounded up to multiples of 2^18 pages: 1 GiB of 4 KiB
    /// pages. Costs 2 KiB per GiB. Default: it cannot grow. With [`hugetlb`](Self::hugetlb) it
    /// cannot grow either: when the system has too few huge pages, it unmaps the addresses, and
    /// other threads may take them.
    pub fn grow_to(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// The most bytes that the depot may have handed out and keep resident, together, rounded down
    /// to whole pageblocks (512 pages). A request above reclaims, and then fails as in a depot of
    /// that size. [`Ceiling`] changes it. Default: the depot's size. Not
    /// with [`grow_to`](Self::grow_to): a larger depot with a ceiling costs nothing but addresses,
    /// and 2 KiB per GiB.
    pub fn ceiling(mut self, bytes: usize) -> Self {
        self.ceiling = Some(bytes);
        self
    }

    /// The base page size, a multiple of the system's. Default: [`default_page_size`].
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.page_size = size;
        self
    }

    /// Uses huge pages of 2 MiB from the pool that the administrator set aside (`vm.nr_hugepages`).
    /// The size is rounded up to 2 MiB. Default: no.
    pub fn hugetlb(mut self, yes: bool) -> Self {
        self.hugetlb = yes;
        self
    }

    /// Asks for transparent huge pages (`MADV_HUGEPAGE`). The system makes some if
    /// `/sys/kernel/mm/transparent_hugepage/enabled` is `always` or `madvise`. For a memory file
    /// `shmem_enabled` beside it counts, which is `never` on most systems: then there are none, and
    /// no error says so.
    ///
    /// [`Depot::trim`] then gives back only whole ones, or pageblocks of ones that are larger, and
    /// the system may make a huge page of few pages in use and of memory that was given back around
    /// them. Default: the system's setting, until the depot first gives memory back (a trim, a
    /// [ceiling](Self::ceiling), [`Reporting`](crate::reclaim::Reporting)). From then on it has no
    /// new huge pages (`MADV_NOHUGEPAGE`), so that memory that was given back comes back by use
    /// alone.
    pub fn thp(mut self, yes: bool) -> Self {
        self.thp = yes;
        self
    }

    /// Divides the memory among the NUMA nodes, one zone each, and binds each part to its node. The
    /// metadata of each CPU lies on its node if there is room. Default: one zone, whose pages come
    /// from the node of the CPU that touches them first.
    pub fn numa(mut self, yes: bool) -> Self {
        self.numa = yes;
        self
    }

    /// Makes every page present now, so that no later access faults. Default: no.
    pub fn populate(mut self, yes: bool) -> Self {
        self.populate = yes;
        self
    }

    /// CPUs `0..cpus` get caches; threads on other CPUs use the store, and
    /// [`fronts`](Depot::fronts) says so. Default: every CPU that may ever come online, whichever
    /// of them this process may use now; without sysfs, those up to the highest that it may use.
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// CPUs that full drains do not interrupt. Default: those that the kernel isolates
    /// (`isolcpus=`) or runs without a tick (`nohz_full=`). Their fronts are behind
    /// [locks](Self::locked_cpus), so that drains take what they cache all the same.
    pub fn isolated_cpus(mut self, cpus: CpuSet) -> Self {
        self.isolated = Some(cpus);
        self
    }

    /// CPUs whose fronts are behind a lock instead of restartable sequences. Full drains,
    /// handovers, and requests that would fail otherwise, take these fronts by the lock and
    /// interrupt no CPU; each operation there costs an atomic exchange. Default: the
    /// [isolated](Self::isolated_cpus) CPUs, and all CPUs where the system refuses to fence them
    /// (`membarrier`). [`Depot::fronts`] says what came of it.
    ///
    /// A set that leaves out an isolated CPU, such as an empty one, gives up what that CPU keeps in
    /// its fronts until it allocates or frees again: 67 pages where it used one order, up to 28 MiB
    /// of large blocks. A request fails although they are free. Where CPUs cannot be fenced, any
    /// set gives that up on every CPU that it leaves out.
    ///
    /// ```
    /// use pagedepot_linux::Depot;
    /// use pagedepot_linux::builder::CpuSet;
    ///
    /// // The fastest operations on isolated CPUs, too.
    /// let fastest = Depot::builder(16 << 20).locked_cpus(CpuSet::new()).build()?;
    /// println!("{}", fastest.fronts());
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn locked_cpus(mut self, cpus: CpuSet) -> Self {
        self.locking = LockChoice::Cpus(cpus);
        self
    }

    /// Puts the fronts of all CPUs behind [locks](Self::locked_cpus). `false`: those of isolated
    /// CPUs alone, the default.
    pub fn per_cpu_locks(mut self, yes: bool) -> Self {
        self.locking = if yes { LockChoice::All } else { LockChoice::Undisturbed };
        self
    }

    /// Whether CPUs cache pages. Without caches every request goes to the store, and drains find
    /// nothing. Default: yes.
    pub fn caches(mut self, yes: bool) -> Self {
        self.caches = yes;
        self
    }

    /// Refuses every double free and every free with a wrong order, in the call that makes it.
    /// Costs a byte per page and an atomic exchange per operation. Default: no. A free with a wrong
    /// range or alignment is always refused. Pages that are free in the store already are always
    /// detected when they reach the store, [later](Self::on_misuse).
    pub fn checked(mut self, yes: bool) -> Self {
        self.checked = yes;
        self
    }

    /// States that all memory is registered with devices for the depot's life (io_uring, VFIO,
    /// RDMA). It is never given back: [`Depot::trim`] fails with
    /// [`TrimError::Pinned`](crate::reclaim::TrimError::Pinned). For parts of the memory use
    /// [`Depot::pin_range`], which also gives the reason. Default: no.
    pub fn pinned(mut self, yes: bool) -> Self {
        self.pinned = yes;
        self
    }

    /// Function to call when pages reach the store that are free there already: a caller freed them
    /// twice, or with a wrong order. It runs at the end of a call that frees, drains, trims or
    /// allocates, also in a signal handler that frees. It may panic. The pages are free once, and
    /// no other page is affected. Default: a panic that names the first of them.
    ///
    /// ```
    /// use pagedepot_linux::Depot;
    /// use pagedepot_linux::builder::Misuse;
    ///
    /// let depot =
    ///     Depot::builder(16 << 20).on_misuse(|misuse: Misuse| eprintln!("{misuse:?}")).build()?;
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    pub fn on_misuse(mut self, tell: fn(Misuse)) -> Self {
        self.on_misuse = Some(tell);
        self
    }

    /// Function to call when a CPU's fronts have been taken after a
    /// [handover](Depot::drain_handover) asked for them. The thread that handed them over or took
    /// them calls it in the middle of a call that allocates, frees or drains, also in a signal
    /// handler. It must be quick and must not use the depot. A thread that waits for pages can
    /// check its handover then. Default: none.
    pub fn on_handover(mut self, tell: fn(CpuId)) -> Self {
        self.on_handover = Some(tell);
        self
    }

    /// Watermarks of each zone, in pages. Default: the kernel's `low` and `high` for reclaim
    /// callbacks, but `min` 0, so that every page can be allocated.
    pub fn watermarks(mut self, watermarks: Watermarks) -> Self {
        self.watermarks = Some(watermarks);
        self
    }

    /// Sets the number of pages that a CPU may cache. Default: adapts to demand between the
    /// kernel's bounds.
    pub fn high(mut self, policy: HighPolicy) -> Self {
        self.high = policy;
        self
    }

    /// Fixes the number of pages that a CPU may cache at `1 / fraction` of the memory, divided by
    /// the number of CPUs; `fraction` is at least 8 (the kernel's
    /// `vm.percpu_pagelist_high_fraction`).
    pub fn percpu_pagelist_high_fraction(self, fraction: u32) -> Self {
        self.high(HighPolicy::Fraction(fraction))
    }

    /// Sets the limit for a CPU that frees blocks of orders 1 to 3 and allocates few. Default: only
    /// its fronts, as in the kernel. [`FreeHigh::OFF`]: as much as any other CPU.
    pub fn free_high(mut self, policy: FreeHigh) -> Self {
        self.free_high = policy;
        self
    }

    /// Whether sparsely used pageblocks (512 pages: 2 MiB of 4 KiB pages) are emptied while the
    /// program frees and allocates, so that they become whole. No page is moved for it. Default:
    /// [`Evacuation::Adaptive`], until half of a zone lies in whole pageblocks.
    ///
    /// [`settings`](Depot::settings) can change the policy, unless it is [`Evacuation::Off`] here.
    /// [Over a store of the program's own](Self::build_over) no pageblock is emptied.
    ///
    /// ```
    /// use pagedepot_linux::builder::Evacuation;
    /// use pagedepot_linux::{Depot, Order, ZoneId};
    ///
    /// // Until nine tenths of the free memory can be had in blocks of 2 MiB.
    /// let depot = Depot::builder(64 << 20).evacuation(Evacuation::Goal { percent: 90 }).build()?;
    /// let page = depot.page(Order::BASE)?;
    /// let stats = depot.pageblock_stats(ZoneId::new(0)).expect("there is one zone");
    /// assert_eq!((stats.all, stats.whole + stats.partial), (32, 32));
    /// # drop(page);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn evacuation(mut self, policy: Evacuation) -> Self {
        self.evacuation = policy;
        self
    }

    /// The classes of pages that fill pageblocks (512 pages) of their own. Unless this is called,
    /// the mobility alone decides. [Over a store of the program's own](Self::build_over) nothing is
    /// kept apart.
    ///
    /// ```
    /// use pagedepot_linux::{Class, Classes, Depot, Flags, Mobility, Order};
    ///
    /// let policy = Classes::ALIKE.apart(Mobility::Movable, Class::LONG_LIVED);
    /// let depot = Depot::builder(64 << 20).classes(policy).build()?;
    /// let depot = depot.raw();
    /// let kept = depot.alloc(Order::BASE, Flags::MOVABLE.class(Class::LONG_LIVED))?;
    /// let other = depot.alloc(Order::BASE, Flags::MOVABLE)?;
    /// assert_ne!(kept.get() / 512, other.get() / 512);
    /// # // SAFETY: no address of them was made.
    /// # unsafe { depot.free(kept, Order::BASE)? };
    /// # unsafe { depot.free(other, Order::BASE)? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn classes(mut self, policy: Classes) -> Self {
        self.classes = policy;
        self
    }

    /// Makes the depot. Do this before the program has many threads: registering with `membarrier`
    /// is cheap then, and takes milliseconds later.
    ///
    /// # Errors
    /// [`BuildError`]; its `Display` says what to do.
    pub fn build(self) -> Result<Depot, BuildError> {
        self.build_with(|_| None, None)
    }

    /// Makes the depot over a store of the program's own. `make` receives the frames of each zone,
    /// and returns a store that holds them, all free. [`Backing`] says what such a store must do.
    ///
    /// [`Depot::trim`] gives back nothing unless the store finds ranges. If the store takes locks,
    /// signal handlers may neither allocate nor free.
    ///
    /// # Errors
    /// Fails like [`build`](Self::build).
    pub fn build_over(
        self,
        make: impl FnOnce(&[ZoneConfig<'_>]) -> Arc<dyn Backing + Send>,
    ) -> Result<Depot, BuildError> {
        self.build_with(|zones| Some(make(zones)), None)
    }

    /// Makes the depot over a store that other processes use, too. Its frames are a part of a file.
    pub(crate) fn build_shared(self, common: Common) -> Result<Depot, BuildError> {
        let Common { store, part } = common;
        let backing: Arc<dyn Backing + Send> = store.clone();
        self.build_with(|_| Some(backing), Some((part, store)))
    }

    fn build_with(
        self,
        make: impl FnOnce(&[ZoneConfig<'_>]) -> Option<Arc<dyn Backing + Send>>,
        common: Option<(FilePart, Arc<dyn CommonStore>)>,
    ) -> Result<Depot, BuildError> {
        let (part, common) = common.unzip();
        let machine = Topology::read();
        let cpu_count = self.cpus.unwrap_or_else(|| machine.cpu_count());
        let frames = self.frames(self.bytes)?;
        let bytes_max = if self.hugetlb { 0 } else { self.bytes_max };
        let frames_max = self.frames(self.bytes.max(bytes_max))?;
        let shares = self.shares(&machine, frames)?;
        let ranges: Vec<_> = shares.iter().map(|share| [share.range]).collect();
        let zones: Vec<_> =
            shares.iter().zip(&ranges).map(|(share, range)| self.zone(share, range)).collect();
        // Of CPUs that the machine has: the number that the program gives may be any.
        let known_cpus = cpu_count.min(machine.cpu_count());
        let cpu_nodes = if self.numa { machine.cpu_nodes(known_cpus) } else { Vec::new() };
        let mut config = Config {
            page_size: self.page_size,
            cpu_nodes: &cpu_nodes,
            distance: Some(numa::distance),
            caches: self.caches,
            high: self.high,
            free_high: self.free_high,
            evacuation: self.evacuation,
            classes: self.classes,
            checked: self.checked,
            on_misuse: Some(self.on_misuse.unwrap_or(panic_on_misuse)),
            pfn_limit: Some(Pfn::new(frames_max)),
            cpu_pages: self.numa,
            ..Config::new(cpu_count, &zones)
        };
        let backing = make(&zones);
        // SAFETY: shared, so it does not move. The allocator alone gets this reference, and the
        // depot drops the allocator first.
        let under = backing.as_ref().map(|backing| unsafe { &*Arc::as_ptr(backing) });
        let under: Option<&'static dyn Backing> = under.map(|under| under as _);
        let metadata_bytes = Frames::builder(&config).backing(under).metadata_bytes()?;
        // Pages that other processes can write to are not cut into magazines. A child that a signal
        // handler forks goes on in what that interrupted: it would write to its parent's.
        let is_shared = common.is_some() || self.kind == MemoryKind::Memfd;
        let magazine_bytes = if is_shared { magazine_bytes(frames_max) } else { 0 };
        let wanted = MemoryRequest {
            kind: self.kind,
            bytes: (frames as usize) << self.page_size.shift(),
            bytes_max: (frames_max as usize) << self.page_size.shift(),
            metadata_bytes: Metadata::bytes(metadata_bytes + magazine_bytes, cpu_count)?,
            hugetlb: self.hugetlb,
            thp: self.thp,
        };
        let (mapping, memory) = Memory::map(wanted, part)?;
        self.place(&memory, &shares)?;
        config.linear_map = Some(linear_map(memory.start()));
        let kept = Metadata::new(mapping, cpu_count)?;
        // SAFETY: the depot drops the allocator, which has the parts, before it drops `kept`.
        let Parts { fork_mark, locks, metadata } = unsafe { kept.divide() };
        let (metadata, magazines) = metadata.split_at_mut(metadata.len() - magazine_bytes);
        let isolated = self.isolated.unwrap_or_else(|| machine.quiet_cpus());
        let process = Process { fork_mark, isolated, on_handover: self.on_handover };
        let seam = cpus::find(locks, process, self.locking);
        // SAFETY: new anonymous memory. This part of it has not been touched, so it is zero.
        let allocator =
            unsafe { Frames::builder(&config).backing(under).build_zeroed(metadata, seam)? };
        allocator.cpu_caches().add_magazines(magazines).map_err(BuildError::Config)?;
        for (cpu, &node) in cpu_nodes.iter().enumerate() {
            if let Some((start, bytes)) = allocator.cpu_caches().metadata(CpuId::new(cpu as u32)) {
                numa::prefer(start, bytes, node);
            }
        }
        let sites = SiteTable::new(frames_max).map_err(no_memory(SiteTable::bytes(frames_max)))?;
        let pinned = Bits::new(frames_max as usize);
        let growth = Growth::new(self.numa, self.populate, fork_mark);
        let depot = Depot::from_shared(DepotState::assemble(Assembly {
            allocator,
            memory,
            backing,
            common,
            metadata: kept,
            growth,
            sites,
            fork_mark,
            is_pinned: self.pinned,
            pinned: pinned.map_err(no_memory(frames_max as usize / 8))?,
            pages_max: frames_max,
        }));
        if let Some(bytes) = self.ceiling {
            let set = Ceiling::over(depot.shared(), None).set_at_build(bytes, self.populate);
            set.map_err(BuildError::Ceiling)?;
        }
        Ok(depot)
    }

    /// The number of frames in `bytes` bytes.
    fn frames(&self, bytes: usize) -> Result<u32, BuildError> {
        let system = self.system_page;
        if !self.page_size.bytes().is_multiple_of(system) {
            return Err(BuildError::PageSize { page_size: self.page_size, system });
        }
        if self.bytes == 0 {
            return Err(BuildError::ZeroSize);
        }
        let unit = match self {
            _ if self.bytes_max > 0 => growth::unit(self.page_size),
            _ if self.hugetlb => HUGE_BYTES,
            _ => self.page_size.bytes(),
        };
        let whole = bytes.checked_next_multiple_of(unit);
        whole
            .and_then(|bytes| u32::try_from(bytes >> self.page_size.shift()).ok())
            .ok_or(BuildError::TooLarge { bytes, page_size: self.page_size })
    }

    /// The zones' nodes and ranges.
    fn shares(&self, machine: &Topology, frames: u32) -> Result<Vec<ZoneShare>, BuildError> {
        let first = NodeId::new(0);
        if !self.numa || machine.nodes.is_empty() {
            return Ok(vec![ZoneShare {
                node: first,
                range: FrameRange::new(Pfn::new(0), frames),
            }]);
        }
        let nodes: Vec<_> = machine.nodes.iter().map(|&(node, _)| node).collect();
        // Zones may not share an aligned run of 512 frames.
        let per_node = (frames / nodes.len() as u32) & !(ZONE_FRAMES - 1);
        if per_node == 0 && nodes.len() > 1 {
            return Err(BuildError::TooSmallForNodes { bytes: self.bytes, nodes: nodes.len() });
        }
        let last = nodes.len() - 1;
        Ok(nodes
            .into_iter()
            .enumerate()
            .map(|(at, node)| {
                let start = per_node * at as u32;
                let size = if at == last { frames - start } else { per_node };
                ZoneShare { node, range: FrameRange::new(Pfn::new(start), size) }
            })
            .collect())
    }

    fn zone<'c>(&self, share: &ZoneShare, range: &'c [FrameRange]) -> ZoneConfig<'c> {
        let all = Watermarks::without_reserve(u64::from(share.range.frames), self.page_size);
        let watermarks = Some(self.watermarks.unwrap_or(all));
        ZoneConfig { name: "Normal", node: share.node, level: 2, ranges: range, watermarks }
    }

    /// Binds, then populates.
    fn place(&self, memory: &Memory, shares: &[ZoneShare]) -> Result<(), BuildError> {
        for &ZoneShare { node, range } in shares.iter().filter(|_| self.numa) {
            let shift = self.page_size.shift();
            // SAFETY: the range is inside the memory.
            let start = unsafe { memory.start().add(range.start.index() << shift) };
            numa::bind(start, (range.frames as usize) << shift, node)
                .map_err(|errno| no_mapping(BuildError::Numa { node, errno })(errno))?;
        }
        if self.populate { memory.populate(0..memory.bytes()) } else { Ok(()) }
    }
}

/// The base page size of a depot that asks for none: 4 KiB, or the system's page size where that
/// is larger (16 or 64 KiB on some AArch64 systems).
pub fn default_page_size() -> PageSize {
    page_size_for(rustix::param::page_size())
}

/// The smallest base page size that is a multiple of the system's pages.
fn page_size_for(system_page: usize) -> PageSize {
    let sizes = [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64];
    // Of a system with still larger pages: `Builder::frames` refuses every size.
    sizes.into_iter().find(|size| size.bytes() >= system_page).unwrap_or(PageSize::Kib64)
}

/// Panics like the core, with the names of this crate's options.
fn panic_on_misuse(misuse: Misuse) {
    let advice = match misuse {
        Misuse::DoubleFree { .. } => {
            " (a double free, or one with a wrong order); Builder::checked(true) refuses it, in \
             the caller's call"
        }
        _ => "",
    };
    panic!("pagedepot: {misuse:?}{advice}; Builder::on_misuse is told instead of this panic");
}

/// Zones begin at multiples of this number of frames.
const ZONE_FRAMES: u32 = 512;

/// The node and frames of a zone that will be made.
struct ZoneShare {
    node: NodeId,
    range: FrameRange,
}

/// Bytes of magazines, of 256 bytes and 63 pages each, for the eighth of so many pages that CPUs
/// may cache by [`HighPolicy::Auto`], at most 1 MiB.
fn magazine_bytes(pages: u32) -> usize {
    (pages as usize / 8).div_ceil(63).min(4096) * 256
}

fn linear_map(start: NonNull<u8>) -> LinearMap {
    // SAFETY: the memory stays mapped while the depot has its allocator; frames are reached only
    // through the pages it hands out; the provenance is exposed here.
    unsafe { LinearMap::new(start.as_ptr().expose_provenance()) }
}

impl Depot {
    /// A depot of `bytes` with the defaults of [`Builder`]. Its pages have 4 KiB, or the system's
    /// page size where that is larger ([`default_page_size`]).
    ///
    /// # Errors
    /// [`BuildError`]; its `Display` says what to do.
    pub fn new(bytes: usize) -> Result<Self, BuildError> {
        Self::builder(bytes).build()
    }

    /// A depot of `bytes`, rounded up to whole pages, with options; see [`Builder`] for an example.
    ///
    /// The system provides pages when they are first touched, so a depot can be larger than the
    /// memory that is free now. It can never have more bytes in all than the system would map for
    /// one program at once, whether it is built so large or [grows](Self::grow), and whatever the
    /// kind of memory. That limit is RAM and swap with `vm.overcommit_memory=0`, none with `1`, and
    /// what is left below the commit limit with `2` (a memory file is counted there page by page).
    pub fn builder(bytes: usize) -> Builder {
        Builder::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use pagedepot::Order;

    use super::*;

    #[test]
    fn the_default_page_suits_the_system() {
        let kib = |kib: usize| page_size_for(kib << 10);
        assert_eq!(
            [4, 8, 16, 64].map(kib),
            [PageSize::Kib4, PageSize::Kib16, PageSize::Kib16, PageSize::Kib64]
        );
        // What suits larger pages can be mapped on this system, too.
        for system_page in [16 << 10, 64 << 10] {
            let depot = Builder::on_pages_of(system_page, 64 << 20).build().unwrap();
            assert_eq!(depot.page_size().bytes(), system_page);
            let mut page = depot.page(Order::BASE).unwrap();
            page.fill(1);
            assert_eq!(page.len(), system_page);
        }
        let small = Builder::on_pages_of(16 << 10, 64 << 20).page_size(PageSize::Kib4).build();
        let error = small.map(|depot| depot.bytes()).unwrap_err();
        assert_eq!(error, BuildError::PageSize { page_size: PageSize::Kib4, system: 16 << 10 });
        let huge = Builder::on_pages_of(256 << 10, 64 << 20).build();
        assert!(matches!(huge, Err(BuildError::PageSize { .. })));
    }
}
