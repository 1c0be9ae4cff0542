//! The seam to the CPUs on Linux: restartable sequences, or locks, by CPU.

use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::AtomicU32;

use pagedepot::CpuId;
#[cfg(feature = "usdt")]
use pagedepot::cpus::Event;
use pagedepot::cpus::implement::{BlockArray, WordOffset};
use pagedepot::cpus::{Change, CpuLock, Cpus, Environment, FenceError, Here, Unusable, WhichCpu};
use pagedepot_rseq::{Area, CpuSet, RseqMissing, affinity, current_cpu, membarrier};

use crate::cpus::mixed::{MaybeSequences, SequencesAndLocks};
use crate::cpus::sequences::{self, NO_FRAME};
use crate::system::fork_mark::ForkMark;
use crate::system::prim;

/// The way in which a depot's threads reach the fronts of their CPU, and the reason why it is not a
/// faster one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fronts {
    /// Threads use restartable sequences; full drains fence CPUs with `membarrier`.
    Sequences,
    /// Threads use restartable sequences, and on isolated CPUs, or on [those that the builder
    /// names](crate::Builder::locked_cpus), a lock per CPU: drains take these fronts by the lock,
    /// and interrupt none of them.
    SequencesAndLocks {
        /// CPUs with sequences.
        sequences: u32,
        /// CPUs with locks.
        locks: u32,
    },
    /// Threads use restartable sequences, as [the builder](crate::Builder::locked_cpus) wants it
    /// although `membarrier` cannot fence: full drains take shelves only, and report as busy every
    /// CPU that is behind no lock and has pages in its fronts.
    SequencesWithoutFence,
    /// Threads use a lock per CPU, because the builder asked for it, or every CPU is isolated.
    Locks,
    /// Threads use a lock per CPU, because `membarrier` cannot fence.
    LocksWithoutFence,
    /// Threads use a lock per CPU, because this program has no rseq registration; [`RseqMissing`]
    /// says why.
    LocksWithoutRseq,
    /// Threads use a lock per CPU, because the kernel cannot wipe gates in forked children.
    LocksWithoutWipe,
    /// Threads use a lock per CPU, because the shared object with this code could be unloaded.
    LocksInUnloadable,
    /// Threads use restartable sequences, but on some CPUs alone: this process may use CPUs that
    /// have no caches. Threads on those take every page from the store.
    SequencesOnSome {
        /// CPUs with caches: those with lower numbers.
        cpus: u32,
        /// The highest CPU that the calling thread may use.
        highest: u32,
    },
    /// Threads use a lock per CPU, but on some CPUs alone: this process may use CPUs that have no
    /// caches.
    LocksOnSome {
        /// CPUs with caches: those with lower numbers.
        cpus: u32,
        /// The highest CPU that the calling thread may use.
        highest: u32,
    },
}

impl Fronts {
    /// Whether threads use restartable sequences, on some CPUs at least.
    pub const fn are_sequences(self) -> bool {
        matches!(
            self,
            Fronts::Sequences
                | Fronts::SequencesAndLocks { .. }
                | Fronts::SequencesWithoutFence
                | Fronts::SequencesOnSome { .. }
        )
    }

    /// Returns the way for `cpus` CPUs: another one if the calling thread may use a CPU that is not
    /// among the first `cpus`.
    pub(crate) fn on(self, cpus: u32) -> Self {
        let highest = affinity::allowed().ok().and_then(|allowed| allowed.highest());
        match highest.map(CpuId::get) {
            Some(highest) if highest >= cpus => match self.are_sequences() {
                true => Fronts::SequencesOnSome { cpus, highest },
                false => Fronts::LocksOnSome { cpus, highest },
            },
            _ => self,
        }
    }
}

impl fmt::Display for Fronts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fronts::Sequences => "restartable sequences",
            Fronts::SequencesAndLocks { sequences, locks } => {
                return write!(f, "restartable sequences on {sequences} CPUs, locks on {locks}");
            }
            Fronts::SequencesWithoutFence => {
                "restartable sequences, as asked for; full drains cannot take fronts: allow \
                 membarrier (Linux 5.10, seccomp), or do not call Builder::locked_cpus"
            }
            Fronts::Locks => "locks, as asked for or because every CPU is isolated",
            Fronts::LocksWithoutFence => {
                "locks: no fences; for restartable sequences allow membarrier (Linux 5.10, seccomp)"
            }
            Fronts::LocksWithoutRseq => {
                return match RseqMissing::find() {
                    Some(why) => write!(f, "locks: no restartable sequences: {why}"),
                    None => f.write_str(
                        "locks: restartable sequences could not be had or tried where this depot \
                         was made, although they can here: make it on a thread without a real-time \
                         policy",
                    ),
                };
            }
            Fronts::LocksWithoutWipe => "locks: the kernel has no MADV_WIPEONFORK (Linux 4.14)",
            Fronts::LocksInUnloadable => {
                "locks: the shared object with this code cannot be kept loaded; link it with -z \
                 nodelete"
            }
            Fronts::SequencesOnSome { cpus, highest } | Fronts::LocksOnSome { cpus, highest } => {
                let way = if self.are_sequences() { "restartable sequences" } else { "locks" };
                return write!(
                    f,
                    "{way}, on CPUs below {cpus} alone: CPU {highest}, which this process may use, \
                     caches nothing: give Builder::cpus at least {}",
                    u64::from(*highest) + 1
                );
            }
        })
    }
}

