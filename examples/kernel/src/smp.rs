//! Starting and stopping CPUs, and giving them work.

use core::sync::atomic::{AtomicU64, Ordering};

use pagedepot::{CpuId, Flags, Order};
use x86_64::instructions::interrupts;

use crate::call::wait_until;
use crate::cpu::{self, Cpu, State};
use crate::interrupt::Vector;
use crate::{apic, clock, memory, timer};

/// Work for a CPU, which it calls with its own number.
pub type Job<'j> = &'j (dyn Fn(CpuId) + Sync);

/// A CPU's stack: 64 KiB.
const STACK_ORDER: Order = Order::new(4).unwrap();
/// Page at which `boot.s` expects to run in real mode.
const AP_PAGE: usize = 0x8000;
/// Time that a CPU may take to start, when two host CPUs emulate 64, too.
const START_US: u64 = 20_000_000;

unsafe extern "C" {
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
    /// The function that the next CPU calls, its stack and its argument (`boot.s`).
    static start_entry: AtomicU64;
    static start_stack: AtomicU64;
    static start_argument: AtomicU64;
}

/// Copies the code of a starting CPU to its place below 1 MiB.
pub fn init() {
    let (start, end) = (&raw const ap_trampoline, &raw const ap_trampoline_end);
    let to = core::ptr::with_exposed_provenance_mut::<u8>(AP_PAGE);
    // SAFETY: the code lies between the labels and is shorter than a page; the allocator does not
    // have the page below 1 MiB.
    unsafe { start.copy_to_nonoverlapping(to, end.addr() - start.addr()) };
}

/// Starts a CPU, for the first time or again; returns when it is idle.
pub fn start(cpu: &'static Cpu) {
    if cpu.stack_top.load(Ordering::Relaxed) == 0 {
        let stack =
            memory::depot().alloc(STACK_ORDER, Flags::UNMOVABLE).expect("memory for a stack");
        let top = memory::address(stack.add(STACK_ORDER.frames()));
        cpu.stack_top.store(top as u64, Ordering::Relaxed);
    }
    // SAFETY: statics of `boot.s`. One CPU is started at a time, so they are this one's.
    unsafe {
        start_entry.store(ap_main as *const () as u64, Ordering::Relaxed);
        start_stack.store(cpu.stack_top.load(Ordering::Relaxed), Ordering::Relaxed);
        start_argument.store((&raw const *cpu).expose_provenance() as u64, Ordering::Release);
    }
    let is_there = || cpu.state() == State::Quiescent;
    apic::start_cpu(cpu.apic_id(), AP_PAGE, is_there);
    let end = clock::now_us() + START_US;
    wait_until(|| is_there() || clock::now_us() > end);
    assert!(is_there(), "{:?} does not start", cpu.id());
}

/// The entry of a started CPU into Rust.
extern "C" fn ap_main(cpu: &'static Cpu) -> ! {
    cpu.enter();
    let id = apic::init();
    assert!(id == cpu.apic_id(), "APIC {id} came when {} was called", cpu.apic_id());
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
            // A wake-up that comes from here on is pending when the CPU halts, and ends the halt:
            // STI takes effect after the next instruction (AMD APM vol. 3, STI).
            cpu.set_state(State::Quiescent);
            interrupts::enable_and_hlt();
        }
    }
}

fn give(cpu: &'static Cpu, job: &Job<'_>) {
    let job = (&raw const *job).cast_mut().cast::<Job<'static>>();
    // Release: pairs with the Acquire in `idle`.
    let before = cpu.job.swap(job, Ordering::AcqRel);
    assert!(before.is_null(), "{:?} has a job already", cpu.id());
    apic::send(cpu.apic_id(), Vector::Wake);
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
        apic::timer_stop();
        let cpu = Cpu::here();
        cpu.job.store(core::ptr::null_mut(), Ordering::Relaxed);
        // The last store of this CPU that other CPUs see.
        cpu.set_state(State::Offline);
        loop {
            x86_64::instructions::hlt();
        }
    };
    give(cpu, &job);
    wait_until(|| cpu.state() == State::Offline);
}

/// Waits until all other CPUs are idle or stopped.
pub fn await_idle() {
    cpu::others().for_each(|cpu| wait_until(|| cpu.state() != State::Running));
}
