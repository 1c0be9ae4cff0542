//! Options of a comparison that measures.

use std::path::PathBuf;

use clap::Args;

use pagedepot_cli::args;
use pagedepot_cli::design::variant::Variant;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::baseline;
use pagedepot_cli::workloads::clients::Clients;
use pagedepot_cli::workloads::options::{BenchOptions, FillOptions};

/// Options of the measurement.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Without FILE: measuring")]
pub struct MeasurementArgs {
    /// Shorter windows and smaller workloads: quick, but too noisy to judge by
    #[arg(long, conflicts_with_all = ["files", "threads"])]
    pub quick: bool,
    /// Numbers of clients, one per CPU, separated by commas; or auto, as mmtests would: of touch
    /// and pft from 1 to all CPUs in growing steps, at most 128; of others 1, 2, 4 ... and all
    #[arg(long, value_name = "auto|LIST", default_value = "auto", value_parser = Clients::parse)]
    #[arg(conflicts_with_all = ["files", "threads"], allow_hyphen_values = true)]
    pub clients: Clients,
    /// Take so many samples (default: 31, with --quick 11)
    #[arg(long, value_name = "N", value_parser = args::whole::<{ args::RUNS_MAX }>)]
    #[arg(conflicts_with_all = ["files", "threads"], allow_negative_numbers = true)]
    pub runs: Option<u32>,
    /// Also write the samples to FILE, to be compared with others later (-: stdout, and the
    /// comparison to stderr)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "threads"])]
    pub json: Option<PathBuf>,
    /// Also keep the samples as the baseline NAME
    #[arg(long, value_name = "NAME", value_parser = baseline::name)]
    #[arg(conflicts_with_all = ["files", "threads"])]
    pub save_baseline: Option<String>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = args::seed)]
    #[arg(conflicts_with_all = ["files", "threads"], allow_negative_numbers = true)]
    pub seed: u64,
    #[command(flatten)]
    pub more: BenchOptions,
    #[command(flatten)]
    pub fill: FillOptions,
    #[command(flatten)]
    pub variant: Variant,
}

impl MeasurementArgs {
    /// Refuses options of measurements where results are read from files. (clap refuses the other
    /// options.)
    ///
    /// # Errors
    /// When one is given.
    pub fn refuse_for_files(&self) -> Result<(), Failure> {
        let chosen = if self.more.drains.is_some() {
            "--drains"
        } else if self.more.tune {
            "--tune"
        } else if self.more.busy {
            "--busy"
        } else if !self.more.orders.is_empty() {
            "--order"
        } else if let Some(option) = self.fill.given() {
            option
        } else if let Some(unused) = self.variant.unused(&[]) {
            return Err(Failure::Usage(unused));
        } else {
            return Ok(());
        };
        Err(Failure::Usage(format!(
            "{chosen} is for measuring: give it without FILE and --threads"
        )))
    }
}
