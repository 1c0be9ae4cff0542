//! `producer-consumer`: one half of the CPUs allocates, the other half frees. This is the worst
//! traffic for per-CPU caches.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagedepot::{Flags, Order, Pfn};

use super::{Options, give, take};
use crate::call::wait_until;
use crate::cpu::{self, CPUS_MAX};
use crate::{figure, memory, progress, smp};

const SLOTS: usize = 256;
/// Pages passed per pair and round.
const PAGES: u64 = 20_000;

/// A ring from one CPU to another: a slot is empty (0) or names a frame.
struct Ring([AtomicU32; SLOTS]);

static RINGS: [Ring; CPUS_MAX / 2] =
    [const { Ring([const { AtomicU32::new(0) }; SLOTS]) }; CPUS_MAX / 2];

impl Ring {
    fn put(&self, place: u64, pfn: Pfn) {
        let slot = &self.0[place as usize % SLOTS];
        // Release: pairs with the Acquire in `get`: the frame's mark goes with it.
        wait_until(|| {
            slot.compare_exchange(0, pfn.get(), Ordering::Release, Ordering::Relaxed).is_ok()
        });
    }

    fn get(&self, place: u64) -> Pfn {
        let slot = &self.0[place as usize % SLOTS];
        wait_until(|| slot.load(Ordering::Acquire) != 0);
        Pfn::new(slot.swap(0, Ordering::Acquire))
    }
}

fn new_page() -> Pfn {
    let page = take(Order::BASE, Flags::MOVABLE);
    page.unwrap_or_else(|error| panic!("{error}:\n{}", memory::depot().shortage()))
}

pub fn run(options: &Options) {
    let pairs = cpu::count() / 2;
    let consumed = AtomicU64::new(0);
    let rounds = options.rounds.unwrap_or(10);
    for round in 1..=rounds {
        // Roles change every round. A CPU without a partner has both roles.
        smp::run_everywhere(&|cpu| {
            let pair = cpu.index() / 2;
            let pages = 0..PAGES;
            match cpu.get() {
                cpu if cpu / 2 >= pairs => pages.for_each(|_| give(new_page(), Order::BASE)),
                cpu if u64::from(cpu) % 2 == round % 2 => {
                    return pages.for_each(|i| RINGS[pair].put(i, new_page()));
                }
                _ => pages.for_each(|i| give(RINGS[pair].get(i), Order::BASE)),
            }
            consumed.fetch_add(PAGES, Ordering::Relaxed);
        });
        progress!("round {round} of {rounds}");
    }
    let (consumed, expected) =
        (consumed.into_inner(), rounds * PAGES * u64::from(cpu::count().div_ceil(2)));
    assert!(consumed == expected, "{consumed} pages were passed on, not {expected}");
    figure!("passed_pages", consumed);
}
