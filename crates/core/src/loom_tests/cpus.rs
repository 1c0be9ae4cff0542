//! CPUs as a model has them: restartable sequences step by step, guards of a kernel, and locks.
//!
//! # Restartable sequences
//! The kernel lets one thread run on a CPU at a time. It aborts a sequence whose thread loses the
//! CPU: to another thread, to a signal handler, by a migration, by a fence.
//!
//! A CPU of a model has an epoch. Each event that takes the CPU away from a thread adds one to it,
//! and a store of a sequence happens only while the epoch is the one that the sequence began with.
//! A thread that begins a sequence runs on that CPU, so the beginning is such an event for all
//! other threads on it.
//!
//! A thread outside of its sequences takes the CPU from no other thread here. A real thread could
//! have been moved to another CPU and back meanwhile, so all that a model explores can happen.
//!
//! # Guards and locks
//! [`Kernel`] is a processor for [`PinnedCpus`](crate::cpus::PinnedCpus) with interrupt handlers,
//! and [`locked`] is the real [`LockedCpus`] over locks of the model.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as Plain};

use loom::sync::{Mutex, MutexGuard};

use super::{Mutant, is_mutant};
use crate::cpus::{
    Change, Context, CpuLock, Cpus, Environment, FenceError, Guard, Here, LockedCpus, Processor,
    WhichCpu,
};
use crate::frame::{CpuId, Pfn};
use crate::front;
use crate::front::word::{ONE_ROUND, SlotMove, Word};
use crate::front::{BlockArray, WordOffset};
use crate::sync::prim::{self, AtomicU64, Ordering};

/// The place at which a thread of the model runs. The thread says so itself by [`run_on`]; a
/// model's scheduler changes it by [`Place::move_to`].
///
/// Not part of the model: it is read and written beside a step that is.
#[derive(Clone)]
pub struct Place(Arc<AtomicU32>);

/// Added to a CPU's number in a [`Place`]: an interrupt handler.
const HANDLER: u32 = 1 << 16;
/// The [`Place`] of code that has no fronts, such as a nested handler.
const NOWHERE: u32 = u32::MAX;

loom::thread_local! {
    static PLACE: Place = Place(Arc::new(AtomicU32::new(0)));
}

/// Makes the calling thread run on `cpu` from now on.
pub fn run_on(cpu: u32) {
    PLACE.with(|place| place.move_to(cpu));
}

/// Makes the calling thread an interrupt handler of `cpu` from now on.
pub fn run_as_handler_of(cpu: u32) {
    PLACE.with(|place| place.move_to(cpu | HANDLER));
}

/// Makes the calling thread code that has no fronts, such as a nested handler, from now on.
pub fn run_nowhere() {
    PLACE.with(|place| place.move_to(NOWHERE));
}

/// The place of the calling thread.
pub fn place() -> Place {
    PLACE.with(Place::clone)
}

impl Place {
    /// Makes the thread at this place run on `cpu` from now on.
    pub fn move_to(&self, cpu: u32) {
        self.0.store(cpu, Plain::Relaxed);
    }

    fn here(&self) -> Option<Here> {
        let number = self.0.load(Plain::Relaxed);
        let context = if number & HANDLER == 0 { Context::Task } else { Context::Interrupt };
        (number != NOWHERE).then(|| Here { cpu: CpuId::new(number & !HANDLER), context })
    }
}

fn here() -> Option<Here> {
    PLACE.with(Place::here)
}

fn cpu_here() -> CpuId {
    here().expect("a thread on a CPU").cpu
}

/// Restartable sequences that look at their gate.
pub type Rseq = Sequences<false>;
/// Restartable sequences that go where their gate leads, as those in assembly do.
pub type RseqFollowing = Sequences<true>;

/// Restartable sequences; with `FOLLOWS` they [follow gates](Cpus::FOLLOWS_GATES).
pub struct Sequences<const FOLLOWS: bool> {
    epochs: Vec<Mutex<u64>>,
}

/// A sequence that has begun.
#[derive(Clone, Copy)]
struct Begun {
    cpu: CpuId,
    epoch: u64,
}

struct Aborted;

impl<const FOLLOWS: bool> Sequences<FOLLOWS> {
    /// Makes sequences for CPUs 0 to `cpus - 1`; the allocator may have fewer.
    pub fn new(cpus: u32) -> Self {
        Sequences { epochs: (0..cpus).map(|_| Mutex::new(0)).collect() }
    }

