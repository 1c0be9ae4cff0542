//! Tasks on virtual CPUs, each with a clock.
//!
//! A task is a coroutine. It runs on one host thread with all others, until it has to wait for
//! the CPUs that are behind it: the task with the earliest clock runs next. Accesses that hit a
//! CPU's own cache may run ahead of the earliest other CPU by `Costs::ahead_ps`, since no other
//! CPU sees them; an access that conflicts with one of them and comes later in the simulation gets
//! a later time, too (`Line::last`), so that time never contradicts what was read. On a line that
//! moved not long ago no CPU runs ahead.
//!
//! Functions that may suspend the running task work on a raw pointer: other tasks change the
//! machine meanwhile, so no reference to it may live across a suspension.
#![allow(unsafe_code, reason = "tasks reach their machine through a thread-local pointer")]

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::panic::Location;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use fastrand::Rng;

use crate::costs::{CPUS_MAX, Costs};
use crate::lines::{Access, Clocks, Fought, Lines};
use crate::schedule::{Explorer, Schedule};

/// Bytes of a task's stack. Only what is used is ever touched.
const STACK_BYTES: usize = 512 << 10;
/// How long a task has its CPU while another waits for it.
const SLICE_PS: u64 = 50_000_000;
const NEVER: u64 = u64::MAX;

type Work<'w> = Box<dyn FnOnce() + 'w>;
type Handler = std::rc::Rc<dyn Fn(usize)>;

thread_local! {
    static MACHINE: Cell<*mut Machine> = const { Cell::new(ptr::null_mut()) };
}

/// What disturbs CPUs at random moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbances {
    /// Times a second that a CPU is taken from its task.
    pub preemptions_per_s: f64,
    /// For how long.
    pub preempted_ps: u64,
    /// Interrupts a second on each CPU.
    pub interrupts_per_s: f64,
}

/// What a run did.
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
    /// By task, the time that it waited for locks.
    pub waited_ps: Vec<u64>,
    /// What was fought over, most time first.
    pub fights: Vec<Fought>,
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

/// What a machine is made from.
#[derive(Clone)]
pub struct Setup {
    /// See [`Costs`].
    pub costs: Costs,
    /// CPUs, at most [`CPUS_MAX`].
    pub cpus: usize,
    /// Which task runs next.
    pub schedule: Schedule,
    /// Of everything random.
    pub seed: u64,
    /// What disturbs CPUs.
    pub disturbances: Disturbances,
    /// What an interrupt does on the CPU it comes to.
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
    while Running(machine).step() {}
    drop(switch);
    machine_done(Running(machine).get())
}

fn machine_done(machine: &mut Machine) -> Done {
    machine.done.fights = machine.lines.fights();
    machine.done.waited_ps = machine.tasks.iter().map(|task| task.waited_ps).collect();
    std::mem::take(&mut machine.done)
}

