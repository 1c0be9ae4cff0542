//! Processes that a measurement forks, and memory that it shares with them.
#![allow(unsafe_code, reason = "maps memory, and forks")]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use rustix::thread::futex;
use rustix::time::Timespec;

/// Values of a type in memory that forked children share, at the same address.
///
/// Each has been zero bytes, and is what it was made of since.
pub struct SharedSlice<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its values, as a box does.
unsafe impl<T: Send> Send for SharedSlice<T> {}
// SAFETY: it only hands out shared references.
unsafe impl<T: Sync> Sync for SharedSlice<T> {}

impl<T> SharedSlice<T> {
    /// Maps memory for `len` values, and makes each.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub fn new(len: usize, mut make: impl FnMut() -> T) -> io::Result<Self> {
        let bytes = Self::bytes(len);
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, prot, flags)? };
        let start = NonNull::new(start.cast::<T>()).expect("mappings are not at 0");
        assert!(start.is_aligned(), "no type needs more than a page");
        for nth in 0..len {
            // SAFETY: inside the mapping, which is aligned for `T`.
            unsafe { start.add(nth).write(make()) };
        }
        Ok(SharedSlice { start, len })
    }

    fn bytes(len: usize) -> usize {
        (len * size_of::<T>()).max(1)
    }
}

impl<T> SharedSlice<MaybeUninit<T>> {
    /// Maps memory for `len` values that are not there yet. The pages come as they are used.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub fn uninit(len: usize) -> io::Result<Self> {
        Self::new(len, MaybeUninit::uninit)
    }
}

impl<T> Deref for SharedSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: so many values were written there, and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for SharedSlice<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this process's own, and nothing refers to it any more. Values are
        // not dropped: other processes may use them.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), Self::bytes(self.len)) };
    }
}

/// A value in memory that forked children share.
pub struct Shared<T>(SharedSlice<T>);

impl<T> Shared<T> {
    /// Puts a value into such memory. It must not point to other memory.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub fn new(value: T) -> io::Result<Self> {
        let mut value = Some(value);
        SharedSlice::new(1, || value.take().expect("one value is made")).map(Shared)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0[0]
    }
}

/// A forked process. Dropping it kills it.
pub struct Child {
    pid: Pid,
    is_reaped: bool,
}

impl Child {
    /// Runs `program` in a new process, which ends with it: with code 0, or 101 if it panics. It
    /// is killed when the calling thread ends.
    ///
    /// # Errors
    /// When the system allows no more processes.
    pub fn fork(program: impl FnOnce()) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // SAFETY: the child allocates and makes threads, which C libraries of Linux allow after a
        // fork of a process whose other threads hold none of Rust's own locks; it ends by `_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                if rustix::process::getppid() != Some(parent) {
                    // The parent has ended already, and sends no signal any more.
                    // SAFETY: ends this process.
                    unsafe { libc::_exit(0) };
                }
                let ended = catch_unwind(AssertUnwindSafe(program));
                // SAFETY: ends this process without what the parent has to do at its end.
                unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) }
            }
            pid => Ok(Child { pid: Pid::from_raw(pid).expect("not 0"), is_reaped: false }),
        }
    }

    /// Sends a signal, if the process is still there.
    pub fn signal(&self, signal: Signal) {
        if !self.is_reaped {
            // It may have ended: then it is a zombie, and nothing happens.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Whether the process has ended by itself, and how.
    pub fn ended(&mut self) -> Option<WaitStatus> {
        self.wait_with(WaitOptions::NOHANG)
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self) -> Option<WaitStatus> {
        self.wait_with(WaitOptions::empty())
    }

    /// Waits until the process is stopped or has ended.
    pub fn wait_stopped(&mut self) -> Option<WaitStatus> {
        self.wait_with(WaitOptions::UNTRACED)
    }

    fn wait_with(&mut self, options: WaitOptions) -> Option<WaitStatus> {
        if self.is_reaped {
            return None;
        }
        let status = loop {
            match waitpid(Some(self.pid), options) {
                Ok(found) => break found?.1,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        };
        self.is_reaped = !status.stopped();
        Some(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}

/// Sleeps while a word that processes share is `seen`; a second at most.
pub fn sleep_while(word: &AtomicU32, seen: u32) {
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    // Woken, out of time, or interrupted: the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&limit));
}

/// Changes a word that processes share, and wakes all that sleep on it.
pub fn bump(word: &AtomicU32) -> u32 {
    // Release: pairs with the Acquire of those that look, for what was written before.
    let now = word.fetch_add(1, Ordering::Release).wrapping_add(1);
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_writes_what_its_parent_reads() {
        let word = Shared::new(AtomicU32::new(7)).unwrap();
        let mut child = Child::fork(|| word.store(8, Ordering::Relaxed)).unwrap();
        assert_eq!(child.wait().and_then(|status| status.exit_status()), Some(0));
        assert_eq!(word.load(Ordering::Relaxed), 8);
        let mut panics = Child::fork(|| assert_eq!(1, 2, "on purpose")).unwrap();
        assert_eq!(panics.wait().and_then(|status| status.exit_status()), Some(101));
        assert!(panics.ended().is_none(), "it was waited for");
    }

    #[test]
    fn a_child_is_killed_with_its_value() {
        let pid = {
            let child = Child::fork(|| std::thread::sleep(std::time::Duration::MAX)).unwrap();
            child.pid
        };
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
