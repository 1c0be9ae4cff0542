//! Options of `soak`.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use pagedepot_cli::args::{positive, seed};
use pagedepot_cli::design::variant::Variant;
use pagedepot_cli::names::Design;

/// Options of `soak`.
#[derive(Clone, Debug, Args)]
pub struct SoakOptions {
    /// Length of the soak in minutes; fractions are allowed
    #[arg(
        long,
        value_name = "MINUTES",
        default_value = "5",
        value_parser = time,
        allow_negative_numbers = true,
    )]
    pub minutes: Duration,
    /// Drains per second
    #[arg(
        long,
        value_name = "N",
        default_value = "100",
        value_parser = positive,
        allow_negative_numbers = true,
    )]
    pub drains: NonZeroU32,
    /// Soak only this design; may be repeated
    #[arg(long = "design", value_name = "NAME", value_parser = Design::parse)]
    pub designs: Vec<Design>,
    /// Use so many CPUs (default: all)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub cpus: Option<NonZeroU32>,
    /// Write results for scripts to FILE (-: stdout, and tables to stderr)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seed of everything random
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = seed,
        allow_negative_numbers = true,
    )]
    pub seed: u64,
    #[command(flatten)]
    pub variant: Variant,
}

/// Longest soak: a year.
const MINUTES_MAX: u32 = 365 * 24 * 60;

fn time(minutes: &str) -> Result<Duration, String> {
    let minutes: f64 = minutes.parse().unwrap_or(f64::NAN);
    let time = Duration::try_from_secs_f64(minutes * 60.0).ok();
    let time =
        time.filter(|time| !time.is_zero() && *time <= MINUTES_MAX * Duration::from_secs(60));
    time.ok_or_else(|| format!("give a number of minutes above 0, and at most {MINUTES_MAX}"))
}
