//! 1. Whatever runs beside owners (drains of both kinds, caches switched off and on, decay, memory
//!    that is added), every frame is in one place afterwards, and none had two owners.
//! 2. A request fails only when every frame is in callers' hands.

use std::sync::Arc;

use shuttle::thread::{self, JoinHandle};

use super::cpus::Rseq;
use super::machine::{
    Anywhere, CPUS, Depot, Owner, Preemption, SECTION, Setup, rng, run_at, run_on,
};
use super::{Mutant, explore, explore_mutant};
use crate::cpus::{Context, CpuLock, Cpus, Here, LockedCpus, PinnedCpus};
use crate::frame::pageblock::PageblockIndex;
use crate::{
    CacheLimits, CpuId, Evacuation, Flags, FrameRange, HighPolicy, Mobility, Mode, Order, Pfn,
    Scope, Watermarks, ZoneId,
};

const ZONE: ZoneId = ZoneId::new(0);

fn order(n: u64) -> Order {
    Order::new(n as u32).unwrap()
}

fn spawn<C: Cpus + Send + 'static>(
    depot: &Arc<Depot<C>>,
    body: impl FnOnce(Arc<Depot<C>>) + Send + 'static,
) -> JoinHandle<()> {
    let depot = depot.clone();
    thread::spawn(move || body(depot))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// An owner that does `steps` things and frees all it has: enough of one kind in a row that
/// magazines are filled, spilled and refilled.
fn own<C: Cpus>(depot: &Arc<Depot<C>>, number: u32, steps: u32) {
    run_on(number % CPUS);
    let (mut owner, mut rng) = (Owner::new(depot, number), rng());
    for _ in 0..steps {
        let flags = Flags::new(Mobility::ALL[rng.index(2)]);
        match rng.below(12) {
            0..=3 => (0..rng.below(80)).for_each(|_| _ = owner.alloc(Order::BASE, flags)),
            4 => _ = owner.alloc(order([1, 2, 3, 4, 6, 9][rng.index(6)]), flags),
            5 => _ = owner.alloc_many(rng.index(150) + 1),
            6 => owner.visit_range(rng.below(200) as u32 + 1),
            7 => owner.free_many(rng.index(150)),
            8 => run_on(rng.below(u64::from(CPUS)) as u32),
            _ => (0..rng.below(100)).for_each(|_| owner.free()),
        }
    }
    while owner.held() > 0 {
        owner.free();
    }
}

fn drain<C: Cpus>(depot: &Arc<Depot<C>>, mode: Mode, times: u32) {
    let mut rng = rng();
    for _ in 0..times {
        let cpu = CpuId::new(rng.below(u64::from(CPUS)) as u32);
        depot.allocator.drain(if rng.one_in(2) { Scope::ALL } else { Scope::cpu(cpu) }, mode);
    }
}

/// Three owners and drainers of both kinds.
fn owners_beside_drains<C: Cpus + Send + 'static>(setup: &Setup, cpus: C) {
    let depot = Depot::new(setup, cpus);
    let owners = (1..=3).map(|number| spawn(&depot, move |depot| own(&depot, number, 8)));
    let drainers = [Mode::Quiet, Mode::Full, Mode::Full]
        .map(|mode| spawn(&depot, move |depot| drain(&depot, mode, 4)));
    join(owners.chain(drainers).collect::<Vec<_>>());
    depot.finish();
}

#[test]
fn drains_beside_restartable_sequences() {
    explore("drains_beside_restartable_sequences", || {
        owners_beside_drains(&Setup::default(), Rseq::new(CPUS));
    });
}

#[test]
fn drains_beside_guards() {
    explore("drains_beside_guards", || {
        owners_beside_drains(&Setup::default(), PinnedCpus(Preemption::new()));
    });
}

#[test]
fn drains_beside_guards_and_checked() {
    explore("drains_beside_guards_and_checked", || {
        let setup = Setup { checked: true, ..Setup::default() };
        owners_beside_drains(&setup, PinnedCpus(Preemption::new()));
    });
}

#[test]
fn drains_beside_locks() {
    explore("drains_beside_locks", || {
        let locks: &'static [CpuLock] =
            Box::leak(Box::new([const { CpuLock::new() }; CPUS as usize]));
        owners_beside_drains(&Setup::default(), LockedCpus::new(locks, Anywhere));
    });
}

