//! A batch of blocks allocated, then freed, for each order and size of batch; and a random walk of
//! such batches.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::loops::{alloc_each, free_each, some_block};
use super::walk::{self, Walk};
use crate::design::{self, Allocator, AllocatorUser, Lineup, page_bytes};
use crate::failure::Failure;
use crate::harness::clock::{self, ticks_in_order};
use crate::harness::{Contender, Pace, Schedule, Seat, Series, Subject, lock};
use crate::names::Design;
use crate::report::machine::available_bytes;
use crate::report::rows::{Metric, Params, params};
use crate::report::{Report, counted, table};
use crate::workloads::clients::Clients;
use crate::workloads::settings::{Effort, Settings, checked, samples_of};

const NAME: &str = "pagealloc";
const ALLOC: Metric = ("alloc_ns", "ns");
const FREE: Metric = ("free_ns", "ns");
const TOTAL: Metric = ("total_ns", "ns");

/// Orders that a long run measures unless the user names others.
const ORDERS: [u32; 6] = [0, 1, 2, 3, 4, 9];
/// Orders that a short run measures: single pages, what networks use, and huge pages.
const ORDERS_SHORT: [u32; 3] = [0, 3, 9];
const BATCH_MAX: u32 = 16384;
/// Most blocks of order 9 unless the user asks for orders: 1 GiB, so that allocators have as much
/// memory as for the batches of other orders.
const BATCH_MAX_HUGE: u32 = 512;
/// Batches that a short run measures, and that tables show of a long one: rhythms within a
/// magazine, one magazine, several.
const BATCHES_SHOWN: [u32; 7] = [1, 2, 4, 8, 64, 512, BATCH_MAX];

/// An allocator that makes contenders for every order and batch.
trait Batcher {
    fn contender(&self, order: u32, batch: u32, seats: usize) -> Box<dyn Contender<3>>;

    /// A random walk that holds at most `held_max` blocks.
    fn walker(&self, order: u32, held_max: u32, seats: usize, seed: u64) -> Box<dyn Contender<3>>;

    /// The allocator, to be checked once no contender uses it.
    fn subject(&mut self) -> &mut dyn Subject;
}

struct SharedBatcher<A>(Arc<A>);

struct MakeBatcher;

impl AllocatorUser for MakeBatcher {
    type Output = Box<dyn Batcher>;

    fn with<A: Allocator>(self, allocator: A) -> Self::Output {
        Box::new(SharedBatcher(Arc::new(allocator)))
    }
}

/// Compiles a loop for each order, as programs that know what they ask for have it.
macro_rules! for_order {
    ($order:expr, $made:ident) => {
        match $order {
            0 => $made!(0),
            1 => $made!(1),
            2 => $made!(2),
            3 => $made!(3),
            4 => $made!(4),
            5 => $made!(5),
            6 => $made!(6),
            7 => $made!(7),
            8 => $made!(8),
            9 => $made!(9),
            10 => $made!(10),
            other => unreachable!("no order {other} is measured"),
        }
    };
}

impl<A: Allocator> Batcher for SharedBatcher<A> {
    fn contender(&self, order: u32, batch: u32, seats: usize) -> Box<dyn Contender<3>> {
        macro_rules! loops {
            ($order:literal) => {
                Loops::of::<$order>()
            };
        }
        Box::new(Batch {
            allocator: Arc::clone(&self.0),
            loops: for_order!(order, loops),
            batch: batch as usize,
            held: (0..seats).map(|_| Mutex::default()).collect(),
        })
    }

    fn walker(&self, order: u32, held_max: u32, seats: usize, seed: u64) -> Box<dyn Contender<3>> {
        macro_rules! loops {
            ($order:literal) => {
                walk::Loops::of::<$order>()
            };
        }
        let loops = for_order!(order, loops);
        Box::new(Walk::new(Arc::clone(&self.0), loops, held_max, seats, seed))
    }

    fn subject(&mut self) -> &mut dyn Subject {
        &mut self.0
    }
}

/// The loops of one order. What is around them is compiled once for all orders.
struct Loops<A: Allocator> {
    some_block: fn(&A) -> A::Block,
    total_ns: fn(&A, &mut [A::Block], u64) -> f64,
    alloc_share: fn(&A, &mut [A::Block], u64) -> f64,
}

impl<A: Allocator> Loops<A> {
    fn of<const ORDER: u32>() -> Self {
        Loops {
            some_block: some_block::<A, ORDER>,
            total_ns: total_ns::<A, ORDER>,
            alloc_share: alloc_share::<A, ORDER>,
        }
    }
}

