//! The assignment of tasks to CPUs: which has a CPU, and which runs next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use fastrand::Rng;

use super::{Cpu, Done, Machine, NEVER, Setup, State, Task, Work, running};
use crate::lines::{Clocks, Lines};
use crate::schedule::{Explorer, Schedule};

/// Bytes of a task's stack. Only what is used is ever touched.
const STACK_BYTES: usize = 512 << 10;
/// Time for which a task has its CPU while another waits for it.
const SLICE_PS: u64 = 50_000_000;

impl Machine {
    pub(super) fn new(setup: &Setup, tasks: usize) -> Self {
        let mut rng = Rng::with_seed(setup.seed);
        let explorer = match setup.schedule {
            Schedule::Earliest => None,
            schedule => Some(Explorer::new(schedule, setup.seed, tasks)),
        };
        let disturb = setup.disturbances;
        let cpus = (0..setup.cpus).map(|_| Cpu {
            runner: None,
            waiting: VecDeque::new(),
            stolen_ps: 0,
            slice_end: NEVER,
            next_preemption: next(&mut rng, 0, disturb.preemptions_per_s),
            next_interrupt: next(&mut rng, 0, disturb.interrupts_per_s),
            in_handler: false,
        });
        let cpus = cpus.collect();
        Machine {
            costs: setup.costs.clone(),
            lines: Lines::new(&setup.costs, setup.cpus, setup.seed),
            tasks: Vec::new(),
            cpus,
            queue: BinaryHeap::new(),
            waiters: HashMap::new(),
            explorer,
            disturbances: disturb,
            handler: setup.handler.clone(),
            rng,
            task: 0,
            cpu: 0,
            clocks: Clocks::at(0),
            horizon: NEVER,
            limit: 0,
            queued_locks: setup.queued_locks,
            forget_at: setup.forget_before_ps,
            done: Done::default(),
        }
    }

