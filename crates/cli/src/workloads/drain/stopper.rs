//! Stopping a thread in the middle of whatever it does, as `SIGSTOP` or a hypervisor would.
//!
//! A signal handler that blocks stops one thread, where `SIGSTOP` would stop the whole process. It
//! waits for a byte in a pipe, asleep, so that its CPU is free. It lets go by itself after
//! [`STOP_MAX`]: a design whose owner was stopped with a lock in its hand could not be drained
//! before, and would never be.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::{read, write};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::failure::Failure;
use crate::harness::barrier::Waiter;

/// Longest that a thread stays stopped.
pub const STOP_MAX: Duration = Duration::from_millis(10);

const SIGNAL: libc::c_int = libc::SIGUSR2;

/// The descriptor that the handler reads; -1 before there is a pipe.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// Stops begun and ended, in all.
static STOPPED: AtomicU64 = AtomicU64::new(0);
static RESUMED: AtomicU64 = AtomicU64::new(0);

/// Stops threads, one at a time.
pub struct Stopper {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// A thread that can be stopped.
#[derive(Clone, Copy)]
pub struct Target(libc::pthread_t);

impl Target {
    /// The calling thread.
    pub fn this_thread() -> Self {
        // SAFETY: has no preconditions.
        Target(unsafe { libc::pthread_self() })
    }
}

impl Stopper {
    /// The only one there is.
    ///
    /// # Errors
    /// When the signal handler cannot be installed.
    pub fn get() -> Result<&'static Self, Failure> {
        static STOPPER: OnceLock<Result<Stopper, String>> = OnceLock::new();
        let stopper = STOPPER.get_or_init(|| Self::install().map_err(|e| e.to_string()));
        stopper.as_ref().map_err(|e| {
            Failure::Run(format!(
                "cannot install a signal handler: {e}; free some file descriptors"
            ))
        })
    }

    fn install() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        PIPE.store(reader.as_raw_fd(), Ordering::Relaxed);
        // SAFETY: a plain structure, for which zeroes will do.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = stop_here as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler calls only async-signal-safe functions, and the structure is whole.
        if unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Stopper { reader, writer })
    }

    /// Calls `act` while `target` is stopped. Returns when the thread runs again.
    ///
    /// # Safety
    /// The thread must exist until this returns.
    pub unsafe fn while_stopped<T>(&self, target: Target, act: impl FnOnce() -> T) -> T {
        let stops = STOPPED.load(Ordering::Relaxed) + 1;
        // SAFETY: the thread exists, as the caller promises.
        let error = unsafe { libc::pthread_kill(target.0, SIGNAL) };
        assert_eq!(error, 0, "the thread to stop is gone");
        wait_for(&STOPPED, stops);
        let result = act();
        // An error would mean that the pipe is full of bytes that no thread took; then none waits.
        let _ = write(self.writer.as_fd(), &[0]);
        wait_for(&RESUMED, stops);
        // A thread that let go by itself took no byte.
        let _ = read(self.reader.as_fd(), &mut [0; 8]);
        result
    }
}

// Each count's Release pairs with this Acquire: the counting thread and the waiting one take
// turns.
fn wait_for(count: &AtomicU64, value: u64) {
    let mut waiter = Waiter::default();
    while count.load(Ordering::Acquire) < value {
        waiter.pause();
    }
}

/// The handler.
extern "C" fn stop_here(_signal: libc::c_int) {
    // SAFETY: the address of this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    STOPPED.fetch_add(1, Ordering::Release);
    let mut pipe =
        libc::pollfd { fd: PIPE.load(Ordering::Relaxed), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which is this function's; poll is async-signal-safe.
    unsafe { libc::poll(&raw mut pipe, 1, STOP_MAX.as_millis() as libc::c_int) };
    RESUMED.fetch_add(1, Ordering::Release);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_stopped_thread_makes_no_progress_and_then_goes_on() {
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let target = OnceLock::new();
        // Also when an assertion fails: the scope waits for its threads.
        struct Done<'d>(&'d AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let _done = Done(&done);
            scope.spawn(|| {
                target.set(Target::this_thread()).ok().unwrap();
                while !done.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            let stopper = Stopper::get().unwrap();
            for _ in 0..3 {
                let start = Instant::now();
                // SAFETY: the thread ends when told to, below.
                unsafe {
                    stopper.while_stopped(*target.wait(), || {
                        let before = count.load(Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(1));
                        let after = count.load(Ordering::Relaxed);
                        // On a busy machine the stop may have ended by itself meanwhile.
                        assert!(after == before || start.elapsed() >= STOP_MAX);
                    });
                }
                let before = count.load(Ordering::Relaxed);
                let mut waiter = Waiter::default();
                while count.load(Ordering::Relaxed) == before {
                    waiter.pause();
                }
            }
        });
    }
}
