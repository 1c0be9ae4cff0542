//! A ring from one CPU to another, as the workloads of the lab have it.

use std::cell::{Cell, RefCell};

use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};
use pagedepot_sim_machine::{self as machine, Access};

/// Slots ahead for which each side asks.
const AHEAD: u64 = 64;

/// A counter on lines of its own.
#[repr(align(128))]
struct Count(AtomicU64);

/// What one side keeps for itself.
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
    /// What the producer has put in when it ends.
    last: Cell<Option<u64>>,
}

impl Ring {
    /// With room for so many numbers, whose sides tell each other after `at_once` of them.
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

    /// Puts in a number, if there is room; otherwise waits a little.
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

    /// The producer puts in nothing more.
    pub fn close(&self) {
        let last = self.producer.borrow().count;
        self.last.set(Some(last));
        self.filled.0.store(last, Ordering::Release);
    }

    /// Takes out a number, if there is one; otherwise waits a little.
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

    /// Takes out all that is left once the producer has closed the ring or waits for room.
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
