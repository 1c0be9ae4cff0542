//! `purger`: threads on all CPUs but one allocate pages, and one thread frees them, 512 by one
//! call, as jemalloc's purgers give back by `madvise` what other threads' page faults got.
//!
//! Pages leave one CPU's cache and come back to another's, so both go to the store for almost every
//! page. It is one of the two causes of contention on the zone lock that the RFC "mm: page_alloc:
//! pcp buddy allocator" (April 2026) names; the other is [`mass_exit`](super::mass_exit). In
//! `producer-consumer` pages are freed one by one, and by one CPU for one other.

use std::time::Instant;

use pagedepot::CpuId;

use super::mass_exit::DESIGNS;
use crate::design::dispatch::with_design;
use pagedepot_cli::design::{self, Allocator};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::ring::Ring;
use pagedepot_cli::harness::{Contender, Seat, Subject};
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Report, counted};
use pagedepot_cli::workloads::settings::{Settings, show_against};
use pagedepot_cli::workloads::workload::Workload;

const NAME: &str = "purger";

/// The workload `purger`.
pub const WORKLOAD: Workload = Workload::new(NAME, DESIGNS, run);

const PAGE: Metric = ("page_ns", "ns");

/// Pages of a thread that wait for the purger at most.
const RING_SLOTS: u32 = 4096;
/// Pages that the purger frees by one call, and that a thread passes on at once.
const BATCH: u32 = 512;

/// The purger on the first seat, the threads that allocate on the others.
struct PurgerSubject<A: Allocator> {
    allocator: A,
    /// Rings from each thread that allocates.
    rings: Vec<Ring<A::Block>>,
}

impl<A: Allocator> PurgerSubject<A> {
    fn new(allocator: A, threads: usize) -> Self {
        let rings = (0..threads).map(|_| Ring::new(RING_SLOTS, BATCH)).collect();
        PurgerSubject { allocator, rings }
    }

    /// Frees so many pages of each thread, a batch of one after a batch of the other.
    fn purge(&self, units: u64) {
        let mut batch = Vec::with_capacity(BATCH as usize);
        let mut left = units;
        while left > 0 {
            let pages = left.min(BATCH.into());
            for ring in &self.rings {
                ring.consume(pages, |page| batch.push(page));
                self.allocator.free_pages(&mut batch);
            }
            left -= pages;
        }
    }
}

impl<A: Allocator> Contender<1> for PurgerSubject<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        match seat.index.checked_sub(1) {
            None => self.purge(units),
            Some(thread) => {
                self.rings[thread].produce(units, || design::alloc::<A, 0>(&self.allocator));
            }
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }

    /// It takes as long as the slowest; the threads' pages come at the same time.
    fn combine(&self, seats: &[[f64; 1]]) -> [f64; 1] {
        let slowest = seats.iter().map(|seat| seat[0]).fold(0.0, f64::max);
        [slowest / self.rings.len() as f64]
    }
}

/// Measures it, with the purger on the last CPU.
fn run(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let (&last, others) = settings.cpus.split_last().expect("two CPUs at least");
    let (cpus, threads) = (settings.cpus.len(), others.len());
    let demand = settings.demand(cpus, 2 * RING_SLOTS, 1);
    let mut contenders: Vec<Box<dyn Contender<1>>> = Vec::new();
    for design in settings.designs(NAME, DESIGNS)? {
        contenders.push(with_design!(any design, &demand, |allocator| -> Box<dyn Contender<1>> {
            Box::new(PurgerSubject::new(allocator, threads))
        })?);
    }
    let seats: Vec<CpuId> = [&[last], others].concat();
    let series = settings.interleave_on(NAME, &mut contenders, &seats, settings.schedule())?;
    let mut report = Report::default();
    let params = params([("threads", threads as i64)]);
    for one in &series {
        report.add(NAME, one.design, PAGE, (cpus, &params), &one.samples[0]);
    }
    report.say(format!(
        "{NAME}: pages allocated by {}, freed by one purger, 512 at a time{}",
        counted(threads, "thread"),
        settings.caveat()
    ));
    report.say(show_against(&series, "ns per page", Design::Spin));
    Ok(report)
}
