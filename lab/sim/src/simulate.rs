//! One simulation: a design, a workload, a number of CPUs.

use std::cell::RefCell;
use std::time::Instant;

use pagedepot::Mode;
use pagedepot_designs::FreeHighLimit;
use pagedepot_sim_machine::lines::LineWaits;
use pagedepot_sim_machine::{CPUS_MAX, Disturbances, Done, Schedule, Setup, run};

use crate::designs;
use crate::meeting::Meeting;
use crate::topology::{Topology, ps};
use crate::vmalloc::{self, AreaStock};
use crate::workloads::{self, CpuWork, Drains, PageWorker, Window, Workload};

/// The most CPUs that a workload and the drains beside it may have together.
pub const SIMULATED_MAX: u32 = CPUS_MAX as u32;

/// CPUs begin their work one after the other, as threads do.
const START_APART_PS: u64 = 2_000_000;

/// The options of a simulation.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The workload.
    pub workload: Workload,
    /// The design's name: of [`designs::PAGED`], or of [`designs::VMAPS`] for `vmalloc`.
    pub design: String,
    /// CPUs at work.
    pub cpus: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// The machine.
    pub topology: Topology,
    /// Drains of all CPUs in a second; 0: none.
    pub drains_per_s: f64,
    /// CPUs that drain, besides those at work.
    pub drainers: u32,
    /// The kind of drain.
    pub drain_mode: Mode,
    /// Events that disturb CPUs.
    pub disturbances: Disturbances,
    /// Time to simulate before the window in which operations count.
    pub warm_up_ms: f64,
    /// Length of that window.
    pub window_ms: f64,
    /// Whether waiters of a spinlock stand in a queue (as in the kernel) or all try again (as
    /// `bench` has them).
    pub queued_locks: bool,
    /// Limit for a CPU that only frees high orders, for designs with that rule. `None`: their
    /// default.
    pub free_high: Option<FreeHighLimit>,
}

impl Simulation {
    /// A millisecond on the default machine, after one to warm up.
    pub fn new(workload: Workload, design: &str, cpus: u32) -> Self {
        Simulation {
            workload,
            design: design.to_owned(),
            cpus,
            seed: 1,
            topology: Topology::default(),
            drains_per_s: 0.0,
            drainers: 1,
            drain_mode: Mode::Quiet,
            disturbances: Disturbances::default(),
            warm_up_ms: 1.0,
            window_ms: 1.0,
            queued_locks: true,
            free_high: None,
        }
    }

    /// Whether the design can do the workload.
    pub fn is_possible(&self) -> bool {
        names(self.workload).contains(&self.design.as_str())
    }
}

/// The designs that can do a workload.
pub fn names(workload: Workload) -> &'static [&'static str] {
    if workload == Workload::Vmalloc { &designs::VMAPS } else { &designs::PAGED }
}

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationResult {
    /// Operations in a simulated second, over all CPUs.
    pub ops_per_s: f64,
    /// The part of the CPUs' time in which they waited for locks.
    pub lock_wait_share: f64,
    /// Accesses that were simulated, warming up included.
    pub events: u64,
    /// Host seconds that they took.
    pub host_s: f64,
    /// Drains, those before the window included.
    pub drains: u64,
    /// Drains in a second of the window. Fewer than asked for: the drainers cannot keep up.
    pub drains_per_s: f64,
    /// Sequences that were aborted.
    pub aborts: u64,
    /// The waits of CPUs for lines in the window, most time first.
    pub fights: Vec<LineWaits>,
    /// CPU time of the window, in picoseconds, over all CPUs.
    pub cpu_ps: u64,
}

type Work<'w> = (usize, Box<dyn FnOnce() + 'w>);

