//! A map of free frames, and what it says about contiguity.
//!
//! # Vocabulary
//! * *whole pageblock*: one whose 512 frames are all free in the store. Frames in caches are not
//!   free in the store, as the kernel's buddyinfo does not count those on per-CPU lists.
//! * *run*: an aligned range of 2^n free frames. Each free frame lies in at most one run per n.
//! * *unusable free index* of an order: the share of free memory that lies in no run of that order,
//!   so that a request of that order cannot use it (`unusable_free_index` in `mm/vmstat.c`; Gorman
//!   and Whitcroft, "The what, the why and the where to of anti-fragmentation", OLS 2006).

use pagedepot::{Order, Pfn};

use crate::census::Fault;
use crate::store::Store;

/// The binary logarithm of the frames of 1 GiB, with pages of 4 KiB.
pub const GIB_LOG2: u32 = 18;

/// Bits per word of the map, and their logarithm.
const WORD_LOG2: u32 = u64::BITS.ilog2();

/// A map of free frames. One bit per frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeMap {
    /// The bit of frame `base + n` is bit `n % 64` of word `n / 64`.
    words: Vec<u64>,
    /// A multiple of the frames of 1 GiB, so that runs of the map are runs of frames.
    base: u64,
}

impl FreeMap {
    /// A map of the frames from `start` up to (not including) `end`, none of them free.
    pub fn new(start: u64, end: u64) -> Self {
        let base = start >> GIB_LOG2 << GIB_LOG2;
        FreeMap { words: vec![0; end.saturating_sub(base).div_ceil(64) as usize], base }
    }

    /// A map of the frames from `start` to `end` that `is_free` names. O(frames).
    pub fn by_frame(start: u64, end: u64, is_free: impl Fn(Pfn) -> bool) -> Self {
        let mut map = FreeMap::new(start, end);
        for frame in start..end {
            if is_free(Pfn::new(frame as u32)) {
                map.set(frame, 1);
            }
        }
        map
    }

    /// The frames that are free in a store. O(memory). Call it when all other threads have stopped.
    ///
    /// # Errors
    /// The first fault in the store's metadata.
    pub fn of_store<S: Store>(store: &S) -> Result<Self, Fault> {
        let zones = store.zones();
        let ranges = || zones.ids().flat_map(|id| &zones.zone(id).ranges);
        let held = || ranges().filter(|range| range.frames > 0);
        let start = held().map(|range| u64::from(range.start.get())).min().unwrap_or(0);
        let mut map = FreeMap::new(start, held().map(|range| range.end()).max().unwrap_or(0));
        store.check(&mut |_, pfn, order| {
            map.add(pfn, order);
            Ok(())
        })?;
        Ok(map)
    }

    /// Adds a free block.
    ///
    /// # Panics
    /// When the block is outside the map.
    pub fn add(&mut self, pfn: Pfn, order: Order) {
        self.set(pfn.get().into(), order.frames().into());
    }

    /// Takes out a block: it is held.
    ///
    /// # Panics
    /// When the block is outside the map.
    pub fn remove(&mut self, pfn: Pfn, order: Order) {
        self.for_words(pfn.get().into(), order.frames().into(), |word, mask| *word &= !mask);
    }

    fn set(&mut self, start: u64, frames: u64) {
        self.for_words(start, frames, |word, mask| *word |= mask);
    }

    /// Passes each word of a range, with the range's bits in it.
    fn for_words(&mut self, start: u64, frames: u64, change: impl Fn(&mut u64, u64)) {
        let (mut at, end) = (start - self.base, start - self.base + frames);
        while at < end {
            let bit = at % 64;
            let bits = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - bits)) << bit;
            change(&mut self.words[(at / 64) as usize], mask);
            at += bits;
        }
    }

    /// Whether a frame is free.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        let at = u64::from(pfn.get()).checked_sub(self.base);
        at.and_then(|at| Some(self.words.get((at / 64) as usize)? >> (at % 64) & 1 == 1))
            .unwrap_or(false)
    }

    /// Free frames.
    pub fn free_pages(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Aligned runs of `2^log2` free frames. O(frames / 64).
    pub fn runs(&self, log2: u32) -> u64 {
        if log2 >= WORD_LOG2 {
            let words = self.words.chunks_exact(1 << (log2 - WORD_LOG2));
            return words.filter(|run| run.iter().all(|&word| word == u64::MAX)).count() as u64;
        }
        self.words.iter().map(|&word| u64::from(runs_in_word(word, log2))).sum()
    }

    /// Pageblocks that are wholly free.
    pub fn whole_pageblocks(&self) -> u64 {
        self.runs(Order::PAGEBLOCK.get())
    }

    /// Aligned ranges of 1 GiB that are wholly free.
    pub fn gib_ranges(&self) -> u64 {
        self.runs(GIB_LOG2)
    }

    /// The unusable free index of an order, from 0 (all free memory can serve it) to 1 (none can).
    /// 1 without free memory, as in the kernel.
    pub fn unusable_index(&self, order: Order) -> f64 {
        let usable = self.runs(order.get()) << order.get();
        unusable_index(self.free_pages(), usable)
    }
}

