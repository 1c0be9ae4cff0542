//! `handover`: CPUs are asked for what they cache, and hand it over themselves: isolated ones that
//! allocate, at their next operation; ones that compute and have a tick, in the tick; ones that go
//! idle, on the way. No CPU is fenced, and an isolated one receives no interrupt, also when the
//! drain has a deadline and it is past.

use core::sync::atomic::{AtomicU32, Ordering};

use pagedepot::{CpuId, HandoverCounts, Scope};

use super::design::{self, Design};
use super::{Held, Options, Random};
use crate::call::wait_until;
use crate::cpu::{self, Cpu, State};
use crate::memory::depot;
use crate::{figure, progress, smp, timer};

/// Most pages that a CPU holds.
const HELD: usize = 600;
/// Milliseconds until a CPU must have handed over: there is a bound, or the test would hang.
const LIMIT_MS: u32 = 60_000;

/// The work of the CPUs until the next phase.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Phase {
    /// Isolated; allocates and frees.
    Busy,
    /// The CPU computes, with a tick.
    Ticking,
    /// Isolated; computes.
    Silent,
    /// The job ends.
    Idle,
}

/// The phase, and how many CPUs are in it.
struct Phases {
    phase: AtomicU32,
    arrived: AtomicU32,
}

impl Phases {
    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u32
    }

    /// Begins a phase; returns when all of `cpus` other CPUs are in it.
    fn begin(&self, phase: Phase, cpus: u32) {
        self.arrived.store(0, Ordering::Relaxed);
        self.phase.store(phase as u32, Ordering::Release);
        wait_until(|| self.arrived.load(Ordering::Acquire) == cpus);
    }

    fn arrive(&self) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
    }
}

fn work(cpu: CpuId, phases: &Phases) {
    let (mut held, mut random) = (Held::<HELD>::new(), Random::new(u64::from(cpu.get())));
    timer::isolate();
    phases.arrive();
    while phases.is(Phase::Busy) {
        held.churn(&mut random);
    }
    held.fill(100);
    held.empty(0);
    Cpu::here().isolated.store(false, Ordering::SeqCst);
    timer::start();
    phases.arrive();
    while phases.is(Phase::Ticking) {
        core::hint::spin_loop();
    }
    held.fill(100);
    held.empty(0);
    timer::isolate();
    phases.arrive();
    while phases.is(Phase::Silent) {
        core::hint::spin_loop();
    }
}

fn counts(cpu: u32) -> HandoverCounts {
    depot().cpu_caches().handover_counts(CpuId::new(cpu)).expect("a CPU of the machine")
}

/// Asks a CPU, and waits until it has handed over; returns what was taken.
fn ask(cpu: u32) -> u64 {
    let mut handover = depot().drain_handover(Scope::cpu(CpuId::new(cpu)), None);
    assert!(handover.wait(LIMIT_MS), "CPU {cpu} does not hand over: {:?}", handover.drained());
    assert!(handover.drained().fences == 0, "a handover has fenced CPU {cpu}");
    handover.drained().taken_pages
}

pub fn run(options: &Options) {
    let (cpus, rounds) = (cpu::count(), options.rounds.unwrap_or(50));
    if Design::chosen() == Design::Local || cpus == 1 {
        return progress!("handovers need the depot, and two CPUs");
    }
    let phases = Phases { phase: AtomicU32::new(Phase::Busy as u32), arrived: AtomicU32::new(0) };
    let others = 1..cpus;
    smp::run_on(others.clone(), &|cpu| work(cpu, &phases), || {
        wait_until(|| phases.arrived.load(Ordering::Acquire) == cpus - 1);
        busy(others.clone(), rounds);
        phases.begin(Phase::Ticking, cpus - 1);
        ticking(others.clone());
        phases.begin(Phase::Silent, cpus - 1);
        silent(others.clone(), &phases);
    });
    for cpu in others {
        Cpu::get(CpuId::new(cpu)).isolated.store(false, Ordering::SeqCst);
    }
}

fn interrupts(cpus: impl Iterator<Item = u32>) -> u64 {
    cpus.map(|cpu| Cpu::get(CpuId::new(cpu)).interrupts.load(Ordering::SeqCst)).sum()
}

/// Isolated CPUs that allocate hand over at their next operation.
fn busy(cpus: core::ops::Range<u32>, rounds: u64) {
    let before = interrupts(cpus.clone());
    let (mut pages, mut done) = (0, 0);
    // An emulator may run CPUs one after the other: until then, the others have freed nothing.
    while done < rounds || pages == 0 {
        pages += cpus.clone().map(ask).sum::<u64>();
        done += 1;
    }
    let received = interrupts(cpus.clone()) - before;
    let handed: u64 = cpus.clone().map(|cpu| counts(cpu).handed).sum();
    let escalated: u64 = cpus.map(|cpu| counts(cpu).escalated).sum();
    progress!("{done} rounds: {handed} handovers, {received} interrupts");
    figure!("handovers", handed);
    figure!("handed_pages", pages);
    figure!("isolated_interrupts", received);
    assert!(handed > 0 && pages > 0, "the CPUs had nothing to hand over");
    assert!(received == 0 && escalated == 0, "isolated CPUs were interrupted {received} times");
}

/// CPUs that compute hand over in their tick.
fn ticking(cpus: core::ops::Range<u32>) {
    for cpu in cpus {
        let before = counts(cpu);
        let pages = ask(cpu);
        let after = counts(cpu);
        assert!(pages > 0, "CPU {cpu} had cached nothing");
        assert!(after.handed == before.handed + 1 && after.escalated == 0, "{after:?}");
    }
    progress!("CPUs that compute have handed over in their ticks");
}

/// Isolated CPUs that compute answer when they go idle, and are not fenced before.
fn silent(cpus: core::ops::Range<u32>, phases: &Phases) {
    let before = interrupts(cpus.clone());
    for cpu in cpus.clone() {
        // Past its deadline at once.
        let mut handover = depot().drain_handover(Scope::cpu(CpuId::new(cpu)), Some(0));
        assert!(!handover.poll(), "CPU {cpu} cannot have handed over");
        let drained = handover.drained();
        assert!((drained.pending_cpus, drained.isolated_cpus, drained.fences) == (1, 1, 0));
    }
    assert!(interrupts(cpus.clone()) == before, "isolated CPUs were interrupted");
    let handed: u64 = cpus.clone().map(|cpu| counts(cpu).handed).sum();
    phases.phase.store(Phase::Idle as u32, Ordering::Release);
    for cpu in cpus.clone() {
        wait_until(|| Cpu::get(CpuId::new(cpu)).state() == State::Quiescent);
    }
    let now: u64 = cpus.clone().map(|cpu| counts(cpu).handed).sum();
    assert!(now == handed + u64::from(cpus.end - cpus.start), "{now} of {handed} and all");
    for cpu in cpus {
        assert!(depot().drain_handover(Scope::cpu(CpuId::new(cpu)), None).is_complete());
        assert!(design::cached_pages(CpuId::new(cpu)) == 0, "CPU {cpu} caches still");
    }
    progress!("CPUs that went idle have handed over on the way");
}
