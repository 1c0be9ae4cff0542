//! Waiting without sleep.

use super::prim::{AtomicU32, Ordering, spin_hint};

/// Looks at the word before a waiter that cannot sleep gives up.
const WAIT_SPINS: u32 = if cfg!(loom) { 1 } else { 1000 };

/// Spins while `word` is `seen`, at most 1000 times.
pub fn spin_while(word: &AtomicU32, seen: u32) {
    for _ in 0..WAIT_SPINS {
        // Relaxed: the caller looks again, and orders what follows.
        if word.load(Ordering::Relaxed) != seen {
            return;
        }
        spin_hint();
    }
}
