//! A map of held frames, to find one that is handed out twice.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use ostd::mm::{PAGE_SIZE, Paddr};

use super::refill::usable_memory;

/// A bit for each frame.
pub struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// Makes marks for all memory that the loader has told of.
    pub fn new() -> Self {
        let end = usable_memory().map(|region| region.end() / PAGE_SIZE).max().unwrap_or(0);
        Marks((0..=end / 64).map(|_| AtomicU64::new(0)).collect())
    }

    fn bit(&self, addr: Paddr) -> (&AtomicU64, u64) {
        let frame = addr / PAGE_SIZE;
        (&self.0[frame / 64], 1 << (frame % 64))
    }

    /// Marks frames as held; the first that was already.
    pub fn set(&self, frames: &[Paddr]) -> Option<Paddr> {
        // Relaxed: a bit has all of its changes in one order.
        let was_set = |addr: &Paddr| {
            let (word, bit) = self.bit(*addr);
            word.fetch_or(bit, Ordering::Relaxed) & bit != 0
        };
        frames.iter().copied().fold(None, |found, addr| {
            let was_held = was_set(&addr);
            found.or(was_held.then_some(addr))
        })
    }

    /// Marks frames as free, before they are.
    pub fn clear(&self, frames: &[Paddr]) {
        for &addr in frames {
            let (word, bit) = self.bit(addr);
            // Relaxed: as above; the free that follows orders this before the next holder's mark.
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}
