//! Finds out whether the kernel restarts sequences at all.
//!
//! Linux for AArch64 from 6.19 to 7.0.13, and the first candidates of 7.1, aborts no sequence of a
//! thread that is preempted, migrated or fenced (fixed by commit 411c1cf43039, "arm64/entry: Fix
//! arm64-specific rseq brokenness"). The registration works there, and each sequence commits, so
//! that two threads could take the same item. A distribution may have the fix in an older kernel,
//! and a kernel may call itself something else (`setarch --uname-2.6`). So where the release is not
//! known to be sound, a thread tries it: it waits in a sequence until another thread has fenced it.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::membarrier::register;
use crate::{Area, sequence};

/// The first release with restartable sequences: a kernel that has registered an area and calls
/// itself older is another one.
const FIRST: (u32, u32) = (4, 18);
/// Releases, from the first to before the second, that may restart no sequence.
const DOUBTFUL: [(u32, u32); 2] = [(6, 19), (7, 2)];
/// Loads of a word after which a thread in a sequence waits no longer: more than a tick of any
/// kernel, less than a second of any processor.
const LOADS_MAX: u32 = 1 << 26;

/// Whether the kernel restarts the sequences of this program's threads. `None`: it was tried twice
/// in vain, as where no thread can be started.
///
/// Cheap once it is known, and on releases that are known to be sound.
pub fn are_restarted(area: Area) -> Option<bool> {
    static RESTARTED: AtomicU8 = AtomicU8::new(UNKNOWN);
    let find = || is_fenced_thread_restarted(area).or_else(|| is_fenced_thread_restarted(area));
    known_or(&RESTARTED, || if release().is_some_and(is_sound) { Some(true) } else { find() })
}

/// States of what [`known_or`] keeps.
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Returns what `known` has, or what `find` finds, which is kept there. `None` is not kept.
fn known_or(known: &AtomicU8, find: impl FnOnce() -> Option<bool>) -> Option<bool> {
    // Relaxed, both: each thread finds the same, and nothing else depends on it.
    match known.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = find()?;
            known.store(if found { YES } else { NO }, Ordering::Relaxed);
            Some(found)
        }
        known => Some(known == YES),
    }
}

/// The kernel's release: its first two numbers. `None` if it has another form.
fn release() -> Option<(u32, u32)> {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the kernel writes strings to `names`, of which each ends in a 0, as zeroes do.
    let names = unsafe {
        libc::uname(names.as_mut_ptr());
        names.assume_init()
    };
    // SAFETY: a string that ends within its array.
    let release = unsafe { CStr::from_ptr(names.release.as_ptr()) };
    numbers(release.to_str().ok()?)
}

fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether every kernel of this release restarts sequences.
fn is_sound(release: (u32, u32)) -> bool {
    let [first, end] = DOUBTFUL;
    release >= FIRST && !(first..end).contains(&release)
}

/// Whether a fence aborts the sequence of a thread. `None` if that could not be tried.
fn is_fenced_thread_restarted(area: Area) -> Option<bool> {
    register().ok()?;
    let words = Words::default();
    std::thread::scope(|scope| {
        // The program's handlers do not run on a thread of this crate.
        let before = block_signals();
        let wait = || undisturbed(|| words.wait(area)).flatten();
        let waiting = std::thread::Builder::new().spawn_scoped(scope, wait);
        set_signals(&before);
        let waiting = waiting.ok()?;
        // Sleeps: a thread of SCHED_FIFO that only yields keeps others from its CPU. Relaxed, here
        // and in `Words::wait`: the words carry nothing but themselves.
        while words.entered.load(Ordering::Relaxed) == 0 && !waiting.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let fenced = membarrier(MembarrierCommand::PrivateExpeditedRseq);
        words.fenced.store(1, Ordering::Relaxed);
        let is_restarted = waiting.join().ok()?;
        fenced.ok().and(is_restarted)
    })
}

/// Words that a thread in a sequence and the thread that fences it share.
#[derive(Default)]
struct Words {
    /// The thread is in its sequence if this is not 0.
    entered: AtomicU32,
    /// The fence has returned if this is not 0.
    fenced: AtomicU32,
}

impl Words {
    /// Waits in a sequence for `fenced`. Whether the sequence was aborted; `None` if neither has
    /// happened for [`LOADS_MAX`] loads: under SCHED_FIFO on one CPU, the thread that fences runs
    /// only when this one no longer does.
    fn wait(&self, area: Area) -> Option<bool> {
        // SAFETY: the store before the commit is to a word that only tells that the sequence has
        // begun, which holds whether or not it is restarted. The loop ends, because it counts. This
        // code is part of the program that waits for the thread, and no child of `vfork` is here.
        unsafe {
            sequence!(
                area;
                body: "ldr {at:w}, [{area}, {CPU_ID}]",
                "mov {at:w}, 1",
                "str {at:w}, [{entered}]",
                "8: ldr {at:w}, [{fenced}]",
                "cbnz {at:w}, 9f",
                "sub {left:w}, {left:w}, 1",
                "cbnz {left:w}, 8b",
                "b {unfenced}",
                "9: str {at:w}, [{entered}]";
                aborted: "b {aborted}";
                entered = in(reg) self.entered.as_ptr(),
                fenced = in(reg) self.fenced.as_ptr(),
                left = inout(reg) LOADS_MAX => _,
                aborted = label { return Some(true) },
                unfenced = label { return None },
                options(nostack),
            );
        }
        Some(false)
    }
}

