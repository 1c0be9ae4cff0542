//! The calls of simulated code. Outside of a machine these cost nothing and do nothing.

use std::panic::Location;
use std::ptr;

use super::running;
use crate::costs::Costs;
use crate::lines::Access;

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

/// Accounts for a step down a tree to `node`, whose line begins with it.
#[inline]
#[track_caller]
pub fn tree_step<T>(node: &T) {
    if let Some(running) = running() {
        running.tree_step(ptr::from_ref(node).addr(), Location::caller());
    }
}

/// A search that a task makes in a sorted map whose nodes it cannot show.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Entries.
    pub len: usize,
    /// The key that is looked for.
    pub key: u32,
    /// The largest key.
    pub last: u32,
    /// Whether the key is added or removed.
    pub changes: bool,
}

/// Accounts for a search in a balanced binary tree in which each entry has a line of its own, and
/// for the changes of a red-black tree of the kernel's `vmap_area`s: of the entry, of the one above
/// it, and of its other neighbour in the list of all.
///
/// Keys lie about evenly between 0 and the largest, so that searches for keys that are neighbours
/// part near the leaves. What a tree needs to stay balanced is left out: a rotation for every few
/// changes.
#[track_caller]
pub fn search<M>(map: &M, search: Search) {
    /// No memory lies there: bit 63 of an address in a program is 0.
    const APART: usize = 1 << 63;
    let Some(running) = running() else { return };
    let site = Location::caller();
    let map = ptr::from_ref(map).addr();
    let Search { len, key, last, changes } = search;
    let depth = len.max(1).ilog2() + 1;
    let address = |level: u32, place: u64| {
        let node = 1 << level | place as usize;
        APART | (map << 24 ^ node << 6) & (APART / 2 - 1)
    };
    let place = |level| (u64::from(key) << level) / (u64::from(last.max(key)) + 1);
    for level in 0..depth {
        let address = address(level, place(level));
        running.tree_step(address, site);
        if changes && level + 2 >= depth {
            running.access(address, Access::Store, site);
        }
    }
    if changes {
        running.access(address(depth - 1, place(depth - 1) ^ 1), Access::Store, site);
    }
}

/// Accounts for a change of an object of one line that has a number and no address.
#[track_caller]
pub fn touch_object(number: u32) {
    /// Neither memory nor nodes of [`search`] lie there.
    const APART: usize = 3 << 62;
    if let Some(running) = running() {
        running.access(APART | (number as usize) << 6, Access::Store, Location::caller());
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

/// Reads the clock like [`now_ps`], by a call that takes its time where waiters of a spinlock try
/// again, as programs do. A kernel's queued spinlock does not read the clock.
pub fn read_clock() -> u64 {
    if let Some(running) = running()
        && !running.get().queued_locks
    {
        running.get().clocks.now += running.get().costs.clock_ps;
    }
    now_ps()
}

/// The CPU of the running task.
#[inline]
pub fn cpu() -> Option<usize> {
    running().map(|running| running.get().cpu)
}

/// The costs of accesses; `None` outside of a machine.
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

/// The running task sleeps until its clock shows `ps`, while others run. A task that waits for this
/// CPU gets it, perhaps for longer: it may hold what others need before this task can go on.
pub fn sleep_until(ps: u64) {
    let Some(running) = running() else { return };
    let machine = running.get();
    if !machine.cpus[machine.cpu].waiting.is_empty() {
        running.give_way();
    }
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

/// Ends a sequence by a change at `address`, which the caller makes at once. `false`: the sequence
/// was aborted, and the caller must change nothing.
#[inline]
#[track_caller]
pub fn commit(address: usize, how: Access) -> bool {
    let Some(running) = running() else { return true };
    running.access(address, how, Location::caller());
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
            machine.tasks[task].clocks = machine.clocks;
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
    machine.tasks[task].clocks = machine.clocks;
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

/// Time that the running task has waited for locks so far.
pub fn waited_ps() -> u64 {
    running().map_or(0, |running| running.get().tasks[running.get().task].waited_ps)
}
