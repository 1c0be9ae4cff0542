//! Signals that ask a program to end: they end the command that is recorded, not its recording.
//!
//! They stay blocked from the first moment on, so that none is lost before the command starts, and
//! are read from a descriptor (`signalfd(2)`). perf inherits the block for all but `SIGTERM`, which
//! it needs; the command starts without it.
//!
//! | a signal that came | does |
//! |---|---|
//! | before the command started | nothing is run; what was set up is taken down |
//! | while it ran, from a terminal | the terminal sent it to the command, too |
//! | while it ran, from a process | it is passed on to the command |
//! | after it ended | ends what this process does with the recording |

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::ptr::null_mut;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use pagedepot_cli::failure::Failure;

/// Signals that are sent to end a program, and that end it by default.
const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Time between two looks for a receiver that has not started yet.
const RETRY: Duration = Duration::from_millis(10);

/// The signals of this process, blocked.
pub struct Signals {
    /// The queue of `signalfd`, not blocking.
    queue: File,
    /// The last signal that asked this process to end.
    caught: Cell<Option<i32>>,
}

impl Signals {
    /// Blocks the signals in this thread, which must be the only one, and in threads started later.
    /// Signals that were ignored when this process began, as under `nohup`, stay ignored.
    ///
    /// # Errors
    /// Without a free descriptor.
    pub fn block() -> Result<Self, Failure> {
        let failed = |error| {
            Failure::Run(format!("cannot wait for signals: {error}; free some file descriptors"))
        };
        // SAFETY: plain structures, and valid signal numbers. The default for SIGCHLD is to do
        // nothing; were it ignored, the kernel would take away how children ended.
        let queue = unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let taken: Vec<_> = ENDING.into_iter().filter(|&signal| !is_ignored(signal)).collect();
            let set = set_of(taken.into_iter().chain([libc::SIGCHLD]));
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if queue < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that was just made, and that has no other owner.
        let queue = unsafe { File::from_raw_fd(queue) };
        Ok(Signals { queue, caught: Cell::new(None) })
    }

    /// Fails if a signal asked this process to end since the last look.
    ///
    /// # Errors
    /// [`Failure::Signal`].
    pub fn check(&self) -> Result<(), Failure> {
        let signal =
            self.ending().map_err(|error| Failure::Run(format!("cannot read signals: {error}")))?;
        match signal {
            Some(signal) => Err(Failure::Signal(signal.number)),
            None => Ok(()),
        }
    }

    /// Fails if a signal ever asked this process to end: for what ended early without saying why.
    ///
    /// # Errors
    /// [`Failure::Signal`].
    pub fn check_caught(&self) -> Result<(), Failure> {
        self.check()?;
        self.caught.get().map_or(Ok(()), |signal| Err(Failure::Signal(signal)))
    }

    /// Starts `command` and waits for its end. Signals go to the process that `receiver` names:
    /// until it names one, all that come; then those that a process sent to this one alone.
    ///
    /// # Errors
    /// When it cannot be started, and when signals cannot be read.
    pub fn run(
        &self,
        command: &mut Command,
        mut receiver: impl FnMut(&Child) -> Option<Pid>,
    ) -> io::Result<ExitStatus> {
        let mut child = command.spawn()?;
        let (mut owed, mut is_there) = (None, false);
        loop {
            while let Some(signal) = self.ending()? {
                // What a terminal sent before the receiver was there did not reach it.
                if signal.is_from_process || !is_there {
                    owed = Some(signal.number);
                }
            }
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if owed.is_some() || !is_there {
                let pid = receiver(&child);
                is_there = pid.is_some();
                if let Some((pid, signal)) = pid.zip(owed.and_then(Signal::from_named_raw)) {
                    // It may have ended, but its number is taken until it was waited for.
                    let _ = kill_process(pid, signal);
                    owed = None;
                }
            }
            let retry = Timespec { tv_sec: 0, tv_nsec: RETRY.as_nanos() as _ };
            let waits = if owed.is_some() || !is_there { Some(&retry) } else { None };
            poll(&mut [PollFd::new(&self.queue.as_fd(), PollFlags::IN)], waits)?;
        }
    }

    /// The next signal that asks this process to end, if one came.
    fn ending(&self) -> io::Result<Option<Ending>> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        loop {
            match (&self.queue).read(&mut info) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            // SAFETY: the kernel writes whole structures of plain numbers.
            let info: libc::signalfd_siginfo = unsafe { mem::transmute(info) };
            let number = info.ssi_signo as i32;
            if number != libc::SIGCHLD {
                self.caught.set(Some(number));
                return Ok(Some(Ending {
                    number,
                    is_from_process: info.ssi_code <= libc::SI_USER,
                }));
            }
        }
    }
}

struct Ending {
    number: i32,
    /// Whether a process sent the signal, and not the kernel, as with a terminal's.
    is_from_process: bool,
}

/// Lets `command` start with none of the signals blocked, and with the default action of the signal
/// that this program ignores.
pub fn unblock(command: &mut Command) {
    let all = set_of(ENDING.into_iter().chain([libc::SIGCHLD]));
    let unblock = move || {
        // SAFETY: the default needs no handler.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
        change_mask(libc::SIG_UNBLOCK, &all)
    };
    // SAFETY: between fork and exec; two system calls over the child's own memory.
    unsafe { command.pre_exec(unblock) };
}

/// Has perf start with the signals that end programs blocked: it stays until what it runs has
/// ended. But for `SIGTERM`: when perf fails, it sends that to a child of its own, and waits for
/// it.
pub fn keep_blocked(perf: &mut Command) {
    let needed = set_of([libc::SIGCHLD, libc::SIGTERM]);
    // SAFETY: as above.
    unsafe { perf.pre_exec(move || change_mask(libc::SIG_UNBLOCK, &needed)) };
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: a set of valid signals.
    match unsafe { libc::pthread_sigmask(how, set, null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn set_of(signals: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    // SAFETY: a plain structure, emptied before it is used; valid signal numbers.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a plain structure; without a new action the call only reports the old one.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
