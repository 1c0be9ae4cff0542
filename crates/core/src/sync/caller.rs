//! Callers, as words name them beside what they hold.

use core::num::NonZeroUsize;

/// The caller that has begun what a word shows: its name by
/// [`Environment::caller`](crate::cpus::Environment::caller), in the 28 bits that such a word has
/// for it.
///
/// Two callers have the same bits once in 2^27. A request then takes the other's pages for those of
/// its own thread, and does not sleep for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller(u32);

impl Caller {
    pub const BITS: u32 = 28;
    /// A caller without a name.
    pub const NONE: Caller = Caller(0);

    /// The caller with this name.
    #[inline]
    pub fn of(name: Option<NonZeroUsize>) -> Self {
        // By 2^64 over the golden ratio: names are often addresses that differ in a few bits.
        let spread = |name: NonZeroUsize| {
            (name.get() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - Self::BITS)
        };
        name.map_or(Self::NONE, |name| Caller(spread(name) as u32 | 1))
    }

    /// The caller with these bits.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Caller(bits as u32 & ((1 << Self::BITS) - 1))
    }

    /// The caller's bits; 0 without a name.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0.into()
    }

    /// Whether it has a name.
    #[inline]
    pub fn has_name(self) -> bool {
        self != Self::NONE
    }
}
