//! Tasks on virtual CPUs, each with a clock.
//!
//! A task is a coroutine. All tasks run on one host thread. A task runs until it has to wait for
//! the CPUs that are behind it; then the task with the earliest clock runs next.
//!
//! Accesses that hit a CPU's own cache may run ahead of the earliest other CPU by
//! `Costs::ahead_ps`, because no other CPU sees them. An access that conflicts with one of them and
//! comes later in the simulation gets a later time, too (`Line::last`). So time never contradicts
//! what was read. On a line that has just moved no CPU runs ahead.
//!
//! Functions that may suspend the running task work on a raw pointer. Other tasks change the
//! machine during a suspension, so no reference to it may live across one.
#![allow(unsafe_code, reason = "tasks reach their machine through a thread-local pointer")]

mod calls;
mod dispatch;
mod task;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fastrand::Rng;

use crate::costs::{CPUS_MAX, Costs};
use crate::lines::{Clocks, LineWaits, Lines};
use crate::schedule::{Explorer, Schedule};

pub use calls::{
    Search, access, barrier, begin_sequence, commit, costs, cpu, end_sequence, fence, fence_all,
    hand_over, now_ps, on_cpu, queue_for, read_clock, search, sleep_until, slow_step, spin, touch,
    touch_object, tree_step, wait_at, wait_begins, wait_ends, waited_ps, wake_all, wake_one, work,
    yield_now,
};

/// Later than every clock.
const NEVER: u64 = u64::MAX;

type Work<'w> = Box<dyn FnOnce() + 'w>;
type Handler = std::rc::Rc<dyn Fn(usize)>;

thread_local! {
    static MACHINE: Cell<*mut Machine> = const { Cell::new(ptr::null_mut()) };
}

/// Events that disturb CPUs at random moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbances {
    /// Times a second that a CPU is taken from its task.
    pub preemptions_per_s: f64,
    /// Duration of a preemption.
    pub preempted_ps: u64,
    /// Interrupts a second on each CPU.
    pub interrupts_per_s: f64,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Accesses, by all CPUs.
    pub events: u64,
    /// Switches from one coroutine to another.
    pub switches: u64,
    /// Sequences that were aborted.
    pub aborts: u64,
    /// Preemptions and interrupts.
    pub disturbances: u64,
    /// Time that each task waited for locks.
    pub waited_ps: Vec<u64>,
    /// The waits for lines, most time first.
    pub fights: Vec<LineWaits>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// Waits at an address.
    Blocked,
    /// Another task has its CPU.
    Descheduled,
    Ended,
}

struct Task {
    coroutine: Option<Coroutine<(), (), (), DefaultStack>>,
    yielder: *const Yielder<(), ()>,
    clocks: Clocks,
    cpu: usize,
    state: State,
    /// Grows whenever an entry of the queue becomes stale.
    generation: u32,
    aborted: bool,
    wait_depth: u32,
    wait_since: u64,
    waited_ps: u64,
}

struct Cpu {
    /// The task that has the CPU.
    runner: Option<u32>,
    waiting: VecDeque<u32>,
    /// Time that interrupts took and the runner has not lost yet.
    stolen_ps: u64,
    slice_end: u64,
    next_preemption: u64,
    next_interrupt: u64,
    in_handler: bool,
}

/// A machine: CPUs, caches, and what runs on them.
pub struct Machine {
    costs: Costs,
    lines: Lines,
    tasks: Vec<Task>,
    cpus: Vec<Cpu>,
    queue: BinaryHeap<Reverse<(u64, u32, u32)>>,
    waiters: HashMap<usize, VecDeque<u32>>,
    explorer: Option<Explorer>,
    disturbances: Disturbances,
    handler: Option<Handler>,
    rng: Rng,
    /// The running task, its CPU and its clocks.
    task: usize,
    cpu: usize,
    clocks: Clocks,
    /// The clock of the earliest other task.
    horizon: u64,
    /// The running task looks around when its clock has passed this.
    limit: u64,
    queued_locks: bool,
    forget_at: u64,
    done: Done,
}

