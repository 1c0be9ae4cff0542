//! The recorded machine's zones: the zone of each frame, and what CPUs cached of each zone.

use std::ops::Range;

use pagedepot_trace::Zoneinfo;

/// The zones of the recorded machine. Zones are numbered by their place in the zoneinfo.
#[derive(Clone, Debug, Default)]
pub struct ZoneMap {
    frames: Vec<Range<u64>>,
    /// Pages cached, by zone and the kernel's number of the CPU.
    cached: Vec<(u8, u16, u64)>,
    /// The zone that ordinary requests try first.
    last: u8,
}

impl ZoneMap {
    /// The zones of a machine.
    pub fn new(zoneinfo: &Zoneinfo) -> Self {
        let mut map = ZoneMap::default();
        for (zone, info) in (0..).zip(&zoneinfo.zones) {
            map.frames.push(info.frames());
            map.last = zone;
            let cached =
                info.pagesets.iter().map(|pageset| (zone, pageset.cpu as u16, pageset.count));
            map.cached.extend(cached);
        }
        map
    }

    /// The zone of a frame. Zones of several nodes may interleave; the last one that spans it then.
    pub fn zone_of(&self, pfn: u64) -> Option<u8> {
        self.frames.iter().rposition(|frames| frames.contains(&pfn)).map(|zone| zone as u8)
    }

    /// The zone of a frame; for one that is in none, the zone that ordinary requests try first.
    pub fn zone_of_or_last(&self, pfn: u64) -> u8 {
        self.zone_of(pfn).unwrap_or(self.last)
    }

    /// Pages that each CPU cached of each zone.
    pub fn cached(&self) -> impl Iterator<Item = (u8, u16, u64)> {
        self.cached.iter().copied()
    }

    /// The kernel's numbers of the CPUs, several times.
    pub fn cpus(&self) -> impl Iterator<Item = u16> {
        self.cached.iter().map(|&(_, cpu, _)| cpu)
    }
}
