//! `shared`: a depot in a segment that processes share, beside a private depot, and beside a free
//! list in the segment behind a robust mutex.
//!
//! | file | what |
//! |---|---|
//! | `pools` | the designs, as pools of page numbers |
//! | `mutex` | the free list behind a robust mutex |
//! | `local` | what a page costs one process |
//! | `passing` | pages from one process to another, and from one thread to another |
//! | `recovery` | what survivors take back of a process that was killed |

mod local;
mod mutex;
mod passing;
mod pools;
mod recovery;

use self::passing::Lanes;
use self::pools::NAME;
use super::settings::Settings;
use super::workload::Workload;
use crate::failure::Failure;
use crate::harness::stop;
use crate::names::Design;
use crate::report::Report;

/// The designs, the one in question first.
const DESIGNS: &[Design] = &[Design::DepotShared, Design::Depot, Design::Mutex];

/// The workload `shared`.
pub const fn workload() -> Workload {
    Workload { drains: true, varies: false, ..Workload::new(NAME, DESIGNS, run) }
}

fn run(settings: &Settings) -> Result<Report, Failure> {
    let designs = settings.designs(NAME, DESIGNS)?;
    let mut report = Report::default();
    // Its processes are forked first, while this one has no other threads.
    let passing = match settings.cpus[..] {
        [producer, consumer, ..] => Some(Lanes::new(&designs, (producer, consumer))?),
        _ => None,
    };
    local::measure(settings, &designs, &mut report)?;
    match passing {
        Some(passing) if !stop::is_asked() => passing.measure(settings, &mut report)?,
        Some(_) => {}
        None => report.note("pages between processes: left out, because that needs two CPUs"),
    }
    if !stop::is_asked() {
        recovery::measure(settings, &designs, &mut report)?;
    }
    Ok(report)
}
