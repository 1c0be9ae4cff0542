//! Interrupts and exceptions: the table, and the handler of each.
//!
//! AMD APM vol. 2, 4.8.4 (gates) and 8.9 (long-mode interrupts).

use core::arch::global_asm;

use x86_64::VirtAddr;
use x86_64::instructions::interrupts;
use x86_64::instructions::tables::lidt;
use x86_64::registers::control::Cr2;
use x86_64::structures::DescriptorTablePointer;

use super::descriptor::{InterruptStack, KERNEL_CODE};
use super::{apic, user};
use crate::cpu::{Cpu, State};
use crate::fault::{self, Fault};
use crate::interrupt::{Interrupt, handle};

global_asm!(include_str!("interrupt.s"));

/// Interrupts that this kernel uses; vectors below 32 are the processor's exceptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Vector {
    /// The local APIC's timer.
    Timer = 0x20,
    /// Another CPU sent a request; see `call`.
    Call = 0x21,
    /// Another CPU has a job for this one.
    Wake = 0x22,
    /// User mode asked to return to the kernel (`int`).
    UserExit = 0x23,
    /// The APIC withdrew an interrupt that it had announced.
    Spurious = 0x2f,
}

const DEBUG: u64 = 1;
const NMI: u64 = 2;
const PAGE_FAULT: u64 = 14;
const DOUBLE_FAULT: u64 = 8;
const INTERRUPT_FLAG: u64 = 1 << 9;
/// Bits of a page fault's error code (APM 8.4.2): the page was present; an instruction was fetched.
const PROTECTION: u64 = 1 << 0;
const FETCH: u64 = 1 << 4;

/// The frame that `interrupt.s` leaves on the stack: registers, vector, error code, and the
/// processor's own words (APM 8.9.3).
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    pub rip: u64,
    pub cs: u64,
    pub flags: u64,
    pub rsp: u64,
    pub ss: u64,
}

impl Frame {
    fn is_user(&self) -> bool {
        self.cs & 3 == 3
    }
}

const VECTORS: usize = 64;
const ENTRY_BYTES: usize = 16;

/// A gate (APM 4.8.4): present, 64-bit interrupt gate, so that interrupts are off on entry.
#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    offset_low: u16,
    selector: u16,
    stack: u8,
    kind: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

static TABLE: spin::Once<[Gate; VECTORS]> = spin::Once::new();

unsafe extern "C" {
    static interrupt_entries: [[u8; ENTRY_BYTES]; VECTORS];
}

fn gate(vector: usize) -> Gate {
    // SAFETY: only the address is taken; the assembly has an entry for each vector.
    let entry = unsafe { &raw const interrupt_entries[vector] }.addr();
    let stack = match vector as u64 {
        NMI => InterruptStack::Nmi,
        DOUBLE_FAULT => InterruptStack::DoubleFault,
        _ => InterruptStack::Landing,
    };
    let user_may = u8::from(vector == Vector::UserExit as usize) * (3 << 5);
    Gate {
        offset_low: entry as u16,
        selector: KERNEL_CODE,
        stack: stack as u8,
        kind: 0x8e | user_may,
        offset_middle: (entry >> 16) as u16,
        offset_high: (entry >> 32) as u32,
        reserved: 0,
    }
}

/// Loads the table on this CPU.
pub fn load_table() {
    let table = TABLE.call_once(|| core::array::from_fn(gate));
    let pointer = DescriptorTablePointer {
        limit: (size_of_val(table) - 1) as u16,
        base: VirtAddr::from_ptr(table),
    };
    // SAFETY: the table is static and its entries lead to `interrupt.s`.
    unsafe { lidt(&pointer) };
}

/// Called by `interrupt.s` for every vector, with interrupts off.
// SAFETY: no other definition of the symbol is linked.
#[unsafe(no_mangle)]
extern "C" fn handle_interrupt(frame: &mut Frame) {
    let cpu = Cpu::here();
    let was_quiescent = cpu.leave_quiescence();
    match frame.vector {
        PAGE_FAULT => page_fault(frame),
        vector if vector == Vector::UserExit as u64 => user::leave(cpu, frame),
        vector if vector == NMI || vector == DEBUG || vector >= 32 => {
            handle(cpu, was_quiescent, acknowledge(frame));
        }
        _ => panic!("exception {}: {frame:#x?}", frame.vector),
    }
    if frame.is_user() {
        cpu.set_state(State::Quiescent);
    }
}

/// Ends the interrupt in service, so that the next may come; says which it is.
fn acknowledge(frame: &Frame) -> Interrupt {
    let interrupt = match frame.vector {
        NMI => return Interrupt::Nmi,
        DEBUG if frame.flags & INTERRUPT_FLAG != 0 => return Interrupt::Step,
        vector if vector == Vector::Timer as u64 => Interrupt::Timer,
        vector if vector == Vector::Call as u64 => Interrupt::Call,
        vector if vector == Vector::Wake as u64 => Interrupt::Wake,
        _ => return Interrupt::Nothing,
    };
    apic::end_of_interrupt();
    interrupt
}

/// A fault belongs to the code that it interrupts: it keeps that code's context, and its interrupt
/// flag.
fn page_fault(frame: &Frame) {
    let address = Cr2::read_raw() as usize;
    let may_interrupt = frame.flags & INTERRUPT_FLAG != 0;
    if may_interrupt {
        interrupts::enable();
    }
    let fault =
        if frame.error & (PROTECTION | FETCH) == 0 { Fault::Missing } else { Fault::Denied };
    if frame.is_user() || !fault::resolve(address, fault) {
        panic!("page fault at {address:#x}: {frame:#x?}");
    }
    interrupts::disable();
}
