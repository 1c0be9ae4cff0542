//! `process-magazines`: processes that allocate much, with drains of all CPUs behind them. The
//! thread about magazines (2013) proposes a magazine of its own for each such process, chained for
//! global drains: "For these processes there would be much less contention (only on
//! drains/refills) without having to use IPIs to drain their pages".
//!
//! A process on each CPU allocates [`BURST_PAGES`] pages, as many as a program that starts, and
//! frees them one by one. The design `process-magazine` gives each its own magazine when it begins,
//! and takes that back when it ends; the other designs serve all processes as they serve CPUs.
//! [`DRAINS_PER_S`] drains per second take back what all of them cache, or none do.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pagedepot::cpus::Here;
use pagedepot::{Mobility, Mode, Order, Pfn};
use pagedepot_designs::{Buddy, DrainResult, PageCache, Scope, Setup, SetupError};
use pagedepot_lab_designs::{Magazine, MagazineOptions, ProcessMagazine};

use crate::design::dispatch::with_design;
use pagedepot_cli::design::allocator::nothing_held;
use pagedepot_cli::design::{self, Allocator, Demand};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, Seat, Series, Subject, cpus};
use pagedepot_cli::names::{Design, joined};
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Report, counted, table};
use pagedepot_cli::workloads::settings::Settings;
use pagedepot_cli::workloads::workload::Workload;

const NAME: &str = "process-magazines";

/// The workload `process-magazines`.
pub const WORKLOAD: Workload = Workload { drains: true, ..Workload::new(NAME, DESIGNS, run) };

/// Designs whose caches drains of all CPUs empty, and the one that the workload is about.
const DESIGNS: &[Design] = &joined::<10>(&[Design::PAGED, &[Design::ProcessMagazine]]);

/// Pages that a process allocates before it frees them: 8 MiB.
const BURST_PAGES: u32 = 1 << 11;

/// Drains of all CPUs per second. The thread about remote drains forced 100, of longer windows.
const DRAINS_PER_S: NonZeroU32 = NonZeroU32::new(1000).expect("not zero");

/// Nanoseconds of an allocation or a free; of a drain, and what it took; CPUs that it interrupted.
const METRICS: [Metric; 4] =
    [("op_ns", "ns"), ("drain_ns", "ns"), ("drained_pages", "pages"), ("interruptions", "1")];

/// A design, with what it has for each process.
trait Machine: Subject + 'static {
    /// A process that runs, on the CPU of the thread that began it.
    type Process<'m>;

    fn begin(&self) -> Self::Process<'_>;
    fn alloc(process: &Self::Process<'_>) -> Option<Pfn>;
    fn free(process: &Self::Process<'_>, page: Pfn);
    fn drain(&self) -> Option<DrainResult>;
}

/// A design that has nothing for processes: they share what it has for CPUs.
impl<A: Allocator<Block = Pfn>> Machine for A {
    type Process<'m> = &'m A;

    fn begin(&self) -> &A {
        self
    }

    #[inline]
    fn alloc(process: &&A) -> Option<Pfn> {
        process.alloc::<0>()
    }

    #[inline]
    fn free(process: &&A, page: Pfn) {
        process.free::<0>(page);
    }

    fn drain(&self) -> Option<DrainResult> {
        Allocator::drain(self, None, Mode::Quiet)
    }
}

/// Magazines that CPUs share, and one more for each process.
struct OwnMagazines(Magazine<Buddy>);

impl OwnMagazines {
    fn new(demand: &Demand) -> Result<Self, Failure> {
        let failed =
            |error: SetupError| Failure::Run(format!("{}: {error}", Design::ProcessMagazine));
        let highest = demand.cpus.iter().map(|cpu| cpu.get()).max().unwrap_or(0);
        // At least 4 GiB, and far below what a frame number can name.
        let setup = Setup::single(highest + 1, demand.pages() as u32);
        let store = Buddy::new(&setup).map_err(failed)?;
        let magazines = demand.variant.magazines();
        let options = MagazineOptions { magazines, ..MagazineOptions::default() };
        Magazine::new(store, options).map(OwnMagazines).map_err(failed)
    }
}

fn here() -> Here {
    Here::task(cpus::pinned_to())
}

impl Subject for OwnMagazines {
    fn design(&self) -> Design {
        Design::ProcessMagazine
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.0.validate().map_err(|fault| fault.to_string())?;
        nothing_held(census.managed_pages, census.free_pages + census.cached_pages)
    }
}

impl Machine for OwnMagazines {
    type Process<'m> = ProcessMagazine<'m, Buddy>;

    fn begin(&self) -> ProcessMagazine<'_, Buddy> {
        self.0.process()
    }

    #[inline]
    fn alloc(process: &ProcessMagazine<'_, Buddy>) -> Option<Pfn> {
        process.alloc(here(), Order::BASE, Mobility::Movable)
    }

    #[inline]
    fn free(process: &ProcessMagazine<'_, Buddy>, page: Pfn) {
        process.free(here(), page, Order::BASE);
    }

    fn drain(&self) -> Option<DrainResult> {
        Some(self.0.drain(Scope::ALL, Mode::Quiet))
    }
}

