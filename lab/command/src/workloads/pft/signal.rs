//! `SIGBUS` of threads that touch missing pages. Holds `unsafe`: a signal handler.
//!
//! A server is called by the handler, on the thread whose touch faulted and in place of that touch:
//! nothing else of the thread is under way, so the server may do what a function called there may
//! do. A `SIGBUS` inside a server, and one that no server answers for, get the action that was
//! there before, which ends the process.

use std::cell::Cell;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

/// Puts pages where they are missing.
pub trait Server {
    /// Puts a page at this address. `false`: the address is none of its business.
    fn serve(&self, address: usize) -> bool;
}

thread_local! {
    /// The server of this thread's faults. Constant and without a destructor, so that a handler
    /// may read it.
    static SERVER: Cell<Option<NonNull<dyn Server>>> = const { Cell::new(None) };
}

/// The action that was there before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// The handler, until it is dropped.
pub struct Handler(());

impl Handler {
    /// Installs it for all threads.
    pub fn install() -> Self {
        // SAFETY: plain structures, for which zeroes will do; the handler does what the module
        // says. Without SA_ONSTACK it runs on the thread's own stack, which is large enough.
        unsafe {
            let mut before = std::mem::zeroed();
            let got = libc::sigaction(libc::SIGBUS, null(), &raw mut before);
            assert_eq!(got, 0, "SIGBUS exists");
            BEFORE.get_or_init(|| before);
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_sigbus as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO;
            let set = libc::sigaction(libc::SIGBUS, &raw const ours, null_mut());
            assert_eq!(set, 0, "SIGBUS can be handled");
        }
        Handler(())
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = BEFORE.get() {
        // SAFETY: an action that was in force before.
        unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
    }
}

/// Has `server` serve this thread's faults during `touch`.
pub fn served<S: Server>(server: &S, touch: impl FnOnce()) {
    let server: *const (dyn Server + '_) = server;
    // SAFETY: only the lifetime changes, and the pointer is forgotten before the server can go.
    let server = unsafe {
        std::mem::transmute::<*const (dyn Server + '_), *mut (dyn Server + 'static)>(server)
    };
    let _forget = Forget;
    SERVER.set(NonNull::new(server));
    // The handler runs on this thread: the compiler alone must not reorder.
    compiler_fence(Ordering::SeqCst);
    touch();
    compiler_fence(Ordering::SeqCst);
}

struct Forget;

impl Drop for Forget {
    fn drop(&mut self) {
        SERVER.set(None);
    }
}

extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes what SA_SIGINFO promises; a SIGBUS has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: `served` has the server alive while it is named there.
    let is_served = SERVER.get().is_some_and(|server| unsafe { server.as_ref() }.serve(address));
    if !is_served {
        // The touch is repeated, and gets the action that was there before.
        restore();
    }
}
