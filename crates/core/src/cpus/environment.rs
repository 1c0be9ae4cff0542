//! The traits by which code reaches the fronts of the CPU it runs on ([`Cpus`]), and the allocator
//! its surroundings otherwise ([`Environment`]): a clock, CPUs to leave alone, sleeping.
#![allow(unsafe_code, reason = "an implementation of sequences is a promise")]

use core::num::NonZeroUsize;

use crate::frame::{CpuId, Order, Pfn, ZoneId};
use crate::front::word::SlotMove;
use crate::front::{BlockArray, Here, WordOffset};
use crate::sync::prim::AtomicU32;
use crate::sync::spin_while;

/// The reason why a CPU could not be fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceError {
    /// The owner holds its fronts and did not leave them within the bound: it may be stopped.
    Busy,
    /// The environment has no means to fence that CPU, or refused to.
    Refused,
}

/// The way in which code reaches the fronts of the CPU it runs on.
///
/// # Safety
/// An implementation promises, for one [`BlockArray`]:
/// 1. [`pop`](Cpus::pop), [`push`](Cpus::push) and [`commit`](Cpus::commit) act on the fronts of
///    the CPU and context they run on, or fail. Each is one sequence as described above: between
///    its first load and its store no other sequence of the same CPU and context runs, whether from
///    a thread, a signal handler or an interrupt.
/// 2. Each but a [claim](Change::Gate) reads the CPU's gate inside the sequence, before the word,
///    and fails unless it [is open](super::implement::is_open). It does so with acquire ordering,
///    or reads the word at an address that depends on the gate. With
///    [`FOLLOWS_GATES`](Cpus::FOLLOWS_GATES) `pop` and `push` may take the word at the offset in
///    the gate's lower half instead.
/// 3. Each checks `cpu < blocks.cpus()` before it forms an address, and fails otherwise. With
///    `FOLLOWS_GATES` the lowest 16 bits of the number will do.
/// 4. [`fence`](Cpus::fence) returning `Ok` means what the vocabulary says, and so does
///    [`Change::Gate`] committed what stands there.
/// 5. The store that commits is a single 64-bit store. It releases the slots written before it, or,
///    on a CPU that never [is quiescent](Cpus::is_quiescent), leaves that to fences and claims.
/// 6. The array and the offsets that its methods are called with are used for these calls alone.
/// 7. On a CPU that [is behind a lock](Cpus::is_behind_lock) all methods go by that lock; `pop` and
///    `push` may fail there instead. [`pop_locked`](Cpus::pop_locked) and
///    [`push_locked`](Cpus::push_locked) keep promises 1 to 5, too. Which CPUs these are never
///    changes.
///
/// [`PinnedCpus`](super::PinnedCpus) and [`LockedCpus`](super::LockedCpus) are written in terms of
/// [`Guard`](super::Guard) and [`WhichCpu`](super::WhichCpu), which suffice for most embedders.
/// What a sequence of one's own needs is in [`implement`](super::implement), exempt from semantic
/// versioning.
#[allow(unused_variables, reason = "a default needs none")]
pub unsafe trait Cpus: Sync {
    /// Sets of fronts per CPU: 1 (tasks only) or 2 (interrupt handlers have their own).
    const CONTEXTS: usize = 1;

    /// Whether `pop` and `push` go where a gate leads, with no look at its state or at the bound of
    /// their CPU's number: closed gates lead to words that refuse. It saves a sequence two
    /// branches, and takes 512 KiB for the gates of numbers that no CPU has.
    /// [`Allocator::new`](crate::Allocator::new) writes zeroes there; an allocator that
    /// [is made](crate::Builder::build_zeroed) in memory which is zeroed already never touches
    /// them.
    const FOLLOWS_GATES: bool = false;

    /// The surroundings, for all but sequences.
    type Environment: Environment;

    /// The surroundings: see [`Environment`].
    fn environment(&self) -> &Self::Environment;

    /// The CPU and context of this code: a hint, stale as soon as it is read. `None`: nowhere that
    /// has fronts (a nested interrupt, a CPU beyond those configured); such callers use the store.
    fn here(&self) -> Option<Here>;

    /// Takes the newest frame of the front at `word` on this CPU, or `None` when the slow path
    /// must look: empty, gate closed, no credit left, CPU out of range.
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32>;

    /// Puts `frame` into the front at `word` on this CPU while it has fewer than `rounds_max`
    /// rounds. `false`: the slow path must look.
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool;

