//! The contiguity of free memory at some point of a replay.

use pagedepot::{Order, Pfn};
use pagedepot_designs::FreeMap;

use pagedepot_trace::{Buddyinfo, Pagetypeinfo};

/// Points of a replay at which the checked run looks, in percent of the operations.
pub const POINTS: [u32; 5] = [0, 25, 50, 75, 100];

/// Contiguity of free memory at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Percent of the trace that has been replayed.
    pub percent: u32,
    /// Pageblocks that are wholly free in the store.
    pub whole_pageblocks: u64,
    /// Pageblocks that hold memory which cannot be moved; `None` where that is not told.
    pub tainted_pageblocks: Option<u64>,
    /// The unusable free index (`mm/vmstat.c`) by order.
    pub unusable: Vec<f64>,
}

impl Look {
    /// Looks at a design whose holders hold what is tainted.
    pub fn of(percent: u32, map: &FreeMap, tainted: u64) -> Self {
        Look {
            percent,
            whole_pageblocks: map.whole_pageblocks(),
            tainted_pageblocks: Some(tainted),
            unusable: Order::all().map(|order| map.unusable_index(order)).collect(),
        }
    }

    /// Looks at the kernel, before (0 percent) or after the recording (100).
    pub fn of_kernel(percent: u32, free: &Buddyinfo, types: Option<&Pagetypeinfo>) -> Self {
        Look {
            percent,
            whole_pageblocks: free.whole_pageblocks(),
            tainted_pageblocks: types.map(Pagetypeinfo::tainted),
            unusable: Order::all().map(|order| free.unusable_index(order)).collect(),
        }
    }
}

/// The frames that hold memory which cannot be moved: a bit each.
#[derive(Debug, Default)]
pub struct Unmovable(Vec<u64>);

impl Unmovable {
    /// Notes that a block that cannot be moved was allocated (`held`), or that any was freed.
    pub fn turn(&mut self, pfn: Pfn, order: Order, held: bool) {
        for frame in pfn.index()..pfn.index() + order.frames() as usize {
            let (word, bit) = (frame / 64, 1 << (frame % 64));
            if held && word >= self.0.len() {
                self.0.resize(word + 1, 0);
            }
            match self.0.get_mut(word) {
                Some(word) if held => *word |= bit,
                Some(word) => *word &= !bit,
                None => {}
            }
        }
    }

    /// Pageblocks that hold one.
    pub fn tainted(&self) -> u64 {
        let pageblocks = self.0.chunks(Order::PAGEBLOCK.frames() as usize / 64);
        pageblocks.filter(|words| words.iter().any(|&word| word != 0)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pageblocks_are_tainted_while_they_hold_something_unmovable() {
        let mut unmovable = Unmovable::default();
        let order = |n| Order::new(n).unwrap();
        unmovable.turn(Pfn::new(512), order(3), true);
        unmovable.turn(Pfn::new(700), order(0), true);
        unmovable.turn(Pfn::new(5120), order(0), true);
        assert_eq!(unmovable.tainted(), 2);
        unmovable.turn(Pfn::new(700), order(0), false);
        assert_eq!(unmovable.tainted(), 2);
        unmovable.turn(Pfn::new(512), order(3), false);
        assert_eq!(unmovable.tainted(), 1);
        // A movable block beyond what was noted.
        unmovable.turn(Pfn::new(1 << 20), order(0), false);
        assert_eq!(unmovable.tainted(), 1);
    }
}
