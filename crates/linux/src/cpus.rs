//! The seam to the CPUs on Linux: restartable sequences, or locks for the whole depot.

use core::fmt;
use core::num::NonZeroUsize;
use core::sync::atomic::AtomicU32;

#[cfg(any(feature = "usdt", feature = "tracing"))]
use pagedepot::cpus::Event;
use pagedepot::cpus::implement::{BlockArray, SlotMove, WordOffset};
use pagedepot::cpus::{CpuLock, Cpus, Environment, FenceError, Here, Locked, Unusable, WhichCpu};
use pagedepot::{CpuId, Pfn};
use pagedepot_rseq::{Area, CpuSet, RseqMissing, affinity, membarrier};

use crate::fork_mark::ForkMark;
use crate::prim;
use crate::sequences::{self, NO_FRAME};

/// How a depot's threads reach the fronts of their CPU, and why it is not the faster way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fronts {
    /// By restartable sequences; full drains fence CPUs with `membarrier`.
    Sequences,
    /// By restartable sequences, but full drains take shelves only and report every CPU as busy,
    /// because `membarrier` cannot fence.
    SequencesWithoutFence,
    /// By a lock per CPU, because the builder asked for it.
    Locks,
    /// By a lock per CPU, because this program has no rseq registration; [`RseqMissing`] says why.
    LocksWithoutRseq,
    /// By a lock per CPU, because the kernel cannot wipe gates in forked children.
    LocksWithoutWipe,
    /// By a lock per CPU, because the shared object with this code could be unloaded.
    LocksInUnloadable,
    /// By restartable sequences, but on some CPUs alone: this process may use CPUs that have no
    /// caches. Threads on those take every page from the store.
    SequencesOnSome {
        /// CPUs with caches: those with lower numbers.
        cpus: u32,
        /// The highest CPU that the calling thread may use.
        highest: u32,
    },
    /// By a lock per CPU, but on some CPUs alone: this process may use CPUs that have no caches.
    LocksOnSome {
        /// CPUs with caches: those with lower numbers.
        cpus: u32,
        /// The highest CPU that the calling thread may use.
        highest: u32,
    },
}

impl Fronts {
    /// Whether threads use restartable sequences.
    pub const fn are_sequences(self) -> bool {
        matches!(
            self,
            Fronts::Sequences | Fronts::SequencesWithoutFence | Fronts::SequencesOnSome { .. }
        )
    }

