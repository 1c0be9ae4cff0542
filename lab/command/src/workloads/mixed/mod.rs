//! `mixed`: long-lived unmovable memory, page cache, short-lived processes and network bursts share
//! one memory that is nearly full. How many huge pages can be had afterwards, at which cost?
//!
//! The table [`params::KINDS`] publishes what is allocated; everything random follows from
//! `--seed`. Each CPU has a thread with an equal part of the memory:
//! 1. it fills its part: first what lives long, then page cache up to [`params::FULL_PERCENT`];
//! 2. in each round it replaces a share of every kind, in small steps in random order. Unmovable
//!    and reclaimable memory surges meanwhile, and shrinks again. Page cache gives way: its folios
//!    are freed, at random, whenever memory is above that mark. Network bursts are freed by the
//!    next thread, by single blocks and up to eight together;
//! 3. then page cache is freed at random until the share asked for is free.
//!
//! # Metrics
//! At the end, after every design has drained its caches:
//!
//! | metric | what |
//! |---|---|
//! | `whole_share` | pageblocks that are wholly free, as a fraction of all |
//! | `gib_ranges` | aligned ranges of 1 GiB that are wholly free |
//! | `tainted_share` | pageblocks that hold unmovable or reclaimable memory, as a fraction of all |
//! | `mixed_share` | those of them that also hold movable memory |
//! | `gib_allocated`, `gib_ns` | 1 GiB ranges allocated until none is left; time of each |
//! | `gib_compacted`, `gib_compact_ns` | the same, where movable blocks may be moved for them |
//! | `moved_pages` | pages moved for all of these |
//! | `churn_moved_pages` | pages moved in the rounds, so that unmovable blocks need not be mixed |
//! | `huge_allocated`, `huge_ns` | blocks of 2 MiB allocated until none is left; time of each |
//! | `op_ns` | an allocation or a free of the rounds, all kinds and orders together |
//! | `fallbacks` | blocks of higher orders that single frames had to replace |
//!
//! A design that has no ranges of 1 GiB has no `gib_allocated`: `gib_ranges` is what it could have.
//! One that moves nothing has no `gib_compacted`. A frame is a number, so the time of a move is
//! that of finding it and its destination, and of updating its owner, without the copy.

mod churn;
mod ends;
mod holdings;
mod kinds;
mod params;
mod rows;

use std::sync::Arc;

use self::churn::Churn;
use self::ends::Ends;
use self::rows::{DesignSamples, NAME};
use crate::design::dispatch::with_design;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, lock};
use pagedepot_cli::names::Design;
use pagedepot_cli::report::Report;
use pagedepot_cli::report::machine::available_bytes;
use pagedepot_cli::workloads::settings::{Settings, broken};
use pagedepot_cli::workloads::shape::{DefaultShape, Shape};
use pagedepot_cli::workloads::workload::Workload;

/// The workload `mixed`.
pub const WORKLOAD: Workload = Workload { fills: true, ..Workload::new(NAME, DESIGNS, run) };

/// Designs that know mobilities. Those of the threads that are missing differ from `spin` in the
/// locks around the same lists and the same store.
const DESIGNS: &[Design] = &[
    Design::Depot,
    Design::DepotStill,
    Design::DepotUncached,
    Design::ZoneLock,
    Design::Spin,
    Design::PcpBuddy,
];

const USUAL: DefaultShape =
    DefaultShape { mib: [16 << 10, 512], free_percent: 30, rounds: [20, 3] };

/// Bytes of metadata per simulated page and design, about: a record of a buddy store, and the
/// workload's own notes of the block.
const BYTES_PER_PAGE: u64 = 44;

/// Measures it, on all CPUs, as often as asked for.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let shape = Shape::new(settings, &USUAL);
    let designs = settings.designs(NAME, DESIGNS)?;
    let needed = shape.pages * BYTES_PER_PAGE * designs.len() as u64;
    if available_bytes().is_some_and(|available| available < needed) {
        return Err(Failure::Usage(format!(
            "`bench {NAME}` needs {} MiB for the metadata of {} MiB: give --memory-mib less",
            needed >> 20,
            shape.mib()
        )));
    }
    let mut found: Vec<DesignSamples> = designs.iter().map(|_| DesignSamples::default()).collect();
    shape.each_run(|nth| measure(settings, &shape, nth, &designs, &mut found))?;
    let mut report = Report::default();
    rows::add(&mut report, &shape, &designs, &found);
    rows::show(&mut report, &shape, &designs, &found);
    Ok(report)
}

/// One run: the designs take turns, round by round.
fn measure(
    settings: &Settings,
    shape: &Shape,
    nth: u32,
    designs: &[Design],
    found: &mut [DesignSamples],
) -> Result<(), Failure> {
    let demand = shape.demand(settings);
    let (mut contenders, mut ends) = (Vec::new(), Vec::<Arc<Ends>>::new());
    for &design in designs {
        let one = with_design!(any design, &demand, |allocator| -> Box<dyn Contender<1>> {
            let churn = Churn::new(allocator, *shape);
            ends.push(churn.ends());
            Box::new(churn)
        })?;
        contenders.push(one);
    }
    let what = format!("{NAME}, run {nth} of {}", shape.runs);
    let series = settings.interleave(&what, &mut contenders, shape.threads, shape.schedule())?;
    for (((found, one), ends), &design) in found.iter_mut().zip(series).zip(&ends).zip(designs) {
        let end = lock(ends).clone();
        if let Some(fault) = end.as_ref().and_then(|end| end.fault.as_ref()) {
            return Err(broken(design, fault));
        }
        found.add(&one.samples[0], end);
    }
    Ok(())
}
