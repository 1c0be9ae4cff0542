//! The model: maps of what is managed, held and owned, searched linearly. It has the rules and none
//! of the machinery.

use std::collections::BTreeMap;

use pagedepot::{ConfigError, FrameRange, NodeId, Order, Pfn};

use crate::op::Wish;
use crate::world::World;

/// Frames of a pageblock.
const HUGE: u32 = 512;

/// The shape of a held stretch of frames, which decides how it may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Block(Order),
    /// Contiguous frames: freed whole, in parts, or one by one.
    Range,
}

#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub frames: u32,
    pub shape: Shape,
}

pub struct Zone {
    pub node: NodeId,
    pub level: u8,
    pub ranges: Vec<FrameRange>,
    /// Pages handed out so far.
    pub allocated_pages: u64,
    /// Pages freed so far.
    pub freed_pages: u64,
}

impl Zone {
    pub fn managed(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.frames)).sum()
    }

    /// Pages that callers hold.
    pub fn held_pages(&self) -> u64 {
        self.allocated_pages - self.freed_pages
    }

    pub fn has(&self, start: u32, frames: u32) -> bool {
        let mut at = u64::from(start);
        let end = at + u64::from(frames);
        // Ranges may be neighbours: hop from one to the next.
        while at < end {
            match self.ranges.iter().find(|r| u64::from(r.start.get()) <= at && at < r.end()) {
                Some(range) => at = range.end(),
                None => return false,
            }
        }
        true
    }

    /// The frames of a stretch, ascending.
    pub fn frames(&self) -> impl Iterator<Item = u32> + use<> {
        let mut ranges = self.ranges.clone();
        ranges.sort_by_key(|range| range.start.get());
        ranges.into_iter().flat_map(|range| range.start.get()..range.end() as u32)
    }
}

pub struct Naive {
    pub zones: Vec<Zone>,
    pub held: BTreeMap<u32, Held>,
    /// Pageblocks whose memory was removed, and the zone it was removed from.
    removed: BTreeMap<u32, usize>,
    cpu_nodes: Vec<NodeId>,
}

/// The place at which a request runs, as the model sees it.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub cpu: u32,
    pub is_nowhere: bool,
}

impl Naive {
    pub fn new(world: &World) -> Self {
        let zone = |plan: &crate::world::ZonePlan| Zone {
            node: NodeId::new(plan.node),
            level: plan.level,
            ranges: plan.ranges.iter().copied().filter(|range| range.frames > 0).collect(),
            allocated_pages: 0,
            freed_pages: 0,
        };
        Naive {
            zones: world.zones.iter().map(zone).collect(),
            held: BTreeMap::new(),
            removed: BTreeMap::new(),
            cpu_nodes: world.cpu_nodes.clone(),
        }
    }

    fn has_metadata(&self, at: At) -> bool {
        !at.is_nowhere && (at.cpu as usize) < self.cpu_nodes.len()
    }

    pub fn node(&self, at: At) -> NodeId {
        if self.has_metadata(at) { self.cpu_nodes[at.cpu as usize] } else { NodeId::new(0) }
    }

    /// The zones that a request may use, by place.
    pub fn eligible(&self, at: At, wish: Wish) -> Vec<usize> {
        let node = self.node(at);
        let fits = |zone: &Zone| {
            wish.level.is_none_or(|level| level > 14 || zone.level <= level)
                && (!wish.this_node || zone.node == node)
        };
        (0..self.zones.len()).filter(|&i| fits(&self.zones[i])).collect()
    }

    /// The reason why a range cannot be added to a zone.
    pub fn not_new(&self, zone: usize, added: FrameRange) -> Option<ConfigError> {
        let runs = added.start.get() / HUGE..(added.end() as u32).div_ceil(HUGE);
        runs.into_iter().find_map(|run| {
            let first = Pfn::new(run * HUGE);
            let has_some = |zone: &Zone| zone.frames().any(|frame| frame / HUGE == run);
            match self.removed.get(&run) {
                _ if self.zones.iter().any(has_some) => Some(ConfigError::HasMemory { first }),
                Some(&from) if from != zone => {
                    Some(ConfigError::WasRemoved { first, zone: from as u32 })
                }
                _ => None,
            }
        })
    }

    pub fn add(&mut self, zone: usize, added: FrameRange) {
        self.zones[zone].ranges.push(added);
        let runs = added.start.get() / HUGE..(added.end() as u32).div_ceil(HUGE);
        self.removed.retain(|run, _| !runs.contains(run));
    }

