//! The serial console, and the end of the machine.

use core::fmt::{self, Write};

use spin::Mutex;
use uart_16550::backend::PioBackend;
use uart_16550::{Config, Uart16550};
use x86_64::instructions::port::PortWriteOnly;

/// The first serial port, where every PC has it.
const COM1: u16 = 0x3f8;
/// `isa-debug-exit,iobase=0xf4,iosize=4`: QEMU exits with status `2 * value + 1`.
const DEBUG_EXIT: u16 = 0xf4;

struct Console(Option<Uart16550<PioBackend>>);

static CONSOLE: Mutex<Console> = Mutex::new(Console(None));

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Some(uart) = &mut self.0 {
            uart.send_bytes_exact(text.as_bytes());
        }
        Ok(())
    }
}

/// Sets up the port. Lines printed before are lost.
pub fn init() {
    // SAFETY: no other code uses COM1, and this runs once.
    let port = unsafe { Uart16550::new_port(COM1) };
    if let Ok(mut uart) = port
        && uart.init(Config::default()).is_ok()
    {
        CONSOLE.lock().0 = Some(uart);
    }
}

/// Prints a line. For tasks only: a handler would wait for the task that it interrupts.
pub fn print(line: fmt::Arguments<'_>) {
    let _ = writeln!(CONSOLE.lock(), "{line}");
}

/// Prints a last line, even if another CPU holds the console.
fn print_last(line: fmt::Arguments<'_>) {
    for _ in 0..1_000_000 {
        if let Some(mut console) = CONSOLE.try_lock() {
            let _ = writeln!(console, "{line}");
            return;
        }
        core::hint::spin_loop();
    }
    // SAFETY: the holder is this CPU, or had long enough; a garbled line is better than none.
    unsafe { CONSOLE.force_unlock() };
    let _ = writeln!(CONSOLE.lock(), "{line}");
}

/// Prints how far a test has come: `progress: ...`, for people.
#[macro_export]
macro_rules! progress {
    ($($argument:tt)*) => {
        $crate::console::print(format_args!("progress: {}", format_args!($($argument)*)))
    };
}

/// Reports a figure as `name=value`, for programs.
#[macro_export]
macro_rules! figure {
    ($name:literal, $value:expr) => {
        $crate::console::print(format_args!(concat!($name, "={}"), $value))
    };
}

/// The end of the machine.
#[derive(Clone, Copy)]
pub enum Exit {
    /// The test passed: status 33.
    Passed = 0x10,
    /// The test failed, or the kernel panicked: status 35.
    Failed = 0x11,
}

/// Ends the machine.
pub fn exit(how: Exit) -> ! {
    // SAFETY: the port belongs to the debug-exit device, or to no device.
    unsafe { PortWriteOnly::new(DEBUG_EXIT).write(how as u32) };
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    x86_64::instructions::interrupts::disable();
    print_last(format_args!("{}: {info}", crate::cpu::name_here()));
    exit(Exit::Failed)
}
