//! `drain`: a CPU takes back what another caches. What does that cost the other CPU, and how long
//! does it take?
//!
//! # Vocabulary
//! * *owner*: the thread on the CPU that is drained; *drainer*: the thread on another.
//! * *group*: 64 of the owner's operations, timed together.
//! * *fill*: what the owner does before a drain, so that all drains find the same; see
//!   `owner::fill`.
//! * *interrupts*: those that the kernel counts on the owner's CPU; *interruptions*: the times that
//!   the design itself knows to have stopped a CPU, by work run there or a fence asked for.
//! * *handover*: the time of such a drain is that until it is complete, *pending* what was on its
//!   way when it answered, and *collected* the time from that to the end.
//! * *idle window*: as long as the others, without drains: the interrupts of the owner's CPU during
//!   it have other causes, and are subtracted.

mod busy;
mod contenders;
mod drains;
mod halted;
mod owner;
mod rows;
mod stopper;

use std::time::Duration;

use self::busy::{INTERRUPTS, IdleWindow};
use self::contenders::{Add, Contenders, OfBusy, OfHalted};
use self::owner::OwnerWork;
use self::rows::NAME;
use self::stopper::Stopper;
use super::settings::{Effort, Settings, checked};
use super::workload::Workload;
use crate::design::depot::DepotAllocator;
use crate::design::{Allocator as _, Demand, Lineup};
use crate::failure::Failure;
use crate::harness::{Contender, Pace, Schedule, interrupts};
use crate::names::{Design, joined};
use crate::report::Report;

/// The workload `drain`.
pub const fn workload<L: Lineup + Default>() -> Workload {
    Workload { drains: true, ..Workload::new(NAME, DESIGNS, run::<L>) }
}

/// Designs whose caches another CPU can take back.
const DESIGNS: &[Design] = &joined::<13>(&[
    &[Design::Depot, Design::FloorSpin],
    Design::PROPOSALS,
    &[Design::FrameAlloc, Design::MimallocPprof, Design::Tcmalloc],
]);

/// Measures it: the owner on the first CPU, the drainer on the second.
fn run<L: Lineup + Default>(settings: &Settings) -> Result<Report, Failure> {
    settings.need_two_cpus(NAME)?;
    let length = Duration::from_millis(match settings.effort {
        Effort::Full => 50,
        Effort::Short => 20,
        Effort::Quick => 10,
    });
    let demand = settings.demand(2, owner::HELD_BLOCKS_MAX, 1);
    let mut contenders = Contenders::default();
    for design in settings.designs(NAME, DESIGNS)? {
        let owner = settings.cpus[0];
        let add = Add { to: &mut contenders, owner, length, stopper: Stopper::get()? };
        L::default().with_allocator(design, &demand, add)?;
    }
    if settings.designs(NAME, DESIGNS)?.contains(&Design::Depot) {
        let owner = settings.cpus[0];
        let demand = Demand { isolated: Some(owner), ..demand };
        let mut add = Add { to: &mut contenders, owner, length, stopper: Stopper::get()? };
        add.isolating(<DepotAllocator>::new(&demand)?);
    }
    let mut report = Report::default();
    run_busy(settings, contenders.busy, length, &mut report)?;
    run_halted(settings, contenders.halted, &mut report)?;
    contenders.allocators.iter_mut().try_for_each(|allocator| checked(&mut **allocator))?;
    Ok(report)
}

fn run_busy(
    settings: &Settings,
    contenders: Vec<(OfBusy, Box<dyn Contender<{ busy::METRICS }>>)>,
    length: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    let (what, mut contenders): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    contenders.push(Box::new(IdleWindow { length, owner: settings.cpus[0] }));
    let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
    let step = format!("{NAME}, of a busy CPU");
    let mut series = settings.interleave(&step, &mut contenders, 2, schedule)?;
    let idle = series.pop().expect("the idle window").samples[INTERRUPTS].clone();
    if !idle.is_empty() && idle.iter().all(|count| count.is_nan()) {
        report.note(interrupts::NOT_COUNTED);
    }
    for one in &mut series {
        let counts = one.samples[INTERRUPTS].iter().zip(&idle).map(above_idle);
        one.samples[INTERRUPTS] = counts.collect();
    }
    for (what, one) in what.iter().zip(&series) {
        rows::add_busy(report, *what, one);
    }
    for (work, does) in [
        (OwnerWork::Pairs, "allocates and frees a page; before each drain its shelf is filled"),
        (OwnerWork::Bursts, "allocates 512 pages, then frees them"),
    ] {
        report.say(format!(
            "{NAME}: the owner {does}; ns per operation, by groups of 64; {} ms windows{}",
            length.as_millis(),
            settings.caveat()
        ));
        let rows: Vec<_> = what.iter().zip(&series).filter(|(what, _)| what.work == work).collect();
        report.say(rows::busy_table(&rows));
    }
    Ok(())
}

/// Interrupts beyond those of the idle window. There are no fewer than none, however many came by
/// chance when nothing was drained.
fn above_idle((&count, &idle): (&f64, &f64)) -> f64 {
    // NaN, which is no measurement, stays.
    if count < idle { 0.0 } else { count - idle }
}

fn run_halted(
    settings: &Settings,
    contenders: Vec<(OfHalted, Box<dyn Contender<{ halted::METRICS }>>)>,
    report: &mut Report,
) -> Result<(), Failure> {
    let (what, mut contenders): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
    let step = format!("{NAME}, of a CPU at rest");
    let series = settings.interleave(&step, &mut contenders, 2, schedule)?;
    for (what, one) in what.iter().zip(&series) {
        rows::add_halted(report, *what, one);
    }
    report.say(format!(
        "{NAME}: of a CPU with {} full magazines whose owner sleeps, or was stopped in \
         mid-operation (for {} ms at most), or works on an isolated CPU; handovers by their \
         completion, with a fence after 1 ms",
        owner::FULL_MAGAZINES,
        stopper::STOP_MAX.as_millis()
    ));
    report.say(rows::halted_table(&what, &series));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::above_idle;

    #[test]
    fn interrupts_are_never_negative() {
        assert_eq!(
            [(3.0, 1.0), (1.0, 3.0)].map(|(count, idle)| above_idle((&count, &idle))),
            [2.0, 0.0]
        );
        assert!(above_idle((&f64::NAN, &1.0)).is_nan());
    }
}
