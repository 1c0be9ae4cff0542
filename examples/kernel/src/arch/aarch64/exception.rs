//! Exceptions: the vectors, and the handler of each (Arm ARM, D1.3 and D24.2.40 "ESR_EL1").

use core::arch::{asm, global_asm};

use super::{gic, user, write_register};
use crate::cpu::{Cpu, State};
use crate::fault::{self, Fault};
use crate::interrupt::{Interrupt, handle};

global_asm!(include_str!("exception.s"));

unsafe extern "C" {
    /// The vectors of `exception.s`; only their address has a meaning.
    static exception_vectors: u8;
}

/// Exception classes (ESR_EL1.EC): SVC, data abort in the kernel, single step in the kernel.
const SVC: u64 = 0x15;
const DATA_ABORT: u64 = 0x25;
const STEP: u64 = 0x33;
/// Fault status code of a data abort, less its level: no valid entry.
const TRANSLATION_FAULT: u64 = 0b0001;
/// Bits of SPSR_EL1: a step is due; interrupts are masked; the exception level.
const SPSR_STEP: u64 = 1 << 21;
const SPSR_MASKED: u64 = 1 << 7;
const SPSR_LEVEL: u64 = 0b1100;

/// The frame that `exception.s` leaves on the stack.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    registers: [u64; 31],
    pub elr: u64,
    pub spsr: u64,
    esr: u64,
    far: u64,
    kind: u64,
    fpcr: u64,
    fpsr: u64,
    vectors: [u128; 32],
}

const _: () = assert!(size_of::<Frame>() == 816);

impl Frame {
    fn is_user(&self) -> bool {
        self.spsr & SPSR_LEVEL == 0
    }

    fn class(&self) -> u64 {
        self.esr >> 26 & 0x3f
    }
}

/// Sets the vectors of the running CPU.
pub fn load_vectors() {
    write_register!("vbar_el1", (&raw const exception_vectors).addr() as u64);
}

/// Lets FIQ, this kernel's NMI, come again.
fn unmask_nmi() {
    // SAFETY: the frame has all that another exception changes.
    unsafe { asm!("msr daifclr, #1", options(nostack)) };
}

/// Called by `exception.s` for every exception, with all interrupts masked.
// SAFETY: no other definition of the symbol is linked.
#[unsafe(no_mangle)]
extern "C" fn handle_exception(frame: &mut Frame) {
    const SYNCHRONOUS: u64 = 0;
    const IRQ: u64 = 1;
    const FIQ: u64 = 2;
    let cpu = Cpu::here();
    let was_quiescent = cpu.leave_quiescence();
    // The vector's entry: the last two bits are the kind, those above say where it came from.
    match (frame.kind & 3, frame.class()) {
        (FIQ, _) => handle(cpu, was_quiescent, gic::acknowledge_nmi()),
        (IRQ, _) => {
            let interrupt = gic::acknowledge();
            unmask_nmi();
            handle(cpu, was_quiescent, interrupt);
        }
        (SYNCHRONOUS, STEP) => {
            unmask_nmi();
            let is_masked = frame.spsr & SPSR_MASKED != 0;
            let step = if is_masked { Interrupt::Nothing } else { Interrupt::Step };
            handle(cpu, was_quiescent, step);
            frame.spsr |= SPSR_STEP;
        }
        (SYNCHRONOUS, SVC) if frame.is_user() => user::leave(frame),
        (SYNCHRONOUS, DATA_ABORT) => page_fault(frame),
        _ => panic!("an exception that nothing expects: {frame:#x?}"),
    }
    if frame.is_user() {
        cpu.set_state(State::Quiescent);
    }
}

/// A fault belongs to the code that it interrupts: it keeps that code's context, and its interrupt
/// mask.
fn page_fault(frame: &Frame) {
    let status = frame.esr & 0x3f;
    let fault = if status >> 2 == TRANSLATION_FAULT { Fault::Missing } else { Fault::Denied };
    unmask_nmi();
    if frame.spsr & SPSR_MASKED == 0 {
        super::interrupts::enable();
    }
    if !fault::resolve(frame.far as usize, fault) {
        panic!("page fault at {:#x}: {frame:#x?}", frame.far);
    }
    super::interrupts::disable();
}
