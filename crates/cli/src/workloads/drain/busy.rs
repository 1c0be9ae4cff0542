//! Drains of a CPU whose owner works.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagedepot::{CpuId, Mode};

use super::drains::{DrainSample, DrainTimes};
use super::owner::{self, GroupTimes, OwnerWork};
use crate::design::Allocator;
use crate::harness::barrier::Waiter;
use crate::harness::clock::Scale;
use crate::harness::{Contender, Seat, Subject, interrupts, lock};
use crate::names::Design;

/// The rate of drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Drains so many times a second; 0 is never.
    PerSecond(u32),
    /// One after the other.
    BackToBack,
}

impl Rate {
    /// The value of the param `drains_per_s`.
    pub fn as_param(self) -> i64 {
        match self {
            Rate::PerSecond(rate) => rate.into(),
            Rate::BackToBack => -1,
        }
    }
}

/// Metrics of a window: the owner's mean, p50, p99 and p99.9 in ns per operation; the drainer's
/// median ns and mean pages per drain, and interrupts on the owner's CPU; what the design counts
/// itself: interruptions, mean pages that a drain left pending, and mean ns until they were
/// collected.
pub const METRICS: usize = 10;
/// Index of the metric that counts interrupts on the owner's CPU.
pub const INTERRUPTS: usize = 6;

/// Number of metrics that the owner knows: the first four.
const OWNERS: usize = 4;

/// An owner and a drainer.
pub struct Busy<A: Allocator> {
    pub allocator: Arc<A>,
    pub work: OwnerWork,
    pub rate: Rate,
    pub mode: Mode,
    /// Length of a window.
    pub length: Duration,
    /// The owner's CPU, which is drained.
    pub owner: CpuId,
    pub link: BusyLink,
    pub held: Mutex<Vec<A::Block>>,
}

/// State shared by owner and drainer. Counts only grow.
#[derive(Default)]
#[repr(align(128))]
pub struct BusyLink {
    /// Windows begun and ended; the drainer writes these.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Fills wanted; the drainer writes this.
    wanted: AtomicU64,
    by_owner: ByOwner,
}

#[derive(Default)]
#[repr(align(128))]
struct ByOwner {
    /// Fills done.
    filled: AtomicU64,
    /// Windows left.
    left: AtomicU64,
}

// In this file, a Release publishes what the thread did before, its drain or its fill, and pairs
// with the Acquire that waits for the count.

fn wait_for(count: &AtomicU64, value: u64) {
    let mut waiter = Waiter::default();
    while count.load(Ordering::Acquire) < value {
        waiter.pause();
    }
}

impl<A: Allocator> Busy<A> {
    fn own(&self) -> [f64; METRICS] {
        let mut held = lock(&self.held);
        held.reserve(owner::HELD_BLOCKS_MAX as usize);
        let mut times = GroupTimes::new();
        let window = self.link.by_owner.left.load(Ordering::Relaxed) + 1;
        wait_for(&self.link.begun, window);
        let scale = Scale::start();
        let mut filled = self.link.by_owner.filled.load(Ordering::Relaxed);
        // Groups before the next fill: one that is not counted, and one that is. Else a drainer
        // that is faster than a fill would leave nothing to count.
        let mut due_groups = 0u32;
        while due_groups > 0 || self.link.ended.load(Ordering::Acquire) < window {
            if due_groups == 0 && self.link.wanted.load(Ordering::Acquire) > filled {
                owner::fill(&*self.allocator, &mut held);
                filled += 1;
                self.link.by_owner.filled.store(filled, Ordering::Release);
                // The drainer has that line. Later stores queue up behind this one, so the next
                // group would wait for it: this wait is the bench's, not the allocator's.
                fence(Ordering::SeqCst);
                times.skip_next();
                due_groups = 2;
            }
            self.work.step(&*self.allocator, &mut held, &mut times);
            due_groups = due_groups.saturating_sub(1);
        }
        let mut metrics = [f64::NAN; METRICS];
        metrics[..OWNERS].copy_from_slice(&times.per_op_ns(&scale));
        self.link.by_owner.left.store(window, Ordering::Release);
        metrics
    }

