//! Construction, also of an allocator in a `static`, made once the machine is known.
#![allow(unsafe_code, reason = "writes the metadata to memory that the caller gives")]

use super::add::{FrameOrigin, MemoryAdder};
use super::allocator::Allocator;
use super::config::{Config, ConfigError};
use super::error::{AllocError, FreeError};
use super::flags::{Classes, Flags};
use super::layout::{self, Globals, Layout};
use super::zero_and_check::Options;
use crate::cpus::Cpus;
use crate::evacuation::{Evacuation, ZonePolicy};
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag, WORD_BYTES, WORDS_PER_ZONE,
};
use crate::frame::{CpuId, NodeId, Order, Pfn, ZoneId};
use crate::front::gate::{GATE_DISABLED, Gate};
use crate::front::word::Word;
use crate::front::{BlockArray, GATES_AT, Magazine, REFUSALS_AT};
use crate::pcp::{
    Caches, CarvedFrames, CpuShared, LEVELS, Magazines, NO_ZONE, Pcp, Pcps, PcpsState,
};
use crate::store::backing::Backing;
use crate::store::bitmap::Bitmap;
use crate::store::hints::{Group, Summary};
use crate::store::tags::Tags;
use crate::store::{Misuse, Store};
use crate::sync::CachePadded;
use crate::sync::late_init::{LateInit, NotMade};
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicU32, AtomicU64, AtomicUsize};
use crate::zone::{CacheLimits, Zone, Zones};
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Bytes of memory that [`new`](Self::new) needs for `config`, whatever its alignment: about
    /// 35.3 KiB per 2^18 frames begun, of which 2 KiB also where there are none below the
    /// highest; a bit per frame, at most 16 KiB of them; about 4 KiB per CPU and zone, and the
    /// magazines for every CPU's caches at `high_min`: 25 of 256 bytes at least.
    ///
    /// # Errors
    /// [`ConfigError`] for configurations that no memory would serve.
    pub fn metadata_bytes(config: &Config<'_>) -> Result<usize, ConfigError> {
        Self::builder(config).metadata_bytes()
    }

    /// Makes an allocator of the frames in `config`, all free, with its metadata in `memory`.
    ///
    /// O(frames / 8) bytes are written, and 512 KiB more if the CPUs
    /// [follow gates](Cpus::FOLLOWS_GATES).
    ///
    /// # Errors
    /// [`ConfigError`]; too little memory is one.
    pub fn new(
        config: &Config<'_>,
        memory: &'m mut [MaybeUninit<u8>],
        cpus: C,
    ) -> Result<Self, ConfigError> {
        Self::builder(config).build(memory, cpus)
    }

    /// Begins a construction like [`new`](Self::new), in steps: over a [`Backing`], or in memory
    /// that is zero.
    pub const fn builder<'c>(config: &'c Config<'c>) -> Builder<'c, 'm, C> {
        Builder { config, backing: None, cpus: PhantomData }
    }

    fn make(
        config: &Config<'_>,
        memory: &'m mut [MaybeUninit<u8>],
        cpus: C,
        backing: Option<&'m dyn Backing>,
        is_zeroed: bool,
    ) -> Result<Self, ConfigError> {
        let layout = Layout::new::<C>(config, backing.is_some())?;
        let base = layout::aligned(memory, layout.end, layout.align)?;
        // Magazines and sections are found again by address.
        base.as_ptr().expose_provenance();
        let build = Build { config, layout, base, is_backed: backing.is_some() };
        // SAFETY: `base..base + layout.end` is in `memory`, which is this function's for 'm, and
        // the layout's parts do not overlap.
        let (globals, caches) = unsafe {
            let globals = build.globals();
            let (store, zones) = (build.store(globals, backing), build.zones());
            if !is_zeroed || IS_LOOM {
                build.gates();
            }
            build.magazines();
            let pcps = build.pcps(&cpus, &zones, &globals.pcps);
            (globals, Caches { cpus, pcps, store, zones })
        };
        let allocator = Allocator {
            caches,
            layout,
            options: Options {
                is_checked: config.checked,
                linear_map: config.linear_map,
                page_size: config.page_size,
                classes: build.classes(),
            },
            simple_level: match config.zones {
                [zone] if !config.checked => zone.level,
                _ => u8::MAX,
            },
            globals,
            base,
            memory: PhantomData,
        };
        let adder = MemoryAdder(&allocator);
        // SAFETY: as above; sections are written before they are installed.
        unsafe { build.sections(&adder) };
        for (at, zone) in config.zones.iter().enumerate() {
            for &range in zone.ranges {
                adder.open(ZoneId::new(at as u32), range, FrameOrigin::AtFirst);
            }
        }
        Ok(allocator)
    }

    /// The start of the metadata and its bytes; for embedders that protect or wipe parts of them.
    pub fn metadata(&self) -> (NonNull<u8>, usize) {
        (self.base, self.layout.end)
    }

    /// The per-CPU gates and blocks: where they begin, and their bytes in all. A process that forks
    /// wipes these in the child (`MADV_WIPEONFORK`): a gate of 0 is closed.
    pub fn cpu_blocks(&self) -> (NonNull<u8>, usize) {
        // SAFETY: an offset inside the metadata.
        let start = unsafe { self.base.add(self.layout.cpus) };
        (start, self.layout.cpu_bytes())
    }
}

