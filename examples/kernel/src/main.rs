//! A kernel on `pagedepot`: boots, starts all CPUs, runs one test and ends the machine.
//!
//! It is an example first. `memory`, `processor` and `cpu` show how a kernel embeds the allocator.
//! The rest is the least that a kernel needs to get there. `docs/embedding.md` is the guide.
//!
//! | module | what |
//! |---|---|
//! | `arch` | all that one processor has and another has not: x86-64, AArch64, RISC-V |
//! | `memory` | the allocator over all RAM: zones, metadata, linear map |
//! | `processor` | the allocator's seam: guards, fences, quiescent CPUs |
//! | `cpu`, `smp` | CPU-local data, starting and stopping CPUs |
//! | `interrupt`, `timer`, `clock`, `call` | interrupts, and asking other CPUs |
//! | `paging`, `flush`, `fault`, `user`, `vmalloc` | page tables, shootdown, faults, user mode |
//! | `tests` | the programs, and the design that one of them compares with |
#![no_std]
#![no_main]

mod arch;
mod call;
mod clock;
mod console;
mod cpu;
mod fault;
mod flush;
mod interrupt;
mod memory;
mod paging;
mod processor;
mod smp;
mod tests;
mod timer;
mod user;
mod vmalloc;

use crate::arch::BootInfo;
use crate::tests::Options;
use crate::tests::design::Design;

/// The entry from `boot.s` to Rust: on the boot CPU, translation on, interrupts off.
// SAFETY: no other definition of the symbol is linked.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(start_info: usize) -> ! {
    arch::console::init();
    cpu::boot().enter();
    // SAFETY: the address is the loader's, as `boot.s` received it.
    let boot = unsafe { BootInfo::new(start_info) };
    let options = match Options::parse(boot.command_line()) {
        Ok(options) => options,
        Err(word) => panic!("the command line has {word:?}, which is no option of this kernel"),
    };
    options.design.choose();

    arch::init(&boot);
    cpu::set_all(arch::init_cpu(), boot.cpus());
    memory::init(&boot, cpu::count(), options.design == Design::Depot);
    paging::init();
    vmalloc::init(cpu::count());
    arch::interrupts::enable();
    cpu::others().for_each(smp::start);
    tests::run(&options)
}
