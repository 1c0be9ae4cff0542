//! A plan, which is one thread's work, as the work of a thread per CPU that it acts as.
//!
//! Each allocation gets a *cell* of its own, through which its block reaches the thread that frees
//! it: an allocation fills it, a free waits until it is filled and empties it. Every thread does
//! its part in the order of the trace, and waits only for what comes before in the trace, so the
//! earliest step that is not done can always be done.

use pagedepot::{Mobility, Order};

use pagedepot_cli::replay::plan::{Op, Plan};

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptStep {
    Alloc {
        order: Order,
        mobility: Mobility,
        cell: u32,
    },
    Free {
        order: Order,
        cell: u32,
    },
    /// Frees the blocks of [`Script::batch`] by one call.
    FreeMany {
        first: u32,
        len: u32,
    },
    /// Makes two blocks of one.
    Halve {
        order: Order,
        cell: u32,
        lower: u32,
        upper: u32,
    },
}

/// A step with its place in the trace, and its time: milliseconds since the trace began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedStep {
    pub at: u32,
    pub ms: u32,
    pub step: ScriptStep,
}

/// The steps of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    pub steps: Vec<TimedStep>,
    /// Blocks that are held when the trace ends, and that this thread frees then.
    pub held: Vec<(u32, Order)>,
}

/// A trace's work, by threads.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub threads: Vec<Thread>,
    pub cells: u32,
    /// Allocations and frees of a run, those of what is held at the end left out.
    pub events: u64,
    /// Most pages held at once in the trace.
    pub held_pages_peak: u64,
    batches: Vec<(u32, Order)>,
}

impl Script {
    /// The cells of a [`ScriptStep::FreeMany`], with the orders of their blocks.
    pub fn batch(&self, first: u32, len: u32) -> &[(u32, Order)] {
        &self.batches[first as usize..][..len as usize]
    }

    /// The script of a plan.
    pub fn new(plan: &Plan) -> Self {
        let threads = vec![Thread::default(); plan.cpus.len()];
        let held_pages_peak = plan.work.held_pages_peak;
        let script = Script { threads, held_pages_peak, ..Script::default() };
        let in_slots = vec![None; plan.slots as usize];
        let mut writer = Writer { script, in_slots, halves: Vec::new(), ms: 0 };
        for (at, &op) in (0..).zip(&plan.ops) {
            writer.write(plan, at, op);
        }
        writer.finish()
    }
}

/// The content of a slot of the plan.
#[derive(Clone, Copy)]
struct InSlot {
    cell: u32,
    order: Order,
    thread: u16,
}

struct Writer {
    script: Script,
    in_slots: Vec<Option<InSlot>>,
    /// Halvings for the thread that has the next step: it frees a part.
    halves: Vec<(Order, u32, u32)>,
    /// The trace's clock.
    ms: u32,
}

impl Writer {
    fn write(&mut self, plan: &Plan, at: u32, op: Op) {
        let step = match op {
            Op::Clock { ms } => return self.ms = ms,
            Op::Halve { order, slot, upper } => return self.halves.push((order, slot, upper)),
            Op::Alloc { cpu, order, mobility, slot, .. } => {
                let cell = self.fill(cpu, order, slot);
                self.script.events += 1;
                (cpu, ScriptStep::Alloc { order, mobility, cell })
            }
            Op::AllocCache { cpu, order, slot, .. } => {
                let cell = self.fill(cpu, order, slot);
                self.script.events += 1;
                (cpu, ScriptStep::Alloc { order, mobility: Mobility::Movable, cell })
            }
            Op::Free { cpu, order, slot } | Op::FreeNested { cpu, order, slot, .. } => {
                self.halve(at, cpu);
                let Some(cell) = self.empty(slot) else { return };
                (cpu, ScriptStep::Free { order, cell })
            }
            Op::FreeMany { cpu, first, len } => {
                self.halve(at, cpu);
                let first_of_batch = self.script.batches.len() as u32;
                for &(slot, order) in plan.batch(first, len) {
                    let cell = self.empty(slot);
                    self.script.batches.extend(cell.map(|cell| (cell, order)));
                }
                let len = self.script.batches.len() as u32 - first_of_batch;
                (cpu, ScriptStep::FreeMany { first: first_of_batch, len })
            }
        };
        self.push(at, step.0, step.1);
    }

    fn push(&mut self, at: u32, thread: u16, step: ScriptStep) {
        self.script.threads[usize::from(thread)].steps.push(TimedStep { at, ms: self.ms, step });
    }

    fn fill(&mut self, thread: u16, order: Order, slot: u32) -> u32 {
        let cell = self.script.cells;
        self.script.cells += 1;
        self.in_slots[slot as usize] = Some(InSlot { cell, order, thread });
        cell
    }

    fn empty(&mut self, slot: u32) -> Option<u32> {
        let held = self.in_slots[slot as usize].take()?;
        self.script.events += 1;
        Some(held.cell)
    }

