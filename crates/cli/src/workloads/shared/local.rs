//! The cost of a page by one process: one at a time, 512 at a time, and so many that they come from
//! the store and go back there.

use std::sync::Mutex as StdMutex;
use std::time::Instant;

use super::pools::{DepotPool, Mutex, NAME, Pool};
use crate::design;
use crate::failure::Failure;
use crate::harness::{Contender, Seat, Series, Subject, lock, stop};
use crate::names::Design;
use crate::report::rows::{Metric, Params, params};
use crate::report::{Report, table};
use crate::workloads::settings::{Settings, samples_of};

const PAIR: Metric = ("pair_ns", "ns");
const ALLOC: Metric = ("alloc_ns", "ns");
const FREE: Metric = ("free_ns", "ns");

/// Pages allocated before the first is freed: what a CPU caches, and what it does not.
const BATCHES: [u32; 2] = [512, 1 << 15];
/// Pages of a pool.
const PAGES: u32 = 1 << 17;

/// Makes a contender of a design.
fn with_pool<const M: usize>(design: Design, user: impl Use<M>) -> Result<Made<M>, Failure> {
    Ok(match design {
        Design::DepotShared => user.with(DepotPool::shared(PAGES)?),
        Design::Depot => user.with(DepotPool::private(PAGES)?),
        Design::Mutex => user.with(Mutex::new(PAGES)?),
        other => unreachable!("{other} is not among the designs that were offered"),
    })
}

type Made<const M: usize> = Box<dyn Contender<M>>;

trait Use<const M: usize> {
    fn with<P: Pool + 'static>(self, pool: P) -> Made<M>;
}

struct Pairs;

impl Use<1> for Pairs {
    fn with<P: Pool + 'static>(self, pool: P) -> Made<1> {
        Box::new(Hot(pool))
    }
}

struct Batches(u32);

impl Use<2> for Batches {
    fn with<P: Pool + 'static>(self, pool: P) -> Made<2> {
        let held = StdMutex::new(Vec::with_capacity(self.0 as usize));
        Box::new(Batch { pool, pages: self.0, held })
    }
}

/// One page allocated and freed, again and again.
struct Hot<P>(P);

impl<P: Pool> Contender<1> for Hot<P> {
    fn subject(&self) -> &dyn Subject {
        &self.0
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.0)
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let start = Instant::now();
        for _ in 0..units {
            let page = self.0.alloc();
            design::observe(page);
            self.0.free(page);
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

/// Allocates so many pages, and then frees them.
struct Batch<P> {
    pool: P,
    pages: u32,
    held: StdMutex<Vec<u32>>,
}

impl<P: Pool> Contender<2> for Batch<P> {
    fn subject(&self) -> &dyn Subject {
        &self.pool
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.pool)
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 2] {
        let mut held = lock(&self.held);
        let (mut alloc_ns, mut free_ns) = (0, 0);
        for _ in 0..units {
            let start = Instant::now();
            held.extend((0..self.pages).map(|_| self.pool.alloc()));
            let middle = Instant::now();
            held.drain(..).for_each(|page| self.pool.free(page));
            alloc_ns += (middle - start).as_nanos();
            free_ns += middle.elapsed().as_nanos();
        }
        let pages = units as f64 * f64::from(self.pages);
        [alloc_ns, free_ns].map(|ns| ns as f64 / pages)
    }
}

/// Measures it on the first CPU.
pub fn measure(
    settings: &Settings,
    designs: &[Design],
    report: &mut Report,
) -> Result<(), Failure> {
    let mut contenders = Vec::new();
    for &design in designs {
        contenders.push(with_pool(design, Pairs)?);
    }
    let schedule = settings.schedule();
    let pairs = settings.interleave("shared, pairs", &mut contenders, 1, schedule)?;
    for one in &pairs {
        report.add(NAME, one.design, PAIR, (1, &Params::new()), &one.samples[0]);
    }
    let mut batches = Vec::new();
    for pages in BATCHES {
        if stop::is_asked() {
            break;
        }
        let mut contenders = Vec::new();
        for &design in designs {
            contenders.push(with_pool(design, Batches(pages))?);
        }
        let what = format!("shared, {pages} at a time");
        let series = settings.interleave(&what, &mut contenders, 1, schedule)?;
        for one in &series {
            let params = params([("batch", pages.into())]);
            report.add(NAME, one.design, ALLOC, (1, &params), &one.samples[0]);
            report.add(NAME, one.design, FREE, (1, &params), &one.samples[1]);
        }
        batches.push((pages, series));
    }
    report.say(format!(
        "shared: a page by one process on one CPU, in ns: a pair; of so many at a time, allocated \
         and then freed{}",
        settings.caveat()
    ));
    report.say(show(designs, &pairs, &batches));
    Ok(())
}

fn show(
    designs: &[Design],
    pairs: &[Series<1>],
    batches: &[(u32, Vec<Series<2>>)],
) -> comfy_table::Table {
    let named = designs.iter().map(|design| design.name().to_owned());
    let ratio = ["x depot".to_owned()];
    let mut table = table::new(["what".to_owned()].into_iter().chain(named).chain(ratio));
    let mut row = |what: String, of: &dyn Fn(Design) -> Option<Vec<f64>>| {
        let cells = designs.iter().map(|&design| table::median(&of(design).unwrap_or_default()));
        let base = of(Design::Depot);
        let ours = of(Design::DepotShared).unwrap_or_default();
        let ratio = table::ratio(&ours, base.as_deref());
        table.add_row([what].into_iter().chain(cells).chain([ratio]));
    };
    let samples = |found: Option<&[f64]>| found.map(<[f64]>::to_vec);
    row("pair".into(), &|design| samples(samples_of(pairs, design, 0)));
    for (pages, series) in batches {
        row(format!("{pages}, allocated"), &|design| samples(samples_of(series, design, 0)));
        row(format!("{pages}, freed"), &|design| samples(samples_of(series, design, 1)));
    }
    table::align(table, 1)
}
