//! The design that `isolate` compares with: lists that only their owner touches, so that a drain
//! has to ask the owner. Linux did so until 5.19 (`drain_all_pages`). The threads on remote
//! draining begin with the harm that this does to isolated CPUs.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{AllocError, CpuId, DrainResult, Flags, FreeError, Order, Pfn};

use crate::arch::interrupts;
use crate::call::{self, Call};
use crate::cpu::{self, CPUS_MAX, Cpu, State};
use crate::memory::depot;

/// Most pages in a list, and how many move at once.
const HIGH: usize = 504;
const BATCH: usize = 63;
/// Time that a drain waits for an owner.
const DRAIN_US: u64 = 10_000_000;

struct Frames {
    list: [Pfn; HIGH],
    count: usize,
}

struct List {
    frames: UnsafeCell<Frames>,
    /// The number of frames, for other CPUs to read.
    cached: AtomicU64,
    /// Pages that drains took so far.
    drained: AtomicU64,
}

// SAFETY: `frames` is touched by its own CPU with interrupts off, or when that CPU is offline.
unsafe impl Sync for List {}

static LISTS: [List; CPUS_MAX] = [const {
    List {
        frames: UnsafeCell::new(Frames { list: [Pfn::new(0); HIGH], count: 0 }),
        cached: AtomicU64::new(0),
        drained: AtomicU64::new(0),
    }
}; CPUS_MAX];

/// Works on this CPU's list, with interrupts off. `None` in an NMI, which interrupts that code,
/// too.
fn with_list<R>(work: impl FnOnce(&mut Frames) -> R) -> Option<R> {
    interrupts::without(|| {
        let cpu = Cpu::here();
        cpu.context()?;
        let list = &LISTS[cpu.id().index()];
        // SAFETY: this CPU's own list, and no handler but an NMI, which does not come here, runs.
        let frames = unsafe { &mut *list.frames.get() };
        let result = work(frames);
        list.cached.store(frames.count as u64, Ordering::Relaxed);
        Some(result)
    })
}

/// Returns the newest `count` frames to the store.
fn spill(frames: &mut Frames, count: usize) {
    for &pfn in &frames.list[frames.count - count..frames.count] {
        depot().free(pfn, Order::BASE).expect("it was allocated");
    }
    frames.count -= count;
}

fn pop(frames: &mut Frames, flags: Flags) -> Option<Pfn> {
    if frames.count == 0 {
        frames.count = depot()
            .alloc_many(Order::BASE, flags.no_reclaim(), &mut frames.list[..BATCH])
            .unwrap_or(0);
    }
    frames.count = frames.count.checked_sub(1)?;
    Some(frames.list[frames.count])
}

/// Allocates a block.
///
/// # Errors
/// As the allocator's, once all lists are empty.
pub fn alloc(order: Order, flags: Flags) -> Result<Pfn, AllocError> {
    if order == Order::BASE
        && let Some(Some(pfn)) = with_list(|frames| pop(frames, flags))
    {
        return Ok(pfn);
    }
    depot().alloc(order, flags).or_else(|error| {
        if Cpu::here().in_handler() {
            return Err(error);
        }
        cpu::all().for_each(|cpu| {
            drain(cpu.id());
        });
        depot().alloc(order, flags)
    })
}

/// Frees a block.
///
/// # Errors
/// As the allocator's.
pub fn free(pfn: Pfn, order: Order) -> Result<(), FreeError> {
    let push = |frames: &mut Frames| {
        if frames.count == HIGH {
            spill(frames, BATCH);
        }
        frames.list[frames.count] = pfn;
        frames.count += 1;
    };
    match order {
        Order::BASE if with_list(push).is_some() => Ok(()),
        _ => depot().free(pfn, order),
    }
}

/// Asks a CPU to empty its list, if it has anything in it, and waits until it has.
pub fn drain(cpu: CpuId) -> DrainResult {
    let (list, owner) = (&LISTS[cpu.index()], Cpu::get(cpu));
    let before = list.drained.load(Ordering::Relaxed);
    if owner.id() == Cpu::here().id() {
        drain_here(owner);
    } else if list.cached.load(Ordering::Relaxed) > 0 {
        assert!(
            call::ask(owner, Call::DrainLocal).wait(DRAIN_US),
            "{cpu:?} does not drain its list"
        );
    }
    let mut done = DrainResult::default();
    done.taken_pages = list.drained.load(Ordering::Relaxed) - before;
    done.left_pages = list.cached.load(Ordering::Relaxed);
    done
}

/// The owner's part of a drain.
pub fn drain_here(cpu: &Cpu) {
    let taken = with_list(|frames| {
        let count = frames.count;
        spill(frames, count);
        count
    });
    LISTS[cpu.id().index()].drained.fetch_add(taken.unwrap_or(0) as u64, Ordering::Relaxed);
}

/// Takes the list of a CPU that has stopped.
pub fn take_offline(cpu: CpuId) -> DrainResult {
    assert!(Cpu::get(cpu).state() == State::Offline, "{cpu:?} has not stopped");
    let list = &LISTS[cpu.index()];
    // SAFETY: its CPU is offline, and only the caller starts it again.
    let frames = unsafe { &mut *list.frames.get() };
    let mut done = DrainResult::default();
    done.taken_pages = frames.count as u64;
    let count = frames.count;
    spill(frames, count);
    list.cached.store(0, Ordering::Relaxed);
    done
}

/// Pages in a CPU's list.
pub fn cached_pages(cpu: CpuId) -> u64 {
    LISTS[cpu.index()].cached.load(Ordering::Relaxed)
}
