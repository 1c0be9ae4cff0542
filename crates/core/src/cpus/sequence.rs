//! The sequences in Rust, for implementations whose exclusion holds for a whole function. One is
//! here: CPUs of an embedding kernel, whose guard proves that preemption is off and names the
//! context.
#![allow(unsafe_code, reason = "trusts its caller with CPUs and words")]

use super::environment::{Change, Cpus, Environment, FenceError};
use crate::frame::{CpuId, Pfn};
use crate::front::word::{ONE_ROUND, POP_STEP, PUSH_STEP, ROUNDS_MASK, SlotMove, Word};
use crate::front::{BlockArray, Context, Here, WordOffset, is_open};
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::sync::total::ASKS;
use core::mem::MaybeUninit;

/// Whether `here` has a block and its gate is open.
#[inline]
fn may_enter(blocks: &BlockArray, here: Here) -> bool {
    // Acquire: pairs with the Release of `ClosedGate::drop`; a sequence that sees the gate open
    // also sees the empty words its last drainer left.
    here.cpu.get() < blocks.cpus && is_open(blocks.gate(here.cpu).load(Ordering::Acquire))
}

/// A step whose value the compiler does not know. It would make a comparison with another constant
/// of the carry, and the addition would still be needed: two instructions more.
#[inline(always)]
fn as_operand(step: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    let step = crate::front::opaque(step as usize) as u64;
    step
}

/// Takes the newest block of a front of this CPU.
#[inline]
pub fn pop(blocks: &BlockArray, here: Here, offset: WordOffset) -> Option<u32> {
    // Where gates are followed, an open one leads to the block less `gates_from`.
    let bytes = offset.bytes() + blocks.context_bytes(here.context) + blocks.gates_from;
    // SAFETY: the CPU has a block, and an offset is of a word that is in it; the caller excludes
    // others.
    (here.cpu.get() < blocks.cpus).then(|| unsafe { pop_at(blocks, here.cpu, bytes) })?
}

/// Puts a block into a front of this CPU that holds at most `rounds_max`.
#[inline]
pub fn push(
    blocks: &BlockArray,
    here: Here,
    offset: WordOffset,
    rounds_max: u32,
    frame: u32,
) -> bool {
    // Where gates are followed, an open one leads to the block less `gates_from`.
    let bytes = offset.bytes() + blocks.context_bytes(here.context) + blocks.gates_from;
    let full_bytes = (u64::from(rounds_max) * ONE_ROUND) as u8;
    // SAFETY: as in `pop`.
    here.cpu.get() < blocks.cpus && unsafe { push_at(blocks, here.cpu, bytes, full_bytes, frame) }
}

/// A front of a CPU as the holder of that CPU's lock reaches it: by the CPU's number, because the
/// gate of a CPU that is [behind a lock](super::Cpus::is_behind_lock) shows no offset.
///
/// It is found before the lock is taken. Loads that follow a locked instruction wait for it.
pub struct LockedFront<'b> {
    blocks: BlockArray,
    gate: &'b AtomicU64,
    word: &'b AtomicU64,
}

impl<'b> LockedFront<'b> {
    /// The front at `word` of `cpu`; `None`: the CPU has no block.
    #[inline(always)]
    pub fn find(blocks: &'b BlockArray, cpu: CpuId, word: WordOffset) -> Option<Self> {
        (cpu.get() < blocks.cpus).then(|| LockedFront {
            blocks: *blocks,
            gate: blocks.gate(cpu),
            word: blocks.word(Here::task(cpu), word),
        })
    }

    /// The word, if the gate is open.
    #[inline(always)]
    fn enter(&self) -> Option<&'b AtomicU64> {
        // Acquire: as in `may_enter`.
        is_open(self.gate.load(Ordering::Acquire)).then_some(self.word)
    }

    /// Pops a block like [`pop`], under the lock of the CPU.
    #[inline(always)]
    pub fn pop(&self) -> Option<u32> {
        // SAFETY: the gate is open; the caller excludes others.
        unsafe { pop_word(&self.blocks, self.enter()?) }
    }

    /// Pushes a block like [`push`], under the lock of the CPU.
    #[inline(always)]
    pub fn push(&self, rounds_max: u32, frame: u32) -> bool {
        let full_bytes = (u64::from(rounds_max) * ONE_ROUND) as u8;
        // SAFETY: as in `pop`.
        self.enter().is_some_and(|word| unsafe { push_word(&self.blocks, word, full_bytes, frame) })
    }
}

