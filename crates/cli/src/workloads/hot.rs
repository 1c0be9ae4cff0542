//! `hot`: one block allocated and freed, again and again: the least that a request costs.
#![allow(unsafe_code, reason = "frees blocks by their numbers")]

use std::time::Instant;

use pagedepot::{CpuId, Order};
use pagedepot_linux::{Depot, Flags};

use super::settings::{Settings, samples_of};
use super::workload::Workload;
use crate::design::allocator::nothing_held;
use crate::design::{self, Allocator, AllocatorUser, Demand, Lineup, page_bytes};
use crate::failure::Failure;
use crate::harness::{Contender, Seat, Series, Subject};
use crate::names::{Design, joined};
use crate::report::rows::{Metric, Params};
use crate::report::{Report, counted, table};

const NAME: &str = "hot";

/// The workload `hot`.
pub const fn workload<L: Lineup + Default>() -> Workload {
    Workload::new(NAME, DESIGNS, run::<L>)
}

/// Designs that hand out blocks, and the depot's owned pages, and its numbers on isolated CPUs,
/// beside its numbers.
const DESIGNS: &[Design] =
    &joined::<19>(&[Design::BLOCKS, &[Design::DepotOwned, Design::DepotIsolated]]);

const PAIR: Metric = ("pair_ns", "ns");

struct Hot<A>(A);

impl<A: Allocator> Contender<1> for Hot<A> {
    fn subject(&self) -> &dyn Subject {
        &self.0
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.0)
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        [pair_ns(&self.0, units)]
    }
}

struct MakeHot;

impl AllocatorUser for MakeHot {
    type Output = Box<dyn Contender<1>>;

    fn with<A: Allocator>(self, allocator: A) -> Self::Output {
        Box::new(Hot(allocator))
    }
}

/// Nanoseconds of a page allocated and freed, the mean of so many.
#[inline(always)]
pub fn pair_ns<A: Allocator>(allocator: &A, pairs: u64) -> f64 {
    let start = Instant::now();
    for _ in 0..pairs {
        let block = design::alloc::<A, 0>(allocator);
        design::observe(block);
        allocator.free::<0>(block);
    }
    start.elapsed().as_nanos() as f64 / pairs as f64
}

/// Number of CPUs that count as isolated: more than any machine has.
const CPUS_MAX: u32 = 1 << 13;

/// A depot for `demand`. All CPUs count as isolated, or none.
fn depot(demand: &Demand, design: Design, is_isolated: bool) -> Result<Depot, Failure> {
    let cpus = if is_isolated { CPUS_MAX } else { 0 };
    let depot = Depot::builder(demand.pages() as usize * page_bytes())
        .isolated_cpus((0..cpus).map(CpuId::new).collect())
        .free_high(demand.variant.free_high_limit().into())
        .build();
    depot.map_err(|why| Failure::Run(format!("{design}: {why}")))
}

fn check(depot: &Depot) -> Result<(), String> {
    let census = depot.validate().map_err(|fault| fault.to_string())?;
    nothing_held(census.managed_pages, census.managed_pages - census.held_pages())
}

/// The depot's pages that free themselves and own their depot, to compare with page numbers.
struct OwnedPages(Depot);

impl Subject for OwnedPages {
    fn design(&self) -> Design {
        Design::DepotOwned
    }

    fn check(&mut self) -> Result<(), String> {
        check(&self.0)
    }
}

/// The depot's page numbers on CPUs that count as isolated, whose fronts are behind locks.
struct IsolatedCpus(Depot);

impl Subject for IsolatedCpus {
    fn design(&self) -> Design {
        Design::DepotIsolated
    }

    fn check(&mut self) -> Result<(), String> {
        check(&self.0)
    }
}

impl Contender<1> for IsolatedCpus {
    fn subject(&self) -> &dyn Subject {
        self
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(self)
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let raw = self.0.raw();
        let start = Instant::now();
        for _ in 0..units {
            let block = raw.alloc(Order::BASE, Flags::default());
            let block = block.expect("the bench gives it enough memory");
            design::observe(block);
            // SAFETY: allocated above, and not used.
            unsafe { raw.free(block, Order::BASE) }.expect("it was allocated");
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

impl Contender<1> for OwnedPages {
    fn subject(&self) -> &dyn Subject {
        self
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(self)
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        for _ in 0..units {
            let page = self.0.page(Order::BASE).expect("the bench gives it enough memory");
            design::observe(page.pfn());
            drop(page);
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

/// Measures it, on 1, 2, 4 ... and on all CPUs.
fn run<L: Lineup + Default>(settings: &Settings) -> Result<Report, Failure> {
    let demand = settings.demand(settings.cpus.len(), 1, 1);
    let mut contenders: Vec<Box<dyn Contender<1>>> = Vec::new();
    for design in settings.designs(NAME, DESIGNS)? {
        contenders.push(match design {
            Design::DepotOwned => Box::new(OwnedPages(depot(&demand, design, false)?)),
            Design::DepotIsolated => Box::new(IsolatedCpus(depot(&demand, design, true)?)),
            _ => L::default().with_allocator(design, &demand, MakeHot)?,
        });
    }
    let mut report = Report::default();
    let mut by_cpus = Vec::new();
    for cpus in settings.cpu_counts() {
        let what = format!("{NAME}, {}", counted(cpus, "CPU"));
        let series = settings.interleave(&what, &mut contenders, cpus, settings.schedule())?;
        for series in &series {
            report.add(NAME, series.design, PAIR, (cpus, &Params::new()), &series.samples[0]);
        }
        by_cpus.push((cpus, series));
    }
    report.say(format!("{NAME}: a page allocated and freed, ns per pair{}", settings.caveat()));
    report.say(show(&by_cpus));
    Ok(report)
}

fn show(by_cpus: &[(usize, Vec<Series<1>>)]) -> comfy_table::Table {
    let columns = by_cpus
        .iter()
        .flat_map(|&(cpus, _)| [counted(cpus, "CPU"), "quartiles".into(), "x floor-rseq".into()]);
    let mut table = table::new(["design".to_owned()].into_iter().chain(columns));
    for (nth, Series { design, .. }) in by_cpus[0].1.iter().enumerate() {
        let cells = by_cpus.iter().flat_map(|(_, series)| {
            let samples = &series[nth].samples[0];
            let floor = samples_of(series, Design::FloorRseq, 0);
            [table::median(samples), table::quartiles(samples), table::ratio(samples, floor)]
        });
        table.add_row([design.name().to_owned()].into_iter().chain(cells));
    }
    table::align(table, 1)
}
