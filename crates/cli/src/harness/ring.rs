//! A ring from one thread to another, of a forked process where it lies in shared memory.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use super::barrier::Waiter;
use super::fork::SharedSlice;

/// Number of slots ahead for whose cache lines each side asks. Otherwise stores wait for the other
/// CPU's lines, in order, and with them all that the allocator stores.
const AHEAD: u64 = 64;

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// A counter on cache lines of its own.
#[repr(align(128))]
struct Count(AtomicU64);

/// A ring with one producer and one consumer. Counts only grow.
pub struct Ring<T> {
    slots: SharedSlice<UnsafeCell<MaybeUninit<T>>>,
    published_at_once: u64,
    /// Written by the producer: slots filled.
    filled: Count,
    /// Written by the consumer: slots emptied.
    emptied: Count,
}

// SAFETY: the producer writes slots that are emptied, the consumer reads those that are filled; the
// counters hand them over.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Makes a ring with room for `slots` items, a power of two. Each side tells the other after
    /// `published_at_once` items, so that the counters' cache lines change hands once per batch;
    /// after fewer in a small ring, so that both sides may work at once.
    pub fn new(slots: u32, published_at_once: u32) -> Self {
        assert!(slots.is_power_of_two(), "{slots} slots are no power of two");
        let published_at_once = published_at_once.min(slots / 4).max(1).into();
        let slot = || UnsafeCell::new(MaybeUninit::uninit());
        let slots = SharedSlice::new(slots as usize, slot).expect("memory for a ring's slots");
        let [filled, emptied] = [0; 2].map(|zero| Count(AtomicU64::new(zero)));
        Ring { slots, published_at_once, filled, emptied }
    }

    fn slot(&self, count: u64) -> *mut MaybeUninit<T> {
        self.slots[count as usize & (self.slots.len() - 1)].get()
    }

    /// The slots of a batch.
    fn slots_of<const BATCH: usize>(&self, count: u64) -> *mut [T; BATCH] {
        let first = count as usize & (self.slots.len() - 1);
        UnsafeCell::raw_get(self.slots[first..first + BATCH].as_ptr()).cast()
    }

    /// Asks for the line of a slot, once per line.
    #[inline]
    fn prefetch<const TO_WRITE: bool>(&self, count: u64) {
        #[cfg(target_arch = "x86_64")]
        if count.is_multiple_of((LINE_BYTES / size_of::<T>().max(1)).max(1) as u64) {
            let slot = self.slot(count);
            // SAFETY: hints without architectural effect, on an address inside the ring. The
            // compiler's intrinsic has no hint to write on x86-64 in general.
            unsafe {
                macro_rules! hint {
                    ($instruction:literal) => {
                        std::arch::asm!(
                            concat!($instruction, " [{}]"),
                            in(reg) slot,
                            options(nostack, preserves_flags, readonly),
                        )
                    };
                }
                if TO_WRITE {
                    hint!("prefetchw");
                } else {
                    hint!("prefetcht0");
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = count;
    }

    /// Puts in `items` items. Only one thread at a time.
    pub fn produce(&self, items: u64, mut next: impl FnMut() -> T) {
        let start = self.filled.0.load(Ordering::Relaxed);
        // Acquire, here and below: pairs with the consumer's Release; it has read the slots.
        let mut emptied = self.emptied.0.load(Ordering::Acquire);
        for filled in start..start + items {
            let mut waiter = Waiter::default();
            while filled - emptied >= self.slots.len() as u64 {
                waiter.pause();
                emptied = self.emptied.0.load(Ordering::Acquire);
            }
            if filled + AHEAD - emptied < self.slots.len() as u64 {
                self.prefetch::<true>(filled + AHEAD);
            }
            // SAFETY: the slot is empty, so the producer's.
            unsafe { (*self.slot(filled)).write(next()) };
            if (filled + 1).is_multiple_of(self.published_at_once) {
                // Release, here and below: pairs with the consumer's Acquire; the slots are
                // written.
                self.filled.0.store(filled + 1, Ordering::Release);
            }
        }
        self.filled.0.store(start + items, Ordering::Release);
    }

    /// Puts in so many batches of `BATCH` items, a divisor of the slots, each of which `fill`
    /// writes over `blank` ones; the consumer takes batches, too. Only one thread at a time.
    pub fn produce_batches<const BATCH: usize>(
        &self,
        batches: u64,
        blank: T,
        mut fill: impl FnMut(&mut [T]),
    ) {
        let mut batch = [blank; BATCH];
        let start = self.filled.0.load(Ordering::Relaxed);
        let end = start + batches * BATCH as u64;
        let mut emptied = self.emptied.0.load(Ordering::Acquire);
        for filled in (start..end).step_by(BATCH) {
            fill(&mut batch);
            let mut waiter = Waiter::default();
            while filled + BATCH as u64 - emptied > self.slots.len() as u64 {
                waiter.pause();
                emptied = self.emptied.0.load(Ordering::Acquire);
            }
            for ahead in 0..BATCH as u64 {
                self.prefetch::<true>(filled + BATCH as u64 + ahead);
            }
            // SAFETY: the slots are empty, so the producer's.
            unsafe { self.slots_of::<BATCH>(filled).write(batch) };
            if (filled + BATCH as u64).is_multiple_of(self.published_at_once) {
                self.filled.0.store(filled + BATCH as u64, Ordering::Release);
            }
        }
        self.filled.0.store(end, Ordering::Release);
    }

    /// Takes out so many batches, as [`produce_batches`](Self::produce_batches) puts them in. Only
    /// one thread at a time.
    pub fn consume_batches<const BATCH: usize>(&self, batches: u64, mut take: impl FnMut(&[T])) {
        let start = self.emptied.0.load(Ordering::Relaxed);
        let end = start + batches * BATCH as u64;
        let mut filled = start;
        for emptied in (start..end).step_by(BATCH) {
            let mut waiter = Waiter::default();
            while emptied + BATCH as u64 > filled {
                filled = self.filled.0.load(Ordering::Acquire);
                if emptied + BATCH as u64 > filled {
                    waiter.pause();
                }
            }
            for ahead in 0..BATCH as u64 {
                self.prefetch::<false>(emptied + BATCH as u64 + ahead);
            }
            // SAFETY: the slots are filled, so the consumer's.
            take(&unsafe { self.slots_of::<BATCH>(emptied).read() });
            if (emptied + BATCH as u64).is_multiple_of(self.published_at_once) {
                self.emptied.0.store(emptied + BATCH as u64, Ordering::Release);
            }
        }
        self.emptied.0.store(end, Ordering::Release);
    }

    /// Takes out `items` items. Only one thread at a time.
    pub fn consume(&self, items: u64, mut take: impl FnMut(T)) {
        let start = self.emptied.0.load(Ordering::Relaxed);
        let mut filled = start;
        for emptied in start..start + items {
            let mut waiter = Waiter::default();
            while emptied == filled {
                // Acquire: pairs with the producer's Release.
                filled = self.filled.0.load(Ordering::Acquire);
                if emptied == filled {
                    waiter.pause();
                }
            }
            if emptied + AHEAD < filled {
                self.prefetch::<false>(emptied + AHEAD);
            }
            // SAFETY: the slot is filled, so the consumer's, and was written before it was counted.
            take(unsafe { (*self.slot(emptied)).assume_init() });
            if (emptied + 1).is_multiple_of(self.published_at_once) {
                // Release, here and below: pairs with the producer's Acquire; the slots were read.
                self.emptied.0.store(emptied + 1, Ordering::Release);
            }
        }
        self.emptied.0.store(start + items, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_arrive_in_order_over_several_windows() {
        for (slots, batches) in [(4096, 1), (4096, 700), (32, 50), (16, 33)] {
            let ring = Ring::new(slots, 32);
            for window in 0..3 {
                let first = window * batches * 16;
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut next = first..;
                        ring.produce_batches::<16>(batches, 0, |batch| {
                            batch.iter_mut().zip(&mut next).for_each(|(slot, item)| *slot = item);
                        });
                    });
                    let mut expected = first..;
                    ring.consume_batches::<16>(batches, |batch| {
                        assert!(batch.iter().copied().eq(expected.by_ref().take(16)));
                    });
                    assert_eq!(expected.start, first + batches * 16);
                });
            }
        }
    }

    #[test]
    fn everything_arrives_in_order_over_several_windows() {
        for (slots, items) in
            [(4096, 1), (4096, 31), (4096, 32), (4096, 12_293), (1, 100), (8, 1000)]
        {
            let ring = Ring::new(slots, 32);
            let sum = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut next = 0;
                    ring.produce(items, || {
                        next += 1;
                        next
                    });
                });
                let mut expected = 0;
                ring.consume(items, |item: u64| {
                    expected += 1;
                    assert_eq!(item, expected);
                });
                expected
            });
            assert_eq!(sum, items);
        }
    }
}