/// Facts that both kinds of fronts need.
pub struct Process<'m> {
    pub(crate) fork_mark: ForkMark<'m>,
    pub(crate) isolated: CpuSet,
    /// Told when a CPU's fronts were taken that a drain had asked for.
    pub(crate) on_handover: Option<fn(CpuId)>,
}

impl WhichCpu for Process<'_> {
    fn cpu(&self) -> Option<CpuId> {
        // Wiped gates keep a child out by themselves; without them every operation must look.
        if matches!(self.fork_mark, ForkMark::Pid(_)) {
            self.fork_mark.check().ok()?;
        }
        Some(current_cpu())
    }
}

impl Environment for Process<'_> {
    fn now_ms(&self) -> u64 {
        prim::now_ms()
    }

    fn is_isolated(&self, cpu: CpuId) -> bool {
        self.isolated.contains(cpu)
    }

    fn check_usable(&self) -> Result<(), Unusable> {
        self.fork_mark.check()
    }

    /// The thread pointer: a signal handler has that of the thread it interrupted, and reading it
    /// is no system call.
    #[inline(always)]
    fn caller(&self) -> Option<NonZeroUsize> {
        Some(thread_pointer())
    }

    fn wait(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        prim::wait(word, seen, limit_ms);
    }

    fn wake_all(&self, word: &AtomicU32) {
        prim::wake_all(word);
    }

    fn handed_over(&self, cpu: CpuId) {
        if let Some(tell) = self.on_handover {
            tell(cpu);
        }
    }

    #[cfg(feature = "usdt")]
    fn event(&self, event: Event) {
        crate::events::probes::fire(event);
    }
}

/// The calling thread's pointer to its own data, by one load: locks name their holders by it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn thread_pointer() -> NonZeroUsize {
    let pointer: usize;
    // SAFETY: the psABI has every thread's pointer, which is not null, at the start of the segment.
    unsafe {
        core::arch::asm!(
            "mov {pointer}, qword ptr fs:[0]",
            pointer = out(reg) pointer,
            options(pure, readonly, nostack, preserves_flags),
        );
        NonZeroUsize::new_unchecked(pointer)
    }
}

/// The calling thread's pointer to its own data, from its register.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn thread_pointer() -> NonZeroUsize {
    let pointer: usize;
    // SAFETY: reads a register that no thread has a null pointer in. Not `pure`: a stack that goes
    // on on another thread has that thread's pointer.
    unsafe {
        core::arch::asm!(
            "mrs {pointer}, tpidr_el0",
            pointer = out(reg) pointer,
            options(nomem, nostack, preserves_flags),
        );
        NonZeroUsize::new_unchecked(pointer)
    }
}

/// The calling thread's pointer to its own data.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
fn thread_pointer() -> NonZeroUsize {
    // SAFETY: reads a register; allowed in a handler.
    let pointer = unsafe { libc::pthread_self() } as usize;
    NonZeroUsize::new(pointer).expect("a thread has data of its own")
}

/// The CPUs of this process: the one seam between a depot and Linux. Threads reach the fronts of
/// some CPUs by sequences, and those of the others by locks.
pub type LinuxCpus<'m> = SequencesAndLocks<'m, Sequences, Process<'m>>;

/// The CPUs whose fronts the program wants behind locks.
#[derive(Clone, Debug)]
pub(crate) enum LockChoice {
    /// The fronts of isolated CPUs, and those of all where the system refuses to fence CPUs.
    Undisturbed,
    /// The fronts of these CPUs, whatever the system refuses.
    Cpus(CpuSet),
    /// All CPUs'.
    All,
}

/// Finds out how this process can reach its CPUs. `locks`: one for each CPU with caches.
///
/// Registers the process with `membarrier`, which is cheap while it has one thread and takes
/// milliseconds later.
pub(crate) fn find<'m>(
    locks: &'m mut [CpuLock],
    process: Process<'m>,
    locking: LockChoice,
) -> LinuxCpus<'m> {
    // The first call looks for symbols: a request may be in a signal handler, which must not.
    current_cpu();
    let cpus = locks.len() as u32;
    let Choice { fronts, area, locked } = choose(cpus, &process, locking);
    let is_behind_lock = |cpu| locked.as_ref().is_none_or(|locked| locked.contains(cpu));
    SequencesAndLocks::new(Sequences { area, fronts }, locks, process, is_behind_lock)
}