/// Runs `work` with every signal blocked: a handler's is another reason to abort a sequence, which
/// these kernels know. The C library leaves those out that it sends itself, such as one to every
/// thread for `setuid`, so the kernel is asked. They come after `work`. `None`: it is refused.
fn undisturbed<R>(work: impl FnOnce() -> R) -> Option<R> {
    let before = swap_kernel_mask(u64::MAX)?;
    let done = work();
    swap_kernel_mask(before)?;
    Some(done)
}

/// Blocks just the signals of a set, as the kernel has it. Returns those that were blocked before.
fn swap_kernel_mask(blocked: u64) -> Option<u64> {
    let mut before = 0_u64;
    let (from, to, bytes) = (&raw const blocked, &raw mut before, size_of::<u64>());
    // SAFETY: two sets of the kernel's size, of which it reads one and writes the other.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, from, to, bytes) };
    (result == 0).then_some(before)
}

/// Blocks the signals of this thread that are the program's. Returns those that were blocked
/// before.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::zeroed();
    let mut before = MaybeUninit::zeroed();
    // SAFETY: both are sets, written by the C library; sets of zeroes are empty ones.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn set_signals(blocked: &libc::sigset_t) {
    // SAFETY: a set that `block_signals` returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked, core::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::tests::unregister;
    use crate::skip::skip;

    #[test]
    fn only_sound_releases_are_not_tried() {
        for (name, expected) in [
            ("6.1.0-56-arm64", true),
            ("6.18.9", true),
            ("6.19.2", false),
            ("7.0.0-14-generic", false),
            ("7.1.0-rc2", false),
            ("7.2.1", true),
            ("7.3-arm64", true),
            // 6.19 under `setarch --uname-2.6`.
            ("2.6.79", false),
            ("unknown", false),
        ] {
            assert_eq!(numbers(name).is_some_and(is_sound), expected, "{name}");
        }
        assert!(release().is_some());
    }

    #[test]
    fn only_an_answer_is_kept() {
        for answer in [true, false] {
            let known = AtomicU8::new(UNKNOWN);
            assert_eq!(known_or(&known, || None), None);
            assert_eq!(known_or(&known, || Some(answer)), Some(answer));
            assert_eq!(known_or(&known, || panic!("it is known")), Some(answer));
        }
    }

    #[test]
    fn a_fenced_thread_is_restarted_here() {
        let Some(area) = Area::find() else {
            return skip("no rseq registration");
        };
        let tries: Vec<_> = (0..100).map(|_| is_fenced_thread_restarted(area)).collect();
        assert!(tries.contains(&Some(true)) && !tries.contains(&Some(false)), "{tries:?}");
    }

    /// Signals that the C library sends to all threads are blocked, too.
    #[test]
    fn no_signal_disturbs_a_try() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap()
        };
        let before = blocked();
        let unblockable = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        assert_eq!(undisturbed(blocked).map(|mask| mask | unblockable), Some(u64::MAX));
        assert_eq!(blocked(), before);
    }

    /// The thread that waits has the CPU as long as it likes: it inherits policy and CPUs of the
    /// one that fences. It gives up then.
    #[test]
    fn a_try_by_a_thread_of_real_time_with_one_cpu_ends() {
        let Some(area) = Area::find() else {
            return skip("no rseq registration");
        };
        std::thread::spawn(move || {
            crate::affinity::pin(crate::current_cpu()).unwrap();
            let first = libc::sched_param { sched_priority: 1 };
            // SAFETY: reads the parameters.
            if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) } != 0 {
                return skip("SCHED_FIFO is refused");
            }
            assert_ne!(is_fenced_thread_restarted(area), Some(false));
        })
        .join()
        .unwrap();
    }

    /// A thread without a registration is restarted by no kernel.
    #[test]
    fn a_thread_that_is_not_restarted_is_found() {
        let Some(area) = Area::find() else {
            return skip("no rseq registration");
        };
        let wait_once = || {
            let words = Words::default();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| unregister(area).then(|| words.wait(area)));
                while words.entered.load(Ordering::Relaxed) == 0 && !waiting.is_finished() {
                    std::thread::yield_now();
                }
                words.fenced.store(1, Ordering::Relaxed);
                waiting.join().unwrap()
            })
        };
        // The thread may give up while this one does not run.
        let mut tries = (0..10).map(|_| wait_once());
        match tries.find(|waited| *waited != Some(None)) {
            Some(Some(is_restarted)) => assert_eq!(is_restarted, Some(false)),
            Some(None) => skip("the registration stays"),
            None => panic!("ten threads have given up"),
        }
    }

    /// A thread that is neither aborted nor fenced leaves its sequence.
    #[test]
    fn a_thread_that_waits_in_vain_gives_up() {
        let Some(area) = Area::find() else {
            return skip("no rseq registration");
        };
        let wait = move || unregister(area).then(|| Words::default().wait(area));
        match std::thread::spawn(wait).join().unwrap() {
            Some(is_restarted) => assert_eq!(is_restarted, None),
            None => skip("the registration stays"),
        }
    }
}
