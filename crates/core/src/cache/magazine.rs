//! Magazines: fixed arrays of frames of one zone, order and mobility.
//!
//! A magazine has one owner at any time: a front word that names it, a shelf it is linked into,
//! the stack of empties, or the code that took it from one of these. Its memory is type-stable:
//! once a magazine, always a magazine, so a stale index can be read through (the tag of the stack
//! then refuses the stale reader's compare-and-swap).

use core::num::NonZeroU32;

use crate::frame::Order;
use crate::prim::AtomicU32;

/// Rounds of the largest magazine.
#[cfg(not(loom))]
pub const SLOTS: usize = 63;
#[cfg(loom)]
pub const SLOTS: usize = 2;

/// A magazine's number; 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MagazineIndex(NonZeroU32);

impl MagazineIndex {
    /// Bits an index has: what the previous field of a front word holds.
    pub const BITS: u32 = 21;

    /// Number `index`; `None` for 0.
    pub const fn new(index: u32) -> Option<Self> {
        match NonZeroU32::new(index) {
            Some(index) => Some(MagazineIndex(index)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// A magazine: slots, and the link of the stack it may be in.
///
/// Slots are relaxed atomics because an owner's sequence may read one that a drainer has just
/// taken; that sequence then never commits.
#[repr(C, align(64))]
pub struct Magazine {
    /// Frames; the first `rounds` of them are meant.
    pub slots: [AtomicU32; SLOTS],
    /// The magazine below in a stack.
    pub next: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Magazine>() == 256 && align_of::<Magazine>() == 64);

impl Magazine {
    /// An empty magazine.
    pub fn new() -> Self {
        Magazine { slots: core::array::from_fn(|_| AtomicU32::new(0)), next: AtomicU32::new(0) }
    }
}

impl Default for Magazine {
    fn default() -> Self {
        Self::new()
    }
}

/// The orders that have magazines.
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
    /// [`Order::PAGEBLOCK`].
    Pageblock,
}

impl Class {
    /// How many there are. Most models have one, since each class repeats the steps of the others;
    /// the models of `loom_tests::classes` are compiled with two.
    pub const COUNT: usize = match (cfg!(loom), option_env!("PAGEDEPOT_MODEL_CLASSES")) {
        (false, _) => 5,
        (true, None) => 1,
        (true, Some(_)) => 2,
    };
    /// All of them, smallest first.
    pub const ALL: [Class; Self::COUNT] = {
        let mut all = [Class::Order0; Self::COUNT];
        let mut at = 0;
        while at < Self::COUNT {
            all[at] = Self::EACH[at];
            at += 1;
        }
        all
    };
    const EACH: [Class; 5] =
        [Class::Order0, Class::Order1, Class::Order2, Class::Order3, Class::Pageblock];

    /// The class of an order, if that order is cached.
    #[inline]
    pub const fn of(order: Order) -> Option<Class> {
        match order.get() {
            0 => Some(Class::Order0),
            1 if Self::COUNT > 1 => Some(Class::Order1),
            _ if cfg!(loom) => None,
            2 => Some(Class::Order2),
            3 => Some(Class::Order3),
            9 => Some(Class::Pageblock),
            _ => None,
        }
    }

    /// Its order.
    pub const fn order(self) -> Order {
        const ORDERS: [u32; 5] = [0, 1, 2, 3, 9];
        match Order::new(ORDERS[self as usize]) {
            Some(order) => order,
            None => unreachable!(),
        }
    }

    /// Frames per block of this class.
    pub const fn block_frames(self) -> u32 {
        self.order().frames()
    }

    /// Blocks in a full magazine. 63 blocks of order 9 would be 126 MiB: the larger the block,
    /// the fewer may hide.
    #[inline]
    pub const fn rounds(self) -> u32 {
        #[cfg(not(loom))]
        const ROUNDS: [u32; 5] = [63, 31, 15, 7, 1];
        #[cfg(loom)]
        const ROUNDS: [u32; 5] = [2, 1, 1, 1, 1];
        ROUNDS[self as usize]
    }

    /// Frames in a full magazine.
    pub const fn magazine_frames(self) -> u32 {
        self.rounds() * self.block_frames()
    }
}
