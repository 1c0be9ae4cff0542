//! Options of the commands that measure.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use crate::args::{RUNS_MAX, mebibytes, order, percent, positive, seed, whole};
use crate::names::Design;
use crate::report::baseline;

/// Options of every measurement.
#[derive(Clone, Debug, Default, Args)]
pub struct MeasureOptions {
    /// Measure only this design; may be repeated. An unknown NAME is answered with those there are
    #[arg(long = "design", value_name = "NAME", value_parser = Design::parse)]
    pub designs: Vec<Design>,
    /// Use so many CPUs (default: all). A replay acts as so many CPUs of its trace, and gives them
    /// the work of the others, too
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub cpus: Option<NonZeroU32>,
    /// Take so many samples, where they are not counts (default: 31, with --quick 11; replay 5;
    /// fragmentation, mixed and stress 3, with --quick 1; giveback 1; recoveries of shared have 5
    /// to 11)
    #[arg(long, value_name = "N", value_parser = whole::<RUNS_MAX>, allow_negative_numbers = true)]
    pub runs: Option<u32>,
    /// Shorter windows and smaller workloads: quick, but too noisy to judge by
    #[arg(long)]
    pub quick: bool,
    /// Write results for scripts to FILE (-: stdout, and tables to stderr)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also keep the results as the baseline NAME, for `compare --baseline NAME`
    #[arg(long, value_name = "NAME", value_parser = baseline::name)]
    pub save_baseline: Option<String>,
    /// Seed of everything random
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = seed,
        allow_negative_numbers = true,
    )]
    pub seed: u64,
}

/// Options of `bench` alone.
#[derive(Clone, Debug, Default, Args)]
pub struct BenchOptions {
    /// Force so many drains of all CPUs per second behind the workload
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub drains: Option<NonZeroU32>,
    /// ring-stream: vary --free-high, buffers in flight and streams
    #[arg(long)]
    pub tune: bool,
    /// giveback: the program goes on working after its peak
    #[arg(long)]
    pub busy: bool,
    /// giveback --busy: draw the memory present over time into FILE, as SVG
    #[arg(long, value_name = "FILE", requires = "busy")]
    pub svg: Option<PathBuf>,
    /// pagealloc: measure blocks of 2^N pages, 0 to 10; may be repeated (default: 0, 1, 2, 3, 4,
    /// 9; with --quick 0, 3, 9)
    #[arg(long = "order", value_name = "N", value_parser = order, allow_negative_numbers = true)]
    pub orders: Vec<u32>,
}

/// Most rounds of one run: each has rows of its own.
const FILL_ROUNDS_MAX: u32 = 10_000;
/// Ten times what is published: more than the memory has free.
const SURGES_MAX: u32 = 1000;

/// Options of workloads that fill memory.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Memory that is filled (bench fragmentation, mixed and stress)")]
pub struct FillOptions {
    /// Memory in MiB (default: fragmentation and stress 4096, with --quick 64; mixed 16384, with
    /// --quick 512)
    #[arg(long, value_name = "MIB", value_parser = mebibytes, allow_negative_numbers = true)]
    pub memory_mib: Option<u32>,
    /// Share of the memory that is free in the end, in percent (default: fragmentation 50, mixed
    /// 30)
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    pub free_percent: Option<u32>,
    /// Rounds (default: fragmentation 100; mixed 20, with --quick 3; stress 48, with --quick 8)
    #[arg(
        long,
        value_name = "N",
        value_parser = whole::<FILL_ROUNDS_MAX>,
        allow_negative_numbers = true,
    )]
    pub rounds: Option<u32>,
    /// mixed: by how much kinds surge, in percent of what is published (default: 100)
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = whole::<SURGES_MAX>,
        allow_negative_numbers = true,
    )]
    pub surges: Option<u32>,
    /// mixed: no design moves blocks during the rounds
    #[arg(long)]
    pub no_moves: bool,
}

impl FillOptions {
    /// An option that the user gave.
    pub fn given(&self) -> Option<&'static str> {
        [
            (self.memory_mib.is_some(), "--memory-mib"),
            (self.free_percent.is_some(), "--free-percent"),
            (self.rounds.is_some(), "--rounds"),
            (self.surges.is_some(), "--surges"),
            (self.no_moves, "--no-moves"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}
