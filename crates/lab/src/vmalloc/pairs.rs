//! One allocation and one free, again and again: what a request costs at least.
//!
//! Books only: the address part alone, [`ADDRESS_PAGES`] pages. With a mapper: [`MEMORY_PAGES`]
//! pages of memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use pagedepot::PageSize;
use pagedepot::vmap::{BooksOnly, NoFrames, Span};
use pagedepot_designs::vmap::VmapDesign;

use super::frames::Here;
use super::host::Counting;
use super::options::MapperKind;
use super::subject::{self, Demand, WithVmap};
use super::{BOOKS_START, NAME};
use crate::bench::{Effort, Settings};
use crate::design::Design;
use crate::failure::Failure;
use crate::harness::{Contender, Pace, Schedule, Seat, Series, interleave};
use crate::output::report::{Metric, params};
use crate::output::{Report, table};

const PAIR: Metric = ("pair_ns", "ns");
/// Pages of the address part's pair.
const ADDRESS_PAGES: u32 = 5;
/// Pages of the range it is cut from.
const RANGE_PAGES: u32 = 1 << 20;

/// Measures the pairs that the mapper makes possible, on one CPU and on all.
pub fn run(mapper: MapperKind, designs: &[Design], settings: &Settings) -> Result<Report, Failure> {
    match mapper {
        MapperKind::None => addresses(designs, settings),
        MapperKind::Linux => Ok(Report::default()),
    }
}

/// The CPU counts to measure with: one, and all in use.
fn cpu_counts(settings: &Settings) -> impl Iterator<Item = usize> + use<> {
    [1, settings.cpus.len()].into_iter().take(settings.cpus.len().min(2))
}

fn measure(
    what: &str,
    contenders: &[Box<dyn Contender<1> + '_>],
    cpus: usize,
    settings: &Settings,
) -> Vec<Series<1>> {
    let window = Duration::from_millis(if settings.effort == Effort::Quick { 2 } else { 10 });
    let schedule = Schedule { rounds: settings.rounds, pace: Pace::Lasting(window), drains: None };
    let contenders: Vec<_> = contenders.iter().map(AsRef::as_ref).collect();
    let step = settings.progress.step(what, contenders.len() as u64 * (u64::from(settings.rounds) + 1));
    interleave(&contenders, &settings.cpus[..cpus], schedule, &|| step.tick())
}

fn addresses(designs: &[Design], settings: &Settings) -> Result<Report, Failure> {
    let mut by_cpus = Vec::new();
    for cpus in cpu_counts(settings) {
        let contenders = address_contenders(designs, settings.cpus.len() as u32, cpus)?;
        let what = format!("{NAME}, {ADDRESS_PAGES} pages of addresses, {cpus} threads");
        by_cpus.push((cpus, measure(&what, &contenders, cpus, settings)));
    }
    let mut report = Report::default();
    for (cpus, series) in &by_cpus {
        for series in series {
            let params = params([
                ("pages", ADDRESS_PAGES.into()),
                ("mapper", MapperKind::None.param()),
                ("warm", 1),
                ("threads", *cpus as i64),
            ]);
            report.add(NAME, series.design, PAIR, (*cpus, &params), &series.samples[0]);
        }
    }
    if by_cpus.iter().any(|(_, series)| !series.is_empty()) {
        report.say(format!(
            "{NAME}: {ADDRESS_PAGES} pages of addresses allocated and freed, ns per pair and thread"
        ));
        report.say(show(&by_cpus));
    }
    Ok(report)
}

fn address_contenders(
    designs: &[Design],
    cpus: u32,
    _seats: usize,
) -> Result<Vec<Box<dyn Contender<1>>>, Failure> {
    let mut contenders: Vec<Box<dyn Contender<1>>> = Vec::new();
    for &design in designs {
        if subject::DESIGNS.contains(&design) {
            let mapper = BooksOnly::new(Span::new(BOOKS_START, RANGE_PAGES), PageSize::Kib4);
            let ends = (mapper, Counting(NoFrames(Here)));
            contenders.push(subject::make(design, &Demand::new(cpus, 1 << 16), ends, ToPair(design))?);
        }
        #[cfg(feature = "peers")]
        contenders.extend(super::peers::addresses(design, ADDRESS_PAGES, RANGE_PAGES, _seats > 1));
    }
    Ok(contenders)
}

/// A pair of requests for addresses.
struct AddressPair<D> {
    design: Design,
    subject: D,
}

impl<D: VmapDesign> Contender<1> for AddressPair<D> {
    fn design(&self) -> Design {
        self.design
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        for _ in 0..units {
            let addr = self.subject.alloc(black_box(ADDRESS_PAGES), 1).expect("one area fits");
            self.subject.free(black_box(addr)).expect("it was allocated");
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

struct ToPair(Design);

impl WithVmap<'static> for ToPair {
    type Output = Box<dyn Contender<1>>;

    fn with<D: VmapDesign + 'static>(self, subject: D) -> Self::Output {
        Box::new(AddressPair { design: self.0, subject })
    }
}

fn show(by_cpus: &[(usize, Vec<Series<1>>)]) -> comfy_table::Table {
    let columns = by_cpus.iter().flat_map(|&(cpus, _)| {
        let threads = format!("{cpus} thread{}", if cpus == 1 { "" } else { "s" });
        [threads, "quartiles".into()]
    });
    let mut table = table::new(["design".to_owned()].into_iter().chain(columns).chain(["change".to_owned()]));
    for (nth, series) in by_cpus[0].1.iter().enumerate() {
        let samples = |cpus: &(usize, Vec<Series<1>>)| cpus.1[nth].samples[0].clone();
        let cells = by_cpus.iter().flat_map(|cpus| {
            let samples = samples(cpus);
            [table::median(&samples), table::quartiles(&samples)]
        });
        let one = samples(&by_cpus[0]);
        let change = by_cpus.get(1).map_or_else(Vec::new, samples);
        let change = table::change(&change, Some(&one));
        table.add_row([series.design.name().to_owned()].into_iter().chain(cells).chain([change]));
    }
    table::align(table, 1)
}
