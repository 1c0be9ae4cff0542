//! The parameters of a design, and the errors in them.

use std::fmt;

use pagedepot::{CacheLimits, FrameRange, HighPolicy, NodeId, Order, PageSize, Pfn, Watermarks};

/// Most zones: a tag byte names one of them, and pending work is a word of bits.
pub const ZONES_MAX: usize = 31;

/// A machine: CPUs and zones. Zones are listed as the kernel lists them, the narrowest (DMA) first;
/// requests try the last one first.
#[derive(Clone, Debug)]
pub struct Setup {
    /// CPUs that have caches: numbers `0..cpus`. Others use the store.
    pub cpus: u32,
    /// The node of each CPU; CPUs beyond the list are on node 0. It decides only whose pages a
    /// `tick` gives back; these designs do not choose zones by distance.
    pub cpu_nodes: Vec<NodeId>,
    /// The base page size; only the formulas for `batch`, `high` and watermarks use it.
    pub page_size: PageSize,
    /// The zones.
    pub zones: Vec<ZoneSetup>,
    /// The policy from which `high_min` and `high_max` are computed for zones without limits of
    /// their own.
    pub high: HighPolicy,
}

/// A zone.
#[derive(Clone, Debug)]
pub struct ZoneSetup {
    /// The zone's name in reports.
    pub name: String,
    /// The zone's NUMA node.
    pub node: NodeId,
    /// The zone's free frames; may be empty. Zones may not share an aligned run of 512 frames.
    pub ranges: Vec<FrameRange>,
    /// `None`: the kernel's formula.
    pub watermarks: Option<Watermarks>,
    /// `batch`, `high_min` and `high_max`. `None`: the kernel's formulas.
    pub limits: Option<CacheLimits>,
    /// Pages that requests leave to those that can use no other zone (the kernel's
    /// `lowmem_reserve`, "protection" in zoneinfo); added to each watermark.
    pub protection: u64,
}

impl ZoneSetup {
    /// A zone of these frames. The kernel's formulas give everything else.
    pub fn new(name: &str, ranges: Vec<FrameRange>) -> Self {
        ZoneSetup {
            name: name.to_owned(),
            node: NodeId::new(0),
            ranges,
            watermarks: None,
            limits: None,
            protection: 0,
        }
    }

    /// Sets `min` to 0, so that every page of the zone can be allocated.
    #[must_use]
    pub fn without_reserve(mut self) -> Self {
        self.watermarks = Some(Watermarks::without_reserve(self.managed(), PageSize::default()));
        self
    }

    /// Sets the zone's cache limits.
    #[must_use]
    pub fn with_limits(mut self, limits: CacheLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// The number of the zone's frames.
    pub fn managed(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.frames)).sum()
    }

    fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let block = u64::from(Order::PAGEBLOCK.frames());
        self.ranges
            .iter()
            .filter(|range| range.frames > 0)
            .map(move |range| (u64::from(range.start.get()) / block, range.end().div_ceil(block)))
    }
}

impl Setup {
    /// A machine of one zone: `frames` frames from frame 0, all of which can be allocated.
    pub fn single(cpus: u32, frames: u32) -> Self {
        let zone = ZoneSetup::new("Normal", vec![FrameRange::new(Pfn::new(0), frames)]);
        Setup::new(cpus, vec![zone.without_reserve()])
    }

    /// A machine of these zones, with its CPUs on node 0.
    pub fn new(cpus: u32, zones: Vec<ZoneSetup>) -> Self {
        Setup {
            cpus,
            cpu_nodes: Vec::new(),
            page_size: PageSize::default(),
            zones,
            high: HighPolicy::Auto,
        }
    }

    pub fn watermarks(&self, zone: &ZoneSetup) -> Watermarks {
        zone.watermarks.unwrap_or_else(|| Watermarks::kernel(zone.managed(), self.page_size))
    }

    pub fn limits(&self, zone: &ZoneSetup) -> CacheLimits {
        let low = self.watermarks(zone).low;
        zone.limits.unwrap_or_else(|| {
            CacheLimits::new(zone.managed(), low, u64::from(self.cpus), self.page_size, self.high)
        })
    }

    pub fn node_of(&self, cpu: u32) -> NodeId {
        self.cpu_nodes.get(cpu as usize).copied().unwrap_or(NodeId::new(0))
    }

    /// First and one past the last frame of all zones; the first is the start of a block of the
    /// largest order.
    pub fn span(&self) -> (u32, u32) {
        let ranges =
            || self.zones.iter().flat_map(|zone| &zone.ranges).filter(|range| range.frames > 0);
        let grain = u64::from(Order::MAX.frames());
        let start =
            ranges().map(|range| u64::from(range.start.get())).min().unwrap_or(0) / grain * grain;
        let end = ranges().map(|range| range.end()).max().unwrap_or(0);
        (start as u32, end as u32)
    }

