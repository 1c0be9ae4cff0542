//! `mass-exit`: a process on each CPU holds pages, and all of them exit at once: each frees all
//! that it has, page by page, by batches as a kernel gathers them.
//!
//! A pcp holds a small part of that, so frees go through to the store from all CPUs at the same
//! time. It is one of the two causes of contention on the zone lock that the RFC "mm: page_alloc:
//! pcp buddy allocator" (April 2026) names; the other is [`purger`](super::purger).
//!
//! | metric | what |
//! |---|---|
//! | `exit_ns` | ns per page freed, as the processes exit; mean of all |
//! | `alloc_ns` | ns per page allocated before that, by all at once |
//! | `lock_wait_share` | part of the processes' time that was spent waiting for locks, of designs that count it |

use std::sync::Mutex;
use std::time::Instant;

use crate::design::dispatch::with_design;
use pagedepot_cli::design::{self, Allocator};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::barrier::SpinBarrier;
use pagedepot_cli::harness::{Contender, Pace, Schedule, Seat, Series, Subject, lock};
use pagedepot_cli::names::{Design, joined};
use pagedepot_cli::report::rows::{Metric, Params};
use pagedepot_cli::report::{Report, counted, table};
use pagedepot_cli::workloads::settings::{Effort, Settings, samples_of};
use pagedepot_cli::workloads::workload::Workload;

const NAME: &str = "mass-exit";

/// The workload `mass-exit`.
pub const WORKLOAD: Workload = Workload::new(NAME, DESIGNS, run);

/// Designs with a store behind their caches.
pub const DESIGNS: &[Design] =
    &joined::<13>(&[Design::PAGED, &[Design::FrameAlloc], Design::MALLOCS]);

const METRICS: [Metric; 3] = [("exit_ns", "ns"), ("alloc_ns", "ns"), ("lock_wait_share", "")];

/// Pages that a process holds: 256 MiB of 4 KiB pages, or 32 MiB in a short run.
const PAGES: u32 = 1 << 16;
const PAGES_QUICK: u32 = 1 << 13;

/// A process on each seat. Samples of a seat: ns of its frees and of its allocations, and ns that
/// all seats waited for locks, from the first seat alone; `combine` turns them into the metrics.
struct Processes<A: Allocator> {
    allocator: A,
    pages: u32,
    /// Blocks by seat.
    held: Vec<Mutex<Vec<A::Block>>>,
    together: SpinBarrier,
}

impl<A: Allocator> Processes<A> {
    fn new(allocator: A, seats: usize, pages: u32) -> Self {
        let held = || Mutex::new(Vec::with_capacity(pages as usize));
        let held = (0..seats).map(|_| held()).collect();
        Processes { allocator, pages, held, together: SpinBarrier::new(seats) }
    }

    /// Time that callers have spent waiting for locks; not-a-number from designs that do not count.
    fn waited_ns(&self) -> f64 {
        let counts = self.allocator.counts();
        counts.map_or(f64::NAN, |counts| {
            (counts.zone_lock.wait_ns + counts.cache_lock.wait_ns) as f64
        })
    }
}

impl<A: Allocator> Contender<3> for Processes<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn window(&self, seat: Seat, _units: u64) -> [f64; 3] {
        let _guard = self.together.guard();
        let mut held = lock(&self.held[seat.index]);
        let waited_before = self.waited_ns();
        self.together.wait();
        let start = Instant::now();
        held.extend((0..self.pages).map(|_| design::alloc::<A, 0>(&self.allocator)));
        let alloc_ns = start.elapsed().as_nanos() as f64;
        self.together.wait();
        let start = Instant::now();
        self.allocator.free_pages(&mut held);
        let free_ns = start.elapsed().as_nanos() as f64;
        self.together.wait();
        let waited = if seat.index == 0 { self.waited_ns() - waited_before } else { f64::NAN };
        [free_ns, alloc_ns, waited]
    }

    fn combine(&self, seats: &[[f64; 3]]) -> [f64; 3] {
        let sum = |of: usize| seats.iter().map(|seat| seat[of]).sum::<f64>();
        let pages = f64::from(self.pages) * seats.len() as f64;
        let (free_ns, alloc_ns) = (sum(0), sum(1));
        [free_ns / pages, alloc_ns / pages, seats[0][2] / (free_ns + alloc_ns)]
    }
}

/// Measures it, on 1, 2, 4 ... and on all CPUs.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let pages = if settings.effort == Effort::Quick { PAGES_QUICK } else { PAGES };
    let designs = settings.designs(NAME, DESIGNS)?;
    let mut report = Report::default();
    for cpus in settings.cpu_counts() {
        let demand = settings.demand(cpus, pages, 1);
        let mut contenders: Vec<Box<dyn Contender<3>>> = Vec::new();
        for &design in &designs {
            contenders.push(
                with_design!(any design, &demand, |allocator| -> Box<dyn Contender<3>> {
                    Box::new(Processes::new(allocator, cpus, pages))
                })?,
            );
        }
        let what = format!("{NAME}, {}", counted(cpus, "process"));
        let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
        let series = settings.interleave(&what, &mut contenders, cpus, schedule)?;
        for one in &series {
            for (metric, samples) in METRICS.into_iter().zip(&one.samples) {
                report.add(NAME, one.design, metric, (cpus, &Params::new()), samples);
            }
        }
        report.say(format!(
            "{NAME}: processes that exit at once, each with {} MiB; CPUs: {cpus}{}",
            (u64::from(pages) * design::PAGE_BYTES as u64) >> 20,
            settings.caveat()
        ));
        report.say(show(&series));
    }
    Ok(report)
}

fn show(series: &[Series<3>]) -> comfy_table::Table {
    let mut table = table::new([
        "design",
        "exit ns/page",
        "quartiles",
        "x spin",
        "alloc ns/page",
        "lock wait %",
    ]);
    for one in series {
        let [exit, alloc, waited] = &one.samples;
        let percent: Vec<f64> = waited.iter().map(|share| 100.0 * share).collect();
        table.add_row([
            one.design.name().to_owned(),
            table::median(exit),
            table::quartiles(exit),
            table::ratio(exit, samples_of(series, Design::Spin, 0)),
            table::median(alloc),
            table::median(&percent),
        ]);
    }
    table::align(table, 1)
}
