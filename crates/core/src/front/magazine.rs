//! Magazines: fixed arrays of frames of one zone, order and mobility.
//!
//! A magazine has one owner at any time: a front word that names it, a shelf it is linked into,
//! the stack of empties, or the code that took it from one of these. Its memory is type-stable:
//! once a magazine, always a magazine, so a stale index can be read through (the tag of the stack
//! then refuses the stale reader's compare-and-swap).

use core::num::NonZeroU32;

use crate::sync::prim::AtomicU32;

/// Rounds of the largest magazine.
#[cfg(not(loom))]
pub const SLOTS: usize = 63;
#[cfg(loom)]
pub const SLOTS: usize = 2;

/// The number of a magazine. 0 stands for none where numbers are stored.
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
