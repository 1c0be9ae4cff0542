//! The serial port, and the end of the machine.

use spin::Mutex;
use uart_16550::backend::PioBackend;
use uart_16550::{Config, Uart16550};
use x86_64::instructions::port::PortWriteOnly;

use crate::console::Exit;

/// The first serial port, where every PC has it.
const COM1: u16 = 0x3f8;
/// `isa-debug-exit,iobase=0xf4,iosize=4`: QEMU exits with status `2 * value + 1`.
const DEBUG_EXIT: u16 = 0xf4;

static UART: Mutex<Option<Uart16550<PioBackend>>> = Mutex::new(None);

/// Sets up the port. Bytes written before are lost.
pub fn init() {
    // SAFETY: no other code uses COM1, and this runs once.
    let port = unsafe { Uart16550::new_port(COM1) };
    if let Ok(mut uart) = port
        && uart.init(Config::default()).is_ok()
    {
        *UART.lock() = Some(uart);
    }
}

/// Writes bytes to the port. `crate::console` calls it on one CPU at a time.
pub fn write(bytes: &[u8]) {
    // A panic that interrupts a write goes on without the rest of it.
    if UART.is_locked() {
        // SAFETY: one CPU writes at a time, so the holder is below this code and does not go on.
        unsafe { UART.force_unlock() };
    }
    if let Some(uart) = &mut *UART.lock() {
        uart.send_bytes_exact(bytes);
    }
}

/// Ends the machine.
pub fn exit(how: Exit) -> ! {
    // SAFETY: the port belongs to the debug-exit device, or to no device.
    unsafe { PortWriteOnly::new(DEBUG_EXIT).write(how as u32 >> 1) };
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
