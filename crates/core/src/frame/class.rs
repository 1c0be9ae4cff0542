//! The orders that CPUs cache.
//!
//! # Another class
//! It takes one line in the list below. Everything else is computed from the list: front words and
//! their places, shelves, magazines, metadata, drains. Compile-time assertions limit the number of
//! classes. A link between magazines has three bits for a class (`pcp/part.rs`). The words that
//! refuse are gates of CPUs that do not exist (`front/block.rs`). The glossary and
//! `Drained::unreachable_pages` list the orders for readers.

use super::units::Order;

/// Defines the classes from one list: the enum, the orders, and the rounds of a magazine.
macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident: order $order:literal, magazines of $rounds:literal;)*) => {
        /// An order that CPUs cache.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Class {
            $($(#[$doc])* $class,)*
        }

        impl Class {
            const EACH: &[Class] = &[$(Class::$class),*];
            const ORDERS: &[u32] = &[$($order),*];
            const ROUNDS: &[u32] = &[$($rounds),*];

            /// The class of an order, if that order is cached.
            #[inline]
            pub const fn of(order: Order) -> Option<Class> {
                match order.get() {
                    $($order if (Class::$class as usize) < Self::COUNT => Some(Class::$class),)*
                    _ => None,
                }
            }
        }
    };
}

// The larger the block, the fewer blocks a magazine has: 63 blocks of order 9 would be 126 MiB. A
// magazine has room for `word::ROUNDS_MAX`, 63.
classes! {
    /// One frame.
    Order0: order 0, magazines of 63;
    /// Two frames.
    Order1: order 1, magazines of 31;
    /// Four frames.
    Order2: order 2, magazines of 15;
    /// Eight frames.
    Order3: order 3, magazines of 7;
    /// 16 frames.
    Order4: order 4, magazines of 7;
    /// 32 frames.
    Order5: order 5, magazines of 7;
    /// 64 frames.
    Order6: order 6, magazines of 7;
    /// [`Order::PAGEBLOCK`].
    Pageblock: order 9, magazines of 1;
}

impl Class {
    /// The number of classes. Most models have one, since each class repeats the steps of the
    /// others; the models of `loom_tests::classes` are compiled with two.
    pub const COUNT: usize = match (cfg!(loom), option_env!("PAGEDEPOT_MODEL_CLASSES")) {
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

    /// The order of the class's blocks.
    pub const fn order(self) -> Order {
        match Order::new(Self::ORDERS[self as usize]) {
            Some(order) => order,
            None => unreachable!(),
        }
    }

    /// Frames per block of this class.
    pub const fn block_frames(self) -> u32 {
        self.order().frames()
    }

    /// Blocks in a full magazine. Models have small magazines, so that few steps fill one.
    #[inline]
    pub const fn rounds(self) -> u32 {
        match (cfg!(loom), self) {
            (false, _) => Self::ROUNDS[self as usize],
            (true, Class::Order0) => 2,
            (true, _) => 1,
        }
    }

    /// Frames in a full magazine.
    pub const fn magazine_frames(self) -> u32 {
        self.rounds() * self.block_frames()
    }
}
