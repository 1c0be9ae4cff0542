//! Recovery of the pages that a killed process held, and how long that takes: by a survivor that
//! has the segment open, and by a process that opens a file which no other has open.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pagedepot::Order;
use pagedepot_linux::Flags;
use pagedepot_linux::shared::{Orphans, SegmentError, SharedDepot, SharedOptions};
use rustix::process::Signal;

use super::mutex::MutexPool;
use super::pools::{NAME, all_free, failed, segment};
use crate::failure::Failure;
use crate::harness::fork::{Child, Shared, bump, sleep_while};
use crate::harness::{samples, stop};
use crate::names::Design;
use crate::report::rows::{Metric, params};
use crate::report::{Report, table};
use crate::workloads::settings::{Effort, Settings};

const PAGES: Metric = ("recovered_pages", "pages");
const TIME: Metric = ("recover_ms", "ms");

const GIB: usize = 1 << 30;
/// GiB that a dead process held in a segment that survivors have open.
const OPEN_GIB: usize = 1;
/// GiB of a file that no process has open.
const FILE_GIB: usize = 64;

/// Pages and milliseconds of each recovery.
type Recoveries = Vec<(u64, f64)>;

/// Measures it.
pub fn measure(
    settings: &Settings,
    designs: &[Design],
    report: &mut Report,
) -> Result<(), Failure> {
    let (rounds, files) = match settings.effort {
        Effort::Quick => (3, 1),
        Effort::Short | Effort::Full => (11, 5),
    };
    let mut shown = Vec::new();
    let step = settings.progress.task("shared, recovery", rounds + files);
    let mut add = |design, gib: usize, open: i64, found: &Recoveries| {
        let params = params([("gib", gib as i64), ("open", open)]);
        let (pages, ms): (Vec<f64>, Vec<f64>) =
            found.iter().map(|&(pages, ms)| (pages as f64, ms)).unzip();
        report.add(NAME, design, PAGES, (1, &params), &pages);
        if design == Design::DepotShared {
            report.add(NAME, design, TIME, (1, &params), &ms);
        }
        shown.push((design, gib, open == 1, pages, ms));
    };
    if designs.contains(&Design::DepotShared) {
        let found = repeat(rounds, || step.tick(), || open().map(Some))?;
        add(Design::DepotShared, OPEN_GIB, 1, &found);
    }
    if designs.contains(&Design::Mutex) {
        add(Design::Mutex, OPEN_GIB, 1, &repeat(1, || (), || mutex().map(Some))?);
    }
    let (mut refused, mut done) = (None, 0);
    if designs.contains(&Design::DepotShared) {
        let one = || match file(FILE_GIB * GIB, |_| ())? {
            Ok(found) => Ok(Some(found)),
            Err(why) => {
                refused = Some(why);
                Ok(None)
            }
        };
        let found = repeat(files, || step.tick(), one)?;
        done = found.len();
        if done > 0 {
            add(Design::DepotShared, FILE_GIB, 0, &found);
        }
    }
    drop(step);
    if let Some(why) = refused {
        let after = if done > 0 { format!(" after round {done}") } else { String::new() };
        report.note(format!("a file of {FILE_GIB} GiB: left out{after}: {why}"));
    }
    if !shown.is_empty() {
        report.say(
            "shared: a process that was killed held so much; what a survivor takes back, or a \
             process that opens the file afterwards",
        );
        report.say(show(&shown));
    }
    Ok(())
}

/// Repeats a recovery; the first `None` ends it early.
fn repeat(
    rounds: u64,
    tick: impl Fn(),
    mut one: impl FnMut() -> Result<Option<(u64, f64)>, Failure>,
) -> Result<Recoveries, Failure> {
    let mut found = Vec::new();
    for _ in 0..rounds {
        if stop::is_asked() {
            break;
        }
        let Some(recovery) = one()? else { break };
        found.push(recovery);
        tick();
    }
    Ok(found)
}

fn pages_of(bytes: usize) -> u64 {
    (bytes / rustix::param::page_size()) as u64
}

/// Runs `hold` in a process, and kills that when `hold` has said that it has all it wants.
fn killed(hold: impl FnOnce(&dyn Fn())) -> Result<(), Failure> {
    let told = Shared::new(AtomicU32::new(0)).map_err(|error| failed("mapping memory")(&error))?;
    let tell = || {
        bump(&told);
        std::thread::sleep(std::time::Duration::MAX);
    };
    let mut child = Child::fork(|| hold(&tell)).map_err(|error| failed("forking")(&error))?;
    // Acquire: pairs with the Release of `bump`.
    while told.load(Ordering::Acquire) == 0 {
        if child.ended().is_some() {
            return Err(failed("a process that is to be killed")(&"it ended by itself"));
        }
        sleep_while(&told, 0);
    }
    child.signal(Signal::KILL);
    child.wait();
    Ok(())
}

