//! The published parameters of the workload's allocations.

use pagedepot::Mobility;

/// A kind of memory.
#[derive(Clone, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub mobility: Mobility,
    /// Percent of the memory held in the end that is of this kind.
    pub held_percent: u64,
    /// Percent of its pages that a round replaces.
    pub replaced_percent: u64,
    /// Percent by which the kind grows in the first half of a round, to shrink again in the second.
    pub surge_percent: u64,
    /// Percent of draws of each order.
    pub orders: &'static [(u32, u32)],
    /// Pages that are allocated in a row, and freed together where the kind dies in groups. In
    /// small memory at most an eighth of what the thread holds in the end, but the least of these.
    pub group_pages: std::ops::Range<u32>,
    pub dies: Dies,
}

impl Kind {
    /// The kind's surge in percent of its pages, where surges are `surges_percent` of what is
    /// published.
    pub fn surge_percent_of(&self, surges_percent: u32) -> u64 {
        self.surge_percent * u64::from(surges_percent) / 100
    }
}

/// The unit in which a kind frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dies {
    /// A block, drawn at random.
    Alone,
    /// All that was allocated together, by one call: a process exits.
    Together,
    /// All that was allocated together, block by block in its order: a burst is read. Where there
    /// are several threads, the next one reads and frees it, single blocks and up to eight by one
    /// call.
    InOrder,
}

/// The kinds, in the order in which they fill the memory. The last one, page cache, also takes what
/// is left up to [`FULL_PERCENT`].
pub static KINDS: [Kind; 5] = [
    // Page tables, kernel stacks, slab. Many processes need a quarter more for a while.
    Kind {
        name: "unmovable",
        mobility: Mobility::Unmovable,
        held_percent: 6,
        replaced_percent: 5,
        surge_percent: 25,
        orders: &[(0, 70), (1, 15), (2, 10), (3, 5)],
        group_pages: 1..2,
        dies: Dies::Alone,
    },
    // Inodes and directory entries. A walk over a file system needs half as much again for a while.
    Kind {
        name: "reclaimable",
        mobility: Mobility::Reclaimable,
        held_percent: 4,
        replaced_percent: 10,
        surge_percent: 50,
        orders: &[(0, 60), (1, 20), (2, 20)],
        group_pages: 1..2,
        dies: Dies::Alone,
    },
    // Socket buffers.
    Kind {
        name: "network",
        mobility: Mobility::Unmovable,
        held_percent: 1,
        replaced_percent: 400,
        surge_percent: 0,
        orders: &[(0, 60), (3, 40)],
        group_pages: 64..1024,
        dies: Dies::InOrder,
    },
    // Memory of processes that come and go.
    Kind {
        name: "anonymous",
        mobility: Mobility::Movable,
        held_percent: 29,
        replaced_percent: 50,
        surge_percent: 0,
        orders: &[(0, 90), (4, 10)],
        group_pages: 64..4096,
        dies: Dies::Together,
    },
    Kind {
        name: "page cache",
        mobility: Mobility::Movable,
        held_percent: 60,
        replaced_percent: 20,
        surge_percent: 0,
        orders: &[(0, 70), (2, 20), (4, 10)],
        group_pages: 16..256,
        dies: Dies::Alone,
    },
];

/// The place of page cache among the kinds.
pub const CACHE: usize = 4;

/// The highest order of all.
pub const ORDER_MAX: u32 = 4;

/// Share of the memory that is held during the rounds, in percent.
pub const FULL_PERCENT: u64 = 96;

/// The kinds in a line each, for people.
pub fn published(surges_percent: u32) -> String {
    let line = |kind: &Kind| {
        let orders: Vec<_> =
            kind.orders.iter().map(|(order, percent)| format!("{order}:{percent}%")).collect();
        format!(
            "  {:11} {:2} % held, {:3} % replaced, surge {:3} %; {}",
            kind.name,
            kind.held_percent,
            kind.replaced_percent,
            kind.surge_percent_of(surges_percent),
            orders.join(" ")
        )
    };
    let lines: Vec<_> = KINDS.iter().map(line).collect();
    format!("Of what is held; in each round; blocks by order:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        assert_eq!(KINDS.iter().map(|kind| kind.held_percent).sum::<u64>(), 100);
        for kind in &KINDS {
            assert_eq!(kind.orders.iter().map(|order| order.1).sum::<u32>(), 100, "{}", kind.name);
            assert!(kind.orders.iter().all(|order| order.0 <= ORDER_MAX), "{}", kind.name);
        }
        assert_eq!(KINDS[CACHE].name, "page cache");
        assert!(published(100).lines().all(|line| line.len() <= 80), "{}", published(100));
    }
}