    /// A half is another block, in a cell of its own: the thread that frees it must not find the
    /// whole.
    fn halve(&mut self, at: u32, thread: u16) {
        for (order, slot, upper) in std::mem::take(&mut self.halves) {
            let half = Order::new(order.get().saturating_sub(1));
            if let (Some(whole), Some(half)) = (self.in_slots[slot as usize].take(), half) {
                let [lower, upper] = [slot, upper].map(|slot| self.fill(whole.thread, half, slot));
                self.push(at, thread, ScriptStep::Halve { order, cell: whole.cell, lower, upper });
            }
        }
    }

    fn finish(mut self) -> Script {
        for held in self.in_slots.into_iter().flatten() {
            self.script.threads[usize::from(held.thread)].held.push((held.cell, held.order));
        }
        self.script
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagedepot_cli::replay::shipped;

    fn script(lines: &str) -> Script {
        Script::new(&Plan::read(lines.as_bytes(), "test", None).unwrap())
    }

    fn event(cpu: u32, ms: u32, what: &str) -> String {
        format!("make 7 [{cpu:03}] 1.{ms:03}000: {what}\n")
    }

    fn alloc(cpu: u32, ms: u32, pfn: u32, order: u32) -> String {
        let flags = "migratetype=1 gfp_flags=GFP_KERNEL";
        event(cpu, ms, &format!("kmem:mm_page_alloc: page=0x1 pfn=0x{pfn:x} order={order} {flags}"))
    }

    fn free(cpu: u32, ms: u32, pfn: u32, order: u32) -> String {
        event(cpu, ms, &format!("kmem:mm_page_free: page=0x1 pfn=0x{pfn:x} order={order}"))
    }

    #[test]
    fn a_block_goes_through_its_cell_to_the_thread_that_frees_it() {
        let lines =
            alloc(0, 1, 8, 0) + &alloc(0, 2, 16, 3) + &free(1, 3, 8, 0) + &alloc(1, 4, 8, 0);
        let script = script(&lines);
        let [zero, one] = &script.threads[..] else { panic!("two threads") };
        let order = |order| Order::new(order).unwrap();
        let steps =
            |thread: &Thread| thread.steps.iter().map(|timed| timed.step).collect::<Vec<_>>();
        let mobility = Mobility::Movable;
        assert_eq!(
            steps(zero),
            [
                ScriptStep::Alloc { order: order(0), mobility, cell: 0 },
                ScriptStep::Alloc { order: order(3), mobility, cell: 1 }
            ]
        );
        // Since the first event.
        assert_eq!(one.steps.iter().map(|timed| timed.ms).collect::<Vec<_>>(), [2, 3]);
        // The same frame again is another cell.
        assert_eq!(
            steps(one),
            [
                ScriptStep::Free { order: order(0), cell: 0 },
                ScriptStep::Alloc { order: order(0), mobility, cell: 2 }
            ]
        );
        assert_eq!((&zero.held[..], &one.held[..]), (&[(1, order(3))][..], &[(2, order(0))][..]));
        assert_eq!((script.cells, script.events), (3, 4));
    }

    #[test]
    fn the_thread_that_frees_a_part_splits_the_block() {
        let script = script(&(alloc(0, 1, 16, 1) + &free(1, 2, 17, 0)));
        let order = |order| Order::new(order).unwrap();
        assert_eq!(
            script.threads[1].steps.iter().map(|timed| timed.step).collect::<Vec<_>>(),
            [
                ScriptStep::Halve { order: order(1), cell: 0, lower: 1, upper: 2 },
                ScriptStep::Free { order: order(0), cell: 2 }
            ]
        );
        assert_eq!(script.threads[0].held, [(1, order(0))]);
    }

    #[test]
    fn cells_are_filled_once_and_emptied_once() {
        let script = Script::new(&Plan::read(shipped::TRACE, shipped::NAME, None).unwrap());
        let (mut filled, mut emptied) =
            (vec![0; script.cells as usize], vec![0; script.cells as usize]);
        for thread in &script.threads {
            thread.held.iter().for_each(|&(cell, _)| emptied[cell as usize] += 1);
            for timed in &thread.steps {
                match timed.step {
                    ScriptStep::Alloc { cell, .. } => filled[cell as usize] += 1,
                    ScriptStep::Free { cell, .. } => emptied[cell as usize] += 1,
                    ScriptStep::FreeMany { first, len } => {
                        script
                            .batch(first, len)
                            .iter()
                            .for_each(|&(cell, _)| emptied[cell as usize] += 1);
                    }
                    ScriptStep::Halve { cell, lower, upper, .. } => {
                        emptied[cell as usize] += 1;
                        filled[lower as usize] += 1;
                        filled[upper as usize] += 1;
                    }
                }
            }
        }
        assert!(filled.iter().chain(&emptied).all(|&times| times == 1));
        assert!(script.threads.len() >= 2 && script.events > 10_000);
    }
}