#[test]
#[should_panic = "misplaced frames"]
fn drains_without_a_fence() {
    explore_mutant("drains_without_a_fence", Mutant::NoFence, || {
        owners_beside_drains(&Setup::default(), Rseq::new(CPUS));
    });
}

#[test]
#[should_panic = "misplaced frames"]
fn drains_that_wait_for_no_guard() {
    explore_mutant("drains_that_wait_for_no_guard", Mutant::NoFence, || {
        owners_beside_drains(&Setup::default(), PinnedCpus(Preemption::new()));
    });
}

/// Pageblocks begin and end to evacuate beside owners and drains, by hands and against them.
#[test]
fn evacuating_pageblocks_beside_owners_and_drains() {
    explore("evacuating_pageblocks_beside_owners_and_drains", || {
        let setup = Setup { evacuation: Evacuation::Goal { percent: 100 }, ..Setup::default() };
        let depot = Depot::new(&setup, Rseq::new(CPUS));
        let owners = (1..=3).map(|number| spawn(&depot, move |depot| own(&depot, number, 6)));
        let others = [
            spawn(&depot, |depot| drain(&depot, Mode::Full, 4)),
            spawn(&depot, |depot| mark(&depot, 40)),
        ];
        join(owners.chain(others).collect::<Vec<_>>());
        depot.finish();
    });
}

/// Marks and settles pageblocks, and moves the hands of CPUs.
fn mark<C: Cpus>(depot: &Arc<Depot<C>>, times: u32) {
    let (bitmap, mut rng) = (depot.allocator.caches.store.bitmap().unwrap(), rng());
    for _ in 0..times {
        let pageblock = PageblockIndex(rng.below(8) as u32);
        let section = bitmap.section(pageblock.section()).unwrap();
        match rng.below(3) {
            0 => _ = bitmap.avoid(section, pageblock, ZONE),
            1 => bitmap.settle(section, pageblock),
            _ => {
                run_on(rng.below(u64::from(CPUS)) as u32);
                depot.allocator.step_hand(ZONE);
            }
        }
    }
}

/// A handler of a CPU with fronts of its own, beside the CPU's task and a drainer.
#[test]
fn interrupts_beside_a_task() {
    explore("interrupts_beside_a_task", || {
        let depot = Depot::new(&Setup::default(), PinnedCpus(Preemption::new()));
        let task = spawn(&depot, |depot| own(&depot, 3, 6));
        let handler = spawn(&depot, |depot| {
            run_at(Here { cpu: CpuId::new(0), context: Context::Interrupt });
            let mut owner = Owner::new(&depot, 4);
            for _ in 0..4 {
                (0..70).for_each(|_| _ = owner.alloc(Order::BASE, Flags::default().atomic()));
                (0..70).for_each(|_| owner.free());
            }
        });
        let drainer = spawn(&depot, |depot| drain(&depot, Mode::Full, 4));
        join([task, handler, drainer]);
        depot.finish();
    });
}

/// Caches are switched off and on, limits change, and caches decay.
#[test]
fn switches_beside_owners() {
    explore("switches_beside_owners", || {
        let depot = Depot::new(&Setup::default(), Rseq::new(CPUS));
        let owners = [1, 2].map(|number| spawn(&depot, move |depot| own(&depot, number, 8)));
        let switches = [(); 2].map(|()| {
            spawn(&depot, |depot| {
                let mut rng = rng();
                for _ in 0..6 {
                    let cpu = CpuId::new(rng.below(u64::from(CPUS)) as u32);
                    match rng.below(7) {
                        0 => _ = depot.allocator.cpu_caches().disable(),
                        1 => _ = depot.allocator.cpu_caches().retire(cpu),
                        2 => depot.allocator.cpu_caches().enable(),
                        3 => _ = depot.allocator.cpu_caches().restore(cpu),
                        4 => _ = depot.allocator.cpu_caches().decay(),
                        _ => {
                            let high_min = rng.below(300);
                            let limits =
                                CacheLimits { batch: 63, high_min, high_max: 2 * high_min };
                            depot.allocator.settings(ZONE).unwrap().set_cache_limits(limits);
                        }
                    }
                }
            })
        });
        join(owners.into_iter().chain(switches));
        depot.finish();
    });
}