/// The parameters of a machine.
#[derive(Clone)]
pub struct Setup {
    /// Times of accesses and events, and the distances of CPUs.
    pub costs: Costs,
    /// CPUs, at most [`CPUS_MAX`].
    pub cpus: usize,
    /// The rule that chooses the next task.
    pub schedule: Schedule,
    /// Seed of everything random.
    pub seed: u64,
    /// Events that disturb CPUs.
    pub disturbances: Disturbances,
    /// The handler that an interrupt runs on its CPU.
    pub handler: Option<Handler>,
    /// Whether waiters of a spinlock stand in a queue, as in the kernel, or all try again.
    pub queued_locks: bool,
    /// Fights before this time do not count.
    pub forget_before_ps: u64,
    /// Tasks begin one after the other at this distance.
    pub start_apart_ps: u64,
}

impl Setup {
    /// Simulated time on so many CPUs, with nothing that disturbs them.
    pub fn new(costs: Costs, cpus: usize) -> Self {
        Setup {
            costs,
            cpus,
            schedule: Schedule::Earliest,
            seed: 1,
            disturbances: Disturbances::default(),
            handler: None,
            queued_locks: true,
            forget_before_ps: 0,
            start_apart_ps: 0,
        }
    }
}

/// Runs tasks, each on a CPU, until all have ended.
///
/// # Panics
/// When a task panics, when all tasks that are left wait for each other, or inside of a task.
pub fn run<'w>(setup: &Setup, works: Vec<(usize, Work<'w>)>) -> Done {
    assert!(MACHINE.get().is_null(), "a task cannot run a machine of its own");
    assert!((1..=CPUS_MAX).contains(&setup.cpus), "1 to {CPUS_MAX} CPUs");
    let mut machine = Machine::new(setup, works.len());
    for (cpu, work) in works {
        machine.add(cpu, setup.start_apart_ps, work);
    }
    let machine: *mut Machine = &mut machine;
    /// Ends the machine also when a task panics. Tasks that have not ended are unwound when the
    /// machine is dropped, and then run as if there were none.
    struct Switch;
    impl Drop for Switch {
        fn drop(&mut self) {
            MACHINE.set(ptr::null_mut());
        }
    }
    MACHINE.set(machine);
    let switch = Switch;
    while CurrentMachine(machine).step() {}
    drop(switch);
    machine_done(CurrentMachine(machine).get())
}

fn machine_done(machine: &mut Machine) -> Done {
    machine.done.fights = machine.lines.fights();
    machine.done.waited_ps = machine.tasks.iter().map(|task| task.waited_ps).collect();
    std::mem::take(&mut machine.done)
}

/// The machine whose task is running.
#[derive(Clone, Copy)]
struct CurrentMachine(*mut Machine);

/// The machine that this code runs on.
#[inline]
fn running() -> Option<CurrentMachine> {
    let machine = MACHINE.get();
    (!machine.is_null()).then_some(CurrentMachine(machine))
}

impl CurrentMachine {
    /// Lets one task run until it suspends itself; `false` when all have ended.
    fn step(self) -> bool {
        let machine = self.get();
        let Some(number) = machine.next_task() else { return false };
        let task = number as usize;
        machine.begin(task);
        let mut coroutine = machine.tasks[task].coroutine.take().expect("it has not ended");
        let result = coroutine.resume(());
        let machine = self.get();
        if let CoroutineResult::Return(()) = result {
            machine.tasks[task].clocks = machine.clocks;
            machine.tasks[task].state = State::Ended;
            machine.leave_cpu(task);
            return true;
        }
        machine.tasks[task].coroutine = Some(coroutine);
        if machine.tasks[task].state == State::Ready {
            machine.tasks[task].clocks = machine.clocks;
            machine.tasks[task].generation += 1;
            machine.enqueue(task);
        }
        true
    }

    /// The machine, for a moment in which no task is suspended.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "see the module")]
    fn get<'m>(self) -> &'m mut Machine {
        // SAFETY: the pointer is that of `run`, which waits for its tasks. Callers let go of the
        // reference before a task is suspended.
        unsafe { &mut *self.0 }
    }

    /// Lets other tasks run.
    fn suspend(self) {
        let yielder = {
            let machine = self.get();
            machine.tasks[machine.task].yielder
        };
        // SAFETY: the running task's own yielder, which lives as long as its stack.
        unsafe { (*yielder).suspend(()) };
    }
}