/// Processes on a machine, a seat each.
struct Processes<M> {
    machine: M,
    drains: Tally,
}

/// Counts of the drains so far.
#[derive(Default)]
struct Tally {
    drains: AtomicU64,
    ns: AtomicU64,
    pages: AtomicU64,
    interruptions: AtomicU64,
}

impl Tally {
    fn add(&self, ns: u64, drained: DrainResult) {
        let sums = [&self.ns, &self.pages, &self.interruptions, &self.drains];
        let figures = [ns, drained.taken_pages, drained.interruptions, 1];
        for (sum, figure) in sums.into_iter().zip(figures) {
            // Relaxed: sums that are read a window later.
            sum.fetch_add(figure, Ordering::Relaxed);
        }
    }

    /// Nanoseconds, pages, interruptions and drains.
    fn sums(&self) -> [u64; 4] {
        [&self.ns, &self.pages, &self.interruptions, &self.drains]
            .map(|sum| sum.load(Ordering::Relaxed))
    }
}

impl<M: Machine> Contender<4> for Processes<M> {
    fn subject(&self) -> &dyn Subject {
        &self.machine
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.machine)
    }

    fn drain_all(&self) {
        let start = Instant::now();
        if let Some(drained) = self.machine.drain() {
            self.drains.add(start.elapsed().as_nanos() as u64, drained);
        }
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 4] {
        let mut held = Vec::with_capacity(BURST_PAGES as usize);
        let process = self.machine.begin();
        let (before, start) = (self.drains.sums(), Instant::now());
        for _ in 0..units {
            for _ in 0..BURST_PAGES {
                let Some(page) = M::alloc(&process) else {
                    let design = self.machine.design();
                    panic!("{design} ran out of pages with most of them free: it lost some")
                };
                design::observe(page);
                held.push(page);
            }
            held.drain(..).for_each(|page| M::free(&process, page));
        }
        let ops = 2.0 * units as f64 * f64::from(BURST_PAGES);
        let op_ns = start.elapsed().as_nanos() as f64 / ops;
        let after = self.drains.sums();
        let [ns, pages, interruptions, drains] =
            std::array::from_fn(|of| (after[of] - before[of]) as f64);
        // Not-a-number without drains.
        [op_ns, ns / drains, pages / drains, interruptions / drains]
    }

    /// All seats see the same drains.
    fn combine(&self, seats: &[[f64; 4]]) -> [f64; 4] {
        let [_, drain_ns, pages, interruptions] = seats[0];
        let op_ns = seats.iter().map(|seat| seat[0]).sum::<f64>() / seats.len() as f64;
        [op_ns, drain_ns, pages, interruptions]
    }
}