/// The parameters of an [`Allocator`]: a configuration, and perhaps a store of the embedder.
///
/// ```
/// # use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// # use pagedepot::{Allocator, Backing, Config, ConfigError, CpuId};
/// # struct First;
/// # impl Environment for First {}
/// # impl WhichCpu for First {
/// #     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
/// # }
/// # static LOCKS: [CpuLock; 1] = [const { CpuLock::new() }; 1];
/// fn over(
///     buddy: &'static dyn Backing,
///     config: &Config,
/// ) -> Result<Allocator<'static, LockedCpus<'static, First>>, ConfigError> {
///     let builder = Allocator::builder(config).backing(Some(buddy));
///     let metadata = Box::leak(Box::new_uninit_slice(builder.metadata_bytes()?));
///     builder.build(metadata, LockedCpus::new(&LOCKS, First))
/// }
/// ```
#[must_use = "an allocator is made by `build`"]
pub struct Builder<'c, 'm, C> {
    config: &'c Config<'c>,
    backing: Option<&'m dyn Backing>,
    cpus: PhantomData<fn(C)>,
}

impl<'m, C: Cpus> Builder<'_, 'm, C> {
    /// With a backing, the free frames are there. The ranges in the configuration then say which
    /// frames belong to which zone; which of them are free only the backing knows. `None`, as at
    /// first: the allocator keeps a bitmap of its own, and all frames are free.
    pub fn backing(mut self, backing: Option<&'m dyn Backing>) -> Self {
        self.backing = backing;
        self
    }

    /// Bytes of memory that [`build`](Self::build) needs, whatever its alignment: as
    /// [`Allocator::metadata_bytes`]. With a backing less by what a bitmap takes, 33.2 KiB per 2^18
    /// frames, unless `checked` puts its bytes there.
    ///
    /// # Errors
    /// [`ConfigError`] for configurations that no memory would serve.
    pub fn metadata_bytes(&self) -> Result<usize, ConfigError> {
        Layout::new::<C>(self.config, self.backing.is_some()).map(|layout| layout.bytes())
    }

    /// Makes the allocator, with its metadata in `memory`: see [`Allocator::new`].
    ///
    /// # Errors
    /// [`ConfigError`]; too little memory is one.
    pub fn build(
        self,
        memory: &'m mut [MaybeUninit<u8>],
        cpus: C,
    ) -> Result<Allocator<'m, C>, ConfigError> {
        Allocator::make(self.config, memory, cpus, self.backing, false)
    }

    /// Builds the allocator like [`build`](Self::build), but leaves alone what has to be zero and
    /// is: gates that are never used then need no memory.
    ///
    /// # Errors
    /// Fails like [`build`](Self::build).
    ///
    /// # Safety
    /// All bytes of `memory` are zero.
    pub unsafe fn build_zeroed(
        self,
        memory: &'m mut [MaybeUninit<u8>],
        cpus: C,
    ) -> Result<Allocator<'m, C>, ConfigError> {
        Allocator::make(self.config, memory, cpus, self.backing, true)
    }
}

crate::sync::copied!(Builder<'_, '_, _>);

impl<C> fmt::Debug for Builder<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("config", self.config)
            .field("is_backed", &self.backing.is_some())
            .finish()
    }
}

fn panic_on_misuse(misuse: Misuse) {
    let advice = match misuse {
        Misuse::DoubleFree { .. } => {
            "; the option `checked` (`Config::checked`, or `checked(true)` of a builder) refuses \
             the second free itself"
        }
        Misuse::Backing { .. } => "",
    };
    panic!("pagedepot: {misuse}{advice}");
}

