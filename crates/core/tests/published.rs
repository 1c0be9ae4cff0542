//! A frame's next holder sees what the last one wrote, on each way that a frame takes from one
//! thread to another. Two threads take turns, which orders nothing between them: what does is the
//! allocator. Where it does not, ThreadSanitizer and Miri see a data race at the first turn, and
//! not by chance: `.ci/steps/tsan` takes the orderings away one by one.

mod common;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use common::threads::{Claimed, run_on};
use common::{open_zone, range};
use pagedepot::cpus::{CpuLock, Locked};
use pagedepot::{Allocator, Config, Flags, HighPolicy, Mode, Order, Pfn, Scope};

const CPUS: u32 = 2;
const FRAMES: u32 = 512;
const TURNS: u32 = 20;

type Depot<'m> = Allocator<'m, Locked<'m, Claimed>>;

/// The contents of frames, which their holders write.
struct Contents(Vec<UnsafeCell<u32>>);

// SAFETY: each cell is accessed by the holder of its frame alone.
unsafe impl Sync for Contents {}

impl Contents {
    /// Writes the frame that the caller holds; returns what its last holder wrote.
    fn write(&self, pfn: Pfn, turn: u32) -> u32 {
        // SAFETY: the caller holds the frame.
        unsafe { self.0[pfn.index()].get().replace(turn) }
    }
}

/// Runs `turn` on two threads in turn, with the number of the turn; `cpu` says where a thread runs.
fn take_turns(cpu: impl Fn(u32) -> u32 + Sync, turn: impl Fn(u32) + Sync) {
    let turns = Turns(AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (turns, cpu, turn) = (&turns, &cpu, &turn);
            scope.spawn(move || {
                run_on(Some(cpu(thread)));
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
    let cpus = Locked::new(&locks, Claimed::new());
    let mut depot = Allocator::new(&config, &mut metadata, cpus).unwrap();
    let contents = Contents((0..FRAMES).map(|_| UnsafeCell::new(0)).collect());
    let held = depot.alloc(Order::BASE, Flags::default()).unwrap();
    check(&depot, &contents);
    depot.free(held, Order::BASE).unwrap();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().free_pages, u64::from(FRAMES));
}

/// Allocates a frame, which the last turn must have freed, writes it and frees it.
fn pass_on(depot: &Depot<'_>, contents: &Contents, turn: u32) {
    let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
    assert_eq!(contents.write(pfn, turn), turn.saturating_sub(1), "{pfn} is another frame");
    depot.free(pfn, Order::BASE).unwrap();
}

#[test]
fn by_the_front_of_one_cpu() {
    with_depot(|depot, contents| {
        take_turns(|_| 0, |turn| pass_on(depot, contents, turn));
    });
}

#[test]
fn by_the_store() {
    with_depot(|depot, contents| {
        depot.drain(Scope::ALL, Mode::Full);
        depot.cpu_caches().disable();
        take_turns(|thread| thread, |turn| pass_on(depot, contents, turn));
    });
}