    /// The same, unless the calling thread may use a CPU that is not among the first `cpus`.
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
            Fronts::SequencesWithoutFence => {
                "restartable sequences; full drains cannot take fronts: allow membarrier (Linux \
                 5.10, seccomp), or choose locks"
            }
            Fronts::Locks => "locks, as asked for",
            Fronts::LocksWithoutRseq => {
                return match RseqMissing::find() {
                    Some(why) => write!(f, "locks: no restartable sequences: {why}"),
                    // Of a depot in another process.
                    None => f.write_str("locks: no restartable sequences"),
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

/// What both kinds of fronts need to know.
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
        Some(CpuId::new(rustix::thread::sched_getcpu() as u32))
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
    fn caller(&self) -> Option<NonZeroUsize> {
        // SAFETY: reads a register; allowed in a handler.
        NonZeroUsize::new(unsafe { libc::pthread_self() } as usize)
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

    #[cfg(any(feature = "usdt", feature = "tracing"))]
    fn event(&self, event: Event) {
        #[cfg(feature = "usdt")]
        crate::probes::fire(event);
        #[cfg(feature = "tracing")]
        crate::tracing_events::emit(event);
    }
}

/// The CPUs of this process: the one seam between a depot and Linux.
///
/// All users of a depot go the same way: a lock front and a sequence front over the same word do
/// not exclude each other.
pub struct LinuxCpus<'m> {
    /// With an area, sequences; without, locks.
    area: Option<Area>,
    fronts: Fronts,
    locked: Locked<'m, Process<'m>>,
}

impl<'m> LinuxCpus<'m> {
    /// Finds out how this process can reach its CPUs. `locks`: one for each CPU with caches.
    ///
    /// Registers the process with `membarrier`, which is cheap while it has one thread and takes
    /// milliseconds later.
    pub(crate) fn new(locks: &'m [CpuLock], process: Process<'m>, by_choice: bool) -> Self {
        let area = Area::find();
        let fronts = match (by_choice, process.fork_mark, area) {
            (true, ..) => Fronts::Locks,
            (_, _, None) => Fronts::LocksWithoutRseq,
            (_, ForkMark::Pid(_), _) => Fronts::LocksWithoutWipe,
            _ if !sequences::stay_loaded() => Fronts::LocksInUnloadable,
            (_, ForkMark::Wiped(_), Some(_)) if membarrier::register().is_ok() => Fronts::Sequences,
            (_, ForkMark::Wiped(_), Some(_)) => Fronts::SequencesWithoutFence,
        };
        LinuxCpus {
            area: area.filter(|_| fronts.are_sequences()),
            fronts,
            locked: Locked::new(locks, process),
        }
    }

    /// Where a thread's area is; `None`: threads reach their fronts by locks.
    #[inline]
    pub(crate) fn area(&self) -> Option<Area> {
        self.area
    }

    /// How threads reach their fronts.
    pub fn fronts(&self) -> Fronts {
        self.fronts
    }
}

// SAFETY: with an area, 1., 2., 3. and 5. are the sequences' own doing (sequences/x86_64.rs): the
// kernel restarts one when anything else may have run on its CPU, signal handlers included. 4.
// `membarrier` with FLAG_CPU interrupts the thread of this process that runs on the CPU, if any,
// which aborts its sequence; a thread that is not running was aborted when it was switched out; and
// it orders memory between that CPU and the caller. A claim is a sequence: when it commits, the
// sequences of that CPU before it have committed, on that CPU, or were aborted. Every thread that
// gets here has an area of its own, registered or with a negative `cpu_id`: a child of `vfork`,
// which has its parent's without a registration, may call nothing (see `pagedepot_rseq`). Without
// an area all of it is `Locked`'s, with the same locks for all threads, since `area` never changes.
// 6. Arrays and offsets are passed on to the sequences, which keep neither.
unsafe impl<'m> Cpus for LinuxCpus<'m> {
    type Environment = Process<'m>;

    fn environment(&self) -> &Process<'m> {
        self.locked.environment()
    }

    /// As the sequences do; locks look.
    const FOLLOWS_GATES: bool = true;

    fn here(&self) -> Option<Here> {
        match self.area {
            Some(area) => Some(Here::task(CpuId::new(area.cpu_id()))),
            None => self.locked.here(),
        }
    }

    #[inline(always)]
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        // One comparison for both ways, so that the caller's fast path has no other.
        let frame = match self.area {
            Some(area) => sequences::pop(area, blocks, word),
            None => self.pop_locked(blocks, word),
        };
        if frame == NO_FRAME {
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
            None => self.push_locked(blocks, word, rounds_max, frame),
        }
    }

    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        match self.area {
            Some(area) => sequences::compare_store(area, blocks, here, word, old, new),
            None => self.locked.compare_store(blocks, here, word, old, new),
        }
    }

    fn take_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        out: &mut [Pfn],
    ) -> bool {
        match self.area {
            Some(area) => sequences::take_many(area, blocks, here, word, batch, out),
            None => self.locked.take_many(blocks, here, word, batch, out),
        }
    }

    fn put_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        frames: &[Pfn],
    ) -> bool {
        match self.area {
            Some(area) => sequences::put_many(area, blocks, here, word, batch, frames),
            None => self.locked.put_many(blocks, here, word, batch, frames),
        }
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        match self.area {
            Some(area) => sequences::claim_gate(area, blocks, here, old, new),
            None => self.locked.claim_gate(blocks, here, old, new),
        }
    }

    /// Whether a thread runs on a CPU is nothing that a program can know; whether a lock is free
    /// is.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        self.area.is_none() && self.locked.is_quiescent(cpu)
    }

    fn fence(&self, blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        match self.fronts {
            Fronts::Sequences => membarrier::fence(cpu).map_err(|_| FenceError::Refused),
            Fronts::SequencesWithoutFence => Err(FenceError::Refused),
            _ => self.locked.fence(blocks, cpu),
        }
    }
}

/// Out of line, so that a caller carries the sequence alone.
impl LinuxCpus<'_> {
    #[cold]
    #[inline(never)]
    fn pop_locked(&self, blocks: &BlockArray, word: WordOffset) -> u64 {
        self.locked.pop(blocks, word).map_or(NO_FRAME, u64::from)
    }

    #[cold]
    #[inline(never)]
    fn push_locked(
        &self,
        blocks: &BlockArray,
        word: WordOffset,
        rounds_max: u32,
        frame: u32,
    ) -> bool {
        self.locked.push(blocks, word, rounds_max, frame)
    }
}