/// Zone to try first from `node`, for each level that a request may state: the first that the level
/// takes.
fn first_zones(zones: &Zones<'_>, node: NodeId) -> [u8; LEVELS] {
    core::array::from_fn(|level| {
        let takes = |zone: &ZoneId| usize::from(zones.get(*zone).level) <= level;
        zones.from(node).find(takes).map_or(NO_ZONE, |zone| zone.get() as u8)
    })
}

/// Zeroes so many integers, or arrays of integers. To loom zeroes are no atomics.
///
/// # Safety
/// There is room for them at `place`, which is the caller's alone.
unsafe fn zero<T>(place: *mut T, count: usize, new: fn() -> T) {
    // SAFETY: the caller's promise; zeroes will do for integers.
    unsafe {
        match IS_LOOM {
            true => (0..count).for_each(|i| place.add(i).write(new())),
            false => place.write_bytes(0, count),
        }
    }
}

/// Writes the parts of the metadata, each once.
struct Build<'b, 'c> {
    config: &'b Config<'c>,
    layout: Layout,
    base: NonNull<u8>,
    is_backed: bool,
}

impl Build<'_, '_> {
    fn at<T>(&self, offset: usize) -> *mut T {
        debug_assert!(offset <= self.layout.end);
        // SAFETY: offsets come from the layout and lie inside the memory.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }

    /// Whether pageblocks are ever avoided. A backing has none whose frames could be counted.
    fn avoids(&self) -> bool {
        !self.is_backed && self.config.evacuation != Evacuation::Off
    }

    /// Writes a list.
    ///
    /// # Safety
    /// Requires what `globals` requires; the layout has room for all items there.
    unsafe fn list<'m, T>(&self, offset: usize, items: impl Iterator<Item = T>) -> &'m [T] {
        let (place, mut count) = (self.at::<T>(offset), 0);
        for item in items {
            // SAFETY: the caller's promise.
            unsafe { place.add(count).write(item) };
            count += 1;
        }
        // SAFETY: all written.
        unsafe { core::slice::from_raw_parts(place, count) }
    }

    /// # Safety
    /// Requires what `globals` requires.
    unsafe fn policies<'m>(&self) -> &'m [CachePadded<ZonePolicy>] {
        let zones = if self.avoids() { self.config.zones } else { &[] };
        let policy = |_| CachePadded::new(ZonePolicy::new(self.config.evacuation));
        // SAFETY: the layout has room for every zone.
        unsafe { self.list(self.layout.policies, zones.iter().map(policy)) }
    }

    /// # Safety
    /// The memory is the builder's alone, for 'm; each part is written once.
    unsafe fn globals<'m, C>(&self) -> &'m Globals<'m, C> {
        let place = self.at::<Globals<'m, C>>(self.layout.globals);
        // SAFETY: the layout has room for it.
        unsafe {
            place.write(Globals::new(self.carved()));
            &*place
        }
    }

    /// # Safety
    /// Requires what `globals` requires.
    unsafe fn carved<'m>(&self) -> CarvedFrames<'m> {
        let words = (0..self.layout.carved_words).map(|_| AtomicU64::new(0));
        // SAFETY: the layout has room for so many.
        let bits = unsafe { self.list(self.layout.carved, words) };
        let base = self.at::<u8>(self.layout.cpus).addr();
        let page_size = self.config.page_size;
        let reach =
            self.config.linear_map.and_then(|map| CarvedFrames::reach(map, page_size, base));
        CarvedFrames::new(reach.unwrap_or(0..0), bits)
    }

    /// # Safety
    /// Requires what `globals` requires.
    unsafe fn zones<'m>(&self) -> Zones<'m> {
        let zones = self.config.zones.iter().enumerate().map(|(i, config)| {
            let zone =
                Zone::new(config.name, config.node, config.level, self.config.cpus, self.is_backed);
            zone.set_watermarks(layout::watermarks(self.config, i));
            zone.set_limits(layout::limits(self.config, i));
            zone
        });
        // SAFETY: the layout has room for every zone, every node, and a list per node.
        unsafe {
            let nodes = self.list(self.layout.zonelist_nodes, self.config.zonelist_nodes());
            Zones::new(self.list(self.layout.zones, zones), nodes, self.zonelists(nodes))
        }
    }

