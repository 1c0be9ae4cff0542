//! The zoneinfos of a recording.

use std::path::{Path, PathBuf};

use super::look::Look;
use pagedepot_trace::{Buddyinfo, Pagetypeinfo, TraceError, Zoneinfo};

/// The kernel's zoneinfo from before and after a recording, and its free blocks.
#[derive(Clone, Debug, Default)]
pub struct Zoneinfos {
    pub before: Option<Zoneinfo>,
    pub after: Option<Zoneinfo>,
    /// Free blocks before and after, and pageblocks by migratetype; recordings of others lack them.
    pub free: [Option<(Buddyinfo, Option<Pagetypeinfo>)>; 2],
}

impl Zoneinfos {
    /// Reads those at the paths given, else those that lie beside the trace.
    ///
    /// # Errors
    /// When one cannot be read, or is no zoneinfo.
    pub fn find(
        trace: &Path,
        before: Option<&Path>,
        after: Option<&Path>,
    ) -> Result<Self, TraceError> {
        if before.is_none() && after.is_none() {
            return Self::beside(trace);
        }
        let read = |path: Option<&Path>| path.map(Zoneinfo::read_file).transpose();
        Ok(Zoneinfos { before: read(before)?, after: read(after)?, ..Self::default() })
    }

    /// Reads those that lie beside a trace: for `NAME.perf.txt.zst` (or `NAME.txt`, `NAME.zst`,
    /// ...) they are called `NAME.zoneinfo.before.txt` and `NAME.zoneinfo.after.txt`.
    ///
    /// # Errors
    /// When one is there but is no zoneinfo.
    pub fn beside(trace: &Path) -> Result<Self, TraceError> {
        let read = |when: &str| {
            let path = beside(trace, "zoneinfo", when);
            if path.is_file() { Zoneinfo::read_file(&path).map(Some) } else { Ok(None) }
        };
        let free = [free_beside(trace, "before")?, free_beside(trace, "after")?];
        Ok(Zoneinfos { before: read("before")?, after: read("after")?, free })
    }

    /// How contiguous the kernel's free memory was, as far as that was saved.
    pub fn looks(&self) -> Vec<Look> {
        let told = [0, 100].into_iter().zip(&self.free);
        told.filter_map(|(percent, free)| {
            let (free, types) = free.as_ref()?;
            Some(Look::of_kernel(percent, free, types.as_ref()))
        })
        .collect()
    }
}

/// Free blocks that were saved beside a trace. Files that are empty count as missing: the kernel
/// shows some only to root.
///
/// # Errors
/// When a file is there but is not what its name says.
fn free_beside(
    trace: &Path,
    when: &str,
) -> Result<Option<(Buddyinfo, Option<Pagetypeinfo>)>, TraceError> {
    let there = |what: &str| {
        let path = beside(trace, what, when);
        path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0).then_some(path)
    };
    let Some(free) = there("buddyinfo") else { return Ok(None) };
    let types = there("pagetypeinfo").map(|path| Pagetypeinfo::read_file(&path)).transpose()?;
    Ok(Some((Buddyinfo::read_file(&free)?, types)))
}

fn beside(trace: &Path, what: &str, when: &str) -> PathBuf {
    let mut name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for ending in [".zst", ".txt", ".perf"] {
        if let Some(stem) = name.strip_suffix(ending) {
            name.truncate(stem.len());
        }
    }
    trace.with_file_name(format!("{name}.{what}.{when}.txt"))
}
