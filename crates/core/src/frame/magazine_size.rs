//! The size of a magazine, by the order of its blocks.

use super::units::Order;
use crate::sync::model::IS_LOOM;

impl Order {
    /// Blocks in a full magazine: 63 frames or 15 blocks, whichever is more; but at most 2048
    /// frames or 7 blocks, whichever is more. So the larger the block, the fewer may hide, and a
    /// slow path serves 7 requests at least. Magazines of orders 7 and 8 hold whole pageblocks,
    /// which the store moves as one (`docs/decisions/0011-entire-pageblocks.md`). A refill of large
    /// blocks takes fewer unless the CPU uses many (`CpuZone::refill_size`). Models have small
    /// magazines, so that few steps fill one.
    #[inline]
    pub(crate) const fn rounds(self) -> u32 {
        // Longer than there are orders, so that no look needs a comparison.
        const ROUNDS: [u32; 16] = {
            let mut rounds = [0; 16];
            let mut at = 0;
            while at < Order::CACHED {
                rounds[at] = match (IS_LOOM, at) {
                    (false, _) => Order::at_place(at).rounds_by_rule(),
                    (true, 0) => 2,
                    (true, _) => 1,
                };
                at += 1;
            }
            rounds
        };
        ROUNDS[self.index() % ROUNDS.len()]
    }

    /// [`rounds`](Self::rounds) outside of models.
    const fn rounds_by_rule(self) -> u32 {
        const fn or_more(frames: u32, order: Order, blocks: u32) -> u32 {
            let fitting = frames / order.frames();
            if fitting > blocks { fitting } else { blocks }
        }
        let (wanted, most) = (or_more(63, self, 15), or_more(2048, self, 7));
        self.whole_pageblocks(if wanted < most { wanted } else { most })
    }

    /// Rounds a number of blocks down to whole pageblocks, if two or four blocks make up one: the
    /// rest of a pageblock would go to the store in words, and come back in words.
    pub(crate) const fn whole_pageblocks(self, blocks: u32) -> u32 {
        match Order::PAGEBLOCK.frames() / self.frames() {
            each @ (2 | 4) => blocks - blocks % each,
            _ => blocks,
        }
    }

    /// Whether a magazine of these blocks is so much memory that refills are by what the CPU uses.
    #[inline]
    pub(crate) const fn is_large(self) -> bool {
        self.magazine_frames() > Order::PAGEBLOCK.frames()
    }

    /// Frames in a full magazine.
    pub(crate) const fn magazine_frames(self) -> u32 {
        self.rounds() * self.frames()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Order;

    #[test]
    fn magazines_hold_what_the_rule_says() {
        let rounds: Vec<u32> = Order::all().map(Order::rounds).collect();
        assert_eq!(rounds, [63, 31, 15, 15, 15, 15, 15, 12, 8, 7, 7]);
        assert!([7, 8].iter().all(|&n| Order::at_place(n).magazine_frames().is_multiple_of(512)));
    }
}
