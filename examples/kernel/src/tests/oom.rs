//! `oom`: all CPUs allocate until nothing is left, while one drains the others' caches without
//! pause. Then, with the drains over, they try once more. Now the last request may fail only when
//! no page is free or cached anywhere.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagedepot::{CpuId, DrainResult, Flags, Mode, Order, Pfn};

use super::{Options, design, give, mark_word, take};
use crate::cpu::{self, CPUS_MAX};
use crate::{figure, memory, progress, smp};

/// The newest page of each CPU: its pages are a list through their second words.
static NEWEST: [AtomicU64; CPUS_MAX] = [const { AtomicU64::new(0) }; CPUS_MAX];

fn link_word(pfn: Pfn) -> &'static AtomicU64 {
    // SAFETY: as for the word before it, which `mark_word` names.
    unsafe { &*(&raw const *mark_word(pfn)).add(1) }
}

/// Allocates until a request fails. Returns the number of pages.
fn take_all(cpu: CpuId) -> u64 {
    let newest = &NEWEST[cpu.index()];
    let mut pages = 0;
    while let Ok(pfn) = take(Order::BASE, Flags::MOVABLE) {
        link_word(pfn).store(newest.load(Ordering::Relaxed), Ordering::Relaxed);
        newest.store(u64::from(pfn.get()), Ordering::Relaxed);
        pages += 1;
    }
    pages
}

fn give_all(cpu: CpuId) {
    let mut next = NEWEST[cpu.index()].swap(0, Ordering::Relaxed);
    while next != 0 {
        let pfn = Pfn::new(next as u32);
        next = link_word(pfn).load(Ordering::Relaxed);
        give(pfn, Order::BASE);
    }
}

/// Pages that are free in the store or cached by a CPU.
fn left_pages() -> u64 {
    memory::free_pages() + cpu::all().map(|cpu| design::cached_pages(cpu.id())).sum::<u64>()
}

/// Drains all CPUs in turn, quietly and fully, until `done`.
fn drain_until(done: &AtomicBool, drained: &mut DrainResult) {
    while !done.load(Ordering::Acquire) {
        for mode in [Mode::Quiet, Mode::Full] {
            cpu::all().for_each(|cpu| *drained += design::drain(cpu.id(), mode));
        }
    }
}

pub fn run(options: &Options) {
    let rounds = options.rounds.unwrap_or(100);
    let (mut early_pages, mut drained) = (0, DrainResult::default());
    for round in 1..=rounds {
        // CPU 0 drains. A machine of one CPU has no drains.
        let takers = if cpu::count() == 1 { 0..1 } else { 1..cpu::count() };
        let (failed, done) = (AtomicU32::new(0), AtomicBool::new(false));
        let taken = AtomicU64::new(0);
        let take_until_failure = |cpu: CpuId| {
            taken.fetch_add(take_all(cpu), Ordering::Relaxed);
            let all_failed = failed.fetch_add(1, Ordering::AcqRel) + 1 == takers.len() as u32;
            done.store(all_failed, Ordering::Release);
        };
        smp::run_on(takers.clone(), &take_until_failure, || {
            if cpu::count() > 1 {
                drain_until(&done, &mut drained);
            } else {
                take_until_failure(CpuId::new(0));
            }
        });
        let early = AtomicU64::new(0);
        smp::run_everywhere(&|cpu| {
            early.fetch_add(take_all(cpu), Ordering::Relaxed);
        });
        let left = left_pages();
        assert!(
            left == 0,
            "requests failed with {left} pages left:\n{}",
            memory::depot().shortage()
        );
        early_pages += early.into_inner();
        smp::run_everywhere(&give_all);
        if round % 10 == 0 || round == rounds {
            progress!("round {round} of {rounds}: {} pages", taken.into_inner());
        }
    }
    figure!("rounds", rounds);
    figure!("drained_pages", drained.taken_pages);
    figure!("fences", drained.fences);
    figure!("busy_cpus", drained.busy_cpus);
    // Pages left when a request gave up because a drain was moving pages: see "undisturbed" in the
    // allocator's documentation of failing.
    figure!("early_pages", early_pages);
}