    /// Interrupts the sequence that runs on `cpu`, as a preemption, a signal or a fence does.
    pub fn interrupt(&self, cpu: CpuId) {
        *self.epochs[cpu.index()].lock().unwrap() += 1;
    }

    /// Moves the thread at `place` to CPU `to`, as a scheduler does.
    pub fn migrate(&self, place: &Place, to: CpuId) {
        let from = place.here().expect("a thread on a CPU").cpu;
        let mut epoch = self.epochs[from.index()].lock().unwrap();
        *epoch += 1;
        place.move_to(to.get());
    }

    fn begin(&self) -> Begun {
        loop {
            let cpu = cpu_here();
            let mut epoch = self.epochs[cpu.index()].lock().unwrap();
            // The scheduler may have moved this thread before it had the lock.
            if cpu == cpu_here() {
                if !is_mutant(Mutant::NoPreemption) {
                    *epoch += 1;
                }
                return Begun { cpu, epoch: *epoch };
            }
        }
    }

    /// One instruction of a sequence that writes, unless the sequence has been aborted.
    fn step(&self, begun: Begun, store: impl FnOnce()) -> Result<(), Aborted> {
        let epoch = self.epochs[begun.cpu.index()].lock().unwrap();
        if *epoch != begun.epoch {
            return Err(Aborted);
        }
        store();
        Ok(())
    }

    /// Whether a sequence that begins with this word finds it.
    fn finds(
        &self,
        blocks: &BlockArray,
        begun: Begun,
        here: Here,
        offset: WordOffset,
        old: u64,
    ) -> bool {
        begun.cpu == here.cpu
            && is_open(blocks, begun.cpu)
            && blocks.word(here, offset).load(Ordering::Relaxed) == old
    }

    fn end(&self, begun: Begun, cell: &AtomicU64, word: u64) -> Result<(), Aborted> {
        self.step(begun, || cell.store(word, Ordering::Release))
    }

    fn store(
        &self,
        blocks: &BlockArray,
        here: Here,
        offset: WordOffset,
        (old, new): (u64, u64),
    ) -> bool {
        let begun = self.begin();
        self.finds(blocks, begun, here, offset, old)
            && self.end(begun, blocks.word(here, offset), new).is_ok()
    }

    fn take(
        &self,
        blocks: &BlockArray,
        here: Here,
        offset: WordOffset,
        batch: &SlotMove,
        out: &mut [Pfn],
    ) -> bool {
        let late = is_mutant(Mutant::CopiesLate);
        let mut places = out.iter_mut();
        let mut copy = |slot: &prim::AtomicU32| {
            *places.next().unwrap() = Pfn::new(slot.load(Ordering::Relaxed));
        };
        let begun = self.begin();
        if !self.finds(blocks, begun, here, offset, batch.old.0) {
            return false;
        }
        if !late {
            slots(blocks, batch).for_each(&mut copy);
        }
        let done = self.end(begun, blocks.word(here, offset), batch.new.0).is_ok();
        if late {
            slots(blocks, batch).for_each(copy);
        }
        done
    }

    fn put(
        &self,
        blocks: &BlockArray,
        here: Here,
        offset: WordOffset,
        batch: &SlotMove,
        frames: &[Pfn],
    ) -> bool {
        let begun = self.begin();
        self.finds(blocks, begun, here, offset, batch.old.0)
            && slots(blocks, batch).zip(frames).all(|(slot, frame)| {
                self.step(begun, || slot.store(frame.get(), Ordering::Relaxed)).is_ok()
            })
            && self.end(begun, blocks.word(here, offset), batch.new.0).is_ok()
    }

