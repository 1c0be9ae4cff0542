//! Units: a newtype for each, so that none is passed where another is due.
//!
//! # Another class
//! CPUs cache all orders.
//! A class is an order today. One for something else (another size, blocks of one owner) takes a
//! variant, a place in `EACH`, its rounds, and:
//! - [`Class::of`] and [`Class::order`], which take a class for its order, and the assertion at the
//!   end of this file; callers of `of` choose the class of a request by its order alone;
//! - `pcp/high.rs`, which lists the classes that 2022's rules regard.
//!
//! Everything else is computed from the enum: front words and their places, shelves, magazines,
//! metadata, drains. Compile-time assertions limit the number of classes. A link between magazines
//! has four bits for a class (`pcp/shelf.rs`). The words that refuse are gates of CPUs that do not
//! exist (`front/block.rs`). The glossary and `DrainResult::unreachable_pages` list the orders for
//! readers.

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
    pub(crate) fn is_akin(self, other: Self) -> bool {
        (self == Mobility::Movable) == (other == Mobility::Movable)
    }

    /// The mobility with number `n`.
    pub const fn from_index(n: usize) -> Option<Self> {
        if n < Self::COUNT { Some(Self::ALL[n]) } else { None }
    }
}

/// An order that CPUs cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    /// One frame.
    Order0,
    /// Two frames.
    Order1,
    /// Four frames.
    Order2,
    /// Eight frames.
    Order3,
    /// 16 frames.
    Order4,
    /// 32 frames.
    Order5,
    /// 64 frames.
    Order6,
    /// 128 frames.
    Order7,
    /// 256 frames.
    Order8,
    /// 512 frames: [`Order::PAGEBLOCK`].
    Order9,
    /// 1024 frames.
    Order10,
}

impl Class {
    /// The number of classes. Most models have one, since each class repeats the steps of the
    /// others; the models of `loom_tests::classes` are compiled with two.
    pub const COUNT: usize = match (IS_LOOM, option_env!("PAGEDEPOT_MODEL_CLASSES")) {
        (false, _) => Self::EACH.len(),
        (true, None) => 1,
        (true, Some(_)) => 2,
    };
    /// All classes, smallest first.
    pub const ALL: [Class; Self::COUNT] = {
        let mut all = [Class::Order0; Self::COUNT];
        let mut at = 0;
        while at < Self::COUNT {
            all[at] = Self::EACH[at];
            at += 1;
        }
        all
    };
    const EACH: [Class; 11] = [
        Class::Order0,
        Class::Order1,
        Class::Order2,
        Class::Order3,
        Class::Order4,
        Class::Order5,
        Class::Order6,
        Class::Order7,
        Class::Order8,
        Class::Order9,
        Class::Order10,
    ];

    /// The class of an order. `None` in models alone, of orders that have no magazines there.
    #[inline]
    pub const fn of(order: Order) -> Option<Class> {
        if order.index() < Self::COUNT { Some(Self::EACH[order.index()]) } else { None }
    }

    /// The order of the class's blocks.
    pub const fn order(self) -> Order {
        match Order::new(self as u32) {
            Some(order) => order,
            None => unreachable!(),
        }
    }

    /// Frames per block of this class.
    pub const fn block_frames(self) -> u32 {
        self.order().frames()
    }

    /// Blocks in a full magazine: 63 frames or 15 blocks, whichever is more; but at most 2048
    /// frames or 7 blocks, whichever is more. So the larger the block, the fewer may hide, and a
    /// slow path serves 7 requests at least. Magazines of orders 7 and 8 hold whole pageblocks,
    /// which the store moves as one (`docs/decisions/0011-entire-pageblocks.md`). A refill of large
    /// blocks takes fewer unless the CPU uses many (`CpuZone::refill_size`). Models have small
    /// magazines, so that few steps fill one.
    #[inline]
    pub const fn rounds(self) -> u32 {
        const ROUNDS: [u32; Class::COUNT] = {
            let mut rounds = [0; Class::COUNT];
            let mut at = 0;
            while at < rounds.len() {
                rounds[at] = Class::ALL[at].rounds_by_rule();
                at += 1;
            }
            rounds
        };
        match (IS_LOOM, self) {
            (false, _) => ROUNDS[self as usize],
            (true, Class::Order0) => 2,
            (true, _) => 1,
        }
    }

    /// [`rounds`](Self::rounds) outside of models.
    const fn rounds_by_rule(self) -> u32 {
        const fn or_more(frames: u32, class: Class, blocks: u32) -> u32 {
            let fitting = frames / class.block_frames();
            if fitting > blocks { fitting } else { blocks }
        }
        let (wanted, most) = (or_more(63, self, 15), or_more(2048, self, 7));
        self.whole_pageblocks(if wanted < most { wanted } else { most })
    }

    /// Rounds a number of blocks down to whole pageblocks, if two or four blocks make up one: the
    /// rest of a pageblock would go to the store in words, and come back in words.
    pub const fn whole_pageblocks(self, blocks: u32) -> u32 {
        match Order::PAGEBLOCK.frames() / self.block_frames() {
            each @ (2 | 4) => blocks - blocks % each,
            _ => blocks,
        }
    }

    /// Whether a magazine of these blocks is so much memory that refills are by what the CPU uses.
    #[inline]
    pub const fn is_large(self) -> bool {
        self.magazine_frames() > Order::PAGEBLOCK.frames()
    }

    /// Frames in a full magazine.
    pub const fn magazine_frames(self) -> u32 {
        self.rounds() * self.block_frames()
    }
}

const _: () = assert!(IS_LOOM || Class::COUNT == Order::COUNT);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Class;

    #[test]
    fn magazines_hold_what_the_rule_says() {
        let rounds = Class::ALL.map(Class::rounds);
        assert_eq!(rounds, [63, 31, 15, 15, 15, 15, 15, 12, 8, 7, 7]);
        assert!([Class::Order7, Class::Order8].iter().all(|c| c.magazine_frames() % 512 == 0));
    }
}
