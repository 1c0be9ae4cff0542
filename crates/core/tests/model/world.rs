//! The worlds of runs: memory, CPUs, options.

use pagedepot::{
    Class, Classes, Config, FrameRange, FreeHigh, HighPolicy, Mobility, NodeId, PageSize, Pfn,
    Watermarks, ZoneConfig,
};
use proptest::prelude::*;

use crate::common::range;

/// Frames of a section.
pub const SECTION: u32 = 1 << 18;
/// Memory is added later around the start of this section, in two that have none at first.
pub const FIRST_SPARE_SECTION: u32 = 5;
/// One past the last section.
pub const SECTIONS: u32 = 7;

/// A zone, with its ranges by value.
#[derive(Clone, Debug)]
pub struct ZonePlan {
    pub name: &'static str,
    pub node: u32,
    pub level: u8,
    pub ranges: Vec<FrameRange>,
}

/// The share of its memory that a zone holds back.
#[derive(Clone, Copy, Debug)]
pub enum Reserve {
    Nothing,
    /// The kernel's watermarks.
    Kernel,
    Pages(u64),
}

/// The keeper of free frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The allocator's bitmap keeps them.
    Bitmap,
    /// A backing without ranges keeps them.
    Blocks,
    /// A backing with ranges keeps them.
    Ranges,
}

#[derive(Clone, Debug)]
pub struct World {
    pub zones: Vec<ZonePlan>,
    pub cpu_nodes: Vec<NodeId>,
    pub page_size: PageSize,
    pub high: HighPolicy,
    pub free_high: FreeHigh,
    pub classes: Classes,
    pub checked: bool,
    pub caches: bool,
    pub reserve: Reserve,
    pub keeper: Keeper,
    /// Frames exist and can be zeroed; magazines can be carved from them.
    pub is_mapped: bool,
    /// Bytes between a boundary of 256 and the memory for the metadata.
    pub skew: usize,
}

impl World {
    pub fn cpus(&self) -> u32 {
        self.cpu_nodes.len() as u32
    }

