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
//! is better and `100 - new * 100 / base` where lower is. A design of a file is compared with
//! itself in the first file; the designs of one file are compared with its first. By our rule a
//! difference is one of ranks (Mann and Whitney 1947), after correction for the comparisons of the
//! same metric (Holm 1979), and of medians, by a bootstrap interval (Efron 1979): one interrupted
//! window moves neither. The rules of the threads' tables are about means
//! (Welch 1947); a star by p < 0.10 marks, of ten rows without any difference, one.
//!
//! # API
//! ```text
//! Comparison::new(&columns, base, rule)?    // columns from files, or of rows just measured:
//! columns::by_design(report.rows().into_iter().map(ResultRow::from))
//! render::render(&comparison, &stats, medium)
//! ```

mod columns;
mod data;
mod files;
mod measure;
mod measuring;
mod metric;
mod noise;
mod options;
mod rank;
mod render;
mod rule;
mod stats;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod threads;
mod unlike;
mod welch;
mod write;

pub use columns::{NamedDocument, of_files as columns_of};
pub use files::files;
pub use measure::Measurement;
pub use options::CompareOptions;
pub use rule::Rule;
pub use stats::Stat;
pub use summary::{Finding, changed, span};
pub use table::{Comparison, TableLine};
pub use unlike::differences;
