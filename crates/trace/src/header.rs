//! The fields left of an event's own, in the notations that the module of a [line](super::line)
//! lists, and in those that other options print:
//!
//! | source | line |
//! |---|---|
//! | `perf script` of a recording without `-a` | `comm pid secs.usecs: kmem:event: fields` |
//! | `perf script -F ...` | without the time, the task or the CPU; with `period` before the event |
//! | trace clocks `x86-tsc`, `counter` | the time is a whole number |
//! | tracefs, `latency-format` | `comm-pid cpuflags usecsus+: event: fields` |
//! | tracefs, `function_graph` | ` cpu)  duration |  /* event: fields */`, with or without a time and a task |
//!
//! These are read from the event's name to the left, and only where everything there is understood.

use super::event::EventKind;
use super::notation::Clock;

/// More CPUs than any kernel is configured for (`CONFIG_NR_CPUS` ends at 8192).
pub const CPUS_MAX: u16 = 8192;

/// Most characters of a command name (`TASK_COMM_LEN`).
const COMM_CHARS_MAX: usize = 16;

/// Everything up to the event's fields, and these.
pub struct Header<'a> {
    pub comm: &'a str,
    pub pid: i32,
    pub cpu: Option<u16>,
    pub time_ns: u64,
    pub clock: Clock,
    pub kind: Option<EventKind>,
    pub has_old_name: bool,
    /// A number of missing events: `perf script --show-lost-events`.
    pub lost: Option<u64>,
    pub fields: &'a str,
}

/// The header of a line with an event, which may be an unknown one.
pub fn find(line: &str) -> Option<Header<'_>> {
    let mut unknown = None;
    for (open, _) in line.match_indices('[') {
        match at_bracket(line, open) {
            Some(header) if header.kind.is_some() => return Some(header),
            found => unknown = unknown.or(found),
        }
    }
    known_events(line).find_map(left_of_event).or(unknown)
}

/// Whether the name of a known event stands in the line.
pub fn names_event(line: &str) -> bool {
    known_events(line).next().is_some()
}

/// The header whose CPU begins at the bracket `open`.
fn at_bracket(line: &str, open: usize) -> Option<Header<'_>> {
    let (cpu, after) = line[open + 1..].split_once(']')?;
    let cpu = Some(cpu_number(cpu)?);
    let (first, after_first) = token(after)?;
    let (time_ns, after) = match time(first) {
        Some(time_ns) => (time_ns, after_first),
        None => {
            let (second, after) = token(after_first).filter(|_| first.len() <= 8)?;
            (time(second)?, after)
        }
    };
    let (name, fields) = token(after)?;
    let (comm, pid) = task(&line[..open])?;
    // The function tracer's lines have no colon; they are events of an unknown kind.
    let named = name.strip_suffix(':').and_then(EventKind::named);
    let (kind, has_old_name) = named.map_or((None, false), |(kind, old)| (Some(kind), old));
    let lost = (name == "PERF_RECORD_LOST")
        .then(|| digits(fields.trim().strip_prefix("lost ")?))
        .flatten();
    let clock = Clock::Seconds;
    Some(Header { comm, pid, cpu, time_ns, clock, kind, has_old_name, lost, fields })
}

/// A known event in a line.
struct EventName<'a> {
    before: &'a str,
    kind: EventKind,
    is_old: bool,
    fields: &'a str,
}

fn known_events(line: &str) -> impl Iterator<Item = EventName<'_>> {
    let words = line.split_ascii_whitespace();
    words.filter(|word| word.ends_with(':')).filter_map(move |word| {
        let (kind, is_old) = EventKind::named(&word[..word.len() - 1])?;
        let at = word.as_ptr().addr() - line.as_ptr().addr();
        let (before, fields) = (&line[..at], &line[at + word.len()..]);
        Some(EventName { before, kind, is_old, fields })
    })
}

/// The header left of a known event, if all of it is understood.
fn left_of_event(event: EventName<'_>) -> Option<Header<'_>> {
    let EventName { before, kind, is_old, fields } = event;
    let left = before.trim_end();
    let (left, fields) = match left.strip_suffix("/*") {
        Some(graph) => (TaskFields::of_graph(graph)?, fields.trim_end().strip_suffix("*/")?),
        None => (TaskFields::of_line(left)?, fields),
    };
    let TaskFields { comm, pid, cpu, time } = left;
    let (clock, time_ns) = time.unwrap_or((Clock::None, 0));
    let (kind, has_old_name, lost) = (Some(kind), is_old, None);
    Some(Header { comm, pid, cpu, time_ns, clock, kind, has_old_name, lost, fields })
}

/// A task, CPU and time, as far as a line names them.
struct TaskFields<'a> {
    comm: &'a str,
    pid: i32,
    cpu: Option<u16>,
    time: Option<(Clock, u64)>,
}

/// The task of a line that names none.
const NO_TASK: (&str, i32) = ("<...>", -1);

impl<'a> TaskFields<'a> {
    fn of_line(text: &'a str) -> Option<Self> {
        let (time, text) = ending_time(without_period(text));
        let (cpu, text) = ending_cpu(text);
        let (comm, pid) = if text.is_empty() { NO_TASK } else { task(text)? };
        (comm.chars().count() <= COMM_CHARS_MAX).then_some(TaskFields { comm, pid, cpu, time })
    }