impl Machine {
    fn new(setup: &Setup, tasks: usize) -> Self {
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
            lines: Lines::new(&setup.costs, setup.cpus),
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
            clocks: Clocks { now: 0, stored: 0, in_sequence: false },
            horizon: NEVER,
            limit: 0,
            queued_locks: setup.queued_locks,
            forget_at: setup.forget_before_ps,
            done: Done::default(),
        }
    }

    fn add<'w>(&mut self, cpu: usize, apart_ps: u64, work: Work<'w>) {
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
            clocks: Clocks { now, stored: 0, in_sequence: false },
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
    fn next_task(&mut self) -> Option<u32> {
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

    fn check_ended(&self) -> Option<u32> {
        let left = self.tasks.iter().filter(|task| task.state != State::Ended).count();
        assert!(left == 0, "{left} tasks wait for each other");
        None
    }

    fn enqueue(&mut self, task: usize) {
        if self.explorer.is_none() {
            let Task { clocks, generation, .. } = &self.tasks[task];
            self.queue.push(Reverse((clocks.now, task as u32, *generation)));
        }
    }

    /// Makes a task the running one.
    fn begin(&mut self, task: usize) {
        self.done.switches += 1;
        self.task = task;
        self.cpu = self.tasks[task].cpu;
        self.clocks = Clocks { ..self.tasks[task].clocks };
        self.clocks.now += std::mem::take(&mut self.cpus[self.cpu].stolen_ps);
        if self.clocks.now >= self.forget_at {
            self.forget_at = NEVER;
            self.lines.forget_fights();
        }
        self.look_ahead();
    }

    /// Finds out until when the running task need not look around.
    fn look_ahead(&mut self) {
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
    fn leave_cpu(&mut self, task: usize) {
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
    fn wake(&mut self, task: usize, at: u64) {
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
    fn take_cpu(&mut self, cpu: usize) {
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
}

fn next(rng: &mut Rng, now: u64, per_s: f64) -> u64 {
    if per_s <= 0.0 {
        return NEVER;
    }
    // Exponential: events that know nothing of each other.
    now + (-(1.0 - rng.f64()).ln() * 1e12 / per_s) as u64 + 1
}

/// The machine whose task is running.
#[derive(Clone, Copy)]
struct Running(*mut Machine);

/// The machine that this code runs on.
#[inline]
fn running() -> Option<Running> {
    let machine = MACHINE.get();
    (!machine.is_null()).then_some(Running(machine))
}

impl Running {
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
            machine.tasks[task].clocks = Clocks { ..machine.clocks };
            machine.tasks[task].state = State::Ended;
            machine.leave_cpu(task);
            return true;
        }
        machine.tasks[task].coroutine = Some(coroutine);
        if machine.tasks[task].state == State::Ready {
            machine.tasks[task].clocks = Clocks { ..machine.clocks };
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

    #[inline]
    fn access(self, address: usize, access: Access, site: &'static Location<'static>) {
        // When the access asked for its line, and when that can come.
        let mut asked: Option<(u64, u64)> = None;
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
                    return;
                }
                if is_behind && machine.explorer.is_some() {
                    lines.take(at, access, *cpu);
                    machine.done.events += 1;
                    return;
                }
                if is_behind {
                    let now = clocks.now;
                    let slot = *asked
                        .get_or_insert_with(|| (now, lines.ask(at, access, *cpu, now, costs)));
                    let waits = matches!(access, Access::Load | Access::Rmw);
                    if !waits || slot.1 <= now {
                        lines.miss(at, access, *cpu, clocks, costs, slot, site);
                        machine.done.events += 1;
                        return;
                    }
                    clocks.now = slot.1;
                    continue;
                }
            }
            self.suspend();
        }
    }

    /// The clock has passed the limit: other tasks, or events, are due.
    #[cold]
    #[inline(never)]
    fn look_around(self) {
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
    fn interrupt(self) {
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
    fn give_way(self) {
        let machine = self.get();
        let task = machine.task;
        machine.interrupted();
        machine.tasks[task].clocks = Clocks { ..machine.clocks };
        machine.cpus[machine.cpu].waiting.push_back(task as u32);
        machine.tasks[task].state = State::Descheduled;
        machine.leave_cpu(task);
        self.suspend();
    }

    /// Blocks the running task until another wakes it at `address`.
    fn block(self, address: usize) {
        let machine = self.get();
        let task = machine.task;
        machine.waiters.entry(address).or_default().push_back(task as u32);
        machine.tasks[task].clocks = Clocks { ..machine.clocks };
        machine.tasks[task].state = State::Blocked;
        if !machine.cpus[machine.cpu].waiting.is_empty() {
            machine.leave_cpu(task);
        }
        self.suspend();
    }
}

impl Machine {
    /// The running task's sequence, if it is in one, is aborted.
    fn interrupted(&mut self) {
        self.done.disturbances += 1;
        self.tasks[self.task].aborted |= self.clocks.in_sequence;
    }

    fn pop_waiter(&mut self, address: usize) -> Option<usize> {
        let waiters = self.waiters.get_mut(&address)?;
        let first = waiters.pop_front();
        if waiters.is_empty() {
            self.waiters.remove(&address);
        }
        first.map(|task| task as usize)
    }
}

/// Accounts for an access of the running task; outside of a machine it costs nothing.
#[inline]
#[track_caller]
pub fn access(address: usize, access: Access) {
    if let Some(running) = running() {
        running.access(address, access, Location::caller());
    }
}

/// Accounts for accesses to all lines of a value that is no atomic.
#[inline]
#[track_caller]
pub fn touch<T: ?Sized>(value: &T, how: Access) {
    if let Some(running) = running() {
        let start = ptr::from_ref(value).cast::<u8>().addr();
        for offset in (0..size_of_val(value).max(1)).step_by(64) {
            running.access(start + offset, how, Location::caller());
        }
    }
}

/// Accounts for a search in a tree of `len` entries whose nodes are in places of their own, each with
/// 8 ways on and two lines, and for a change of the last if `changes`.
///
/// The nodes that a search passes follow from its key, so that two searches meet at the root and
/// part where their keys do.
#[track_caller]
pub fn search<M>(map: &M, (len, key): (usize, u32), changes: bool) {
    /// No memory lies there: bit 63 of an address in a program is 0.
    const APART: usize = 1 << 63;
    let Some(running) = running() else { return };
    let site = Location::caller();
    let map = ptr::from_ref(map).addr();
    let depth = (len.max(1).ilog2() / 3 + 1) as usize;
    // Keys of one map spread over its leaves.
    let place = key.wrapping_mul(0x9e37_79b9) as usize;
    for level in 0..depth {
        let node = (place & ((1 << (3 * level)) - 1)) << 4 | level;
        let address = APART | (map << 24 ^ node << 7) & (APART - 1);
        running.access(address, Access::Load, site);
        let last = if changes && level + 1 == depth { Access::Store } else { Access::Load };
        running.access(address + 64, last, site);
    }
}

/// The running task works for so long on what no other CPU sees.
#[inline]
pub fn work(ps: u64) {
    if let Some(running) = running() {
        running.get().clocks.now += ps;
    }
}

/// The running task begins a step of a path that is seldom taken.
#[inline]
pub fn slow_step() {
    if let Some(running) = running() {
        running.get().clocks.now += running.get().costs.slow_step_ps;
    }
}

/// The running task's clock; 0 outside of a machine.
#[inline]
pub fn now_ps() -> u64 {
    running().map_or(0, |running| running.get().clocks.now)
}

/// The CPU of the running task.
#[inline]
pub fn cpu() -> Option<usize> {
    running().map(|running| running.get().cpu)
}

/// What accesses cost; `None` outside of a machine.
pub fn costs() -> Option<Costs> {
    running().map(|running| running.get().costs.clone())
}

/// A full barrier.
pub fn barrier() {
    if let Some(running) = running() {
        let machine = running.get();
        machine.clocks.now = machine.clocks.now.max(machine.clocks.stored) + machine.costs.rmw_ps;
    }
}

/// A turn of a spin loop.
pub fn spin() {
    let Some(running) = running() else { return };
    let machine = running.get();
    machine.clocks.now += machine.costs.spin_ps;
    let task = machine.task;
    if let Some(explorer) = &mut machine.explorer {
        explorer.spins(task);
        running.suspend();
    }
}

/// The running task sleeps until its clock shows `ps`, while others run.
pub fn sleep_until(ps: u64) {
    let Some(running) = running() else { return };
    let machine = running.get();
    machine.clocks.now = machine.clocks.now.max(ps);
    if machine.explorer.is_some() || machine.clocks.now > machine.horizon {
        running.suspend();
    }
}

/// Lets other tasks of this CPU run.
pub fn yield_now() {
    let Some(running) = running() else { return };
    let machine = running.get();
    machine.clocks.now += machine.costs.switch_ps / 4;
    if machine.cpus[machine.cpu].waiting.is_empty() {
        spin();
    } else {
        running.give_way();
    }
}

/// Begins a restartable sequence: until it ends, an interrupt, a preemption or a fence aborts it.
#[inline]
pub fn begin_sequence() {
    if let Some(running) = running() {
        let machine = running.get();
        machine.clocks.in_sequence = true;
        machine.tasks[machine.task].aborted = false;
    }
}

/// Ends a sequence that has nothing to commit.
#[inline]
pub fn end_sequence() {
    if let Some(running) = running() {
        running.get().clocks.in_sequence = false;
    }
}

/// Ends a sequence by a store to `address`, which the caller makes at once. `false`: the sequence
/// was aborted, and the caller must not store.
#[inline]
#[track_caller]
pub fn commit(address: usize) -> bool {
    let Some(running) = running() else { return true };
    running.access(address, Access::Store, Location::caller());
    let machine = running.get();
    machine.clocks.in_sequence = false;
    let task = &machine.tasks[machine.task];
    machine.done.aborts += u64::from(task.aborted);
    !task.aborted
}

/// Interrupts `cpu`: no sequence that began there before this call commits afterwards.
pub fn fence(cpu: usize) {
    let Some(running) = running() else { return };
    while running.get().clocks.now > running.get().horizon {
        running.suspend();
    }
    let machine = running.get();
    machine.clocks.now = machine.clocks.now.max(machine.clocks.stored);
    machine.clocks.now += machine.costs.fence_ps;
    let Some(interrupted) = machine.cpus.get_mut(cpu) else { return };
    interrupted.stolen_ps += machine.costs.interrupt_ps;
    machine.done.disturbances += 1;
    let runner = interrupted.runner.map(|runner| runner as usize);
    if let Some(runner) = runner.filter(|&runner| runner != machine.task) {
        let task = &mut machine.tasks[runner];
        task.aborted |= task.clocks.in_sequence;
    }
}

/// Interrupts all other CPUs by one broadcast.
pub fn fence_all() {
    let Some(running) = running() else { return };
    while running.get().clocks.now > running.get().horizon {
        running.suspend();
    }
    let machine = running.get();
    machine.clocks.now = machine.clocks.now.max(machine.clocks.stored) + machine.costs.fence_ps;
    for (number, cpu) in machine.cpus.iter_mut().enumerate() {
        if number != machine.cpu {
            cpu.stolen_ps += machine.costs.interrupt_ps;
            let runner = cpu.runner.map(|runner| &mut machine.tasks[runner as usize]);
            runner.into_iter().for_each(|task| task.aborted |= task.clocks.in_sequence);
        }
    }
    machine.done.disturbances += machine.cpus.len() as u64 - 1;
}

/// Moves the running task to another CPU, which preempts that CPU's own, for as long as `work`
/// takes. `None`: there is no such CPU.
pub fn on_cpu<R>(cpu: usize, work: impl FnOnce() -> R) -> Option<R> {
    /// Moves back, also when `work` panics.
    struct Home(usize);
    impl Drop for Home {
        fn drop(&mut self) {
            let Some(running) = running() else { return };
            let machine = running.get();
            let task = machine.task;
            machine.tasks[task].clocks = Clocks { ..machine.clocks };
            machine.leave_cpu(task);
            machine.clocks.now += machine.costs.switch_ps;
            machine.take_cpu(self.0);
            machine.look_ahead();
        }
    }
    let Some(running) = running() else { return Some(work()) };
    while running.get().clocks.now > running.get().horizon {
        running.suspend();
    }
    let machine = running.get();
    if cpu >= machine.cpus.len() {
        return None;
    }
    let (home, task) = (machine.cpu, machine.task);
    machine.clocks.now += machine.costs.fence_ps + machine.costs.switch_ps;
    machine.done.disturbances += 1;
    machine.tasks[task].clocks = Clocks { ..machine.clocks };
    machine.leave_cpu(task);
    machine.take_cpu(cpu);
    machine.look_ahead();
    let _home = Home(home);
    Some(work())
}

/// Blocks the running task until [`wake_one`] or [`wake_all`] names the address. The caller has
/// just seen that it must wait, with no access in between.
pub fn wait_at(address: usize) {
    let Some(running) = running() else { return };
    let machine = running.get();
    machine.clocks.now += machine.costs.switch_ps / 2;
    running.block(address);
}

/// Wakes one task that waits at the address; `false` if none does.
pub fn wake_one(address: usize) -> bool {
    let Some(running) = running() else { return false };
    let machine = running.get();
    machine.clocks.now += machine.costs.switch_ps / 4;
    let Some(task) = machine.pop_waiter(address) else { return false };
    machine.wake(task, machine.clocks.now + machine.costs.switch_ps);
    true
}

/// Wakes all tasks that wait at the address.
pub fn wake_all(address: usize) {
    while wake_one(address) {}
}

/// Waits in the queue of the lock at `address` until its holder hands it over. `false`: waiters of
/// this machine try again instead.
pub fn queue_for(address: usize) -> bool {
    let Some(running) = running() else { panic!("a lock is held, and no task is left to free it") };
    if !running.get().queued_locks {
        return false;
    }
    wait_begins();
    running.block(address);
    wait_ends();
    true
}

/// Makes the store that frees the lock at `address`. `true`: a task waits in its queue and has the
/// lock now, which stays held. `false`: none waits, and the caller stores what means "free" at
/// once, without another access.
///
/// The holder writes the waiter's line, which waits on it, and owns the lock's line then: one
/// transfer, as in the kernel's queued spinlock.
#[track_caller]
pub fn hand_over(address: usize) -> bool {
    let Some(running) = running() else { return false };
    // First: other tasks may run meanwhile, and begin to wait.
    running.access(address, Access::Store, Location::caller());
    let machine = running.get();
    let Some(task) = machine.pop_waiter(address) else { return false };
    let now = machine.clocks.now.max(machine.clocks.stored);
    let transfer = machine.costs.transfer(machine.cpu, machine.tasks[task].cpu);
    machine.wake(task, now + transfer);
    true
}

/// The running task begins to wait for a lock. Calls may nest: the outermost counts.
pub fn wait_begins() {
    if let Some(running) = running() {
        let machine = running.get();
        let task = &mut machine.tasks[machine.task];
        task.wait_depth += 1;
        if task.wait_depth == 1 {
            task.wait_since = machine.clocks.now;
        }
    }
}

/// The running task has the lock, or gave up.
pub fn wait_ends() {
    if let Some(running) = running() {
        let machine = running.get();
        let task = &mut machine.tasks[machine.task];
        task.wait_depth -= 1;
        if task.wait_depth == 0 {
            task.waited_ps += machine.clocks.now - task.wait_since;
        }
    }
}

/// What the running task has waited for locks so far.
pub fn waited_ps() -> u64 {
    running().map_or(0, |running| running.get().tasks[running.get().task].waited_ps)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::atomic::{AtomicU64, Ordering};
    use crate::lock::Mutex;

    fn setup(cpus: usize) -> Setup {
        Setup::new(Costs::default(), cpus)
    }

    fn on_each<'w>(cpus: usize, work: impl Fn(usize) + 'w) -> Vec<(usize, Work<'w>)> {
        let work = Rc::new(work);
        (0..cpus)
            .map(|cpu| {
                let work = Rc::clone(&work);
                (cpu, Box::new(move || work(cpu)) as Work<'w>)
            })
            .collect()
    }

    /// Two CPUs that pass a line to and fro: a transfer each way.
    #[test]
    fn a_round_trip_is_two_transfers() {
        for other in [1, 8, 128] {
            let ball = AtomicU64::new(0);
            let end = Cell::new(0);
            let player = |of: u64| {
                let (ball, end) = (&ball, &end);
                Box::new(move || {
                    for turn in 0..1000 {
                        while ball.load(Ordering::Acquire) != 2 * turn + of {
                            work(1000);
                        }
                        ball.fetch_add(1, Ordering::Release);
                    }
                    end.set(now_ps());
                }) as Work<'_>
            };
            let costs = Costs::default();
            run(&setup(256), vec![(0, player(0)), (other, player(1))]);
            let trip = end.get() / 1000;
            // The waiting CPU's load moves the line, and its change then invalidates a copy.
            let least = 2 * costs.transfer(0, other);
            assert!((least..=3 * least).contains(&trip), "{other}: {trip} ps, of {least}");
        }
    }

    /// A lock that n CPUs want gives each its turn, and a turn costs a transfer.
    #[test]
    fn a_lock_serves_one_cpu_at_a_time_in_turn() {
        for cpus in [2, 8] {
            let shared = Mutex::new(0u64);
            let turns = RefCell::new(vec![0u64; cpus]);
            let works = on_each(cpus, |cpu| {
                for _ in 0..100 {
                    let mut count = shared.lock().unwrap();
                    *count += 1;
                    turns.borrow_mut()[cpu] = now_ps();
                }
            });
            let done = run(&setup(cpus), works);
            let end = *turns.borrow().iter().max().unwrap();
            assert_eq!(*shared.lock().unwrap(), 100 * cpus as u64);
            let turn = end / (100 * cpus as u64);
            let near = Costs::default().transfer_ps[0];
            assert!((near..3 * near).contains(&turn), "{cpus} CPUs: {turn} ps a turn");
            let waited: u64 = done.waited_ps.iter().sum();
            assert!(waited > end * (cpus as u64 - 1) * 3 / 4, "{cpus} CPUs waited {waited} ps");
            assert!(done.fights[0].site.file().ends_with("engine.rs"), "the caller of `lock`");
        }
    }

    #[test]
    fn a_seed_gives_one_history() {
        let history = |seed, schedule| {
            #[repr(align(128))]
            struct Words([AtomicU64; 4]);
            let words = Box::new(Words([const { AtomicU64::new(0) }; 4]));
            let words = &words.0;
            let log = RefCell::new(Vec::new());
            let works = on_each(16, |cpu| {
                for step in 0..50 {
                    let before = words[(cpu + step) % 4].fetch_add(1, Ordering::AcqRel);
                    log.borrow_mut().push((cpu, before));
                }
            });
            run(&Setup { seed, schedule, ..setup(16) }, works);
            log.into_inner()
        };
        let pct = Schedule::Pct { changes: 3, steps: 800 };
        for schedule in [Schedule::Earliest, Schedule::Random { stretch: 3 }, pct] {
            assert!(history(7, schedule) == history(7, schedule), "{schedule:?}");
            assert!(history(7, schedule) != history(8, schedule), "{schedule:?}");
        }
    }

    #[test]
    fn a_fence_aborts_the_sequence_that_it_meets() {
        let (word, flag) = (AtomicU64::new(0), AtomicU64::new(0));
        let outcome = Cell::new(None);
        let owner = Box::new(|| {
            begin_sequence();
            let seen = word.load(Ordering::Relaxed);
            flag.store(1, Ordering::Release);
            // Until the fence has passed, seen from within the sequence.
            while flag.load(Ordering::Acquire) != 2 {
                work(10_000);
            }
            outcome.set(Some(word.commit(seen + 1)));
            begin_sequence();
            assert!(word.commit(5), "the next one is not aborted");
        }) as Work<'_>;
        let drainer = Box::new(|| {
            while flag.load(Ordering::Acquire) != 1 {
                work(10_000);
            }
            fence(0);
            flag.store(2, Ordering::Release);
        }) as Work<'_>;
        let done = run(&setup(2), vec![(0, owner), (1, drainer)]);
        assert_eq!((outcome.get(), done.aborts), (Some(false), 1));
        assert_eq!(word.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_visitor_preempts_and_the_owner_goes_on() {
        let word = AtomicU64::new(0);
        let ends = Cell::new((0, 0));
        let owner = Box::new(|| {
            for _ in 0..100_000 {
                word.fetch_add(1, Ordering::Relaxed);
            }
            ends.set((now_ps(), ends.get().1));
        }) as Work<'_>;
        let visitor = Box::new(|| {
            on_cpu(0, || {
                assert_eq!(cpu(), Some(0));
                work(30_000_000);
                word.fetch_add(1, Ordering::Relaxed);
                ends.set((ends.get().0, now_ps()));
            });
            assert_eq!(cpu(), Some(1));
        }) as Work<'_>;
        run(&setup(2), vec![(0, owner), (1, visitor)]);
        let alone = 100_000 * Costs::default().rmw_ps;
        let (owner, visitor) = ends.get();
        assert!(visitor >= 30_000_000 && owner > alone + 30_000_000, "{owner} {visitor}");
        assert_eq!(word.load(Ordering::Relaxed), 100_001);
    }

    /// A visitor waits for a lock that the owner of its CPU gets first.
    #[test]
    fn an_owner_that_gets_a_lock_runs_though_a_visitor_waits() {
        let lock = Mutex::new(0);
        let owner = Box::new(|| *lock.lock().unwrap() += 1) as Work<'_>;
        let holder = Box::new(|| {
            let _held = lock.lock().unwrap();
            work(50_000_000);
        }) as Work<'_>;
        let visitor = Box::new(|| {
            sleep_until(10_000_000);
            on_cpu(0, || *lock.lock().unwrap() += 1);
        }) as Work<'_>;
        let setup = Setup { start_apart_ps: 1_000_000, ..setup(3) };
        run(&setup, vec![(1, holder), (0, owner), (2, visitor)]);
        assert_eq!(*lock.lock().unwrap(), 2);
    }

    #[test]
    fn disturbances_come_as_often_as_asked_for() {
        let handled = Rc::new(Cell::new(0));
        let count = Rc::clone(&handled);
        let disturbances = Disturbances {
            preemptions_per_s: 1000.0,
            preempted_ps: 1_000_000,
            interrupts_per_s: 10_000.0,
        };
        let handler: Handler = Rc::new(move |_| count.set(count.get() + 1));
        let setup = Setup { disturbances, handler: Some(handler), ..setup(4) };
        let words: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let done = run(
            &setup,
            on_each(4, |cpu| {
                while now_ps() < 20_000_000_000 {
                    words[16 * cpu].store(1, Ordering::Relaxed);
                    work(5_000);
                }
            }),
        );
        // 4 CPUs for 20 ms.
        assert!((600..1000).contains(&handled.get()), "{}", handled.get());
        assert!((650..1100).contains(&done.disturbances), "{}", done.disturbances);
    }

    #[test]
    #[should_panic(expected = "wait for each other")]
    fn tasks_that_wait_for_each_other_are_found() {
        run(&setup(1), vec![(0, Box::new(|| wait_at(8)))]);
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller_and_the_next_machine_runs() {
        let lock = Mutex::new(());
        let works = on_each(4, |cpu| {
            let _held = lock.lock().unwrap();
            assert!(cpu != 2, "as asked");
        });
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&setup(4), works)));
        assert!(result.is_err());
        run(&setup(1), vec![(0, Box::new(|| assert_eq!(cpu(), Some(0))))]);
    }
}
