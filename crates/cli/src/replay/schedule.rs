//! Second pass: from blocks to slots, and from frees that were one call to one operation.
//!
//! Slots are reused last in, first out, so that a run's own memory stays as small as what the trace
//! holds at once. A batch takes place at its last free: its members are freed a little later than
//! recorded, never before they were allocated.

use pagedepot::Order;

use super::actions::{Action, ActionAt};
use super::plan::{InitialBlock, Op};

/// The operations of a plan, and what they refer to.
pub struct OpSchedule {
    pub ops: Vec<Op>,
    pub batches: Vec<(u32, Order)>,
    pub slots: u32,
    pub known: Vec<InitialBlock>,
}

/// Turns steps into operations. `cpus` are the kernel's numbers, ascending.
pub fn schedule(steps: &[ActionAt], batch_sizes: &[u32], cpus: &[u16]) -> OpSchedule {
    let mut scheduler = Scheduler::default();
    let mut open: Vec<Vec<(u32, Order)>> = vec![Vec::new(); batch_sizes.len()];
    for timed in steps {
        scheduler.clock(timed.ms);
        let cpu = cpus.binary_search(&timed.cpu).expect("all CPUs are listed") as u16;
        match timed.action {
            Action::Free { id, order, batch: batch @ 1.., .. }
                if batch_sizes[batch as usize - 1] > 1 =>
            {
                let members = &mut open[batch as usize - 1];
                members.push((id, order));
                if members.len() == batch_sizes[batch as usize - 1] as usize {
                    scheduler.free_many(cpu, &std::mem::take(members));
                }
            }
            action => scheduler.schedule(cpu, action),
        }
    }
    let Scheduler { ops, batches, slots, known, .. } = scheduler;
    OpSchedule { ops, batches, slots, known }
}

#[derive(Default)]
struct Scheduler {
    ops: Vec<Op>,
    batches: Vec<(u32, Order)>,
    /// The slot of each block, by its number.
    slot_of: Vec<u32>,
    empty: Vec<u32>,
    slots: u32,
    known: Vec<InitialBlock>,
    ms: u32,
}

impl Scheduler {
    fn clock(&mut self, ms: u32) {
        if ms > self.ms {
            self.ms = ms;
            self.ops.push(Op::Clock { ms });
        }
    }

    fn schedule(&mut self, cpu: u16, action: Action) {
        let op = match action {
            Action::Alloc { id, zone, order, mobility } => {
                Op::Alloc { cpu, zone, order, mobility, slot: self.take_slot(id) }
            }
            Action::AllocCache { id, zone, order } => {
                Op::AllocCache { cpu, zone, order, slot: self.take_slot(id) }
            }
            Action::Known { id, zone, order, mobility, .. } => {
                let slot = self.new_slot();
                self.note_slot(id, slot);
                self.known.push(InitialBlock { slot, zone, order, mobility });
                return;
            }
            Action::Free { id, order, nested: Some(zone), .. } => {
                Op::FreeNested { cpu, zone, order, slot: self.leave_slot(id) }
            }
            Action::Free { id, order, .. } => Op::Free { cpu, order, slot: self.leave_slot(id) },
            Action::Halve { id, order, upper } => {
                Op::Halve { order, slot: self.slot_of[id as usize], upper: self.take_slot(upper) }
            }
        };
        self.ops.push(op);
    }

    fn free_many(&mut self, cpu: u16, members: &[(u32, Order)]) {
        let first = self.batches.len() as u32;
        for &(id, order) in members {
            let slot = self.leave_slot(id);
            self.batches.push((slot, order));
        }
        self.ops.push(Op::FreeMany { cpu, first, len: members.len() as u32 });
    }

    fn take_slot(&mut self, id: u32) -> u32 {
        let slot = self.empty.pop().unwrap_or_else(|| self.new_slot());
        self.note_slot(id, slot);
        slot
    }

    /// A slot that nothing was in so far.
    fn new_slot(&mut self) -> u32 {
        self.slots += 1;
        self.slots - 1
    }

    /// Blocks are numbered in the order in which they come to be.
    fn note_slot(&mut self, id: u32, slot: u32) {
        debug_assert_eq!(self.slot_of.len(), id as usize);
        self.slot_of.push(slot);
    }

    fn leave_slot(&mut self, id: u32) -> u32 {
        let slot = self.slot_of[id as usize];
        self.empty.push(slot);
        slot
    }
}
