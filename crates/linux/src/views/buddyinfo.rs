//! Free blocks by order, as `/proc/buddyinfo`.

use std::fmt;

use crate::depot::handle::Depot;

use super::free_blocks::FreeBlocks;

/// Free blocks of each zone by order. What CPUs cache is in none of them. Its `Display` is what
/// `/proc/buddyinfo` would print.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BuddyInfo {
    /// Zones of the depot: one, or one per NUMA node.
    pub zones: Vec<ZoneBlocks>,
}

/// Free blocks of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ZoneBlocks {
    /// The NUMA node of its memory.
    pub node: u32,
    /// Name of the zone, as configured.
    pub name: String,
    /// Number of blocks by order: the largest aligned blocks that the free frames make up.
    pub blocks: Vec<u64>,
}

impl BuddyInfo {
    /// A depot's free blocks as they are now.
    pub fn of(depot: &Depot) -> Self {
        let zones = depot.zone_ids().filter_map(|zone| {
            let (stats, free) = (depot.zone_stats(zone)?, FreeBlocks::of(depot, zone)?);
            let sum = |order: usize| free.blocks.iter().map(|orders| orders[order]).sum();
            Some(ZoneBlocks {
                node: stats.node.get(),
                name: stats.name.as_str().to_owned(),
                blocks: (0..free.blocks[0].len()).map(sum).collect(),
            })
        });
        BuddyInfo { zones: zones.collect() }
    }
}

/// Prints like `frag_show_print` in the kernel's `mm/vmstat.c`.
impl fmt::Display for BuddyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in &self.zones {
            write!(f, "Node {}, zone {:>8} ", zone.node, zone.name)?;
            zone.blocks.iter().try_for_each(|blocks| write!(f, "{blocks:>6} "))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
