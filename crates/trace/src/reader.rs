//! Reading a whole trace, line by line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use super::error::TraceError;
use super::event::{EventCounts, Record};
use super::input::{self, Input};
use super::line::{self, Line};
use super::notation::Clock;
use super::others;
use super::zstd::ExpandLimit;

/// Longer lines are unreadable: no event prints that much, and a file without line ends must not
/// fill the memory.
const LINE_BYTES_MAX: usize = 1 << 16;
/// Bytes read in search of a first line of a trace.
const NONSENSE_BYTES_MAX: u64 = 64 << 20;
/// Number of skipped lines of each sort that are kept to be shown.
const EXAMPLES_MAX: usize = 3;
/// Number of characters kept of each.
const EXCERPT_CHARS_MAX: usize = 60;
/// The reason why a line that reads like an event is none.
const NO_LINE_END: &str = "the file ends here without a line end, so its last field may be cut";
/// Number of command names that are counted apart; all others are counted together.
const COMMANDS_MAX: usize = 4096;

/// The contents of a trace, in numbers.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Lines of any sort.
    pub lines: u64,
    /// Events by kind.
    pub counts: EventCounts,
    /// The lines that became no event.
    pub skipped: SkipCounts,
    /// Whether the file is compressed and ends within the data: more lines were written.
    pub is_cut_short: bool,
    /// Events that the recorder says it dropped.
    pub lost_events: u64,
    /// Frames of call chains, and calls that function tracers show: lines that are no events.
    pub functions: u64,
    /// Records with a time before that of the record above them.
    pub out_of_order: u64,
    /// The longest way that time goes back from one record to the next.
    pub step_back: Option<StepBack>,
    /// Records whose lines name no CPU; they count as CPU 0's.
    pub without_cpu: u64,
    /// Records whose lines tell no time; they have that of the record above them.
    pub without_time: u64,
    /// Records with a time that has no unit; see [`Clock::Ticks`].
    pub in_ticks: u64,
    /// Records with an event's name from a kernel before 3.3.
    pub old_names: u64,
    /// Earliest time.
    pub first_ns: Option<u64>,
    /// Latest time.
    pub last_ns: Option<u64>,
    /// Events by command name.
    pub commands: BTreeMap<String, u64>,
}

/// A record that is earlier than the one above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBack {
    /// The line of the earlier record.
    pub line: u64,
    /// Nanoseconds by which it is earlier.
    pub ns: u64,
}

impl Summary {
    /// Nanoseconds from the first event to the last.
    pub fn duration_ns(&self) -> u64 {
        self.last_ns.unwrap_or(0) - self.first_ns.unwrap_or(0)
    }

    /// Counts a record; the one before it was at `before_ns`.
    fn add(&mut self, record: &Record<'_>, before_ns: Option<u64>) {
        self.counts.add(record.event.kind());
        let notation = record.notation;
        self.without_cpu += u64::from(!notation.names_cpu);
        self.without_time += u64::from(notation.clock == Clock::None);
        self.in_ticks += u64::from(notation.clock == Clock::Ticks);
        self.old_names += u64::from(notation.has_old_name);
        if let Some(ns) = before_ns.and_then(|before| before.checked_sub(record.time_ns))
            && ns > 0
        {
            self.out_of_order += 1;
            if self.step_back.is_none_or(|step| step.ns < ns) {
                self.step_back = Some(StepBack { line: self.lines, ns });
            }
        }
        self.first_ns =
            Some(self.first_ns.map_or(record.time_ns, |first| first.min(record.time_ns)));
        self.last_ns = Some(self.last_ns.map_or(record.time_ns, |last| last.max(record.time_ns)));
        if let Some(events) = self.commands.get_mut(record.comm) {
            *events += 1;
        } else {
            let comm = if self.commands.len() < COMMANDS_MAX { record.comm } else { "(others)" };
            *self.commands.entry(comm.to_owned()).or_default() += 1;
        }
    }
}

/// The message about a file that is cut short after `line`.
pub fn cut_short(line: u64) -> String {
    format!(
        "the file is cut short after line {line}: what could be read is replayed; copy it again \
         for the rest"
    )
}

/// Lines that became no event, by reason.
#[derive(Clone, Debug, Default)]
pub struct SkipCounts {
    /// Events this program does not know.
    pub unknown: Tally,
    /// Events that break off before their last field, or within it: the last line of a file, if it
    /// has no line end.
    pub unfinished: Tally,
    /// Neither an event, nor a comment or heading.
    pub unreadable: Tally,
}