    /// # Safety
    /// Requires what `zones` requires.
    unsafe fn zonelists<'m>(&self, nodes: &[NodeId]) -> &'m [u8] {
        let zones = self.config.zones;
        let distance = |from: NodeId, to: NodeId| match self.config.distance {
            Some(distance) => distance(from, to),
            None if from == to => 10,
            None => 20,
        };
        let place = self.at::<u8>(self.layout.zonelists);
        let lists = nodes.len() * zones.len();
        // SAFETY: the layout has room for a list per node.
        let all = unsafe {
            place.write_bytes(0, lists);
            core::slice::from_raw_parts_mut(place, lists)
        };
        for (&node, list) in nodes.iter().zip(all.chunks_exact_mut(zones.len())) {
            (0..).zip(list.iter_mut()).for_each(|(i, entry)| *entry = i);
            // Nearest node first, and there the zone that fewest requests need (Linux: node order).
            list.sort_unstable_by_key(|&i| {
                let zone = &zones[usize::from(i)];
                (distance(node, zone.node), zone.node, u8::MAX - zone.level, i)
            });
        }
        all
    }

    /// # Safety
    /// Requires what `zones` requires.
    unsafe fn store<'m, C>(
        &self,
        globals: &'m Globals<'m, C>,
        backing: Option<&'m dyn Backing>,
    ) -> Store<'m> {
        let sections = self.config.sections_max();
        let pageblocks = sections * SECTION_PAGEBLOCKS;
        let groups = (0..Summary::groups(sections)).map(|_| Group::default());
        // SAFETY: the layout has room for every section's entry, every pageblock's tag and every
        // group of sections.
        unsafe {
            let table = self.list(self.layout.tables, (0..sections).map(|_| AtomicUsize::new(0)));
            let tags = (0..pageblocks).map(|_| AtomicU32::new(Tag::ABSENT.0));
            let tags = self.list(self.layout.tags, tags);
            let tags = Tags::new(tags, !self.config.checked, &globals.avoid_counts);
            let summary = Summary::new(self.list(self.layout.summary, groups));
            let on_misuse = self.config.on_misuse.unwrap_or(panic_on_misuse);
            let bitmap = Bitmap::new(
                table,
                tags,
                summary,
                &globals.failed_claims,
                &globals.reports,
                self.avoids(),
            );
            Store { tags, bitmap, backing, on_misuse, noted: &globals.noted }
        }
    }

    /// Zeroes the gates of numbers that no CPU has; those of CPUs are written with their blocks.
    ///
    /// # Safety
    /// Requires what `zones` requires.
    unsafe fn gates(&self) {
        let cpus = self.config.cpus as usize;
        let first =
            self.at::<AtomicU64>(self.layout.cpus + GATES_AT + cpus * size_of::<AtomicU64>());
        // SAFETY: the layout has room for so many gates.
        unsafe { zero(first, self.layout.gates - cpus, || AtomicU64::new(0)) };
    }

    /// # Safety
    /// Requires what `zones` requires.
    unsafe fn magazines(&self) {
        let first = self.layout.cpus + self.layout.first_magazine() * size_of::<Magazine>();
        // SAFETY: the layout has room for every magazine.
        unsafe { zero(self.at(first), self.layout.magazines_count, Magazine::new) };
    }

    /// # Safety
    /// Requires what `zones` requires.
    unsafe fn pcps<'m, C: Cpus>(
        &self,
        cpus: &C,
        zones: &Zones<'_>,
        state: &'m PcpsState<'m>,
    ) -> Pcps<'m> {
        let layout = &self.layout;
        let blocks = BlockArray {
            base: self.at::<u8>(layout.cpus),
            gates_from: if C::FOLLOWS_GATES { REFUSALS_AT } else { 0 },
            blocks_at: layout.blocks - layout.cpus,
            stride: layout.blocks_stride,
            cpus: self.config.cpus,
            context_stride: layout.context_stride,
        };
        for cpu in 0..self.config.cpus {
            let is_behind_lock = cpus.is_behind_lock(CpuId::new(cpu));
            let open = Gate::of(&blocks, CpuId::new(cpu), is_behind_lock).open;
            let gate = if self.config.caches { open } else { GATE_DISABLED };
            let offset = layout.blocks + cpu as usize * layout.blocks_stride;
            // SAFETY: the layout has room for every CPU's gate, words, shared part and zones.
            unsafe {
                self.at::<AtomicU64>(layout.cpus + GATES_AT)
                    .add(cpu as usize)
                    .write(AtomicU64::new(gate));
                for word in 0..C::CONTEXTS * self.config.zones.len() * WORDS_PER_ZONE {
                    let at = offset + WORD_BYTES * word;
                    self.at::<AtomicU64>(at).write(AtomicU64::new(Word::EMPTY.0));
                }
                let node = self.config.node_of(cpu);
                let shared = CpuShared::new(node, first_zones(zones, node));
                self.at::<CpuShared>(offset + layout.places.shared_at).write(shared);
                for (i, zone) in zones.all().iter().enumerate() {
                    let at = offset + layout.places.pcps_at + i * size_of::<Pcp>();
                    self.at::<Pcp>(at).write(self.pcp(cpu, i, zone.limits()));
                }
            }
        }
        let magazines = Magazines::new(
            layout.first_magazine() as u32,
            layout.magazines_count as u32,
            &state.fresh_magazines,
            self.config.linear_map.map(|map| (map, self.config.page_size)),
            self.config.cpus,
        );
        let zones = zones.all().len() as u32;
        // SAFETY: all written above.
        unsafe {
            Pcps::new(
                blocks,
                layout.places,
                zones,
                C::CONTEXTS,
                magazines,
                state,
                self.config.free_high,
                self.policies(),
                self.classes().kinds(),
            )
        }
    }

    fn pcp(&self, cpu: u32, zone: usize, limits: CacheLimits) -> Pcp {
        // CPUs start their searches at different places, so that they share no pageblocks.
        let ranges = self.config.zones[zone].ranges;
        let start = ranges.iter().map(|r| u64::from(r.start.get())).min().unwrap_or(0);
        let end = ranges.iter().map(|r| r.end()).max().unwrap_or(0);
        let hint = start + (end - start) / u64::from(self.config.cpus) * u64::from(cpu);
        Pcp::new(limits.high_min as i64, (hint / u64::from(PAGEBLOCK_FRAMES)) as u32)
    }

    /// The classes that are kept apart. A backing keeps nothing apart.
    fn classes(&self) -> Classes {
        if self.is_backed { Classes::ALIKE } else { self.config.classes }
    }

    /// # Safety
    /// Requires what `zones` requires.
    unsafe fn sections<C: Cpus>(&self, adder: &MemoryAdder<'_, '_, C>) {
        if self.layout.section_bytes == 0 {
            return;
        }
        for (i, number) in self.config.sections().enumerate() {
            let place = self.at::<u8>(self.layout.sections + i * self.layout.section_bytes);
            // SAFETY: the layout has room for every section; the reference lives as long as the
            // store, which the allocator holds for 'm.
            unsafe {
                let is_free = !self.is_backed && self.is_filled(number);
                adder.install_section(number, place, is_free);
            }
        }
    }

    /// Whether one range covers the section entirely.
    fn is_filled(&self, number: usize) -> bool {
        let first = number as u64 * u64::from(SECTION_FRAMES);
        let last = first + u64::from(SECTION_FRAMES);
        let mut ranges = self.config.zones.iter().flat_map(|zone| zone.ranges);
        ranges.any(|range| u64::from(range.start.get()) <= first && last <= range.end())
    }
}

