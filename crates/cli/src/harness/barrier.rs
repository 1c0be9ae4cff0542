//! A barrier at which seats wait for each other, and waiting in general.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Looks before a waiter yields its CPU: seats have CPUs of their own, but other processes may run
/// there too.
const SPINS: u32 = 1 << 14;

/// A barrier whose waiters spin: one that sleeps is woken by an interrupt, into the window that
/// counts interrupts, and at a time of its own.
pub struct SpinBarrier {
    seats: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    broken: AtomicBool,
}

impl SpinBarrier {
    /// Makes a barrier for `seats` threads.
    pub fn new(seats: usize) -> Self {
        SpinBarrier {
            seats,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// Waits for all seats.
    ///
    /// # Panics
    /// When another seat panicked, and so will never arrive.
    pub fn wait(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        // AcqRel: the last to arrive acquires what the others released by arriving, and passes it
        // on by the Release below.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.seats {
            self.arrived.store(0, Ordering::Relaxed);
            // Release: pairs with the Acquire below; waiters see `arrived` reset.
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut waiter = Waiter::default();
        while self.generation.load(Ordering::Acquire) == generation {
            assert!(!self.broken.load(Ordering::Relaxed), "another seat panicked");
            waiter.pause();
        }
    }

    /// Breaks the barrier if the holder panics.
    pub fn guard(&self) -> impl Drop + '_ {
        Guard(self)
    }
}

struct Guard<'b>(&'b SpinBarrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// The pauses of a waiting loop: spins, and yields now and then.
#[derive(Default)]
pub struct Waiter(u32);

impl Waiter {
    /// Call it between two looks.
    pub fn pause(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(SPINS) {
            thread::yield_now();
        } else {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seat_passes_before_all_have_arrived() {
        const SEATS: usize = 3;
        const STEPS: usize = 200;
        let barrier = SpinBarrier::new(SEATS);
        let steps: [AtomicUsize; SEATS] = Default::default();
        thread::scope(|scope| {
            for seat in 0..SEATS {
                let (barrier, steps) = (&barrier, &steps);
                scope.spawn(move || {
                    for step in 1..=STEPS {
                        steps[seat].store(step, Ordering::Relaxed);
                        barrier.wait();
                        assert!(steps.iter().all(|other| other.load(Ordering::Relaxed) >= step));
                        barrier.wait();
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_of_one_seat_ends_the_others() {
        let barrier = SpinBarrier::new(2);
        let results = thread::scope(|scope| {
            let waiting = scope.spawn(|| barrier.wait());
            let failing = scope.spawn(|| {
                let _guard = barrier.guard();
                panic!("on purpose");
            });
            [waiting.join().is_err(), failing.join().is_err()]
        });
        assert_eq!(results, [true, true]);
    }
}
