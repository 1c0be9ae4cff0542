//! A batch of blocks allocated, then freed, for each order and size of batch; and a random walk of
//! such batches.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::walk::{self, Walk};
use crate::design::dispatch::with_design;
use crate::design::{self, Allocator, PAGE_BYTES};
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
const ORDERS: [u32; 5] = [0, 1, 2, 3, 4];
const BATCH_MAX: u32 = 16384;
/// Batches that a short run measures, and that tables show of a long one: rhythms within a
/// magazine, one magazine, several.
const BATCHES_SHOWN: [u32; 7] = [1, 2, 4, 8, 64, 512, BATCH_MAX];

/// An allocator that makes contenders for every order and batch.
trait Batcher {
    fn contender(&self, order: u32, batch: u32, seats: usize) -> Box<dyn Contender<3>>;

    /// A random walk by blocks of order 0.
    fn walker(&self, seats: usize, seed: u64) -> Box<dyn Contender<3>>;

    /// The allocator, to be checked once no contender uses it.
    fn subject(&mut self) -> &mut dyn Subject;
}

struct SharedBatcher<A>(Arc<A>);

impl<A: Allocator> Batcher for SharedBatcher<A> {
    fn contender(&self, order: u32, batch: u32, seats: usize) -> Box<dyn Contender<3>> {
        let allocator = Arc::clone(&self.0);
        // One loop is compiled for each order, as programs that know what they ask for have it.
        match order {
            0 => Batch::<A, 0>::boxed(allocator, batch, seats),
            1 => Batch::<A, 1>::boxed(allocator, batch, seats),
            2 => Batch::<A, 2>::boxed(allocator, batch, seats),
            3 => Batch::<A, 3>::boxed(allocator, batch, seats),
            4 => Batch::<A, 4>::boxed(allocator, batch, seats),
            5 => Batch::<A, 5>::boxed(allocator, batch, seats),
            6 => Batch::<A, 6>::boxed(allocator, batch, seats),
            7 => Batch::<A, 7>::boxed(allocator, batch, seats),
            8 => Batch::<A, 8>::boxed(allocator, batch, seats),
            9 => Batch::<A, 9>::boxed(allocator, batch, seats),
            10 => Batch::<A, 10>::boxed(allocator, batch, seats),
            other => unreachable!("no order {other} is measured"),
        }
    }

    fn walker(&self, seats: usize, seed: u64) -> Box<dyn Contender<3>> {
        Box::new(Walk::new(Arc::clone(&self.0), seats, seed))
    }

    fn subject(&mut self) -> &mut dyn Subject {
        &mut self.0
    }
}

struct Batch<A: Allocator, const ORDER: u32> {
    allocator: Arc<A>,
    batch: usize,
    /// The blocks each seat holds.
    held: Vec<Mutex<Vec<A::Block>>>,
}

impl<A: Allocator, const ORDER: u32> Batch<A, ORDER> {
    fn boxed(allocator: Arc<A>, batch: u32, seats: usize) -> Box<dyn Contender<3>> {
        let batch = batch as usize;
        Box::new(Batch::<A, ORDER> {
            allocator,
            batch,
            held: (0..seats).map(|_| Mutex::default()).collect(),
        })
    }

    #[inline(always)]
    fn alloc(&self, held: &mut [A::Block]) {
        held.iter_mut().for_each(|slot| *slot = design::alloc::<A, ORDER>(&self.allocator));
    }

    #[inline(always)]
    fn free(&self, held: &[A::Block]) {
        held.iter().for_each(|&block| self.allocator.free::<ORDER>(block));
    }

    /// Nanoseconds of a block's allocation and free together. The clock is not read in between.
    #[inline(never)]
    fn total_ns(&self, held: &mut [A::Block], times: u64) -> f64 {
        let start = Instant::now();
        for _ in 0..times {
            self.alloc(held);
            design::observe(held[0]);
            self.free(held);
        }
        start.elapsed().as_nanos() as f64 / (times * self.batch as u64) as f64
    }

    /// The part of it that allocation is: here the clock is read between the two.
    #[inline(never)]
    fn alloc_share(&self, held: &mut [A::Block], times: u64) -> f64 {
        let (mut alloc, mut free) = (0, 0);
        for _ in 0..times {
            let start = ticks_in_order();
            self.alloc(held);
            let between = ticks_in_order();
            self.free(held);
            alloc += between - start;
            free += ticks_in_order() - between;
        }
        let cost = clock::read_cost_ticks(ticks_in_order) * times as f64;
        let (alloc, free) = ((alloc as f64 - cost).max(0.0), (free as f64 - cost).max(0.0));
        if alloc + free > 0.0 { alloc / (alloc + free) } else { 0.5 }
    }
}

impl<A: Allocator, const ORDER: u32> Contender<3> for Batch<A, ORDER> {
    fn subject(&self) -> &dyn Subject {
        &*self.allocator
    }

