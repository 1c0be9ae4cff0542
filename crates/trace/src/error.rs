//! Errors about a whole trace. Each message is one line and says what to do.

use std::io;

/// The command that records what a replay needs.
const HOW_TO_RECORD: &str = "record with `perf record -a -e kmem:mm_page_alloc,kmem:mm_page_free \
    -o FILE.data COMMAND`, then `perf script -i FILE.data > FILE.txt`";

/// An error in a trace that makes it unusable.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "their messages say it")]
pub enum TraceError {
    #[error("cannot open {name}: {source}; give the path of a recorded trace or zoneinfo")]
    Open { name: String, source: io::Error },
    #[error("cannot read {name} after line {line}: {source}; copy or record it again")]
    Read { name: String, line: u64, source: io::Error },
    #[error("{name} is not read to its end: {source}; give --expand-limit MIB to read more of it")]
    Expands { name: String, source: io::Error },
    #[error("{name} holds no line of a trace in its first {mib} MiB; {HOW_TO_RECORD}")]
    NoTrace { name: String, mib: u64 },
    #[error("{name} is empty; {HOW_TO_RECORD}")]
    Empty { name: String },
    #[error(
        "{name} is a binary perf.data file: run `perf script -i {name} > {name}.txt` and replay \
         {name}.txt"
    )]
    PerfData { name: String },
    #[error(
        "{name} is a binary trace-cmd file: run `trace-cmd report -i {name} > {name}.txt` and \
         replay {name}.txt"
    )]
    TraceDat { name: String },
    #[error(
        "{name} is compressed with {format}: decompress it first, or compress with zstd instead"
    )]
    Compressed { name: String, format: &'static str },
    #[error("{name} is {kind}; a trace is needed here: {HOW_TO_RECORD}")]
    Other { name: String, kind: &'static str },
    #[error(
        "{name} holds no page allocator or vmalloc event in {lines} lines{hint}{why}; \
         {HOW_TO_RECORD}"
    )]
    NoEvent { name: String, lines: u64, hint: String, why: String },
    #[error(
        "{name} holds no mm_page_alloc and no mm_page_free event, so there is nothing to replay; \
         {HOW_TO_RECORD}"
    )]
    NoPageEvent { name: String },
    #[error(
        "{name} goes on for {hours} hours, which is too long for a replay on all of its CPUs: is \
         a time damaged? give a shorter part of it"
    )]
    TooLong { name: String, hours: u64 },
    #[error(
        "{name} is not the text of /proc/zoneinfo: {what}; copy it with `cat /proc/zoneinfo > FILE`"
    )]
    NotZoneinfo { name: String, what: String },
    #[error(
        "{name} is not the text of /proc/buddyinfo: {what}; copy it with `cat /proc/buddyinfo > \
         FILE`"
    )]
    NotBuddyinfo { name: String, what: String },
    #[error(
        "{name} is not the text of /proc/pagetypeinfo: {what}; copy it as root with `cat \
         /proc/pagetypeinfo > FILE`, or remove it"
    )]
    NotPagetypeinfo { name: String, what: String },
}
