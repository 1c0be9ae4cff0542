//! `stress`: each thread fills its part of the memory to a random level, then to another one, and
//! so on. How much of what is free lies in whole pageblocks meanwhile?
//!
//! The workload is that of LLFree's program `stress` (its repository, `eval/src/bin/stress.rs`):
//! 1. a thread per CPU fills its part of the memory;
//! 2. it draws a level between empty and full, shuffles the blocks that it holds, and frees or
//!    allocates blocks until it has that level; and again. So a block lives as long as chance has
//!    it;
//! 3. from time to time the pageblocks that are free as a whole are counted, as a share of those
//!    that the free memory would fill. The mean of these looks is the *score*.
//!
//! LLFree's program looks once a second, whatever a thread does at that moment. Here a look comes
//! after so many operations that the share does not depend on the speed of a design or machine. In
//! the second before LLFree's first look each thread goes to some twenty levels, and no pageblock
//! is whole at the first ten. So as much is done here before the first look.
//!
//! It is measured twice: with single frames, as LLFree's program runs unless told otherwise, and
//! with blocks of orders 0 to 4, drawn one by one.
//!
//! # Metrics
//! With all threads stopped, and nothing drained; a sample per look:
//!
//! | metric | what |
//! |---|---|
//! | `whole_of_free_share` | frames of whole pageblocks, as a fraction of those that no thread holds |
//! | `whole_by_held_share` | the same, where frames in caches count as free |
//! | `op_ns` | an allocation or a free |

mod rows;
mod seats;

use self::rows::NAME;
use self::seats::Seats;
use crate::design::dispatch::with_design;
use pagedepot::Order;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::Contender;
use pagedepot_cli::names::{Design, joined};
use pagedepot_cli::report::Report;
use pagedepot_cli::workloads::settings::Settings;
use pagedepot_cli::workloads::shape::{DefaultShape, Shape};
use pagedepot_cli::workloads::workload::Workload;

/// The workload `stress`.
pub const WORKLOAD: Workload = Workload { fills: true, ..Workload::new(NAME, DESIGNS, run) };

/// Designs that allocate blocks of any order and say what is free in their store.
const DESIGNS: &[Design] =
    &joined::<11>(&[Design::PAGED, &[Design::DepotStill, Design::DepotUncached]]);

/// 4 GiB, and a look after each of these rounds.
const USUAL: DefaultShape = DefaultShape { mib: [4096, 64], free_percent: 50, rounds: [48, 8] };

/// The highest orders of the blocks, by measurement.
const ORDERS_MAX: [Order; 2] = [Order::BASE, Order::new(4).unwrap()];

/// Measures both, on all CPUs, as often as asked for.
fn run(settings: &Settings) -> Result<Report, Failure> {
    for (given, option) in [
        (settings.fill.free_percent.is_some(), "--free-percent"),
        (settings.fill.surges.is_some(), "--surges"),
        (settings.fill.no_moves, "--no-moves"),
    ] {
        if given {
            return Err(Failure::Usage(format!(
                "{option} is not for `bench {NAME}`: its threads draw how much is free"
            )));
        }
    }
    let shape = Shape::new(settings, &USUAL);
    let designs = settings.designs(NAME, DESIGNS)?;
    let mut report = Report::default();
    for order_max in ORDERS_MAX {
        let mut found: Vec<[Vec<f64>; 3]> = designs.iter().map(|_| Default::default()).collect();
        shape.each_run(|nth| measure(settings, &shape, (nth, order_max), &designs, &mut found))?;
        rows::add(&mut report, &shape, order_max, &designs, &found);
        rows::show(&mut report, &shape, order_max, &designs, &found);
    }
    Ok(report)
}

/// One run: the designs take turns, round by round.
fn measure(
    settings: &Settings,
    shape: &Shape,
    (nth, order_max): (u32, Order),
    designs: &[Design],
    found: &mut [[Vec<f64>; 3]],
) -> Result<(), Failure> {
    let demand = shape.demand(settings);
    let mut contenders = Vec::new();
    for &design in designs {
        let one = with_design!(any design, &demand, |allocator| -> Box<dyn Contender<3>> {
            Box::new(Seats::new(allocator, *shape, order_max))
        })?;
        contenders.push(one);
    }
    let what = format!("{NAME}, orders up to {order_max}, run {nth} of {}", shape.runs);
    let series = settings.interleave(&what, &mut contenders, shape.threads, shape.schedule())?;
    for (found, one) in found.iter_mut().zip(series) {
        found.iter_mut().zip(one.samples).for_each(|(all, samples)| all.extend(samples));
    }
    Ok(())
}
