//! Options of `compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::measuring::MeasurementArgs;
use super::rule::Rule;
use super::stats::Stat;
use pagedepot_cli::report::baseline;

/// Options of `compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareOptions {
    /// Result files, as --json writes them; - for standard input. Designs of one file, or files,
    /// or both become columns. Without files, designs are measured now
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A linux-mm thread's own table, as if it were a FILE; may be repeated. An unknown NAME is
    /// answered with those there are
    #[arg(long = "threads", value_name = "NAME")]
    pub threads: Vec<String>,
    /// Compare with this column (default: the first)
    #[arg(long, value_name = "COLUMN")]
    pub base: Option<String>,
    /// Make a column of each value of this param, such as batch, threads or policy
    #[arg(long, value_name = "PARAM")]
    pub by: Option<String>,
    /// Only this design; may be repeated. If designs are measured now, the first is the base
    #[arg(long = "design", value_name = "NAME")]
    pub designs: Vec<String>,
    /// Only this workload; may be repeated
    #[arg(long = "workload", value_name = "NAME")]
    pub workloads: Vec<String>,
    /// Only this metric; may be repeated
    #[arg(long = "metric", value_name = "NAME")]
    pub metrics: Vec<String>,
    /// Only this statistic, in text and Markdown; may be repeated
    #[arg(long = "stat", value_name = "NAME")]
    pub stats: Vec<Stat>,
    /// The rule for marking a difference
    #[arg(long, default_value = "ours")]
    pub rule: Rule,
    /// The output format
    #[arg(long, default_value = "text")]
    pub format: Format,
    /// Compare files of different machines or settings
    #[arg(long)]
    pub force: bool,
    /// Compare with the results that --save-baseline NAME kept
    #[arg(long, value_name = "NAME", value_parser = baseline::name, conflicts_with = "base")]
    pub baseline: Option<String>,
    /// Exit with 3 if a median is worse by more than this, by the rule (such as 5%)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_above: Option<f64>,
    #[command(flatten)]
    pub measuring: MeasurementArgs,
}

/// `5` or `5%`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "give a percentage of at least 0, such as 5%".to_owned())
}

impl CompareOptions {
    /// Whether there are no results yet.
    pub fn is_to_measure(&self) -> bool {
        self.files.is_empty() && self.threads.is_empty()
    }
}

/// The form in which a comparison is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Markdown,
    Csv,
    Json,
}

impl Format {
    /// Whether people read it, so that machine and notes go with it.
    pub fn is_for_people(self) -> bool {
        matches!(self, Format::Text | Format::Markdown)
    }
}
