//! The parameters of an allocator, and every way in which they can be wrong.

use super::error::AllocError;
use super::flags::Classes;
use crate::evacuation::Evacuation;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, SECTION_FRAMES, Tag};
use crate::frame::{FrameRange, LinearMap, NodeId, PageSize, Pfn};
use crate::front::MagazineIndex;
use crate::pcp::FreeHigh;
use crate::store::Misuse;
use crate::sync::model::bound;
use crate::zone::{HighPolicy, Watermarks};
use core::fmt;

/// A zone to manage.
#[derive(Clone, Copy, Debug)]
pub struct ZoneConfig<'c> {
    /// Name for reports; the first 15 bytes are kept.
    pub name: &'c str,
    /// NUMA node of the zone.
    pub node: NodeId,
    /// Level that a request must state to use this zone: requests state the highest level they can
    /// use (Linux: DMA 0, DMA32 1, Normal 2, Movable 3). At most 14.
    pub level: u8,
    /// Free frames of the zone, ascending or not, without overlaps. Zones may not share an aligned
    /// run of 512 frames. May be empty.
    pub ranges: &'c [FrameRange],
    /// `None`: [`Watermarks::kernel`] of its size.
    pub watermarks: Option<Watermarks>,
}

/// Most nodes without memory that have zone lists of their own; others use the first zone's.
const MEMORYLESS_MAX: usize = 64;

/// Everything an allocator is made from.
#[derive(Clone, Copy, Debug)]
pub struct Config<'c> {
    /// Base page size.
    pub page_size: PageSize,
    /// CPUs that get caches: numbers `0..cpus`. Others use the store.
    pub cpus: u32,
    /// The node of each CPU, by number; CPUs beyond the slice are on node 0.
    pub cpu_nodes: &'c [NodeId],
    /// Distance of two nodes (ACPI SLIT: 10 is here). `None`: all equally far.
    pub distance: Option<fn(NodeId, NodeId) -> u32>,
    /// The zones.
    pub zones: &'c [ZoneConfig<'c>],
    /// One past the highest frame that may be added later, rounded up to whole sections of 2^18
    /// frames; `None`: the end of the ranges.
    pub pfn_limit: Option<Pfn>,
    /// Whether CPUs have caches at all; without, every request goes to the store.
    pub caches: bool,
    /// Policy for the number of pages that a CPU may cache.
    pub high: HighPolicy,
    /// Policy for the number of those that may be blocks of orders 1 to 3 that a CPU only frees.
    pub free_high: FreeHigh,
    /// Whether sparsely used pageblocks are emptied, so that whole ones come back. With
    /// [`Evacuation::Off`] none ever is: this cannot be changed later.
    pub evacuation: Evacuation,
    /// The classes of blocks that fill pageblocks of their own. Of no effect over a
    /// [`Backing`](crate::Backing).
    pub classes: Classes,
    /// Catch every double free and wrong order exactly: one byte per frame, and one atomic
    /// exchange per allocation and free (about 6 ns each on our test machine).
    pub checked: bool,
    /// Each CPU's part of the metadata fills base pages of its own, so that it can be placed on the
    /// CPU's node: see [`CpuCaches::metadata`](crate::CpuCaches::metadata). Each other part
    /// of the metadata begins at a page, too: it takes up to a page more for each CPU, and twelve.
    pub cpu_pages: bool,
    /// The mapping of the frames, if they are mapped.
    pub linear_map: Option<LinearMap>,
    /// Called on misuse found late. `None`: panic.
    pub on_misuse: Option<fn(Misuse)>,
}

