//! A whole replay: verified once, then timed.

use std::path::{Path, PathBuf};

use super::depot::{DepotError, Machine, with_depot};
use super::engine::{ReplayError, run};
use super::plan::Plan;
use super::report::Report;
use super::verify::Verify;
use crate::trace::{TraceError, Zoneinfo};

/// Why a replay ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Depot(#[from] DepotError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl Error {
    /// Whether the input is at fault, not the allocator.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Error::Replay(_))
    }
}

/// The kernel's zoneinfo from before and after a recording.
#[derive(Clone, Debug, Default)]
pub struct Zoneinfos {
    pub before: Option<Zoneinfo>,
    pub after: Option<Zoneinfo>,
}

impl Zoneinfos {
    /// Reads those that lie beside a trace: for `NAME.perf.txt.zst` (or `NAME.txt`, `NAME.zst`, ...)
    /// they are called `NAME.zoneinfo.before.txt` and `NAME.zoneinfo.after.txt`.
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

/// Replays a plan `runs` times, each with a new allocator, after a first run that is not timed: it
/// checks that every frame has one holder and that all pages are accounted for, and the others must
/// do the same block by block. `progress` is told after each run how many are done, of `runs + 1`.
///
/// # Errors
/// When the trace needs more than the allocator can manage, or the allocator fails the replay.
pub fn replay(
    plan: &Plan,
    zoneinfos: &Zoneinfos,
    runs: usize,
    mut progress: impl FnMut(usize),
) -> Result<Report, Error> {
    let machine = Machine::for_plan(plan, zoneinfos.before.as_ref());
    let checked = with_depot(machine, |depot| run(plan, &mut Verify::new(depot)))??.balanced()?;
    progress(1);
    let mut event_ns = Vec::with_capacity(runs);
    for done in 0..runs.max(1) {
        let timed = with_depot(machine, |depot| run(plan, depot))??.same_as(&checked)?;
        event_ns.push(timed.event_ns());
        progress(done + 2);
    }
    Ok(Report::new(plan, checked, event_ns, zoneinfos.after.as_ref()))
}
