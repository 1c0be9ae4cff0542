//! Contenders in turn, window by window, on pinned threads in step.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pagedepot::CpuId;

use super::barrier::SpinBarrier;
use super::{Subject, cpus, noise, stop};
use crate::names::Design;

/// A thread pinned to a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// The seat's place among the seats of a run.
    pub index: usize,
    /// The CPU that the thread is pinned to.
    pub cpu: CpuId,
}

/// A subject doing a workload that yields `M` metrics.
pub trait Contender<const M: usize>: Sync {
    /// The subject that it measures.
    fn subject(&self) -> &dyn Subject;

    /// The subject, to be checked after the last window; `None` if other contenders share it, or
    /// if there is nothing to check.
    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        None
    }

    /// Called by each seat before its first window.
    fn enter(&self) {
        self.subject().enter();
    }

    /// Called by each seat after its last window.
    fn leave(&self) {
        self.subject().leave();
    }

    /// Called by each seat before each window; no part of it.
    fn prepare(&self) {}

    /// Does `units` of work on this seat, and returns the value of each metric; not-a-number where
    /// this seat measures none.
    fn window(&self, seat: Seat, units: u64) -> [f64; M];

    /// Takes back what all CPUs cache, from a thread beside the seats; see [`Schedule::drains`].
    fn drain_all(&self) {
        self.subject().drain_all();
    }

    /// One value per metric from those of all seats: their mean, unless the workload says
    /// otherwise.
    fn combine(&self, seats: &[[f64; M]]) -> [f64; M] {
        std::array::from_fn(|metric| {
            seats.iter().map(|seat| seat[metric]).sum::<f64>() / seats.len() as f64
        })
    }
}

/// The amount of work in a window.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// The units that fill about this time.
    Lasting(Duration),
    /// This many units.
    Units(u64),
}

/// The duration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Windows per contender.
    pub rounds: u32,
    /// Length of a window.
    pub pace: Pace,
    /// Drains forced while windows run.
    pub drains: Option<Drains>,
}

/// A thread beside the seats that drains the contender whose window it is.
#[derive(Clone, Copy, Debug)]
pub struct Drains {
    /// Drains per second.
    pub per_s: NonZeroU32,
    /// The CPU that the drainer is pinned to.
    pub cpu: CpuId,
}

/// The drains of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainTally {
    /// Number of drains.
    pub done: u64,
    /// Number that was due in the time of the run.
    pub due: u64,
}

impl std::ops::AddAssign for DrainTally {
    fn add_assign(&mut self, other: DrainTally) {
        self.done += other.done;
        self.due += other.due;
    }
}

/// The samples of one contender: for each metric one per round.
#[derive(Clone, Debug)]
pub struct Series<const M: usize> {
    /// The contender's design.
    pub design: Design,
    /// Samples by metric.
    pub samples: [Vec<f64>; M],
}

/// Runs the contenders on `cpus`, until all rounds are done or the user asks to stop (see
/// [`stop`]), and calls `tick` after every window and every warm-up: in all
/// `contenders * (rounds + 1)` times. Returns the drains that there were, too.
///
/// # Panics
/// When a contender does.
pub fn interleave<const M: usize>(
    contenders: &[&dyn Contender<M>],
    cpus: &[CpuId],
    schedule: Schedule,
    tick: &(dyn Fn() + Sync),
) -> (Vec<Series<M>>, DrainTally) {
    let run = Rounds {
        contenders,
        schedule,
        barrier: SpinBarrier::new(cpus.len()),
        units: contenders.iter().map(|_| AtomicU64::new(0)).collect(),
        windows: Mutex::new(vec![Vec::new(); cpus.len()]),
        current: AtomicUsize::new(NO_CONTENDER),
        is_ended: AtomicBool::new(false),
        tick,
    };
    let (stop, stopped) = mpsc::channel::<()>();
    let drained = thread::scope(|scope| {
        let run = &run;
        let drainer =
            schedule.drains.map(|drains| scope.spawn(move || run.drain(drains, &stopped)));
        for (index, &cpu) in cpus.iter().enumerate() {
            // When the last seat has dropped its end, also by a panic, the drainer ends.
            let stop = stop.clone();
            scope.spawn(move || {
                let _stop = stop;
                run.seat(Seat { index, cpu });
            });
        }
        drop(stop);
        let drained = drainer.map(|drainer| drainer.join().expect("no drain panics"));
        drained.unwrap_or_default()
    });
    (run.series(), drained)
}

/// The number that no contender has.
const NO_CONTENDER: usize = usize::MAX;

