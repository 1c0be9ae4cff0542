//! Reading a trace into a plan.

use std::path::Path;

use super::plan::Plan;
use super::planner::Planner;
use pagedepot_trace::{self as trace, EventKind, ExpandLimit, Summary, TraceError, Zoneinfo};

/// Periodic work, one tick per second and CPU, that is made up for a trace: 24 days of two CPUs,
/// four hours of 256. One damaged time may make a trace centuries long.
const TICKS_MAX: u64 = 1 << 22;

impl Plan {
    /// Reads the trace in the file at `path` (`-`: standard input). With the machine's zoneinfo
    /// from before, frees of blocks allocated before the recording are replayed, too.
    ///
    /// # Errors
    /// When it is no trace, or has no page event to replay.
    pub fn load(
        path: &Path,
        before: Option<&Zoneinfo>,
        limit: ExpandLimit,
    ) -> Result<Self, TraceError> {
        let mut planner = Planner::new(before);
        let summary = trace::read_file(path, limit, |record| planner.record(record))?;
        let is_stdin = path == Path::new("-");
        let name = if is_stdin { "standard input".into() } else { path.display().to_string() };
        Self::finish(planner, summary, name)
    }

    /// Reads a trace from `input`, which errors and reports call `name`.
    ///
    /// # Errors
    /// Fails like [`load`](Self::load).
    pub fn read(
        input: impl std::io::Read,
        name: &str,
        before: Option<&Zoneinfo>,
    ) -> Result<Self, TraceError> {
        let mut planner = Planner::new(before);
        let summary = trace::read(input, name, |record| planner.record(record))?;
        Self::finish(planner, summary, name.to_owned())
    }

    fn finish(planner: Planner, trace: Summary, name: String) -> Result<Self, TraceError> {
        if trace.counts.get(EventKind::PageAlloc) + trace.counts.get(EventKind::PageFree) == 0 {
            return Err(TraceError::NoPageEvent { name });
        }
        if planner.ticks_made_up() > TICKS_MAX {
            let hours = trace.duration_ns() / 1_000_000_000 / 3600;
            return Err(TraceError::TooLong { name, hours });
        }
        Ok(planner.finish(trace, name))
    }
}