/// Implements [`Cpus::commit`].
pub fn commit(blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
    let (at, old, new) = match change {
        Change::Word { at, old, new } => (at, old, new),
        Change::Take { at, batch, .. } | Change::Put { at, batch, .. } => {
            (at, batch.old.0, batch.new.0)
        }
        Change::Gate { old, new } => return claim_gate(blocks, here, old, new),
    };
    if !may_enter(blocks, here) {
        return false;
    }
    // Relaxed: only this CPU changes its words while its gate is open. Slots: as in `pop_at`.
    let cell = blocks.word(here, at);
    if cell.load(Ordering::Relaxed) != old {
        return false;
    }
    match change {
        Change::Take { batch, out, .. } => slots(blocks, batch)
            .enumerate()
            .for_each(|(place, slot)| out[place] = Pfn::new(slot.load(Ordering::Relaxed))),
        Change::Put { batch, frames, .. } => slots(blocks, batch)
            .enumerate()
            .for_each(|(place, slot)| slot.store(frames[place].get(), Ordering::Relaxed)),
        _ => {}
    }
    // Release: as in `push_at`; and no slot is read later than this.
    cell.store(new, Ordering::Release);
    true
}

/// The slots of a batch, in order.
fn slots<'b>(
    blocks: &'b BlockArray,
    batch: &SlotMove,
) -> impl Iterator<Item = &'b AtomicU32> + use<'b> {
    batch.runs.into_iter().flat_map(|run| {
        let slots = (run.at..).step_by(ONE_ROUND as usize).take(run.count as usize);
        // SAFETY: slots of magazines that the word names.
        slots.map(|slot| unsafe { blocks.slot(slot) })
    })
}

/// Commits a [`Change::Gate`].
fn claim_gate(blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
    // SeqCst: the claim is ordered after what the asker noted before it closed the gate.
    here.cpu.get() < blocks.cpus
        && blocks
            .gate(here.cpu)
            .compare_exchange(old, new, ASKS.change(), Ordering::Relaxed)
            .is_ok()
}

/// Pops a block like [`pop`], `bytes` into the block of `cpu`, and checks nothing that the caller
/// knows. A front without magazines is zero, which has no rounds, so that a word with rounds names
/// a slot.
///
/// # Safety
/// The CPU has a block; so far from what its open gate shows there is a front word of it; the
/// caller is excluded as from `pop`.
#[inline]
pub unsafe fn pop_at(blocks: &BlockArray, cpu: CpuId, bytes: usize) -> Option<u32> {
    // A copy: the compiler may not read the base once for a word and its slot across an acquire.
    let blocks = *blocks;
    // SAFETY: the caller's promise.
    unsafe { pop_word(&blocks, blocks.open_word(cpu, bytes)?) }
}

/// Takes the newest block of the front with this word.
///
/// # Safety
/// The word is a front's of this array whose gate the caller found open, and the caller is excluded
/// as from `pop`.
#[inline(always)]
unsafe fn pop_word(blocks: &BlockArray, cell: &AtomicU64) -> Option<u32> {
    // Relaxed, the slot below too: this CPU wrote both, or the refill that its slow path ran.
    let word = cell.load(Ordering::Relaxed);
    // Two branches, each never taken but once a magazine: cheaper than their conditions joined.
    if word & ROUNDS_MASK == 0 {
        core::hint::cold_path();
        return None;
    }
    let (next, had_credit) = word.overflowing_add(as_operand(POP_STEP));
    if !had_credit {
        core::hint::cold_path();
        return None;
    }
    // SAFETY: it has rounds, so there is a magazine.
    let slot = unsafe { blocks.slot(word as u32 - ONE_ROUND as u32) };
    let frame = slot.load(Ordering::Relaxed);
    // Release: as in `push_at`.
    cell.store(next, Ordering::Release);
    Some(frame)
}

