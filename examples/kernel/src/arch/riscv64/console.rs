//! The serial port, and the end of the machine.

use core::ptr::with_exposed_provenance_mut;

use crate::console::Exit;

/// The 16550 of QEMU's `virt`: data, and line status with its bit "transmitter empty".
const DATA: usize = 0x1000_0000;
const STATUS: usize = DATA + 5;
const EMPTY: u8 = 1 << 5;
/// The device that ends the machine (QEMU, `hw/misc/sifive_test.c`): the upper half of the word is
/// the exit status.
const TEST: usize = 0x10_0000;
const FAIL: u32 = 0x3333;

/// Says where the firmware's lines end. It has set up the port.
pub fn init() {
    write(b"kernel\n");
}

/// Writes bytes to the port. `crate::console` calls it on one CPU at a time.
pub fn write(bytes: &[u8]) {
    for &byte in bytes {
        // SAFETY: registers of the port, mapped by `boot.s`.
        unsafe {
            while with_exposed_provenance_mut::<u8>(STATUS).read_volatile() & EMPTY == 0 {}
            with_exposed_provenance_mut::<u8>(DATA).write_volatile(byte);
        }
    }
}

/// Ends the machine.
pub fn exit(how: Exit) -> ! {
    // SAFETY: the register of the device, mapped by `boot.s`.
    unsafe {
        with_exposed_provenance_mut::<u32>(TEST).write_volatile((how as u32) << 16 | FAIL);
    }
    super::stop_here()
}
