//! A simple store in place of an embedder's: sets of free frames behind a mutex.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagedepot::{
    Backing, BackingRanges, BackingRequest, BackingWords, Block, DoubleFree, FrameRange, Mobility,
    Order, Pfn, RangeRequest, ZoneConfig, ZoneId,
};

/// Frames of a pageblock.
const HUGE: u32 = 512;

/// Sets of free frames; see the module.
pub struct Sets {
    zones: Mutex<Vec<ZoneSet>>,
    /// Bits of the last request.
    last_bits: AtomicU16,
    /// Calls of `put`.
    puts: AtomicU64,
    /// Whether it serves ranges, and small blocks by words.
    has_ranges: bool,
}

#[derive(Default)]
struct ZoneSet {
    free: BTreeSet<u32>,
    /// The mobility of each pageblock: that of the request that got its first frame.
    mobilities: BTreeMap<u32, Mobility>,
}

impl Sets {
    /// A store with all frames of the zones free. `has_ranges`: it serves ranges, too, and
    /// small blocks by words.
    pub fn new(zones: &[ZoneConfig<'_>], has_ranges: bool) -> Self {
        let sets = Sets {
            zones: Mutex::new(zones.iter().map(|_| ZoneSet::default()).collect()),
            last_bits: AtomicU16::new(0),
            puts: AtomicU64::new(0),
            has_ranges,
        };
        for (zone, config) in (0..).map(ZoneId::new).zip(zones) {
            config.ranges.iter().for_each(|&range| sets.add(zone, range));
        }
        sets
    }

    /// Adds free frames.
    pub fn add(&self, zone: ZoneId, range: FrameRange) {
        self.lock()[zone.index()].free.extend(range.start.get()..range.end() as u32);
    }

    /// The bits of the last request for blocks.
    pub fn last_bits(&self) -> u16 {
        self.last_bits.load(Ordering::Relaxed)
    }

    /// Counts the calls for blocks that come back.
    #[allow(dead_code, reason = "tests of other crates have it, too")]
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ZoneSet>> {
        // A failed assertion of a test leaves the sets as they were.
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ZoneSet {
    /// Number of free frames from `start` on, up to `frames`.
    fn run(&self, start: u32, frames: u32) -> u32 {
        (start..start + frames)
            .zip(self.free.range(start..))
            .take_while(|(at, free)| at == *free)
            .count() as u32
    }

    /// Takes the first run of `frames` frames that begins at a multiple of `align`.
    fn take(&mut self, frames: u32, align: u32) -> Option<Pfn> {
        let mut at = 0;
        loop {
            let start = self.free.range(at..).next()?.next_multiple_of(align);
            let run = self.run(start, frames);
            if run == frames {
                self.remove(start, frames);
                return Some(Pfn::new(start));
            }
            at = start + run + 1;
        }
    }

    fn remove(&mut self, start: u32, frames: u32) {
        (start..start + frames).for_each(|frame| assert!(self.free.remove(&frame)));
    }
}

// SAFETY: the sets hold frames of the zones' ranges alone; a frame is removed from its set under
// the mutex before it is handed out, and inserted again, under the mutex, when it is put back.
unsafe impl Backing for Sets {
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
        let BackingRequest { zone, order, mobility, bits, .. } = request;
        assert!(out.len() <= 64);
        self.last_bits.store(bits, Ordering::Relaxed);
        let set = &mut self.lock()[zone.index()];
        for (taken, place) in out.iter_mut().enumerate() {
            let Some(pfn) = set.take(order.frames(), order.frames()) else { return taken };
            let serves = *set.mobilities.entry(pfn.get() / HUGE).or_insert(mobility);
            *place = Block::new(pfn, order, serves);
        }
        out.len()
    }

    fn put(&self, zone: ZoneId, blocks: &[Block]) -> DoubleFree {
        assert!(!blocks.is_empty() && blocks.len() <= 64);
        self.puts.fetch_add(1, Ordering::Relaxed);
        let set = &mut self.lock()[zone.index()];
        let mut doubled = DoubleFree::NONE;
        for (pfn, order) in blocks.iter().map(|block| (block.pfn(), block.order())) {
            assert!(pfn.is_aligned(order));
            for frame in pfn.get()..pfn.get() + order.frames() {
                if !set.free.insert(frame) {
                    doubled.add(DoubleFree { first: Some(Pfn::new(frame)), frames: 1 });
                }
            }
            if order >= Order::PAGEBLOCK {
                set.mobilities.remove(&(pfn.get() / HUGE));
            }
        }
        doubled
    }

    fn free_pages(&self, zone: ZoneId) -> u64 {
        self.lock()[zone.index()].free.len() as u64
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        self.lock().iter().any(|set| set.free.contains(&pfn.get()))
    }

    fn words(&self) -> Option<&dyn BackingWords> {
        self.has_ranges.then_some(self)
    }

    fn ranges(&self) -> Option<&dyn BackingRanges> {
        self.has_ranges.then_some(self)
    }
}

// SAFETY: as above.
unsafe impl BackingWords for Sets {
    fn take_words(&self, request: BackingRequest, want: u32, give: &mut dyn FnMut(Pfn, u64)) {
        let BackingRequest { zone, order, bits, .. } = request;
        assert!((1..=64).contains(&want) && order.get() <= 6);
        self.last_bits.store(bits, Ordering::Relaxed);
        let mut words = BTreeMap::new();
        for _ in 0..want {
            let taken = self.lock()[zone.index()].take(order.frames(), order.frames());
            let Some(frame) = taken.map(Pfn::get) else { break };
            *words.entry(frame / 64).or_insert(0) |= 1 << (frame % 64);
        }
        words.into_iter().for_each(|(word, starts)| give(Pfn::new(word * 64), starts));
    }

    fn put_words(&self, zone: ZoneId, words: &[(Pfn, u64)]) -> DoubleFree {
        assert!(!words.is_empty() && words.len() <= 16);
        let mut doubled = DoubleFree::NONE;
        for &(first, frames) in words {
            assert!(first.get().is_multiple_of(64) && frames != 0);
            for bit in (0..64).filter(|bit| frames >> bit & 1 == 1) {
                let block = Block::new(Pfn::new(first.get() + bit), Order::BASE, Mobility::Movable);
                doubled.add(self.put(zone, &[block]));
            }
        }
        doubled
    }
}

// SAFETY: as above.
unsafe impl BackingRanges for Sets {
    fn take_contiguous(&self, request: RangeRequest) -> Option<Pfn> {
        let RangeRequest { zone, frames, align, bits, .. } = request;
        assert!(frames > 0 && align.is_power_of_two());
        self.last_bits.store(bits, Ordering::Relaxed);
        self.lock()[zone.index()].take(frames, align)
    }

    fn claim(&self, zone: ZoneId, start: Pfn, frames: u32) -> bool {
        let set = &mut self.lock()[zone.index()];
        let is_free = set.run(start.get(), frames) == frames;
        if is_free {
            set.remove(start.get(), frames);
        }
        is_free
    }
}
