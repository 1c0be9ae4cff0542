//! A kernel on `pagedepot`: boots, starts all CPUs, runs one test and ends the machine.
//!
//! It is an example first. `memory`, `processor` and `cpu` show how a kernel embeds the allocator.
//! The rest is the least that a kernel needs to get there. `docs/embedding.md` is the guide.
//!
//! | module | what |
//! |---|---|
//! | `boot.s`, `bootinfo`, `acpi` | from the loader to Rust; memory map, CPU list |
//! | `memory` | the allocator over all RAM: zones, metadata, linear map |
//! | `processor` | the allocator's seam: guards, fences, quiescent CPUs |
//! | `cpu`, `descriptor`, `smp` | CPU-local data, segments, starting and stopping CPUs |
//! | `interrupt`, `interrupt.s`, `apic`, `timer`, `clock`, `call` | interrupts, and asking other CPUs |
//! | `paging`, `flush`, `fault`, `user`, `vmalloc` | page tables, shootdown, page faults, user mode |
//! | `tests` | the programs, and the design that one of them compares with |
//!
//! Manuals are cited by section where the numbers are stable (AMD64 Architecture Programmer's
//! Manual, "APM") and by title where they move with each edition (Intel's "SDM").
#![no_std]
#![no_main]

mod acpi;
mod apic;
mod bootinfo;
mod call;
mod clock;
mod console;
mod cpu;
mod descriptor;
mod fault;
mod flush;
mod interrupt;
mod memory;
mod paging;
mod processor;
mod runtime;
mod smp;
mod tests;
mod timer;
mod user;
mod vmalloc;

use core::arch::global_asm;

use crate::bootinfo::BootInfo;
use crate::tests::Options;
use crate::tests::design::Design;

global_asm!(include_str!("boot.s"));

/// The entry from `boot.s` to Rust: on the boot CPU, in long mode, interrupts off.
// SAFETY: no other definition of the symbol is linked.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(start_info: u64) -> ! {
    console::init();
    cpu::boot().enter();
    // SAFETY: the address is the loader's, as `boot.s` received it.
    let boot = unsafe { BootInfo::new(start_info) };
    let options = match Options::parse(boot.command_line()) {
        Ok(options) => options,
        Err(word) => panic!("the command line has {word:?}, which is no option of this kernel"),
    };
    options.design.choose();

    apic::disable_pic();
    let id = apic::init();
    apic::calibrate();
    cpu::set_all(id, acpi::cpus(&boot));
    memory::init(&boot, cpu::count(), options.design == Design::Depot);
    paging::init();
    vmalloc::init(cpu::count());
    x86_64::instructions::interrupts::enable();
    smp::init();
    cpu::others().for_each(smp::start);
    tests::run(&options)
}
