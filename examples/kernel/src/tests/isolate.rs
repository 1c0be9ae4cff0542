//! `isolate`: half of the CPUs are isolated and run a loop that allocates, frees and computes. The
//! others drain them 100 and 10,000 times a second. Then one half of the isolated CPUs halts, the
//! other goes to user mode, all they cached is taken, and vmalloc purges what it mapped. Every
//! interrupt they receive is counted.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagedepot::{CpuId, DrainResult, Flags, Mode, Order, Pfn};
use pagedepot_vmap::{Options as Place, PurgeDepth};

use super::design::{self, Design};
use super::{Held, Options, Random};
use crate::call::wait_until;
use crate::cpu::{self, Cpu, State};
use crate::paging::{self, Leaf, PAGE_BYTES, Span, WINDOW};
use crate::user::Program;
use crate::vmalloc::vmalloc;
use crate::{clock, figure, memory, progress, smp, timer};

/// Drains of each isolated CPU per second.
const RATES: [u64; 2] = [100, 10_000];
/// Most pages that an isolated CPU holds.
const HELD: usize = 600;
/// Pages of a CPU that quiet drains may not reach: two magazines of 63 pages in each front in use,
/// and two that the owner moves at once. The loop uses one mobility of order 0, in two zones at
/// most.
const UNREACHABLE_MAX: u64 = 3 * 126;

/// The results of all drains of all CPUs.
#[derive(Default)]
struct Found {
    drains: AtomicU64,
    drained_pages: AtomicU64,
    unreachable_pages_max: AtomicU64,
}

impl Found {
    fn note(&self, done: DrainResult) {
        self.drains.fetch_add(1, Ordering::Relaxed);
        self.drained_pages.fetch_add(done.taken_pages, Ordering::Relaxed);
        self.unreachable_pages_max.fetch_max(done.unreachable_pages, Ordering::Relaxed);
    }
}

/// Interrupts that these CPUs have received, of every kind.
fn interrupts(cpus: &[&'static Cpu]) -> u64 {
    cpus.iter().map(|cpu| cpu.interrupts.load(Ordering::SeqCst)).sum()
}

/// An isolated CPU's work until `stop` is set. Returns the number of rounds.
fn work(cpu: CpuId, stop: &AtomicBool) -> u64 {
    let (mut held, mut random) = (Held::<HELD>::new(), Random::new(u64::from(cpu.get())));
    let mut loops = 0;
    while !stop.load(Ordering::Acquire) {
        held.churn(&mut random);
        // Computes, too: a drain that needs the owner's help would have to wait for this.
        (0..random.below(2000)).for_each(|_| core::hint::spin_loop());
        loops += 1;
    }
    held.empty(0);
    loops
}

/// Whether an isolated CPU rests in user mode; the others halt.
fn in_user_mode(cpu: CpuId) -> bool {
    cpu.get() % 2 == 1
}

/// Drains each of `targets` at `rate`, for `seconds`.
fn drain_at(rate: u64, seconds: u64, targets: impl Iterator<Item = CpuId> + Clone, found: &Found) {
    let began = clock::now_us();
    for i in 0..rate * seconds {
        let due = began + i * 1_000_000 / rate;
        while clock::now_us() < due {
            core::hint::spin_loop();
        }
        if due > began + seconds * 1_000_000 || clock::now_us() > began + 2 * seconds * 1_000_000 {
            break;
        }
        targets.clone().for_each(|cpu| found.note(design::drain(cpu, Mode::Quiet)));
    }
}

/// Maps a page, and frees it again with the tables that it needed.
fn purge_a_page() {
    let start = vmalloc().vmalloc(1, Place::DEFAULT).expect("a page");
    vmalloc().vfree(start).expect("it was allocated");
    vmalloc().purge(PurgeDepth::Everything);
}

/// Maps a page and unmaps it, without a flush: its tables are taken out and not yet freed, nor is
/// its frame.
fn leave_tables_pending() -> (Span, Pfn) {
    let span = Span { start: WINDOW, bytes: PAGE_BYTES };
    let frame = memory::depot().alloc(Order::BASE, Flags::MOVABLE).expect("a page");
    paging::map(span.start, frame, Leaf::Page, paging::READ_WRITE).expect("nothing is mapped");
    paging::unmap(span, |_, _| {}).expect("a small page");
    (span, frame)
}

pub fn run(options: &Options) {
    let (cpus, seconds) = (cpu::count(), options.seconds.unwrap_or(10));
    // The upper half is isolated; a machine of one CPU has no isolated CPU.
    let ordinary = cpus.div_ceil(2);
    let mut list = [Cpu::here(); cpu::CPUS_MAX];
    for (place, id) in list.iter_mut().zip(ordinary..cpus) {
        *place = Cpu::get(CpuId::new(id));
    }
    let isolated = &list[..(cpus - ordinary) as usize];

    let (table_bytes_start, _) = paging::table_bytes();
    let found = Found::default();
    let program = Program::new();
    let (stop, ready, loops) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU64::new(0));
    let isolated_job = |cpu: CpuId| {
        timer::isolate();
        ready.fetch_add(1, Ordering::AcqRel);
        loops.fetch_add(work(cpu, &stop), Ordering::AcqRel);
        if in_user_mode(cpu) {
            program.run();
        }
    };
    smp::run_on(ordinary..cpus, &isolated_job, || {
        wait_until(|| ready.load(Ordering::Acquire) == isolated.len() as u32);
        let before = interrupts(isolated);
        for rate in RATES {
            let drains_before = found.drains.load(Ordering::Relaxed);
            let drain = |cpu: CpuId| {
                let mine = isolated
                    .iter()
                    .map(|cpu| cpu.id())
                    .skip(cpu.index())
                    .step_by(ordinary as usize);
                drain_at(rate, seconds, mine, &found);
            };
            smp::run_on(0..ordinary, &drain, || drain(CpuId::new(0)));
            progress!(
                "{seconds} s at {rate} drains a second: {} drains, {} interrupts so far",
                found.drains.load(Ordering::Relaxed) - drains_before,
                interrupts(isolated) - before
            );
        }
        let running_interrupts = interrupts(isolated) - before;
        let (unmapped, frame) = leave_tables_pending();
        stop.store(true, Ordering::Release);
        report_running(isolated, &found, running_interrupts, ordinary);
        take_quiescent(isolated, &program, unmapped);
        memory::depot().free(frame, Order::BASE).expect("it was allocated");
        program.stop();
    });
    figure!("loops", loops.load(Ordering::Acquire));
    for cpu in isolated {
        cpu.isolated.store(false, Ordering::SeqCst);
    }
    purge_a_page();
    let (table_bytes_end, _) = paging::table_bytes();
    assert!(table_bytes_end == table_bytes_start, "page tables were left behind");
}

