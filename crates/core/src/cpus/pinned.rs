//! CPUs of an embedding kernel: a guard proves that preemption is off and names the context.
#![allow(unsafe_code, reason = "a guard is a promise; implements sequences")]

use super::sequence;
use super::sequences::{Cpus, Environment, FenceError};
use crate::frame::{CpuId, Pfn};
use crate::front::word::SlotMove;
use crate::front::{BlockArray, Context, Here, WordOffset};

/// Proof that its holder cannot be preempted nor moved, and that no other code of the same CPU
/// and context runs while it lives.
///
/// # Safety
/// While a value lives, the code stays on [`here`](Guard::here), and nothing else that would get a
/// guard for the same CPU and context runs there. Interrupt handlers may run above a task guard,
/// one deep, if their own guards say [`Context::Interrupt`](crate::cpus::Context::Interrupt);
/// deeper nesting and non-maskable interrupts get no guard. [`is_alone`](Guard::is_alone) is `true`
/// only if no other guard of that CPU exists.
pub unsafe trait Guard {
    /// The CPU and context it proves.
    fn here(&self) -> Here;

    /// Whether no other guard of this CPU exists, in any context. By default a task's is alone (a
    /// handler above it has ended when the task goes on), and a handler's is not, because it may
    /// have interrupted a task that holds one. A kernel that counts its guards knows better, and
    /// its handlers then [hand over](crate::Mode::Handover) too.
    ///
    /// Where it is `true` and another guard exists, pages are handed out twice.
    fn is_alone(&self) -> bool {
        self.here().context == Context::Task
    }
}

/// The trait that an embedding kernel implements.
///
/// For one CPU whose interrupt handlers count how deep they nest, with all memory in statics:
/// ```
/// # #![allow(static_mut_refs)]
/// use core::mem::MaybeUninit;
/// use core::sync::atomic::{AtomicU32, Ordering};
/// use pagedepot::cpus::{Context, Environment, FenceError, Guard, Here, PinnedCpus, Processor};
/// use pagedepot::{
///     Allocator, Config, ConfigError, CpuId, Flags, FrameRange, NodeId, Order, Pfn, ZoneConfig,
/// };
///
/// static DEPTH: AtomicU32 = AtomicU32::new(0); // handlers add one, and take it off
/// static mut METADATA: [MaybeUninit<u8>; 64 << 10] = [MaybeUninit::uninit(); 64 << 10];
///
/// struct OneCpu;
/// struct Pin(Context);
///
/// // SAFETY: there is one CPU; a handler that comes while this one lives gets another context, or
/// // none.
/// unsafe impl Guard for Pin {
///     fn here(&self) -> Here {
///         Here { cpu: CpuId::new(0), context: self.0 }
///     }
/// }
///
/// // SAFETY: in a task, handlers have ended, and the caller of this holds no guard.
/// unsafe impl Processor for OneCpu {
///     type Guard = Pin;
///
///     fn pin(&self) -> Option<Pin> {
///         match DEPTH.load(Ordering::Relaxed) {
///             0 => Some(Pin(Context::Task)),
///             1 => Some(Pin(Context::Interrupt)),
///             _ => None,
///         }
///     }
///
///     fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
///         // A handler would wait for the task it interrupted.
///         if DEPTH.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(FenceError::Refused) }
///     }
/// }
///
/// impl Environment for OneCpu {}
///
/// type Depot = Allocator<'static, PinnedCpus<OneCpu>>;
///
/// fn boot() -> Result<Depot, ConfigError> {
///     let ranges = [FrameRange::new(Pfn::new(0), 2048)];
///     let normal = ZoneConfig {
///         name: "Normal", node: NodeId::new(0), level: 2, ranges: &ranges, watermarks: None,
///     };
///     let zones = [normal];
///     // SAFETY: called once.
///     Depot::new(&Config::new(1, &zones), unsafe { &mut METADATA }, PinnedCpus(OneCpu))
/// }
///
/// let depot = boot()?;
/// let pfn = depot.alloc(Order::BASE, Flags::default())?;
/// DEPTH.fetch_add(1, Ordering::Relaxed); // a handler begins
/// let other = depot.alloc(Order::BASE, Flags::default().atomic())?;
/// DEPTH.fetch_sub(1, Ordering::Relaxed);
/// assert_ne!(pfn, other);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// [`fence`](Processor::fence) returns `Ok` only when every guard for `cpu` that existed at the
/// call has been dropped, its stores being visible to the caller;
/// [`is_quiescent`](Processor::is_quiescent) returns `true` only when none exists and none will
/// before that CPU has seen every store the caller made before asking.
pub unsafe trait Processor: Environment {
    /// The guard.
    type Guard: Guard;

    /// Turns preemption off and says where this is; `None` in a nested interrupt or an NMI.
    fn pin(&self) -> Option<Self::Guard>;

    /// Waits until all guards of `cpu` that exist now are gone: a grace period, a scheduler's tick,
    /// an interrupt that the CPU acknowledges outside of any guard. A handler that acknowledges it
    /// may itself have interrupted a guard: then that must be waited for, too.
    ///
    /// # Errors
    /// When the kernel cannot or will not wait for that CPU.
    fn fence(&self, cpu: CpuId) -> Result<(), FenceError>;

    /// Whether `cpu` is halted or in user mode, and will pass a full barrier before it pins.
    fn is_quiescent(&self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }
}

/// Fronts reached under a [`Guard`]: plain loads and stores, with preemption off.
pub struct PinnedCpus<P>(pub P);

// SAFETY: 1. the guard excludes every other sequence of the CPU and context for the whole of each
// function; interrupt handlers have words and magazines of their own. 2., 3. checked first in each.
// 4. is the contract of `Processor::fence`, because a sequence lives inside its guard. A gate is
// claimed by the only guard of its CPU, so all sequences before have ended with theirs. 5. the
// only store to a word is the last, with release ordering.
unsafe impl<P: Processor> Cpus for PinnedCpus<P> {
    const CONTEXTS: usize = 2;
    type Environment = P;

    fn environment(&self) -> &P {
        &self.0
    }

    fn here(&self) -> Option<Here> {
        self.0.pin().map(|guard| guard.here())
    }

    #[inline]
    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        let guard = self.0.pin()?;
        sequence::pop(blocks, guard.here(), word)
    }

    #[inline]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        sequence::push(blocks, guard.here(), word, rounds_max, frame)
    }

    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        guard.here() == here && sequence::compare_store(blocks, here, word, old, new)
    }

    fn take_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        out: &mut [Pfn],
    ) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        guard.here() == here && sequence::take_many(blocks, here, word, batch, out)
    }

    fn put_many(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        batch: &SlotMove,
        frames: &[Pfn],
    ) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        guard.here() == here && sequence::put_many(blocks, here, word, batch, frames)
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        guard.here() == here && guard.is_alone() && sequence::claim_gate(blocks, here, old, new)
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        self.0.fence(cpu)
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        self.0.is_quiescent(cpu)
    }
}
