//! Dropping translations from every CPU's TLB: the shootdown.
//!
//! Where one CPU's instruction reaches all TLBs (`arch::tlb::BROADCASTS`), no CPU is asked.
//! Elsewhere every CPU that runs is interrupted. Quiescent CPUs are not: they touch no memory of
//! the window, and drop everything when they come back (see `Cpu::leave_quiescence`).
//!
//! Before page tables are freed, quiescent CPUs are interrupted, too, as in Linux (`freed_tables`).
//! A processor may translate any address at any time, by entries that it has cached, and set bits
//! in the tables they lead to (Intel SDM vol. 3A, "Details of TLB Use"; Priv 4.2.1). For the
//! window's, isolated CPUs are left alone while they rest (`paging::flush_and_free_tables`). CPUs
//! that are offline translate by tables that are never freed (`tlb::use_lasting_tables`).

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use spin::{Mutex, MutexGuard};

use crate::arch::tlb;
use crate::call::{self, Call};
use crate::cpu::{Cpu, State};
use crate::paging::{PAGE_BYTES, Span};

/// Number of pages above which all translations are dropped at once (Linux:
/// `tlb_single_page_flush_ceiling`).
const PAGES_MAX: usize = 33;

/// Held by the CPU that flushes.
static FLUSHING: Mutex<()> = Mutex::new(());
/// The spans of the flush that is going on: a pointer to its slice.
static SPANS: AtomicPtr<&[Span]> = AtomicPtr::new(core::ptr::null_mut());
/// Number of flushes; each CPU remembers the last one that it has seen.
static FLUSHES: AtomicU64 = AtomicU64::new(0);
/// CPUs interrupted by flushes.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// Takes a lock whose holder may wait for this CPU's answers.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        call::wait_until(|| !mutex.is_locked());
    }
}

/// Returns when no CPU uses old translations of `spans` any more. Where CPUs are asked, none but a
/// resting one that was not to be `asked_at_rest` walks through tables that were taken out before.
pub fn flush(spans: &[Span], asked_at_rest: impl Fn(&Cpu) -> bool) {
    if spans.is_empty() {
        return;
    }
    if tlb::BROADCASTS {
        FLUSHES.fetch_add(1, Ordering::Relaxed);
        return drop_translations(spans);
    }
    let _alone = lock(&FLUSHING);
    let mut published = spans;
    SPANS.store((&raw mut published).cast(), Ordering::Relaxed);
    // The fence in `Cpu::state` orders this before the look at states below; `ask` publishes SPANS.
    FLUSHES.fetch_add(1, Ordering::Relaxed);
    flush_here();
    let interrupted = call::ask_others(Call::Flush, |cpu| match cpu.state() {
        State::Running => true,
        State::Quiescent => asked_at_rest(cpu),
        State::Offline => false,
    });
    INTERRUPTED.fetch_add(u64::from(interrupted), Ordering::Relaxed);
    // All CPUs have answered: none reads `published` any more.
    SPANS.store(core::ptr::null_mut(), Ordering::Relaxed);
}

/// This CPU's part in the flush that is going on, which waits for it.
pub fn flush_here() {
    let spans = SPANS.load(Ordering::Relaxed);
    // SAFETY: `flush` keeps the slice until every CPU it asked has answered, or has stopped; this
    // one has not stopped since (see `call::serve_started`).
    drop_translations(unsafe { spans.as_ref() }.expect("a flush is going on"));
}

/// Drops translations of the spans, or all if these are many pages.
fn drop_translations(spans: &[Span]) {
    let pages: usize = spans.iter().map(|span| span.bytes.div_ceil(PAGE_BYTES)).sum();
    if pages > PAGES_MAX {
        return tlb::flush_all();
    }
    for span in spans.iter() {
        for page in (span.start..span.start + span.bytes).step_by(PAGE_BYTES) {
            tlb::flush_page(page);
        }
    }
    tlb::finish();
}

/// Drops all translations if there were flushes while this CPU was quiescent.
pub fn catch_up(seen: &AtomicU64) {
    if tlb::BROADCASTS {
        return;
    }
    // After the fence in `Cpu::begin_to_run`: the other half of Dekker's pattern with `flush`.
    let now = FLUSHES.load(Ordering::Relaxed);
    if seen.load(Ordering::Relaxed) != now {
        tlb::flush_all();
        seen.store(now, Ordering::Relaxed);
    }
}

/// Flushes so far, and interrupts sent for them.
pub fn counts() -> (u64, u64) {
    (FLUSHES.load(Ordering::Relaxed), INTERRUPTED.load(Ordering::Relaxed))
}
