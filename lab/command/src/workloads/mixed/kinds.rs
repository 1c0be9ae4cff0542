//! The blocks that one thread holds, by kind.

use std::collections::VecDeque;
use std::ops::Range;

use pagedepot::Order;

use super::holdings::Handle;
use super::params::{Dies, KINDS, Kind};

/// A thread holds at least so many times the pages of a group. A group takes the place of another
/// of any size, so in small memory a few of the published sizes would not fit.
const HELD_PER_GROUP: u64 = 8;

/// A block and its order.
pub type BlockOrder = (Handle, Order);

/// The blocks that a thread holds.
pub struct Stocks {
    /// The thread's place among all.
    pub seat: usize,
    /// Stocks in the order of [`KINDS`].
    pub stocks: Vec<Stock>,
    pub random: fastrand::Rng,
    /// Handles that no block has.
    pub handles: Vec<Handle>,
    /// Windows so far.
    pub windows: u32,
    /// Allocations and frees so far.
    pub operations: u64,
    /// Blocks of higher orders that single frames replaced.
    pub fallbacks: u64,
}

impl Stocks {
    /// Makes the empty stocks of `pages` pages that are held in the end, with surges of
    /// `surges_percent` of what is published, and with these handles.
    pub fn new(pages: u64, surges_percent: u32, seed: u64, handles: Vec<Handle>) -> Self {
        Stocks {
            seat: 0,
            stocks: KINDS.iter().map(|kind| Stock::new(kind, pages, surges_percent)).collect(),
            random: fastrand::Rng::with_seed(seed),
            handles,
            windows: 0,
            operations: 0,
            fallbacks: 0,
        }
    }

    /// Pages held.
    pub fn pages(&self) -> u64 {
        self.stocks.iter().map(|stock| stock.pages).sum()
    }
}

/// The blocks that a thread holds of one kind.
pub struct Stock {
    pub kind: &'static Kind,
    /// Pages that this thread holds of the kind in the end.
    pub target_pages: u64,
    /// Pages by which it grows in a round, to shrink again.
    pub surge_pages: u64,
    pub pages: u64,
    /// Pages of a group at most.
    group_pages_max: u32,
    /// Blocks that die alone.
    alone: Vec<BlockOrder>,
    /// Groups of blocks that die together.
    groups: VecDeque<Vec<BlockOrder>>,
}

impl Stock {
    /// Makes the empty stock of a kind of which `held_pages` of all kinds shall be held.
    pub fn new(kind: &'static Kind, held_pages: u64, surges_percent: u32) -> Self {
        let target_pages = held_pages * kind.held_percent / 100;
        let surge_pages = target_pages * kind.surge_percent_of(surges_percent) / 100;
        let group_pages_max = u32::try_from(held_pages / HELD_PER_GROUP).unwrap_or(u32::MAX);
        let (alone, groups) = (Vec::new(), VecDeque::new());
        Stock { kind, target_pages, surge_pages, pages: 0, group_pages_max, alone, groups }
    }

    /// Pages that a round replaces.
    pub fn replaced_pages(&self) -> u64 {
        self.target_pages * self.kind.replaced_percent / 100
    }

    /// Pages of the next group.
    pub fn draw_group(&self, random: &mut fastrand::Rng) -> u64 {
        let Range { start, end } = self.kind.group_pages;
        random.u32(start..end.min(self.group_pages_max).max(start + 1)).into()
    }

    /// The order of the next block, of at most `pages` pages.
    pub fn draw_order(&self, random: &mut fastrand::Rng, pages: u64) -> Order {
        let mut drawn = random.u32(..100);
        for &(order, percent) in self.kind.orders {
            if drawn < percent {
                let order = Order::new(order).expect("published orders exist");
                return if u64::from(order.frames()) <= pages { order } else { Order::BASE };
            }
            drawn -= percent;
        }
        Order::BASE
    }

    /// Adds what was allocated together.
    pub fn add(&mut self, group: Vec<BlockOrder>) {
        self.pages += pages_of(&group);
        if self.kind.dies == Dies::Alone {
            self.alone.extend(group);
        } else if !group.is_empty() {
            self.groups.push_back(group);
        }
    }

    /// Takes the next to die: a block, or a group; processes at random, bursts in order. Empty when
    /// there is nothing.
    pub fn take(&mut self, random: &mut fastrand::Rng) -> Vec<BlockOrder> {
        let taken = match self.kind.dies {
            Dies::Alone if self.alone.is_empty() => Vec::new(),
            Dies::Alone => vec![self.alone.swap_remove(random.usize(..self.alone.len()))],
            Dies::Together if self.groups.is_empty() => Vec::new(),
            Dies::Together => {
                let nth = random.usize(..self.groups.len());
                self.groups.swap_remove_back(nth).unwrap_or_default()
            }
            Dies::InOrder => self.groups.pop_front().unwrap_or_default(),
        };
        self.pages -= pages_of(&taken);
        taken
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &BlockOrder> {
        self.alone.iter().chain(self.groups.iter().flatten())
    }

    /// Takes all blocks.
    pub fn take_all(&mut self) -> Vec<BlockOrder> {
        self.pages = 0;
        let mut all = std::mem::take(&mut self.alone);
        all.extend(self.groups.drain(..).flatten());
        all
    }
}

fn pages_of(blocks: &[BlockOrder]) -> u64 {
    blocks.iter().map(|(_, order)| u64::from(order.frames())).sum()
}

#[cfg(test)]
mod tests {
    use super::super::params::CACHE;
    use super::*;

    #[test]
    fn pages_are_counted_whatever_dies() {
        let mut random = fastrand::Rng::with_seed(1);
        for kind in &KINDS {
            let mut stock = Stock::new(kind, 10_000, 100);
            assert_eq!(stock.target_pages, 100 * kind.held_percent);
            let two = Order::new(1).unwrap();
            stock.add(vec![(0, Order::BASE), (2, two)]);
            stock.add(vec![(4, two)]);
            assert_eq!(stock.pages, 5);
            assert_eq!(stock.blocks().count(), 3);
            let taken = pages_of(&stock.take(&mut random));
            assert!(taken > 0 && stock.pages == 5 - taken, "{}", kind.name);
            assert_eq!(pages_of(&stock.take_all()), 5 - taken);
            assert!(stock.pages == 0 && stock.take(&mut random).is_empty());
        }
    }

    #[test]
    fn no_kind_grows_over_small_memory() {
        let mut random = fastrand::Rng::with_seed(1);
        // But page cache, which takes what they leave.
        for kind in &KINDS[..CACHE] {
            let mut stock = Stock::new(kind, 1000, 100);
            for _ in 0..10_000 {
                if stock.pages >= stock.target_pages.max(1) {
                    assert!(!stock.take(&mut random).is_empty());
                }
                let blocks = stock.draw_group(&mut random);
                stock.add((0..blocks).map(|_| (0, Order::BASE)).collect());
                assert!(stock.pages < 1000, "{}: {} pages", kind.name, stock.pages);
            }
        }
    }

    #[test]
    fn orders_are_the_published_ones_and_fit() {
        let mut random = fastrand::Rng::with_seed(1);
        for kind in &KINDS {
            let stock = Stock::new(kind, 0, 100);
            for _ in 0..1000 {
                let order = stock.draw_order(&mut random, 1 << 10).get();
                assert!(kind.orders.iter().any(|(published, _)| *published == order));
                assert_eq!(stock.draw_order(&mut random, 1), Order::BASE);
            }
        }
    }
}
