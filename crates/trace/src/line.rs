//! One line of a trace.
//!
//! | source | line |
//! |---|---|
//! | `perf script` | `comm pid [cpu] secs.usecs: kmem:event: fields` |
//! | tracefs | `comm-pid [cpu] flags secs.usecs: event: fields`, 4 or more flag characters |
//! | `trace-cmd report` | `comm-pid [cpu] secs.usecs: event:    fields`, with flags in newer versions |
//!
//! A command name may hold spaces, colons, dashes and brackets, so it cannot be read from the left.
//! Every `[` is tried as that of the CPU: what follows it must be a time and an event's name. Where
//! several would do, one with a known event wins; a command name is too short to imitate that.

use super::event::{Event, EventKind, KernelPfn, Record};

/// More CPUs than any kernel is configured for (`CONFIG_NR_CPUS` ends at 8192).
const CPUS_MAX: u16 = 8192;

/// What a line of a trace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A complete event of a known kind.
    Record(Record<'a>),
    /// An event of an unknown kind.
    Unknown,
    /// An event of a known kind with fields missing.
    Unfinished,
    /// The recorder dropped that many events here.
    Lost(u64),
    /// Blank, a comment or a heading.
    Nothing,
    /// Anything else.
    Unreadable,
}

/// Reads one line.
pub fn parse(line: &str) -> Line<'_> {
    match find_header(line) {
        Some(header) => match header.kind {
            Some(kind) => record(&header, kind),
            None => header.lost.map_or(Line::Unknown, Line::Lost),
        },
        None => without_event(line.trim()),
    }
}

/// Everything up to the event's fields.
struct Header<'a> {
    comm: &'a str,
    pid: i32,
    cpu: u16,
    time_ns: u64,
    kind: Option<EventKind>,
    /// A number of missing events: `perf script --show-lost-events`.
    lost: Option<u64>,
    fields: &'a str,
}

fn find_header(line: &str) -> Option<Header<'_>> {
    let mut unknown = None;
    for (open, _) in line.match_indices('[') {
        match header_at(line, open) {
            Some(header) if header.kind.is_some() => return Some(header),
            found => unknown = unknown.or(found),
        }
    }
    unknown
}

/// The header whose CPU begins at the bracket `open`.
fn header_at(line: &str, open: usize) -> Option<Header<'_>> {
    let (cpu, after) = line[open + 1..].split_once(']')?;
    let cpu = digits(cpu).and_then(|cpu| u16::try_from(cpu).ok()).filter(|&cpu| cpu < CPUS_MAX)?;
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
    let kind = name.strip_suffix(':').and_then(EventKind::from_name);
    let lost = (name == "PERF_RECORD_LOST")
        .then(|| digits(fields.trim().strip_prefix("lost ")?))
        .flatten();
    Some(Header { comm, pid, cpu, time_ns, kind, lost, fields })
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
    let (secs, fraction) = text.strip_suffix(':')?.split_once('.')?;
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

/// A number that consists of digits only.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn record<'a>(header: &Header<'a>, kind: EventKind) -> Line<'a> {
    let &Header { comm, pid, cpu, time_ns, fields, .. } = header;
    if kind == EventKind::VmstatUpdate && !fields.trim_end().ends_with(": function vmstat_update") {
        return if fields.contains(": function ") { Line::Unknown } else { Line::Unfinished };
    }
    match event(kind, Fields(fields)) {
        Ok(event) => Line::Record(Record { comm, pid, cpu, time_ns, event }),
        Err(Bad::Missing) => Line::Unfinished,
        Err(Bad::Value) => Line::Unreadable,
    }
}