    /// The total is measured without reading the clock inside; allocation and free are its parts in
    /// the proportion seen with the clock read between them. Small batches would otherwise measure
    /// the clock.
    fn window(&self, seat: Seat, units: u64) -> [f64; 3] {
        let mut held = lock(&self.held[seat.index]);
        if held.is_empty() {
            // The slots need some contents, which each batch overwrites.
            let block = design::alloc::<A, ORDER>(&self.allocator);
            self.allocator.free::<ORDER>(block);
            held.resize(self.batch, block);
        }
        let times = units.div_ceil(2);
        let total = self.total_ns(&mut held, times);
        let alloc = total * self.alloc_share(&mut held, times);
        [alloc, total - alloc, total]
    }
}

/// Measures all orders and batches.
pub fn run(settings: &Settings, designs: &[Design]) -> Result<Report, Failure> {
    let (orders, batches) = grid(settings.effort, &settings.orders);
    let mut report = Report::default();
    let mut cpu_counts = settings.cpu_counts();
    cpu_counts
        .retain(|&cpus| cpus == 1 || settings.cpus_given || settings.clients != Clients::Auto);
    let seats_max = *cpu_counts.last().expect("one CPU at least");
    let orders: Vec<(u32, u32)> = orders
        .into_iter()
        .map(|order| (order, largest_batch(&mut report, &batches, seats_max, order)))
        .collect();
    let (order, batch) = *orders
        .iter()
        .max_by_key(|&&(order, batch)| u64::from(batch) << order)
        .expect("one order at least");
    let demand = settings.demand(seats_max, batch.max(walk::HELD_MAX), 1 << order);
    let mut batchers: Vec<Box<dyn Batcher>> = Vec::new();
    for &design in designs {
        batchers.push(with_design!(any design, &demand, |allocator| -> Box<dyn Batcher> {
            Box::new(SharedBatcher(Arc::new(allocator)))
        })?);
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
        if orders.iter().any(|&(order, _)| order == 0) {
            let mut walkers: Vec<_> =
                batchers.iter().map(|b| b.walker(cpus, settings.seed)).collect();
            let what = format!("{NAME}, a random rhythm, {}", counted(cpus, "CPU"));
            let series = settings.interleave(&what, &mut walkers, cpus, schedule)?;
            add_rows(&mut report, &series, cpus, &params([("order", 0), ("rhythm", 1)]));
            shown.push((0, "random".to_owned(), series));
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
    let or = |orders: &[u32]| if asked.is_empty() { orders.to_vec() } else { asked.to_vec() };
    if effort != Effort::Full {
        return (or(&[0, 3]), BATCHES_SHOWN.to_vec());
    }
    (
        or(&ORDERS),
        std::iter::successors(Some(1), |&batch| (batch < BATCH_MAX).then_some(batch * 2)).collect(),
    )
}

/// The largest batch that fits memory, if every page of it were touched by allocators that write
/// into what they free.
fn largest_batch(report: &mut Report, batches: &[u32], seats: usize, order: u32) -> u32 {
    let block = (PAGE_BYTES as u64) << order;
    let room = available_bytes().unwrap_or(u64::MAX) / 4 / seats as u64 / block;
    let fits = |&batch: &u32| u64::from(batch) <= room.max(1);
    let fitting = batches.iter().copied().filter(fits).max().unwrap_or(1);
    if fitting < BATCH_MAX {
        report.note(format!(
            "{NAME}: memory is short, so batches of order {order} end at {fitting} blocks instead \
             of {BATCH_MAX}"
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
    use super::*;

    #[test]
    fn batches_double_up_to_the_last() {
        let (orders, batches) = grid(Effort::Full, &[]);
        assert_eq!(orders, [0, 1, 2, 3, 4]);
        assert_eq!((batches.len(), batches[0], batches[1], batches[14]), (15, 1, 2, 16384));
        assert!(grid(Effort::Quick, &[]).1.iter().all(|batch| batches.contains(batch)));
    }

    #[test]
    fn parts_add_up_to_the_total() {
        let cpus = vec![pagedepot::CpuId::new(0)];
        let demand =
            design::Demand { blocks_per_cpu: 64, frames_per_block: 1, cpus, ..Default::default() };
        let batch = Batch::<_, 0> {
            allocator: Arc::new(design::floor_tls::FloorTls::new(&demand).unwrap()),
            batch: 64,
            held: vec![Mutex::default()],
        };
        batch.enter();
        let [alloc, free, total] = batch.window(Seat { index: 0, cpu: demand.cpus[0] }, 1000);
        batch.leave();
        assert!(alloc >= 0.0 && free >= 0.0 && total > 0.0);
        assert!((alloc + free - total).abs() < 1e-9 * total);
    }
}
