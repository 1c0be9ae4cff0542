//! Units: a newtype for each, so that none is passed where another is due.

use crate::sync::model::{IS_LOOM, bound};

use core::fmt;
use core::num::TryFromIntError;

/// The number of a page frame: its address divided by the base page size.
///
/// 32 bits reach 16 TiB with 4 KiB pages, 256 TiB with 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Pfn(u32);

impl Pfn {
    /// Frame number `n`.
    pub const fn new(n: u32) -> Self {
        Pfn(n)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number, to index with.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame `frames` further on.
    ///
    /// # Panics
    /// In debug builds, past the last frame number.
    #[must_use]
    pub const fn add(self, frames: u32) -> Self {
        Pfn(self.0 + frames)
    }

    /// Whether a block of `order` may begin here.
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

impl TryFrom<u64> for Pfn {
    type Error = TryFromIntError;

    /// Frame number `n`.
    ///
    /// # Errors
    /// Above 2^32 - 1.
    fn try_from(n: u64) -> Result<Self, TryFromIntError> {
        u32::try_from(n).map(Pfn)
    }
}

impl TryFrom<usize> for Pfn {
    type Error = TryFromIntError;

    /// Frame number `n`.
    ///
    /// # Errors
    /// Above 2^32 - 1.
    fn try_from(n: usize) -> Result<Self, TryFromIntError> {
        u32::try_from(n).map(Pfn)
    }
}

impl From<Pfn> for u64 {
    fn from(pfn: Pfn) -> Self {
        pfn.0.into()
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The size of a block: 2^order frames, naturally aligned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// One frame.
    pub const BASE: Order = Order(0);
    /// 512 frames: a PMD-size page with 4 KiB frames, and what the store keeps hints for.
    pub const PAGEBLOCK: Order = Order(bound(9, 7));
    /// The largest order: 1024 frames.
    pub const MAX: Order = Order(Self::PAGEBLOCK.0 + 1);
    /// Number of orders.
    pub const COUNT: usize = Self::MAX.0 as usize + 1;

    /// Order `n`, if there is one.
    pub const fn new(n: u32) -> Option<Self> {
        if n <= Self::MAX.0 as u32 { Some(Order(n as u8)) } else { None }
    }

    /// The smallest order whose blocks have at least `frames` frames; 0 frames need one. `None`
    /// above 1024.
    pub const fn for_frames(frames: usize) -> Option<Self> {
        match frames.checked_next_power_of_two() {
            Some(frames) => Self::new(frames.trailing_zeros()),
            None => None,
        }
    }

    /// The exponent.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The exponent, to index with.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Frames in a block of this order.
    pub const fn frames(self) -> u32 {
        1 << self.0
    }

    /// All orders, smallest first.
    pub fn all() -> impl Iterator<Item = Order> {
        (0..=Self::MAX.0).map(Order)
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $label:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Number `n`.
            pub const fn new(n: u32) -> Self {
                $name(n)
            }

            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The number, to index with.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A CPU, by the number its system gives it. Numbers may be sparse; those at or above the
    /// configured count have no caches and use the store.
    CpuId, "cpu"
);
id!(
    /// A zone, by its place in the configuration.
    ZoneId, "zone"
);
id!(
    /// A NUMA node.
    NodeId, "node"
);

/// The reason for which a frame was allocated; frames of one mobility are kept together so that
/// whole blocks stay recoverable (Linux: *migratetype*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mobility {
    /// Stays where it is until freed.
    Unmovable = 0,
    /// The owner can move the frame.
    Movable = 1,
    /// The owner can give the frame up.
    Reclaimable = 2,
}

impl Mobility {
    /// Number of mobilities.
    pub const COUNT: usize = 3;
    /// All of them, in the order of their numbers.
    pub const ALL: [Mobility; 3] = [Mobility::Unmovable, Mobility::Movable, Mobility::Reclaimable];

    /// The number, to index with.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether blocks of the two lie side by side without harm: those that can be moved among
    /// themselves, and those that cannot.
    pub fn is_akin(self, other: Self) -> bool {
        (self == Mobility::Movable) == (other == Mobility::Movable)
    }

    /// The mobility with number `n`.
    pub const fn from_index(n: usize) -> Option<Self> {
        if n < Self::COUNT { Some(Self::ALL[n]) } else { None }
    }
}

/// The requests that a pageblock serves and a front caches blocks for: those of one mobility, or
/// movable ones whose class is kept apart (decision 0020). The lowest bit says that blocks can be
/// moved, so kinds come in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u8);

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = bound(4, 3);
    pub const UNMOVABLE: Kind = Kind::of(Mobility::Unmovable);
    pub const MOVABLE: Kind = Kind::of(Mobility::Movable);
    pub const RECLAIMABLE: Kind = Kind::of(Mobility::Reclaimable);
    /// Movable requests whose class is kept apart.
    pub const APART: Kind = Kind(3);

    /// The kind of requests of this mobility whose class is not kept apart.
    pub const fn of(mobility: Mobility) -> Self {
        Kind(mobility as u8)
    }

    /// The kind with number `n`, of which the lowest two bits count.
    pub const fn from_bits(n: u32) -> Self {
        Kind(n as u8 & 0b11)
    }

    /// All kinds, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Kind> {
        (0..Self::COUNT as u32).map(Kind::from_bits)
    }

    /// The number, to index with.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether the blocks can be moved. Blocks of two kinds lie side by side without harm if both
    /// can be or none: then the kinds are *akin*.
    pub const fn is_movable(self) -> bool {
        self.0 & 1 == 1
    }

    /// The mobility of the requests.
    pub const fn mobility(self) -> Mobility {
        match self.0 {
            0 => Mobility::Unmovable,
            2 => Mobility::Reclaimable,
            _ => Mobility::Movable,
        }
    }
}

/// Orders as CPUs cache them.
impl Order {
    /// The number of orders that CPUs cache: all of them. Most models have one, since each order
    /// repeats the steps of the others; the models of `loom_tests::orders` are compiled with two.
    pub(crate) const CACHED: usize = match (IS_LOOM, option_env!("PAGEDEPOT_MODEL_ORDERS")) {
        (false, _) => Self::COUNT,
        (true, None) => 1,
        (true, Some(_)) => 2,
    };

    /// The order, if CPUs cache it. `None` in models alone.
    #[inline]
    pub(crate) const fn cached(self) -> Option<Order> {
        if IS_LOOM && self.index() >= Self::CACHED { None } else { Some(self) }
    }

    /// The cached order with this place, smallest first.
    #[inline]
    pub(crate) const fn at_place(place: usize) -> Order {
        assert!(place < Self::CACHED);
        Order(place as u8)
    }
}

/// The size of a magazine, by the order of its blocks.
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