fn event(kind: EventKind, f: Fields<'_>) -> Result<Event, Bad> {
    Ok(match kind {
        EventKind::PageAlloc => {
            // The line's last field: without it the line broke off.
            f.text("gfp_flags")?;
            Event::PageAlloc {
                pfn: f.pfn_or_failed()?,
                order: f.small("order")?,
                migratetype: f.small("migratetype")?,
            }
        }
        EventKind::PageFree => Event::PageFree { pfn: f.pfn()?, order: f.small("order")? },
        EventKind::PageFreeBatched => {
            Event::PageFreeBatched { pfn: f.pfn()?, order: f.small("order")? }
        }
        EventKind::ZoneLocked => Event::ZoneLocked {
            pfn: f.pfn_or_failed()?,
            order: f.small("order")?,
            migratetype: f.small("migratetype")?,
            percpu_refill: f.flag("percpu_refill")?,
        },
        EventKind::PcpuDrain => Event::PcpuDrain {
            pfn: f.pfn()?,
            order: f.small("order")?,
            migratetype: f.small("migratetype")?,
        },
        EventKind::VmstatUpdate => Event::VmstatUpdate,
        EventKind::ExtFrag => Event::ExtFrag {
            pfn: f.pfn()?,
            alloc_order: f.small("alloc_order")?,
            fallback_order: f.small("fallback_order")?,
            alloc_migratetype: f.small("alloc_migratetype")?,
            fallback_migratetype: f.small("fallback_migratetype")?,
            change_ownership: f.flag("change_ownership")?,
        },
        EventKind::AllocVmapArea => Event::AllocVmapArea {
            va_start: f.number("va_start")?,
            size: f.number("size")?,
            align: f.number("align")?,
            vstart: f.number("vstart")?,
            vend: f.number("vend")?,
            failed: f.flag("failed")?,
        },
        EventKind::FreeVmapArea => Event::FreeVmapArea {
            va_start: f.number("va_start")?,
            nr_lazy: f.number("nr_lazy")?,
            nr_lazy_max: f.number("nr_lazy_max")?,
        },
        EventKind::PurgeVmapAreas => Event::PurgeVmapAreas {
            start: f.number("start")?,
            end: f.number("end")?,
            num_purged: f.number("num_purged")?,
        },
    })
}

/// What is wrong with a field.
enum Bad {
    Missing,
    Value,
}

/// `key=value` pairs; one event writes `key: value`.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(self, key: &str) -> Result<&'a str, Bad> {
        let mut words = self.0.split_ascii_whitespace();
        while let Some(word) = words.next() {
            let value = match word.strip_prefix(key) {
                Some(":") => words.next(),
                Some(rest) => rest.strip_prefix('='),
                None => continue,
            };
            // Another key may merely begin like this one.
            match value {
                Some("") => return Err(Bad::Missing),
                Some(value) => return Ok(value),
                None => continue,
            }
        }
        Err(Bad::Missing)
    }

    /// Decimal, or hexadecimal with its prefix. Older kernels print frame numbers in decimal.
    fn number(self, key: &str) -> Result<u64, Bad> {
        let text = self.text(key)?;
        match text.strip_prefix("0x") {
            Some("") => Err(Bad::Missing),
            Some(hex) => u64::from_str_radix(hex, 16).map_err(|_| Bad::Value),
            None => text.parse().map_err(|_| Bad::Value),
        }
    }

    fn small(self, key: &str) -> Result<u32, Bad> {
        u32::try_from(self.number(key)?).map_err(|_| Bad::Value)
    }

    fn flag(self, key: &str) -> Result<bool, Bad> {
        Ok(self.number(key)? != 0)
    }

    fn pfn(self) -> Result<KernelPfn, Bad> {
        self.number("pfn").map(KernelPfn)
    }

    /// 0 is how the kernel prints "no page"; -1 is how it stores it, which shows when a tool could
    /// not parse the event's print format.
    fn pfn_or_failed(self) -> Result<Option<KernelPfn>, Bad> {
        match self.text("pfn")? {
            "-1" => Ok(None),
            _ => Ok(Some(self.number("pfn")?)
                .filter(|&pfn| pfn != 0 && pfn != u64::MAX)
                .map(KernelPfn)),
        }
    }
}

/// Lines without an event.
fn without_event(line: &str) -> Line<'_> {
    // tracefs: `CPU:2 [LOST 12 EVENTS]`; trace-cmd: `CPU 2: [12 EVENTS DROPPED]` and the like.
    if let Some((_, rest)) = line.split_once("[LOST ") {
        return rest
            .split_once(' ')
            .and_then(|(n, _)| digits(n))
            .map_or(Line::Unreadable, Line::Lost);
    }
    if let Some((before, _)) = line.split_once(" EVENTS DROPPED]") {
        return before.rsplit('[').next().and_then(digits).map_or(Line::Unreadable, Line::Lost);
    }
    let is_heading = line.is_empty()
        || line.starts_with('#')
        // trace-cmd report.
        || line.strip_prefix("cpus=").is_some_and(|n| digits(n).is_some())
        || line.strip_prefix("version = ").is_some_and(|n| digits(n).is_some())
        || line.starts_with("CPU ") && line.ends_with(" is empty");
    if is_heading { Line::Nothing } else { Line::Unreadable }
}
