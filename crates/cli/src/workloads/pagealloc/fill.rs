//! Memory filled by single pages, then freed in random order: no cache holds that much, so this is
//! the speed of what lies behind the caches.

use std::sync::Mutex;
use std::time::Instant;

use crate::design::{self, Allocator, AllocatorUser, Lineup, page_bytes};
use crate::failure::Failure;
use crate::harness::{Contender, Pace, Schedule, Seat, Subject, lock};
use crate::names::Design;
use crate::report::machine::available_bytes;
use crate::report::rows::{Metric, params};
use crate::report::{Report, table};
use crate::workloads::settings::{Effort, Settings};

const NAME: &str = "pagealloc";
const FILL: Metric = ("fill_ns", "ns");
const RANDOM_FREE: Metric = ("random_free_ns", "ns");

/// Pages filled: 4 GiB of 4 KiB pages, or 256 MiB in a short run.
const PAGES: u32 = 1 << 20;
const PAGES_QUICK: u32 = 1 << 16;

struct Fill<A: Allocator> {
    allocator: A,
    pages: u32,
    seed: u64,
    held: Mutex<Stock<A::Block>>,
}

struct Stock<T> {
    blocks: Vec<T>,
    random: fastrand::Rng,
}

impl<A: Allocator> Fill<A> {
    fn new(allocator: A, pages: u32, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Fill { allocator, pages, seed, held: Mutex::new(Stock { blocks: Vec::new(), random }) }
    }
}

impl<A: Allocator> Contender<2> for Fill<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn enter(&self) {
        self.allocator.enter();
        // Every design sees the same orders.
        let mut held = lock(&self.held);
        *held = Stock {
            blocks: Vec::with_capacity(self.pages as usize),
            random: fastrand::Rng::with_seed(self.seed),
        };
    }

    fn leave(&self) {
        self.allocator.leave();
        lock(&self.held).blocks = Vec::new();
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 2] {
        let mut held = lock(&self.held);
        let Stock { blocks, random } = &mut *held;
        let (mut fill, mut free) = (0, 0);
        for _ in 0..units {
            let start = Instant::now();
            blocks.extend((0..self.pages).map(|_| design::alloc::<A, 0>(&self.allocator)));
            fill += start.elapsed().as_nanos();
            random.shuffle(blocks);
            let start = Instant::now();
            blocks.drain(..).for_each(|block| self.allocator.free::<0>(block));
            free += start.elapsed().as_nanos();
        }
        let operations = (units * u64::from(self.pages)) as f64;
        [fill as f64 / operations, free as f64 / operations]
    }
}

/// Makes the contender of a design that fills so many pages.
struct FullMemory {
    pages: u32,
    seed: u64,
}

impl AllocatorUser for FullMemory {
    type Output = Box<dyn Contender<2>>;

    fn with<A: Allocator>(self, allocator: A) -> Self::Output {
        Box::new(Fill::new(allocator, self.pages, self.seed))
    }
}

/// Measures it on one CPU.
pub fn run<L: Lineup + Default>(
    settings: &Settings,
    designs: &[Design],
) -> Result<Report, Failure> {
    let mut report = Report::default();
    let pages = fitting_pages(
        &mut report,
        if settings.effort == Effort::Quick { PAGES_QUICK } else { PAGES },
        designs,
    );
    let demand = settings.demand(1, pages, 1);
    let mut contenders: Vec<Box<dyn Contender<2>>> = Vec::new();
    for &design in designs {
        let filled = FullMemory { pages, seed: settings.seed };
        contenders.push(L::default().with_allocator(design, &demand, filled)?);
    }
    let mib = (u64::from(pages) * page_bytes() as u64) >> 20;
    let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
    let series =
        settings.interleave(&format!("{NAME}, filling {mib} MiB"), &mut contenders, 1, schedule)?;
    let mut table = table::new(["design", "fill", "quartiles", "random free", "quartiles"]);
    for one in &series {
        for (metric, samples) in [FILL, RANDOM_FREE].into_iter().zip(&one.samples) {
            report.add(NAME, one.design, metric, (1, &params([("mib", mib as i64)])), samples);
        }
        let cells = one
            .samples
            .iter()
            .flat_map(|samples| [table::median(samples), table::quartiles(samples)]);
        table.add_row([one.design.name().to_owned()].into_iter().chain(cells));
    }
    report.say(format!(
        "{NAME}: {mib} MiB filled page by page, freed in random order, ns per page{}",
        settings.caveat()
    ));
    report.say(table::align(table, 1));
    Ok(report)
}

/// Fewer pages where memory is short: general-purpose allocators write into what they free, so each
/// of them comes to own as much memory as is filled.
fn fitting_pages(report: &mut Report, wanted: u32, designs: &[Design]) -> u32 {
    let owners = designs.iter().filter(|design| design.touches_pages()).count() as u64 + 1;
    let room = available_bytes().unwrap_or(u64::MAX) / (owners + 1) / page_bytes() as u64;
    if room >= u64::from(wanted) {
        return wanted;
    }
    let fitting = (room as u32).max(1024) & !1023;
    report.note(format!(
        "{NAME}: memory is short, so {fitting} pages are filled instead of {wanted}"
    ));
    fitting
}
