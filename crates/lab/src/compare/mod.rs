//! Comparing results the way mmtests does.
//!
//! # Vocabulary
//! * *column*: what is compared: a design of a file, a file, or a design of a run.
//! * *base*: the column that percentages refer to.
//! * *line*: one figure of a workload over all columns, `workload-N` in mmtests.
//! * *printed*: figures that were published without their samples.
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
mod files;
mod measure;
mod measuring;
mod metric;
mod options;
mod render;
mod rule;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod threads;
mod unlike;
mod welch;
mod write;

pub use files::files;
pub use measure::Measurement;
pub use options::CompareOptions;