    pub(super) fn add<'w>(&mut self, cpu: usize, apart_ps: u64, work: Work<'w>) {
        let number = self.tasks.len();
        assert!(cpu < self.cpus.len(), "CPU {cpu} of {}", self.cpus.len());
        // SAFETY: `run` ends, or drops the coroutine and with it the work, before `'w` does.
        let work: Work<'static> = unsafe { std::mem::transmute(work) };
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a task's stack");
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            if let Some(running) = running() {
                running.get().tasks[number].yielder = yielder;
            }
            work();
        });
        // Not quite at once: loops in step would meet at every line.
        let now = number as u64 * apart_ps + self.rng.u64(..50_000);
        let runner = &mut self.cpus[cpu].runner;
        let state = if runner.is_none() { State::Ready } else { State::Descheduled };
        if state == State::Ready {
            *runner = Some(number as u32);
            self.queue.push(Reverse((now, number as u32, 0)));
        } else {
            self.cpus[cpu].waiting.push_back(number as u32);
        }
        self.tasks.push(Task {
            coroutine: Some(coroutine),
            yielder: ptr::null(),
            clocks: Clocks::at(now),
            cpu,
            state,
            generation: 0,
            aborted: false,
            wait_depth: 0,
            wait_since: 0,
            waited_ps: 0,
        });
    }

    /// The task that runs next; `None` when all have ended.
    pub(super) fn next_task(&mut self) -> Option<u32> {
        if let Some(explorer) = &mut self.explorer {
            let ready: Vec<u32> = (0..self.tasks.len() as u32)
                .filter(|&task| self.tasks[task as usize].state == State::Ready)
                .collect();
            self.queue.clear();
            let chosen = (!ready.is_empty()).then(|| ready[explorer.choose(&ready)]);
            return chosen.or_else(|| self.check_ended());
        }
        while let Some(Reverse((_, task, generation))) = self.queue.pop() {
            let found = &self.tasks[task as usize];
            if found.state == State::Ready && found.generation == generation {
                return Some(task);
            }
        }
        self.check_ended()
    }

    pub(super) fn check_ended(&self) -> Option<u32> {
        let left = self.tasks.iter().filter(|task| task.state != State::Ended).count();
        assert!(left == 0, "{left} tasks wait for each other");
        None
    }

    pub(super) fn enqueue(&mut self, task: usize) {
        if self.explorer.is_none() {
            let Task { clocks, generation, .. } = &self.tasks[task];
            self.queue.push(Reverse((clocks.now, task as u32, *generation)));
        }
    }

    /// Makes a task the running one.
    pub(super) fn begin(&mut self, task: usize) {
        self.done.switches += 1;
        self.task = task;
        self.cpu = self.tasks[task].cpu;
        self.clocks = self.tasks[task].clocks;
        self.clocks.now += std::mem::take(&mut self.cpus[self.cpu].stolen_ps);
        if self.clocks.now >= self.forget_at {
            self.forget_at = NEVER;
            self.lines.forget_fights();
        }
        self.look_ahead();
    }

    /// Finds out until when the running task need not look around.
    pub(super) fn look_ahead(&mut self) {
        if self.explorer.is_some() {
            (self.horizon, self.limit) = (NEVER, 0);
            return;
        }
        self.horizon = loop {
            let Some(Reverse((clock, task, generation))) = self.queue.peek() else { break NEVER };
            let found = &self.tasks[*task as usize];
            if found.state == State::Ready && found.generation == *generation {
                break *clock;
            }
            self.queue.pop();
        };
        let cpu = &self.cpus[self.cpu];
        let slice_end = if cpu.waiting.is_empty() { NEVER } else { cpu.slice_end };
        self.limit = self
            .horizon
            .saturating_add(self.costs.ahead_ps)
            .min(cpu.next_preemption)
            .min(cpu.next_interrupt)
            .min(slice_end);
    }

    /// Another task of the CPU gets it, if one waits.
    pub(super) fn leave_cpu(&mut self, task: usize) {
        let number = self.tasks[task].cpu;
        let cpu = &mut self.cpus[number];
        if cpu.runner != Some(task as u32) {
            cpu.waiting.retain(|&other| other != task as u32);
            return;
        }
        cpu.runner = cpu.waiting.pop_front();
        let Some(next) = cpu.runner else { return };
        let start = self.tasks[task].clocks.now + self.costs.switch_ps;
        cpu.slice_end = start + SLICE_PS;
        let next = next as usize;
        self.tasks[next].clocks.now = self.tasks[next].clocks.now.max(start);
        self.tasks[next].state = State::Ready;
        self.tasks[next].generation += 1;
        self.enqueue(next);
    }

    /// Makes a task that was blocked ready, or lets it wait for its CPU.
    pub(super) fn wake(&mut self, task: usize, at: u64) {
        let number = self.tasks[task].cpu;
        self.tasks[task].clocks.now = self.tasks[task].clocks.now.max(at);
        // A runner that is blocked, too, needs no CPU: perhaps it waits for what this task holds.
        let is_taken = self.cpus[number].runner.is_some_and(|runner| {
            runner != task as u32 && self.tasks[runner as usize].state != State::Blocked
        });
        let cpu = &mut self.cpus[number];
        if is_taken {
            self.tasks[task].state = State::Descheduled;
            if cpu.waiting.is_empty() {
                cpu.slice_end = at + SLICE_PS;
            }
            cpu.waiting.push_back(task as u32);
            return;
        }
        cpu.runner = Some(task as u32);
        self.tasks[task].state = State::Ready;
        self.tasks[task].generation += 1;
        self.enqueue(task);
        self.look_ahead();
    }

    /// Takes a CPU from the task that has it, for the running task.
    pub(super) fn take_cpu(&mut self, cpu: usize) {
        if let Some(runner) = self.cpus[cpu].runner {
            let other = &mut self.tasks[runner as usize];
            other.aborted |= other.clocks.in_sequence;
            self.clocks.now = self.clocks.now.max(other.clocks.now);
            if other.state == State::Ready {
                other.state = State::Descheduled;
                other.generation += 1;
                self.cpus[cpu].waiting.push_front(runner);
            }
        }
        self.cpus[cpu].runner = Some(self.task as u32);
        self.cpus[cpu].slice_end = self.clocks.now + SLICE_PS;
        self.tasks[self.task].cpu = cpu;
        self.cpu = cpu;
    }

    /// The running task's sequence, if it is in one, is aborted.
    pub(super) fn interrupted(&mut self) {
        self.done.disturbances += 1;
        self.tasks[self.task].aborted |= self.clocks.in_sequence;
    }

    pub(super) fn pop_waiter(&mut self, address: usize) -> Option<usize> {
        let waiters = self.waiters.get_mut(&address)?;
        let first = waiters.pop_front();
        if waiters.is_empty() {
            self.waiters.remove(&address);
        }
        first.map(|task| task as usize)
    }
}

pub(super) fn next(rng: &mut Rng, now: u64, per_s: f64) -> u64 {
    if per_s <= 0.0 {
        return NEVER;
    }
    // Exponential: events that know nothing of each other.
    now + (-(1.0 - rng.f64()).ln() * 1e12 / per_s) as u64 + 1
}
