//! The distance of CPUs: a line that one writes and another answers.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use pagedepot::CpuId;
use serde::{Deserialize, Serialize};

use super::barrier::Waiter;
use super::cpus;

/// Time until a line written by one CPU and answered by another is back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    pub from: u32,
    pub to: u32,
    pub ns: f64,
}

/// Round trips per batch, and batches: the fastest batch counts.
const TRIPS: u32 = 500;
const BATCHES: u32 = 8;
/// Most pairs: some milliseconds each.
const PAIRS_MAX: usize = 63;

/// Lines that go with the question in [`transfer_ns`].
const CARRIED: u32 = 32;

/// A line of its own.
#[repr(align(128))]
struct Line(AtomicU32);

/// Round trips from the first CPU to each of the others, or to 63 that are spread over them.
/// Empty where threads cannot be pinned or there is one CPU.
pub fn from_first(cpus: &[CpuId]) -> Vec<RoundTrip> {
    let Some((&first, others)) = cpus.split_first() else { return Vec::new() };
    if cpus::check_seats(cpus).is_err() {
        return Vec::new();
    }
    let step = others.len().div_ceil(PAIRS_MAX).max(1);
    let pairs = others.iter().step_by(step);
    pairs.map(|&to| RoundTrip { from: first.get(), to: to.get(), ns: between(first, to) }).collect()
}

/// Nanoseconds of a round trip between two CPUs that threads can be pinned to
/// ([`check_seats`](cpus::check_seats)).
pub fn between(from: CpuId, to: CpuId) -> f64 {
    passing(from, to, || (), || ())
}

/// Nanoseconds that a read-modify-write of a line takes which the other CPU has changed: what a
/// line more or less adds to a round trip. The round trip itself says less: a store that follows a
/// load overlaps with what comes next, and a waiting CPU polls.
pub fn transfer_ns(from: CpuId, to: CpuId) -> f64 {
    let carried = carried_lines();
    let carrying_ns = passing(from, to, || change(&carried), || change(&carried));
    (carrying_ns - between(from, to)) / f64::from(2 * CARRIED)
}

/// Nanoseconds that a read-modify-write of a line takes which the first CPU has changed and the
/// second has loaded, on the second: a transfer where both share it then, none where the load has
/// taken it.
pub fn change_after_load_ns(from: CpuId, to: CpuId) -> f64 {
    let carried = carried_lines();
    let least = AtomicU64::new(u64::MAX);
    let answer = || {
        // Relaxed, as in `change`; each load waits for the one before.
        let load = |at: u32, _| carried[at as usize].0.load(Ordering::Relaxed) % CARRIED;
        black_box(carried.iter().fold(0, load));
        let start = Instant::now();
        change(&carried);
        // Relaxed: read when both threads have ended.
        least.fetch_min(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    };
    passing(from, to, || change(&carried), answer);
    least.into_inner() as f64 / f64::from(CARRIED)
}

/// Lines of which each names the next, so that none can be reached before the one before it.
fn carried_lines() -> Vec<Line> {
    (0..CARRIED).map(|at| Line(AtomicU32::new((5 * at + 3) % CARRIED))).collect()
}

/// Changes one line after another, for what it names.
fn change(lines: &[Line]) {
    lines.iter().fold(0, |at: u32, _| {
        // Relaxed: the passed line publishes them. A multiple of their number is no change of the
        // name, and is not optimised away.
        lines[at as usize].0.fetch_add(CARRIED, Ordering::Relaxed) % CARRIED
    });
}

/// Measures like [`between`], with work of each CPU before it passes the line on.
fn passing(from: CpuId, to: CpuId, ask: impl Fn() + Sync, answer: impl Fn() + Sync) -> f64 {
    let line = Line(AtomicU32::new(0));
    let last = 2 * TRIPS * BATCHES;
    // Odd numbers are questions, even ones answers. Acquire and Release pair with the other
    // thread's; nothing but the number is published.
    let take_turn = |turn: u32, work: &dyn Fn()| {
        let mut waiter = Waiter::default();
        while line.0.load(Ordering::Acquire) != turn {
            waiter.pause();
        }
        work();
        line.0.store(turn + 1, Ordering::Release);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            cpus::pin(to);
            (1..last).step_by(2).for_each(|turn| take_turn(turn, &answer));
        });
        let asking = scope.spawn(|| {
            cpus::pin(from);
            let mut least = f64::INFINITY;
            for batch in 0..BATCHES {
                let start = Instant::now();
                let first = 2 * TRIPS * batch;
                (first..first + 2 * TRIPS).step_by(2).for_each(|turn| take_turn(turn, &ask));
                least = least.min(start.elapsed().as_nanos() as f64 / f64::from(TRIPS));
            }
            least
        });
        asking.join().expect("it only stores numbers")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_cpu_is_reached() {
        let cpus = cpus::usable().unwrap();
        let trips = from_first(&cpus);
        assert_eq!(trips.len(), (cpus.len() - 1).min(PAIRS_MAX));
        assert!(trips.iter().all(|trip| trip.ns > 0.0 && trip.ns.is_finite()));
        assert!(from_first(&cpus[..1]).is_empty() && from_first(&[]).is_empty());
    }

    #[test]
    fn lines_name_each_other_in_one_circle() {
        let mut seen = [false; CARRIED as usize];
        let mut at = 0;
        while !std::mem::replace(&mut seen[at as usize], true) {
            at = (5 * at + 3) % CARRIED;
        }
        assert_eq!((at, seen), (0, [true; CARRIED as usize]));
    }
}
