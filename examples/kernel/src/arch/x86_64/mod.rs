//! x86-64: a PC, booted by PVH.
//!
//! Manuals are cited by section where the numbers are stable (AMD64 Architecture Programmer's
//! Manual, "APM") and by title where they move with each edition (Intel's "SDM").

mod acpi;
mod apic;
mod bootinfo;
mod clock;
pub mod console;
mod descriptor;
mod interrupt;
mod runtime;
mod smp;
pub mod tables;
mod testing;
pub mod tlb;
pub mod user;

use core::arch::{asm, global_asm};

use ::x86_64::VirtAddr;
use ::x86_64::registers::model_specific::GsBase;

pub use self::apic::{timer_once, timer_stop};
pub use self::bootinfo::BootInfo;
pub use self::clock::now_us;
pub use self::console::exit;
pub use self::descriptor::Tables;
pub use self::smp::{start_cpu, stop_here};
pub use self::testing::{clobber, copy, keep, step_through};
use crate::cpu::Cpu;

global_asm!(include_str!("boot.s"));

/// Tests send interrupts that no mask keeps out.
pub const HAS_NMI: bool = true;
/// Tests can have a handler called after each instruction.
pub const HAS_STEP: bool = true;

/// Starts what the machine has once.
pub fn init(_: &BootInfo) {
    apic::disable_pic();
    apic::init();
    apic::calibrate();
    smp::init();
}

/// Starts what each CPU has, with its timer off; returns its hardware id.
pub fn init_cpu() -> u64 {
    apic::init().into()
}

/// An interrupt from CPU to CPU.
#[derive(Clone, Copy)]
pub enum Ipi {
    /// A request; see `call`.
    Call,
    /// A job.
    Wake,
}

/// Interrupts another CPU. What this CPU wrote before is visible to the handler: stores are in
/// order, and the APIC's registers are uncached.
pub fn send(cpu: &Cpu, ipi: Ipi) {
    let vector = match ipi {
        Ipi::Call => interrupt::Vector::Call,
        Ipi::Wake => interrupt::Vector::Wake,
    };
    apic::send(cpu.hardware_id() as u32, vector);
}

/// Interrupts another CPU, even one that has interrupts off.
pub fn send_nmi(cpu: &Cpu) {
    apic::send_nmi(cpu.hardware_id() as u32);
}

/// The address of the running CPU's data, once there is such.
#[inline]
pub fn cpu_pointer() -> *const Cpu {
    let at: *const Cpu;
    // SAFETY: `set_cpu_pointer` has set GS; nothing changes it afterwards, not even user mode.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) at, options(pure, readonly, nostack, preserves_flags));
    }
    at
}

/// Whether the running CPU has its data already.
pub fn has_cpu_pointer() -> bool {
    GsBase::read().as_u64() != 0
}

/// Sets GS to the running CPU's data, whose first word is its own address.
pub fn set_cpu_pointer(cpu: &'static Cpu) {
    GsBase::write(VirtAddr::from_ptr(&raw const *cpu));
}

/// The mask of interrupts, NMI aside.
pub mod interrupts {
    pub use x86_64::instructions::interrupts::{
        are_enabled, disable, enable, without_interrupts as without,
    };

    /// Turns interrupts on and halts until one comes, with none lost in between: STI takes effect
    /// after the next instruction (AMD APM vol. 3, STI).
    pub fn enable_and_halt() {
        x86_64::instructions::interrupts::enable_and_hlt();
    }
}
