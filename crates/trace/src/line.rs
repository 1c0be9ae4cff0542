//! One line of a trace.
//!
//! | source | line |
//! |---|---|
//! | `perf script` | `comm pid [cpu] secs.usecs: kmem:event: fields` |
//! | tracefs | `comm-pid [cpu] flags secs.usecs: event: fields`, 4 or more flag characters |
//! | `trace-cmd report` | `comm-pid [cpu] secs.usecs: event:    fields`, with flags in newer versions |
//! | others | see [`header`](super::header) |
//!
//! A command name may hold spaces, colons, dashes and brackets, so it cannot be read from the left.
//! Every `[` is tried as that of the CPU: what follows it must be a time and an event's name. Where
//! several would do, one with a known event wins; a command name is too short to imitate that.

use super::event::{Event, EventKind, KernelPfn, Record};
use super::header::{self, Header, digits};
use super::notation::Notation;

/// The content of one line of a trace.
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
    /// A frame of a call chain, or a call that the function tracers show.
    Function,
    /// Blank, a comment or a heading.
    Nothing,
    /// Anything else.
    Unreadable,
}

/// Reads one line.
pub fn parse(line: &str) -> Line<'_> {
    match header::find(line) {
        Some(header) => match header.kind {
            Some(kind) => record(&header, kind),
            None => header.lost.map_or(Line::Unknown, Line::Lost),
        },
        None => without_event(line),
    }
}

/// Explains why a line is no event for this reader.
pub fn why_not(line: &str) -> &'static str {
    match parse(line) {
        Line::Record(_) => "it is an event",
        Line::Unknown => "its event is none of the page allocator's or of vmalloc's",
        Line::Unfinished => "it breaks off before the event's last field",
        Line::Lost(_) | Line::Function | Line::Nothing => "it is no event",
        Line::Unreadable if header::names_event(line) => {
            "neither `task pid [cpu] seconds.fraction:` stands before the event's name, nor what \
             other options of perf and tracefs print, or a field is no number"
        }
        Line::Unreadable => "it names no event of the page allocator or of vmalloc",
    }
}

fn record<'a>(header: &Header<'a>, kind: EventKind) -> Line<'a> {
    let &Header { comm, pid, cpu, time_ns, fields, clock, has_old_name, .. } = header;
    if kind == EventKind::VmstatUpdate && !fields.trim_end().ends_with(": function vmstat_update") {
        return if fields.contains(": function ") { Line::Unknown } else { Line::Unfinished };
    }
    match event(kind, Fields(fields)) {
        Ok(event) => {
            let notation = Notation { clock, names_cpu: cpu.is_some(), has_old_name };
            let cpu = cpu.unwrap_or(0);
            Line::Record(Record { comm, pid, cpu, time_ns, event, notation })
        }
        Err(FieldFault::Missing) => Line::Unfinished,
        Err(FieldFault::Value) => Line::Unreadable,
    }
}

