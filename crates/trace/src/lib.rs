//! Recorded traces: reading the text of a kernel's page allocator and vmalloc events. Programs
//! write their own with `pagedepot_linux::trace`.
//!
//! # Vocabulary
//! * *trace*: text with one event per line, as `perf script`, tracefs (`trace`, `trace_pipe`) and
//!   `trace-cmd report` print it, plain or compressed with zstd.
//! * *record*: an *event* with its task, CPU and time.
//! * *skipped line*: unknown event, unfinished, or unreadable. Skipped lines are counted and the
//!   first few are kept to be shown; they never end the reading.
//! * *function*: a frame of a call chain, or a call that a function tracer shows. Such lines are
//!   counted, too.
//! * *notation*: what a line tells and in which form; perf and tracefs have options for it.
//! * *printable*: without the characters that a terminal obeys instead of showing. Everything of a
//!   trace is made printable before it is shown, because the file may come from anywhere.
//! * *cut short*: compressed, and the file ends within the data. The part before is used.
//!
//! # Theory
//! A trace is read in one pass and never held in memory. The formats differ only left of the
//! event's name, so one parser serves them all ([`parse_line`]); the fields are `key=value` pairs
//! found by key, which survives kernels that add some.
//!
//! Nothing is left out or counted twice in silence. A file that is read as a whole
//! (`/proc/zoneinfo` and the like) is refused where a line is missing, unfinished or there twice;
//! a [`Summary`] counts each line of a trace that is no event.

mod buddyinfo;
mod error;
mod event;
mod header;
mod input;
mod line;
mod listing;
mod notation;
mod others;
mod pagetypeinfo;
mod reader;
mod zoneinfo;
mod zstd;

pub use buddyinfo::{Buddyinfo, FreeBlocks};
pub use error::TraceError;
pub use event::{Event, EventCounts, EventKind, KernelPfn, Record};
pub use line::{Line, parse as parse_line};
pub use notation::{Clock, Notation};
pub use pagetypeinfo::Pagetypeinfo;
pub use reader::{
    Example, SkipCounts, StepBack, Summary, Tally, cut_short, printable, read, read_file,
};
pub use zoneinfo::{Pageset, Zone, Zoneinfo};
pub use zstd::ExpandLimit;

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
