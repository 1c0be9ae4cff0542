//! Drains of a CPU whose owner does not run, because it is asleep or was stopped in the middle of
//! an operation, or that is isolated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pagedepot::{CpuId, Mode};

use super::busy::{join, spin_until};
use super::drains::DrainTimes;
use super::owner;
use super::stopper::{Stopper, Target};
use crate::design::Allocator;
use crate::harness::barrier::Waiter;
use crate::harness::clock::Scale;
use crate::harness::{Contender, Seat, Subject, interrupts, lock};

/// The state of the owner, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Asleep, outside the allocator; its CPU is idle.
    Idle,
    /// Stopped by a signal, most likely in the middle of an operation.
    Stopped,
    /// The owner is at work, on a CPU that full drains leave alone.
    Isolated,
}

/// Drains per window whose time is taken, and whose interrupts are counted: reading the counters
/// takes long and leaves the caches cold.
const TIMED: u64 = 6;
const COUNTED: u64 = 2;

/// Time for a CPU to become idle.
const SETTLE: Duration = Duration::from_micros(100);

/// Metrics of a window: median and longest ns and mean pages per drain, interrupts on the owner's
/// CPU per drain, and mean pages that a drain left pending.
pub const METRICS: usize = 5;

/// An owner and a drainer.
pub struct HaltedSubject<A: Allocator> {
    pub allocator: Arc<A>,
    pub state: State,
    pub mode: Mode,
    /// The owner's CPU, which is drained.
    pub owner: CpuId,
    pub stopper: &'static Stopper,
    pub link: HaltedLink,
    pub held: Mutex<Vec<A::Block>>,
}

/// State shared by owner and drainer. Counts only grow.
#[derive(Default)]
pub struct HaltedLink {
    /// Drains prepared and done; the drainer writes these.
    wanted: AtomicU64,
    drained: AtomicU64,
    /// Fills done; the owner writes this.
    filled: AtomicU64,
    /// The owner, to wake or to stop, while a window lasts.
    thread: Mutex<Option<(Thread, Target)>>,
}

// In this file, a Release publishes what the thread did before, and pairs with the Acquire that
// waits for the count.

fn wait_for(count: &AtomicU64, value: u64) {
    let mut waiter = Waiter::default();
    while count.load(Ordering::Acquire) < value {
        waiter.pause();
    }
}

impl<A: Allocator> HaltedSubject<A> {
    fn own(&self) {
        let mut held = lock(&self.held);
        held.reserve(owner::HELD_BLOCKS_MAX as usize);
        *self.thread() = Some((thread::current(), Target::this_thread()));
        let first = self.link.filled.load(Ordering::Relaxed) + 1;
        for drain in first..first + TIMED + COUNTED {
            while self.link.wanted.load(Ordering::Acquire) < drain {
                thread::park();
            }
            owner::fill(&*self.allocator, &mut held);
            self.link.filled.store(drain, Ordering::Release);
            while self.link.drained.load(Ordering::Acquire) < drain {
                match self.state {
                    State::Idle => {
                        self.allocator.rest();
                        thread::park();
                    }
                    State::Stopped | State::Isolated => owner::pairs(&*self.allocator),
                }
            }
        }
        *self.thread() = None;
    }

    fn thread(&self) -> std::sync::MutexGuard<'_, Option<(Thread, Target)>> {
        lock(&self.link.thread)
    }

    fn drain(&self) -> [f64; METRICS] {
        let (thread, target) = loop {
            if let Some(owner) = self.thread().clone() {
                break owner;
            }
            thread::yield_now();
        };
        let (mut drains, scale) = (DrainTimes::new(), Scale::start());
        let mut interrupts = Some(0);
        let first = self.link.filled.load(Ordering::Relaxed) + 1;
        for drain in first..first + TIMED + COUNTED {
            self.link.wanted.store(drain, Ordering::Release);
            thread.unpark();
            wait_for(&self.link.filled, drain);
            spin_until(Instant::now() + SETTLE);
            let act = || {
                if self.state == State::Stopped {
                    spin_until(Instant::now() + SETTLE);
                }
                if drain < first + TIMED {
                    drains.time(|| self.allocator.drain(Some(self.owner), self.mode));
                } else {
                    let before = interrupts::sent_to(self.owner);
                    self.allocator.drain(Some(self.owner), self.mode);
                    let during =
                        before.and_then(|before| Some(interrupts::sent_to(self.owner)? - before));
                    interrupts = interrupts.zip(during).map(|(sum, during)| sum + during);
                }
            };
            self.halt(target, act);
            self.link.drained.store(drain, Ordering::Release);
            thread.unpark();
        }
        let per_drain = interrupts.map_or(f64::NAN, |sum| sum as f64 / COUNTED as f64);
        let (median, longest) = (drains.median_ns(&scale), drains.longest_ns(&scale));
        [median, longest, drains.mean_pages(), per_drain, drains.mean_pending_pages()]
    }

    fn halt(&self, target: Target, act: impl FnOnce()) {
        match self.state {
            State::Idle | State::Isolated => act(),
            // SAFETY: the owner waits for the drain, so it exists until this is over.
            State::Stopped => unsafe { self.stopper.while_stopped(target, act) },
        }
    }
}

impl<A: Allocator> Contender<METRICS> for HaltedSubject<A> {
    fn subject(&self) -> &dyn Subject {
        &*self.allocator
    }

    fn window(&self, seat: Seat, _units: u64) -> [f64; METRICS] {
        if seat.index == 1 {
            return self.drain();
        }
        self.own();
        [f64::NAN; METRICS]
    }

    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        join(seats)
    }
}
