//! `inspect`: the contents of a segment that processes share (`pagedepot_linux::shared`), also
//! after all of them have ended.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use pagedepot_linux::shared::{ProcessStats, SegmentError, SegmentStats};

use crate::failure::Failure;
use crate::report::{counted, table};

/// Options of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectOptions {
    /// The file of the segment; of a memory file /proc/PID/fd/N
    #[arg(value_name = "SEGMENT")]
    pub segment: PathBuf,
}

/// The first bytes of each segment.
const MAGIC: [u8; 8] = *b"pagedpot";

/// Whether a file begins as a segment does.
pub fn is_segment(path: &Path) -> bool {
    let mut bytes = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.is_ok() && bytes == MAGIC
}

/// Text about a segment, and the fault of its contents.
///
/// # Errors
/// When the file is no segment, or cannot be read.
pub fn page(path: &Path) -> Result<(String, Result<(), Failure>), Failure> {
    let name = path.display();
    let stats = SegmentStats::read(path).map_err(|error| match error {
        SegmentError::System { .. } => Failure::Run(format!("{name}: {error}")),
        error => Failure::Usage(format!("{name}: {error}")),
    })?;
    let fault = match stats.lost_pages {
        0 => Ok(()),
        lost => Err(Failure::Run(format!(
            "{name}: {} of no process: the file is torn, or another program has written to it; \
             copy what you need of its pages, and make another segment",
            counted(lost as usize, "page")
        ))),
    };
    Ok((text(path, &stats), fault))
}

fn text(path: &Path, stats: &SegmentStats) -> String {
    let page_kib = stats.page_size.bytes() as u64 / 1024;
    let mib = |pages: u64| (pages * page_kib) as f64 / 1024.0;
    let of = |pages: fn(&ProcessStats) -> u64| stats.processes.iter().map(pages).sum::<u64>();
    let (held, sent) = (of(|one| one.held_pages), of(|one| one.sent_pages));
    let mut text = format!(
        "{}\n{:.1} MiB in pages of {page_kib} KiB, of {:.1} MiB that there can be\n\
         {} pages: {} free, {} of them in whole pageblocks, {held} held, {sent} in flight\n",
        path.display(),
        mib(stats.present_pages),
        mib(stats.pages_max),
        stats.present_pages,
        stats.free_pages,
        stats.whole_pageblocks * 512,
    );
    if stats.processes.is_empty() {
        return text + "no process is in it\n";
    }
    let mut shown =
        table::new(["slot", "state", "pid", "joined", "held", "in flight", "to heir", "ceiling"]);
    for one in &stats.processes {
        let ceiling = match one.ceiling_pages {
            0 => table::NONE.to_owned(),
            pages => pages.to_string(),
        };
        shown.add_row([
            one.slot.to_string(),
            if one.is_alive { "alive" } else { "ended" }.to_owned(),
            one.pid.to_string(),
            ago(one.joined_at),
            one.held_pages.to_string(),
            one.sent_pages.to_string(),
            one.estate_pages.to_string(),
            ceiling,
        ]);
    }
    let _ = writeln!(text, "\n{}", table::align(shown, 2));
    let dead: Vec<_> = stats.processes.iter().filter(|one| !one.is_alive).collect();
    if !dead.is_empty() {
        let pages = |of: fn(&ProcessStats) -> u64| {
            counted(dead.iter().map(|&one| of(one)).sum::<u64>() as usize, "page")
        };
        let held = |one: &ProcessStats| if one.heir.is_none() { one.held_pages } else { 0 };
        let left = |one: &ProcessStats| {
            one.estate_pages + if one.heir.is_some() { one.held_pages } else { 0 }
        };
        let _ = writeln!(
            text,
            "\nThe next process that opens the segment or runs short takes back the {} held by \
             those that\nhave ended without an heir; {} in flight can still be claimed.",
            pages(held),
            pages(|one| one.sent_pages),
        );
        if dead.iter().any(|one| left(one) > 0) {
            let _ = writeln!(text, "{} wait for a process that inherits them.", pages(left));
        }
    }
    text
}

/// The time since a moment, in seconds of the epoch; 0: not known.
fn ago(then: u64) -> String {
    if then == 0 {
        return table::NONE.to_owned();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match now.checked_sub(then) {
        Some(seconds @ 0..120) => format!("{seconds} s ago"),
        Some(seconds @ 120..7200) => format!("{} min ago", seconds / 60),
        Some(seconds @ 7200..172_800) => format!("{} h ago", seconds / 3600),
        Some(seconds) => format!("{} days ago", seconds / 86_400),
        None => "later".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_joins_has_no_time_yet() {
        assert_eq!((ago(0).as_str(), ago(u64::MAX).as_str()), (table::NONE, "later"));
    }
}
