//! Whether a process of a segment has ended.
//!
//! | question | answered by | not by |
//! |---|---|---|
//! | has a process ended, or executed another program? | the lock of its slot: it belongs to an open file description (OFD) that the kernel closes with the one page that is mapped of it, which forked children do not get, or with the last descriptor of it, which they do (see `slots.rs`) | its number, which it keeps when it executes a program |
//! | has one ended whose child has the lock still? | its pidfd; its start time, for another process may have its number now, by the number that `/proc` has for the pidfd | in other namespaces: its number and its time mean something else there |
//!
//! A process that is stopped, traced or frozen has not ended. A zombie has: its memory is gone. A
//! thread that ends does not matter. A child that another thread forks while its parent joins may
//! get the lock; survivors in the parent's namespaces do not wait until that child has ended, too.
//!
//! Nothing here allocates memory: a request in a signal handler looks for dead processes, too.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open, stat};
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::slots::Identity;
use crate::system::numa::last_errno;

/// Offset of the lock of slot 0. Locks lie on bytes that the file need not have.
const LOCKS_AT: i64 = 1 << 40;

/// The locks of a segment, taken through an open file description that no other process shares.
#[derive(Clone, Copy)]
pub struct Locks<'f>(pub BorrowedFd<'f>);

impl Locks<'_> {
    /// Takes the lock of a slot, or of the door; `false`: another has it.
    pub fn take(self, place: usize) -> Result<bool, Errno> {
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, place) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Gives a lock back.
    pub fn release(self, place: usize) {
        // Cannot fail for a lock that is held.
        let _ = self.control(libc::F_OFD_SETLK, libc::F_UNLCK, place);
    }

    /// Whether another has a lock.
    pub fn is_held(self, place: usize) -> Result<bool, Errno> {
        let lock = self.control(libc::F_OFD_GETLK, libc::F_WRLCK, place)?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn control(self, command: i32, kind: i32, place: usize) -> Result<libc::flock, Errno> {
        // SAFETY: a structure of integers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = LOCKS_AT + place as i64;
        lock.l_len = 1;
        // SAFETY: the structure is read and written.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut lock) } {
            0 => Ok(lock),
            _ => Err(last_errno()),
        }
    }
}

/// The calling process.
pub fn identity() -> Identity {
    let pid = rustix::process::getpid();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Identity {
        pid: pid.as_raw_nonzero().get() as u64,
        start: start_time(c"/proc/self/stat").unwrap_or(0),
        namespaces: namespaces().unwrap_or(0),
        joined_at: now.map_or(0, |now| now.as_secs()),
    }
}

/// The numbers of this process's PID and time namespaces, 32 bits each.
fn namespaces() -> Option<u64> {
    let number = |path: &CStr| stat(path).map(|one| one.st_ino);
    // Before Linux 5.6 there are no time namespaces.
    let time = number(c"/proc/self/ns/time").unwrap_or(0);
    Some(number(c"/proc/self/ns/pid").ok()? & u64::from(u32::MAX) | time << 32)
}

/// Clock ticks from boot to the start of a process: field 22 of its `stat`, as the clock of the
/// reader's time namespace has it. The second field is in parentheses, and may have some itself.
fn start_time(stat: &CStr) -> Option<u64> {
    let mut buffer = [0; 1024];
    let behind_name = read_from(stat, &mut buffer)?.rsplit(|&byte| byte == b')').next()?;
    std::str::from_utf8(behind_name).ok()?.split_whitespace().nth(19)?.parse().ok()
}

/// The start of the process behind a descriptor. What is mounted on `/proc` may be of other
/// namespaces than this process, and know another by the number that it has here: the descriptor
/// has the number there.
fn start_time_of(pidfd: &OwnedFd) -> Option<u64> {
    let (mut path, mut buffer) = ([0; 48], [0; 512]);
    write!(&mut path[..], "/proc/thread-self/fdinfo/{}\0", pidfd.as_raw_fd()).ok()?;
    let text = read_from(CStr::from_bytes_until_nul(&path).ok()?, &mut buffer)?;
    let mut lines = std::str::from_utf8(text).ok()?.lines();
    let number = lines.find_map(|line| line.strip_prefix("Pid:"))?.trim();
    path = [0; 48];
    write!(&mut path[..], "/proc/{number}/stat\0").ok()?;
    start_time(CStr::from_bytes_until_nul(&path).ok()?)
}

/// The beginning of a file.
fn read_from<'b>(path: &CStr, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let length = read(&file, &mut *buffer).ok()?;
    buffer.get(..length)
}

/// Whether the process that described itself in a slot has ended, for all that can be known here:
/// `false` in doubt. Of the process itself its lock says nothing.
pub fn has_ended(process: Identity, locks: Locks<'_>, slot: usize) -> bool {
    locks.is_held(slot) == Ok(false) || has_exited(process)
}

/// Whether a process of this one's namespaces has exited. `false` in doubt.
pub fn has_exited(process: Identity) -> bool {
    if process.namespaces == 0 || namespaces() != Some(process.namespaces) {
        return false;
    }
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // INVAL, NOENT: the number is a process group's alone (before Linux 6.16), or a thread's.
        // A process that lives is found by its own number.
        Err(errno) => matches!(errno, Errno::SRCH | Errno::INVAL | Errno::NOENT),
        Ok(pidfd) => {
            // The descriptor is of the process that has the number now: compare first.
            let start = start_time_of(&pidfd);
            let is_other = process.start != 0 && start.is_some_and(|start| start != process.start);
            let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
            is_other || poll(&mut polled, Some(&rustix::time::Timespec::default())) == Ok(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_itself() {
        let own = identity();
        assert!(own.start > 0 && own.namespaces > 0);
        let [parent, this] = [rustix::process::getppid().unwrap(), rustix::process::getpid()];
        let starts = [parent, this].map(|pid| pidfd_open(pid, PidfdFlags::empty()).unwrap());
        let [parent, this] = starts.map(|pidfd| start_time_of(&pidfd).unwrap());
        assert!(parent <= own.start && this == own.start);
        assert!(!has_exited(own));
        assert!(has_exited(Identity { start: own.start - 1, ..own }), "another had its number");
        let elsewhere = own.namespaces ^ 1 << 32;
        assert!(!has_exited(Identity { start: 0, namespaces: elsewhere, ..own }));
    }

    /// A thread may have a table of descriptors of its own, with other processes at their numbers.
    #[test]
    fn a_process_is_found_by_a_descriptor_of_the_thread() {
        let numbers = [rustix::process::getppid().unwrap(), rustix::process::getpid()];
        let [mut one, this] = numbers.map(|pid| pidfd_open(pid, PidfdFlags::empty()).unwrap());
        std::thread::scope(|scope| {
            let look = || {
                // SAFETY: of this thread alone, which ends here.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
                rustix::io::dup2(&this, &mut one).unwrap();
                assert_eq!(start_time_of(&one), Some(identity().start));
            };
            scope.spawn(look).join().unwrap();
        });
    }
}
