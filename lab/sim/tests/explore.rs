//! Random and PCT schedules at counts of CPUs that no model checker reaches; afterwards every frame
//! is in exactly one place. `PAGEDEPOT_SIM_SCHEDULES` is the number of seeds for each (default: 1),
//! `PAGEDEPOT_SEED` the first.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagedepot_sim::designs::PAGED;
use pagedepot_sim::explore::{Exploration, Mutant, explore, with_mutant};
use pagedepot_sim::{Mode, Schedule};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn seeds() -> impl Iterator<Item = u64> {
    let first = number("PAGEDEPOT_SEED", 1);
    first..first + number("PAGEDEPOT_SIM_SCHEDULES", 1)
}

fn schedules(cpus: u32, steps: u32) -> [Schedule; 3] {
    let accesses = u64::from(cpus * steps) * 30;
    [
        Schedule::Random { stretch: 4 },
        Schedule::Random { stretch: 64 },
        Schedule::Pct { changes: 8, steps: accesses },
    ]
}

fn hold(design: &str, cpus: u32, steps: u32) {
    for seed in seeds() {
        for schedule in schedules(cpus, steps) {
            let (design, modes) = (design.to_owned(), &[Mode::Full, Mode::Handover]);
            let exploration = Exploration { design, cpus, steps, modes, schedule, seed };
            let result = catch_unwind(AssertUnwindSafe(|| explore(&exploration)));
            match result {
                Ok(Ok(accesses)) => assert!(accesses > u64::from(cpus * steps)),
                Ok(Err(fault)) => panic!("{exploration:?}: {fault}"),
                Err(_) => panic!("{exploration:?}; PAGEDEPOT_SEED={seed} repeats it"),
            }
        }
    }
}

#[test]
fn the_depot_holds_on_8_cpus() {
    hold("depot", 8, 300);
}

#[test]
fn the_depot_holds_on_64_cpus() {
    hold("depot", 64, 60);
}

#[test]
fn the_depot_holds_on_256_cpus() {
    hold("depot", 256, 12);
}

#[test]
fn the_rivals_hold_on_16_cpus() {
    for design in PAGED.into_iter().filter(|&design| design != "depot") {
        hold(design, 16, 60);
    }
}

/// A full drain that fences no CPU takes a front whose owner is about to commit: schedules find it.
/// The owner must stand still while the drain goes from the closed gate to that front, past some
/// hundred words of other fronts, so tasks run on for stretches of about as many accesses.
fn finds(mutant: Mutant, cpus: u32, steps: u32) -> bool {
    with_mutant(mutant, || {
        (1..50).any(|seed| {
            let schedule = Schedule::Random { stretch: 16 };
            let (design, modes) = ("depot".to_owned(), &[Mode::Full]);
            let exploration = Exploration { design, cpus, steps, modes, schedule, seed };
            !matches!(catch_unwind(AssertUnwindSafe(|| explore(&exploration))), Ok(Ok(_)))
        })
    })
}

#[test]
fn a_missing_fence_is_found_on_8_cpus() {
    assert!(finds(Mutant::NoFence, 8, 300));
}

#[test]
fn a_missing_fence_is_found_on_64_cpus() {
    assert!(finds(Mutant::NoFence, 64, 60));
}

#[test]
fn a_missing_fence_is_found_on_256_cpus() {
    assert!(finds(Mutant::NoFence, 256, 60));
}