/// Runs a simulation, and checks the design's metadata afterwards.
///
/// # Errors
/// Why the design cannot be made, or what is wrong with its metadata.
///
/// # Panics
/// When the design cannot do the workload, or there are more than [`SIMULATED_MAX`] CPUs and
/// drainers.
pub fn simulate(simulation: &Simulation) -> Result<SimulationResult, String> {
    let cpus = simulation.cpus + simulation.drainers;
    assert!(simulation.is_possible() && cpus <= SIMULATED_MAX);
    let (begin, length) = (ps(simulation.warm_up_ms * 1e6), ps(simulation.window_ms * 1e6));
    let window = Window { begin_ps: begin, end_ps: begin + length };
    let setup = Setup {
        schedule: Schedule::Earliest,
        seed: simulation.seed,
        disturbances: simulation.disturbances,
        queued_locks: simulation.queued_locks,
        forget_before_ps: begin,
        start_apart_ps: START_APART_PS,
        ..Setup::new(simulation.topology.costs(), cpus as usize)
    };
    let started = Instant::now();
    let drains = Drains::new(simulation.drains_per_s, simulation.drain_mode);
    let (done, shares) = if simulation.workload == Workload::Vmalloc {
        on_addresses(simulation, &setup, &window)?
    } else {
        on_pages(simulation, &setup, &window, &drains)?
    };
    let cpu_ps: u64 = shares.iter().map(|share| share.ps).sum();
    let rate = |share: &CpuWork| share.ops as f64 * 1e12 / share.ps.max(1) as f64;
    let waited_ps: u64 = shares.iter().map(|share| share.waited_ps).sum();
    Ok(SimulationResult {
        ops_per_s: shares.iter().map(rate).sum(),
        lock_wait_share: waited_ps as f64 / cpu_ps.max(1) as f64,
        events: done.events,
        host_s: started.elapsed().as_secs_f64(),
        drains: drains.ended(),
        drains_per_s: drains.reached_per_s(&window),
        aborts: done.aborts,
        fights: done.fights,
        cpu_ps,
    })
}

/// The result of the machine, and the share of each CPU.
type Outcome = (Done, Vec<CpuWork>);

/// Each CPU at `work`.
fn on_each<'w>(cpus: u32, work: &'w dyn Fn(usize)) -> Vec<Work<'w>> {
    (0..cpus as usize).map(|cpu| (cpu, Box::new(move || work(cpu)) as Box<dyn FnOnce()>)).collect()
}

fn on_addresses(
    simulation: &Simulation,
    setup: &Setup,
    window: &Window,
) -> Result<Outcome, String> {
    let cpus = simulation.cpus;
    let held = AreaStock::kernel(cpus);
    let mut design = designs::vmap(&simulation.design, cpus, held, &simulation.topology)?;
    held.make(&*design);
    let shares = RefCell::new(Vec::new());
    let done = {
        let work = |_| {
            // Before the borrow, because other CPUs end during the call.
            let share = vmalloc::run(&*design, window);
            shares.borrow_mut().push(share);
        };
        run(setup, on_each(cpus, &work))
    };
    design.validate()?;
    Ok((done, shares.into_inner()))
}

fn on_pages(
    simulation: &Simulation,
    setup: &Setup,
    window: &Window,
    drains: &Drains,
) -> Result<Outcome, String> {
    let &Simulation { workload, cpus, drains_per_s, drainers, free_high, .. } = simulation;
    let made = designs::paged(&simulation.design, cpus, designs::PAGES_PER_CPU, free_high);
    let mut cache = made.map_err(|error| error.to_string())?;
    let rings = workloads::rings(workload, cpus as usize);
    let shares = RefCell::new(Vec::new());
    let done = {
        let paged = PageWorker {
            cache: &*cache,
            design: &simulation.design,
            topology: &simulation.topology,
            rings: &rings,
            cpus: cpus as usize,
            exits: Meeting::default(),
        };
        let work = |cpu| {
            // Before the borrow, because other CPUs end during the call.
            let share = paged.run(workload, cpu, window);
            shares.borrow_mut().push(share);
        };
        let mut works = on_each(cpus, &work);
        if drains_per_s > 0.0 {
            for drainer in cpus..cpus + drainers {
                let cache = paged.cache;
                works.push((drainer as usize, Box::new(move || drains.run(cache, window))));
            }
        }
        run(setup, works)
    };
    // Every page is in one place. Pages that CPUs held when the window ended count as held.
    cache.validate().map_err(|fault| fault.to_string())?;
    Ok((done, shares.into_inner()))
}
