//! The interrupt controller, a GICv3: software-generated interrupts between CPUs, and the timer's.
//!
//! The machine has one security state (GICD_CTLR.DS is one), so group 1 is signalled as IRQ and
//! group 0 as FIQ (GIC, 4.6.2). The kernel never masks FIQ but in the first and last instructions
//! of a handler, so group 0 is its NMI.

use core::arch::asm;
use core::ptr::with_exposed_provenance_mut;

use super::{read_register, write_register};
use crate::cpu::Cpu;
use crate::interrupt::Interrupt;

/// The distributor and the redistributors of QEMU's `virt`.
const DISTRIBUTOR: usize = 0x0800_0000;
const REDISTRIBUTORS: usize = 0x080a_0000;
/// Bytes of a redistributor: two frames of 64 KiB, the second for this CPU's own interrupts.
const REDISTRIBUTOR_BYTES: usize = 0x2_0000;
const OWN_FRAME: usize = 0x1_0000;

/// Registers by offset (GIC, 12.8, 12.10, 12.11).
const GICD_CTLR: usize = 0;
const GICR_TYPER: usize = 8;
const GICR_WAKER: usize = 0x14;
const GICR_IGROUPR0: usize = OWN_FRAME + 0x80;
const GICR_ISENABLER0: usize = OWN_FRAME + 0x100;
const GICR_IPRIORITYR: usize = OWN_FRAME + 0x400;

/// GICD_CTLR: both groups, and affinity routing.
const ENABLED: u32 = 1 << 0 | 1 << 1 | 1 << 4;
/// GICR_WAKER: the processor sleeps; its interface does.
const PROCESSOR_SLEEP: u32 = 1 << 1;
const CHILDREN_ASLEEP: u32 = 1 << 2;
/// GICR_TYPER: the last of the redistributors.
const LAST: u64 = 1 << 4;

/// Interrupts used here, by number: SGIs, and the virtual timer's PPI.
const CALL: u64 = 0;
const WAKE: u64 = 1;
const NMI: u64 = 2;
const TIMER: u64 = 27;

/// An interrupt from CPU to CPU.
#[derive(Clone, Copy)]
pub enum Ipi {
    /// A request; see `call`.
    Call = CALL as isize,
    /// A job.
    Wake = WAKE as isize,
}

/// A register of the controller.
fn register<T>(address: usize) -> *mut T {
    with_exposed_provenance_mut(address)
}

/// Turns the distributor on.
pub fn init() {
    // SAFETY: the register of the distributor, mapped by `boot.s` as a device.
    unsafe { register::<u32>(DISTRIBUTOR + GICD_CTLR).write_volatile(ENABLED) };
}

/// The running CPU's affinity, as MPIDR_EL1 and the device tree name it.
pub fn affinity_here() -> u64 {
    read_register!("mpidr_el1") & 0xff_00ff_ffff
}

/// The redistributor of the CPU with this affinity.
fn redistributor(affinity: u64) -> usize {
    // GICR_TYPER has the four parts in its upper half, without a gap.
    let value = affinity >> 32 << 24 | affinity & 0xff_ffff;
    let mut at = REDISTRIBUTORS;
    loop {
        // SAFETY: a register of a redistributor; they follow one another up to the last.
        let kind = unsafe { register::<u64>(at + GICR_TYPER).read_volatile() };
        if kind >> 32 == value {
            return at;
        }
        assert!(kind & LAST == 0, "no redistributor for CPU {affinity:#x}");
        at += REDISTRIBUTOR_BYTES;
    }
}

/// Turns the running CPU's redistributor and interface on.
pub fn init_cpu(affinity: u64) {
    let mine = redistributor(affinity);
    // SAFETY: registers of this CPU's redistributor, written as the manual says: awake first.
    unsafe {
        let waker = register::<u32>(mine + GICR_WAKER);
        waker.write_volatile(waker.read_volatile() & !PROCESSOR_SLEEP);
        while waker.read_volatile() & CHILDREN_ASLEEP != 0 {
            core::hint::spin_loop();
        }
        register::<u32>(mine + GICR_IGROUPR0).write_volatile(!(1 << NMI));
        for interrupt in [CALL, WAKE, NMI, TIMER] {
            let priority = if interrupt == NMI { 0 } else { 0xa0 };
            let place = mine + GICR_IPRIORITYR + interrupt as usize;
            register::<u8>(place).write_volatile(priority);
        }
        let used = 1 << CALL | 1 << WAKE | 1 << NMI | 1 << TIMER;
        register::<u32>(mine + GICR_ISENABLER0).write_volatile(used);
    }
    write_register!("icc_sre_el1", 1);
    write_register!("icc_pmr_el1", 0xff);
    write_register!("icc_igrpen0_el1", 1);
    write_register!("icc_igrpen1_el1", 1);
}

/// The value for ICC_SGI1R_EL1 and ICC_SGI0R_EL1 (GIC, 12.2.19): the parts of the CPU's affinity,
/// the last as one of 16 bits of a range.
fn target(affinity: u64, interrupt: u64) -> u64 {
    let [last, first, second, third] = [0, 8, 16, 32].map(|part| affinity >> part & 0xff);
    let range = last / 16;
    third << 48 | range << 44 | second << 32 | interrupt << 24 | first << 16 | 1 << (last % 16)
}

/// Stores of this CPU complete before an interrupt that it sends: the handler sees them.
fn complete_stores() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb ishst", options(nostack)) };
}

/// Interrupts another CPU. Its handler sees what this CPU wrote before.
pub fn send(cpu: &Cpu, ipi: Ipi) {
    complete_stores();
    write_register!("icc_sgi1r_el1", target(cpu.hardware_id(), ipi as u64));
}

/// Interrupts another CPU, even one that has interrupts off.
pub fn send_nmi(cpu: &Cpu) {
    complete_stores();
    write_register!("icc_sgi0r_el1", target(cpu.hardware_id(), NMI));
}

/// The interrupt that was read is active before this CPU looks for what it announced: one that is
/// sent from then on is another (Linux: `gic_read_iar_common`).
fn complete_acknowledge() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb sy", options(nostack)) };
}

/// Takes the interrupt that an IRQ announced, and ends it, so that the next may come. A timer that
/// has fired is stopped: it would announce its interrupt again.
pub fn acknowledge() -> Interrupt {
    let number = read_register!("icc_iar1_el1") & 0xff_ffff;
    complete_acknowledge();
    let interrupt = match number {
        CALL => Interrupt::Call,
        WAKE => Interrupt::Wake,
        TIMER => {
            super::timer_stop();
            Interrupt::Timer
        }
        _ => return Interrupt::Nothing,
    };
    write_register!("icc_eoir1_el1", number);
    interrupt
}

/// Takes and ends the interrupt that an FIQ announced.
pub fn acknowledge_nmi() -> Interrupt {
    let number = read_register!("icc_iar0_el1") & 0xff_ffff;
    complete_acknowledge();
    if number != NMI {
        return Interrupt::Nothing;
    }
    write_register!("icc_eoir0_el1", number);
    Interrupt::Nmi
}
