//! The zoneinfos of a recording.

use std::path::{Path, PathBuf};

use crate::trace::{TraceError, Zoneinfo};

/// The kernel's zoneinfo from before and after a recording.
#[derive(Clone, Debug, Default)]
pub struct Zoneinfos {
    pub before: Option<Zoneinfo>,
    pub after: Option<Zoneinfo>,
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
        Ok(Zoneinfos { before: read(before)?, after: read(after)? })
    }

    /// Reads those that lie beside a trace: for `NAME.perf.txt.zst` (or `NAME.txt`, `NAME.zst`,
    /// ...) they are called `NAME.zoneinfo.before.txt` and `NAME.zoneinfo.after.txt`.
    ///
    /// # Errors
    /// When one is there but is no zoneinfo.
    pub fn beside(trace: &Path) -> Result<Self, TraceError> {
        let read = |when: &str| {
            let path = beside(trace, when);
            if path.is_file() { Zoneinfo::read_file(&path).map(Some) } else { Ok(None) }
        };
        Ok(Zoneinfos { before: read("before")?, after: read("after")? })
    }
}

fn beside(trace: &Path, when: &str) -> PathBuf {
    let mut name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for ending in [".zst", ".txt", ".perf"] {
        if let Some(stem) = name.strip_suffix(ending) {
            name.truncate(stem.len());
        }
    }
    trace.with_file_name(format!("{name}.zoneinfo.{when}.txt"))
}
