//! The orders that have magazines.

use super::units::Order;

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
    /// 16 frames.
    Order4,
    /// 32 frames.
    Order5,
    /// 64 frames.
    Order6,
    /// [`Order::PAGEBLOCK`].
    Pageblock,
}

impl Class {
    /// How many there are. Most models have one, since each class repeats the steps of the others;
    /// the models of `loom_tests::classes` are compiled with two.
    pub const COUNT: usize = match (cfg!(loom), option_env!("PAGEDEPOT_MODEL_CLASSES")) {
        (false, _) => 8,
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
    const EACH: [Class; 8] = [
        Class::Order0,
        Class::Order1,
        Class::Order2,
        Class::Order3,
        Class::Order4,
        Class::Order5,
        Class::Order6,
        Class::Pageblock,
    ];

    /// The class of an order, if that order is cached.
    #[inline]
    pub const fn of(order: Order) -> Option<Class> {
        match order.get() {
            0 => Some(Class::Order0),
            1 if Self::COUNT > 1 => Some(Class::Order1),
            _ if cfg!(loom) => None,
            2 => Some(Class::Order2),
            3 => Some(Class::Order3),
            4 => Some(Class::Order4),
            5 => Some(Class::Order5),
            6 => Some(Class::Order6),
            9 => Some(Class::Pageblock),
            _ => None,
        }
    }

    /// Its order.
    pub const fn order(self) -> Order {
        const ORDERS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 9];
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
        const ROUNDS: [u32; 8] = [63, 31, 15, 7, 7, 7, 7, 1];
        #[cfg(loom)]
        const ROUNDS: [u32; 8] = [2, 1, 1, 1, 1, 1, 1, 1];
        ROUNDS[self as usize]
    }

    /// Frames in a full magazine.
    pub const fn magazine_frames(self) -> u32 {
        self.rounds() * self.block_frames()
    }
}