    /// Takes whole pageblocks out of a zone.
    pub fn remove(&mut self, zone: usize, removed: FrameRange) {
        let (start, end) = (removed.start.get(), removed.end() as u32);
        let ranges = std::mem::take(&mut self.zones[zone].ranges);
        let left = ranges.into_iter().flat_map(|range| {
            let (from, to) = (range.start.get(), range.end() as u32);
            [(from, to.min(start)), (from.max(end), to)]
        });
        let left = left.filter(|(from, to)| from < to);
        self.zones[zone].ranges =
            left.map(|(from, to)| FrameRange::new(Pfn::new(from), to - from)).collect();
        self.removed.extend((start / HUGE..end / HUGE).map(|run| (run, zone)));
    }

    /// The zone all of whose frames these are.
    pub fn zone_of(&self, start: u32, frames: u32) -> Option<usize> {
        self.zones.iter().position(|zone| zone.has(start, frames))
    }

    /// The zone that has frames in each of the aligned runs of 512 that these lie in. The allocator
    /// knows no more closely where there is memory.
    pub fn zone_around(&self, start: u32, frames: u32) -> Option<usize> {
        let runs = start / HUGE..(start + frames).div_ceil(HUGE);
        self.zones.iter().position(|zone| {
            let has_some = |run| zone.frames().any(|frame| frame / HUGE == run);
            runs.clone().all(has_some)
        })
    }

    /// The held stretch that has one of these frames.
    pub fn overlap(&self, start: u32, frames: u32) -> Option<(u32, Held)> {
        let end = u64::from(start) + u64::from(frames);
        let below = self.held.range(..=start).next_back().map(|(&at, &held)| (at, held));
        let below =
            below.filter(|(at, held)| u64::from(*at) + u64::from(held.frames) > u64::from(start));
        let above = || self.held.range(start..).next().map(|(&at, &held)| (at, held));
        below.or_else(|| above().filter(|(at, _)| u64::from(*at) < end))
    }

    /// Records a block or range that the allocator returned. Panics when it cannot have been free.
    pub fn allocate(&mut self, start: u32, held: Held) -> usize {
        let zone = self.zone_of(start, held.frames);
        let zone = zone
            .unwrap_or_else(|| panic!("{start:#x} + {} is not memory of one zone", held.frames));
        if let Some((other, other_held)) = self.overlap(start, held.frames) {
            panic!("{start:#x} {held:?} was handed out while {other:#x} {other_held:?} is held");
        }
        self.held.insert(start, held);
        self.zones[zone].allocated_pages += u64::from(held.frames);
        zone
    }

    /// Records a free. Returns what was held.
    pub fn free(&mut self, start: u32) -> Held {
        let held = self.held.remove(&start).expect("the run frees what it holds");
        let zone = self.zone_of(start, held.frames).expect("held frames are of a zone");
        self.zones[zone].freed_pages += u64::from(held.frames);
        held
    }

    /// Replaces a held stretch by parts of `frames` each.
    pub fn split(&mut self, start: u32, frames: u32, shape: Shape) {
        let whole = self.held.remove(&start).expect("the run splits what it holds");
        for at in (start..start + whole.frames).step_by(frames as usize) {
            self.held.insert(at, Held { frames, shape });
        }
    }

    /// Cuts a range in two at `start + frames`.
    pub fn cut(&mut self, start: u32, frames: u32) {
        let whole = self.held.remove(&start).expect("the run cuts what it holds");
        assert!(whole.shape == Shape::Range && frames < whole.frames && frames > 0);
        self.held.insert(start, Held { frames, ..whole });
        self.held.insert(start + frames, Held { frames: whole.frames - frames, ..whole });
    }

    /// Up to `count` starts of held stretches, from `from` on and `stride` apart.
    pub fn pick(&self, from: u16, stride: u8, count: u16) -> Vec<u32> {
        let starts: Vec<u32> = self.held.keys().copied().collect();
        if starts.is_empty() {
            return starts;
        }
        let (from, stride) =
            (usize::from(from) % starts.len(), usize::from(stride) % starts.len() + 1);
        (0..usize::from(count).min(starts.len().div_ceil(stride)))
            .map(|i| starts[(from + i * stride) % starts.len()])
            .collect()
    }

    pub fn order_block(order: Order) -> Held {
        Held { frames: order.frames(), shape: Shape::Block(order) }
    }

    pub fn is_held(&self, pfn: Pfn) -> bool {
        self.overlap(pfn.get(), 1).is_some()
    }
}
