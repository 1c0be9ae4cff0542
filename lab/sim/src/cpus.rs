//! The virtual CPUs as the allocator and the vmap see them.
#![allow(unsafe_code, reason = "sequences are a promise to the allocator")]

use std::cell::Cell;

use pagedepot::cpus::implement::{BlockArray, WordOffset, followed, gate, is_open, magazine, word};
use pagedepot::cpus::{Change, Cpus, Environment, FenceError, Here, WhichCpu};
use pagedepot::sync::model::{Mutant, is_mutant};
use pagedepot::sync::prim::Ordering;
use pagedepot::{AllocError, Allocator, CpuId, Flags, FreeManyError, NodeId, Order, Pfn};
use pagedepot_sim_machine as machine;
use pagedepot_vmap::Host;

thread_local!(static OUTSIDE: Cell<u32> = const { Cell::new(0) });

/// Makes the caller this CPU outside of a run, at first CPU 0: to make what is there when a run
/// begins.
pub(crate) fn act_as(cpu: u32) {
    OUTSIDE.set(cpu);
}

/// The CPUs of the machine that the caller's task runs on. Outside of a run, callers are the CPU
/// that [`act_as`] names.
#[derive(Clone, Copy, Debug, Default)]
pub struct VirtualCpus;

impl Environment for VirtualCpus {
    fn now_ms(&self) -> u64 {
        machine::now_ps() / 1_000_000_000
    }
}

impl WhichCpu for VirtualCpus {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(number()))
    }
}

fn number() -> u32 {
    machine::cpu().map_or_else(|| OUTSIDE.get(), |cpu| cpu as u32)
}

/// Ends a sequence that finds nothing to do.
fn nothing<R>(result: R) -> R {
    machine::end_sequence();
    result
}

// SAFETY: 1. a sequence acts on the CPU of its task at its beginning; whatever else comes to that
// CPU (a preemption, an interrupt, a visitor) aborts it, and `commit` stores only if it was not
// aborted; so does the exchange that claims a gate. 2., 3. as `followed` finds the word: by the
// gate of any number of 16 bits, closed gates leading to words that refuse; `commit` asks
// the gate and the bound. 4. `machine::fence` aborts the sequence under way. 5. the commit is one
// store of the word. 6. is the allocator's.
unsafe impl Cpus for VirtualCpus {
    const FOLLOWS_GATES: bool = true;
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    fn here(&self) -> Option<Here> {
        Some(Here::task(CpuId::new(number())))
    }

    fn pop(&self, blocks: &BlockArray, offset: WordOffset) -> Option<u32> {
        machine::begin_sequence();
        // SAFETY: the array and the offset are this method's; only the commit stores.
        let cell = unsafe { followed(blocks, number(), offset) };
        let Some((loaded, slot, next)) = word_of(cell.load(Ordering::Relaxed)).popped() else {
            return nothing(None);
        };
        // SAFETY: the word named the magazine.
        let magazine = unsafe { magazine(blocks, loaded) };
        let frame = magazine.slots[slot as usize].load(Ordering::Relaxed);
        cell.commit(next.0).then_some(frame)
    }

    fn push(&self, blocks: &BlockArray, offset: WordOffset, rounds_max: u32, frame: u32) -> bool {
        machine::begin_sequence();
        // SAFETY: as in `pop`.
        let cell = unsafe { followed(blocks, number(), offset) };
        let now = word_of(cell.load(Ordering::Relaxed));
        let Some((loaded, slot, next)) = now.pushed(rounds_max) else { return nothing(false) };
        // SAFETY: the word named the magazine, and its next slot is this sequence's to write.
        let magazine = unsafe { magazine(blocks, loaded) };
        magazine.slots[slot as usize].store(frame, Ordering::Relaxed);
        cell.commit(next.0)
    }

    fn commit(&self, blocks: &BlockArray, here: Here, change: Change<'_>) -> bool {
        machine::slow_step();
        machine::begin_sequence();
        if here.cpu.get() != number() || here.cpu.get() >= blocks.cpus() {
            return nothing(false);
        }
        // SAFETY: the CPU has a block.
        let gate = unsafe { gate(blocks, here.cpu) };
        match change {
            Change::Word { at, old, new } => {
                // SAFETY: as in `pop`.
                let cell = unsafe { word(blocks, here, at) };
                if !is_open(gate.load(Ordering::Acquire)) || cell.load(Ordering::Relaxed) != old {
                    return nothing(false);
                }
                cell.commit(new)
            }
            Change::Gate { old, new } => gate.commit_exchange(old, new),
            _ => nothing(false),
        }
    }

    fn fence(&self, _blocks: &BlockArray, cpu: CpuId) -> Result<(), FenceError> {
        if !is_mutant(Mutant::NoFence) {
            machine::fence(cpu.index());
        }
        Ok(())
    }
}

fn word_of(word: u64) -> pagedepot::cpus::implement::Word {
    pagedepot::cpus::implement::Word(word)
}

/// Frames of an allocator for a vmap, and waiting by the machine's means.
pub struct VmapHost(pub Allocator<'static, VirtualCpus>);

// SAFETY: each method that concerns frames is the allocator's own.
unsafe impl Host for VmapHost {
    fn cpu(&self) -> Option<CpuId> {
        VirtualCpus.cpu()
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.0.alloc(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.0.alloc_many(Order::BASE, flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.0.free_many(blocks)
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        self.0.split(frame, order, Order::BASE).is_ok()
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        self.0.note_quarantined(frame, pages);
    }

    fn node_of(&self, frame: Pfn) -> NodeId {
        self.0.node_of(frame).unwrap_or(NodeId::new(0))
    }

    fn wait(&self, word: &pagedepot::sync::prim::AtomicU32, seen: u32) {
        if word.load(Ordering::Relaxed) == seen {
            machine::wait_at(word.as_ptr().addr());
        }
    }

    fn wake_one(&self, word: &pagedepot::sync::prim::AtomicU32) {
        machine::wake_one(word.as_ptr().addr());
    }

    fn wake_all(&self, word: &pagedepot::sync::prim::AtomicU32) {
        machine::wake_all(word.as_ptr().addr());
    }

    fn contention_begins(&self) {
        machine::wait_begins();
    }

    fn contention_ends(&self) {
        machine::wait_ends();
    }
}
