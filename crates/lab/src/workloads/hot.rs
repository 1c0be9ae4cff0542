//! `hot`: one block allocated and freed, again and again: the least any request costs.

use std::time::Instant;

use pagedepot::Order;
use pagedepot_linux::Depot;

use super::{Settings, Workload, samples_of};
use crate::design::allocator::nothing_held;
use crate::design::{self, Demand, Design, PAGE_BYTES, Subject, WithSubject};
use crate::failure::Failure;
use crate::harness::{Contender, Seat, Series};
use crate::report::rows::{Metric, Params};
use crate::report::{Report, counted, table};

const NAME: &str = "hot";
const PAIR: Metric = ("pair_ns", "ns");

/// All that hand out blocks, and the depot's owned pages beside its numbers.
pub const DESIGNS: [Design; Design::ALLOCATORS.len() + 1] = {
    let mut designs = [Design::DepotOwned; _];
    let mut nth = 0;
    while nth < Design::ALLOCATORS.len() {
        designs[nth] = Design::ALLOCATORS[nth];
        nth += 1;
    }
    designs
};

struct Hot<S>(S);

impl<S: Subject> Contender<1> for Hot<S> {
    fn design(&self) -> Design {
        S::DESIGN
    }

    fn enter(&self) {
        self.0.enter();
    }

    fn leave(&self) {
        self.0.leave();
    }

    fn drain_all(&self) {
        self.0.drain_all();
    }

    fn check(&mut self) -> Result<(), String> {
        self.0.check()
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        for _ in 0..units {
            let block = design::alloc::<S, 0>(&self.0);
            design::observe(block);
            self.0.free::<0>(block);
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

/// A page that frees itself and owns its depot: what it costs beside the number of one.
struct Owned(Depot);

impl Owned {
    fn new(demand: &Demand) -> Result<Self, Failure> {
        let depot = Depot::builder(demand.pages() as usize * PAGE_BYTES)
            .free_high(demand.variant.free_high())
            .build();
        depot.map(Owned).map_err(|why| Failure::Run(format!("{}: {why}", Design::DepotOwned)))
    }
}

impl Contender<1> for Owned {
    fn design(&self) -> Design {
        Design::DepotOwned
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.0.validate().map_err(|fault| fault.to_string())?;
        nothing_held(census.managed_pages, census.managed_pages - census.held_pages())
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

struct ToContender;

impl WithSubject for ToContender {
    type Output = Box<dyn Contender<1>>;

    fn with<S: Subject + 'static>(self, subject: S) -> Self::Output {
        Box::new(Hot(subject))
    }
}

/// Measures it, on one CPU and on all.
pub fn run(settings: &Settings) -> Result<Report, Failure> {
    let demand = settings.demand(settings.cpus.len(), 1, 1);
    let mut contenders = Vec::new();
    for design in settings.designs(Workload::Hot)? {
        contenders.push(match design {
            Design::DepotOwned => Box::new(Owned::new(&demand)?),
            _ => design::make(design, &demand, ToContender)?,
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