    /// Checks whether a design can be made from this setup.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), SetupError> {
        if self.cpus == 0 {
            return Err(SetupError::NoCpus);
        }
        if self.zones.is_empty() || self.zones.len() > ZONES_MAX {
            return Err(SetupError::ZoneCount { zones: self.zones.len() });
        }
        for (zone, setup) in self.zones.iter().enumerate() {
            // The last frame number means "none" in the lists, and the end is rounded up.
            let end = setup.ranges.iter().map(|range| range.end()).max().unwrap_or(0);
            if end > (1 << 32) - 2 * u64::from(Order::MAX.frames()) {
                return Err(SetupError::RangeTooHigh { zone });
            }
            let limits = self.limits(setup);
            if limits.batch == 0 || limits.high_min > limits.high_max || limits.high_max > 1 << 30 {
                return Err(SetupError::Limits { zone, limits });
            }
        }
        self.check_overlaps()
    }

    fn check_overlaps(&self) -> Result<(), SetupError> {
        for (zone, setup) in self.zones.iter().enumerate() {
            for (at, range) in setup.ranges.iter().enumerate() {
                let apart = |other: &FrameRange| {
                    range.end() <= u64::from(other.start.get())
                        || other.end() <= u64::from(range.start.get())
                };
                if !setup.ranges[..at]
                    .iter()
                    .all(|other| other.frames == 0 || range.frames == 0 || apart(other))
                {
                    return Err(SetupError::Overlap { zone, other: zone });
                }
            }
            for (other, before) in self.zones[..zone].iter().enumerate() {
                let meets =
                    |(start, end): (u64, u64)| before.runs().any(|(s, e)| start < e && s < end);
                if setup.runs().any(meets) {
                    return Err(SetupError::Overlap { zone, other });
                }
            }
        }
        Ok(())
    }
}

/// The reason why a design could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupError {
    /// `cpus` is 0.
    NoCpus,
    /// No zones, or too many.
    ZoneCount {
        /// Number of zones that were given.
        zones: usize,
    },
    /// A zone's range ends beyond what frame numbers reach.
    RangeTooHigh {
        /// The zone's place in the list.
        zone: usize,
    },
    /// A batch of 0, `high_min` above `high_max`, or `high_max` above 2^30 pages.
    Limits {
        /// The zone's place in the list.
        zone: usize,
        /// The limits that are out of range.
        limits: CacheLimits,
    },
    /// Ranges overlap, or two zones share an aligned run of 512 frames.
    Overlap {
        /// One zone's place in the list.
        zone: usize,
        /// The other zone's place.
        other: usize,
    },
    /// The system has no memory for the records of all frames.
    Memory {
        /// Frames from the first of the lowest zone to the last of the highest.
        frames: u32,
    },
    /// The bitmap store refused the setup.
    Bitmap(pagedepot::ConfigError),
    /// An option of the design is out of range.
    Option(&'static str),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::NoCpus => write!(f, "no CPUs: give the number of possible CPUs"),
            SetupError::ZoneCount { zones } => {
                write!(f, "{zones} zones: give at least 1 and at most {ZONES_MAX}")
            }
            SetupError::RangeTooHigh { zone } => {
                write!(f, "zone {zone} ends beyond frame 2^32: use a larger page size")
            }
            SetupError::Limits { zone, limits } => write!(
                f,
                "zone {zone}: batch {} must be at least 1, and high_min {} at most high_max {}, at \
                 most 2^30 pages",
                limits.batch, limits.high_min, limits.high_max
            ),
            SetupError::Overlap { zone, other } => write!(
                f,
                "zones {zone} and {other} overlap (two zones may not share an aligned run of {} \
                 frames): separate their ranges",
                Order::PAGEBLOCK.frames()
            ),
            SetupError::Memory { frames } => write!(
                f,
                "no memory for the records of {frames} frames, 16 bytes each: set up smaller \
                 zones, raise `ulimit -v`, or set vm.overcommit_memory to 1"
            ),
            SetupError::Bitmap(error) => write!(f, "bitmap store: {error}"),
            SetupError::Option(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for SetupError {}

impl From<pagedepot::ConfigError> for SetupError {
    fn from(error: pagedepot::ConfigError) -> Self {
        SetupError::Bitmap(error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn zone(start: u32, frames: u32) -> ZoneSetup {
        ZoneSetup::new("z", vec![FrameRange::new(Pfn::new(start), frames)])
    }

    #[test]
    fn wrong_setups_are_refused() {
        assert_eq!(Setup::new(0, vec![zone(0, 512)]).check(), Err(SetupError::NoCpus));
        assert_eq!(Setup::new(1, vec![]).check(), Err(SetupError::ZoneCount { zones: 0 }));
        let shared = Setup::new(1, vec![zone(0, 500), zone(500, 100)]);
        assert_eq!(shared.check(), Err(SetupError::Overlap { zone: 1, other: 0 }));
        let doubled = ZoneSetup::new(
            "z",
            vec![FrameRange::new(Pfn::new(0), 64), FrameRange::new(Pfn::new(32), 64)],
        );
        assert_eq!(
            Setup::new(1, vec![doubled]).check(),
            Err(SetupError::Overlap { zone: 0, other: 0 })
        );
        let limits = CacheLimits { batch: 0, high_min: 0, high_max: 0 };
        let refused = Setup::new(1, vec![zone(0, 512).with_limits(limits)]).check();
        assert_eq!(refused, Err(SetupError::Limits { zone: 0, limits }));
        assert_eq!(
            Setup::new(1, vec![zone(u32::MAX - 600, 600)]).check(),
            Err(SetupError::RangeTooHigh { zone: 0 })
        );
        assert_eq!(Setup::new(1, vec![zone(0, 512), zone(512, 0), zone(1024, 7)]).check(), Ok(()));
    }

    /// zoneinfo of a recorded machine: 772,917 managed pages, low 8632, 2 CPUs.
    #[test]
    fn limits_are_the_kernels() {
        let mut normal = zone(0, 772_917);
        normal.watermarks = Some(Watermarks { min: 6906, low: 8632, high: 10358 });
        let setup = Setup::new(2, vec![normal]);
        let limits = setup.limits(&setup.zones[0]);
        assert_eq!(limits, CacheLimits { batch: 63, high_min: 4316, high_max: 48307 });
    }
}
