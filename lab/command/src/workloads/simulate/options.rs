//! Options of `simulate`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use pagedepot_sim::simulate::SIMULATED_MAX;

use pagedepot_cli::args::{positive, seed, whole};
use pagedepot_cli::design::variant::FreeHighPages;
use pagedepot_cli::names::Design;

/// Most CPUs that can be asked for.
pub const CPUS_MAX: u32 = 256;

/// Most CPUs that drain beside them.
const DRAINERS_MAX: u32 = SIMULATED_MAX - CPUS_MAX;

/// Options of `simulate`.
#[derive(Clone, Debug, Args)]
pub struct SimulateOptions {
    /// Numbers of CPUs, separated by commas (default: 1, 2, 4 ... 256)
    #[arg(long, value_name = "N[,N...]", value_parser = cpus, allow_negative_numbers = true)]
    pub cpus: Option<Cpus>,
    /// Simulate only this design; may be repeated (default: all that do the workload)
    #[arg(long = "design", value_name = "NAME", value_parser = Design::parse)]
    pub designs: Vec<Design>,
    /// Seed of everything random
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = seed,
        allow_negative_numbers = true,
    )]
    pub seed: u64,
    /// The machine: a file as docs/simulate.md describes it, or `here` to measure this one
    #[arg(long, value_name = "FILE|here")]
    pub topology: Option<PathBuf>,
    /// Write results for scripts to FILE (-: stdout, and tables to stderr)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Drain all CPUs so many times a second, from CPUs that do nothing else (see --drainers)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub drains: Option<NonZeroU32>,
    /// CPUs that drain; each takes the next drain that is due (default: 1)
    #[arg(
        long,
        value_name = "N",
        requires = "drains",
        value_parser = whole::<DRAINERS_MAX>,
        allow_negative_numbers = true,
    )]
    pub drainers: Option<u32>,
    /// Drains take fronts, too, and fence each CPU
    #[arg(long, requires = "drains")]
    pub full_drains: bool,
    /// Take each CPU from its task so many times a second, for 100 us
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub preemptions: Option<NonZeroU32>,
    /// Interrupt each CPU so many times a second
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub interrupts: Option<NonZeroU32>,
    /// Simulated milliseconds that are measured (default: 5; hot and pagealloc 0.5)
    #[arg(long, value_name = "MS", value_parser = milliseconds, allow_negative_numbers = true)]
    pub milliseconds: Option<f64>,
    /// Simulated milliseconds before them (default: 20; hot and pagealloc 1)
    #[arg(long, value_name = "MS", value_parser = milliseconds, allow_negative_numbers = true)]
    pub warm_up: Option<f64>,
    /// Waiters of a spinlock try again, as in `bench`, instead of standing in a queue, as in the
    /// kernel
    #[arg(long)]
    pub retry_locks: bool,
    /// Pages that a CPU may cache which only frees blocks of orders 1 to 3 (default: 0)
    #[arg(long, value_name = "PAGES")]
    pub free_high: Option<FreeHighPages>,
}

/// Numbers of CPUs, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Vec<u32>);

fn cpus(text: &str) -> Result<Cpus, String> {
    let numbers = text.split(',').map(|number| number.parse().ok());
    let numbers: Option<Vec<u32>> =
        numbers.map(|number| number.filter(|n| (1..=CPUS_MAX).contains(n))).collect();
    let mut numbers =
        numbers.ok_or(format!("give numbers from 1 to {CPUS_MAX}, separated by commas"))?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(Cpus(numbers))
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.001..=10_000.0).contains(number));
    number.ok_or_else(|| "give milliseconds: at least 0.001, and at most 10000".to_owned())
}
