//! CPUs on which a source of interrupts acts between any two steps.

use pagedepot::CpuId;
use pagedepot::cpus::implement::{self, BlockArray, MagazineIndex, Word, WordOffset, is_open};
use pagedepot::cpus::{self, Cpus, Environment, FenceError, Guard, Here, WhichCpu};

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::source::Source;

/// The sequence was interrupted at a point where that aborts it.
struct Aborted;

/// The sequences, with a step between any two accesses.
struct Steps<'s> {
    blocks: &'s BlockArray,
    here: Here,
    step: &'s dyn Fn() -> Result<(), Aborted>,
    /// Whether `pop` and `push` follow the gate, open or closed.
    follows: bool,
}

impl Steps<'_> {
    /// The word for a pop or push, and its value.
    fn enter(&self, word: WordOffset) -> Result<Option<(&AtomicU64, u64)>, Aborted> {
        if !self.follows {
            return self.enter_open(word);
        }
        (self.step)()?;
        // SAFETY: the array and the offset of the call whose sequence this is.
        let cell = unsafe { implement::followed(self.blocks, self.here.cpu.get(), word) };
        (self.step)()?;
        Ok(Some((cell, cell.load(Ordering::Relaxed))))
    }

    /// The word and its value, if the gate is open.
    fn enter_open(&self, word: WordOffset) -> Result<Option<(&AtomicU64, u64)>, Aborted> {
        (self.step)()?;
        if self.here.cpu.get() >= self.blocks.cpus() {
            return Ok(None);
        }
        // SAFETY: as in `enter`.
        let gate = unsafe { implement::gate(self.blocks, self.here.cpu) };
        if !is_open(gate.load(Ordering::Acquire)) {
            return Ok(None);
        }
        (self.step)()?;
        // SAFETY: as in `enter`.
        let cell = unsafe { implement::word(self.blocks, self.here, word) };
        Ok(Some((cell, cell.load(Ordering::Relaxed))))
    }

    fn commit(&self, cell: &AtomicU64, word: u64) -> Result<(), Aborted> {
        (self.step)()?;
        cell.store(word, Ordering::Release);
        Ok(())
    }

    fn slot(&self, (magazine, slot): (MagazineIndex, u32)) -> &AtomicU32 {
        // SAFETY: the word that the sequence loaded names it.
        &unsafe { implement::magazine(self.blocks, magazine) }.slots[slot as usize]
    }

    fn pop(&self, word: WordOffset) -> Result<Option<u32>, Aborted> {
        let Some((cell, word)) = self.enter(word)? else { return Ok(None) };
        let Some((magazine, slot, next)) = Word(word).popped() else { return Ok(None) };
        (self.step)()?;
        let frame = self.slot((magazine, slot)).load(Ordering::Relaxed);
        self.commit(cell, next.0)?;
        Ok(Some(frame))
    }

    fn push(&self, word: WordOffset, rounds_max: u32, frame: u32) -> Result<bool, Aborted> {
        let Some((cell, word)) = self.enter(word)? else { return Ok(false) };
        let Some((magazine, slot, next)) = Word(word).pushed(rounds_max) else { return Ok(false) };
        (self.step)()?;
        self.slot((magazine, slot)).store(frame, Ordering::Relaxed);
        self.commit(cell, next.0)?;
        Ok(true)
    }

    fn compare_store(&self, word: WordOffset, old: u64, new: u64) -> Result<bool, Aborted> {
        match self.enter_open(word)? {
            Some((cell, word)) if word == old => self.commit(cell, new).map(|()| true),
            _ => Ok(false),
        }
    }

    fn claim_gate(&self, here: Here, old: u64, new: u64) -> Result<bool, Aborted> {
        (self.step)()?;
        if self.here != here {
            return Ok(false);
        }
        // SAFETY: as in `enter`; changed as asked.
        let gate = unsafe { implement::gate(self.blocks, here.cpu) };
        Ok(gate.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok())
    }
}

/// A kernel: preemption is off in a sequence, interrupts are not.
pub struct Kernel(pub Arc<Source>);

impl Kernel {
    /// Runs a sequence to its end.
    fn run<R>(
        &self,
        blocks: &BlockArray,
        sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>,
    ) -> Option<R> {
        self.0.preemption_point();
        let here = self.0.kernel_here()?;
        self.0.set_sequence(Some(here.cpu.get()));
        let step = || {
            self.0.point();
            Ok(())
        };
        let result = sequence(Steps { blocks, here, step: &step, follows: false });
        self.0.set_sequence(None);
        result.ok()
    }
}