    fn claim(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        let claim = || {
            let gate = blocks.gate(here.cpu);
            gate.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        if is_mutant(Mutant::ClaimsAnywhere) {
            return claim();
        }
        let begun = self.begin();
        let mut is_claimed = false;
        begun.cpu == here.cpu && self.step(begun, || is_claimed = claim()).is_ok() && is_claimed
    }

    /// Runs a sequence on the word at `offset`. An abort is reported as "look closer", as the
    /// sequences in assembly report it.
    fn run<'b, R>(
        &self,
        blocks: &'b BlockArray,
        offset: WordOffset,
        sequence: impl FnOnce(Begun, &'b AtomicU64) -> Result<Option<R>, Aborted>,
    ) -> Option<R> {
        let early =
            is_mutant(Mutant::GateReadEarly).then(|| Self::enter(blocks, cpu_here(), offset));
        let begun = self.begin();
        let cell = early.unwrap_or_else(|| Self::enter(blocks, begun.cpu, offset))?;
        sequence(begun, cell).unwrap_or(None)
    }

    /// The word that a sequence finds through the gate of `cpu`.
    fn enter(blocks: &BlockArray, cpu: CpuId, offset: WordOffset) -> Option<&AtomicU64> {
        if FOLLOWS {
            return Some(blocks.followed(cpu.get(), offset));
        }
        is_open(blocks, cpu).then(|| blocks.word(Here::task(cpu), offset))
    }
}

/// The slots of a batch, in the order of its blocks.
fn slots<'b>(
    blocks: &'b BlockArray,
    batch: &SlotMove,
) -> impl Iterator<Item = &'b prim::AtomicU32> + use<'b> {
    batch.runs.into_iter().flat_map(move |run| {
        // SAFETY: of magazines that the batch's word names.
        (0..run.count).map(move |i| unsafe { blocks.slot(run.at + i * ONE_ROUND as u32) })
    })
}

fn is_open(blocks: &BlockArray, cpu: CpuId) -> bool {
    cpu.get() < blocks.cpus && front::is_open(blocks.gate(cpu).load(Ordering::Acquire))
}

// SAFETY: a store of a sequence fails when another sequence of the same CPU, a migration or a fence
// came in between. Sequences that follow gates find words that refuse behind closed ones.
unsafe impl<const FOLLOWS: bool> Cpus for Sequences<FOLLOWS> {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    const FOLLOWS_GATES: bool = FOLLOWS;

    fn here(&self) -> Option<Here> {
        here()
    }

    fn pop(&self, blocks: &BlockArray, offset: WordOffset) -> Option<u32> {
        self.run(blocks, offset, |begun, cell| {
            let Some((loaded, slot, next)) = Word(cell.load(Ordering::Relaxed)).popped() else {
                return Ok(None);
            };
            let frame = blocks.magazine(loaded).slots[slot as usize].load(Ordering::Relaxed);
            self.end(begun, cell, next.0)?;
            Ok(Some(frame))
        })
    }

    fn push(&self, blocks: &BlockArray, offset: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let pushed = self.run(blocks, offset, |begun, cell| {
            let word = Word(cell.load(Ordering::Relaxed));
            let Some((loaded, slot, next)) = word.pushed(rounds_max) else {
                return Ok(None);
            };
            let slot = &blocks.magazine(loaded).slots[slot as usize];
            self.step(begun, || slot.store(frame, Ordering::Relaxed))?;
            self.end(begun, cell, next.0)?;
            Ok(Some(()))
        });
        pushed.is_some()
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        match change {
            Change::Word { at, old, new } => self.store(blocks, here, at, (old, new)),
            Change::Take { at, batch, out } => self.take(blocks, here, at, batch, out),
            Change::Put { at, batch, frames } => self.put(blocks, here, at, batch, frames),
            Change::Gate { old, new } => self.claim(blocks, here, old, new),
        }
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        if !is_mutant(Mutant::NoFence) {
            self.interrupt(cpu);
        }
        Ok(())
    }
}

impl<const FOLLOWS: bool> Environment for Sequences<FOLLOWS> {
    fn handed_over(&self, _: CpuId) {
        HANDED_OVER.set(HANDED_OVER.get() + 1);
    }
}

std::thread_local! {
    static HANDED_OVER: Cell<u64> = const { Cell::new(0) };
}

/// Number of answered asks of CPUs with sequences, over all executions of a test.
pub fn handed_over() -> u64 {
    HANDED_OVER.get()
}

/// A kernel: a thread with a guard has its CPU and context to itself. Interrupt handlers run beside
/// the task they interrupted. That interleaves in more ways than a real handler, which ends first.
pub struct Kernel {
    /// Locks by CPU and context.
    held: Vec<[Mutex<()>; 2]>,
}

impl Kernel {
    pub fn new(cpus: u32) -> Self {
        Kernel { held: (0..cpus).map(|_| [Mutex::new(()), Mutex::new(())]).collect() }
    }
}

