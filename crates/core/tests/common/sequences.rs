//! Sequences that are written in Rust: a machine tells where code runs, and acts between any two of
//! their steps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagedepot::CpuId;
use pagedepot::cpus::implement::{self, BlockArray, MagazineIndex, Word, WordOffset, is_open};
use pagedepot::cpus::{Change, Cpus, Environment, FenceError, Here};

/// The place where sequences run.
///
/// # Safety
/// [`run`](Self::run) and [`fence`](Self::fence) keep the promises of [`Cpus`].
pub unsafe trait Machine: Environment {
    /// Whether `pop` and `push` follow the gate, open or closed.
    const FOLLOWS_GATES: bool;
    const CONTEXTS: usize = 1;

    fn here(&self) -> Option<Here>;

    /// Runs a sequence until it ends without being aborted. `None`: there is none in this context.
    fn run<R>(
        &self,
        blocks: &BlockArray,
        sequence: impl Fn(Steps<'_>) -> Result<R, Aborted>,
    ) -> Option<R>;

    /// Whether a sequence that runs on a CPU may claim its gate.
    fn may_claim(&self, _cpu: CpuId) -> bool {
        true
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError>;
}

/// The sequence was interrupted at a point where that aborts it.
pub struct Aborted;

/// The sequences, with a step between any two accesses.
pub struct Steps<'s> {
    pub blocks: &'s BlockArray,
    pub here: Here,
    pub step: &'s dyn Fn() -> Result<(), Aborted>,
    /// Whether `pop` and `push` follow the gate, open or closed.
    pub follows_gates: bool,
}

impl Steps<'_> {
    /// The word for a pop or push, and its value.
    fn enter(&self, word: WordOffset) -> Result<Option<(&AtomicU64, u64)>, Aborted> {
        if !self.follows_gates {
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

/// The CPUs of a machine.
pub struct Stepped<M>(pub M);

// SAFETY: 1., 4. the machine's promises. 2., 3. followed, or checked first. 5. one store.
unsafe impl<M: Machine> Cpus for Stepped<M> {
    type Environment = M;

    fn environment(&self) -> &M {
        &self.0
    }

    const CONTEXTS: usize = M::CONTEXTS;
    const FOLLOWS_GATES: bool = M::FOLLOWS_GATES;

    fn here(&self) -> Option<Here> {
        self.0.here()
    }

    fn pop(&self, blocks: &BlockArray, word: WordOffset) -> Option<u32> {
        self.0.run(blocks, |steps| steps.pop(word))?
    }

    fn push(&self, blocks: &BlockArray, word: WordOffset, rounds_max: u32, frame: u32) -> bool {
        self.0.run(blocks, |steps| steps.push(word, rounds_max, frame)).unwrap_or(false)
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        let commit = |steps: Steps<'_>| match change {
            Change::Word { at, old, new } => {
                Ok(steps.here == here && steps.compare_store(at, old, new)?)
            }
            Change::Gate { old, new } => {
                Ok(self.0.may_claim(here.cpu) && steps.claim_gate(here, old, new)?)
            }
            _ => Ok(false),
        };
        self.0.run(blocks, commit).unwrap_or(false)
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        self.0.fence(cpu)
    }
}
