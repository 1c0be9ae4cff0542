//! `giveback`: a program rests for ten seconds after a peak. How much of what it no longer uses
//! does it give back to the system meanwhile, and how much when it is told to?
//!
//! Threads allocate blocks of 4 to 256 KiB, write to each page, free nine of ten in random order
//! and fall asleep. Nothing calls the allocator while they sleep. Then the program asks for the
//! rest, by the means that each design has for that. What counts is memory that is present
//! (`resident.rs`), beside the bytes that were freed.
//!
//! With `--busy` the program goes on working instead: `pagedepot_cli::workloads::giveback`.
//!
//! Designs run as a program gets them: the depot with a monitor, the others with the settings that
//! they come with. The last CPU counts as isolated: a thread of the program sleeps there, and
//! nothing may run on it.

mod busy;
pub mod holder;
mod peak;
#[cfg(feature = "peers")]
mod peers;
mod phases;
mod resident;
mod rows;

use std::thread;

use pagedepot_linux::MemoryKind;

use self::holder::{DepotHolder, Holder};
use self::peak::{Cpus, Kind, Peak};
use self::phases::{Run, measure};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::stop;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::Report;
use pagedepot_cli::workloads::settings::{Effort, Settings};
use pagedepot_cli::workloads::workload::Workload;

/// The workload `giveback`.
pub const WORKLOAD: Workload = Workload {
    drains: true,
    busy: true,
    varies: false,
    ..Workload::new(rows::NAME, &[Design::Depot, Design::Jemalloc, Design::Mimalloc], run)
};

fn run(settings: &Settings) -> Result<Report, Failure> {
    if settings.busy {
        return pagedepot_cli::workloads::giveback::busy(settings, busy::DESIGNS, busy::make_any);
    }
    let peak = match settings.effort {
        Effort::Quick | Effort::Short => Peak::QUICK,
        Effort::Full => Peak::FULL,
    };
    let peak = Peak { seed: settings.seed, ..peak };
    // Each sample takes the time that the program rests.
    let rounds = if settings.rounds_given { settings.rounds } else { 1 };
    let mut kinds = Vec::new();
    for design in settings.designs(rows::NAME, WORKLOAD.designs)? {
        kinds.push(Kind { design, memfd: false });
        if design == Design::Depot {
            kinds.push(Kind { design, memfd: true });
        }
    }
    let step = settings.progress.task(rows::NAME, kinds.len() as u64 * u64::from(rounds));
    let mut found: Vec<(Kind, Vec<Run>)> = kinds.iter().map(|&kind| (kind, Vec::new())).collect();
    for _ in 0..rounds {
        for (kind, runs) in &mut found {
            if stop::is_asked() {
                break;
            }
            runs.push(once(*kind, settings, &peak)?);
            step.tick();
        }
    }
    drop(step);
    Ok(rows::report(settings, &peak, &found))
}

/// Runs on a thread of its own, whose CPUs those of all threads that it starts are.
fn once(kind: Kind, settings: &Settings, peak: &Peak) -> Result<Run, Failure> {
    let work = || -> Result<Run, Failure> {
        let cpus = Cpus::divide(&settings.cpus)?;
        let holder: Box<dyn Holder> = match kind.design {
            Design::Depot if kind.memfd => {
                Box::new(DepotHolder::new(MemoryKind::Memfd, peak, &cpus)?)
            }
            Design::Depot => Box::new(DepotHolder::new(MemoryKind::Anonymous, peak, &cpus)?),
            #[cfg(feature = "peers")]
            Design::Jemalloc => Box::new(peers::Jemalloc),
            #[cfg(feature = "peers")]
            Design::Mimalloc => Box::new(peers::Mimalloc),
            other => unreachable!("{other} is not among the designs that were offered"),
        };
        measure(&*holder, peak, &cpus)
    };
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