/// The unusable free index where `usable_pages` of `free_pages` lie in blocks that are large
/// enough.
pub fn unusable_index(free_pages: u64, usable_pages: u64) -> f64 {
    if free_pages == 0 {
        return 1.0;
    }
    free_pages.saturating_sub(usable_pages) as f64 / free_pages as f64
}

/// Aligned runs of `2^log2` ones in a word, `log2` below 6: halves of a run are anded until one bit
/// stands for each.
fn runs_in_word(word: u64, log2: u32) -> u32 {
    let all = (0..log2).fold(word, |word, n| word & word >> (1 << n));
    // One bit per run: the lowest of each.
    let firsts = (0..u64::BITS >> log2).fold(0, |firsts, run| firsts | 1 << (run << log2));
    (all & firsts).count_ones()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order(n: u32) -> Order {
        Order::new(n).unwrap()
    }

    #[test]
    fn runs_of_a_map_made_by_hand() {
        let mut map = FreeMap::new(0, 4096);
        assert_eq!((map.free_pages(), map.whole_pageblocks()), (0, 0));
        // A whole pageblock, 511 frames of the next, and two frames that are no aligned pair.
        map.add(Pfn::new(512), order(9));
        (1025..1536).for_each(|frame| map.add(Pfn::new(frame), order(0)));
        map.add(Pfn::new(2049), order(0));
        map.add(Pfn::new(2050), order(0));
        assert_eq!(map.free_pages(), 512 + 511 + 2);
        assert_eq!(map.whole_pageblocks(), 1);
        assert_eq!((map.runs(0), map.runs(1)), (1025, 256 + 255));
        assert_eq!((map.runs(5), map.runs(6)), (16 + 15, 8 + 7));
        // 512..1024 is not aligned to 1024.
        assert_eq!(map.runs(10), 0);
        map.add(Pfn::new(0), order(9));
        assert_eq!((map.whole_pageblocks(), map.runs(10)), (2, 1));
        map.remove(Pfn::new(700), order(0));
        assert_eq!((map.whole_pageblocks(), map.runs(10)), (1, 0));
        assert!(!map.is_free(Pfn::new(700)) && map.is_free(Pfn::new(701)));
        assert!(!map.is_free(Pfn::new(1 << 20)));
    }

    #[test]
    fn gibibytes_are_aligned_to_frame_numbers() {
        const GIB: u64 = 1 << GIB_LOG2;
        // Memory from 0.5 to 2.5 GiB: one aligned gibibyte in it.
        let mut map = FreeMap::new(GIB / 2, 5 * GIB / 2);
        map.set(GIB / 2, 2 * GIB);
        assert_eq!((map.free_pages(), map.gib_ranges()), (2 * GIB, 1));
        map.remove(Pfn::new(GIB as u32 + 77), order(0));
        assert_eq!((map.gib_ranges(), map.whole_pageblocks()), (0, 1023));
    }

    #[test]
    fn the_index_is_the_kernels() {
        // As `unusable_free_index`: (free - (suitable << order)) / free.
        let mut map = FreeMap::new(0, 1024);
        assert_eq!(map.unusable_index(order(0)), 1.0);
        map.add(Pfn::new(0), order(2));
        (8..20).step_by(2).for_each(|frame| map.add(Pfn::new(frame), order(0)));
        assert_eq!(map.free_pages(), 10);
        let shown: Vec<_> = (0..4).map(|n| map.unusable_index(order(n))).collect();
        assert_eq!(shown, [0.0, 0.6, 0.6, 1.0]);
        assert_eq!(unusable_index(10, 4), 0.6);
    }

    #[test]
    fn maps_of_frames_are_maps_of_blocks() {
        let free = |pfn: Pfn| !pfn.get().is_multiple_of(3);
        let map = FreeMap::by_frame(64, 512, free);
        assert!((64..512).map(Pfn::new).all(|pfn| map.is_free(pfn) == free(pfn)));
        assert!(!map.is_free(Pfn::new(1)));
        let mut added = FreeMap::new(64, 512);
        (64..512).map(Pfn::new).filter(|&pfn| free(pfn)).for_each(|pfn| added.add(pfn, order(0)));
        assert_eq!(map, added);
    }
}
