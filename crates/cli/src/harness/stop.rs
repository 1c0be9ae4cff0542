//! Ctrl-C: a measurement ends after the round that it is in, and what was measured is written.
//!
//! The first `SIGINT`, `SIGTERM` or `SIGHUP` asks; the second ends the process as it would by
//! default.

use std::fs;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static SAID: AtomicBool = AtomicBool::new(false);
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Listens from now on. Without it, signals end the process at once.
///
/// # Errors
/// When the kernel refuses a handler.
pub fn listen() -> io::Result<()> {
    let asked = ASKED.get_or_init(|| Arc::new(AtomicBool::new(false)));
    let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    // What was ignored when this process began, as under `nohup`, stays ignored.
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|n| ignored >> (n - 1) & 1 == 0) {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_default(signal, Arc::clone(asked))?;
        flag::register(signal, Arc::clone(asked))?;
        // SAFETY: a store to an atomic is safe in a signal handler.
        unsafe {
            signal_hook::low_level::register(signal, move || {
                // Relaxed: read after `ASKED`, only to say which it was.
                SIGNAL.store(signal, Ordering::Relaxed);
            })?;
        }
    }
    Ok(())
}

/// The signals that a process ignores: bit n - 1 of signal n.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether the user asked to stop. Says so once, so that it is seen that the request arrived.
pub fn is_asked() -> bool {
    // Relaxed: nothing else is published with it.
    let asked = ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed));
    if asked && !SAID.swap(true, Ordering::Relaxed) {
        // Best effort: stderr may be closed.
        let _ = writeln!(
            io::stderr(),
            "stopping: what is measured so far will be written (again: end at once)"
        );
    }
    asked
}

/// The signal that asked, if one did.
pub fn signal() -> Option<i32> {
    is_asked().then(|| SIGNAL.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000000003\n"), 3);
        assert_eq!(ignored("SigBlk:\t0000000000000001\n"), 0);
    }
}
