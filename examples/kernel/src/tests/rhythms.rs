//! `rhythms`: blocks allocated a few at a time, then freed, by a task and by a handler, whose pages
//! come from fronts of their own. Each rhythm is counted and timed: one that fits the magazines of
//! a front refills and spills nothing.

use core::sync::atomic::{AtomicBool, Ordering};

use pagedepot::{Flags, Order};

use super::design::{self, Design};
use super::{Options, Random};
use crate::call::wait_until;
use crate::console::print;
use crate::{arch, clock, memory, progress, timer};

/// Pages, what networks allocate, and 2 MiB.
const ORDERS: [u32; 3] = [0, 3, 9];
/// Blocks at a time. 0: as many as [`Random`] says, up to [`BLOCKS_MAX`].
const BATCHES: [usize; 6] = [1, 2, 4, 8, 64, 0];
const BLOCKS_MAX: usize = 64;
/// Most blocks at a time that a front has for each order: they never leave it.
const STEADY_MAX: usize = 4;
/// Most bytes in use at once: rhythms of large blocks take fewer at a time.
const PAGES_MAX: usize = 8192;
/// Blocks of a rhythm in all, unless the options say otherwise.
const BLOCKS: u64 = 20_000;
const TASK: Flags = Flags::MOVABLE;
/// Flags of handlers: they may not wait, and may use reserves.
const HANDLER: Flags = Flags::UNMOVABLE.atomic();

static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Pages that moved between the store and the CPUs, or past their caches, so far.
fn moved_pages() -> u64 {
    let depot = memory::depot();
    let counts = depot.zone_ids().filter_map(|zone| Some(depot.zone_stats(zone)?.counts));
    counts
        .map(|counts| {
            let past_caches = counts.direct_alloc_pages + counts.direct_free_pages;
            counts.refilled_pages + counts.spilled_pages + past_caches
        })
        .sum()
}

/// Allocates `batch` blocks and frees them, until so many were. Returns how many.
fn repeat(order: Order, flags: Flags, batch: usize, blocks: u64) -> u64 {
    let (mut random, mut done) = (Random::new(7), 0);
    while done < blocks {
        let count = if batch == 0 { 1 + random.below(BLOCKS_MAX as u64) as usize } else { batch };
        let count = count.min(PAGES_MAX / order.frames() as usize);
        let mut held = [None; BLOCKS_MAX];
        for slot in &mut held[..count] {
            *slot = Some(design::alloc(order, flags).expect("little is in use"));
        }
        held.into_iter().flatten().for_each(|pfn| design::free(pfn, order));
        done += count as u64;
    }
    done
}

/// Runs every rhythm in this context.
fn run_all(context: &str, flags: Flags, blocks: u64) {
    for order in ORDERS.into_iter().filter_map(Order::new) {
        for batch in BATCHES {
            // Fills the fronts.
            repeat(order, flags, batch, 4 * BLOCKS_MAX as u64);
            let (moved, began) = (moved_pages(), clock::now_us());
            let done = repeat(order, flags, batch, blocks);
            let (us, moved) = (clock::now_us() - began, moved_pages() - moved);
            let ns = us * 1000 / done;
            print(format_args!("{context}_order_{}_batch_{batch}_pair_ns={ns}", order.get()));
            print(format_args!("{context}_order_{}_batch_{batch}_moved={moved}", order.get()));
            // In memory this small no CPU caches blocks of 2 MiB.
            let is_cached = order < Order::PAGEBLOCK && Design::chosen() == Design::Depot;
            let is_steady = is_cached && (1..=STEADY_MAX).contains(&batch);
            assert!(!is_steady || moved == 0, "{context}: a rhythm of {batch} left its front");
        }
    }
}

pub fn run(options: &Options) {
    let blocks = options.rounds.unwrap_or(BLOCKS);
    progress!("rhythms of a task");
    run_all("task", TASK, blocks);
    progress!("rhythms of a handler");
    timer::ON_TICK.set(Some(|cpu| {
        // One CPU's, once: other CPUs are idle, and have ticks, too.
        if cpu.id() == crate::cpu::boot().id() && !IS_DONE.load(Ordering::Relaxed) {
            run_all("handler", HANDLER, BLOCKS.min(2000));
            IS_DONE.store(true, Ordering::Release);
        }
    }));
    arch::timer_once(10);
    wait_until(|| IS_DONE.load(Ordering::Acquire));
    timer::ON_TICK.set(None);
}
