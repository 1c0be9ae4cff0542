//! `sequence!`, by a counter for each CPU that threads add to by plain loads and stores:
//! 1. Additions are neither lost nor doubled, whatever threads share CPUs, move between them,
//!    yield, or are interrupted by signals whose handlers add, too.
//! 2. A sequence that leaves before its commit has changed nothing and says so.
//! 3. After a fence no sequence commits that began before its CPU's gate was closed.

#![cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]

mod interrupts;
#[path = "../../core/tests/common/skip.rs"]
mod skip;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use interrupts::{Interrupts, has_aborted, install};
use pagedepot_rseq::{Area, affinity, membarrier, sequence};
use skip::skip;

/// A gate and a counter for each number of 16 bits, so that also a negative `cpu_id` has one.
struct Counters {
    /// 0: open.
    gates: Box<[AtomicU64]>,
    sums: Box<[AtomicU64]>,
}

impl Counters {
    fn new() -> Self {
        let zeroes = || (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
        Counters { gates: zeroes(), sums: zeroes() }
    }

    /// Adds 1 to this CPU's counter; `false` after an abort, or if its gate is closed.
    #[cfg(target_arch = "x86_64")]
    fn try_add(&self, area: Area) -> bool {
        // SAFETY: each number of 16 bits has a counter; the one store is the last instruction of
        // the body; test programs are not unloaded.
        unsafe {
            sequence!(
                area;
                body: "movzx {at:e}, word ptr fs:[{area} + {CPU_ID}]",
                "cmp qword ptr [{gates} + 8*{at}], 0",
                "jne 4f",
                "mov {sum}, qword ptr [{sums} + 8*{at}]",
                "inc {sum}",
                "mov qword ptr [{sums} + 8*{at}], {sum}";
                aborted: "jmp {aborted}";
                gates = in(reg) self.gates.as_ptr(),
                sums = in(reg) self.sums.as_ptr(),
                sum = out(reg) _,
                aborted = label { return false },
                options(nostack),
            );
        }
        true
    }

    /// Adds 1 to this CPU's counter, whatever its gate; tries again until it commits.
    #[cfg(target_arch = "x86_64")]
    fn add(&self, area: Area) {
        // SAFETY: as above.
        unsafe {
            sequence!(
                area;
                body: "movzx {at:e}, word ptr fs:[{area} + {CPU_ID}]",
                "mov {sum}, qword ptr [{sums} + 8*{at}]",
                "inc {sum}",
                "mov qword ptr [{sums} + 8*{at}], {sum}";
                aborted: "jmp 7b";
                sums = in(reg) self.sums.as_ptr(),
                sum = out(reg) _,
                options(nostack),
            );
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn try_add(&self, area: Area) -> bool {
        // SAFETY: as on x86-64.
        unsafe {
            sequence!(
                area;
                body: "ldrh {at:w}, [{area}, {CPU_ID}]",
                "ldr {sum}, [{gates}, {at}, lsl 3]",
                "cbnz {sum}, 4f",
                "ldr {sum}, [{sums}, {at}, lsl 3]",
                "add {sum}, {sum}, 1",
                "str {sum}, [{sums}, {at}, lsl 3]";
                aborted: "b {aborted}";
                gates = in(reg) self.gates.as_ptr(),
                sums = in(reg) self.sums.as_ptr(),
                sum = out(reg) _,
                aborted = label { return false },
                options(nostack),
            );
        }
        true
    }

    #[cfg(target_arch = "aarch64")]
    fn add(&self, area: Area) {
        // SAFETY: as on x86-64.
        unsafe {
            sequence!(
                area;
                body: "ldrh {at:w}, [{area}, {CPU_ID}]",
                "ldr {sum}, [{sums}, {at}, lsl 3]",
                "add {sum}, {sum}, 1",
                "str {sum}, [{sums}, {at}, lsl 3]";
                aborted: "b 7b";
                sums = in(reg) self.sums.as_ptr(),
                sum = out(reg) _,
                options(nostack),
            );
        }
    }

    fn sum(&self) -> u64 {
        self.sums.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

fn area() -> Option<Area> {
    let area = Area::find();
    if area.is_none() {
        skip("no rseq registration");
    }
    area
}

/// The counters that handlers add to, and the number of handlers that ran.
static HANDLERS: std::sync::OnceLock<(Area, Counters)> = std::sync::OnceLock::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Signals that found the thread at an abort label.
static ABORTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn interrupt(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a ucontext to a handler installed with SA_SIGINFO.
    ABORTED.fetch_add(unsafe { has_aborted(context) }.into(), Ordering::Relaxed);
    if let Some((area, counters)) = HANDLERS.get() {
        counters.add(*area);
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn additions_survive_threads_signals_and_yields() {
    let Some(area) = area() else { return };
    HANDLERS.get_or_init(|| (area, Counters::new()));
    // SAFETY: the handler only reads, adds and counts.
    unsafe { install(libc::SIGALRM, interrupt) };
    let counters = &HANDLERS.get().unwrap().1;
    let cpus: Vec<_> = affinity::allowed().unwrap().iter().take(8).collect();
    let begin = Instant::now();
    // Where an emulator runs the threads one after the other, signals seldom meet a sequence.
    let is_over = || match begin.elapsed().as_secs() {
        0 => false,
        seconds => seconds >= 30 || ABORTED.load(Ordering::Relaxed) > 0,
    };
    let added: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2 * cpus.len() + 2)
            .map(|thread| {
                let cpu = cpus[thread / 2 % cpus.len()];
                scope.spawn(move || {
                    if thread % 2 == 0 {
                        affinity::pin(cpu).unwrap();
                    }
                    let _interrupts = Interrupts::every(libc::SIGALRM, Duration::from_micros(50));
                    let mut added = 0;
                    while !is_over() {
                        for _ in 0..256 {
                            counters.add(area);
                            added += 1 + u64::from(counters.try_add(area));
                        }
                        if thread % 3 == 0 {
                            std::thread::yield_now();
                        }
                    }
                    added
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(counters.sum(), added + HANDLED.load(Ordering::Relaxed));
    assert!(ABORTED.load(Ordering::Relaxed) > 0, "no signal aborted a sequence");
}

#[test]
fn a_closed_gate_keeps_the_counter() {
    let Some(area) = area() else { return };
    let counters = Counters::new();
    counters.gates.iter().for_each(|gate| gate.store(1, Ordering::Relaxed));
    assert!(!counters.try_add(area));
    assert_eq!(counters.sum(), 0);
}

/// One thread adds all the time. Another closes its gate, fences, and looks at the counter twice.
#[test]
fn nothing_commits_after_a_fence() {
    let (Some(area), Ok(allowed)) = (area(), affinity::allowed()) else { return };
    let &[owner, other, ..] = &*allowed.iter().collect::<Vec<_>>() else {
        return skip("there is one CPU");
    };
    if let Err(why) = membarrier::register() {
        return skip(why);
    }
    let (counters, stop) = (Counters::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            affinity::pin(owner).unwrap();
            while !stop.load(Ordering::Relaxed) {
                counters.try_add(area);
            }
        });
        affinity::pin(other).unwrap();
        let (gate, sum) = (&counters.gates[owner.index()], &counters.sums[owner.index()]);
        let (mut turns, mut late) = (0, None);
        let deadline = Instant::now() + Duration::from_secs(2);
        // The deadline counts after a hundred turns: a busy machine may take its time.
        while turns < 10_000 && late.is_none() && (turns < 100 || Instant::now() < deadline) {
            let before = sum.load(Ordering::Relaxed);
            // Else it could close a gate again and again that the owner has not come by.
            while sum.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            gate.store(1, Ordering::SeqCst);
            let fenced = membarrier::fence(owner);
            let first = sum.load(Ordering::SeqCst);
            (0..100).for_each(|_| std::hint::spin_loop());
            let then = sum.load(Ordering::SeqCst);
            late = (fenced.is_err() || then != first).then_some((fenced, first, then));
            turns += 1;
            gate.store(0, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(late.is_none(), "{late:?}: the counter changed after the fence, or that failed");
    });
}