/// A place for an [`Allocator`] in a `static`: empty at first, for kernels that have no other place
/// before they have memory.
///
/// Until [`init`](Self::init) has returned `Ok` on some CPU, [`get`](Self::get) returns `None` and
/// requests fail with `NotInitialized`, from interrupt handlers too. Nothing waits: not the
/// requests, and not a second `init`.
///
/// # Cost
/// Each call loads one word, which is never written again and lies beside the allocator's own
/// fields, and branches on it; the branch is always predicted. The load acquires: it is a plain
/// load on x86-64, and `ldar` or `ldapr` on AArch64. A loop saves even that by calling
/// [`get`](Self::get) once.
///
/// # Example
/// ```
/// use pagedepot::cpus::{CpuLock, Environment, LockedCpus, WhichCpu};
/// use pagedepot::{
///     AllocError, Allocator, Config, CpuId, Flags, FrameRange, Global, NodeId, Order, Pfn,
///     ZoneConfig,
/// };
///
/// struct First;
/// impl Environment for First {}
/// impl WhichCpu for First {
///     fn cpu(&self) -> Option<CpuId> { Some(CpuId::new(0)) }
/// }
///
/// static LOCKS: [CpuLock; 1] = [const { CpuLock::new() }; 1];
/// static DEPOT: Global<LockedCpus<'static, First>> = Global::new();
///
/// assert_eq!(DEPOT.alloc(Order::BASE, Flags::default()), Err(AllocError::NotInitialized));
///
/// let ranges = [FrameRange::new(Pfn::new(0x100), 1 << 15)];
/// let zones = [ZoneConfig {
///     name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
/// }];
/// let config = Config::new(1, &zones);
/// let bytes = Allocator::<LockedCpus<'_, First>>::metadata_bytes(&config)?;
/// let metadata = Box::leak(Box::new_uninit_slice(bytes));
/// DEPOT.init(|| Allocator::new(&config, metadata, LockedCpus::new(&LOCKS, First)))?;
///
/// let pfn = DEPOT.alloc(Order::BASE, Flags::default())?;
/// DEPOT.free(pfn, Order::BASE)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Global<C: 'static>(LateInit<Allocator<'static, C>>);

