//! Threads of this crate.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::thread::JoinHandleExt as _;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// Signals that a thread gets for what it does itself. The kernel kills a process whose thread
/// blocks them then, whatever handler it has.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Whether a thread is the calling one. Unlike `std::thread::current`, this can be called in
/// destructors of C++ and functions of `atexit`, which run after those of thread-locals.
pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    // SAFETY: names the calling thread. The other one was not joined, so its number is its own.
    thread.as_pthread_t() == unsafe { libc::pthread_self() }
}

/// Starts a thread that blocks all signals, but for those of its own faults: the program's handlers
/// run on its own threads. What it starts begins with this mask.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: two sets of this function's, of which the second is written, and this thread's mask.
    let is_blocked = unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    // It begins with the mask of this one, so that there is no moment at which it has another.
    let thread = Builder::new().name(name.to_owned()).spawn(work);
    if is_blocked {
        // SAFETY: written above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    thread
}
