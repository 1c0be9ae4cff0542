//! Threads with so little memory and so few steps that an interpreter can run them. Miri sees
//! undefined behaviour, data races and the reorderings of weak memory, with one schedule per seed.
//! `.ci/steps/miri` runs it with several.

mod common;

use common::contents::Contents;
use common::threads::{Claimed, Kernel, run_on};
use common::{open_zone, range};
use pagedepot::cpus::{CpuLock, Cpus, LockedCpus, PinnedCpus};
use pagedepot::{Allocator, Config, Flags, HighPolicy, Mode, Order, Scope};

const FRAMES: u32 = 256;
const CPUS: u32 = 2;

/// Allocates more frames than a magazine has, frees half, allocates them again, and frees all.
fn own<C: Cpus>(depot: &Allocator<'_, C>, contents: &Contents, owner: u32) {
    run_on(Some(owner % CPUS));
    let mut held = Vec::new();
    for keep in [10, 35, 0] {
        while held.len() < 70 {
            let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) else { break };
            contents.change(pfn, 0, owner);
            held.push(pfn);
        }
        for pfn in held.drain(keep..) {
            contents.change(pfn, owner, 0);
            depot.free(pfn, Order::BASE).unwrap();
        }
    }
}

fn owners_and_drains<C: Cpus + Send>(cpus: C) {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("tiny", &ranges)];
    let config = Config { high: HighPolicy::Fixed(128), ..Config::new(CPUS, &zones) };
    // In one step: to clone bytes into a `Vec` takes an interpreter half the test.
    let mut metadata = Box::new_uninit_slice(Allocator::<C>::metadata_bytes(&config).unwrap());
    let mut depot = Allocator::new(&config, &mut metadata, cpus).unwrap();
    let contents = Contents::new(FRAMES);
    let (shared, contents) = (&depot, &contents);
    std::thread::scope(|scope| {
        // Two owners act as one CPU, one as the other.
        for owner in [1, 2, 3] {
            scope.spawn(move || own(shared, contents, owner));
        }
        scope.spawn(move || {
            for mode in [Mode::Quiet, Mode::Full, Mode::Full, Mode::Quiet] {
                shared.drain(Scope::ALL, mode);
                std::thread::yield_now();
            }
        });
    });
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

#[test]
fn owners_and_drains_with_locks() {
    let locks = [const { CpuLock::new() }; CPUS as usize];
    owners_and_drains(LockedCpus::new(&locks, Claimed::new()));
}

#[test]
fn owners_and_drains_with_guards() {
    owners_and_drains(PinnedCpus(Kernel::new(CPUS)));
}
