//! The local APIC: inter-processor interrupts and the timer, through its memory-mapped registers.
//!
//! AMD APM vol. 2, chapter 16; Intel SDM vol. 3A, "Advanced Programmable Interrupt Controller".

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::interrupts::without_interrupts;
use x86_64::instructions::port::PortWriteOnly;

use super::interrupt::Vector;

/// Address of the registers after reset (APM 16.3.1).
const BASE: usize = 0xfee0_0000;

/// Registers used here, by offset (APM table 16-2).
#[derive(Clone, Copy)]
enum Register {
    Id = 0x20,
    TaskPriority = 0x80,
    EndOfInterrupt = 0xb0,
    SpuriousVector = 0xf0,
    CommandLow = 0x300,
    CommandHigh = 0x310,
    TimerEntry = 0x320,
    Lint0 = 0x350,
    Lint1 = 0x360,
    ErrorEntry = 0x370,
    TimerInitial = 0x380,
    TimerCurrent = 0x390,
    TimerDivide = 0x3e0,
}

const MASKED: u32 = 1 << 16;
const ENABLED: u32 = 1 << 8;
/// Command bits (APM 16.5): message type, level assert, delivery pending.
const NMI: u32 = 0b100 << 8;
const INIT: u32 = 0b101 << 8;
const STARTUP: u32 = 0b110 << 8;
const ASSERT: u32 = 1 << 14;
const PENDING: u32 = 1 << 12;

/// Timer ticks per millisecond, after the divider.
static TIMER_PER_MS: AtomicU64 = AtomicU64::new(0);

fn read(register: Register) -> u32 {
    // SAFETY: the registers are mapped by the boot page tables; each CPU sees its own APIC there.
    unsafe { ptr::with_exposed_provenance::<u32>(BASE + register as usize).read_volatile() }
}

fn write(register: Register, value: u32) {
    // SAFETY: as above; callers in this module write what the manual allows.
    unsafe {
        ptr::with_exposed_provenance_mut::<u32>(BASE + register as usize).write_volatile(value)
    }
}

/// Masks the interrupt controllers of the original PC: all interrupts come through the APIC.
pub fn disable_pic() {
    for port in [0x21, 0xa1] {
        // SAFETY: the mask registers of the two 8259s.
        unsafe { PortWriteOnly::<u8>::new(port).write(0xff) };
    }
}

/// Enables this CPU's APIC with the timer off; returns its id.
pub fn init() -> u32 {
    for entry in [Register::TimerEntry, Register::Lint0, Register::Lint1, Register::ErrorEntry] {
        write(entry, MASKED);
    }
    write(Register::TaskPriority, 0);
    write(Register::TimerDivide, 0b0011); // by 16
    write(Register::SpuriousVector, ENABLED | Vector::Spurious as u32);
    read(Register::Id) >> 24
}

/// Measures timer and clock. Call it once, on one CPU.
pub fn calibrate() {
    write(Register::TimerInitial, u32::MAX);
    let per_ms = super::clock::measure(|| u64::from(u32::MAX - read(Register::TimerCurrent)));
    write(Register::TimerInitial, 0);
    TIMER_PER_MS.store(per_ms.max(1), Ordering::Relaxed);
}

/// Ends the interrupt in service, so that the next may come.
pub fn end_of_interrupt() {
    write(Register::EndOfInterrupt, 0);
}

/// Interrupts this CPU once, `us` microseconds from now (APM 16.4.1).
pub fn timer_once(us: u64) {
    let ticks = (TIMER_PER_MS.load(Ordering::Relaxed) * us / 1000).clamp(1, u64::from(u32::MAX));
    write(Register::TimerEntry, Vector::Timer as u32);
    write(Register::TimerInitial, ticks as u32);
}

/// Stops this CPU's timer.
pub fn timer_stop() {
    write(Register::TimerEntry, MASKED);
    write(Register::TimerInitial, 0);
}

fn command(apic_id: u32, low: u32) {
    // Two writes, the second sends: no handler that sends may come in between.
    without_interrupts(|| {
        while read(Register::CommandLow) & PENDING != 0 {
            core::hint::spin_loop();
        }
        write(Register::CommandHigh, apic_id << 24);
        write(Register::CommandLow, low | ASSERT);
    });
}

/// Interrupts another CPU.
pub fn send(apic_id: u32, vector: Vector) {
    command(apic_id, vector as u32);
}

/// Interrupts another CPU, even one that has interrupts off.
pub fn send_nmi(apic_id: u32) {
    command(apic_id, NMI);
}

/// Resets a CPU and starts it at `page` (Intel SDM vol. 3A, "INIT-SIPI-SIPI sequence"). The second
/// start-up message is left out once `has_started` is true.
pub fn start_cpu(apic_id: u32, page: usize, has_started: impl Fn() -> bool) {
    command(apic_id, INIT);
    crate::clock::wait_us(10_000);
    for _ in 0..2 {
        command(apic_id, STARTUP | (page >> 12) as u32);
        crate::clock::wait_us(200);
        if has_started() {
            return;
        }
    }
}
