//! Zones: their frames, watermarks, limits and flags. Zone and mobility of each frame.

use pagedepot::{CacheLimits, CpuId, Mobility, NodeId, Order, Pfn, Watermarks, ZoneId};

use crate::frames::Frames;
use crate::prim::{HintBool, HintU8, HintU64, Ordering, Padded};
use crate::setup::{Setup, SetupError};

/// The watermark that a request leaves untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    Low,
    Min,
}

/// A zone's metadata, except its free pages, which the store knows.
pub struct Zone {
    /// The zone's name in reports.
    pub name: String,
    /// The zone's NUMA node.
    pub node: NodeId,
    /// Frames given to the zone.
    pub managed_pages: u64,
    /// The zone's ranges of frames.
    pub ranges: Vec<pagedepot::FrameRange>,
    marks: Watermarks,
    protection: u64,
    limits: [HintU64; 3],
    /// The kernel's `ZONE_BELOW_HIGH`: set when a request finds the zone below its high
    /// watermark, cleared when a free finds it above.
    below_high: HintBool,
    /// The kernel's `ZONE_RECLAIM_ACTIVE`: set while reclaim runs. A request that finds no zone
    /// above its low watermark sets it (and wakes kswapd in the kernel). A spill that finds this
    /// zone above the high watermark clears it (where kswapd stops).
    reclaim_active: HintBool,
}

impl Zone {
    /// The watermarks.
    pub fn watermarks(&self) -> Watermarks {
        self.marks
    }

    /// The limits in force.
    #[inline]
    pub fn limits(&self) -> CacheLimits {
        let [batch, high_min, high_max] = [0, 1, 2].map(|i| self.limits[i].load(Ordering::Relaxed));
        CacheLimits { batch, high_min, high_max }
    }

