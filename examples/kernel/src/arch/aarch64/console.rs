//! The serial port, and the end of the machine.

use core::ptr::with_exposed_provenance_mut;

use crate::console::Exit;

/// The first PL011 of QEMU's `virt`.
const UART: usize = 0x0900_0000;
/// Data and flag registers (Arm PrimeCell UART PL011, 3.2), and the flag "transmit FIFO full".
const DATA: usize = UART;
const FLAGS: usize = UART + 0x18;
const FULL: u32 = 1 << 5;

/// Sets up the port. QEMU's needs nothing.
pub fn init() {}

/// Writes bytes to the port. `crate::console` calls it on one CPU at a time.
pub fn write(bytes: &[u8]) {
    for &byte in bytes {
        // SAFETY: registers of the port, mapped by `boot.s` as a device.
        unsafe {
            while with_exposed_provenance_mut::<u32>(FLAGS).read_volatile() & FULL != 0 {}
            with_exposed_provenance_mut::<u32>(DATA).write_volatile(byte.into());
        }
    }
}

/// Ends the machine, by semihosting (Arm, "Semihosting for AArch32 and AArch64", SYS_EXIT).
pub fn exit(how: Exit) -> ! {
    const SYS_EXIT: u64 = 0x18;
    const APPLICATION_EXIT: u64 = 0x2_0026;
    let arguments = [APPLICATION_EXIT, how as u64];
    // SAFETY: the debugger, QEMU, reads the two words, and does not come back.
    unsafe { core::arch::asm!("hlt #0xf000", in("x0") SYS_EXIT, in("x1") &raw const arguments) };
    super::stop_here()
}