    fn drain(&self) -> [f64; METRICS] {
        let window = self.link.by_owner.left.load(Ordering::Relaxed) + 1;
        let mut drains = DrainTimes::new();
        let counts_before = self.allocator.counts();
        let interrupts_before = interrupts::sent_to(self.owner);
        let scale = Scale::start();
        self.link.begun.store(window, Ordering::Release);
        self.drain_for(&mut drains);
        self.link.ended.store(window, Ordering::Release);
        wait_for(&self.link.by_owner.left, window);
        let interrupts = interrupts::sent_to(self.owner).zip(interrupts_before);
        let counted = DrainSample::between(counts_before, self.allocator.counts());
        let interrupts = interrupts.map_or(f64::NAN, |(after, before)| (after - before) as f64);
        let mut metrics = [f64::NAN; METRICS];
        metrics[OWNERS..].copy_from_slice(&[
            drains.median_ns(&scale),
            drains.mean_pages(),
            interrupts,
            counted.interruptions,
            drains.mean_pending_pages(),
            counted.collect_ns,
        ]);
        metrics
    }

    fn drain_for(&self, drains: &mut DrainTimes) {
        let start = Instant::now();
        let until = start + self.length;
        let period = match self.rate {
            Rate::PerSecond(0) => return spin_until(until),
            Rate::PerSecond(rate) => Duration::from_secs(1) / rate,
            Rate::BackToBack => Duration::ZERO,
        };
        // In the middle of the first period, so that the shortest window has a drain of the
        // longest.
        let mut due = start + (period / 2).min(self.length / 2);
        while due < until && Instant::now() < until {
            if self.work == OwnerWork::Pairs {
                let fill = self.link.wanted.load(Ordering::Relaxed) + 1;
                self.link.wanted.store(fill, Ordering::Release);
                wait_for(&self.link.by_owner.filled, fill);
            }
            spin_until(due);
            drains.time(|| self.allocator.drain(Some(self.owner), self.mode));
            // Drains that were missed, because something else ran here, are not made up for: they
            // would come back to back.
            due = (due + period).max(Instant::now());
        }
        spin_until(until);
    }
}

impl<A: Allocator> Contender<METRICS> for Busy<A> {
    fn subject(&self) -> &dyn Subject {
        &*self.allocator
    }

    fn window(&self, seat: Seat, _units: u64) -> [f64; METRICS] {
        if seat.index == 0 { self.own() } else { self.drain() }
    }

    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        join(seats)
    }
}

/// Each metric from the seat that measures it.
pub fn join<const M: usize>(seats: &[[f64; M]]) -> [f64; M] {
    std::array::from_fn(|metric| {
        seats.iter().map(|seat| seat[metric]).find(|x| !x.is_nan()).unwrap_or(f64::NAN)
    })
}

/// The idle window: as long as the others, with an owner that runs, but touches no allocator, and
/// no drains. What interrupts it is not the designs' doing.
pub struct IdleWindow {
    /// Length of a window.
    pub length: Duration,
    /// The owner's CPU.
    pub owner: CpuId,
}

impl Contender<METRICS> for IdleWindow {
    fn subject(&self) -> &dyn Subject {
        &Design::Kernel
    }

    fn window(&self, seat: Seat, _units: u64) -> [f64; METRICS] {
        let before = (seat.index == 1).then(|| interrupts::sent_to(self.owner)).flatten();
        spin_until(Instant::now() + self.length);
        let after = before.and_then(|before| Some(interrupts::sent_to(self.owner)? - before));
        let mut metrics = [f64::NAN; METRICS];
        metrics[INTERRUPTS] = after.map_or(f64::NAN, |count| count as f64);
        metrics
    }

    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        join(seats)
    }
}

/// Waits without sleeping: the interrupt that wakes a sleeper would be counted.
pub fn spin_until(time: Instant) {
    while Instant::now() < time {
        std::hint::spin_loop();
    }
}