impl<'c> Config<'c> {
    /// `cpus` CPUs that allocate from `zones`, and the default of everything else.
    pub const fn new(cpus: u32, zones: &'c [ZoneConfig<'c>]) -> Self {
        Config {
            page_size: PageSize::Kib4,
            cpus,
            cpu_nodes: &[],
            distance: None,
            zones,
            pfn_limit: None,
            caches: true,
            high: HighPolicy::Auto,
            free_high: FreeHigh::MAINLINE,
            // Models have it where they are about it.
            evacuation: bound(Evacuation::Adaptive, Evacuation::Off),
            classes: Classes::ALIKE,
            checked: false,
            cpu_pages: false,
            linear_map: None,
            on_misuse: None,
        }
    }

    /// One past the last frame that there is, or may be later.
    pub(crate) fn frames_end(&self) -> u64 {
        let ranges = self.zones.iter().flat_map(|zone| zone.ranges).map(|range| range.end());
        let section = u64::from(SECTION_FRAMES);
        let limit = self.pfn_limit.map_or(0, |pfn| u64::from(pfn.get()).next_multiple_of(section));
        ranges.chain([limit]).max().unwrap_or(0)
    }

    /// One past the last section.
    pub(crate) fn sections_max(&self) -> usize {
        self.frames_end().div_ceil(SECTION_FRAMES.into()) as usize
    }

    /// Sections with memory.
    pub(crate) fn sections(&self) -> impl Iterator<Item = usize> {
        let ranges = self.zones.iter().flat_map(|zone| zone.ranges).filter(|one| one.frames > 0);
        (0..self.sections_max())
            .filter(move |number| ranges.clone().any(|range| range.sections().contains(number)))
    }

    pub(crate) fn node_of(&self, cpu: u32) -> NodeId {
        self.cpu_nodes.get(cpu as usize).copied().unwrap_or(NodeId::new(0))
    }

    /// The nodes from which zones are looked for: that of each zone, then those that have CPUs
    /// only.
    pub(crate) fn zonelist_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.zones.iter().map(|zone| zone.node).chain(self.memoryless())
    }

    /// Nodes that have CPUs but no zone, each once.
    fn memoryless(&self) -> impl Iterator<Item = NodeId> {
        let told = self.told_nodes();
        let others = (told.len() < self.cpus as usize).then_some(NodeId::new(0));
        let all = told.iter().copied().chain(others).enumerate();
        all.filter(move |(i, node)| {
            !told[..(*i).min(told.len())].contains(node)
                && self.zones.iter().all(|zone| zone.node != *node)
        })
        .map(|(_, node)| node)
        .take(MEMORYLESS_MAX)
    }

    fn told_nodes(&self) -> &'c [NodeId] {
        self.cpu_nodes.get(..self.cpus as usize).unwrap_or(self.cpu_nodes)
    }

    /// Number of CPUs on `node`.
    pub(crate) fn cpus_on(&self, node: NodeId) -> u64 {
        let told = self.told_nodes();
        let others =
            if node == NodeId::new(0) { u64::from(self.cpus) - told.len() as u64 } else { 0 };
        told.iter().filter(|&&of| of == node).count() as u64 + others
    }

    pub(crate) fn managed(&self, zone: usize) -> u64 {
        self.zones[zone].ranges.iter().map(|range| u64::from(range.frames)).sum()
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.cpus == 0 {
            return Err(ConfigError::NoCpus);
        }
        if self.zones.is_empty() || self.zones.len() > Tag::ZONES_MAX {
            return Err(ConfigError::ZoneCount { zones: self.zones.len() });
        }
        for (i, zone) in self.zones.iter().enumerate() {
            if zone.level > 14 {
                return Err(ConfigError::Level { zone: i, level: zone.level });
            }
            for range in zone.ranges {
                if range.end() >= 1 << 32 {
                    return Err(ConfigError::RangeTooHigh { zone: i, range: *range });
                }
            }
            if zone.watermarks.is_some_and(|marks| !marks.ascend()) {
                return Err(ConfigError::Watermarks { zone: i });
            }
        }
        self.check_overlaps()
    }

    fn check_overlaps(&self) -> Result<(), ConfigError> {
        let ranges = || {
            self.zones
                .iter()
                .enumerate()
                .flat_map(|(zone, config)| config.ranges.iter().map(move |range| (zone, *range)))
                .filter(|(_, range)| range.frames > 0)
                .enumerate()
        };
        for (i, (zone, a)) in ranges() {
            for (_, (other, b)) in ranges().take(i) {
                // Ranges of two zones must not even share a pageblock: its tag names one zone.
                let grain = if zone == other { 1 } else { u64::from(PAGEBLOCK_FRAMES) };
                let apart = a.end().div_ceil(grain) <= u64::from(b.start.get()) / grain
                    || b.end().div_ceil(grain) <= u64::from(a.start.get()) / grain;
                if !apart {
                    return Err(ConfigError::Overlap { zone, other, at: a.start.max(b.start) });
                }
            }
        }
        Ok(())
    }
}