struct Batch<A: Allocator> {
    allocator: Arc<A>,
    loops: Loops<A>,
    batch: usize,
    /// The blocks each seat holds.
    held: Vec<Mutex<Vec<A::Block>>>,
}

/// Nanoseconds of a block's allocation and free together. The clock is not read in between.
#[inline(never)]
fn total_ns<A: Allocator, const ORDER: u32>(
    allocator: &A,
    held: &mut [A::Block],
    times: u64,
) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        alloc_each::<A, ORDER>(allocator, held);
        design::observe(held[0]);
        free_each::<A, ORDER>(allocator, held.iter().copied());
    }
    start.elapsed().as_nanos() as f64 / (times * held.len() as u64) as f64
}

/// The part of it that allocation is: here the clock is read between the two.
#[inline(never)]
fn alloc_share<A: Allocator, const ORDER: u32>(
    allocator: &A,
    held: &mut [A::Block],
    times: u64,
) -> f64 {
    let (mut alloc, mut free) = (0, 0);
    for _ in 0..times {
        let start = ticks_in_order();
        alloc_each::<A, ORDER>(allocator, held);
        let between = ticks_in_order();
        free_each::<A, ORDER>(allocator, held.iter().copied());
        alloc += between - start;
        free += ticks_in_order() - between;
    }
    let cost = clock::read_cost_ticks(ticks_in_order) * times as f64;
    let (alloc, free) = ((alloc as f64 - cost).max(0.0), (free as f64 - cost).max(0.0));
    if alloc + free > 0.0 { alloc / (alloc + free) } else { 0.5 }
}

impl<A: Allocator> Contender<3> for Batch<A> {
    fn subject(&self) -> &dyn Subject {
        &*self.allocator
    }

    /// The total is measured without reading the clock inside; allocation and free are its parts in
    /// the proportion seen with the clock read between them. Small batches would otherwise measure
    /// the clock.
    fn window(&self, seat: Seat, units: u64) -> [f64; 3] {
        let mut held = lock(&self.held[seat.index]);
        if held.is_empty() {
            held.resize(self.batch, (self.loops.some_block)(&self.allocator));
        }
        let times = units.div_ceil(2);
        let total = (self.loops.total_ns)(&self.allocator, &mut held, times);
        let alloc = total * (self.loops.alloc_share)(&self.allocator, &mut held, times);
        [alloc, total - alloc, total]
    }
}

/// Measures all orders and batches.
pub fn run<L: Lineup + Default>(
    settings: &Settings,
    designs: &[Design],
) -> Result<Report, Failure> {
    let (orders, batches) = grid(settings.effort, &settings.orders);
    let mut report = Report::default();
    let mut cpu_counts = settings.cpu_counts();
    cpu_counts
        .retain(|&cpus| cpus == 1 || settings.cpus_given || settings.clients != Clients::Auto);
    let seats_max = *cpu_counts.last().expect("one CPU at least");
    let wanted = |order| match order {
        9 if settings.orders.is_empty() => BATCH_MAX_HUGE,
        _ => BATCH_MAX,
    };
    let orders: Vec<(u32, u32)> = orders
        .into_iter()
        .map(|order| (order, largest_batch(&mut report, &batches, wanted(order), seats_max, order)))
        .collect();
    let (order, batch) = *orders
        .iter()
        .max_by_key(|&&(order, batch)| u64::from(batch) << order)
        .expect("one order at least");
    let demand = settings.demand(seats_max, batch.max(walk::HELD_MAX), 1 << order);
    let mut batchers: Vec<Box<dyn Batcher>> = Vec::new();
    for &design in designs {
        batchers.push(L::default().with_allocator(design, &demand, MakeBatcher)?);
    }
    // Half a window each for the total and its parts.
    let schedule = Schedule {
        pace: Pace::Lasting(settings.window().min(Duration::from_millis(5))),
        ..settings.schedule()
    };
    for cpus in cpu_counts {
        let mut shown = Vec::new();
        for &(order, batch_max) in &orders {
            for &batch in batches.iter().filter(|&&batch| batch <= batch_max) {
                let mut contenders: Vec<_> =
                    batchers.iter().map(|b| b.contender(order, batch, cpus)).collect();
                let what =
                    format!("{NAME}, order {order}, batches of {batch}, {}", counted(cpus, "CPU"));
                let series = settings.interleave(&what, &mut contenders, cpus, schedule)?;
                let of = [("order", order.into()), ("batch", batch.into())];
                add_rows(&mut report, &series, cpus, &params(of));
                if BATCHES_SHOWN.contains(&batch) {
                    shown.push((order, batch.to_string(), series));
                }
            }
        }
        for &(order, batch_max) in &orders {
            let held_max = batch_max.min(walk::HELD_MAX);
            let walker = |b: &dyn Batcher| b.walker(order, held_max, cpus, settings.seed);
            let mut walkers: Vec<_> = batchers.iter().map(|b| walker(&**b)).collect();
            let what = format!("{NAME}, order {order}, a random rhythm, {}", counted(cpus, "CPU"));
            let series = settings.interleave(&what, &mut walkers, cpus, schedule)?;
            let of = [("order", order.into()), ("rhythm", 1)];
            add_rows(&mut report, &series, cpus, &params(of));
            shown.push((order, "random".to_owned(), series));
        }
        report.say(format!(
            "{NAME}: batches allocated, then freed, ns per block: both / allocation / free, {}{}",
            counted(cpus, "CPU"),
            settings.caveat()
        ));
        report.say(show(&shown));
    }
    batchers.iter_mut().try_for_each(|batcher| checked(batcher.subject()))?;
    Ok(report)
}

