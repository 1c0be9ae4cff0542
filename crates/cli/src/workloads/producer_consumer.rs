//! `producer-consumer`: pages allocated on one CPU and freed on another, as network buffers are.

use std::time::Instant;

use super::settings::{Settings, show_against};
use super::workload::Workload;
use crate::design::{self, Allocator, AllocatorUser, Lineup};
use crate::failure::Failure;
use crate::harness::ring::Ring;
use crate::harness::{Contender, Seat, Subject};
use crate::names::Design;
use crate::report::rows::{Metric, Params};
use crate::report::{Report, counted};

const NAME: &str = "producer-consumer";

/// The workload `producer-consumer`.
pub const fn workload<L: Lineup + Default>() -> Workload {
    Workload::new(NAME, Design::BLOCKS, run::<L>)
}

const FRAME: Metric = ("frame_ns", "ns");

/// Frames under way at most.
const RING_SLOTS: u32 = 4096;
/// Frames that one side moves before it tells the other: what that costs is the ring's, not the
/// allocator's.
const PUBLISHED_AT_ONCE: u32 = 512;

/// Each even seat allocates for the seat after it.
struct PassingSubject<A: Allocator> {
    allocator: A,
    /// One of each pair.
    rings: Vec<Ring<A::Block>>,
}

impl<A: Allocator> Contender<1> for PassingSubject<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let ring = &self.rings[seat.index / 2];
        let start = Instant::now();
        if seat.index.is_multiple_of(2) {
            ring.produce(units, || design::alloc::<A, 0>(&self.allocator));
        } else {
            ring.consume(units, |block| self.allocator.free::<0>(block));
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }

    /// A pair takes as long as its slower side; the mean of all pairs.
    fn combine(&self, seats: &[[f64; 1]]) -> [f64; 1] {
        let pairs = seats.chunks(2).map(|pair| pair[0][0].max(pair[1][0]));
        [pairs.sum::<f64>() / self.rings.len() as f64]
    }
}

/// Makes the contender of a design on so many CPUs.
struct Passing {
    cpus: usize,
}

impl AllocatorUser for Passing {
    type Output = Box<dyn Contender<1>>;

    fn with<A: Allocator>(self, allocator: A) -> Self::Output {
        let ring = || Ring::new(RING_SLOTS, PUBLISHED_AT_ONCE);
        let rings = std::iter::repeat_with(ring).take(self.cpus / 2).collect();
        Box::new(PassingSubject { allocator, rings })
    }
}

/// Measures it, with one pair of CPUs, two, four ... and all.
fn run<L: Lineup + Default>(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let designs = settings.designs(NAME, Design::BLOCKS)?;
    let mut counts: Vec<usize> = settings.cpu_counts().iter().map(|cpus| cpus / 2 * 2).collect();
    counts.dedup();
    let mut report = Report::default();
    for cpus in counts.into_iter().filter(|&cpus| cpus > 0) {
        let demand = settings.demand(cpus, 2 * RING_SLOTS, 1);
        let mut contenders: Vec<Box<dyn Contender<1>>> = Vec::new();
        for &design in &designs {
            contenders.push(L::default().with_allocator(design, &demand, Passing { cpus })?);
        }
        let what = format!("{NAME}, {}", counted(cpus, "CPU"));
        let series = settings.interleave(&what, &mut contenders, cpus, settings.schedule())?;
        for one in &series {
            report.add(NAME, one.design, FRAME, (cpus, &Params::new()), &one.samples[0]);
        }
        report.say(format!(
            "{NAME}: allocated on one CPU, freed on another (floors have no store, so theirs is \
             the cost of the ring); CPUs: {cpus}{}",
            settings.caveat()
        ));
        report.say(show_against(&series, "ns per page", Design::FloorTls));
    }
    Ok(report)
}