// SAFETY: 1. the sequences of a context end before another of the same context begins: handlers of
// depth 1 run to their end, deeper ones have no sequences, and what runs on other CPUs has other
// words. 2., 3. checked first. 4. `fence` refuses where a sequence has been interrupted. 5. one
// store.
unsafe impl Cpus for Kernel {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    const CONTEXTS: usize = 2;

    fn here(&self) -> Option<Here> {
        self.0.preemption_point();
        let here = self.0.kernel_here();
        self.0.preemption_point();
        here
    }

    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        self.run(blocks, |steps| steps.pop(word))?
    }

    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        self.run(blocks, |steps| steps.push(word, rounds_max, frame)).unwrap_or(false)
    }

    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        let store =
            |steps: Steps<'_>| Ok(steps.here == here && steps.compare_store(word, old, new)?);
        self.run(blocks, store).unwrap_or(false)
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        let claim = |steps: Steps<'_>| {
            Ok(!self.0.has_interrupted(here.cpu) && steps.claim_gate(here, old, new)?)
        };
        self.run(blocks, claim).unwrap_or(false)
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        self.0.point();
        if self.0.has_interrupted(cpu) { Err(FenceError::Busy) } else { Ok(()) }
    }
}

impl Environment for Kernel {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }

    fn is_isolated(&self, _cpu: CpuId) -> bool {
        self.0.preemption_point();
        false
    }
}

/// A process with restartable sequences: every interrupt aborts the sequence.
pub struct Restartable(pub Arc<Source>);

impl Restartable {
    fn run<R>(&self, blocks: &BlockArray, sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>) -> R {
        loop {
            self.0.preemption_point();
            let (cpu, begun) = (self.0.cpu(), self.0.interrupts());
            let step = || {
                self.0.preemption_point();
                if self.0.cpu() == cpu && self.0.interrupts() == begun {
                    Ok(())
                } else {
                    Err(Aborted)
                }
            };
            if let Ok(result) =
                sequence(Steps { blocks, here: Here::task(cpu), step: &step, follows: true })
            {
                return result;
            }
        }
    }
}

// SAFETY: 1. a sequence commits only if nothing has happened since it began. 2., 3. followed, or
// checked first.
// 4. a sequence that has been interrupted never commits. 5. one store.
unsafe impl Cpus for Restartable {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    const FOLLOWS_GATES: bool = true;

    fn here(&self) -> Option<Here> {
        self.0.preemption_point();
        let here = Here::task(self.0.cpu());
        self.0.preemption_point();
        Some(here)
    }

    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        self.run(blocks, |steps| steps.pop(word))
    }

    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        self.run(blocks, |steps| steps.push(word, rounds_max, frame))
    }

    fn compare_store(
        &self,
        blocks: &BlockArray,
        here: Here,
        word: WordOffset,
        old: u64,
        new: u64,
    ) -> bool {
        self.run(blocks, |steps| Ok(steps.here == here && steps.compare_store(word, old, new)?))
    }

    fn claim_gate(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        self.run(blocks, |steps| steps.claim_gate(here, old, new))
    }

    fn fence(&self, _blocks: &BlockArray, _cpu: CpuId) -> Result<(), FenceError> {
        self.0.preemption_point();
        Ok(())
    }
}

impl Environment for Restartable {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }

    fn is_isolated(&self, _cpu: CpuId) -> bool {
        self.0.preemption_point();
        false
    }
}

/// A kernel behind [`Pinned`](cpus::Pinned).
pub struct Processor(pub Arc<Source>);

/// Preemption is off while this lives.
pub struct Pin {
    source: Arc<Source>,
    here: Here,
}

// SAFETY: as for `Kernel`; the code stays on its CPU between `pin` and the drop.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        self.source.point();
        self.here
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.source.point();
        self.source.set_sequence(None);
    }
}

// SAFETY: `fence` refuses while there is a guard.
unsafe impl cpus::Processor for Processor {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        self.0.preemption_point();
        let here = self.0.kernel_here()?;
        self.0.set_sequence(Some(here.cpu.get()));
        Some(Pin { source: self.0.clone(), here })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        self.0.point();
        if self.0.has_interrupted(cpu) { Err(FenceError::Busy) } else { Ok(()) }
    }
}

impl Environment for Processor {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }
}

/// A process with locks; see [`Locked`](cpus::Locked).
pub struct Lock(pub Arc<Source>);

impl WhichCpu for Lock {
    fn cpu(&self) -> Option<CpuId> {
        self.0.preemption_point();
        let cpu = self.0.cpu();
        self.0.preemption_point();
        Some(cpu)
    }
}

impl Environment for Lock {
    fn now_ms(&self) -> u64 {
        self.0.preemption_point();
        self.0.now_ms()
    }
}
