//! `producer-consumer`: pages allocated on one CPU and freed on another, as network buffers are:
//! one by one, and many in a call.

use std::time::Instant;

use super::settings::{Settings, show_against};
use super::workload::Workload;
use crate::design::block::Block;
use crate::design::{self, Allocator, AllocatorUser, Lineup};
use crate::failure::Failure;
use crate::harness::ring::Ring;
use crate::harness::{Contender, Seat, Subject};
use crate::names::Design;
use crate::report::rows::{Metric, Params, params};
use crate::report::{Report, counted};

const NAME: &str = "producer-consumer";

/// The workload `producer-consumer`.
pub const fn workload<L: Lineup + Default>() -> Workload {
    Workload::new(NAME, Design::BLOCKS, run::<L>)
}

const FRAME: Metric = ("frame_ns", "ns");
const BATCH_FRAME: Metric = ("batch_frame_ns", "ns");

/// Pages in a call.
const BATCH: usize = 64;
/// Designs that have calls for many pages, and the bounds, whose figure is the ring's.
const BATCHED: [Design; 4] =
    [Design::Depot, Design::FloorTls, Design::FloorRseq, Design::FloorSpin];

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
    calls: Calls,
}

/// The calls by which pages are allocated and freed.
#[derive(Clone, Copy)]
enum Calls {
    Single,
    Batch,
}

impl<A: Allocator> Contender<1> for PassingSubject<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let (allocator, ring) = (&self.allocator, &self.rings[seat.index / 2]);
        let batches = units.div_ceil(BATCH as u64);
        let start = Instant::now();
        let pages = match (seat.index.is_multiple_of(2), self.calls) {
            (true, Calls::Single) => produce(allocator, ring, units),
            (false, Calls::Single) => consume(allocator, ring, units),
            (true, Calls::Batch) => produce_batches(allocator, ring, batches),
            (false, Calls::Batch) => consume_batches(allocator, ring, batches),
        };
        [start.elapsed().as_nanos() as f64 / pages as f64]
    }

    /// A pair takes as long as its slower side; the mean of all pairs.
    fn combine(&self, seats: &[[f64; 1]]) -> [f64; 1] {
        let pairs = seats.chunks(2).map(|pair| pair[0][0].max(pair[1][0]));
        [pairs.sum::<f64>() / self.rings.len() as f64]
    }
}

// Each loop is a function of the allocator: see `pagealloc::loops`.

#[inline(never)]
fn produce<A: Allocator>(allocator: &A, ring: &Ring<A::Block>, pages: u64) -> u64 {
    ring.produce(pages, || design::alloc::<A, 0>(allocator));
    pages
}

#[inline(never)]
fn consume<A: Allocator>(allocator: &A, ring: &Ring<A::Block>, pages: u64) -> u64 {
    ring.consume(pages, |block| allocator.free::<0>(block));
    pages
}

#[inline(never)]
fn produce_batches<A: Allocator>(allocator: &A, ring: &Ring<A::Block>, batches: u64) -> u64 {
    ring.produce_batches::<BATCH>(batches, Block::from_bits(0), |pages| {
        assert!(allocator.alloc_batch(pages), "the bench gives it enough memory");
    });
    batches * BATCH as u64
}

#[inline(never)]
fn consume_batches<A: Allocator>(allocator: &A, ring: &Ring<A::Block>, batches: u64) -> u64 {
    ring.consume_batches::<BATCH>(batches, |pages| allocator.free_batch(pages));
    batches * BATCH as u64
}

/// Makes the contender of a design on so many CPUs.
#[derive(Clone, Copy)]
struct PassingMaker {
    cpus: usize,
    calls: Calls,
}

impl AllocatorUser for PassingMaker {
    type Output = Box<dyn Contender<1>>;

    fn with<A: Allocator>(self, allocator: A) -> Self::Output {
        let ring = || Ring::new(RING_SLOTS, PUBLISHED_AT_ONCE);
        let rings = std::iter::repeat_with(ring).take(self.cpus / 2).collect();
        Box::new(PassingSubject { allocator, rings, calls: self.calls })
    }
}

/// Measures it, with one pair of CPUs, two, four ... and all.
fn run<L: Lineup + Default>(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let designs = settings.designs(NAME, Design::BLOCKS)?;
    let batched: Vec<_> = designs.iter().copied().filter(|one| BATCHED.contains(one)).collect();
    let mut counts: Vec<usize> = settings.cpu_counts().iter().map(|cpus| cpus / 2 * 2).collect();
    counts.dedup();
    let mut report = Report::default();
    for cpus in counts.into_iter().filter(|&cpus| cpus > 0) {
        measure::<L>(settings, &designs, PassingMaker { cpus, calls: Calls::Single }, &mut report)?;
        if !batched.is_empty() {
            measure::<L>(
                settings,
                &batched,
                PassingMaker { cpus, calls: Calls::Batch },
                &mut report,
            )?;
        }
    }
    Ok(report)
}

/// Measures these designs on so many CPUs, by such calls.
fn measure<L: Lineup + Default>(
    settings: &Settings,
    designs: &[Design],
    passing: PassingMaker,
    report: &mut Report,
) -> Result<(), Failure> {
    let PassingMaker { cpus, calls } = passing;
    let demand = settings.demand(cpus, 2 * RING_SLOTS, 1);
    let mut contenders: Vec<Box<dyn Contender<1>>> = Vec::new();
    for &design in designs {
        contenders.push(L::default().with_allocator(design, &demand, passing)?);
    }
    let (how, metric, params) = match calls {
        Calls::Single => (String::new(), FRAME, Params::new()),
        Calls::Batch => {
            (format!(", {BATCH} in a call"), BATCH_FRAME, params([("batch", BATCH as i64)]))
        }
    };
    let what = format!("{NAME}, {}{how}", counted(cpus, "CPU"));
    let series = settings.interleave(&what, &mut contenders, cpus, settings.schedule())?;
    for one in &series {
        report.add(NAME, one.design, metric, (cpus, &params), &one.samples[0]);
    }
    report.say(format!(
        "{NAME}{how}: allocated on one CPU, freed on another (floors have no store, so theirs is \
         the cost of the ring); CPUs: {cpus}{}",
        settings.caveat()
    ));
    report.say(show_against(&series, "ns per page", Design::FloorTls));
    Ok(())
}
