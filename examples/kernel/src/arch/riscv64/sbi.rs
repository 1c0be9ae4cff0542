//! Calls to the firmware (SBI, chapter 3 "Binary Encoding").

use core::arch::asm;

/// Extensions.
const TIME: usize = 0x5449_4d45;
const IPI: usize = 0x73_5049;
const HSM: usize = 0x48_534d;

/// The error "already available": the hart has not stopped yet.
pub const ALREADY_AVAILABLE: isize = -6;

/// Calls a function of an extension; returns its error, 0 for none.
///
/// # Safety
/// The call does with memory what the caller may have done.
unsafe fn call(extension: usize, function: usize, arguments: [usize; 3]) -> isize {
    let error;
    // SAFETY: the caller's promise; all registers but A0 and A1 are kept.
    unsafe {
        asm!(
            "ecall",
            inout("a0") arguments[0] as isize => error,
            inout("a1") arguments[1] => _,
            in("a2") arguments[2],
            in("a6") function,
            in("a7") extension,
            options(nostack),
        );
    }
    error
}

fn expect(error: isize, what: &str) {
    assert!(error == 0, "the firmware cannot {what}: SBI error {error}");
}

/// Has the timer interrupt this hart when the clock reaches `ticks`; takes a pending one back.
pub fn set_timer(ticks: u64) {
    // SAFETY: no memory is involved.
    expect(unsafe { call(TIME, 0, [ticks as usize, 0, 0]) }, "set the timer");
}

/// Interrupts a hart.
pub fn send_ipi(hart: u64) {
    // A mask of one bit, which counts from the hart's number.
    // SAFETY: no memory is involved.
    expect(unsafe { call(IPI, 0, [1, hart as usize, 0]) }, "interrupt a hart");
}

/// Starts a hart at `entry`; returns the error, 0 for none.
///
/// # Safety
/// The code at `entry` can run on that hart.
pub unsafe fn start(hart: u64, entry: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(HSM, 0, [hart as usize, entry, 0]) }
}

/// Stops the running hart. Returns only if it cannot.
pub fn stop() {
    // SAFETY: this hart does nothing any more.
    unsafe { call(HSM, 1, [0; 3]) };
}
