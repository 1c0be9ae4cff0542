//! Signals in the middle of a thread's sequences: for the tests of this crate and of
//! `pagedepot-linux`.
#![allow(dead_code, reason = "each test uses some of it")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

pub type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Lets `handler` run for `signal`, on any thread.
///
/// # Safety
/// The handler calls only what is allowed in one.
pub unsafe fn install(signal: c_int, handler: Handler) {
    // SAFETY: the structure is initialised; the caller's promise.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// glibc's signature of abort labels.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;

/// Whether a signal aborted a sequence: its thread continues behind the signature of an abort
/// label.
///
/// # Safety
/// `context` is what the kernel passed to a [`Handler`], which has interrupted code.
pub unsafe fn has_aborted(context: *mut c_void) -> bool {
    // SAFETY: a ucontext, by the caller's promise; four bytes before code can be read.
    unsafe {
        let at = interrupted_at(&*context.cast::<libc::ucontext_t>()) as usize;
        std::ptr::with_exposed_provenance::<u32>(at - 4).read_unaligned() == SIGNATURE
    }
}

/// The address of the instruction that goes on after the handler.
#[cfg(target_arch = "x86_64")]
pub fn interrupted_at(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64
}

/// The address of the instruction that goes on after the handler.
#[cfg(target_arch = "aarch64")]
pub fn interrupted_at(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.pc
}

/// Sends a signal to the thread that made it, periodically, until it is dropped. (A timer of the
/// process would signal its first thread, which may sleep.)
pub struct Interrupts(libc::timer_t);

impl Interrupts {
    pub fn every(signal: c_int, interval: Duration) -> Self {
        let mut timer = std::ptr::null_mut();
        let interval = libc::timespec { tv_sec: 0, tv_nsec: interval.as_nanos() as _ };
        // SAFETY: makes a timer for the calling thread, which deletes it.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            let times = libc::itimerspec { it_interval: interval, it_value: interval };
            assert_eq!(libc::timer_settime(timer, 0, &times, std::ptr::null_mut()), 0);
        }
        Interrupts(timer)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // SAFETY: made by `every`.
        unsafe { libc::timer_delete(self.0) };
    }
}
