//! The suite that both kernels run: the words `run=`, `rounds=` and `seed=` of the command line
//! choose its parts.
//!
//! Lines of the console that begin with `= ` are for `cargo xtask ostd`: figures as `metric value
//! name=number...`, checks as `check name ok` or `check name failed why`, and `done` at the end.

mod counts;
mod cpus;
mod marks;
mod random;
mod refill;
mod rounds;

use alloc::string::String;

use osdk_heap_allocator::{HeapAllocator, type_from_layout};
use ostd::early_println as println;
use ostd::mm::frame::GlobalFrameAllocator;
use ostd::power::{self, ExitCode};

/// A frame allocator under test: OSTD's global one.
#[derive(Clone, Copy)]
pub struct Design {
    /// The allocator as OSTD itself reaches it.
    pub frames: &'static dyn GlobalFrameAllocator,
    /// Takes what all CPUs cache.
    pub drain: fn(),
    /// Compares the allocator's counts with so many free pages, while no other code uses it.
    pub check: fn(free_pages: u64) -> Result<(), String>,
    /// Requests and frees that are unusual or wrong.
    pub edges: fn(&'static dyn GlobalFrameAllocator) -> Result<(), String>,
}

#[ostd::global_heap_allocator]
static HEAP: HeapAllocator = HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_of(layout: core::alloc::Layout) -> Option<ostd::mm::heap::SlotInfo> {
    type_from_layout(layout)
}

#[ostd::early_cmdline_parser]
const fn parse_early(_words: &str) -> ostd::boot::EarlyCmdline {
    ostd::boot::EarlyCmdline { log_level: ostd::log::LevelFilter::Warning, has_early_console: true }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    // One line, whatever the message holds.
    let message = alloc::format!("{info}").replace('\n', " ");
    println!("= check panic failed {}", message);
    power::poweroff(ExitCode::Failure)
}

/// Runs what the command line says, and ends the machine.
pub fn run(design: Design) {
    match word("run") {
        Some("counts") => counts::run(design),
        Some("refill") => refill::run(design),
        Some("rounds") => rounds::run(design, number("rounds", 100), number("seed", 1)),
        Some("edges") => said("edges", (design.edges)(design.frames)),
        other => said("run", Err(alloc::format!("no scenario is called {other:?}"))),
    }
    println!("= done");
    power::poweroff(ExitCode::Success);
}

/// Reports a check.
fn said(name: &str, outcome: Result<(), String>) {
    match outcome {
        Ok(()) => println!("= check {} ok", name),
        Err(why) => println!("= check {} failed {}", name, why.replace('\n', " ")),
    }
}

fn word(name: &str) -> Option<&'static str> {
    let words = ostd::boot::boot_info().kernel_cmdline.split_whitespace();
    words.filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name).map(|(_, of)| of)
}

fn number(name: &str, otherwise: u64) -> u64 {
    word(name).map_or(otherwise, |text| text.parse().expect("a number"))
}