/// A guard of a [`Kernel`], which outlives the guard.
pub struct Pin {
    here: Here,
    _held: Option<MutexGuard<'static, ()>>,
    /// The mutex of the CPU's other context, and what holds it once this guard is known to be
    /// alone.
    other: &'static Mutex<()>,
    _alone: Cell<Option<MutexGuard<'static, ()>>>,
}

// SAFETY: the mutex of the CPU and context is held, unless a mutant leaves that out.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        self.here
    }

    /// A kernel that counts guards. The model's handlers run beside the task, so it keeps the other
    /// context out until this guard is dropped.
    fn is_alone(&self) -> bool {
        if is_mutant(Mutant::ClaimsAnywhere) {
            return true;
        }
        let other = self.other.try_lock().ok();
        let is_alone = other.is_some();
        self._alone.set(other);
        is_alone
    }
}

// SAFETY: a fence waits for both mutexes of the CPU.
unsafe impl Processor for Kernel {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        let here = here()?;
        let other = &self.held[here.cpu.index()][1 - here.context as usize];
        // SAFETY: guards are local to calls of the allocator, which owns the kernel.
        let other = unsafe { std::mem::transmute::<&Mutex<()>, &'static Mutex<()>>(other) };
        let _alone = Cell::new(None);
        // The mutant: a handler that says it is the task it interrupted, and does not wait for it.
        if is_mutant(Mutant::OneContext) && here.context == Context::Interrupt {
            return Some(Pin { here: Here::task(here.cpu), _held: None, other, _alone });
        }
        let held = self.held[here.cpu.index()][here.context as usize].lock().unwrap();
        // SAFETY: guards are local to calls of the allocator, which owns the kernel.
        let held =
            unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
        Some(Pin { here, _held: Some(held), other, _alone })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        if !is_mutant(Mutant::NoFence) {
            self.held[cpu.index()].iter().for_each(|held| drop(held.lock().unwrap()));
        }
        Ok(())
    }
}

impl Environment for Kernel {}

/// The CPU on which a thread of a lock front believes to run.
pub struct Believed;

impl WhichCpu for Believed {
    fn cpu(&self) -> Option<CpuId> {
        here().map(|here| here.cpu)
    }
}

impl Environment for Believed {}

/// [`LockedCpus`], and what mutants leave out of it.
pub struct Locks<const FOLLOWS: bool> {
    front: LockedCpus<'static, Believed>,
    /// Another set of locks, which excludes no user of the first.
    other: LockedCpus<'static, Believed>,
}

/// A lock front for `cpus` CPUs, and its locks, which must outlive it.
pub fn locked<const FOLLOWS: bool>(cpus: u32) -> (Locks<FOLLOWS>, Box<dyn Any>) {
    let locks: Arc<[CpuLock]> = (0..2 * cpus).map(|_| CpuLock::new()).collect();
    // SAFETY: the caller keeps the locks longer than the front, and they do not move.
    let all = unsafe { &*Arc::as_ptr(&locks) };
    let [front, other] =
        <[_; 2]>::from(all.split_at(cpus as usize)).map(|set| LockedCpus::new(set, Believed));
    (Locks { front, other }, Box::new(locks))
}

impl<const FOLLOWS: bool> Locks<FOLLOWS> {
    fn front(&self) -> &LockedCpus<'static, Believed> {
        let is_handler = here().is_some_and(|here| here.context == Context::Interrupt);
        if is_handler && is_mutant(Mutant::TwoLocks) { &self.other } else { &self.front }
    }
}

// SAFETY: as for `LockedCpus`; its sequences look at their gates whether they are followed or not.
unsafe impl<const FOLLOWS: bool> Cpus for Locks<FOLLOWS> {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    const FOLLOWS_GATES: bool = FOLLOWS;

    fn here(&self) -> Option<Here> {
        self.front().here()
    }

    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        self.front().pop(blocks, word)
    }

    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        self.front().push(blocks, word, rounds_max, frame)
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        self.front().commit(blocks, here, change)
    }

    fn is_quiescent(&self, cpu: CpuId) -> bool {
        is_mutant(Mutant::NoFence) || self.front().is_quiescent(cpu)
    }

    fn fence(&self, blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        if is_mutant(Mutant::NoFence) { Ok(()) } else { self.front().fence(blocks, cpu) }
    }
}

impl<const FOLLOWS: bool> Environment for Locks<FOLLOWS> {}
