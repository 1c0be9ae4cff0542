//! Numbers that a seed repeats.

/// Marsaglia's xorshift, 64 bits: good enough to scatter frames.
pub struct Random(u64);

impl Random {
    /// `seed` and `stream` make a sequence of their own.
    pub fn new(seed: u64, stream: usize) -> Self {
        let state = (seed << 16 | stream as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Random(state.max(1))
    }

    /// Less than `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }

    /// Fisher and Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