    /// Calls `with` with the configuration of this world.
    pub fn with_config<R>(&self, with: impl FnOnce(&Config<'_>) -> R) -> R {
        let zones: Vec<ZoneConfig<'_>> = self
            .zones
            .iter()
            .map(|zone| ZoneConfig {
                name: zone.name,
                node: NodeId::new(zone.node),
                level: zone.level,
                ranges: &zone.ranges,
                watermarks: match self.reserve {
                    Reserve::Nothing => Some(Watermarks::default()),
                    Reserve::Kernel => None,
                    Reserve::Pages(min) => {
                        Some(Watermarks { min, low: min + min / 4, high: min * 2 })
                    }
                },
            })
            .collect();
        let config = Config {
            page_size: self.page_size,
            cpu_nodes: &self.cpu_nodes,
            pfn_limit: (!self.is_mapped).then(|| Pfn::new(SECTIONS * SECTION)),
            caches: self.caches,
            high: self.high,
            free_high: self.free_high,
            classes: self.classes,
            checked: self.checked,
            ..Config::new(self.cpus(), &zones)
        };
        with(&config)
    }
}

fn zone(name: &'static str, node: u32, level: u8, ranges: &[FrameRange]) -> ZonePlan {
    ZonePlan { name, node, level, ranges: ranges.to_vec() }
}

/// A zone in one piece, on a node that CPUs may not be on.
fn plain(node: u32) -> Vec<ZonePlan> {
    vec![zone("Normal", node, 2, &[range(512, 8192)])]
}

/// A zone with holes. None of its edges lies where a pageblock, or even a word, begins.
fn holes() -> Vec<ZonePlan> {
    let ranges = [
        range(3, 700),
        range(7001, 1),
        range(1000, 3),
        range(1124, 412),
        range(2048, 4096),
        range(6990, 7),
    ];
    vec![zone("Holes", 0, 2, &ranges)]
}

/// A machine of two nodes, with zones of several levels, two of them without memory.
fn nodes() -> Vec<ZonePlan> {
    vec![
        zone("DMA", 0, 0, &[range(1, 1023)]),
        zone("DMA32", 0, 1, &[range(1024, 2000), range(4096, 1024)]),
        zone("Normal", 0, 2, &[range(8192, 4096)]),
        zone("Movable", 0, 3, &[]),
        zone("Normal", 1, 2, &[range(16384, 4096)]),
        zone("Movable", 1, 3, &[range(30000, 0)]),
    ]
}

/// Zones across and beside the borders of sections.
fn sections() -> Vec<ZonePlan> {
    vec![
        zone("Across", 0, 2, &[range(SECTION - 2048, 2048 + 1536)]),
        zone("Beside", 1, 3, &[range(SECTION + 2048, 2048)]),
        zone("Beyond", 0, 1, &[range(2 * SECTION, 1024), range(3 * SECTION - 1024, 2048)]),
    ]
}

/// Plans as many zones as there can be, none with room for the largest block.
fn crowd() -> Vec<ZonePlan> {
    (0..31)
        .map(|i| zone("Small", i % 4, (i % 15) as u8, &[range(1024 * i + 512 * (i % 2), 512)]))
        .collect()
}

fn high() -> impl Strategy<Value = HighPolicy> {
    prop_oneof![
        3 => Just(HighPolicy::Auto),
        2 => (0u64..3000).prop_map(HighPolicy::Fixed),
        1 => (0u32..64).prop_map(HighPolicy::Fraction),
    ]
}

fn free_high() -> impl Strategy<Value = FreeHigh> {
    prop_oneof![Just(FreeHigh::OFF), (0..5u32).prop_map(FreeHigh::batches)]
}

/// Policies that keep up to two classes apart.
fn classes() -> impl Strategy<Value = Classes> {
    let apart = (prop::sample::select(Mobility::ALL.as_slice()), 0u8..12);
    let add = |policy: Classes, (mobility, tenant)| policy.apart(mobility, Class::tenant(tenant));
    prop_oneof![
        1 => Just(Classes::ALIKE),
        2 => prop::collection::vec(apart, 0..2).prop_map(move |apart| {
            let policy = Classes::ALIKE.apart(Mobility::Movable, Class::PAGE_CACHE);
            apart.into_iter().fold(policy, add)
        }),
    ]
}

fn reserve() -> impl Strategy<Value = Reserve> {
    prop_oneof![
        3 => Just(Reserve::Nothing),
        2 => Just(Reserve::Kernel),
        1 => (0u64..600).prop_map(Reserve::Pages),
    ]
}

prop_compose! {
    /// Any world.
    pub fn world()(
        zones in prop_oneof![
            2 => Just(plain(0)), 1 => Just(plain(1)), 3 => Just(holes()), 4 => Just(nodes()),
            2 => Just(sections()), 1 => Just(crowd()),
        ],
        nodes in prop::collection::vec(0u32..3, 1..=4),
        page_size in
            prop_oneof![Just(PageSize::Kib4), Just(PageSize::Kib16), Just(PageSize::Kib64)],
        high in high(),
        free_high in free_high(),
        classes in classes(),
        reserve in reserve(),
        checked in any::<bool>(),
        caches in prop::bool::weighted(0.9),
        keeper in prop_oneof![
            3 => Just(Keeper::Bitmap), 1 => Just(Keeper::Blocks), 1 => Just(Keeper::Ranges),
        ],
        is_mapped in prop::bool::weighted(0.3),
        skew in prop_oneof![Just(0usize), Just(128), 0usize..256],
    ) -> World {
        // Frame numbers of several sections would need gigabytes of address space.
        let fits = zones.iter().flat_map(|zone| &zone.ranges).all(|range| range.end() < 1 << 16);
        let is_mapped = is_mapped && fits;
        World {
            cpu_nodes: nodes.into_iter().map(NodeId::new).collect(),
            page_size: if is_mapped { PageSize::Kib4 } else { page_size },
            zones, high, free_high, classes, checked, caches, reserve, keeper, is_mapped, skew,
        }
    }
}