/// The reason why [`Global::init`] made no allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// There is one already; it stays as it is.
    AlreadyInitialized,
    /// Another call is making one: on another CPU, or below this handler on the same one.
    InProgress,
    /// The allocator could not be made. The place is empty again.
    Config(ConfigError),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::AlreadyInitialized => {
                f.write_str("this Global has an allocator already: add memory to it instead")
            }
            InitError::InProgress => {
                f.write_str("another call is making the allocator: use `get` until it returns one")
            }
            InitError::Config(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for InitError {}

impl From<ConfigError> for InitError {
    fn from(error: ConfigError) -> Self {
        InitError::Config(error)
    }
}

impl<C: 'static> Global<C> {
    /// A place without an allocator.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Global(LateInit::new())
    }

    /// Makes a place without an allocator; loom's atomics are not made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        Global(LateInit::new())
    }

    /// Makes the allocator by `make`, which calls [`Allocator::new`] or a
    /// [`Builder`](crate::Builder), and publishes it to all CPUs. `make` runs at most once at a
    /// time, and never again after it has succeeded; where this returns another error than
    /// [`InitError::Config`] it is not called.
    ///
    /// # Errors
    /// [`InitError`]. After an error of `make`, or a panic in it, `init` may be called again.
    pub fn init(
        &self,
        make: impl FnOnce() -> Result<Allocator<'static, C>, ConfigError>,
    ) -> Result<&Allocator<'static, C>, InitError> {
        self.0.init(make).map_err(|why| match why {
            NotMade::Ready => InitError::AlreadyInitialized,
            NotMade::Busy => InitError::InProgress,
            NotMade::Failed(error) => InitError::Config(error),
        })
    }

    /// The allocator, once it is made: all its methods are reached through this.
    #[inline]
    pub fn get(&self) -> Option<&Allocator<'static, C>> {
        self.0.get()
    }
}

impl<C: Cpus + 'static> Global<C> {
    /// [`Allocator::alloc`].
    ///
    /// # Errors
    /// [`AllocError::NotInitialized`], and those of [`Allocator::alloc`].
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.get().ok_or(AllocError::NotInitialized)?.alloc(order, flags)
    }

    /// [`Allocator::free`].
    ///
    /// # Errors
    /// [`FreeError::NotInitialized`], and those of [`Allocator::free`].
    #[inline]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.get().ok_or(FreeError::NotInitialized)?.free(pfn, order)
    }

    /// [`Allocator::alloc_contiguous`].
    ///
    /// # Errors
    /// [`AllocError::NotInitialized`], and those of [`Allocator::alloc_contiguous`].
    pub fn alloc_contiguous(
        &self,
        frames: u32,
        align: u32,
        flags: Flags,
    ) -> Result<Pfn, AllocError> {
        self.get().ok_or(AllocError::NotInitialized)?.alloc_contiguous(frames, align, flags)
    }

    /// [`Allocator::free_contiguous`].
    ///
    /// # Errors
    /// [`FreeError::NotInitialized`], and those of [`Allocator::free_contiguous`].
    pub fn free_contiguous(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        self.get().ok_or(FreeError::NotInitialized)?.free_contiguous(start, frames)
    }
}

impl<C: 'static> Default for Global<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Cpus + 'static> fmt::Debug for Global<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.get().is_some() { "initialized" } else { "not initialized" };
        f.debug_tuple("Global").field(&format_args!("{state}")).finish()
    }
}