    /// Whether the fronts of `cpu` are reached by a lock alone, beside CPUs that are not: `pop` and
    /// `push` may fail there, and [`pop_locked`](Self::pop_locked) and
    /// [`push_locked`](Self::push_locked) do what they would. Such a CPU needs
    /// [`FOLLOWS_GATES`](Self::FOLLOWS_GATES): its gate leads sequences to words that refuse, and
    /// so those of the other CPUs need no check. The words of
    /// such a CPU are found by its number; its gate is open where it is positive.
    fn is_behind_lock(&self, cpu: CpuId) -> bool {
        false
    }

    /// Pops a block like [`pop`](Self::pop), on a CPU that [is behind a
    /// lock](Self::is_behind_lock); `None` also when the lock is taken. Fails on all others.
    #[inline]
    fn pop_locked(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        None
    }

    /// Pushes a block like [`push`](Self::push), on a CPU that [is behind a
    /// lock](Self::is_behind_lock); `false` also when the lock is taken. Fails on all others.
    #[inline]
    fn push_locked(
        &self,
        blocks: &BlockArray,
        word: WordOffset,
        rounds_max: u32,
        frame: u32,
    ) -> bool {
        false
    }

    /// Commits a change, if this code still runs at `here`: see [`Change`]. `false`: nothing has
    /// changed.
    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool;

    /// Waits until no sequence that began on `cpu` before this call can still commit. Called with
    /// the CPU's gate closed.
    ///
    /// # Errors
    /// When that cannot be had; then the caller touches nothing of that CPU's fronts.
    fn fence(&self, blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError>;

    /// Whether a fence of `cpu` disturbs what it runs: by an interrupt, or by a wait for it.
    /// `false` where a fence takes a lock. Drains fence such CPUs although they are
    /// [isolated](Environment::is_isolated), do not wait until these hand over, and count no fence.
    fn fence_disturbs(&self, cpu: CpuId) -> bool {
        true
    }

    /// Whether the calling thread has the lock of `cpu`: this is a handler above it. A fence of
    /// `cpu` fails until the handler has returned, so a request does not sleep for it.
    fn is_locked_by_caller(&self, cpu: CpuId) -> bool {
        false
    }

    /// Whether `cpu` is known to run no sequence now, and to start none before it sees the gate
    /// that the caller closed: halted, in user mode of an embedding kernel, never started.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        false
    }
}

/// A change that a sequence [commits](Cpus::commit) by its one store.
///
/// An implementation may fail all but [`Word`](Self::Word). Batches are then moved block by block,
/// owners never hand over, and [handovers](crate::Mode::Handover) take what is quiescent or fenced.
pub enum Change<'c> {
    /// A word becomes `new`, if the gate is open and the word is `old`.
    Word {
        /// The word's place.
        at: WordOffset,
        /// The word as it was read.
        old: u64,
        /// The word as it becomes.
        new: u64,
    },
    /// A word becomes the batch's new one, if the gate is open and the word is the batch's old one.
    /// Between this comparison and the store the sequence copies the blocks in the batch's slots to
    /// the beginning of `out`. After a failure what `out` has means nothing.
    Take {
        /// The word's place.
        at: WordOffset,
        /// The words, and the slots.
        batch: &'c SlotMove,
        /// Room for as many blocks as the batch has.
        out: &'c mut [Pfn],
    },
    /// A word becomes the batch's new one, as with [`Take`](Self::Take); the sequence copies the
    /// first of `frames` to the batch's slots.
    Put {
        /// The word's place.
        at: WordOffset,
        /// The words, and the slots.
        batch: &'c SlotMove,
        /// The blocks to put, at least as many as the batch has.
        frames: &'c [Pfn],
    },
    /// The gate of the CPU changes from `old` to `new` by a compare-and-swap that is a sequence of
    /// that CPU: it takes place only while this code runs there, and is the store that commits.
    /// Then of all sequences that began there before, in any context, each has committed, and its
    /// stores are visible to the caller, or will never commit.
    ///
    /// It fails when the gate is not `old`, or a sequence of that CPU has been interrupted and goes
    /// on later (this is a handler above it).
    Gate {
        /// The gate as it was read.
        old: u64,
        /// The gate as it becomes.
        new: u64,
    },
}

/// The reason why the allocator may not be used from here at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// This process is a fork of the one that made the allocator: its frames are the parent's.
    Forked,
}

