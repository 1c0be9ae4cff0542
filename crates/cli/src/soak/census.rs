//! Checks of a segment: while all of its processes are stopped, and after all have ended.

use std::os::fd::BorrowedFd;

use pagedepot_linux::shared::{Orphans, SegmentStats, SharedDepot, SharedOptions};
use pagedepot_linux::{Mode, Order, Page, Scope};

/// Joins as a process that forks afterwards: without a thread.
fn join(segment: BorrowedFd<'_>) -> Result<SharedDepot, String> {
    let options = SharedOptions::join().answers(false);
    SharedDepot::adopt(segment, &options).map_err(|error| format!("cannot join: {error}"))
}

/// All processes are stopped at some instruction, or were killed. A survivor recovers what the dead
/// had; then each page is free or of a process that is in a slot.
///
/// # Errors
/// Says what is wrong.
pub fn of_stopped(segment: BorrowedFd<'_>) -> Result<(), String> {
    let depot = join(segment)?;
    depot.recover(Orphans::Stay);
    owned(&depot.segment_stats())?;
    drop(depot);
    owned(&SegmentStats::read(path(segment)).map_err(|error| error.to_string())?)
}

/// All other processes have ended: a survivor can have every page, each once.
///
/// # Errors
/// Says what is wrong.
pub fn of_dead(segment: BorrowedFd<'_>) -> Result<(), String> {
    let depot = join(segment)?;
    depot.recover(Orphans::GoBack);
    free(&depot)?;
    let mut seen = vec![false; depot.segment_stats().pages_max as usize];
    let pages: Vec<Page> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    for page in &pages {
        if std::mem::replace(&mut seen[page.pfn().index()], true) {
            return Err(format!("page {} was handed out twice", page.pfn().get()));
        }
    }
    let present = depot.segment_stats().present_pages;
    if pages.len() as u64 != present {
        let had = pages.len();
        return Err(format!("of {present} pages a request can have only {had}: others are hidden"));
    }
    drop(pages);
    free(&depot)?;
    match (depot.taken_pages(), depot.refused_pages()) {
        ((0, 0), 0) => {}
        counts => return Err(format!("counts of a process that has nothing: {counts:?}")),
    }
    depot.validate().map(drop).map_err(|fault| fault.to_string())
}

/// This process alone has the segment: all that it does not cache is free.
fn free(depot: &SharedDepot) -> Result<(), String> {
    depot.drain(Scope::ALL, Mode::Full);
    let stats = depot.segment_stats();
    owned(&stats)?;
    let taken = stats.present_pages - stats.free_pages;
    let others = stats.processes.len() - 1;
    if (taken, others) != (0, 0) {
        return Err(format!("{taken} pages are not free, {others} dead processes stay: {stats:?}"));
    }
    Ok(())
}

fn owned(stats: &SegmentStats) -> Result<(), String> {
    match stats.lost_pages {
        0 => Ok(()),
        lost => Err(format!("{lost} pages are lost: {stats:?}")),
    }
}

fn path(segment: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", segment.as_raw_fd())
}
