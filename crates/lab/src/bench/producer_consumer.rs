//! `producer-consumer`: pages allocated on one CPU and freed on another, as network buffers are.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Settings, Workload, samples_of};
use crate::design::{self, Design, Subject, WithSubject};
use crate::failure::Failure;
use crate::harness::barrier::Waiter;
use crate::harness::{Contender, Seat};
use crate::output::report::{Metric, Params};
use crate::output::{Report, table};

const NAME: &str = "producer-consumer";
const FRAME: Metric = ("frame_ns", "ns");

/// Frames under way at most.
const RING_SLOTS: usize = 4096;
/// Frames that one side moves before it tells the other, so that the counters' cache lines change
/// hands once per batch.
const PUBLISHED_AT_ONCE: u64 = 32;

/// A counter on cache lines of its own.
#[repr(align(128))]
struct Count(AtomicU64);

/// A ring with one producer and one consumer. Counts only grow.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Written by the producer: slots filled.
    filled: Count,
    /// Written by the consumer: slots emptied.
    emptied: Count,
}

// SAFETY: the producer writes slots that are emptied, the consumer reads those that are filled; the
// counters hand them over.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn new() -> Self {
        let slots = (0..RING_SLOTS).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        Ring { slots, filled: Count(AtomicU64::new(0)), emptied: Count(AtomicU64::new(0)) }
    }

    fn slot(&self, count: u64) -> *mut MaybeUninit<T> {
        self.slots[count as usize % RING_SLOTS].get()
    }

    /// Puts in `items` items. Only one thread at a time.
    fn produce(&self, items: u64, mut next: impl FnMut() -> T) {
        let start = self.filled.0.load(Ordering::Relaxed);
        // Acquire, here and below: pairs with the consumer's Release; it has read the slots.
        let mut emptied = self.emptied.0.load(Ordering::Acquire);
        for filled in start..start + items {
            let mut waiter = Waiter::default();
            while filled - emptied >= RING_SLOTS as u64 {
                waiter.pause();
                emptied = self.emptied.0.load(Ordering::Acquire);
            }
            // SAFETY: the slot is empty, so the producer's.
            unsafe { (*self.slot(filled)).write(next()) };
            if (filled + 1).is_multiple_of(PUBLISHED_AT_ONCE) {
                // Release, here and below: pairs with the consumer's Acquire; the slots are written.
                self.filled.0.store(filled + 1, Ordering::Release);
            }
        }
        self.filled.0.store(start + items, Ordering::Release);
    }

    /// Takes out `items` items. Only one thread at a time.
    fn consume(&self, items: u64, mut take: impl FnMut(T)) {
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
            // SAFETY: the slot is filled, so the consumer's, and was written before it was counted.
            take(unsafe { (*self.slot(emptied)).assume_init() });
            if (emptied + 1).is_multiple_of(PUBLISHED_AT_ONCE) {
                // Release, here and below: pairs with the producer's Acquire; the slots were read.
                self.emptied.0.store(emptied + 1, Ordering::Release);
            }
        }
        self.emptied.0.store(start + items, Ordering::Release);
    }
}

struct Pair<S: Subject> {
    subject: S,
    ring: Ring<S::Block>,
}

impl<S: Subject> Contender<1> for Pair<S> {
    fn design(&self) -> Design {
        S::DESIGN
    }

    fn enter(&self) {
        self.subject.enter();
    }

    fn leave(&self) {
        self.subject.leave();
    }

    fn check(&mut self) -> Result<(), String> {
        self.subject.check()
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        if seat.index == 0 {
            self.ring.produce(units, || design::alloc::<S, 0>(&self.subject));
        } else {
            self.ring.consume(units, |block| self.subject.free::<0>(block));
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }

    /// It takes as long as the slower side.
    fn combine(&self, seats: &[[f64; 1]]) -> [f64; 1] {
        [seats.iter().map(|seat| seat[0]).fold(0.0, f64::max)]
    }
}

struct ToContender;

impl WithSubject for ToContender {
    type Output = Box<dyn Contender<1>>;

    fn with<S: Subject + 'static>(self, subject: S) -> Self::Output {
        Box::new(Pair { subject, ring: Ring::new() })
    }
}

/// Measures it, on the first two CPUs.
pub fn run(settings: &Settings) -> Result<Report, Failure> {
    if settings.cpus.len() < 2 {
        return Err(Failure::Usage(format!(
            "`bench {NAME}` needs two CPUs: give --cpus 2, or run it where there are two"
        )));
    }
    let demand = settings.demand(2, 2 * RING_SLOTS as u32, 1);
    let mut contenders = Vec::new();
    for design in settings.designs(Workload::ProducerConsumer)? {
        contenders.push(design::make(design, &demand, ToContender)?);
    }
    let series = settings.interleave(NAME, &mut contenders, 2, settings.schedule())?;
    let mut report = Report::default();
    let mut table = table::new(["design", "ns per page", "quartiles", "x floor-tls"]);
    for one in &series {
        let samples = &one.samples[0];
        report.add(NAME, one.design, FRAME, (2, &Params::new()), samples);
        let floor = samples_of(&series, Design::FloorTls, 0);
        let cells = [table::median(samples), table::quartiles(samples), table::ratio(samples, floor)];
        table.add_row([one.design.name().to_owned()].into_iter().chain(cells));
    }
    report.say(format!(
        "{NAME}: allocated on one CPU, freed on another (floors have no store, so theirs is the cost of the ring){}",
        settings.caveat()
    ));
    report.say(table::align(table, 1));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_in_order_over_several_windows() {
        let ring = Ring::new();
        for items in [1, 31, 32, 3 * RING_SLOTS as u64 + 5] {
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
