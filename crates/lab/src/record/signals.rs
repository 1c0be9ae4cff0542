//! Ctrl-C ends the command that is recorded, not its recording.

use std::mem;

/// From now on this process outlives `SIGINT`, which a terminal sends to the command, too, and
/// `SIGTERM`, which perf then sends to what it runs. The command itself starts with their defaults.
pub fn leave_to_the_command() {
    extern "C" fn nothing(_: libc::c_int) {}
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: zeroes are an empty mask and no flags; the handler touches nothing.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}
