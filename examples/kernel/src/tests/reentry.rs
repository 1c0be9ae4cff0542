//! `reentry`: tasks do nothing but allocate and free. The timer runs at the highest rate, and its
//! handler does the same, interrupted by itself and by NMIs that do the same. Some allocations are
//! trapped after every instruction, so that a handler runs at each of them. (A processor without
//! NMIs or such traps goes without.) Each CPU drains its neighbour fully all the while, so that
//! fences meet guards that handlers have interrupted.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagedepot::{Flags, Mode, Order};

use super::{Held, Options, Random, design, give, take};
use crate::arch::{self, interrupts, step_through};
use crate::cpu::{self, Cpu};
use crate::{clock, figure, interrupt, progress, smp, timer};

/// Microseconds between the end of a handler and the next timer interrupt. Under emulation, shorter
/// periods end before the task has run at all.
const PERIOD_US: u64 = 20;
/// Most handlers that are nested.
const DEPTH_MAX: u32 = 4;
/// Microseconds between two NMIs from one CPU to its neighbour.
const NMI_PERIOD_US: u64 = 500;
/// One handler in this many is trapped itself.
const HANDLERS_PER_STEPS: u64 = 32;
/// One trap in this many allocates itself.
const STEPS_PER_USE: u64 = 16;
/// Flags of handlers: they may not wait, and may use reserves.
const HANDLER: Flags = Flags::UNMOVABLE.atomic();

static HANDLERS: AtomicU64 = AtomicU64::new(0);
static NESTED: AtomicU64 = AtomicU64::new(0);
static NMIS: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);
static DRAINED: AtomicU64 = AtomicU64::new(0);
static FENCES: AtomicU64 = AtomicU64::new(0);
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Allocates, lets `meanwhile` run, frees.
fn use_pages(count: u64, meanwhile: impl FnOnce()) {
    arch::clobber();
    let order = Order::new(count as u32 % 4).expect("a small order");
    let pages = [take(order, HANDLER), take(Order::BASE, HANDLER)];
    meanwhile();
    for (page, order) in pages.iter().zip([order, Order::BASE]) {
        give(page.expect("little is in use"), order);
    }
}

fn on_timer(cpu: &'static Cpu) {
    let count = HANDLERS.fetch_add(1, Ordering::Relaxed);
    let depth = cpu.depth();
    NESTED.fetch_add(u64::from(depth > 1), Ordering::Relaxed);
    use_pages(count, || {
        if depth < DEPTH_MAX && RUNNING.load(Ordering::Relaxed) {
            // Arms another timer interrupt, which comes during the code that follows.
            arch::timer_once(count % 8);
            interrupts::enable();
            let inner = || use_pages(count / 4, || {});
            if depth == 1 && count.is_multiple_of(HANDLERS_PER_STEPS) {
                step_through(inner)
            } else {
                inner()
            }
            interrupts::disable();
        }
    });
    if depth == 1 && RUNNING.load(Ordering::Relaxed) {
        arch::timer_once(PERIOD_US);
    }
}

fn on_nmi(_: &'static Cpu) {
    let count = NMIS.fetch_add(1, Ordering::Relaxed);
    use_pages(count, || {});
}

/// Runs in the middle of an allocation, after each of its instructions.
fn on_step(_: &'static Cpu) {
    let count = STEPS.fetch_add(1, Ordering::Relaxed);
    interrupts::enable();
    // Fences are answered here, although the code below may hold a guard.
    core::hint::spin_loop();
    if count.is_multiple_of(STEPS_PER_USE) {
        use_pages(count / STEPS_PER_USE, || {});
    }
    interrupts::disable();
}

fn work(cpu: pagedepot::CpuId, seconds: u64) {
    let neighbour = Cpu::get(pagedepot::CpuId::new((cpu.get() + 1) % cpu::count()));
    let (mut held, mut random) = (Held::<200>::new(), Random::new(u64::from(cpu.get())));
    let end = clock::now_us() + seconds * 1_000_000;
    let mut next_nmi = 0;
    while clock::now_us() < end {
        // Above a step this is not the first handler, and does not arm the next one.
        arch::timer_once(PERIOD_US);
        held.churn(&mut random);
        step_through(|| {
            let page = take(Order::BASE, Flags::MOVABLE).expect("little is in use");
            give(page, Order::BASE);
        });
        let number = random.below(u64::MAX);
        assert!(arch::keep(number) == [number; 3], "an interrupt changed what it interrupted");
        let drained = design::drain(neighbour.id(), Mode::Full);
        DRAINED.fetch_add(drained.taken_pages, Ordering::Relaxed);
        FENCES.fetch_add(drained.fences, Ordering::Relaxed);
        if arch::HAS_NMI && clock::now_us() >= next_nmi {
            arch::send_nmi(neighbour);
            next_nmi = clock::now_us() + NMI_PERIOD_US;
        }
    }
    held.empty(0);
}

pub fn run(options: &Options) {
    let seconds = options.seconds.unwrap_or(3);
    interrupt::ON_NMI.set(Some(on_nmi));
    interrupt::ON_STEP.set(Some(on_step));
    timer::ON_TICK.set(Some(on_timer));
    RUNNING.store(true, Ordering::Relaxed);
    progress!("{seconds} s of interrupts");
    smp::run_everywhere(&|cpu| work(cpu, seconds));
    RUNNING.store(false, Ordering::Relaxed);
    timer::ON_TICK.set(None);
    let counts = [&HANDLERS, &NESTED, &NMIS, &STEPS].map(|count| count.load(Ordering::Relaxed));
    figure!("handlers", counts[0]);
    figure!("nested_handlers", counts[1]);
    figure!("nmis", counts[2]);
    figure!("steps", counts[3]);
    figure!("drained_pages", DRAINED.load(Ordering::Relaxed));
    figure!("fences", FENCES.load(Ordering::Relaxed));
    let has = [true, true, arch::HAS_NMI, arch::HAS_STEP];
    let came = counts.map(|count| count > 0);
    assert!(came == has, "handlers, nested ones, NMIs, steps: {came:?} came, {has:?} are due");
}
