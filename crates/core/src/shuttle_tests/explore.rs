//! The run of a model under shuttle's schedulers. The models of all crates use this file.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use super::rng;

/// Schedules of each kind, unless `PAGEDEPOT_SHUTTLE_SCHEDULES` says otherwise.
const SCHEDULES: u64 = 12;
/// Schedules within which a mutant must be found. They end with the first that finds it.
const SCHEDULES_MUTANT: u64 = 20_000;
/// Schedules that a seed means: the first one tells a PCT scheduler how long a run is.
const RUNS: u64 = 6;
/// Changes of priority in a run, plus one: the depth of the mistakes that PCT looks for.
const PCT_DEPTH: usize = 3;

/// Says how to repeat the run that a panic ended.
struct Repeat<'r> {
    name: &'r str,
    scheduler: &'r str,
    seed: u64,
}

impl Drop for Repeat<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Repeat { name, scheduler, seed } = self;
            eprintln!(
                "{name}: failed under the {scheduler} scheduler; PAGEDEPOT_SEED={seed} repeats it"
            );
        }
    }
}

/// Runs a model under both schedulers.
pub fn explore(name: &str, model: fn()) {
    let schedules = std::env::var("PAGEDEPOT_SHUTTLE_SCHEDULES").map_or(SCHEDULES, |schedules| {
        schedules.parse().expect("PAGEDEPOT_SHUTTLE_SCHEDULES is a number of schedules, as in 1000")
    });
    explore_schedules(name, schedules, model);
}

/// Runs a model that must fail; the panic of its failure goes on.
pub fn explore_failing(name: &str, model: fn()) {
    explore_schedules(name, SCHEDULES_MUTANT, model);
}

fn explore_schedules(name: &str, schedules: u64, model: fn()) {
    let seeds = rng::seed(name)..;
    let start = std::time::Instant::now();
    for seed in seeds.take(schedules.div_ceil(RUNS) as usize) {
        let random = RandomScheduler::new_from_seed(seed, RUNS as usize);
        run(Repeat { name, scheduler: "random", seed }, random, model);
        let pct = PctScheduler::new_from_seed(seed, PCT_DEPTH, RUNS as usize);
        run(Repeat { name, scheduler: "PCT", seed }, pct, model);
    }
    println!("{name}: {schedules} schedules of each kind, {:.1?}", start.elapsed());
}

fn run(repeat: Repeat<'_>, scheduler: impl Scheduler + 'static, model: fn()) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true;
    // The seed says it shorter than the schedule.
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(5_000_000);
    Runner::new(scheduler, config).run(model);
    drop(repeat);
}
