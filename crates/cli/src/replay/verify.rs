//! A target that watches another: every frame has at most one holder.

use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};
use pagedepot_designs::{Census, FreeMap};

use super::look::{Look, Unmovable};
use super::plan::InitialBlock;
use super::target::{ReplayCounts, ReplayTarget};

/// Passes everything on to `T` and records which frames are held. For the first, unmeasured run of
/// a plan: the record costs several times what the allocator does.
pub struct Verify<'t, T> {
    target: &'t mut T,
    /// One bit per frame, set while it is held.
    held: Vec<u64>,
    unmovable: Unmovable,
    looks: Vec<Look>,
    story: Story,
}

/// The story of a watched run.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Pages cached by all CPUs, by the trace's milliseconds.
    pub cached_pages: Vec<(f64, f64)>,
    /// Frames of each pageblock that no holder had when the trace ended, in percent; up to the
    /// last pageblock that was ever in use.
    pub free_percent: Vec<u8>,
}

/// Words of the record per pageblock.
const PAGEBLOCK_WORDS: usize = 512 / 64;

impl<'t, T: ReplayTarget> Verify<'t, T> {
    /// Watches `target`, from which nothing has been allocated yet.
    pub fn new(target: &'t mut T) -> Self {
        Verify {
            target,
            held: Vec::new(),
            unmovable: Unmovable::default(),
            looks: Vec::new(),
            story: Story::default(),
        }
    }

    /// Contiguity of free memory over the run, and its story.
    pub fn into_parts(self) -> (Vec<Look>, Story) {
        (self.looks, self.story)
    }

    /// Marks each frame of a block as held, and what taints its pageblock.
    fn hand_out(&mut self, pfn: Pfn, order: Order, mobility: Mobility) {
        self.turn(pfn, order, true);
        if mobility != Mobility::Movable {
            self.unmovable.turn(pfn, order, true);
        }
    }

    /// Marks each frame of a block as free.
    fn take_back(&mut self, pfn: Pfn, order: Order) {
        self.turn(pfn, order, false);
        self.unmovable.turn(pfn, order, false);
    }

    fn free_percent(&self) -> Vec<u8> {
        let free = |words: &[u64]| {
            let held: u32 = words.iter().map(|word| word.count_ones()).sum();
            100 - (held * 100 / (PAGEBLOCK_WORDS as u32 * u64::BITS)) as u8
        };
        self.held.chunks(PAGEBLOCK_WORDS).map(free).collect()
    }

    /// Marks each frame of a block as held or as free.
    ///
    /// # Panics
    /// When a frame already is what it should become: it has two holders, or none.
    fn turn(&mut self, pfn: Pfn, order: Order, to_held: bool) {
        assert!(pfn.is_aligned(order), "{pfn:?} is no block of {order:?}");
        for frame in pfn.index()..pfn.index() + order.frames() as usize {
            let (word, bit) = (frame / 64, 1 << (frame % 64));
            if word >= self.held.len() {
                self.held.resize(word + 1, 0);
            }
            let is_held = self.held[word] & bit != 0;
            assert!(
                is_held != to_held,
                "frame {frame:#x} was {}",
                if to_held { "handed out twice" } else { "freed twice" }
            );
            self.held[word] ^= bit;
        }
    }
}

impl<T: ReplayTarget> ReplayTarget for Verify<'_, T> {
    fn set_time(&mut self, now_ms: u64) {
        self.target.set_time(now_ms);
        self.story.cached_pages.push((now_ms as f64, self.target.cached_pages_total() as f64));
    }

    fn tick(&mut self, cpu: CpuId) {
        self.target.tick(cpu);
    }

    fn hold(&mut self, blocks: &[InitialBlock]) -> Option<Vec<Pfn>> {
        let held = self.target.hold(blocks)?;
        for (&pfn, known) in held.iter().zip(blocks) {
            self.hand_out(pfn, known.order, known.mobility);
        }
        Some(held)
    }

    fn alloc(&mut self, cpu: CpuId, zone: ZoneId, order: Order, mobility: Mobility) -> Option<Pfn> {
        let pfn = self.target.alloc(cpu, zone, order, mobility)?;
        self.hand_out(pfn, order, mobility);
        Some(pfn)
    }

    fn alloc_cache(&mut self, cpu: CpuId, zone: ZoneId, order: Order) -> Option<Pfn> {
        let pfn = self.target.alloc_cache(cpu, zone, order)?;
        self.hand_out(pfn, order, Mobility::Movable);
        Some(pfn)
    }

    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order) {
        self.take_back(pfn, order);
        self.target.free(cpu, pfn, order);
    }

    fn free_nested(&mut self, cpu: CpuId, zone: ZoneId, pfn: Pfn, order: Order) {
        self.take_back(pfn, order);
        self.target.free_nested(cpu, zone, pfn, order);
    }

    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]) {
        for &(pfn, order) in blocks {
            self.take_back(pfn, order);
        }
        self.target.free_many(cpu, blocks);
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        self.target.halve(pfn, order);
    }

    fn counts(&self) -> ReplayCounts {
        self.target.counts()
    }

    fn cached_pages_total(&self) -> u64 {
        self.target.cached_pages_total()
    }

    fn census(&mut self) -> Result<Census, String> {
        self.story.free_percent = self.free_percent();
        self.target.census()
    }

    fn free_map(&self) -> Result<FreeMap, String> {
        self.target.free_map()
    }

    fn look(&mut self, percent: u32) -> Result<(), String> {
        let map = self.target.free_map()?;
        self.looks.push(Look::of(percent, &map, self.unmovable.tainted()));
        Ok(())
    }

    fn drain_all(&mut self) {
        self.target.drain_all();
    }
}
