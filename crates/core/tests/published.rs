//! A frame's next holder sees what the last one wrote, on each way that a frame takes from one
//! thread to another. Two threads take turns, which orders nothing between them: what does is the
//! allocator. Where it does not, ThreadSanitizer and Miri see a data race at the first turn, and
//! not by chance: `.ci/steps/tsan` takes the orderings away one by one.

mod common;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use common::contents::Contents;
use common::threads::{Claimed, run_on};
use common::{open_zone, range};
use pagedepot::cpus::{CpuLock, LockedCpus};
use pagedepot::{Allocator, Config, Flags, HighPolicy, Mode, Order, Scope};

const CPUS: u32 = 2;
const FRAMES: u32 = 512;
const TURNS: u32 = 20;

type Depot<'m> = Allocator<'m, LockedCpus<'m, Claimed>>;

/// Runs `turn` on a thread on each of two CPUs, in turn, with the number of the turn.
fn take_turns(cpus: [u32; 2], turn: impl Fn(u32) + Sync) {
    let turns = Turns(AtomicU32::new(0));
    std::thread::scope(|scope| {
        for (thread, cpu) in (0..).zip(cpus) {
            let (turns, turn) = (&turns, &turn);
            scope.spawn(move || {
                run_on(Some(cpu));
                while let Some(mine) = turns.wait(thread) {
                    turn(mine.turn);
                }
            });
        }
    });
}

/// Turns so far.
struct Turns(AtomicU32);

/// The turn of the thread that has this. When it is dropped, also by a panic, it is the other's.
struct Turn<'t> {
    turn: u32,
    turns: &'t AtomicU32,
}

impl Turns {
    /// Waits for a turn of `thread`; `None` when all are over.
    fn wait(&self, thread: u32) -> Option<Turn<'_>> {
        loop {
            // Relaxed, here and below: a turn must order nothing.
            match self.0.load(Ordering::Relaxed) {
                TURNS.. => return None,
                turn if turn % 2 == thread => return Some(Turn { turn, turns: &self.0 }),
                _ => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = if std::thread::panicking() { TURNS } else { self.turn + 1 };
        self.turns.store(next, Ordering::Relaxed);
    }
}

/// Runs `check` on a depot of which one frame is held: its pageblock never becomes whole.
fn with_depot(check: impl FnOnce(&Depot<'_>, &Contents)) {
    let ranges = [range(0, FRAMES)];
    let zones = [open_zone("zone", &ranges)];
    let config = Config { high: HighPolicy::Fixed(128), ..Config::new(CPUS, &zones) };
    let locks = [const { CpuLock::new() }; CPUS as usize];
    let mut metadata = vec![MaybeUninit::uninit(); Depot::metadata_bytes(&config).unwrap()];
    let cpus = LockedCpus::new(&locks, Claimed::new());
    let mut depot = Allocator::new(&config, &mut metadata, cpus).unwrap();
    let contents = Contents::new(FRAMES);
    let held = depot.alloc(Order::BASE, Flags::default()).unwrap();
    check(&depot, &contents);
    depot.free(held, Order::BASE).unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

/// Allocates a frame, which the last turn must have freed, writes it and frees it.
fn pass_on(depot: &Depot<'_>, contents: &Contents, turn: u32) {
    let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
    contents.change(pfn, turn.saturating_sub(1), turn);
    depot.free(pfn, Order::BASE).unwrap();
}

#[test]
fn by_the_front_of_one_cpu() {
    with_depot(|depot, contents| {
        take_turns([0, 0], |turn| pass_on(depot, contents, turn));
    });
}

#[test]
fn by_the_store() {
    with_depot(|depot, contents| {
        depot.drain(Scope::ALL, Mode::Full);
        depot.cpu_caches().disable();
        take_turns([0, 1], |turn| pass_on(depot, contents, turn));
    });
}