    /// Changes the limits; each CPU's `high` follows at its next refill or free.
    ///
    /// # Errors
    /// Fails like a setup with these limits.
    pub fn set_limits(&self, limits: CacheLimits) -> Result<(), SetupError> {
        if limits.batch == 0 || limits.high_min > limits.high_max || limits.high_max > 1 << 30 {
            return Err(SetupError::Option(
                "batch must be at least 1, and high_min at most high_max, at most 2^30 pages",
            ));
        }
        for (cell, value) in
            self.limits.iter().zip([limits.batch, limits.high_min, limits.high_max])
        {
            cell.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sets whether reclaim is under way. While it is, CPUs cache at most four batches.
    pub fn set_reclaim_active(&self, active: bool) {
        self.reclaim_active.store(active, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_reclaim_active(&self) -> bool {
        self.reclaim_active.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn is_below_high(&self) -> bool {
        self.below_high.load(Ordering::Relaxed)
    }

    /// Whether a block of `order` may leave a zone that has `free` pages.
    pub fn may_take(&self, free: u64, order: Order, mark: Mark) -> bool {
        let left = free as i64 - i64::from(order.frames()) + 1;
        let above = |mark: u64| left > (mark + self.protection) as i64;
        if !above(self.marks.high) {
            self.below_high.store(true, Ordering::Relaxed);
        }
        match mark {
            Mark::Low => above(self.marks.low),
            // Without any watermark the last page may go.
            Mark::Min => above(self.marks.min) || self.marks.min + self.protection == 0,
        }
    }

    /// Reclaim begins, if the zone needs it.
    #[cold]
    pub fn wake_reclaim(&self, free: u64) {
        if self.managed_pages > 0 && free <= self.marks.high {
            self.set_reclaim_active(true);
        }
    }

    /// Clears the flags for a shortage and for reclaim if a spill ended them.
    pub fn note_freed(&self, free: u64) {
        if self.is_below_high() && free > self.marks.high {
            self.below_high.store(false, Ordering::Relaxed);
            self.set_reclaim_active(false);
        }
    }
}

/// All zones, the side array, and a tag per 512 frames (the kernel's pageblock).
pub struct Zones {
    zones: Vec<Padded<Zone>>,
    /// 0: no memory; else 1 + zone * 4 + mobility.
    tags: Box<[HintU8]>,
    first_block: u32,
    frames: Frames,
    /// Zones that have memory, the one to try first at the front.
    preference: Vec<ZoneId>,
    nodes: Vec<NodeId>,
    cpus: u32,
}

impl Zones {
    /// The metadata for a setup.
    ///
    /// # Errors
    /// What is wrong with the setup.
    pub fn new(setup: &Setup) -> Result<Self, SetupError> {
        setup.check()?;
        let (start, end) = setup.span();
        let block = Order::PAGEBLOCK.frames();
        let tags = std::iter::repeat_with(|| HintU8::new(0))
            .take((end - start).div_ceil(block) as usize)
            .collect();
        let ids = || (0..setup.zones.len() as u32).map(ZoneId::new);
        let zones = Zones {
            zones: setup.zones.iter().map(|zone| Padded(Self::zone_of(setup, zone))).collect(),
            tags,
            first_block: start / block,
            frames: Frames::new(start, end).ok_or(SetupError::Memory { frames: end - start })?,
            preference: ids().rev().filter(|id| setup.zones[id.index()].managed() > 0).collect(),
            nodes: (0..setup.cpus).map(|cpu| setup.node_of(cpu)).collect(),
            cpus: setup.cpus,
        };
        for id in ids() {
            for range in setup.zones[id.index()].ranges.iter().filter(|range| range.frames > 0) {
                for number in u64::from(range.start.get()) / u64::from(block)
                    ..range.end().div_ceil(u64::from(block))
                {
                    zones.tag_block(number as u32, id, Mobility::Movable);
                }
            }
        }
        Ok(zones)
    }

    fn zone_of(setup: &Setup, zone: &crate::ZoneSetup) -> Zone {
        let limits = setup.limits(zone);
        Zone {
            name: zone.name.clone(),
            node: zone.node,
            managed_pages: zone.managed(),
            ranges: zone.ranges.clone(),
            marks: setup.watermarks(zone),
            protection: zone.protection,
            limits: [limits.batch, limits.high_min, limits.high_max].map(HintU64::new),
            below_high: HintBool::new(false),
            reclaim_active: HintBool::new(false),
        }
    }

    /// CPUs that have caches.
    #[inline]
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// All CPUs that have caches.
    pub fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus).map(CpuId::new)
    }

    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.nodes.get(cpu.index()).copied().unwrap_or(NodeId::new(0))
    }

    /// Number of zones, empty ones included.
    #[inline]
    pub fn count(&self) -> usize {
        self.zones.len()
    }

    /// All zones, empty ones included.
    pub fn ids(&self) -> impl Iterator<Item = ZoneId> + use<> {
        (0..self.zones.len() as u32).map(ZoneId::new)
    }

    /// A zone.
    ///
    /// # Panics
    /// When there is no such zone.
    #[inline]
    pub fn zone(&self, id: ZoneId) -> &Zone {
        &self.zones[id.index()]
    }

    /// Zones with memory, the one to try first at the front.
    pub fn preference(&self) -> &[ZoneId] {
        &self.preference
    }

    /// The first zone to try; `None` on a machine without memory.
    #[inline]
    pub fn preferred(&self) -> Option<ZoneId> {
        self.preference.first().copied()
    }

    #[inline]
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    #[inline]
    fn tag(&self, pfn: Pfn) -> Option<&HintU8> {
        self.tags
            .get((pfn.get() / Order::PAGEBLOCK.frames()).wrapping_sub(self.first_block) as usize)
    }

    /// The zone of a frame and the mobility of its pageblock; `None`: no memory there.
    #[inline]
    pub fn lookup(&self, pfn: Pfn) -> Option<(ZoneId, Mobility)> {
        let tag = self.tag(pfn)?.load(Ordering::Relaxed).checked_sub(1)?;
        Some((ZoneId::new(u32::from(tag >> 2)), Mobility::from_index(usize::from(tag & 3))?))
    }

    /// The zone and pageblock of a block that is being freed.
    ///
    /// # Panics
    /// When no zone has the frame, or the block is not aligned: the caller freed what was never
    /// allocated.
    #[inline]
    pub fn place(&self, pfn: Pfn, order: Order) -> (ZoneId, Mobility) {
        let Some(place) = self.lookup(pfn) else { not_ours(pfn) };
        assert!(pfn.is_aligned(order), "{pfn} is not the start of a block of order {order}");
        place
    }

    /// Gives a pageblock another mobility.
    pub fn set_mobility(&self, pfn: Pfn, zone: ZoneId, mobility: Mobility) {
        self.tag_block(pfn.get() / Order::PAGEBLOCK.frames(), zone, mobility);
    }

    fn tag_block(&self, number: u32, zone: ZoneId, mobility: Mobility) {
        let tag = 1 + (zone.get() as u8) * 4 + mobility as u8;
        self.tags[(number - self.first_block) as usize].store(tag, Ordering::Relaxed);
    }
}

#[cold]
fn not_ours(pfn: Pfn) -> ! {
    panic!("no memory at {pfn}: does the frame belong to another allocator?")
}
