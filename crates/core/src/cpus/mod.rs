//! The seam between the allocator and whatever runs it: which CPU is this, and how does it reach
//! its own fronts so that nobody else's code comes in between.
//!
//! # Vocabulary
//! * *sequence*: load gate, load word, touch one slot, store word. It either commits by its one
//!   last store or has no effect on the word. Nothing else that runs on the same CPU and context
//!   may come between its loads and its store.
//! * *fence a CPU*: after [`Cpus::fence`] returns, a sequence that began on that CPU before the
//!   call has either committed, and its stores are visible to the caller, or never commits.
//! * *context*: [`Context::Task`] or [`Context::Interrupt`]. Each has fronts of its own, so that an
//!   interrupt handler that lands between a sequence's load and store finds other magazines.
//!
//! # Implementations
//! | type | exclusion | fence |
//! |---|---|---|
//! | `pagedepot_linux::Rseq` | the kernel restarts the sequence | `membarrier` |
//! | [`Pinned`] | an embedding kernel's guard: no preemption, one context | the kernel's own |
//! | [`Locked`] | a lock per CPU | taking that lock |

pub mod implement;
mod locked;
mod pinned;

pub use crate::front::{Context, Here};
pub use locked::{CpuLock, Locked, WhichCpu};
pub use pinned::{Guard, Pinned, Processor};

use core::num::NonZeroUsize;

use crate::frame::CpuId;
use crate::front::{BlockArray, WordOffset};
use crate::sync::prim::AtomicU32;
use crate::sync::spin_while;

/// Why a CPU could not be fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceError {
    /// The owner holds its fronts and did not leave them within the bound: it may be stopped.
    Busy,
    /// The environment has no means to fence that CPU, or refused to.
    Refused,
}

/// Why the allocator may not be used from here at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// This process is a fork of the one that made the allocator: its frames are the parent's.
    Forked,
}

/// How code reaches the fronts of the CPU it runs on.
///
/// # Safety
/// An implementation promises, for one [`BlockArray`]:
/// 1. [`pop`](Cpus::pop), [`push`](Cpus::push) and [`compare_store`](Cpus::compare_store) act on
///    the fronts of the CPU and context they run on (or fail), and each is one sequence as
///    described above: between its first load and its store no other sequence of the same CPU and
///    context runs, whether from a thread, a signal handler or an interrupt.
/// 2. Each reads the CPU's gate inside the sequence, before the word, with acquire ordering, and
///    fails unless it [is open](implement::is_open). With [`FOLLOWS_GATES`](Cpus::FOLLOWS_GATES)
///    `pop` and `push` may take the word at the offset in the gate's lower half instead.
/// 3. Each checks `cpu < blocks.cpus()` before it forms an address, and fails otherwise. With
///    `FOLLOWS_GATES` the lowest 16 bits of the number will do.
/// 4. [`fence`](Cpus::fence) returning `Ok` means what the vocabulary says.
/// 5. The store that commits is a single 64-bit store that releases the slot written before it.
///
/// 6. The array and the offsets that its methods are called with are used for these calls alone.
///
/// [`Pinned`] and [`Locked`] are written in terms of [`Guard`] and [`WhichCpu`], which suffice for
/// most embedders. What a sequence of one's own needs is in [`implement`], exempt from semantic
/// versioning.
pub unsafe trait Cpus: Sync {
    /// Sets of fronts per CPU: 1 (tasks only) or 2 (interrupt handlers have their own).
    const CONTEXTS: usize = 1;

    /// Whether `pop` and `push` go where a gate leads, with no look at its state or at the bound of
    /// their CPU's number: closed gates lead to words that refuse. It saves a sequence two
    /// branches, and takes 512 KiB for the gates of numbers that no CPU has.
    /// [`Allocator::new`](crate::Allocator::new) writes zeroes there; an allocator that
    /// [is made](crate::Allocator::new_zeroed) in memory which is zeroed already never touches
    /// them.
    const FOLLOWS_GATES: bool = false;

    /// Where this code runs: a hint, stale as soon as it is read. `None`: nowhere that has fronts
    /// (a nested interrupt, a CPU beyond those configured); such callers use the store.
    fn here(&self) -> Option<Here>;

    /// Takes the newest frame of the front at `word` on this CPU, or `None` when the slow path
    /// must look: empty, gate closed, no credit left, CPU out of range.
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32>;

    /// Puts `frame` into the front at `word` on this CPU while it has fewer than `rounds_max`
    /// rounds. `false`: the slow path must look.
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool;

    /// Stores `new` into the word if this code still runs at `here`, the gate is open and the
    /// word is `old`.
    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool;

    /// Waits until no sequence that began on `cpu` before this call can still commit. Called with
    /// the CPU's gate closed.
    ///
    /// # Errors
    /// When that cannot be had; then the caller touches nothing of that CPU's fronts.
    fn fence(&self, blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError>;

    /// Whether `cpu` is known to run no sequence now, and to start none before it sees the gate
    /// that the caller closed: halted, in user mode of an embedding kernel, never started.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// Whether a full drain should leave `cpu` alone: isolated, running a real-time task.
    fn is_isolated(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// A coarse clock in milliseconds for ages and decay; constant 0 where there is none.
    fn now_ms(&self) -> u64 {
        0
    }

    /// Whether the allocator may be used from here. Asked once per slow path.
    ///
    /// # Errors
    /// Why it may not.
    fn check_usable(&self) -> Result<(), Unusable> {
        Ok(())
    }

    /// A name for the thread that calls, any number that no other thread has meanwhile. Code that
    /// interrupts a thread and may reclaim, such as a signal handler, has that thread's name.
    ///
    /// With a name, a request that runs short waits while another caller runs a reclaim callback,
    /// and tells that caller from itself. `None`: unknown; such a request does not wait.
    fn caller(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Waits while `word` is `seen`: until [`wake_all`](Cpus::wake_all), or about `limit_ms`
    /// milliseconds, or less, or not at all: the caller looks again. Called by requests that may
    /// reclaim alone, outside of sequences.
    ///
    /// The caller bounds its waiting by [`now_ms`](Cpus::now_ms); without a clock, each call counts
    /// as a millisecond. By default it spins, some 10 us.
    fn wait(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        let _ = limit_ms;
        spin_while(word, seen);
    }

    /// Ends the waiting of all that [`wait`](Cpus::wait) for `word`.
    fn wake_all(&self, word: &AtomicU32) {
        let _ = word;
    }
}