/// The reason why an allocator could not be made, or memory not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// `cpus` is 0.
    NoCpus,
    /// No zones, or more than 31.
    ZoneCount {
        /// Number of zones that were given.
        zones: usize,
    },
    /// A level above 14.
    Level {
        /// The zone, by its place.
        zone: usize,
        /// Level of the zone.
        level: u8,
    },
    /// A range that ends at frame 2^32 or beyond.
    RangeTooHigh {
        /// The zone, by its place.
        zone: usize,
        /// The range.
        range: FrameRange,
    },
    /// Two ranges overlap, or two zones share an aligned run of 512 frames.
    Overlap {
        /// One zone, by its place.
        zone: usize,
        /// The other.
        other: usize,
        /// The first frame both claim.
        at: Pfn,
    },
    /// Watermarks that do not ascend.
    Watermarks {
        /// The zone, by its place.
        zone: usize,
    },
    /// The memory for the metadata is too small.
    TooLittleMetadata {
        /// Bytes needed, as `metadata_bytes` says.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// The metadata would not fit the address space, or more than 2^21 magazines would be needed.
    TooLarge,
    /// No zone has this number.
    NoSuchZone {
        /// The number.
        zone: u32,
    },
    /// The range has no frames, or some above the section of `pfn_limit`.
    NotAddable {
        /// The range.
        range: FrameRange,
    },
    /// An aligned run of 512 frames that the range touches was given before.
    HasMemory {
        /// The first frame of the run.
        first: Pfn,
    },
    /// Memory there was removed from another zone. A search for frames of that zone may have begun
    /// before and find them still, so they can only come back to it.
    WasRemoved {
        /// The first frame of the aligned run of 512 frames.
        first: Pfn,
        /// The zone that it was removed from.
        zone: u32,
    },
    /// Memory for magazines that does not lie in the 512 MiB from the start of the metadata on.
    OutOfReach,
    /// This process is a fork of the one that made the allocator.
    Forked,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ConfigError::NoCpus => write!(f, "no CPUs: set `cpus` to the number of possible CPUs"),
            ConfigError::ZoneCount { zones } => {
                write!(f, "{zones} zones: give at least 1 and at most {}", Tag::ZONES_MAX)
            }
            ConfigError::Level { zone, level } => {
                write!(f, "zone {zone} has level {level}: levels go from 0 to 14")
            }
            ConfigError::RangeTooHigh { zone, range } => write!(
                f,
                "zone {zone}: {} frames from {} do not end below frame 2^32: use a larger page \
                 size",
                range.frames, range.start
            ),
            ConfigError::Overlap { zone, other, at } => write!(
                f,
                "zones {zone} and {other} overlap at frame {at} (two zones may not share an \
                 aligned run of 512 frames): separate their ranges"
            ),
            ConfigError::Watermarks { zone } => {
                write!(f, "zone {zone}: watermarks must ascend, min <= low <= high")
            }
            ConfigError::TooLittleMetadata { needed, given } => write!(
                f,
                "{given} bytes of metadata given, {needed} needed: ask Allocator::metadata_bytes"
            ),
            ConfigError::TooLarge => write!(
                f,
                "the metadata would not fit (at most 2^32 frames and {} magazines): lower `cpus` \
                 or `high`",
                1u32 << MagazineIndex::BITS
            ),
            ConfigError::NoSuchZone { zone } => write!(
                f,
                "there is no zone {zone}: zones are numbered from 0, as they stand in Config::zones"
            ),
            ConfigError::NotAddable { range } => write!(
                f,
                "cannot add {} frames from {}: give at least one frame, and none above the \
                 {SECTION_FRAMES} frames around Config::pfn_limit",
                range.frames, range.start
            ),
            ConfigError::HasMemory { first } => write!(
                f,
                "the 512 frames from {first} have memory already: leave them out, or add them once \
                 by add_memory_held and free them in parts"
            ),
            ConfigError::OutOfReach => write!(
                f,
                "magazines have to lie within 512 MiB behind the start of the metadata: give \
                 memory there"
            ),
            ConfigError::WasRemoved { first, zone } => write!(
                f,
                "the 512 frames from {first} were removed from zone {zone}: add them to that zone"
            ),
            ConfigError::Forked => AllocError::Forked.fmt(f),
        }
    }
}

impl core::error::Error for ConfigError {}
