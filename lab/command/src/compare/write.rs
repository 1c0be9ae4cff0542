//! A comparison in the format asked for.

use std::io::{self, Write};

use super::data;
use super::options::{CompareOptions, Format};
use super::render::{self, Medium};
use super::rule::Rule;
use super::stats::Stat;
use super::table::Comparison;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::block::wrapped;
use pagedepot_cli::report::terminal::{fitted_to_stderr, width};

/// The comparison as text; `sources` says where printed figures are from.
///
/// # Errors
/// When it cannot be written in the format.
pub fn written(
    comparison: &Comparison,
    sources: &str,
    options: &CompareOptions,
) -> Result<String, Failure> {
    let usual = if options.rule == Rule::Ours { &[Stat::Median][..] } else { &Stat::MMTESTS };
    let stats = if options.stats.is_empty() { usual } else { &options.stats };
    let failed =
        |e: &dyn std::error::Error| Failure::Run(format!("cannot write the comparison: {e}"));
    Ok(match options.format {
        Format::Text => {
            let sources = sources.trim_end();
            let wrapped =
                if sources.is_empty() { String::new() } else { wrapped(sources, width()) };
            render::render(comparison, stats, Medium::Text) + &wrapped
        }
        Format::Markdown => render::render(comparison, stats, Medium::Markdown) + sources,
        Format::Csv => data::csv(comparison).map_err(|e| failed(&e))?,
        Format::Json => data::json(comparison).map_err(|e| failed(&e))?,
    })
}

/// A comparison behind what its readers should know; programs get it alone, and notes on
/// stderr.
pub fn noted(format: Format, notes: &[String], comparison: String) -> String {
    if !format.is_for_people() {
        for note in notes {
            // Best effort: stderr may be closed.
            let message = fitted_to_stderr(&format!("note: {note}"));
            let _ = writeln!(io::stderr(), "{message}");
        }
        return comparison;
    }
    // Markdown joins lines that are no list.
    let mark = if format == Format::Markdown { "- " } else { "" };
    let line = |note: &String| match format {
        Format::Text => wrapped(note, width()),
        _ => format!("{mark}{note}\n"),
    };
    let notes: String = notes.iter().map(line).collect();
    format!("{notes}\n{comparison}")
}
