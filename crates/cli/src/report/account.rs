//! The account of an input, of what was read and what was not: one line for people, and an object
//! for scripts.

use std::fmt;

use pagedepot_trace::{SkipCounts, Summary, Tally, cut_short};
use serde::Serialize;

use super::printable;

/// Steps back in time of at least this much are those between two recordings.
const RECORDING_NS: u64 = 1_000_000_000;

/// The account of a trace and of the files beside it.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    name: String,
    lines: u64,
    events: u64,
    /// Parts that were left out, or taken for something that the input does not tell.
    parts: Vec<Part>,
}

/// One kind of thing that was left out or taken otherwise.
#[derive(Clone, Debug, Serialize)]
struct Part {
    /// The name for scripts.
    what: &'static str,
    count: u64,
    text: String,
}

impl Account {
    /// Accounts for a trace: its events, and the lines that are no events.
    pub fn new(name: &str, trace: &Summary) -> Self {
        let (lines, events) = (trace.lines, trace.counts.total());
        let mut account = Account { name: printable(name), lines, events, parts: Vec::new() };
        account.add_skipped(&trace.skipped);
        account.add("functions", trace.functions, "frames or calls of functions: left out");
        account.add("lost", trace.lost_events, "events lost by the recorder: give it more buffers");
        if trace.is_cut_short {
            account.push("cut_short", 1, cut_short(trace.lines));
        }
        account.add("without_cpu", trace.without_cpu, "events name no CPU: taken for CPU 0's");
        account.add(
            "without_time",
            trace.without_time,
            "events tell no time: taken for that of the event above them",
        );
        account.add(
            "in_ticks",
            trace.in_ticks,
            "events have times without a unit (trace clock tsc or counter): one is taken for 1 ns",
        );
        account.add("old_names", trace.old_names, "events have names of kernels before 3.3");
        account.add_steps_back(trace);
        account
    }

    fn add_skipped(&mut self, skipped: &SkipCounts) {
        let SkipCounts { unknown, unfinished, unreadable } = skipped;
        for (what, tally, sort) in [
            ("unknown", unknown, "of unknown events"),
            ("unfinished", unfinished, "unfinished"),
            ("unreadable", unreadable, "unreadable"),
        ] {
            if tally.count > 0 {
                let text = format!("skipped {} lines {sort}, first {}", tally.count, first(tally));
                self.push(what, tally.count, text);
            }
        }
    }

    fn add_steps_back(&mut self, trace: &Summary) {
        let Some(step) = trace.step_back else { return };
        let (times, ms) = (trace.out_of_order, step.ns as f64 / 1e6);
        let two =
            if step.ns >= RECORDING_NS { ": are these two recordings in one file?" } else { "" };
        let text = format!(
            "time goes back {times} times, most by {ms:.3} ms in line {}, and is replayed as it \
             stands{two}",
            step.line
        );
        self.push("steps_back", times, text);
    }

    /// Adds a count with what it is, unless it is 0.
    pub fn add(&mut self, what: &'static str, count: u64, text: &str) {
        if count > 0 {
            self.push(what, count, format!("{count} {text}"));
        }
    }

    /// Adds a sentence about a count.
    pub fn push(&mut self, what: &'static str, count: u64, text: String) {
        self.parts.push(Part { what, count, text });
    }
}

fn first(tally: &Tally) -> String {
    let shown = |example: &pagedepot_trace::Example| {
        format!("[line {}: {}]", example.line, example.excerpt)
    };
    tally.examples.iter().map(shown).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read: {} lines, {} of them events", self.lines, self.events)?;
        if self.parts.is_empty() {
            return write!(f, "; nothing was left out");
        }
        self.parts.iter().try_for_each(|part| write!(f, "; {}", part.text))
    }
}
