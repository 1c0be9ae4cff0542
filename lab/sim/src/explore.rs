//! Random schedules of many CPUs over one allocator, at counts that no model checker reaches.
//!
//! Every CPU allocates and frees blocks of several orders while drainers take back what CPUs cache.
//! A ledger notes which CPU holds each frame, so that a frame handed out twice is seen at once. At
//! the end every frame must be in exactly one place (`validate`), and none may be missing.

use std::cell::RefCell;

use fastrand::Rng;
pub use pagedepot::sync::model::Mutant;
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn};
use pagedepot_designs::{PageCache, Scope};
use pagedepot_sim_machine::{Costs, Disturbances, Schedule, Setup, mutant, run};

use crate::designs::{here, paged};

/// An exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// The design's name, of [`PAGED`](crate::designs::PAGED).
    pub design: String,
    /// CPUs that allocate and free.
    pub cpus: u32,
    /// Operations of each CPU.
    pub steps: u32,
    /// The kinds of drain, one of which is chosen at random each time.
    pub modes: &'static [Mode],
    /// The rule that chooses the next task.
    pub schedule: Schedule,
    /// Seed of the schedule, and of the CPUs' operations.
    pub seed: u64,
}

/// Runs code with one step of the allocator left out, to test what explorations find.
pub fn with_mutant<R>(mutant: Mutant, work: impl FnOnce() -> R) -> R {
    /// Puts the step back, also when `work` panics.
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            mutant::set(None);
        }
    }
    mutant::set(Some(mutant as u8));
    let _back = Back;
    work()
}

/// Little memory, so that CPUs meet in the store.
const PAGES_PER_CPU: u32 = 1 << 12;

struct Ledger(RefCell<Vec<u32>>);

impl Ledger {
    fn note(&self, start: Pfn, frames: u32, from: u32, to: u32) {
        for mark in &mut self.0.borrow_mut()[start.index()..][..frames as usize] {
            assert!(*mark == from, "{start} + {frames} was handed out twice, or freed twice");
            *mark = to;
        }
    }
}

/// Runs one schedule. Returns the number of accesses that it made.
///
/// # Errors
/// The fault that the design's own check found, or how many frames are lost.
///
/// # Panics
/// When a frame is handed out twice.
pub fn explore(exploration: &Exploration) -> Result<u64, String> {
    let Exploration { design, cpus, steps, modes, schedule, seed } = exploration;
    let mut cache = paged(design, *cpus, PAGES_PER_CPU, None).map_err(|error| error.to_string())?;
    let frames = cache.free_pages();
    let ledger = Ledger(RefCell::new(vec![0; frames as usize]));
    // Enough drainers that an owner meets one although hundreds of tasks take turns.
    let drainers = (*cpus as usize / 16).max(1);
    let setup = Setup {
        schedule: *schedule,
        seed: *seed,
        disturbances: Disturbances::default(),
        ..Setup::new(Costs::default(), *cpus as usize + 1 + drainers)
    };
    let done = {
        let (cache, ledger) = (&*cache, &ledger);
        let mut works: Vec<(usize, Box<dyn FnOnce() + '_>)> = (0..*cpus as usize)
            .map(|cpu| {
                let rng = Rng::with_seed(seed ^ (cpu as u64 + 1) << 32);
                let work = move || own(cache, ledger, cpu, *steps, rng);
                (cpu, Box::new(work) as Box<dyn FnOnce() + '_>)
            })
            .collect();
        let drainer = *cpus as usize;
        let quiet = move || (0..4).for_each(|_| _ = cache.drain(Scope::ALL, Mode::Quiet));
        works.push((drainer, Box::new(quiet)));
        // Drains one CPU after the other, in random order: a drain of all CPUs would meet most of
        // them when they are done.
        for nth in 0..drainers {
            let mut rng = Rng::with_seed(seed ^ nth as u64);
            let fronts = move || {
                for _ in 0..(cpus * 2).min(64) {
                    let cpu = CpuId::new(rng.u32(..*cpus));
                    cache.drain(Scope::cpu(cpu), modes[rng.usize(..modes.len())]);
                }
            };
            works.push((drainer + 1 + nth, Box::new(fronts)));
        }
        run(&setup, works)
    };
    let census = cache.validate().map_err(|fault| fault.to_string())?;
    let found =
        census.free_pages + census.cached_pages + census.pending_pages + census.overhead_pages;
    if found == frames {
        Ok(done.events)
    } else {
        Err(format!("{found} of {frames} frames are left"))
    }
}

/// A CPU allocates and frees, and in the end frees all.
fn own(cache: &dyn PageCache, ledger: &Ledger, cpu: usize, steps: u32, mut rng: Rng) {
    let (here, number) = (here(cpu), cpu as u32 + 1);
    let mut held = Vec::new();
    let free = |held: &mut Vec<(Pfn, Order)>, at: usize| {
        let (pfn, order) = held.swap_remove(at);
        ledger.note(pfn, order.frames(), number, 0);
        cache.free(here, pfn, order);
    };
    for _ in 0..steps {
        if held.is_empty() || rng.u8(..8) < 5 {
            let order = Order::new([0, 0, 0, 0, 1, 2, 3][rng.usize(..7)]).expect("small orders");
            if let Some(pfn) = cache.alloc(here, order, Mobility::Movable) {
                ledger.note(pfn, order.frames(), 0, number);
                held.push((pfn, order));
            }
        } else {
            let at = rng.usize(..held.len());
            free(&mut held, at);
        }
    }
    while !held.is_empty() {
        free(&mut held, 0);
    }
    cache.idle(here);
}