/// An event of a slow path, for tracers; see [`Environment::event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Blocks came from the store to a CPU.
    Refill(Transfer),
    /// Blocks went from a CPU to the store, by code of that CPU or by decay.
    Spill(Transfer),
    /// Blocks went from a CPU to the store by a drain.
    Drain(Transfer),
    /// A request failed.
    Fail {
        /// The zone that it would have preferred.
        zone: ZoneId,
        /// Number of pages that it asked for.
        pages: u64,
    },
}

/// Blocks of one order that moved together between a CPU and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The CPU whose caches moved.
    pub cpu: CpuId,
    /// The zone of the blocks.
    pub zone: ZoneId,
    /// The order of each block.
    pub order: Order,
    /// Number of blocks that moved.
    pub blocks: u32,
}

impl Transfer {
    /// Pages in all blocks.
    pub fn pages(&self) -> u64 {
        u64::from(self.blocks) << self.order.get()
    }
}

/// The surroundings of an allocator. Every method has a default, for embedders without a clock,
/// isolated CPUs, forks and sleeping: `impl Environment for MyCpus {}`.
///
/// No method may panic: what the call has in hand at that moment would be lost.
#[allow(unused_variables, reason = "a default needs none")]
pub trait Environment: Sync {
    /// A coarse clock in milliseconds for ages and decay; constant 0 where there is none.
    fn now_ms(&self) -> u64 {
        0
    }

    /// Whether a full drain should leave `cpu` alone: isolated, running a real-time task.
    fn is_isolated(&self, cpu: CpuId) -> bool {
        false
    }

    /// Whether the allocator may be used from here. Asked once per slow path, and before each page
    /// that is zeroed.
    ///
    /// # Errors
    /// Why it may not.
    fn check_usable(&self) -> Result<(), Unusable> {
        Ok(())
    }

    /// A name for the thread that calls: any number that no other thread has meanwhile. Code that
    /// interrupts a thread and may reclaim, such as a signal handler, has that thread's name.
    ///
    /// With a name, a request that runs short waits while another caller runs a reclaim callback,
    /// and tells that caller from itself. `None`: unknown; such a request waits for no callback. By
    /// the name a handler's request also tells that the code below it has pages in its hands, for
    /// which it would sleep in vain.
    ///
    /// Callers that share a [`CpuLock`](super::CpuLock) all have names, or none has. A caller
    /// without a name that fails to take the lock may else have it name one that has left it, whose
    /// request then fails where it should wait.
    ///
    /// Asked where magazines move, and by operations of fronts behind a lock: it must be quick.
    fn caller(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Waits while `word` is `seen`: until [`wake_all`](Self::wake_all), or about `limit_ms`
    /// milliseconds, or less, or not at all: the caller looks again. It may sleep, yield, halt
    /// until the next tick, or spin some 10 us as by default. Called outside of sequences, only by
    /// requests that may reclaim and by [`Handover::wait`](crate::Handover::wait).
    ///
    /// The caller bounds its waiting by [`now_ms`](Self::now_ms); without a clock, each call counts
    /// as a millisecond.
    fn wait(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        spin_while(word, seen);
    }

    /// Ends the waiting of all that [`wait`](Self::wait) for `word`.
    fn wake_all(&self, word: &AtomicU32) {}

    /// Told when a CPU's fronts have been taken that a [handover](crate::Mode::Handover) had asked
    /// for, by its owner or by a drainer. A kernel has a worker look at its
    /// [`Handover`](crate::Handover) then.
    ///
    /// Called by whatever code the CPU runs that allocates or frees, outside of sequences, also by
    /// requests that may not wait, by interrupt handlers and by signal handlers. It must be quick,
    /// and must not allocate or free. The same holds for [`wake_all`](Self::wake_all) while a
    /// caller is in [`Handover::wait`](crate::Handover::wait).
    fn handed_over(&self, cpu: CpuId) {}

    /// Told of each refill, spill, drain and failure, for static probes and tracers: once per
    /// magazine at most, never by a front.
    ///
    /// Called with pages in flight, by whatever code runs a slow path, interrupt and signal
    /// handlers included. It must be quick, and must not allocate or free.
    #[inline]
    fn event(&self, event: Event) {}
}

/// Milliseconds that have gone by since `began_ms`; where there is no clock, the number of times
/// that the caller has looked or waited.
pub(crate) fn elapsed_ms(environment: &impl Environment, began_ms: u64, times: u32) -> u32 {
    match environment.now_ms() {
        0 => times,
        now_ms => u32::try_from(now_ms.saturating_sub(began_ms)).unwrap_or(u32::MAX),
    }
}