/// A number of lines, and the first few of them.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of lines.
    pub count: u64,
    /// The first few lines.
    pub examples: Vec<Example>,
}

/// A skipped line.
#[derive(Clone, Debug)]
pub struct Example {
    /// The line's number, from 1.
    pub line: u64,
    /// The line's beginning, printable.
    pub excerpt: String,
    /// The reason why the line is no event.
    pub why: &'static str,
}

impl Tally {
    fn add(&mut self, line: u64, text: &str) {
        self.add_because(line, text, line::why_not(text));
    }

    fn add_because(&mut self, line: u64, text: &str, why: &'static str) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let excerpt: String = text.trim().chars().take(EXCERPT_CHARS_MAX).collect();
            self.examples.push(Example { line, excerpt: printable(&excerpt), why });
        }
    }
}

/// A name from a file for a terminal: what would move its cursor, colour it or turn its text around
/// is a question mark, as `ls` shows it.
pub fn printable(text: &str) -> String {
    let is_obeyed = |c: char| {
        // What cannot be shown; marks of direction; separators of lines and paragraphs.
        c.is_control()
            || matches!(c, '\u{fffd}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_obeyed(c) { '?' } else { c }).collect()
}

/// Reads the trace in the file at `path`, `-` being standard input, and hands each record to
/// `on_record`.
///
/// # Errors
/// When it cannot be opened or read, expands beyond the limit, or is no trace; see [`TraceError`].
pub fn read_file(
    path: &Path,
    limit: ExpandLimit,
    on_record: impl FnMut(&Record<'_>),
) -> Result<Summary, TraceError> {
    let name = path.display().to_string();
    if name == "-" {
        return read_within(io::stdin().lock(), "standard input", limit, on_record);
    }
    if path.is_dir() {
        // A directory can be opened, but not read.
        return Err(TraceError::Open { name, source: io::ErrorKind::IsADirectory.into() });
    }
    match File::open(path) {
        Ok(file) => read_within(file, &name, limit, on_record),
        Err(source) => Err(TraceError::Open { name, source }),
    }
}

/// Reads a trace, plain or compressed with zstd, and hands each record to `on_record`. `name` is
/// what errors call it.
///
/// # Errors
/// When it cannot be read, or is no trace; see [`TraceError`].
pub fn read(
    input: impl Read,
    name: &str,
    on_record: impl FnMut(&Record<'_>),
) -> Result<Summary, TraceError> {
    read_within(input, name, ExpandLimit::default(), on_record)
}

fn read_within(
    input: impl Read,
    name: &str,
    limit: ExpandLimit,
    on_record: impl FnMut(&Record<'_>),
) -> Result<Summary, TraceError> {
    let input = Input::open(input, limit).map_err(|source| read_error(name, 0, source))?;
    read_text(input, name, on_record)
}

fn read_error(name: &str, line: u64, source: io::Error) -> TraceError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::FileTooLarge => TraceError::Expands { name, source },
        _ => TraceError::Read { name, line, source },
    }
}

fn read_text(
    Input { start, text: mut input }: Input<'_>,
    name: &str,
    mut on_record: impl FnMut(&Record<'_>),
) -> Result<Summary, TraceError> {
    refuse_binary(&start, name)?;
    let mut summary = Summary::default();
    let mut first = None;
    let mut before_ns = None;
    let mut bytes = Vec::with_capacity(256);
    // Until a line is one of a trace: files of something else may have no end.
    let mut nonsense_left = NONSENSE_BYTES_MAX;
    loop {
        let is_trace = summary.counts.total() + summary.skipped.unknown.count > 0;
        let bytes_max = if is_trace { u64::MAX } else { nonsense_left };
        let (length, read) = match read_line(&mut input, &mut bytes, bytes_max) {
            // The lines before the end can be used; the last one is incomplete.
            Err(error)
                if error.kind() == io::ErrorKind::UnexpectedEof && summary.counts.total() > 0 =>
            {
                summary.is_cut_short = true;
                if !bytes.is_empty() {
                    summary.lines += 1;
                    summary.skipped.unfinished.add(summary.lines, &String::from_utf8_lossy(&bytes));
                }
                break;
            }
            result => result.map_err(|source| read_error(name, summary.lines, source))?,
        };
        if length == Length::None {
            if !is_trace && nonsense_left == 0 {
                return Err(TraceError::NoTrace {
                    name: name.to_owned(),
                    mib: NONSENSE_BYTES_MAX >> 20,
                });
            }
            break;
        }
        nonsense_left = nonsense_left.saturating_sub(read);
        summary.lines += 1;
        let text = String::from_utf8_lossy(&bytes);
        let text = input::without_mark(&text);
        if first.is_none() && !text.trim().is_empty() {
            first = Some(text.to_owned());
        }
        match length {
            // An event must not be taken from part of a line.
            Length::TooLong => summary.skipped.unreadable.add(summary.lines, text),
            // All that write traces end each line. Of a copy that ends early, the last number may
            // be the beginning of another one.
            Length::Unended if matches!(line::parse(text), Line::Record(_)) => {
                summary.skipped.unfinished.add_because(summary.lines, text, NO_LINE_END);
            }
            _ => take_line(&mut summary, text, &mut before_ns, &mut on_record),
        }
    }
    if summary.counts.total() == 0 {
        return Err(no_event(&summary, name.to_owned(), first.as_deref().unwrap_or_default()));
    }
    Ok(summary)
}

fn take_line(
    summary: &mut Summary,
    text: &str,
    before_ns: &mut Option<u64>,
    on_record: &mut impl FnMut(&Record<'_>),
) {
    let number = summary.lines;
    match line::parse(text) {
        Line::Record(mut record) => {
            if record.notation.clock == Clock::None {
                record.time_ns = before_ns.unwrap_or(0);
            }
            summary.add(&record, *before_ns);
            *before_ns = Some(record.time_ns);
            on_record(&record);
        }
        Line::Unknown => summary.skipped.unknown.add(number, text),
        Line::Unfinished => summary.skipped.unfinished.add(number, text),
        Line::Unreadable => summary.skipped.unreadable.add(number, text),
        Line::Lost(events) => summary.lost_events = summary.lost_events.saturating_add(events),
        Line::Function => summary.functions += 1,
        Line::Nothing => {}
    }
}

/// The result of [`read_line`].
#[derive(PartialEq, Eq)]
enum Length {
    Whole,
    TooLong,
    /// The end of the file comes before a line end.
    Unended,
    None,
}

/// Reads a line without its end into `line`; of a line too long only the beginning. Also how many
/// bytes it took, at most `bytes_max`.
fn read_line(
    input: &mut impl BufRead,
    line: &mut Vec<u8>,
    bytes_max: u64,
) -> io::Result<(Length, u64)> {
    line.clear();
    let mut input = input.by_ref().take(bytes_max);
    let read = input.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', line)?;
    let has_end = line.ends_with(b"\n");
    let whole = read < LINE_BYTES_MAX || has_end;
    if !whole {
        input.skip_until(b'\n')?;
    }
    let taken = bytes_max - input.limit();
    while matches!(line.last(), Some(b'\n' | b'\r')) {
        line.pop();
    }
    let length = match read {
        0 => Length::None,
        _ if has_end => Length::Whole,
        _ if whole => Length::Unended,
        _ => Length::TooLong,
    };
    Ok((length, taken))
}

/// Refuses files that are no text, and says how to make text of them.
fn refuse_binary(start: &[u8], name: &str) -> Result<(), TraceError> {
    let name = name.to_owned();
    if start.is_empty() {
        return Err(TraceError::Empty { name });
    }
    if let Some(format) = input::compression(start) {
        return Err(TraceError::Compressed { name, format });
    }
    match input::kind(start) {
        Some(input::PERF_DATA) => Err(TraceError::PerfData { name }),
        Some(input::TRACE_DAT) => Err(TraceError::TraceDat { name }),
        Some(kind) => Err(TraceError::Other { name, kind }),
        None => Ok(()),
    }
}

/// The error about a text without events, which begins with the line `first`. It tells a wrong file
/// from a wrong recording.
fn no_event(summary: &Summary, name: String, first: &str) -> TraceError {
    if let Some(kind) = others::kind(first) {
        return TraceError::Other { name, kind };
    }
    let skipped = &summary.skipped;
    let sorts = [
        (skipped.unknown.count, "other events"),
        (skipped.unfinished.count, "unfinished"),
        (skipped.unreadable.count, "unreadable"),
        (summary.functions, "functions"),
    ];
    let counts: Vec<_> = sorts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{what}: {count}"))
        .collect();
    let hint = if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    let tallies = [&skipped.unknown, &skipped.unfinished, &skipped.unreadable];
    let examples = tallies.iter().filter_map(|tally| tally.examples.first());
    let why = examples.min_by_key(|example| example.line).map_or_else(String::new, |example| {
        let why = example.why;
        format!("; line {} is `{}`: {why}", example.line, example.excerpt)
    });
    TraceError::NoEvent { name, lines: summary.lines, hint, why }
}
