//! A whole replay: verified once, then timed.

use std::path::{Path, PathBuf};

use super::calibrate::calibrated;
use super::contender::{self, Contender, MakeError, Variants, WithTarget};
use super::engine::{Outcome, ReplayError, run};
use super::plan::Plan;
use super::report::{Replay, Report};
use super::target::ReplayTarget;
use super::verify::Verify;
use crate::trace::{TraceError, Zoneinfo};

/// Why a replay ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl Error {
    /// Whether the input is at fault, not the allocator.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Error::Replay(error) if !error.is_of_the_machine())
    }
}

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

/// Replays a plan into each design, `runs` times, each time into a new allocator, after a first run
/// that is not timed: it checks that every frame has one holder and that all pages are accounted
/// for, and the others must do the same block by block. `progress` is told after each run.
///
/// # Errors
/// When the trace needs more than the allocator can manage, or the allocator fails the replay.
pub fn replay(
    plan: &Plan,
    zoneinfos: &Zoneinfos,
    (contenders, variants): (&[Contender], Variants),
    runs: usize,
    mut progress: impl FnMut(),
) -> Result<Report, Error> {
    let before = zoneinfos.before.as_ref();
    let with_ticks = contenders.iter().any(|contender| contender.ticks());
    let fitted = if with_ticks { Some(calibrated(plan, zoneinfos)?) } else { None };
    let plan = fitted.as_ref().unwrap_or(plan);
    let mut replays = Vec::with_capacity(contenders.len());
    for &contender in contenders {
        let checked =
            contender::make(contender, plan, before, variants, Checked(plan))??.balanced()?;
        progress();
        let mut event_ns = Vec::with_capacity(runs);
        for _ in 0..runs.max(1) {
            let timed = contender::make(contender, plan, before, variants, Timed(plan))??
                .same_as(&checked)?;
            event_ns.push(timed.event_ns());
            progress();
        }
        let store = variants.store_of(contender);
        replays.push(Replay::new(plan, (contender, store), checked, event_ns));
    }
    Ok(Report::new(plan, replays, zoneinfos.after.as_ref()))
}

struct Checked<'p>(&'p Plan);

impl WithTarget for Checked<'_> {
    type Output = Result<Outcome, ReplayError>;

    fn with(self, target: &mut impl ReplayTarget) -> Self::Output {
        run(self.0, &mut Verify::new(target))
    }
}

struct Timed<'p>(&'p Plan);

impl WithTarget for Timed<'_> {
    type Output = Result<Outcome, ReplayError>;

    fn with(self, target: &mut impl ReplayTarget) -> Self::Output {
        run(self.0, target)
    }
}
