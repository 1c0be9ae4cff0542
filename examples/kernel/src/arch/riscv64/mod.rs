//! RISC-V (riscv64gc): QEMU's `virt`, in supervisor mode above OpenSBI.
//!
//! Manuals are cited by section: the RISC-V privileged specification ("Priv", 20211203) and the
//! Supervisor Binary Interface ("SBI", 1.0).

pub mod console;
mod sbi;
mod smp;
pub mod tables;
mod testing;
mod timer;
pub mod tlb;
mod trap;
pub mod user;

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering};

pub use self::console::exit;
pub use self::smp::{start_cpu, stop_here};
pub use self::testing::{clobber, copy, keep, step_through};
pub use self::timer::{now_us, timer_once, timer_stop};
pub use super::fdt::BootInfo;
use crate::cpu::Cpu;

global_asm!(include_str!("boot.s"), ap_main = sym crate::smp::ap_main);

/// Supervisor mode has no interrupt that no mask keeps out.
pub const HAS_NMI: bool = false;
/// Supervisor mode has no trap after each instruction: triggers are the machine mode's.
pub const HAS_STEP: bool = false;

/// Reads a control and status register.
macro_rules! read_csr {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading this register changes nothing.
        unsafe { core::arch::asm!(concat!("csrr {}, ", $name), out(reg) value, options(nostack)) };
        value
    }};
}
/// Writes, sets or clears bits of a control and status register that Rust code does not rely on.
macro_rules! change_csr {
    ($instruction:literal, $name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: callers change what the manual allows.
        unsafe {
            core::arch::asm!(
                concat!($instruction, " ", $name, ", {}"), in(reg) value, options(nostack)
            )
        };
    }};
}
use {change_csr, read_csr};

/// Bits of `sie` and `sip` (Priv 4.1.3): software and timer interrupts.
const SOFTWARE: u64 = 1 << 1;
const TIMER: u64 = 1 << 5;
/// Bit of `sstatus`: interrupts come.
const INTERRUPTS: u64 = 1 << 1;

/// Starts what the machine has once.
pub fn init(boot: &BootInfo) {
    timer::init(boot.timebase_hz);
}

/// Starts what each CPU has, with its timer off; returns its hardware id: the hart's number.
pub fn init_cpu() -> u64 {
    timer_stop();
    change_csr!("csrw", "sie", SOFTWARE | TIMER);
    Cpu::here().tables.hart.load(Ordering::Relaxed)
}

/// Data of one CPU that no register holds.
pub struct Tables {
    hart: AtomicU64,
}

impl Tables {
    /// Empty data.
    pub const fn new() -> Self {
        Tables { hart: AtomicU64::new(0) }
    }

    /// Sets the trap vector, and notes the hart's number.
    pub fn load(&'static self) {
        trap::load_vector();
        self.hart.store(smp::hart_here(), Ordering::Relaxed);
    }
}

/// An interrupt from CPU to CPU. There is one software interrupt, so a handler looks for both.
#[derive(Clone, Copy)]
pub enum Ipi {
    /// A request; see `call`.
    Call,
    /// A job.
    Wake,
}

/// Interrupts another CPU. Its handler sees what this CPU wrote before.
pub fn send(cpu: &Cpu, _: Ipi) {
    // SAFETY: stores come before the device write by which the firmware sends. Pairs with the fence
    // in `handle_trap`.
    unsafe { asm!("fence rw, ow", options(nostack)) };
    sbi::send_ipi(cpu.hardware_id());
}

/// Never called: see [`HAS_NMI`].
pub fn send_nmi(_: &Cpu) {
    unreachable!("supervisor mode has no NMI");
}

/// The address of the running CPU's data, once there is such.
#[inline]
pub fn cpu_pointer() -> *const Cpu {
    let at: *const Cpu;
    // SAFETY: reading the register changes nothing. The compiler does not use TP; `trap.s` has it
    // right in the kernel.
    unsafe { asm!("mv {}, tp", out(reg) at, options(pure, readonly, nostack, preserves_flags)) };
    at
}

/// Whether the running CPU has its data already: `boot.s` clears the register.
pub fn has_cpu_pointer() -> bool {
    !cpu_pointer().is_null()
}

/// Sets TP to the running CPU's data. `sscratch` is zero while the hart is in the kernel.
pub fn set_cpu_pointer(cpu: &'static Cpu) {
    change_csr!("csrw", "sscratch", 0);
    // SAFETY: no code uses TP but `cpu_pointer` and `trap.s`.
    unsafe { asm!("mv tp, {}", in(reg) &raw const *cpu, options(nostack)) };
}

/// The mask of interrupts: sstatus.SIE.
pub mod interrupts {
    use super::INTERRUPTS;

    /// Whether interrupts come.
    pub fn are_enabled() -> bool {
        read_csr!("sstatus") & INTERRUPTS != 0
    }

    /// Lets interrupts come.
    pub fn enable() {
        change_csr!("csrs", "sstatus", INTERRUPTS);
    }

    /// Keeps interrupts out.
    pub fn disable() {
        change_csr!("csrc", "sstatus", INTERRUPTS);
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

    /// Turns interrupts on and halts until one comes, with none lost in between: an interrupt that
    /// is pending ends WFI, whatever the mask says (Priv 3.3.3), and is taken after it.
    pub fn enable_and_halt() {
        // SAFETY: halting changes nothing.
        unsafe { core::arch::asm!("wfi", options(nostack)) };
        enable();
    }
}