struct Rounds<'r, const M: usize> {
    contenders: &'r [&'r dyn Contender<M>],
    schedule: Schedule,
    barrier: SpinBarrier,
    /// Units per window of each contender, once known.
    units: Vec<AtomicU64>,
    /// Samples by seat, in the order of the windows.
    windows: Mutex<Vec<Vec<[f64; M]>>>,
    /// The contender whose window it is, for the drainer.
    current: AtomicUsize,
    /// Whether the user asked to stop, as seat 0 saw it.
    is_ended: AtomicBool,
    tick: &'r (dyn Fn() + Sync),
}

impl<const M: usize> Rounds<'_, M> {
    fn seat(&self, seat: Seat) {
        let _guard = self.barrier.guard();
        cpus::pin(seat.cpu);
        self.contenders.iter().for_each(|contender| contender.enter());
        for (nth, (contender, units)) in self.contenders.iter().zip(&self.units).enumerate() {
            if self.is_to_end(seat) {
                break;
            }
            self.announce(nth, seat);
            self.warm_up(*contender, units, seat);
            self.tick(seat);
        }
        let mut samples = Vec::with_capacity(self.contenders.len() * self.schedule.rounds as usize);
        for _ in 0..self.schedule.rounds {
            if self.is_to_end(seat) {
                break;
            }
            for (nth, (contender, units)) in self.contenders.iter().zip(&self.units).enumerate() {
                self.announce(nth, seat);
                contender.prepare();
                self.barrier.wait();
                samples.push(contender.window(seat, units.load(Ordering::Relaxed)));
                self.barrier.wait();
                self.tick(seat);
            }
        }
        self.contenders.iter().for_each(|contender| contender.leave());
        self.windows.lock().expect("no seat panics with it")[seat.index] = samples;
    }

    fn announce(&self, nth: usize, seat: Seat) {
        if seat.index == 0 {
            // Relaxed: a drainer that still sees the contender before this one does no harm.
            self.current.store(nth, Ordering::Relaxed);
        }
    }

    /// Drains until all seats are done. A late drain does not make the next one come sooner.
    fn drain(&self, Drains { per_s, cpu }: Drains, stopped: &mpsc::Receiver<()>) -> DrainTally {
        cpus::pin(cpu);
        let period = Duration::from_secs(1) / per_s.get();
        let begin = Instant::now();
        let (mut due, mut done) = (begin + period, 0);
        loop {
            match stopped.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                _ => {
                    let due = begin.elapsed().as_secs_f64() * f64::from(per_s.get());
                    return DrainTally { done, due: due as u64 };
                }
            }
            if let Some(contender) = self.contenders.get(self.current.load(Ordering::Relaxed)) {
                contender.drain_all();
                done += 1;
            }
            due = (due + period).max(Instant::now());
        }
    }

    /// Whether to stop before the next round: the same for all seats, which then have the same
    /// number of windows.
    fn is_to_end(&self, seat: Seat) -> bool {
        if seat.index == 0 {
            // Relaxed: the barrier publishes it. Seat 0 stores again only after the next barrier,
            // at which every seat arrives with what it read here.
            self.is_ended.store(stop::is_asked(), Ordering::Relaxed);
        }
        self.barrier.wait();
        self.is_ended.load(Ordering::Relaxed)
    }

    fn tick(&self, seat: Seat) {
        if seat.index == 0 {
            noise::look();
            (self.tick)();
        }
    }

    /// Runs ever longer windows until one is as long as it should be, then stores how many units
    /// that takes. Seat 0 decides; the barriers publish what it stores.
    fn warm_up(&self, contender: &dyn Contender<M>, found: &AtomicU64, seat: Seat) {
        let Pace::Lasting(goal) = self.schedule.pace else {
            let Pace::Units(units) = self.schedule.pace else { unreachable!() };
            found.store(units, Ordering::Relaxed);
            self.barrier.wait();
            contender.window(seat, units);
            self.barrier.wait();
            return;
        };
        let (mut units, mut settled, mut least) = (1, 0, f64::INFINITY);
        while settled < SETTLED_WINDOWS {
            self.barrier.wait();
            let start = Instant::now();
            contender.window(seat, units);
            self.barrier.wait();
            if seat.index == 0 {
                least = (start.elapsed().as_secs_f64() / units as f64).min(least);
                found.store(next_units(units, least, goal), Ordering::Relaxed);
            }
            self.barrier.wait();
            let next = found.load(Ordering::Relaxed);
            settled = if next <= 2 * units { settled + 1 } else { 0 };
            units = next;
        }
    }

    fn series(self) -> Vec<Series<M>> {
        let windows = self.windows.into_inner().expect("no seat panics with it");
        let count = self.contenders.len();
        let of = |nth: usize, contender: &dyn Contender<M>| {
            let mut samples =
                std::array::from_fn(|_| Vec::with_capacity(self.schedule.rounds as usize));
            // Fewer than asked for when the user stopped it.
            let rounds = windows.iter().map(|seat| seat.len() / count).min().unwrap_or(0);
            for round in 0..rounds {
                let seats: Vec<_> = windows.iter().map(|seat| seat[round * count + nth]).collect();
                let combined = contender.combine(&seats);
                samples
                    .iter_mut()
                    .zip(combined)
                    .for_each(|(samples, figure): (&mut Vec<f64>, f64)| samples.push(figure));
            }
            Series { design: contender.subject().design(), samples }
        };
        self.contenders.iter().enumerate().map(|(nth, contender)| of(nth, *contender)).collect()
    }
}

