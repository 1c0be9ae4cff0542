//! A ring from one CPU to another, like the one of the lab's workloads.

use std::cell::{Cell, RefCell};

use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};
use pagedepot_sim_machine::{self as machine, Access};

/// Slots that each side prefetches ahead.
const AHEAD: u64 = 64;

/// A counter on lines of its own.
#[repr(align(128))]
struct Count(AtomicU64);

/// The state that one side keeps for itself.
#[derive(Default)]
struct Side {
    count: u64,
    /// The other side's counter, as last seen.
    seen: u64,
}

/// A ring of numbers, with one producer and one consumer.
pub struct Ring {
    slots: Box<[AtomicU32]>,
    at_once: u64,
    filled: Count,
    emptied: Count,
    producer: RefCell<Side>,
    consumer: RefCell<Side>,
    /// The producer's count when it ended.
    last: Cell<Option<u64>>,
}

impl Ring {
    /// A ring with `slots` slots. Its sides publish their counts after `at_once` numbers.
    pub fn new(slots: usize, at_once: u64) -> Self {
        let count = || Count(AtomicU64::new(0));
        Ring {
            slots: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            at_once,
            filled: count(),
            emptied: count(),
            producer: RefCell::default(),
            consumer: RefCell::default(),
            last: Cell::new(None),
        }
    }

    fn slot(&self, count: u64) -> &AtomicU32 {
        &self.slots[count as usize % self.slots.len()]
    }

    fn fetch_ahead(&self, count: u64) {
        if count.is_multiple_of(16) {
            machine::touch(self.slot(count), Access::Prefetch);
        }
    }

    /// Puts a number in if there is room. Otherwise waits a little and returns `false`.
    pub fn put(&self, number: impl FnOnce() -> u32) -> bool {
        let mut side = self.producer.borrow_mut();
        let room = self.slots.len() as u64;
        if side.count - side.seen >= room {
            side.seen = self.emptied.0.load(Ordering::Acquire);
            if side.count - side.seen >= room {
                machine::spin();
                return false;
            }
        }
        if side.count + AHEAD - side.seen < room {
            self.fetch_ahead(side.count + AHEAD);
        }
        self.slot(side.count).store(number(), Ordering::Relaxed);
        side.count += 1;
        if side.count.is_multiple_of(self.at_once) {
            self.filled.0.store(side.count, Ordering::Release);
        }
        true
    }

    /// Closes the ring: the producer puts nothing more in.
    pub fn close(&self) {
        let last = self.producer.borrow().count;
        self.last.set(Some(last));
        self.filled.0.store(last, Ordering::Release);
    }

    /// Takes a number out if there is one. Otherwise waits a little and returns `false`.
    pub fn take(&self, with: impl FnOnce(u32)) -> bool {
        let mut side = self.consumer.borrow_mut();
        if side.count == side.seen {
            side.seen = self.filled.0.load(Ordering::Acquire);
            if side.count == side.seen {
                machine::spin();
                return false;
            }
        }
        with(self.slot(side.count).load(Ordering::Relaxed));
        side.count += 1;
        if side.count.is_multiple_of(self.at_once) {
            self.emptied.0.store(side.count, Ordering::Release);
        }
        true
    }

    /// Takes out the numbers that are left once the producer has closed the ring or waits for room.
    pub fn empty(&self, mut with: impl FnMut(u32)) {
        loop {
            let mut side = self.consumer.borrow_mut();
            side.seen = self.filled.0.load(Ordering::Acquire);
            let end = side.seen;
            while side.count < end {
                with(self.slot(side.count).load(Ordering::Relaxed));
                side.count += 1;
            }
            self.emptied.0.store(end, Ordering::Release);
            if self.last.get() == Some(end) {
                return;
            }
            drop(side);
            machine::spin();
        }
    }
}
