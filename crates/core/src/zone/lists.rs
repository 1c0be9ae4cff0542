//! All zones, and for each node the order in which a request from there tries them.

use super::state::Zone;
use crate::frame::{NodeId, ZoneId};

/// All zones, and for each node the order in which its requests try them.
pub struct Zones<'m> {
    zones: &'m [Zone],
    /// Nodes of zones, then of CPUs without a zone on their node.
    nodes: &'m [NodeId],
    /// Zones in order of preference, seen from each node.
    lists: &'m [u8],
}

impl<'m> Zones<'m> {
    /// `lists` holds `zones.len()` entries for each of `nodes`.
    pub fn new(zones: &'m [Zone], nodes: &'m [NodeId], lists: &'m [u8]) -> Self {
        debug_assert_eq!(lists.len(), zones.len() * nodes.len());
        Zones { zones, nodes, lists }
    }

    /// The zone with this number.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn get(&self, zone: ZoneId) -> &'m Zone {
        &self.zones[zone.index()]
    }

    /// All zones, by number.
    pub fn all(&self) -> &'m [Zone] {
        self.zones
    }

    /// All zones, in order of preference seen from `node`: nearest node first, and there the zone
    /// that fewest requests need.
    pub fn from(&self, node: NodeId) -> impl Iterator<Item = ZoneId> + use<'m> {
        let place = self.nodes.iter().position(|&other| other == node).unwrap_or(0);
        let list = &self.lists[place * self.zones.len()..][..self.zones.len()];
        list.iter().map(|&zone| ZoneId::new(u32::from(zone)))
    }

    /// Bytes that all this takes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.zones) + size_of_val(self.nodes) + self.lists.len()
    }
}
