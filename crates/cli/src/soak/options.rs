//! Options of `soak`.

use clap::Args;

use crate::args;

/// Most processes of a storm: a segment has 47 slots, and those of the dead are still taken.
pub const PROCESSES_MAX: u32 = 16;

/// Options of `soak`.
#[derive(Clone, Debug, Args)]
pub struct SoakOptions {
    /// Processes share a depot, and are killed at random
    #[arg(long)]
    pub shared: bool,
    /// End after so many kills
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = args::whole::<{ u32::MAX }>,
        allow_negative_numbers = true,
    )]
    pub kills: u32,
    /// Processes at a time
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = args::whole::<PROCESSES_MAX>,
        allow_negative_numbers = true,
    )]
    pub processes: u32,
    /// Seed of everything random; the moments of kills depend on the machine, too
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = args::seed,
        allow_negative_numbers = true,
    )]
    pub seed: u64,
}