    /// The left of function_graph's line: `secs.usecs |  cpu)  comm-pid  |  duration  |`, in which
    /// the time and the task are optional.
    fn of_graph(text: &'a str) -> Option<Self> {
        let cpu = graph_cpu(text)?;
        let (before, after) = text.split_once(')')?;
        let time = before.split_once('|').and_then(|(secs, _)| seconds(secs.trim()));
        let (comm, pid) = task(after.split('|').next()?).unwrap_or(NO_TASK);
        let time = time.map(|ns| (Clock::Seconds, ns));
        Some(TaskFields { comm, pid, cpu: Some(cpu), time })
    }
}

/// The CPU of a line that function_graph printed.
pub fn graph_cpu(text: &str) -> Option<u16> {
    let (before, _) = text.split_once(')')?;
    cpu_number(before.rsplit('|').next()?.trim())
}

/// The text before the number of events that a sample stands for, which follows a time or a CPU.
fn without_period(text: &str) -> &str {
    match last_token(text) {
        Some((before, period))
            if digits(period).is_some() && (before.ends_with(':') || before.ends_with(']')) =>
        {
            before
        }
        _ => text,
    }
}

/// The time at the end of a text, and what stands before it.
fn ending_time(text: &str) -> (Option<(Clock, u64)>, &str) {
    let Some(stamp) = text.strip_suffix(':') else { return (None, text) };
    let Some((before, word)) = last_token(stamp) else { return (None, text) };
    let microseconds = word.trim_end_matches(['+', '!', '#', '*', '@', '$']).strip_suffix("us");
    let time = match microseconds {
        Some(micros) => digits(micros)
            .and_then(|micros| micros.checked_mul(1000))
            .map(|ns| (Clock::Seconds, ns)),
        None => seconds(word)
            .map(|ns| (Clock::Seconds, ns))
            .or_else(|| digits(word).map(|ticks| (Clock::Ticks, ticks))),
    };
    if time.is_some() { (time, before) } else { (None, text) }
}

/// The CPU at the end of a text, perhaps with flags, and what stands before it.
fn ending_cpu(text: &str) -> (Option<u16>, &str) {
    let bracketed = |text| {
        let (before, word): (&str, &str) = last_token(text)?;
        Some((cpu_number(word.strip_prefix('[')?.strip_suffix(']')?)?, before))
    };
    let with_flags = || last_token(text).filter(|(_, flags)| are_flags(flags));
    let found = bracketed(text).or_else(|| bracketed(with_flags()?.0)).or_else(|| {
        // latency-format: the flags follow the CPU at once.
        let (before, word) = last_token(text)?;
        let flags = word.find(|c: char| !c.is_ascii_digit())?;
        are_flags(&word[flags..]).then_some((cpu_number(&word[..flags])?, before))
    });
    found.map_or((None, text), |(cpu, before)| (Some(cpu), before))
}

/// Whether a word is the kernel's flags of interrupts, scheduling and preemption.
fn are_flags(word: &str) -> bool {
    (4..=8).contains(&word.len())
        && word.bytes().all(|b| b.is_ascii_hexdigit() || b".DXnNpPhHsSzZ#lLuU".contains(&b))
}

fn cpu_number(text: &str) -> Option<u16> {
    digits(text).and_then(|cpu| u16::try_from(cpu).ok()).filter(|&cpu| cpu < CPUS_MAX)
}

/// `comm pid` of perf, or `comm-pid` and perhaps ` (tgid)` of tracefs.
fn task(before: &str) -> Option<(&str, i32)> {
    let mut before = before.trim();
    if let Some((rest, tgid)) = before.strip_suffix(')').and_then(|inner| inner.rsplit_once('('))
        && (digits(tgid.trim()).is_some() || tgid.bytes().all(|b| b == b'-'))
    {
        before = rest.trim_end();
    }
    let last = before.rsplit(char::is_whitespace).next()?;
    // `perf script -F pid,tid` prints both with a slash; the thread is what runs.
    let tid = last.rsplit('/').next()?;
    if last == "-1"
        || digits(tid).is_some() && last.bytes().all(|b| b.is_ascii_digit() || b == b'/')
    {
        return Some((before[..before.len() - last.len()].trim_end(), tid.parse().ok()?));
    }
    let (comm, pid) = before.rsplit_once('-')?;
    Some((comm, i32::try_from(digits(pid)?).ok()?))
}

/// `secs.fraction:` in nanoseconds.
fn time(text: &str) -> Option<u64> {
    seconds(text.strip_suffix(':')?)
}

/// `secs.fraction` in nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (secs, fraction) = text.split_once('.')?;
    if fraction.len() > 9 {
        return None;
    }
    let nanos = digits(fraction)? * 10_u64.pow(9 - fraction.len() as u32);
    digits(secs)?.checked_mul(1_000_000_000)?.checked_add(nanos)
}

/// The next word and what comes after it.
fn token(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Splits off the last word; returns the text before it, and the word.
fn last_token(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_end();
    let word = text.rsplit(char::is_whitespace).next()?;
    (!word.is_empty()).then(|| (text[..text.len() - word.len()].trim_end(), word))
}

/// A number that consists of digits only.
pub fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}
