//! Requests to other CPUs, by interrupt, and waits for their answers.
//!
//! Each request is a number that only grows. A CPU that waits serves the requests of other CPUs, so
//! two CPUs that ask each other do not wait for ever, even with interrupts off.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::{self, Ipi, interrupts, tlb};
use crate::cpu::{CPUS_MAX, Cpu, State};
use crate::tests::local;
use crate::{clock, flush, timer};

/// Looks of a wait before it halts, and microseconds for which it halts.
const SPINS_MAX: u32 = 1000;
const HALT_US: u64 = 50;

/// The kinds of request.
#[derive(Clone, Copy)]
pub enum Call {
    /// Answer, outside of any guard that began before the request.
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
    /// No requests.
    pub const fn new() -> Self {
        Calls(
            [const { Numbers { asked: AtomicU64::new(0), answered: AtomicU64::new(0) } };
                CALLS.len()],
        )
    }
}

/// A request that was sent.
#[derive(Clone, Copy)]
pub struct Asked {
    cpu: &'static Cpu,
    call: Call,
    number: u64,
}

/// Sends a request to `cpu`, by interrupt.
pub fn ask(cpu: &'static Cpu, call: Call) -> Asked {
    // SeqCst: the CPU that serves this number sees all that the caller wrote before.
    let number = cpu.calls.0[call as usize].asked.fetch_add(1, Ordering::SeqCst) + 1;
    arch::send(cpu, Ipi::Call);
    Asked { cpu, call, number }
}

impl Asked {
    /// Whether the CPU has served the request, or need not serve it because it went offline
    /// meanwhile.
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

/// Waits until `done`, and serves the requests of other CPUs meanwhile.
///
/// Spins at first, then halts in between if a timer can end the halt: under emulation the CPU
/// waited for may not run because this one does.
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
        arch::timer_once(HALT_US);
        interrupts::enable_and_halt();
    }
}

/// Asks all other CPUs for which `is_asked` is true, and waits for them. Returns their number.
pub fn ask_others(call: Call, is_asked: impl Fn(&Cpu) -> bool) -> u32 {
    let mut asked = [None; CPUS_MAX];
    for (place, cpu) in asked.iter_mut().zip(crate::cpu::others().filter(|cpu| is_asked(cpu))) {
        *place = Some(ask(cpu, call));
    }
    let waited = asked.iter().flatten().map(|asked| asked.wait(u64::MAX));
    waited.count() as u32
}

/// Answers requests to this CPU: in the interrupt's handler, and wherever it waits for other CPUs.
/// Holds no guard, so a guard that is taken here afterwards begins after the request.
pub fn serve(cpu: &'static Cpu) {
    answer(cpu, flush::flush_here);
}

/// Answers requests to this CPU, which has just started. A flush may have asked while this CPU
/// stopped, and not have waited for it; the spans are another flush's then, which need not wait
/// either. So this CPU drops all translations instead. From here on every flush that asks waits.
pub fn serve_started(cpu: &'static Cpu) {
    answer(cpu, tlb::flush_all);
}

fn answer(cpu: &'static Cpu, flush: impl Fn()) {
    interrupts::without(|| {
        for call in CALLS {
            let numbers = &cpu.calls.0[call as usize];
            // Acquire: pairs with the SeqCst in `ask`.
            let asked = numbers.asked.load(Ordering::Acquire);
            if numbers.answered.load(Ordering::Relaxed) == asked {
                continue;
            }
            match call {
                Call::Fence => {}
                Call::Flush => flush(),
                Call::DrainLocal => local::drain_here(cpu),
            }
            numbers.answered.store(asked, Ordering::Release);
        }
    });
}