/// A row: processes, drains per second, and what was measured.
type ProcessRow = (usize, u32, Series<4>);

/// Measures it, with 1, 2, 4 ... processes and with one per CPU.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let demand = settings.demand(settings.cpus.len(), BURST_PAGES, 1);
    let mut contenders: Vec<Box<dyn Contender<4>>> = Vec::new();
    for design in settings.designs(NAME, DESIGNS)? {
        contenders.push(if design == Design::ProcessMagazine {
            let machine = OwnMagazines::new(&demand)?;
            Box::new(Processes { machine, drains: Tally::default() })
        } else {
            with_design!(paged design, &demand, |allocator| -> Box<dyn Contender<4>> {
                Box::new(Processes { machine: allocator, drains: Tally::default() })
            })?
        });
    }
    let mut rows: Vec<ProcessRow> = Vec::new();
    for processes in settings.cpu_counts() {
        for drains in [None, Some(DRAINS_PER_S)] {
            let per_s = drains.map_or(0, NonZeroU32::get);
            let what = format!("{NAME}, {}, {per_s} drains per s", counted(processes, "process"));
            let behind = Settings { drains, ..settings.clone() };
            let series =
                behind.interleave(&what, &mut contenders, processes, settings.schedule())?;
            rows.extend(series.into_iter().map(|one| (processes, per_s, one)));
        }
    }
    let mut report = Report::default();
    for (processes, per_s, one) in &rows {
        let params = params([("drains_per_s", i64::from(*per_s))]);
        for (metric, samples) in METRICS.into_iter().zip(&one.samples) {
            report.add(NAME, one.design, metric, (*processes, &params), samples);
        }
    }
    report.say(format!(
        "{NAME}: {BURST_PAGES} pages allocated and freed, again and again, by a process on each \
         CPU{}",
        settings.caveat()
    ));
    report.say(show(&rows));
    Ok(report)
}

fn show(rows: &[ProcessRow]) -> comfy_table::Table {
    let headings =
        ["processes", "per s", "design", "op ns", "quartiles", "drain us", "pages", "interrupted"];
    let mut table = table::new(headings);
    for (processes, per_s, one) in rows {
        let [op_ns, drain_ns, pages, interruptions] = &one.samples;
        let of_drains = |samples: &[f64], by: f64| {
            let samples = samples.iter().filter(|sample| sample.is_finite());
            table::median(&samples.map(|sample| sample * by).collect::<Vec<_>>())
        };
        table.add_row([
            processes.to_string(),
            per_s.to_string(),
            one.design.name().to_owned(),
            table::median(op_ns),
            table::quartiles(op_ns),
            of_drains(drain_ns, 1e-3),
            of_drains(pages, 1.0),
            of_drains(interruptions, 1.0),
        ]);
    }
    table::align(table, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_reach_a_process_magazine_and_nothing_is_lost() {
        let cpu = cpus::usable().unwrap()[0];
        cpus::pin(cpu);
        let demand = Demand { cpus: vec![cpu], ..Demand::default() };
        let machine = OwnMagazines::new(&demand).unwrap();
        let mut processes = Processes { machine, drains: Tally::default() };
        let process = processes.machine.begin();
        let page = OwnMagazines::alloc(&process).unwrap();
        let cached = process.cached_pages();
        assert!(cached > 0);
        processes.drain_all();
        assert_eq!(process.cached_pages(), 0);
        let [_, pages, interruptions, drains] = processes.drains.sums();
        assert_eq!((pages, interruptions, drains), (cached, 0, 1));
        OwnMagazines::free(&process, page);
        drop(process);
        let window = processes.window(Seat { index: 0, cpu }, 1);
        assert!(window[0] > 0.0 && window[1].is_nan());
        processes.machine.check().unwrap();
    }
}
