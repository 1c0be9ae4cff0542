//! The running task: its accesses, and what comes between them.

use std::panic::Location;

use super::dispatch::next;
use super::{CurrentMachine, Disturbances, Machine, State};
use crate::lines::{Access, TransferRequest};

impl CurrentMachine {
    /// Accounts for an access. Returns whether it hit the CPU's own cache.
    #[inline]
    pub(super) fn access(
        self,
        address: usize,
        access: Access,
        site: &'static Location<'static>,
    ) -> bool {
        let mut asked: Option<TransferRequest> = None;
        loop {
            if self.get().clocks.now >= self.get().limit {
                self.look_around();
            }
            let machine = self.get();
            let at = machine.lines.find(address);
            let Machine { lines, clocks, costs, cpu, .. } = machine;
            let is_behind = clocks.now <= machine.horizon;
            if is_behind || !lines.is_fought_over(at, clocks.now, costs) {
                if lines.hit(at, access, *cpu, clocks, costs) {
                    machine.done.events += 1;
                    return true;
                }
                if is_behind && machine.explorer.is_some() {
                    lines.take(at, access, *cpu);
                    machine.done.events += 1;
                    return false;
                }
                if is_behind {
                    let now = clocks.now;
                    let asked =
                        *asked.get_or_insert_with(|| lines.ask(at, access, *cpu, now, costs));
                    let waits = matches!(access, Access::Load | Access::Rmw);
                    if !waits || asked.leaves <= now {
                        lines.miss(at, access, *cpu, clocks, costs, asked, site);
                        machine.done.events += 1;
                        return false;
                    }
                    clocks.now = asked.leaves;
                    continue;
                }
            }
            self.suspend();
        }
    }

    /// Accounts for a step down a tree.
    pub(super) fn tree_step(self, address: usize, site: &'static Location<'static>) {
        if self.access(address, Access::Load, site) {
            let machine = self.get();
            machine.clocks.now += machine.costs.tree_step_ps;
        }
    }

    /// The clock has passed the limit: other tasks, or events, are due.
    #[cold]
    #[inline(never)]
    pub(super) fn look_around(self) {
        let machine = self.get();
        let (task, now) = (machine.task, machine.clocks.now);
        if let Some(explorer) = &mut machine.explorer {
            machine.clocks.now += 1;
            if explorer.stops(task) {
                self.suspend();
            }
            return;
        }
        let cpu = &mut machine.cpus[machine.cpu];
        if now >= cpu.next_preemption {
            let Disturbances { preemptions_per_s, preempted_ps, .. } = machine.disturbances;
            machine.clocks.now += preempted_ps + machine.costs.switch_ps;
            cpu.next_preemption = next(&mut machine.rng, machine.clocks.now, preemptions_per_s);
            machine.interrupted();
        } else if now >= cpu.next_interrupt {
            self.interrupt();
        } else if !cpu.waiting.is_empty() && now >= cpu.slice_end {
            self.give_way();
            return;
        }
        self.get().look_ahead();
        if self.get().clocks.now >= self.get().horizon.saturating_add(self.get().costs.ahead_ps) {
            self.suspend();
        }
    }

    /// An interrupt on the running task's CPU.
    pub(super) fn interrupt(self) {
        let machine = self.get();
        machine.clocks.now += machine.costs.interrupt_ps;
        machine.interrupted();
        let (cpu, task, now) = (machine.cpu, machine.task, machine.clocks.now);
        machine.cpus[cpu].next_interrupt =
            next(&mut machine.rng, now, machine.disturbances.interrupts_per_s);
        if machine.cpus[cpu].in_handler {
            return;
        }
        if let Some(handler) = machine.handler.clone() {
            machine.cpus[cpu].in_handler = true;
            let before = (machine.clocks.in_sequence, machine.tasks[task].aborted);
            (machine.clocks.in_sequence, machine.tasks[task].aborted) = (false, false);
            machine.look_ahead();
            handler(cpu);
            let machine = self.get();
            (machine.clocks.in_sequence, machine.tasks[task].aborted) = before;
            machine.cpus[cpu].in_handler = false;
        }
    }

    /// The running task lets the others of its CPU run.
    pub(super) fn give_way(self) {
        let machine = self.get();
        let task = machine.task;
        machine.interrupted();
        machine.tasks[task].clocks = machine.clocks;
        machine.cpus[machine.cpu].waiting.push_back(task as u32);
        machine.tasks[task].state = State::Descheduled;
        machine.leave_cpu(task);
        self.suspend();
    }

    /// Blocks the running task until another wakes it at `address`.
    pub(super) fn block(self, address: usize) {
        let machine = self.get();
        let task = machine.task;
        machine.waiters.entry(address).or_default().push_back(task as u32);
        machine.tasks[task].clocks = machine.clocks;
        machine.tasks[task].state = State::Blocked;
        if !machine.cpus[machine.cpu].waiting.is_empty() {
            machine.leave_cpu(task);
        }
        self.suspend();
    }
}
