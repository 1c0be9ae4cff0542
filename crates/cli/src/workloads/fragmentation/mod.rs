//! `fragmentation`: memory is filled with single frames, a share of them is freed at random, and
//! then frames are reallocated at random. How many pageblocks become whole again?
//!
//! The workload is that of LLFree's benchmark `frag` (Wrenger, Rommel, Halbuer, Dietrich, Lohmann:
//! "LLFree: Scalable and Optionally-Persistent Page-Frame Allocation", USENIX ATC 2023):
//! 1. a thread per CPU fills the memory with single frames;
//! 2. all frames are shuffled and dealt out to the threads, which free them until the share asked
//!    for is free;
//! 3. in each round the threads free a random frame that they hold and allocate one, as often as a
//!    tenth of the free frames.
//!
//! # Metrics
//! After each round, with all threads stopped, and nothing drained:
//!
//! | metric | what |
//! |---|---|
//! | `whole_share` | pageblocks that are wholly free, as a fraction of all; see [`FreeMap`] |
//! | `gib_ranges` | aligned ranges of 1 GiB that are wholly free |
//! | `tainted_share` | pageblocks that hold a frame of unmovable memory, as a fraction of all |
//! | `realloc_ns` | a free and the allocation that follows, without the choice of the frame |
//!
//! Round 0 is the state after step 2. After the last round every design drains all caches, as
//! thoroughly as it can, which gives `whole_drained_share` and `gib_drained_ranges`.
//!
//! [`FreeMap`]: pagedepot_designs::FreeMap

mod frames;
mod kernel;
mod rows;
mod seats;

use std::sync::Arc;

use self::frames::Frames;
use self::kernel::KernelFrames;
use self::rows::{DesignSamples, NAME};
use self::seats::{METRICS, Seats};
use super::settings::{Settings, broken};
use super::shape::{DefaultShape, Shape};
use super::workload::Workload;
use crate::design::depot::DepotAllocator;
use crate::design::{Allocator, AllocatorUser, Demand, Lineup};
use crate::failure::Failure;
use crate::harness::{Contender, lock};
use crate::names::Design;
use crate::report::Report;

/// The workload `fragmentation`.
pub const fn workload<L: Lineup + Default>() -> Workload {
    Workload { fills: true, ..Workload::new(NAME, DESIGNS, run::<L>) }
}

/// 4 GiB, as in LLFree's paper. A short run has as many rounds: after fewer no design has a whole
/// pageblock.
const USUAL: DefaultShape = DefaultShape { mib: [4096, 64], free_percent: 50, rounds: [100, 100] };

/// Designs with frames. Those of the threads that are missing differ from `spin` in the locks
/// around the same lists and the same store.
const DESIGNS: &[Design] = &[
    Design::Depot,
    Design::DepotStill,
    Design::DepotUncached,
    Design::ZoneLock,
    Design::Spin,
    Design::Qpw,
    Design::PcpBuddy,
    Design::FrameAlloc,
    Design::Kernel,
];

/// Measures it, on all CPUs, as often as asked for.
fn run<L: Lineup + Default>(settings: &Settings) -> Result<Report, Failure> {
    if settings.fill.surges.is_some() {
        return Err(Failure::Usage(format!("`bench {NAME}` has no surges: `bench mixed` has")));
    }
    if settings.fill.no_moves {
        return Err(Failure::Usage(format!("`bench {NAME}` moves nothing: `bench mixed` does")));
    }
    let shape = Shape::new(settings, &USUAL);
    shape.check_seats(NAME)?;
    let mut report = Report::default();
    let mut designs = settings.designs(NAME, DESIGNS)?;
    if let Some(why) = kernel::why_not(&shape).filter(|_| designs.contains(&Design::Kernel)) {
        if settings.designs.contains(&Design::Kernel) {
            return Err(Failure::Usage(why));
        }
        report.note(format!("{NAME}: {why}"));
        designs.retain(|&design| design != Design::Kernel);
    }
    let mut found: Vec<DesignSamples> = designs.iter().map(|_| DesignSamples::default()).collect();
    shape.each_run(|nth| measure::<L>(settings, &shape, nth, &designs, &mut found))?;
    rows::add(&mut report, &shape, &designs, &found);
    rows::show(&mut report, &shape, &designs, &found);
    Ok(report)
}

/// One run: each design fills its memory once, and then all take turns, round by round.
fn measure<L: Lineup + Default>(
    settings: &Settings,
    shape: &Shape,
    nth: u32,
    designs: &[Design],
    found: &mut [DesignSamples],
) -> Result<(), Failure> {
    let demand = shape.demand(settings);
    let (mut contenders, mut ends) = (Vec::new(), Vec::new());
    for &design in designs {
        let (contender, end) = contender::<L>(design, &demand, shape)?;
        contenders.push(contender);
        ends.push(end);
    }
    let what = format!("{NAME}, run {nth} of {}", shape.runs);
    let series = settings.interleave(&what, &mut contenders, shape.threads, shape.schedule())?;
    for (((found, one), end), &design) in found.iter_mut().zip(series).zip(&ends).zip(designs) {
        let end = lock(end).clone();
        if let Some(fault) = &end.fault {
            return Err(broken(design, fault));
        }
        found.add(&one, &end);
    }
    Ok(())
}

type Made = (Box<dyn Contender<METRICS>>, Arc<seats::Ends>);

fn made<F: Frames + 'static>(frames: F, shape: &Shape) -> Made {
    let seats = Seats::new(frames, *shape);
    let ends = seats.ends();
    (Box::new(seats), ends)
}

impl AllocatorUser for &Shape {
    type Output = Made;

    fn with<A: Allocator>(self, allocator: A) -> Made {
        made(allocator, self)
    }
}

fn contender<L: Lineup + Default>(
    design: Design,
    demand: &Demand,
    shape: &Shape,
) -> Result<Made, Failure> {
    match design {
        Design::Kernel => Ok(made(KernelFrames::new(shape)?, shape)),
        // Of no other workload, so that no other is compiled for them.
        Design::DepotUncached => Ok(made(DepotAllocator::<false>::new(demand)?, shape)),
        Design::DepotStill => Ok(made(DepotAllocator::<true, false>::new(demand)?, shape)),
        _ => L::default().with_allocator(design, demand, shape),
    }
}
