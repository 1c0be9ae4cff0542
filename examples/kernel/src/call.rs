//! Asking other CPUs to do something, by interrupt, and waiting until they have.
//!
//! Each request is a number that only grows. A CPU that waits serves what others ask of it, so two
//! that ask each other do not wait for ever, even with interrupts off.

use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::interrupts::{self, without_interrupts};

use crate::clock;
use crate::cpu::{CPUS_MAX, Cpu, State};
use crate::interrupt::Vector;
use crate::tests::local;
use crate::{apic, flush, timer};

/// How often a wait looks before it halts, and for how long it does then.
const SPINS_MAX: u32 = 1000;
const HALT_US: u64 = 50;

/// What can be asked.
#[derive(Clone, Copy)]
pub enum Call {
    /// Nothing but an answer, from outside of any guard that began before it.
    Fence,
    /// Drop translations; see `flush`.
    Flush,
    /// Empty the lists of the `local` design.
    DrainLocal,
}

const CALLS: [Call; 3] = [Call::Fence, Call::Flush, Call::DrainLocal];

struct Numbers {
    asked: AtomicU64,
    answered: AtomicU64,
}

/// A CPU's requests.
pub struct Calls([Numbers; CALLS.len()]);

impl Calls {
    /// None so far.
    pub const fn new() -> Self {
        Calls(
            [const { Numbers { asked: AtomicU64::new(0), answered: AtomicU64::new(0) } };
                CALLS.len()],
        )
    }
}

/// A request that may not have been answered yet.
#[derive(Clone, Copy)]
pub struct Asked {
    cpu: &'static Cpu,
    call: Call,
    number: u64,
}

/// Interrupts `cpu`.
pub fn ask(cpu: &'static Cpu, call: Call) -> Asked {
    // SeqCst: whoever serves this number sees all that the caller wrote before.
    let number = cpu.calls.0[call as usize].asked.fetch_add(1, Ordering::SeqCst) + 1;
    apic::send(cpu.apic_id(), Vector::Call);
    Asked { cpu, call, number }
}

impl Asked {
    /// Whether it has been served, or need not be: a CPU that went offline meanwhile.
    pub fn is_answered(self) -> bool {
        // Acquire: pairs with the Release in `serve`.
        self.cpu.calls.0[self.call as usize].answered.load(Ordering::Acquire) >= self.number
            || self.cpu.state() == State::Offline
    }

    /// Waits for the answer, at most `us` microseconds. `false`: it did not come.
    pub fn wait(self, us: u64) -> bool {
        let end = clock::now_us().saturating_add(us);
        wait_until(|| self.is_answered() || clock::now_us() > end);
        self.is_answered()
    }
}

/// Waits until `done`, serving what others ask meanwhile.
///
/// Spins at first, then halts in between where a timer can end that: under emulation the CPU that
/// is waited for may not run because this one does.
pub fn wait_until(done: impl Fn() -> bool) {
    let cpu = Cpu::here();
    let mut spins = 0;
    while !done() {
        serve(cpu);
        spins += 1;
        if spins < SPINS_MAX || !timer::is_on(cpu) || cpu.in_handler() || !interrupts::are_enabled()
        {
            core::hint::spin_loop();
            continue;
        }
        interrupts::disable();
        apic::timer_once(HALT_US);
        interrupts::enable_and_hlt();
    }
}

/// Asks all other CPUs that `is_asked` says, and waits for them; returns how many.
pub fn ask_others(call: Call, is_asked: impl Fn(&Cpu) -> bool) -> u32 {
    let mut asked = [None; CPUS_MAX];
    for (place, cpu) in asked.iter_mut().zip(crate::cpu::others().filter(|cpu| is_asked(cpu))) {
        *place = Some(ask(cpu, call));
    }
    let waited = asked.iter().flatten().map(|asked| asked.wait(u64::MAX));
    waited.count() as u32
}

/// Answers what this CPU is asked: in the interrupt's handler, and wherever it waits for others.
/// Holds no guard, so what runs here afterwards begins after the question.
pub fn serve(cpu: &'static Cpu) {
    without_interrupts(|| {
        for call in CALLS {
            let numbers = &cpu.calls.0[call as usize];
            // Acquire: pairs with the SeqCst in `ask`.
            let asked = numbers.asked.load(Ordering::Acquire);
            if numbers.answered.load(Ordering::Relaxed) == asked {
                continue;
            }
            match call {
                Call::Fence => {}
                Call::Flush => flush::flush_here(),
                Call::DrainLocal => local::drain_here(cpu),
            }
            numbers.answered.store(asked, Ordering::Release);
        }
    });
}
