//! Traps: the vector, and the handler of each (Priv 4.1).

use core::arch::{asm, global_asm};

use super::tables::{READABLE, WRITABLE};
use super::{INTERRUPTS, SOFTWARE, change_csr, sbi, tlb, user};
use crate::cpu::{Cpu, State};
use crate::fault::{self, Fault};
use crate::interrupt::{Interrupt, handle};
use crate::paging;

global_asm!(include_str!("trap.s"));

unsafe extern "C" {
    /// The entry of `trap.s`; only its address has a meaning.
    static trap_entry: u8;
}

/// Causes (Priv table 4.2): interrupts have the top bit.
const INTERRUPT: u64 = 1 << 63;
const SOFTWARE_INTERRUPT: u64 = INTERRUPT | 1;
const TIMER_INTERRUPT: u64 = INTERRUPT | 5;
const USER_CALL: u64 = 8;
const LOAD_PAGE_FAULT: u64 = 13;
const STORE_PAGE_FAULT: u64 = 15;
/// Bits of `sstatus` at the trap: interrupts came; it came from the kernel.
const BEFORE_INTERRUPTS: u64 = 1 << 5;
pub const FROM_KERNEL: u64 = 1 << 8;

/// The frame that `trap.s` leaves on the stack.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    registers: [u64; 32],
    pub epc: u64,
    pub status: u64,
    cause: u64,
    value: u64,
    fcsr: u64,
    floats: [u64; 20],
    padding: u64,
}

const _: () = assert!(size_of::<Frame>() == 464);

impl Frame {
    fn is_user(&self) -> bool {
        self.status & FROM_KERNEL == 0
    }

    /// Sets the stack pointer to return with, and that interrupts are off then.
    pub fn go_on_in_kernel(&mut self, at: u64, stack: u64) {
        self.registers[2] = stack;
        self.epc = at;
        self.status = self.status & !BEFORE_INTERRUPTS | FROM_KERNEL;
    }
}

/// Sets the trap vector of the running CPU: one entry for all.
pub fn load_vector() {
    change_csr!("csrw", "stvec", (&raw const trap_entry).addr() as u64);
}

/// Called by `trap.s` for every trap, with interrupts off.
// SAFETY: no other definition of the symbol is linked.
#[unsafe(no_mangle)]
extern "C" fn handle_trap(frame: &mut Frame) {
    let cpu = Cpu::here();
    let was_quiescent = cpu.leave_quiescence();
    match frame.cause {
        SOFTWARE_INTERRUPT => {
            change_csr!("csrc", "sip", SOFTWARE);
            // SAFETY: a fence. The register is written (device output) before the handler loads
            // what it is asked for: a request that it misses sets the bit again. Pairs with the
            // fence in `send`.
            unsafe { asm!("fence iorw, iorw", options(nostack)) };
            // A wake-up and a request are one interrupt.
            handle(cpu, was_quiescent, Interrupt::Call);
        }
        TIMER_INTERRUPT => {
            sbi::set_timer(u64::MAX);
            handle(cpu, was_quiescent, Interrupt::Timer);
        }
        USER_CALL => user::leave(cpu, frame),
        LOAD_PAGE_FAULT | STORE_PAGE_FAULT if !frame.is_user() => page_fault(frame),
        _ => panic!("a trap that nothing expects: {frame:#x?}"),
    }
    if frame.is_user() {
        cpu.set_state(State::Quiescent);
    }
}

/// A fault belongs to the code that it interrupts: it keeps that code's context, and its interrupt
/// mask.
fn page_fault(frame: &Frame) {
    let address = frame.value as usize;
    if frame.status & BEFORE_INTERRUPTS != 0 {
        change_csr!("csrs", "sstatus", INTERRUPTS);
    }
    // The cause does not say whether there is an entry.
    let access = if frame.cause == STORE_PAGE_FAULT { WRITABLE } else { READABLE };
    let is_resolved = match paging::leaf(address) {
        // Mapped meanwhile, or before: this hart had cached that there was nothing.
        Some(entry) if entry & access != 0 => {
            tlb::flush_all();
            true
        }
        Some(_) => fault::resolve(address, Fault::Denied),
        None => fault::resolve(address, Fault::Missing),
    };
    assert!(is_resolved, "page fault at {address:#x}: {frame:#x?}");
    change_csr!("csrc", "sstatus", INTERRUPTS);
}
