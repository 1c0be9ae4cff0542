//! Restartable sequences, step by step. The kernel aborts a sequence whose thread loses its CPU: to
//! a fence, or to another thread that begins one there.

use std::cell::Cell;

use shuttle::sync::Mutex;

use super::{Mutant, is_mutant};
use crate::cpus::{Change, Cpus, Environment, FenceError, Here};
use crate::frame::CpuId;
use crate::front;
use crate::front::word::Word;
use crate::front::{BlockArray, WordOffset};
use crate::sync::prim::{AtomicU64, Ordering};

shuttle::thread_local! {
    static HERE: Cell<u32> = Cell::new(0);
}

/// Makes the calling thread run on `cpu` from now on.
pub fn run_on(cpu: u32) {
    HERE.with(|here| here.set(cpu));
}

fn cpu_here() -> CpuId {
    CpuId::new(HERE.with(Cell::get))
}

/// Number of times that an aborted sequence starts again before it gives up.
const RESTARTS: usize = 1;

/// Restartable sequences.
pub struct Rseq {
    epochs: Vec<Mutex<u64>>,
}

struct Aborted;

impl Rseq {
    pub fn new(cpus: u32) -> Self {
        Rseq { epochs: (0..cpus).map(|_| Mutex::new(0)).collect() }
    }

    fn begin(&self, cpu: CpuId) -> u64 {
        // A sequence that another thread of this CPU was in has been preempted for this one.
        let mut epoch = self.epochs[cpu.index()].lock().unwrap();
        *epoch += 1;
        *epoch
    }

    /// One instruction of a sequence that writes, unless the sequence has been aborted.
    fn step(&self, cpu: CpuId, begun: u64, store: impl FnOnce()) -> Result<(), Aborted> {
        let epoch = self.epochs[cpu.index()].lock().unwrap();
        if *epoch != begun {
            return Err(Aborted);
        }
        store();
        Ok(())
    }

    fn end(&self, cpu: CpuId, begun: u64, cell: &AtomicU64, word: u64) -> Result<(), Aborted> {
        let mut epoch = self.epochs[cpu.index()].lock().unwrap();
        if *epoch != begun {
            return Err(Aborted);
        }
        cell.store(word, Ordering::Release);
        *epoch += 1;
        Ok(())
    }

    fn restart<R>(&self, sequence: impl Fn(CpuId, u64) -> Result<Option<R>, Aborted>) -> Option<R> {
        for _ in 0..=RESTARTS {
            let cpu = cpu_here();
            if let Ok(result) = sequence(cpu, self.begin(cpu)) {
                return result;
            }
        }
        None
    }
}

fn is_open(blocks: &BlockArray, cpu: CpuId) -> bool {
    cpu.get() < blocks.cpus && front::is_open(blocks.gate(cpu).load(Ordering::Acquire))
}

impl Rseq {
    fn store(
        &self,
        blocks: &BlockArray,
        here: Here,
        offset: WordOffset,
        (old, new): (u64, u64),
    ) -> bool {
        let stored = self.restart(|cpu, begun| {
            if cpu != here.cpu || !is_open(blocks, cpu) {
                return Ok(None);
            }
            let cell = blocks.word(here, offset);
            if cell.load(Ordering::Relaxed) != old {
                return Ok(None);
            }
            self.end(cpu, begun, cell, new)?;
            Ok(Some(()))
        });
        stored.is_some()
    }

    fn claim(&self, blocks: &BlockArray, here: Here, old: u64, new: u64) -> bool {
        let cpu = cpu_here();
        let begun = self.begin(cpu);
        let mut is_claimed = false;
        let claim = || {
            let gate = blocks.gate(cpu);
            let claimed = gate.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed);
            is_claimed = claimed.is_ok();
        };
        cpu == here.cpu && self.step(cpu, begun, claim).is_ok() && is_claimed
    }
}

// SAFETY: a commit fails when another sequence of the same CPU or a fence came in between.
unsafe impl Cpus for Rseq {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    fn here(&self) -> Option<Here> {
        Some(Here::task(cpu_here()))
    }

    fn pop(&self, blocks: &BlockArray, offset: WordOffset) -> Option<u32> {
        self.restart(|cpu, begun| {
            if !is_open(blocks, cpu) {
                return Ok(None);
            }
            let cell = blocks.word(Here::task(cpu), offset);
            let Some((loaded, slot, next)) = Word(cell.load(Ordering::Relaxed)).popped() else {
                return Ok(None);
            };
            let frame = blocks.magazine(loaded).slots[slot as usize].load(Ordering::Relaxed);
            self.end(cpu, begun, cell, next.0)?;
            Ok(Some(frame))
        })
    }

    fn push(&self, blocks: &BlockArray, offset: WordOffset, rounds_max: u32, frame: u32) -> bool {
        let pushed = self.restart(|cpu, begun| {
            if !is_open(blocks, cpu) {
                return Ok(None);
            }
            let cell = blocks.word(Here::task(cpu), offset);
            let word = Word(cell.load(Ordering::Relaxed));
            let Some((loaded, slot, next)) = word.pushed(rounds_max) else {
                return Ok(None);
            };
            let slot = &blocks.magazine(loaded).slots[slot as usize];
            self.step(cpu, begun, || slot.store(frame, Ordering::Relaxed))?;
            self.end(cpu, begun, cell, next.0)?;
            Ok(Some(()))
        });
        pushed.is_some()
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        match change {
            Change::Word { at, old, new } => self.store(blocks, here, at, (old, new)),
            Change::Gate { old, new } => self.claim(blocks, here, old, new),
            _ => false,
        }
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        if !is_mutant(Mutant::NoFence) {
            *self.epochs[cpu.index()].lock().unwrap() += 1;
        }
        Ok(())
    }
}

impl Environment for Rseq {}