/// Takes pages, one by one, for good.
fn take(depot: &SharedDepot, pages: u64) {
    for _ in 0..pages {
        depot.raw().alloc(Order::BASE, Flags::default()).expect("the bench gives it enough memory");
    }
}

fn timed(work: impl FnOnce() -> u64) -> (u64, f64) {
    let start = Instant::now();
    let pages = work();
    (pages, start.elapsed().as_secs_f64() * 1e3)
}

/// A survivor has the segment open.
fn open() -> Result<(u64, f64), Failure> {
    // A tenth more: survivors may cache some.
    let (held, all) = (pages_of(OPEN_GIB * GIB), pages_of(OPEN_GIB * GIB / 10 * 11));
    let depot = segment(all)?;
    killed(|tell| {
        let options = SharedOptions::join().answers(false);
        let own = SharedDepot::adopt(depot.file(), &options).expect("a segment of the parent's");
        take(&own, held);
        tell();
    })?;
    let found = timed(|| depot.recover(Orphans::GoBack).pages);
    all_free(&depot).map_err(|why| failed("after a recovery")(&why))?;
    Ok(found)
}

/// The list has so many pages fewer.
fn mutex() -> Result<(u64, f64), Failure> {
    let held = pages_of(OPEN_GIB * GIB);
    let pool = MutexPool::new(held as u32).map_err(|error| failed("making a mutex")(&error))?;
    killed(|tell| {
        (0..held).for_each(|_| assert!(pool.alloc().is_some()));
        pool.lock_and(tell);
    })?;
    Ok(timed(|| pool.free_pages() as u64))
}

/// A path for a file, which is removed with the value.
struct TempPath(PathBuf);

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// No process has the segment open. What is timed is all that the next one does to have it.
/// `before_that` is called when the process was killed. The inner error: the system refuses a file
/// of this size.
///
/// # Errors
/// When the segment cannot be opened, or pages are missing after the recovery.
fn file(
    bytes: usize,
    before_that: impl FnOnce(&Path),
) -> Result<Result<(u64, f64), Failure>, Failure> {
    let path = TempPath(
        std::env::temp_dir().join(format!("pagedepot-bench-{}.segment", std::process::id())),
    );
    let _ = std::fs::remove_file(&path.0);
    match SharedDepot::create(&path.0, &SharedOptions::new(bytes).answers(false)) {
        Ok(made) => drop(made),
        Err(error @ (SegmentError::System { .. } | SegmentError::Build(_))) => {
            let place = path.0.display();
            return Ok(Err(Failure::Run(format!(
                "{place}: {error}; TMPDIR may name another folder"
            ))));
        }
        Err(error) => return Err(failed("making a segment")(&error)),
    }
    let join = SharedOptions::join().answers(false);
    killed(|tell| {
        let own = SharedDepot::open(&path.0, &join).expect("just made");
        take(&own, pages_of(bytes));
        tell();
    })?;
    before_that(&path.0);
    let start = Instant::now();
    let depot = SharedDepot::open(&path.0, &join)
        .map_err(|error| failed("opening a killed process's segment")(&error))?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    all_free(&depot).map_err(|why| failed("after a recovery")(&why))?;
    Ok(Ok((depot.recovered_pages(), ms)))
}

type Shown = (Design, usize, bool, Vec<f64>, Vec<f64>);

fn show(found: &[Shown]) -> comfy_table::Table {
    let mut table = table::new(["design", "held", "by", "pages back", "ms", "quartiles"]);
    for (design, gib, is_open, pages, ms) in found {
        let by = if *is_open { "a survivor" } else { "the next to open" };
        let pages = samples::median(pages).unwrap_or_default();
        table.add_row([
            design.name().to_owned(),
            format!("{gib} GiB"),
            by.to_owned(),
            format!("{pages:.0}"),
            table::median(ms),
            table::quartiles(ms),
        ]);
    }
    table::align(table, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recoveries_before_one_that_was_refused_count() {
        let mut rounds = [Some((1, 2.0)), Some((3, 4.0)), None, Some((5, 6.0))].into_iter();
        let found = repeat(4, || (), || Ok(rounds.next().flatten())).unwrap();
        assert_eq!(found, [(1, 2.0), (3, 4.0)]);
        let lost = || Err(Failure::Run("a page is lost".to_owned()));
        assert!(repeat(4, || (), lost).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_opened_again_fails_the_bench() {
        let pages = file(1 << 20, |_| ()).unwrap().unwrap().0;
        assert_eq!(pages, pages_of(1 << 20));
        let damage = |path: &Path| std::fs::write(path, [0; 8192]).unwrap();
        let failure = file(1 << 20, damage).unwrap_err().to_string();
        assert!(failure.contains("the file is no segment"), "{failure}");
    }
}