/// Windows of about the right length before a warm-up ends: one alone may have been interrupted.
const SETTLED_WINDOWS: u32 = 3;
/// Most that a warm-up window grows by: the first ones tell little.
const GROWTH_MAX: u64 = 16;

/// Units that fill `goal`, if one takes `unit_s` seconds.
fn next_units(units: u64, unit_s: f64, goal: Duration) -> u64 {
    ((goal.as_secs_f64() / unit_s.max(1e-12)) as u64).clamp(1, units * GROWTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_the_time_taken() {
        let goal = Duration::from_millis(10);
        assert_eq!(next_units(100, 50e-6, goal), 200);
        assert_eq!(next_units(100, 200e-6, goal), 50);
        assert_eq!(next_units(1, 0.1, goal), 1);
        assert_eq!(next_units(10, 0.0, goal), 160);
    }

    /// Counts its windows; the first metric is when it ran.
    struct Counting<'c> {
        clock: &'c AtomicUsize,
    }

    impl Contender<2> for Counting<'_> {
        fn subject(&self) -> &dyn Subject {
            &Design::FloorTls
        }

        fn window(&self, _seat: Seat, units: u64) -> [f64; 2] {
            [self.clock.fetch_add(1, Ordering::Relaxed) as f64, units as f64]
        }
    }

    #[test]
    fn windows_alternate_and_every_sample_is_kept() {
        let clock = AtomicUsize::new(0);
        let (a, b) = (Counting { clock: &clock }, Counting { clock: &clock });
        let ticks = AtomicUsize::new(0);
        let schedule = Schedule { rounds: 3, pace: Pace::Units(7), drains: None };
        let cpus = &cpus::usable().unwrap()[..1];
        let (series, drained) = interleave(&[&a, &b], cpus, schedule, &|| {
            ticks.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(drained, DrainTally::default());
        // 0 and 1 were the warm-up.
        assert_eq!(series[0].samples, [vec![2.0, 4.0, 6.0], vec![7.0; 3]]);
        assert_eq!(series[1].samples, [vec![3.0, 5.0, 7.0], vec![7.0; 3]]);
        assert_eq!(ticks.into_inner(), 2 * (3 + 1));
    }

    /// Waits in its windows, and counts drains.
    #[derive(Default)]
    struct Drainable {
        drains: AtomicUsize,
    }

    impl Contender<1> for Drainable {
        fn subject(&self) -> &dyn Subject {
            &Design::FloorTls
        }

        fn window(&self, _seat: Seat, _units: u64) -> [f64; 1] {
            let before = self.drains.load(Ordering::Relaxed);
            while self.drains.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            [0.0]
        }

        fn drain_all(&self) {
            self.drains.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_contender_whose_window_it_is_is_drained() {
        let (a, b) = (Drainable::default(), Drainable::default());
        let cpus = cpus::usable().unwrap();
        let drains = Drains { per_s: NonZeroU32::new(1000).unwrap(), cpu: *cpus.last().unwrap() };
        let schedule = Schedule { rounds: 3, pace: Pace::Units(1), drains: Some(drains) };
        // Each window ends by a drain of its own.
        let (_, drained) = interleave(&[&a, &b], &cpus[..1], schedule, &|| ());
        let (a, b) = (a.drains.into_inner(), b.drains.into_inner());
        assert!(a > 3 && b > 3 && drained.done == (a + b) as u64);
        assert!(drained.done <= drained.due, "{drained:?}");
    }

    #[test]
    fn seats_are_averaged() {
        let clock = AtomicUsize::new(0);
        let contender = Counting { clock: &clock };
        assert_eq!(contender.combine(&[[1.0, 10.0], [2.0, 30.0]]), [1.5, 20.0]);
    }
}
