//! The serial console, and the end of the machine.

use core::fmt::{self, Write};

use spin::Mutex;

use crate::arch;

struct Console;

static CONSOLE: Mutex<Console> = Mutex::new(Console);

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        arch::console::write(text.as_bytes());
        Ok(())
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

/// The end of the machine: QEMU's exit status.
#[derive(Clone, Copy)]
pub enum Exit {
    /// The test passed.
    Passed = 33,
    /// The test failed, or the kernel panicked.
    Failed = 35,
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    arch::interrupts::disable();
    print_last(format_args!("{}: {info}", crate::cpu::name_here()));
    arch::exit(Exit::Failed)
}
