//! Recorded traces: reading the text of a kernel's page allocator and vmalloc events. Programs
//! write their own with `pagedepot_linux::trace`.
//!
//! # Vocabulary
//! * *trace*: text with one event per line, as `perf script`, tracefs (`trace`, `trace_pipe`) and
//!   `trace-cmd report` print it, plain or compressed with zstd.
//! * *record*: an *event* with its task, CPU and time.
//! * *skipped line*: unknown event, unfinished, or unreadable. Skipped lines are counted and the
//!   first few are kept to be shown; they never end the reading.
//! * *printable*: without the characters that a terminal obeys instead of showing. Everything of a
//!   trace is made printable before it is shown, because the file may come from anywhere.
//! * *cut short*: compressed, and the file ends within the data. The part before is used.
//!
//! # Theory
//! A trace is read in one pass and never held in memory. The three formats differ only left of the
//! event's name, so one parser serves them all ([`parse_line`]); the fields are `key=value` pairs
//! found by key, which survives kernels that add some.

mod buddyinfo;
mod error;
mod event;
mod line;
mod pagetypeinfo;
mod reader;
mod zoneinfo;
mod zstd;

use std::fs;
use std::path::Path;

pub use buddyinfo::{Buddyinfo, FreeBlocks};
pub use error::TraceError;
pub use event::{Event, EventCounts, EventKind, KernelPfn, Record};
pub use line::{Line, parse as parse_line};
pub use pagetypeinfo::Pagetypeinfo;
pub use reader::{Example, Skipped, Summary, Tally, cut_short, printable, read, read_file};
pub use zoneinfo::{Pageset, Zone, Zoneinfo};
pub use zstd::ExpandLimit;

/// Parses the text of a small file, with its path for the name that errors tell.
fn parse_file<T>(
    path: &Path,
    parse: impl FnOnce(&str, &str) -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    let name = path.display().to_string();
    match fs::read(path) {
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes), &name),
        Err(source) => Err(TraceError::Open { name, source }),
    }
}

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
