//! The processors this kernel runs on. Each has a folder; the rest of the kernel is the same.
//!
//! | name | what it is |
//! |---|---|
//! | `BootInfo` | what the loader passes: RAM, the CPUs' hardware ids, the command line |
//! | `init`, `init_cpu` | clock and interrupt controller; this CPU's part of it, returning its id |
//! | `cpu_pointer`, `Tables` | the register that finds CPU-local data; tables that a CPU has |
//! | `start_cpu`, `stop_here` | another CPU on, this one off |
//! | `send`, `send_nmi` | interrupts to another CPU |
//! | `interrupts` | this CPU's mask, and the halt that an interrupt ends |
//! | `timer_once`, `timer_stop`, `now_us` | this CPU's timer, the time |
//! | `console`, `exit` | bytes to the serial port, the end of the machine |
//! | `tables`, `tlb` | entries of page tables, dropping their translations, tables in use |
//! | `user` | code that counts in user mode |
//! | `copy`, `keep`, `clobber`, `step_through` | work for assembly, of `vmalloc` and tests |
//!
//! Assembly of the folders enters `kernel_main` on the boot CPU and `smp::ap_main` on the others,
//! and calls `interrupt::handle`, `fault::resolve` and `user::leave`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(target_arch = "x86_64"))]
mod fdt;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(not(target_arch = "aarch64"))]
mod roots;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use self::aarch64::*;
#[cfg(target_arch = "riscv64")]
pub use self::riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;
