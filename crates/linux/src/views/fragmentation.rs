//! The places of free memory: a map of pageblocks, and how much of it is too scattered for each
//! order.

use std::fmt;

use pagedepot::{Order, ZoneId};
use pagedepot_contiguity::{PageblockInfo, Pageblocks};

use crate::depot::handle::Depot;

use super::free_blocks::FreeBlocks;

/// Cells of a line of the map.
const LINE_CELLS: usize = 64;
/// Cells of a zone's map at most: sixteen lines.
const CELLS_MAX: u64 = 16 * LINE_CELLS as u64;

/// A map of each zone. Its `Display` has a character for each cell.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FragmentationInfo {
    /// Zones of the depot: one, or one per NUMA node.
    pub zones: Vec<FragmentationMap>,
}

/// A zone's map.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FragmentationMap {
    /// The NUMA node of its memory.
    pub node: u32,
    /// Name of the zone, as configured.
    pub name: String,
    /// Pageblocks of 512 pages that a cell stands for: 1 up to 2 GiB of 4 KiB pages.
    pub cell_pageblocks: u64,
    /// Cells by address.
    pub cells: Vec<MapCell>,
    /// All pageblocks of the zone.
    pub pageblocks: u64,
    /// Number of these that are wholly free.
    pub whole: u64,
    /// Number of these that evacuate.
    pub evacuating: u64,
    /// Number of these with unmovable pages though they are of another mobility.
    pub tainted: u64,
    /// Share of free pages, from 0 to 1, that lies in smaller blocks and so cannot serve an order,
    /// by order (the kernel's `unusable_index`).
    pub unusable: Vec<f64>,
}

/// Neighbouring pageblocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MapCell {
    /// Pages of these pageblocks.
    pub pages: u64,
    /// Number of these that are free in the store.
    pub free_pages: u64,
    /// Whether some of them evacuate.
    pub is_evacuating: bool,
}

impl MapCell {
    /// Symbol of the cell in the map.
    fn symbol(self) -> char {
        let held = self.pages - self.free_pages.min(self.pages);
        match held.saturating_mul(4) {
            _ if self.pages == 0 => ' ',
            0 => '.',
            _ if self.free_pages == 0 => '#',
            _ if self.is_evacuating => 'e',
            quarters => [':', '-', '+', '*'][(quarters / self.pages).min(3) as usize],
        }
    }
}

impl FragmentationInfo {
    /// A depot's memory as it is now. Over a store of the program's own all pages look held.
    pub fn of(depot: &Depot) -> Self {
        let zones = depot.zone_ids().filter_map(|zone| FragmentationMap::of(depot, zone));
        FragmentationInfo { zones: zones.collect() }
    }
}

impl FragmentationMap {
    fn of(depot: &Depot, zone: ZoneId) -> Option<Self> {
        let (stats, free) = (depot.zone_stats(zone)?, FreeBlocks::of(depot, zone)?);
        let pageblocks: Vec<_> = Pageblocks::of(depot.raw().frames(), zone)?.collect();
        let cell_pageblocks = (pageblocks.len() as u64).div_ceil(CELLS_MAX).max(1);
        let cell = |blocks: &[PageblockInfo]| MapCell {
            pages: blocks.len() as u64 * u64::from(Order::PAGEBLOCK.frames()),
            free_pages: blocks.iter().map(|block| u64::from(block.free_frames.unwrap_or(0))).sum(),
            is_evacuating: blocks.iter().any(|block| block.is_evacuating),
        };
        let count = |is: fn(&PageblockInfo) -> bool| {
            pageblocks.iter().filter(|block| is(block)).count() as u64
        };
        let by_order: Vec<u64> = (0..Order::COUNT)
            .map(|order| free.blocks.iter().map(|orders| orders[order]).sum())
            .collect();
        Some(FragmentationMap {
            node: stats.node.get(),
            name: stats.name.as_str().to_owned(),
            cell_pageblocks,
            cells: pageblocks.chunks(cell_pageblocks as usize).map(cell).collect(),
            pageblocks: pageblocks.len() as u64,
            whole: count(PageblockInfo::is_whole),
            evacuating: count(|block| block.is_evacuating),
            tainted: count(|block| block.is_tainted),
            unusable: unusable(&by_order),
        })
    }
}

/// The share of free pages in blocks smaller than each order; all of them where none is free, as in
/// the kernel.
fn unusable(blocks: &[u64]) -> Vec<f64> {
    let pages = |order: usize| blocks[order] << order;
    let all: u64 = (0..blocks.len()).map(pages).sum();
    let mut smaller = 0;
    let share = |order| {
        let share = if all == 0 { 1.0 } else { smaller as f64 / all as f64 };
        smaller += pages(order);
        share
    };
    (0..blocks.len()).map(share).collect()
}

impl fmt::Display for FragmentationInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in &self.zones {
            writeln!(
                f,
                "Node {}, zone {}: {} pageblocks, {} whole, {} evacuating, {} tainted\n\
                 Pageblocks a cell: {}",
                zone.node,
                zone.name,
                zone.pageblocks,
                zone.whole,
                zone.evacuating,
                zone.tainted,
                zone.cell_pageblocks
            )?;
            for (line, cells) in zone.cells.chunks(LINE_CELLS).enumerate() {
                let first = (line * LINE_CELLS) as u64;
                let first = first.saturating_mul(zone.cell_pageblocks);
                let cells: String = cells.iter().map(|cell| cell.symbol()).collect();
                writeln!(f, "{first:>8}  {cells}")?;
            }
            write!(f, "unusable")?;
            zone.unusable.iter().try_for_each(|share| write!(f, " {share:.2}"))?;
            writeln!(f, "  by order")?;
        }
        writeln!(f, ". whole  : - + * held up to 1/4, 1/2, 3/4, more  # all held  e evacuating")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_smaller_blocks_is_unusable() {
        // 2 + 2 + 4 pages.
        assert_eq!(unusable(&[2, 1, 1]), [0.0, 0.25, 0.5]);
        assert_eq!(unusable(&[0, 0, 0]), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn symbols_tell_how_much_is_held() {
        let cell = |free_pages| MapCell { pages: 512, free_pages, is_evacuating: false };
        let map: String =
            [512, 511, 385, 300, 200, 100, 1, 0].map(|free| cell(free).symbol()).iter().collect();
        assert_eq!(map, ".::-+**#");
        assert_eq!(MapCell { is_evacuating: true, ..cell(300) }.symbol(), 'e');
        assert_eq!(MapCell { is_evacuating: true, ..cell(512) }.symbol(), '.');
    }
}
