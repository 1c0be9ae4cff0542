//! Comparing results the way mmtests does.
//!
//! # Vocabulary
//! * *column*: what is compared: a design of a file, a file, or a design of a run.
//! * *base*: the column that percentages refer to.
//! * *line*: one figure of a workload over all columns, `workload-N` in mmtests.
//! * *printed*: figures somebody published, without their samples.
//! * *star*: marks a difference that a rule finds significant.
//!
//! # Theory
//! Percentages have mmtests' sign: positive is always better, `new * 100 / base - 100` where higher
//! is better and `100 - new * 100 / base` where lower is. A star by p < 0.10 marks, of ten rows
//! without any difference, one: hence our own rule, which corrects p for the number of comparisons
//! (Holm 1979) and prints how many samples there were, how large the difference may be, and how
//! large it is beside the spread. Tests and intervals are about arithmetic means (Welch 1947), as
//! mmtests' are, also where the harmonic mean is shown.
//!
//! # API
//! ```text
//! Comparison::new(&columns, base, rule)?    // columns from files, or of rows just measured:
//! columns::by_design(report.rows().into_iter().map(ResultRow::from))
//! render::render(&comparison, &stats, medium)
//! ```

mod columns;
mod data;
mod document;
mod measure;
mod metric;
mod render;
mod rule;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod threads;
mod unlike;
mod welch;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::report::printable;
use columns::Named;
use document::Document;
use render::Medium;
use rule::Rule;
use stats::Stat;
use table::Comparison;

use measure::Measuring;
pub use measure::Plan;

/// Options of `compare`.
#[derive(Clone, Debug, Args)]
pub struct Options {
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
    /// Only this design; may be repeated. Of designs measured now, the first is compared with
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
    /// What earns a star
    #[arg(long, default_value = "ours")]
    pub rule: Rule,
    /// How to write it
    #[arg(long, default_value = "text")]
    pub format: Format,
    /// Compare files of other machines or settings all the same
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub measuring: Measuring,
}

impl Options {
    /// Whether there are no results yet.
    pub fn is_to_measure(&self) -> bool {
        self.files.is_empty() && self.threads.is_empty()
    }
}

/// How to write a comparison.
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

    /// A comparison behind what its readers should know; programs get it alone, and notes on
    /// stderr.
    fn noted(self, notes: &[String], comparison: String) -> String {
        if !self.is_for_people() {
            for note in notes {
                // Nobody may be reading stderr.
                let _ = writeln!(io::stderr(), "note: {note}");
            }
            return comparison;
        }
        // Markdown joins lines that are no list.
        let mark = if self == Format::Markdown { "- " } else { "" };
        let notes: String = notes.iter().map(|note| format!("{mark}{note}\n")).collect();
        format!("{notes}\n{comparison}")
    }
}

/// Files compared.
#[derive(Debug)]
pub struct Compared {
    /// For stdout.
    pub text: String,
    /// For stderr: why to take it with a grain of salt.
    pub warnings: Vec<String>,
}

/// Compares result files.
///
/// # Errors
/// When a file is no result file, or they have nothing in common that could be compared.
pub fn files(options: &Options) -> Result<Compared, Failure> {
    options.measuring.refuse_for_files()?;
    let mut files =
        options.threads.iter().map(|name| threads::load(name)).collect::<Result<Vec<_>, _>>()?;
    for path in &options.files {
        files.push(Named { document: Document::load(path)?, path: path.clone() });
    }
    let warnings = unlike::differences(&files);
    if !options.force && !warnings.is_empty() {
        return Err(Failure::Usage(refusal(&warnings)));
    }
    let sources = sources(&files);
    let mut columns = columns::of_files(files);
    columns::keep(&mut columns, "design", &options.designs, |row| &row.design)?;
    columns::keep(&mut columns, "workload", &options.workloads, |row| &row.workload)?;
    columns::keep(&mut columns, "metric", &options.metrics, |row| &row.metric)?;
    if let Some(param) = &options.by {
        columns = columns::split(columns, param)?;
    }
    if columns.len() < 2 && options.threads.is_empty() {
        return Err(Failure::Usage(
            "there is one design in one file: nothing to compare; give another file".to_owned(),
        ));
    }
    let comparison = Comparison::new(&columns, options.base.as_deref(), options.rule)?;
    Ok(Compared { text: written(&comparison, &sources, options)?, warnings })
}

fn written(comparison: &Comparison, sources: &str, options: &Options) -> Result<String, Failure> {
    let stats = if options.stats.is_empty() { &Stat::ALL[..] } else { &options.stats };
    let failed =
        |e: &dyn std::error::Error| Failure::Run(format!("cannot write the comparison: {e}"));
    Ok(match options.format {
        Format::Text => render::render(comparison, stats, Medium::Text) + sources,
        Format::Markdown => render::render(comparison, stats, Medium::Markdown) + sources,
        Format::Csv => data::csv(comparison).map_err(|e| failed(&e))?,
        Format::Json => data::json(comparison).map_err(|e| failed(&e))?,
    })
}

/// One line, however much differs.
fn refusal(differences: &[String]) -> String {
    let more = match differences.len() {
        1 => String::new(),
        n => format!(" (and {} more differences)", n - 1),
    };
    format!("unlike results: {}{more}; give --force to compare them all the same", differences[0])
}

/// Where printed figures are from.
fn sources(files: &[Named]) -> String {
    let named =
        files.iter().filter_map(|file| Some((file.path.display(), file.document.source.as_ref()?)));
    named.map(|(path, source)| format!("{path}: {}\n", printable(source))).collect()
}
