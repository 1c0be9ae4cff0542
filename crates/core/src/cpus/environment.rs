//! Calls of the allocator to its surroundings besides sequences: a clock, CPUs to leave alone,
//! sleeping.

use core::num::NonZeroUsize;

use crate::frame::{CpuId, Order, ZoneId};
use crate::sync::prim::AtomicU32;
use crate::sync::spin_while;

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
pub trait Environment: Sync {
    /// A coarse clock in milliseconds for ages and decay; constant 0 where there is none.
    fn now_ms(&self) -> u64 {
        0
    }

    /// Whether a full drain should leave `cpu` alone: isolated, running a real-time task.
    fn is_isolated(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// Whether the allocator may be used from here. Asked once per slow path.
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
    /// and tells that caller from itself. `None`: unknown; such a request does not wait. By the
    /// name a handler's request also tells that the code below it has pages in its hands, for which
    /// it would sleep in vain.
    ///
    /// Asked where magazines move, and by operations of fronts behind a lock: it must be quick.
    fn caller(&self) -> Option<NonZeroUsize> {
        None
    }

    /// Waits while `word` is `seen`: until [`wake_all`](Self::wake_all), or about `limit_ms`
    /// milliseconds, or less, or not at all: the caller looks again. It may sleep, yield, halt
    /// until the next tick, or spin some 10 us as by default. Called only by requests that may
    /// reclaim, outside of sequences.
    ///
    /// The caller bounds its waiting by [`now_ms`](Self::now_ms); without a clock, each call counts
    /// as a millisecond.
    fn wait(&self, word: &AtomicU32, seen: u32, limit_ms: u32) {
        let _ = limit_ms;
        spin_while(word, seen);
    }

    /// Ends the waiting of all that [`wait`](Self::wait) for `word`.
    fn wake_all(&self, word: &AtomicU32) {
        let _ = word;
    }

    /// Told when a CPU's fronts have been taken that a [handover](crate::Mode::Handover) had asked
    /// for, by its owner or by a drainer. A kernel has a worker look at its
    /// [`Handover`](crate::Handover) then.
    ///
    /// Called by whatever code the CPU runs that allocates or frees, outside of sequences, also by
    /// requests that may not wait, by interrupt handlers and by signal handlers. It must be quick,
    /// and must not allocate or free. The same holds for [`wake_all`](Self::wake_all) while a
    /// caller is in [`Handover::wait`](crate::Handover::wait).
    fn handed_over(&self, cpu: CpuId) {
        let _ = cpu;
    }

    /// Told of each refill, spill, drain and failure, for static probes and tracers: once per
    /// magazine at most, never by a front.
    ///
    /// Called with pages in flight, by whatever code runs a slow path, interrupt and signal
    /// handlers included. It must be quick, and must not allocate or free.
    #[inline]
    fn event(&self, event: Event) {
        let _ = event;
    }
}
