//! Starting and stopping CPUs, and giving them work.

use core::sync::atomic::Ordering;

use pagedepot::{CpuId, Flags, Order};

use crate::arch::{self, Ipi, interrupts};
use crate::call::{self, wait_until};
use crate::cpu::{self, Cpu, State};
use crate::{clock, memory, timer};

/// Work for a CPU, which it calls with its own number.
pub type Job<'j> = &'j (dyn Fn(CpuId) + Sync);

/// A CPU's stack: 64 KiB.
const STACK_ORDER: Order = Order::new(4).unwrap();
/// Time that a CPU may take to start, when two host CPUs emulate 64, too.
const START_US: u64 = 20_000_000;

/// Starts a CPU, for the first time or again; returns when it is idle.
pub fn start(cpu: &'static Cpu) {
    if cpu.stack_top.load(Ordering::Relaxed) == 0 {
        let stack =
            memory::depot().alloc(STACK_ORDER, Flags::UNMOVABLE).expect("memory for a stack");
        let top = memory::address(stack.add(STACK_ORDER.frames()));
        cpu.stack_top.store(top as u64, Ordering::Relaxed);
    }
    let is_there = || cpu.state() == State::Quiescent;
    arch::start_cpu(cpu, is_there);
    let end = clock::now_us() + START_US;
    wait_until(|| is_there() || clock::now_us() > end);
    assert!(is_there(), "{:?} does not start", cpu.id());
}

/// The entry of a started CPU into Rust.
pub extern "C" fn ap_main(cpu: &'static Cpu) -> ! {
    cpu.enter();
    let id = arch::init_cpu();
    assert!(id == cpu.hardware_id(), "CPU {id} came when {} was called", cpu.hardware_id());
    // The interrupt of a request may have been lost while this CPU was stopped, and its sender need
    // not have looked then.
    call::serve_started(cpu);
    timer::start();
    idle(cpu)
}

/// Runs jobs as they come, and halts in between.
fn idle(cpu: &'static Cpu) -> ! {
    loop {
        interrupts::disable();
        // Acquire: pairs with the Release in `give`.
        let job = cpu.job.load(Ordering::Acquire);
        // SAFETY: `give` keeps the job until it is taken out below.
        if let Some(job) = unsafe { job.as_ref() } {
            interrupts::enable();
            job(cpu.id());
            // Release: pairs with the Acquire in `run_on`.
            cpu.job.store(core::ptr::null_mut(), Ordering::Release);
        } else {
            // A drain that has asked need not look again.
            memory::depot().cpu_caches().hand_over();
            // A wake-up that comes from here on is pending when the CPU halts, and ends the halt.
            cpu.set_state(State::Quiescent);
            interrupts::enable_and_halt();
            // A halt may end without an interrupt.
            interrupts::without(|| cpu.leave_quiescence());
        }
    }
}

fn give(cpu: &'static Cpu, job: &Job<'_>) {
    let job = (&raw const *job).cast_mut().cast::<Job<'static>>();
    // Release: pairs with the Acquire in `idle`.
    let before = cpu.job.swap(job, Ordering::AcqRel);
    assert!(before.is_null(), "{:?} has a job already", cpu.id());
    arch::send(cpu, Ipi::Wake);
}

/// Runs `job` on all `cpus` but this one, and `meanwhile` on this one; returns when all are done.
pub fn run_on(cpus: impl Iterator<Item = u32> + Clone, job: Job<'_>, meanwhile: impl FnOnce()) {
    let here = Cpu::here().id().get();
    let others = cpus.filter(|&cpu| cpu != here).map(|cpu| Cpu::get(CpuId::new(cpu)));
    for cpu in others.clone() {
        give(cpu, &job);
    }
    meanwhile();
    for cpu in others {
        // Acquire: pairs with the Release in `idle`: what the job did is visible.
        wait_until(|| cpu.job.load(Ordering::Acquire).is_null());
    }
}

/// Runs `job` on every CPU, this one included.
pub fn run_everywhere(job: Job<'_>) {
    let here = Cpu::here().id();
    run_on(0..cpu::count(), job, || job(here));
}

/// Stops a CPU for good, or until [`start`]; returns when it has stopped.
pub fn stop(cpu: &'static Cpu) {
    let job: Job<'_> = &|_| {
        interrupts::disable();
        arch::timer_stop();
        let cpu = Cpu::here();
        cpu.job.store(core::ptr::null_mut(), Ordering::Relaxed);
        // No flush reaches a CPU that is offline.
        arch::tlb::use_lasting_tables();
        // The last store of this CPU that other CPUs see.
        cpu.set_state(State::Offline);
        arch::stop_here()
    };
    give(cpu, &job);
    wait_until(|| cpu.state() == State::Offline);
}

/// Waits until all other CPUs are idle or stopped.
pub fn await_idle() {
    cpu::others().for_each(|cpu| wait_until(|| cpu.state() != State::Running));
}