fn event(kind: EventKind, f: Fields<'_>) -> Result<Event, FieldFault> {
    Ok(match kind {
        EventKind::PageAlloc => {
            // The line's last field: without it the line broke off.
            let gfp_flags = f.text("gfp_flags")?;
            Event::PageAlloc {
                pfn: f.pfn_or_failed()?,
                order: f.small("order")?,
                migratetype: f.small("migratetype")?,
                asks_movable: gfp_flags.split('|').any(asks_movable),
                is_page_cache: is_page_cache(gfp_flags),
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

/// Whether a flag of an allocation asks for memory that can be moved. Kernels before 4.5 print
/// `GFP_MOVABLE`, later ones `__GFP_MOVABLE`.
fn asks_movable(flag: &str) -> bool {
    flag.ends_with("MOVABLE") || flag.starts_with("GFP_TRANSHUGE")
}

/// Whether the flags of an allocation are those of the page cache: movable, not zeroed, and for a
/// write, or of a readahead, which neither retries nor warns. Other movable pages that are not
/// zeroed are copies of a program's own.
fn is_page_cache(flags: &str) -> bool {
    let has = |name: &str| flags.split('|').any(|flag| flag.trim_start_matches('_') == name);
    flags.split('|').any(asks_movable)
        && !has("GFP_ZERO")
        && (has("GFP_WRITE") || has("GFP_NORETRY") && has("GFP_NOWARN"))
}

/// A fault of a field.
enum FieldFault {
    Missing,
    Value,
}

/// `key=value` pairs; one event writes `key: value`.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(self, key: &str) -> Result<&'a str, FieldFault> {
        let mut words = self.0.split_ascii_whitespace();
        while let Some(word) = words.next() {
            let value = match word.strip_prefix(key) {
                Some(":") => words.next(),
                Some(rest) => rest.strip_prefix('='),
                None => continue,
            };
            // Another key may merely begin like this one.
            match value {
                Some("") => return Err(FieldFault::Missing),
                Some(value) => return Ok(value),
                None => continue,
            }
        }
        Err(FieldFault::Missing)
    }

    /// Decimal, or hexadecimal with its prefix. Older kernels print frame numbers in decimal.
    fn number(self, key: &str) -> Result<u64, FieldFault> {
        let text = self.text(key)?;
        match text.strip_prefix("0x") {
            Some("") => Err(FieldFault::Missing),
            Some(hex) => u64::from_str_radix(hex, 16).map_err(|_| FieldFault::Value),
            None => text.parse().map_err(|_| FieldFault::Value),
        }
    }

    fn small(self, key: &str) -> Result<u32, FieldFault> {
        u32::try_from(self.number(key)?).map_err(|_| FieldFault::Value)
    }

    fn flag(self, key: &str) -> Result<bool, FieldFault> {
        Ok(self.number(key)? != 0)
    }

    fn pfn(self) -> Result<KernelPfn, FieldFault> {
        self.number("pfn").map(KernelPfn)
    }

    /// 0 is how the kernel prints "no page"; -1 is how it stores it, which shows when a tool could
    /// not parse the event's print format.
    fn pfn_or_failed(self) -> Result<Option<KernelPfn>, FieldFault> {
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
    let text = line.trim();
    // tracefs: `CPU:2 [LOST 12 EVENTS]`; trace-cmd: `CPU 2: [12 EVENTS DROPPED]` and the like.
    if let Some((_, rest)) = text.split_once("[LOST ") {
        return rest
            .split_once(' ')
            .and_then(|(n, _)| digits(n))
            .map_or(Line::Unreadable, Line::Lost);
    }
    if let Some((before, _)) = text.split_once(" EVENTS DROPPED]") {
        return before.rsplit('[').next().and_then(digits).map_or(Line::Unreadable, Line::Lost);
    }
    let is_heading = text.bytes().all(|b| b == b'-')
        || text.starts_with('#')
        // trace-cmd report.
        || text.strip_prefix("cpus=").is_some_and(|n| digits(n).is_some())
        || text.strip_prefix("version = ").is_some_and(|n| digits(n).is_some())
        || text.starts_with("CPU ") && text.ends_with(" is empty");
    if is_heading {
        Line::Nothing
    } else if is_frame(line) || header::graph_cpu(text).is_some() {
        Line::Function
    } else {
        Line::Unreadable
    }
}

/// Whether a line is a frame of a call chain: `    ffffffff8129d2a0 __free_pages+0x0 (vmlinux)` of
/// perf, ` => __free_pages` of tracefs.
fn is_frame(line: &str) -> bool {
    let text = line.trim();
    if text.starts_with("=> ") || text == "<stack trace>" || text == "<user stack trace>" {
        return true;
    }
    let Some((address, symbol)) = text.split_once(char::is_whitespace) else { return false };
    line.starts_with(char::is_whitespace)
        && address.len() <= 16
        && address.bytes().all(|b| b.is_ascii_hexdigit())
        && (address.len() >= 8 || symbol.ends_with(')'))
}
