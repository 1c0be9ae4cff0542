//! AArch64: QEMU's `virt`, with a GICv3.
//!
//! Manuals are cited by section: the Arm Architecture Reference Manual for A-profile ("Arm ARM",
//! DDI 0487), the GICv3 architecture specification ("GIC", IHI 0069), the Power State Coordination
//! Interface ("PSCI", DEN 0022).

pub mod console;
mod exception;
mod gic;
mod smp;
pub mod tables;
mod testing;
mod timer;
pub mod tlb;
pub mod user;

use core::arch::{asm, global_asm};

pub use self::console::exit;
pub use self::gic::{Ipi, send, send_nmi};
pub use self::smp::{start_cpu, stop_here};
pub use self::testing::{clobber, copy, keep, step_through};
pub use self::timer::{now_us, timer_once, timer_stop};
pub use super::fdt::BootInfo;
use crate::cpu::Cpu;

global_asm!(include_str!("boot.s"), ap_main = sym crate::smp::ap_main);

/// Tests send interrupts that no mask keeps out: the kernel masks IRQ alone, and FIQ are left.
pub const HAS_NMI: bool = true;
/// Tests can have a handler called after each instruction.
pub const HAS_STEP: bool = true;

/// Reads a system register.
macro_rules! read_register {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading this register changes nothing.
        unsafe { core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack)) };
        value
    }};
}
/// Writes a system register, and waits until that has taken effect. Not for registers that the
/// compiler relies on.
macro_rules! write_register {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: callers write what the manual allows; no memory that Rust code uses changes.
        unsafe {
            core::arch::asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack))
        };
    }};
}
use {read_register, write_register};

/// Starts what the machine has once.
pub fn init(_: &BootInfo) {
    gic::init();
}

/// Starts what each CPU has, with its timer off; returns its hardware id.
pub fn init_cpu() -> u64 {
    let id = gic::affinity_here();
    timer_stop();
    gic::init_cpu(id);
    // Debug exceptions: the OS Lock keeps them out after a reset (Arm ARM, D2.9).
    write_register!("oslar_el1", 0);
    // SAFETY: the vectors are set: `Tables::load` comes first.
    unsafe { asm!("msr daifclr, #1", options(nostack)) };
    id
}

/// Placeholder of the tables that a CPU has on other processors: all CPUs share the vectors here.
pub struct Tables;

impl Tables {
    /// The placeholder.
    pub const fn new() -> Self {
        Tables
    }

    /// Sets the vectors.
    pub fn load(&'static self) {
        exception::load_vectors();
    }
}

/// The address of the running CPU's data, once there is such.
#[inline]
pub fn cpu_pointer() -> *const Cpu {
    let at: *const Cpu;
    // SAFETY: reading this register changes nothing; `set_cpu_pointer` has set it for good.
    unsafe {
        asm!("mrs {}, tpidr_el1", out(reg) at, options(pure, readonly, nostack, preserves_flags));
    }
    at
}

/// Whether the running CPU has its data already. The register is zero at first under QEMU.
pub fn has_cpu_pointer() -> bool {
    read_register!("tpidr_el1") != 0
}

/// Sets TPIDR_EL1 to the running CPU's data. User mode has no access to that register.
pub fn set_cpu_pointer(cpu: &'static Cpu) {
    write_register!("tpidr_el1", (&raw const *cpu).expose_provenance() as u64);
}

/// The mask of interrupts, NMI aside: PSTATE.I.
pub mod interrupts {
    use core::arch::asm;

    /// Whether interrupts come.
    pub fn are_enabled() -> bool {
        super::read_register!("daif") & 1 << 7 == 0
    }

    /// Lets interrupts come.
    pub fn enable() {
        // SAFETY: handlers save what they change. The compiler moves no memory access across.
        unsafe { asm!("msr daifclr, #2", options(nostack)) };
    }

    /// Keeps interrupts out.
    pub fn disable() {
        // SAFETY: as in `enable`.
        unsafe { asm!("msr daifset, #2", options(nostack)) };
    }

    /// Runs `work` with interrupts off.
    pub fn without<R>(work: impl FnOnce() -> R) -> R {
        let were_enabled = are_enabled();
        disable();
        let result = work();
        if were_enabled {
            enable();
        }
        result
    }

    /// Turns interrupts on and halts until one comes, with none lost in between: a masked interrupt
    /// that is pending ends WFI (Arm ARM, D1.7.1), and is taken after it.
    pub fn enable_and_halt() {
        // SAFETY: as in `enable`. DSB: what this CPU wrote is visible to others while it halts.
        unsafe { asm!("dsb sy", "wfi", "msr daifclr, #2", options(nostack)) };
    }
}
