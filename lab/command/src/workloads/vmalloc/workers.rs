//! Workers, each running all tests in an order of its own, and what came of it.

use std::sync::RwLock;
use std::time::{Duration, Instant};

use pagedepot_lab_designs::vmap::{VmapCounts, VmapDesign};
use pagedepot_vmap::{Host, VmapError};

use super::host::contended_ns;
use super::options::Parameters;
use super::suite::{HeldAreas, TESTS, Test, Worker};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::clock::{on_cpu_ns, ticks};

/// A worker needs little stack: its lists are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// Results of a worker's runs of a test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    pub passed: u32,
    pub failed: u32,
    /// Failed as expected.
    pub xfailed: u32,
    /// Mean time of a run.
    pub wall: Duration,
    /// Error of an unexpected failure.
    pub error: Option<VmapError>,
}

/// Results of a worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerResult {
    /// Runs by test; `None` for tests that were skipped or not asked for.
    pub tests: [Option<Runs>; TESTS.len()],
    pub cycles: u64,
    pub on_cpu_ns: u64,
    pub contended_ns: u64,
}

/// Results of all workers in one pass.
pub struct Pass {
    pub workers: Vec<WorkerResult>,
    pub wall: Duration,
    /// Counts before the pass.
    pub before: VmapCounts,
    /// Counts after the pass.
    pub after: VmapCounts,
    /// Counts after a purge of all that was lazy or pooled.
    pub purged: VmapCounts,
}

impl Pass {
    fn sum(&self, of: impl Fn(&WorkerResult) -> u64) -> u64 {
        self.workers.iter().map(of).sum()
    }

    /// Share of the time on a CPU that was spent in contended lock acquisitions.
    pub fn lock_wait_share(&self) -> f64 {
        self.sum(|worked| worked.contended_ns) as f64
            / self.sum(|worked| worked.on_cpu_ns).max(1) as f64
    }

    /// Share of the allocations that a pool served.
    pub fn pool_hit_rate(&self) -> f64 {
        let (before, after) = (&self.before, &self.after);
        let allocated = after.allocated_areas - before.allocated_areas;
        (after.pool_hits - before.pool_hits) as f64 / allocated.max(1) as f64
    }

    /// Growth of a counter, the purge at the end included.
    pub fn grown(&self, of: impl Fn(&VmapCounts) -> u64) -> u64 {
        of(&self.purged) - of(&self.before)
    }

    /// Nanoseconds per loop of a test, of each worker.
    pub fn loop_ns(&self, nth: usize, parameters: &Parameters) -> Vec<f64> {
        let loops = TESTS[nth].1.loops(parameters);
        let runs = self.workers.iter().filter_map(|worked| worked.tests[nth]);
        runs.map(|runs| runs.wall.as_nanos() as f64 / f64::from(loops)).collect()
    }

    /// Number of unexpected failures, and the error of one of them.
    pub fn failures(&self) -> (u32, Option<VmapError>) {
        let runs = || self.workers.iter().flat_map(|worked| worked.tests.iter().flatten());
        (runs().map(|runs| runs.failed).sum(), runs().find_map(|runs| runs.error))
    }
}

/// The orders to the workers.
pub struct WorkOrder<'o> {
    pub parameters: &'o Parameters,
    pub held: HeldAreas,
    pub is_mapped: bool,
    pub seed: u64,
}

/// Runs the workers to their end.
///
/// # Errors
/// When threads cannot be had, or the design's metadata is wrong afterwards.
pub fn pass<D: VmapDesign, H: Host>(
    design: &mut D,
    host: &H,
    orders: &WorkOrder<'_>,
) -> Result<Pass, Failure> {
    design.reset_tables_max();
    let before = design.counts();
    let (workers, wall) = run_workers(&*design, host, orders)?;
    let after = design.counts();
    design.purge();
    let purged = design.counts();
    design
        .validate()
        .map_err(|fault| Failure::Run(format!("{} has lost track: {fault}", design.name())))?;
    Ok(Pass { workers, wall, before, after, purged })
}

fn run_workers<D: VmapDesign, H: Host>(
    design: &D,
    host: &H,
    orders: &WorkOrder<'_>,
) -> Result<(Vec<WorkerResult>, Duration), Failure> {
    // Held for writing until all workers are there, like the kernel's; then says whether to begin.
    let prepare_for_test = RwLock::new(false);
    let count = orders.parameters.nr_threads;
    std::thread::scope(|scope| {
        let mut begin = prepare_for_test.write().expect("no thread panics with it");
        let mut workers = Vec::new();
        for number in 0..count {
            let (worker, begin) = (orders.worker(design, host, number.into()), &prepare_for_test);
            let work = move || begin.read().is_ok_and(|begin| *begin).then(|| work(worker));
            let spawned =
                std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
            workers.push(spawned.map_err(|error| {
                Failure::Run(format!(
                    "cannot start {count} workers: {error}; give a smaller --nr-threads, or \
                     raise `ulimit -u`"
                ))
            })?);
        }
        *begin = true;
        let start = Instant::now();
        drop(begin);
        let worked =
            workers.into_iter().filter_map(|worker| worker.join().expect("a worker panicked"));
        Ok((worked.collect(), start.elapsed()))
    })
}

impl WorkOrder<'_> {
    fn worker<'w, D, H>(&'w self, design: &'w D, host: &'w H, number: u64) -> Worker<'w, D, H> {
        let random =
            fastrand::Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number));
        let WorkOrder { parameters, held, is_mapped, .. } = *self;
        Worker { design, host, parameters, held, is_mapped, random }
    }
}

fn work<D: VmapDesign, H: Host>(mut worker: Worker<'_, D, H>) -> WorkerResult {
    let mut order: [usize; TESTS.len()] = std::array::from_fn(|nth| nth);
    if !worker.parameters.sequential {
        worker.random.shuffle(&mut order);
    }
    let mut worked = WorkerResult::default();
    let (start, on_cpu, contended) = (ticks(), on_cpu_ns(), contended_ns());
    for nth in order {
        let test = TESTS[nth].1;
        if test != Test::NotHere && worker.parameters.run_test_mask >> nth & 1 == 1 {
            worked.tests[nth] = Some(repeat(&mut worker, test));
        }
    }
    worked.cycles = ticks() - start;
    worked.on_cpu_ns = on_cpu_ns() - on_cpu;
    worked.contended_ns = contended_ns() - contended;
    worked
}

fn repeat<D: VmapDesign, H: Host>(worker: &mut Worker<'_, D, H>, test: Test) -> Runs {
    let mut runs = Runs::default();
    let start = Instant::now();
    for _ in 0..worker.parameters.test_repeat_count {
        match worker.run(test) {
            Ok(()) => runs.passed += 1,
            Err(_) if test.expects_failure() => runs.xfailed += 1,
            Err(error) => {
                runs.failed += 1;
                runs.error = Some(error);
            }
        }
    }
    runs.wall = start.elapsed() / worker.parameters.test_repeat_count;
    runs
}