/// Pops blocks like [`pop_at`], as many as there are, have credit and fit into `out`: the newest
/// first. Returns how many it has written.
///
/// One store of the word takes them all, so that it is one sequence: a drain finds all of them in
/// the magazine or none. The slots are read before that store (its release orders them), while the
/// magazine is this CPU's.
///
/// # Safety
/// Requires what [`pop_at`] requires.
#[inline]
pub unsafe fn pop_many_at(
    blocks: &BlockArray,
    cpu: CpuId,
    bytes: usize,
    out: &mut [MaybeUninit<Pfn>],
) -> usize {
    // A copy, as in `pop_at`.
    let blocks = *blocks;
    // SAFETY: the caller's promise.
    let Some(cell) = (unsafe { blocks.open_word(cpu, bytes) }) else { return 0 };
    // Relaxed: as in `pop_at`.
    let word = Word(cell.load(Ordering::Relaxed));
    let count = out.len().min(word.poppable() as usize);
    if count == 0 {
        core::hint::cold_path();
        return 0;
    }
    let mut at = word.0 as u32;
    for place in &mut out[..count] {
        at -= ONE_ROUND as u32;
        // SAFETY: the word has so many rounds, so there is a magazine with these slots.
        place.write(Pfn::new(unsafe { blocks.slot(at) }.load(Ordering::Relaxed)));
    }
    // Release: as in `push_at`; and no slot is read later than this.
    cell.store(word.popped_many(count as u32).0, Ordering::Release);
    count
}

/// Pushes a block like [`push`], `bytes` into the block of `cpu`, to a front whose full magazines
/// have slots of `full_bytes`: a front without magazines has no credit.
///
/// # Safety
/// Requires what [`pop_at`] requires.
#[inline]
pub unsafe fn push_at(
    blocks: &BlockArray,
    cpu: CpuId,
    bytes: usize,
    full_bytes: u8,
    frame: u32,
) -> bool {
    // A copy, as in `pop_at`.
    let blocks = *blocks;
    // SAFETY: the caller's promise.
    let Some(cell) = (unsafe { blocks.open_word(cpu, bytes) }) else { return false };
    // SAFETY: the word is that of the front.
    unsafe { push_word(&blocks, cell, full_bytes, frame) }
}

/// Puts a block into the front with this word, whose full magazines have slots of `full_bytes`.
///
/// # Safety
/// Requires what [`pop_word`] requires.
#[inline(always)]
unsafe fn push_word(blocks: &BlockArray, cell: &AtomicU64, full_bytes: u8, frame: u32) -> bool {
    // Relaxed: as in `pop_word`. The store of the word orders the slot's.
    let word = cell.load(Ordering::Relaxed);
    // The lowest byte, by itself.
    if (word & ROUNDS_MASK) as u8 >= full_bytes {
        core::hint::cold_path();
        return false;
    }
    let (next, had_credit) = word.overflowing_add(as_operand(PUSH_STEP));
    if !had_credit {
        core::hint::cold_path();
        return false;
    }
    // SAFETY: there is credit, so there is a magazine, and it has room.
    unsafe { blocks.slot(word as u32) }.store(frame, Ordering::Relaxed);
    // Release: pairs with the fence of a full drain and orders the slot before the word.
    cell.store(next, Ordering::Release);
    true
}

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
#[allow(unused_variables, reason = "a default needs none")]
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
        pop(blocks, guard.here(), word)
    }

    #[inline]
    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        push(blocks, guard.here(), word, rounds_max, frame)
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        let Some(guard) = self.0.pin() else { return false };
        let may_change = !matches!(change, Change::Gate { .. }) || guard.is_alone();
        guard.here() == here && may_change && commit(blocks, here, change)
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        self.0.fence(cpu)
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        self.0.is_quiescent(cpu)
    }
}
