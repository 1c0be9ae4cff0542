//! Recorded traces: reading the text of a kernel's page allocator and vmalloc events. Programs
//! write their own with `pagedepot_linux::trace`.
//!
//! # Vocabulary
//! * *trace*: text with one event per line, as `perf script`, tracefs (`trace`, `trace_pipe`) and
//!   `trace-cmd report` print it, plain or compressed with zstd.
//! * *record*: who (task), where (CPU) and when, and what: the *event*.
//! * *skipped line*: unknown event, unfinished, or unreadable. Skipped lines are counted and the
//!   first few are kept to be shown; they never end the reading.
//! * *printable*: of the characters in a trace's names and lines, those that a terminal shows and
//!   does not obey. What is printed of a trace is, because anybody may have written it.
//! * *cut short*: compressed, and ends within the data. What can be read of it is a trace.
//!
//! # Theory
//! A trace is read in one pass and never held in memory. The three formats differ only left of the
//! event's name, so one parser serves them all ([mod@line]); the fields are `key=value` pairs found
//! by key, which survives kernels that add some.

mod error;
mod event;
mod line;
mod reader;
mod zoneinfo;
mod zstd;

pub use error::TraceError;
pub use event::{Event, EventKind, KernelPfn, Record};
pub use line::{Line, parse as parse_line};
pub use reader::{Skipped, Summary, Tally, cut_short, printable, read, read_file};
pub use zoneinfo::{Zone, Zoneinfo};
pub use zstd::ExpandLimit;
