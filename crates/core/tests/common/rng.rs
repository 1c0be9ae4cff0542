//! Random numbers that a printed seed repeats.

use std::time::{SystemTime, UNIX_EPOCH};

/// xorshift64* (Vigna, 2016): no library, so that a seed gives the same run in ten years.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that xorshift never leaves.
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Less than `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// `PAGEDEPOT_SEED`, or another one each time; printed, so that a failure can be repeated.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var("PAGEDEPOT_SEED") {
        Ok(seed) => {
            seed.parse().expect("PAGEDEPOT_SEED is a number, as printed by the test that failed")
        }
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007),
    };
    println!("{test}: PAGEDEPOT_SEED={seed}");
    seed
}