/// Orders and batches.
fn grid(effort: Effort, asked: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let or = |orders: &[u32]| {
        let mut wanted: Vec<u32> = Vec::new();
        for &order in if asked.is_empty() { orders } else { asked } {
            // Rows of an order that is named twice would be there twice.
            if !wanted.contains(&order) {
                wanted.push(order);
            }
        }
        wanted
    };
    if effort != Effort::Full {
        return (or(&ORDERS_SHORT), BATCHES_SHOWN.to_vec());
    }
    (
        or(&ORDERS),
        std::iter::successors(Some(1), |&batch| (batch < BATCH_MAX).then_some(batch * 2)).collect(),
    )
}

/// The largest batch that fits memory, if every page of it were touched by allocators that write
/// into what they free.
fn largest_batch(
    report: &mut Report,
    batches: &[u32],
    wanted: u32,
    seats: usize,
    order: u32,
) -> u32 {
    let block = (page_bytes() as u64) << order;
    let room = available_bytes().unwrap_or(u64::MAX) / 4 / seats as u64 / block;
    let fits = |&batch: &u32| batch <= wanted && u64::from(batch) <= room.max(1);
    let fitting = batches.iter().copied().filter(fits).max().unwrap_or(1);
    if fitting < wanted {
        report.note(format!(
            "{NAME}: memory is short, so batches of order {order} end at {fitting} blocks instead \
             of {wanted}"
        ));
    }
    fitting
}

fn add_rows(report: &mut Report, series: &[Series<3>], cpus: usize, params: &Params) {
    for one in series {
        for (metric, samples) in [ALLOC, FREE, TOTAL].into_iter().zip(&one.samples) {
            report.add(NAME, one.design, metric, (cpus, params), samples);
        }
    }
}

fn show(shown: &[(u32, String, Vec<Series<3>>)]) -> comfy_table::Table {
    let designs: Vec<Design> = shown[0].2.iter().map(|series| series.design).collect();
    let headings = ["order".to_owned(), "batch".to_owned()].into_iter();
    let mut table =
        table::new(headings.chain(designs.iter().map(|design| design.name().to_owned())));
    for (order, batch, series) in shown {
        let cell = |&design: &Design| {
            let of = |metric| table::median(samples_of(series, design, metric).unwrap_or_default());
            // Both as measured: medians do not add up.
            format!("{} / {} / {}", of(2), of(0), of(1))
        };
        let row = [order.to_string(), batch.clone()].into_iter().chain(designs.iter().map(cell));
        table.add_row(row);
    }
    table::align(table, 0)
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::workloads::options::BenchOptions;

    #[test]
    fn batches_double_up_to_the_last() {
        let (orders, batches) = grid(Effort::Full, &[]);
        assert_eq!(orders, [0, 1, 2, 3, 4, 9]);
        assert_eq!(grid(Effort::Full, &[3, 0, 3, 0]).0, [3, 0]);
        assert_eq!((batches.len(), batches[0], batches[1], batches[14]), (15, 1, 2, 16384));
        assert!(grid(Effort::Quick, &[]).1.iter().all(|batch| batches.contains(batch)));
    }

    #[test]
    fn the_help_names_the_orders_that_are_measured() {
        let command = BenchOptions::augment_args(clap::Command::new("bench"));
        let option = command.get_arguments().find(|option| option.get_long() == Some("order"));
        let help = option.and_then(clap::Arg::get_help).unwrap().to_string();
        let list = |effort| grid(effort, &[]).0.iter().map(u32::to_string).collect::<Vec<_>>();
        let [usual, quick] = [Effort::Full, Effort::Quick].map(|effort| list(effort).join(", "));
        assert!(help.contains(&format!("(default: {usual}; with --quick {quick})")), "{help}");
    }
}
