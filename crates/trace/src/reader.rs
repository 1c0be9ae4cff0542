//! Reading a whole trace, line by line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::error::TraceError;
use super::event::{EventCounts, Record};
use super::line::{self, Line};
use super::zstd::{self, ExpandLimit};

/// Longer lines are unreadable: no event prints that much, and a file without line ends must not
/// fill the memory.
const LINE_BYTES_MAX: usize = 1 << 16;
/// Bytes read in search of a first line of a trace.
const NONSENSE_BYTES_MAX: u64 = 64 << 20;
/// Number of skipped lines of each sort that are kept to be shown.
const EXAMPLES_MAX: usize = 3;
/// Number of characters kept of each.
const EXCERPT_CHARS_MAX: usize = 60;
/// Number of command names that are counted apart; all others are counted together.
const COMMANDS_MAX: usize = 4096;

/// What a trace holds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Lines of any sort.
    pub lines: u64,
    /// Events by kind.
    pub counts: EventCounts,
    /// The lines that became no event.
    pub skipped: Skipped,
    /// Whether the file is compressed and ends within the data: more lines were written.
    pub is_cut_short: bool,
    /// Events that the recorder says it dropped.
    pub lost_events: u64,
    /// Records with a time before that of the record above them.
    pub out_of_order: u64,
    /// Earliest time.
    pub first_ns: Option<u64>,
    /// Latest time.
    pub last_ns: Option<u64>,
    /// Events by command name.
    pub commands: BTreeMap<String, u64>,
}

impl Summary {
    /// From the first event to the last.
    pub fn duration_ns(&self) -> u64 {
        self.last_ns.unwrap_or(0) - self.first_ns.unwrap_or(0)
    }

    fn add(&mut self, record: &Record<'_>) {
        self.counts.add(record.event.kind());
        if self.last_ns.is_some_and(|last| record.time_ns < last) {
            self.out_of_order += 1;
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
pub struct Skipped {
    /// Events this program does not know.
    pub unknown: Tally,
    /// Events that break off before their last field.
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
}

impl Tally {
    fn add(&mut self, line: u64, text: &str) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let excerpt: String = text.trim().chars().take(EXCERPT_CHARS_MAX).collect();
            self.examples.push(Example { line, excerpt: printable(&excerpt) });
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
    let (start, input) = peek(input).map_err(|source| read_error(name, 0, source))?;
    if !zstd::is_zstd(&start) {
        return read_text(&start, input, name, on_record);
    }
    let (start, input) =
        peek(zstd::Reader::new(input, limit)).map_err(|source| read_error(name, 0, source))?;
    read_text(&start, input, name, on_record)
}

/// The first bytes of a file, and the file, from its beginning.
fn peek(mut input: impl Read) -> io::Result<(Vec<u8>, impl BufRead)> {
    let mut start = Vec::new();
    input.by_ref().take(16).read_to_end(&mut start)?;
    let whole = io::Cursor::new(start.clone()).chain(input);
    Ok((start, BufReader::with_capacity(1 << 16, whole)))
}

fn read_error(name: &str, line: u64, source: io::Error) -> TraceError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::FileTooLarge => TraceError::Expands { name, source },
        _ => TraceError::Read { name, line, source },
    }
}

fn read_text(
    start: &[u8],
    mut input: impl BufRead,
    name: &str,
    mut on_record: impl FnMut(&Record<'_>),
) -> Result<Summary, TraceError> {
    refuse_binary(start, name)?;
    let mut summary = Summary::default();
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
        match length {
            // An event must not be taken from part of a line.
            Length::TooLong => summary.skipped.unreadable.add(summary.lines, &text),
            _ => take_line(&mut summary, &text, &mut on_record),
        }
    }
    if summary.counts.total() == 0 {
        let (name, lines) = (name.to_owned(), summary.lines);
        return Err(TraceError::NoEvent { name, lines, hint: hint(&summary.skipped) });
    }
    Ok(summary)
}

fn take_line(summary: &mut Summary, text: &str, on_record: &mut impl FnMut(&Record<'_>)) {
    let number = summary.lines;
    match line::parse(text) {
        Line::Record(record) => {
            summary.add(&record);
            on_record(&record);
        }
        Line::Unknown => summary.skipped.unknown.add(number, text),
        Line::Unfinished => summary.skipped.unfinished.add(number, text),
        Line::Unreadable => summary.skipped.unreadable.add(number, text),
        Line::Lost(events) => summary.lost_events = summary.lost_events.saturating_add(events),
        Line::Nothing => {}
    }
}

/// What [`read_line`] found.
#[derive(PartialEq, Eq)]
enum Length {
    Whole,
    TooLong,
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
    let whole = read < LINE_BYTES_MAX || line.ends_with(b"\n");
    if !whole {
        input.skip_until(b'\n')?;
    }
    let taken = bytes_max - input.limit();
    while matches!(line.last(), Some(b'\n' | b'\r')) {
        line.pop();
    }
    let length = match read {
        0 => Length::None,
        _ if whole => Length::Whole,
        _ => Length::TooLong,
    };
    Ok((length, taken))
}

/// Kinds of files that are passed by mistake, known by their first bytes.
fn refuse_binary(start: &[u8], name: &str) -> Result<(), TraceError> {
    let name = || name.to_owned();
    let compressed = |format| Err(TraceError::Compressed { name: name(), format });
    match start {
        [] => Err(TraceError::Empty { name: name() }),
        // perf writes its magic as a number: byte order shows.
        [b'P', b'E', b'R', b'F', b'I', b'L', b'E', ..]
        | [_, b'E', b'L', b'I', b'F', b'R', b'E', b'P', ..] => {
            Err(TraceError::PerfData { name: name() })
        }
        [0x17, 0x08, 0x44, b't', b'r', b'a', b'c', b'i', b'n', b'g', ..] => {
            Err(TraceError::TraceDat { name: name() })
        }
        [0x1f, 0x8b, ..] => compressed("gzip"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => compressed("xz"),
        [b'B', b'Z', b'h', b'0'..=b'9', ..] => compressed("bzip2"),
        _ => Ok(()),
    }
}

/// What the file holds instead of page events, so that the error can tell a wrong file from a wrong
/// recording.
fn hint(skipped: &Skipped) -> String {
    let sorts = [
        (&skipped.unknown, "other events"),
        (&skipped.unfinished, "unfinished"),
        (&skipped.unreadable, "unreadable"),
    ];
    let counts: Vec<_> = sorts
        .iter()
        .filter(|(t, _)| t.count > 0)
        .map(|(t, what)| format!("{what}: {}", t.count))
        .collect();
    if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) }
}
