//! The watch over a plan's first run: every frame has at most one holder.

use pagedepot::{Mobility, Order, Pfn};
use pagedepot_designs::FreeMap;

use super::look::{Look, Unmovable};
use super::watched::Watcher;

/// The frames that are held, and what became of them. For the first, unmeasured run of a plan: the
/// record costs several times what the allocator does.
#[derive(Default)]
pub struct Verify {
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

impl Verify {
    /// Contiguity of free memory over the run, and its story.
    pub fn into_parts(self) -> (Vec<Look>, Story) {
        (self.looks, self.story)
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

impl Watcher for Verify {
    fn hand_out(&mut self, pfn: Pfn, order: Order, mobility: Mobility) {
        self.turn(pfn, order, true);
        if mobility != Mobility::Movable {
            self.unmovable.turn(pfn, order, true);
        }
    }

    fn take_back(&mut self, pfn: Pfn, order: Order) {
        self.turn(pfn, order, false);
        self.unmovable.turn(pfn, order, false);
    }

    fn set_time(&mut self, now_ms: u64, cached_pages: impl FnOnce() -> u64) {
        self.story.cached_pages.push((now_ms as f64, cached_pages() as f64));
    }

    fn look(
        &mut self,
        percent: u32,
        map: impl FnOnce() -> Result<FreeMap, String>,
    ) -> Result<(), String> {
        self.looks.push(Look::of(percent, &map()?, self.unmovable.tainted()));
        Ok(())
    }

    fn begin_census(&mut self) {
        self.story.free_percent = self.free_percent();
    }
}