/// Reports the counts of the time while the isolated CPUs ran.
fn report_running(isolated: &[&'static Cpu], found: &Found, interrupts: u64, ordinary: u32) {
    let unreachable_max = found.unreachable_pages_max.load(Ordering::Relaxed);
    figure!("ordinary_cpus", ordinary);
    figure!("isolated_cpus", isolated.len());
    figure!("drains", found.drains.load(Ordering::Relaxed));
    figure!("drained_pages", found.drained_pages.load(Ordering::Relaxed));
    figure!("isolated_interrupts", interrupts);
    figure!("unreachable_pages_max", unreachable_max);
    figure!("unreachable_pages_bound", UNREACHABLE_MAX);
    assert!(unreachable_max <= UNREACHABLE_MAX, "more pages hid from a drain than documented");
    if isolated.is_empty() {
        return progress!("one CPU: nothing to isolate");
    }
    assert!(found.drained_pages.load(Ordering::Relaxed) > 0, "the drains found nothing to take");
    match Design::chosen() {
        Design::Depot => {
            assert!(interrupts == 0, "isolated CPUs were interrupted {interrupts} times")
        }
        Design::Local => {
            assert!(interrupts > 0, "the design asks owners to drain, but asked none")
        }
    }
}

/// Takes what the isolated CPUs cache, once they have halted or gone to user mode, and flushes: a
/// page that was unmapped before, and one of vmalloc's.
fn take_quiescent(isolated: &[&'static Cpu], program: &Program, unmapped: Span) {
    for cpu in isolated {
        wait_until(|| cpu.state() == State::Quiescent);
        wait_until(|| !in_user_mode(cpu.id()) || program.count(cpu.id()) > 0);
    }
    let wakeups = || isolated.iter().map(|cpu| cpu.wakeups.load(Ordering::SeqCst));
    let mut before = [0; cpu::CPUS_MAX];
    before.iter_mut().zip(wakeups()).for_each(|(place, count)| *place = count);
    // A quiet drain first: it takes everything but the fronts, exactly, because no CPU caches more
    // meanwhile.
    let (mut quiet, mut drained, mut left) = (DrainResult::default(), DrainResult::default(), 0);
    for cpu in isolated {
        let done = design::drain(cpu.id(), Mode::Quiet);
        assert!(
            done.unreachable_pages <= UNREACHABLE_MAX,
            "more pages hid from a drain than documented"
        );
        assert!(done.left_pages + done.in_flight_pages == 0, "a quiet drain left {done:?}");
        quiet += done;
        drained += design::drain(cpu.id(), Mode::Full);
        left += design::cached_pages(cpu.id());
    }
    paging::flush_and_free_tables(&[unmapped]);
    purge_a_page();
    // An interrupt that was sent would arrive by then.
    clock::wait_us(10_000);
    let woken = wakeups().zip(before).filter(|(now, before)| now != before).count();
    figure!("quiescent_quiet_pages", quiet.taken_pages);
    figure!("quiescent_unreachable_pages", quiet.unreachable_pages);
    figure!("quiescent_full_pages", drained.taken_pages);
    figure!("quiescent_fences", drained.fences);
    figure!("unreachable_pages", drained.unreachable_pages);
    figure!("woken_cpus", woken);
    assert!(left == 0, "{left} pages are still cached by halted CPUs");
    if Design::chosen() == Design::Depot && !isolated.is_empty() {
        assert!(drained.taken_pages > 0, "the isolated CPUs' fronts were empty");
        assert!(
            drained.taken_pages <= quiet.unreachable_pages,
            "more in the fronts than was counted"
        );
        assert!(
            woken == 0 && drained.fences == 0,
            "{woken} CPUs woken, {} fences for CPUs that rest",
            drained.fences
        );
    }
}