/// Two add sections that overlap while others allocate: each section is added once.
#[test]
fn memory_is_added_beside_owners() {
    explore("memory_is_added_beside_owners", || {
        let added = |first: u32, sections: u32| {
            FrameRange::new(Pfn::new((first + 1) * SECTION - 1024), (sections - 1) * SECTION + 1024)
        };
        let setup = Setup { frames: 1024, sections: 4, ..Setup::default() };
        let depot = Depot::new(&setup, PinnedCpus(Preemption::new()));
        let owners = [1, 2].map(|number| spawn(&depot, move |depot| own(&depot, number, 6)));
        let adders = [added(1, 1), added(1, 2)]
            .map(|range| spawn(&depot, move |depot| _ = depot.add(range)));
        join(owners.into_iter().chain(adders));
        // The one that got furthest goes on; what the other wanted is there then, or can be added.
        depot.add(added(3, 1));
        let managed = depot.finish().managed_pages;
        let frames = |range: FrameRange| u64::from(range.frames);
        let whole = 1024 + frames(added(3, 1));
        assert!(
            [added(1, 1), added(1, 2)].map(|range| whole + frames(range)).contains(&managed),
            "{managed}"
        );
    });
}

/// Each thread takes its share of all frames, again and again: none may ever fail.
fn shares<C: Cpus + Send + 'static>(cpus: C, shares: &'static [u32], times: u32) {
    let setup =
        Setup { frames: shares.iter().sum(), high: HighPolicy::Fixed(150), ..Setup::default() };
    let depot = Depot::new(&setup, cpus);
    let owners = (1..).zip(shares).map(|(number, &share)| {
        spawn(&depot, move |depot| {
            run_on(number % CPUS);
            let mut owner = Owner::new(&depot, number);
            for _ in 0..times {
                for _ in 0..share {
                    assert!(owner.alloc(Order::BASE, Flags::default()), "its share is free");
                }
                while owner.held() > 0 {
                    owner.free();
                }
            }
        })
    });
    join(owners.collect::<Vec<_>>());
    depot.finish();
}

#[test]
fn no_request_fails_for_what_others_cache() {
    explore("no_request_fails_for_what_others_cache", || {
        shares(PinnedCpus(Preemption::new()), &[200, 200, 200], 3);
    });
}

/// Two share pageblocks: blocks of a word come and go while the other wants one.
fn blocks() {
    const BLOCKS: u32 = 16;
    let frames = 2 * BLOCKS * order(5).frames();
    let depot = Depot::new(&Setup { frames, ..Setup::default() }, PinnedCpus(Preemption::new()));
    let owners = [1, 2].map(|number| {
        spawn(&depot, move |depot| {
            run_on(number % CPUS);
            let mut owner = Owner::new(&depot, number);
            for _ in 0..4 {
                for _ in 0..BLOCKS {
                    let flags = Flags::new(Mobility::ALL[number as usize]);
                    assert!(owner.alloc(order(5), flags), "its share is free");
                }
                while owner.held() > 0 {
                    owner.free();
                }
            }
        })
    });
    join(owners);
    depot.finish();
}

#[test]
fn no_request_fails_for_blocks_that_move() {
    explore("no_request_fails_for_blocks_that_move", blocks);
}

/// Watermarks keep frames for atomic requests, whatever the others do.
#[test]
fn the_reserve_is_there_for_atomic_requests() {
    explore("the_reserve_is_there_for_atomic_requests", || {
        let watermarks = Watermarks { min: 64, low: 64, high: 64 };
        let setup = Setup { frames: 512, watermarks, ..Setup::default() };
        let depot = Depot::new(&setup, Rseq::new(CPUS));
        let takers = [1, 2].map(|number| {
            spawn(&depot, move |depot| {
                run_on(number);
                let mut owner = Owner::new(&depot, number);
                while owner.alloc(Order::BASE, Flags::default()) {}
                while owner.held() > 0 {
                    owner.free();
                }
            })
        });
        let atomic = spawn(&depot, |depot| {
            run_on(0);
            let mut owner = Owner::new(&depot, 3);
            for _ in 0..40 {
                assert!(owner.alloc(Order::BASE, Flags::default().atomic()), "64 are kept");
            }
            owner.free_many(40);
        });
        join(takers.into_iter().chain([atomic]));
        depot.finish();
    });
}
