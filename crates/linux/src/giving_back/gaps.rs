//! Moments at which no thread of this process runs on an isolated CPU.
//!
//! Dropping memory flushes the TLB of every CPU that runs the process, which interrupts an isolated
//! CPU unless it is idle then ([`system`](super::system)). A thread that works at some rate sleeps
//! in between. So the caller waits until such a thread has just fallen asleep: that leaves it the
//! whole gap. A thread that never sleeps leaves no gap.

use std::fs;
use std::time::Duration;

use pagedepot::CpuId;
use pagedepot_rseq::CpuSet;

use crate::system::prim::now_ms;

/// Milliseconds for which a list of threads serves. A thread that moves to an isolated CPU is
/// noticed that late.
const LIST_MS: u64 = 100;
/// Milliseconds after which a thread that sleeps is not expected to begin work at once.
const ASLEEP_MS: u64 = 2;
/// The pause between two looks at a thread.
const PAUSE: Duration = Duration::from_micros(20);

/// The threads that last ran on an isolated CPU.
pub(crate) struct Gaps<'c> {
    cpus: &'c CpuSet,
    threads: Vec<u32>,
    listed_ms: Option<u64>,
}

/// The place and state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ThreadState {
    /// The thread has ended.
    Gone,
    /// The CPU that the thread ran on last, and whether it is on a run queue.
    Known { is_running: bool, cpu: u32 },
    /// The system does not tell, as to a program that may open no more files.
    Unknown,
}

impl<'c> Gaps<'c> {
    /// The gaps of these CPUs. Without a CPU it is always a good moment.
    pub fn of(cpus: &'c CpuSet) -> Self {
        Gaps { cpus, threads: Vec::new(), listed_ms: None }
    }

    /// Waits for a gap, until `end_ms` of [`now_ms`] at most. Returns whether there is one now.
    pub fn wait(&mut self, end_ms: u64) -> bool {
        if self.cpus.is_empty() {
            return true;
        }
        if self.list().is_none() {
            return false;
        }
        let begin_ms = now_ms();
        let runs = |thread: &u32| times_run(*thread).unwrap_or_default();
        let before: Vec<u64> = self.threads.iter().map(runs).collect();
        loop {
            let has_run = || self.threads.iter().map(runs).ne(before.iter().copied());
            let is_rested = || now_ms().saturating_sub(begin_ms) >= ASLEEP_MS;
            // Looked at again behind what takes time: the thread may have begun to work meanwhile.
            if !self.is_any_running()
                && (has_run() || is_rested() || self.threads.is_empty())
                && !self.is_any_running()
            {
                return true;
            }
            if now_ms() >= end_ms {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Lists the threads now and then. `None`: the system does not tell which there are.
    fn list(&mut self) -> Option<()> {
        if self.listed_ms.is_some_and(|at_ms| now_ms().saturating_sub(at_ms) < LIST_MS) {
            return Some(());
        }
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        let all: Result<Vec<_>, _> = fs::read_dir("/proc/self/task").ok()?.collect();
        let threads = all.ok()?.into_iter().filter_map(number);
        self.threads = threads.filter(|&thread| self.may_be_there(thread, false)).collect();
        self.listed_ms = Some(now_ms());
        Some(())
    }

    fn is_any_running(&self) -> bool {
        self.threads.iter().any(|&thread| self.may_be_there(thread, true))
    }

    /// Whether a thread ran last on one of the CPUs, and, if asked for, runs there now.
    fn may_be_there(&self, thread: u32, now: bool) -> bool {
        match state(thread) {
            ThreadState::Gone => false,
            ThreadState::Known { is_running, cpu } => {
                (is_running || !now) && self.cpus.contains(CpuId::new(cpu))
            }
            ThreadState::Unknown => true,
        }
    }
}

/// The state of a thread of this process.
fn state(thread: u32) -> ThreadState {
    match fs::read(format!("/proc/self/task/{thread}/stat")) {
        // Lossy: the kernel cuts a name at 15 bytes, also inside a character.
        Ok(stat) => parse(&String::from_utf8_lossy(&stat)).unwrap_or(ThreadState::Unknown),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ThreadState::Gone,
            _ => ThreadState::Unknown,
        },
    }
}

/// Reads a `stat` (proc(5): field 3 is the state, 39 the CPU).
fn parse(stat: &str) -> Option<ThreadState> {
    // The name may contain anything, parentheses and spaces too.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_running = fields.next()? == "R";
    let cpu = fields.nth(39 - 4)?.trim().parse().ok()?;
    Some(ThreadState::Known { is_running, cpu })
}

/// The number of times that a thread got a CPU: the third number of `schedstat`. `None` where the
/// kernel does not count.
fn times_run(thread: u32) -> Option<u64> {
    let counts = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    counts.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use pagedepot_rseq::affinity;

    use super::*;
    use crate::system::prim::{AtomicBool, Ordering};

    #[test]
    fn the_cpu_and_state_of_a_thread() {
        let rest = "1 ".repeat(35);
        let line = |state: &str| format!("7 (a) R 3) {state} {rest}5 0 0\n");
        let on_5 = |is_running| Some(ThreadState::Known { is_running, cpu: 5 });
        assert_eq!((parse(&line("R")), parse(&line("S"))), (on_5(true), on_5(false)));
        assert_eq!(parse("7 (short) R 1 2"), None);
        // This very thread runs.
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let own = parse(&stat);
        assert!(
            matches!(own, Some(ThreadState::Known { is_running: true, cpu: ..4096 })),
            "{stat}"
        );
        assert_eq!(state(u32::MAX >> 1), ThreadState::Gone);
    }

    #[test]
    fn a_thread_that_never_sleeps_leaves_no_gap() {
        let here: CpuSet = affinity::allowed().unwrap();
        // The calling thread itself runs on one of them, whatever its name.
        for name in [c"plain", c"cut inside\u{e4}\u{e4}\u{e4}"] {
            // SAFETY: a text that ends.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            assert!(!Gaps::of(&here).wait(now_ms() + 5), "{name:?}");
        }
        assert!(Gaps::of(&CpuSet::new()).wait(0), "there is no isolated CPU");
    }

    /// A system that does not tell which threads there are leaves no gap: one may run.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn without_files_there_is_no_gap() {
        let here: CpuSet = affinity::allowed().unwrap();
        // SAFETY: the child sets its limit, looks, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: as above.
            unsafe {
                libc::setrlimit(libc::RLIMIT_NOFILE, &none);
                libc::_exit(i32::from(Gaps::of(&here).wait(now_ms() + 5)));
            }
        }
        let mut status = 0;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }

    /// A thread that begins to work while its state is read ends no wait.
    #[test]
    fn a_thread_that_sleeps_now_and_then_leaves_a_gap_each_time() {
        let mut cpus = affinity::allowed().unwrap().iter().collect::<Vec<_>>().into_iter();
        let (Some(own), Some(other)) = (cpus.next(), cpus.next()) else { return };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                affinity::pin(other).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_micros(100));
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_micros(100) {}
                }
            });
            let looks = scope.spawn(|| {
                affinity::pin(own).unwrap();
                let isolated = [other].into_iter().collect();
                let mut gaps = Gaps::of(&isolated);
                (0..500).filter(|_| gaps.wait(now_ms() + 10_000)).count()
            });
            let found = looks.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(found, 500);
        });
    }
}