/// The result of [`choose`].
struct Choice {
    fronts: Fronts,
    /// `None`: threads run no sequences. With an area they do on CPUs behind locks, too, where
    /// their gates refuse them, and say where a thread is.
    area: Option<Area>,
    /// The CPUs behind locks. `None`: all.
    locked: Option<CpuSet>,
}

fn choose(cpus: u32, process: &Process<'_>, locking: LockChoice) -> Choice {
    let all_locked = |area, fronts| Choice { fronts, area, locked: None };
    if let LockChoice::All = locking {
        return all_locked(None, Fronts::Locks);
    }
    let area = match (process.fork_mark, Area::find()) {
        (_, None) => return all_locked(None, Fronts::LocksWithoutRseq),
        (ForkMark::Pid(_), _) => return all_locked(None, Fronts::LocksWithoutWipe),
        _ if !sequences::stay_loaded() => return all_locked(None, Fronts::LocksInUnloadable),
        (ForkMark::Wiped(_), Some(area)) => area,
    };
    let can_fence = membarrier::register().is_ok();
    let locked = match locking {
        LockChoice::Cpus(locked) => locked,
        _ if can_fence => process.isolated.clone(),
        _ => return all_locked(Some(area), Fronts::LocksWithoutFence),
    };
    let locks = (0..cpus).filter(|&cpu| locked.contains(CpuId::new(cpu))).count() as u32;
    let fronts = match cpus - locks {
        0 => return all_locked(Some(area), Fronts::Locks),
        _ if !can_fence => Fronts::SequencesWithoutFence,
        _ if locks == 0 => Fronts::Sequences,
        sequences => Fronts::SequencesAndLocks { sequences, locks },
    };
    Choice { fronts, area: Some(area), locked: Some(locked) }
}

/// The sequences of those CPUs that are behind no lock.
#[derive(Debug)]
pub struct Sequences {
    /// `None`: threads run no sequences.
    area: Option<Area>,
    fronts: Fronts,
}

impl Sequences {
    /// The threads' areas; `None`: threads run no sequences, and reach all fronts by locks.
    #[inline]
    pub(crate) fn area(&self) -> Option<Area> {
        self.area
    }

    /// The way in which threads reach the fronts of all CPUs.
    pub fn fronts(&self) -> Fronts {
        self.fronts
    }
}

impl Environment for Sequences {}

impl MaybeSequences for Sequences {
    #[inline(always)]
    fn exist(&self) -> bool {
        self.area.is_some()
    }
}

// SAFETY: 1., 2., 3. and 5. are the sequences' own doing (`sequences`): the kernel restarts one
// when anything else may have run on its CPU, signal handlers included. On AArch64 the word's
// address depends on the gate, and slots are left to fences and claims: no CPU is quiescent. 4.
// `membarrier` with FLAG_CPU interrupts the thread of this process that runs on the CPU, if any,
// which aborts its sequence; a thread that is not running was aborted when it was switched out; and
// it orders memory between that CPU and the caller. A claim is a sequence: when it commits, the
// sequences of that CPU before it have committed, on that CPU, or were aborted. Every thread that
// gets here has an area of its own, registered or with a negative `cpu_id`: a child of `vfork`,
// which has its parent's without a registration, may call nothing (see `pagedepot_rseq`). 6. Arrays
// and offsets are passed on to the sequences, which keep neither. 7. none of these CPUs is behind a
// lock.
unsafe impl Cpus for Sequences {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    const FOLLOWS_GATES: bool = true;

    #[inline]
    fn here(&self) -> Option<Here> {
        self.area.map(|area| Here::task(CpuId::new(area.cpu_id())))
    }

    #[inline(always)]
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        // One comparison for both ways, so that the caller's fast path has no other.
        let frame = match self.area {
            Some(area) => sequences::pop(area, blocks, word),
            None => NO_FRAME,
        };
        if sequences::is_none(frame) {
            return None;
        }
        // SAFETY: all other results are frames, which have 32 bits; told to the compiler, it saves
        // extending them again.
        unsafe { core::hint::assert_unchecked(frame <= u64::from(u32::MAX)) };
        Some(frame as u32)
    }

    #[inline(always)]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        match self.area {
            Some(area) => sequences::push(area, blocks, word, rounds_max, frame),
            None => false,
        }
    }

    #[inline(always)]
    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        // No closure: it would be a function of its own, to which the change goes through memory.
        match self.area {
            Some(area) => sequences::commit(area, blocks, here, change),
            None => false,
        }
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        match self.fronts {
            Fronts::SequencesWithoutFence => Err(FenceError::Refused),
            _ => membarrier::fence(cpu).map_err(|_| FenceError::Refused),
        }
    }
}
