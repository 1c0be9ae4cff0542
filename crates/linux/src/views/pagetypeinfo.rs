//! Free blocks and pageblocks by mobility, as `/proc/pagetypeinfo`.

use std::fmt;

use pagedepot::Order;

use crate::depot::handle::Depot;

use super::free_blocks::{FreeBlocks, TYPES};

/// Free blocks by migratetype and order, and pageblocks by migratetype. Its `Display` is what
/// `/proc/pagetypeinfo` would print, which is wider than 80 columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PageTypeInfo {
    /// The names of the migratetypes. `Isolate`: a caller adds, removes or empties the pageblock.
    pub types: Vec<String>,
    /// Zones of the depot: one, or one per NUMA node.
    pub zones: Vec<ZoneTypes>,
}

/// A zone's blocks by migratetype.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ZoneTypes {
    /// The NUMA node of its memory.
    pub node: u32,
    /// Name of the zone, as configured.
    pub name: String,
    /// Free blocks, by type and then by order.
    pub blocks: Vec<Vec<u64>>,
    /// Pageblocks, by type.
    pub pageblocks: Vec<u64>,
}

impl PageTypeInfo {
    /// A depot's blocks as they are now.
    pub fn of(depot: &Depot) -> Self {
        let zones = depot.zone_ids().filter_map(|zone| {
            let (stats, free) = (depot.zone_stats(zone)?, FreeBlocks::of(depot, zone)?);
            Some(ZoneTypes {
                node: stats.node.get(),
                name: stats.name.as_str().to_owned(),
                blocks: free.blocks.iter().map(|orders| orders.to_vec()).collect(),
                pageblocks: free.pageblocks.to_vec(),
            })
        });
        PageTypeInfo { types: TYPES.map(str::to_owned).to_vec(), zones: zones.collect() }
    }
}

/// Prints like `pagetypeinfo_show` in the kernel's `mm/vmstat.c`.
impl fmt::Display for PageTypeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Page block order: {}", Order::PAGEBLOCK.get())?;
        writeln!(f, "Pages per block:  {}\n", Order::PAGEBLOCK.frames())?;
        write!(f, "{:<43} ", "Free pages count per migrate type at order")?;
        (0..Order::COUNT).try_for_each(|order| write!(f, "{order:>6} "))?;
        writeln!(f)?;
        for zone in &self.zones {
            for (name, blocks) in self.types.iter().zip(&zone.blocks) {
                write!(f, "Node {:>4}, zone {:>8}, type {name:>12} ", zone.node, zone.name)?;
                blocks.iter().try_for_each(|blocks| write!(f, "{blocks:>6} "))?;
                writeln!(f)?;
            }
        }
        write!(f, "\n{:<23}", "Number of blocks type ")?;
        self.types.iter().try_for_each(|name| write!(f, "{name:>12} "))?;
        writeln!(f)?;
        for zone in &self.zones {
            write!(f, "Node {}, zone {:>8} ", zone.node, zone.name)?;
            zone.pageblocks.iter().try_for_each(|blocks| write!(f, "{blocks:>12} "))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
