//! A ceiling for what a depot has handed out plus what it keeps resident.
//!
//! # How it holds
//! The memory above the ceiling is taken out of the allocator
//! ([`remove_memory`](pagedepot_contiguity::Contiguity::remove_memory)), in whole free pageblocks,
//! and given back to the system. What the allocator is left with is all that can be handed out,
//! cached or kept resident, so nothing has to be counted when a page is allocated, and no moment
//! exceeds the ceiling. A request that finds no page below the ceiling drains caches and calls
//! reclaim callbacks, as in a depot that is as small, and then fails.
//!
//! A balloon of a virtual machine does the same (Waldspurger, OSDI 2002).
//!
//! # Lowering
//! Pageblocks that are whole and free are removed at once, but for those with a pin. For each
//! further one a pageblock is requested as any caller would: that drains, calls callbacks, and
//! compacts. It is freed past the caches and removed. Another request may be faster, so that is
//! tried a few times.
//!
//! Such a request gets a free pageblock with a pin again and again. So if all tries are in vain,
//! those without a pin are requested by their addresses, the emptiest first.
//!
//! # Several callers
//! The program sets a ceiling, and each [monitor](crate::pressure) one that follows the limit of
//! the container. The lowest is in force ([`Caps`](crate::giving_back::balloon::Caps)).
//!
//! # A store that processes share
//! Memory that one process took out would be missing to all others. There a ceiling is an
//! [`Allowance`]: the store counts what this process takes, and gives it no page above. What it
//! holds above a lower ceiling stays until it is freed; a request that must fail reclaims some, as
//! any request above the ceiling does.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagedepot::{AddError, ConfigError, Flags, FrameRange, Mode, Pfn, Scope, ZoneId};
use pagedepot_contiguity::{Contiguity, RemoveError};
use rustix::io::Errno;

use crate::error::CeilingError;
use crate::giving_back::balloon::{Balloon, Cap, Caps, Listener, MonitorId, NewCap};
use crate::giving_back::discard::drop_pages;
use crate::giving_back::returnable::ReturnableFrames;
use crate::giving_back::system::DroppedMemory;
use crate::memory::region::PAGEBLOCK_PAGES;
use crate::system::fork_mark::ForkMark;
use crate::system::sync::Guard;
use crate::waiting::answers::{Answers, Ring, WAIT_MAX};
use crate::waiting::waiters::MarkerGuard;

/// Number of times that a pageblock which was freed for the ceiling may have a pin, or be lost to
/// another request.
const LOST_MAX: u32 = 8;
/// Number of pageblocks without a pin that may be requested by their addresses in vain. Each such
/// request calls callbacks.
const REFUSED_MAX: u32 = 4;

/// The most bytes that a depot may have handed out and keep resident, together. Its metadata is not
/// counted. [`Builder::ceiling`](crate::Builder::ceiling) sets it from the start.
///
/// ```
/// use pagedepot_linux::reclaim::Ceiling;
/// use pagedepot_linux::{AllocError, Depot, Order};
///
/// let depot = Depot::builder(64 << 20).ceiling(4 << 20).build()?;
/// let pages: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
/// assert_eq!(pages.len(), 1024); // 4 MiB
/// assert_eq!(depot.page(Order::BASE).unwrap_err(), AllocError::Exhausted);
///
/// Ceiling::of(&depot).set(8 << 20)?; // the container has got more memory
/// assert!(depot.page(Order::BASE).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a depot that [processes share](crate::shared) it is the most that this process may hold and
/// cache, as [`SharedOptions::ceiling`](crate::shared::SharedOptions::ceiling) sets it, too; what
/// others may have does not change.
pub struct Ceiling<'d> {
    frames: &'d ReturnableFrames,
    allowance: Option<&'d dyn Allowance>,
}

/// The right of this process to pages of a store that other processes use, too.
pub(crate) trait Allowance: Send + Sync {
    /// The ceilings that were set.
    fn caps(&self) -> Caps;

    /// Sets one of them, rounded down to whole pages, but to one page at least.
    fn set_cap(&self, cap: Cap);

    /// Bytes that this process holds and caches.
    fn held_bytes(&self) -> usize;
}

impl fmt::Debug for Ceiling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ceiling({} of {} bytes)", self.bytes(), self.frames.bytes())
    }
}

impl<'d> Ceiling<'d> {
    /// The ceiling of these frames, of whose store this process has an allowance if others use it.
    pub(crate) fn over(frames: &'d ReturnableFrames, allowance: Option<&'d dyn Allowance>) -> Self {
        Ceiling { frames, allowance }
    }

    /// The ceiling in force: all of the depot's [bytes](crate::Depot::bytes) unless one was set.
    /// While it is being set, something in between. O(CPUs).
    pub fn bytes(&self) -> usize {
        match self.allowance {
            Some(allowance) => allowance.caps().lowest(self.frames.bytes()),
            None => managed_bytes(self.frames),
        }
    }

    /// Sets the ceiling, rounded down to whole pageblocks (512 pages: 2 MiB of 4 KiB pages), and
    /// returns what it is then. Above the depot's size it has no effect. A
    /// [monitor](crate::pressure) may hold it lower for the limit of the container, as long as it
    /// runs.
    ///
    /// A higher ceiling takes effect at once. For a lower one memory is reclaimed as for a request:
    /// caches are drained, callbacks called, movable pages moved; isolated CPUs are not fenced. The
    /// memory goes back at once, which interrupts every CPU that runs the process, isolated ones
    /// too. Watermarks that the program left alone follow. O(pages). Waits for another caller that
    /// sets it, and for a trim to return what it has taken: not for signal handlers, nor for
    /// reclaim callbacks, where it may fail with [`CeilingError::Reentrant`].
    ///
    /// In a depot that [processes share](crate::shared) the ceiling is rounded down to whole pages,
    /// and nothing goes back to the system: a page that is freed is other processes' then.
    ///
    /// # Errors
    /// [`CeilingError`]; after [`CeilingError::Held`] the ceiling is as low as it could be made. In
    /// a depot that processes share it is in force then, and this process gets no page until it
    /// holds less.
    pub fn set(&self, bytes: usize) -> Result<usize, CeilingError> {
        if self.frames.is_pinned() {
            return Err(CeilingError::Pinned);
        }
        self.adjust(NewCap::Program(bytes), &mut 0)
    }

    /// Sets a monitor's ceiling to what the limit of the container allows, at least a pageblock;
    /// `None`: any. From then on `listener` answers requests that reach it. Returns the ceiling in
    /// force, and adds the bytes that were present above it to `given_back_bytes`.
    pub(crate) fn follow(
        &self,
        monitor: &MonitorId,
        bytes: Option<usize>,
        listener: Option<&Listener>,
        given_back_bytes: &mut u64,
    ) -> Result<usize, CeilingError> {
        if self.frames.is_pinned() {
            return Err(CeilingError::Pinned);
        }
        let least = self.frames.pageblock_bytes();
        let cap = NewCap::Monitor(monitor, bytes.map(|bytes| bytes.max(least)), listener);
        self.adjust(cap, given_back_bytes)
    }

    /// Wakes the thread that answers requests which reach the ceiling in force, if that is a
    /// monitor's, and notes it in `answers`. Then it waits while another thread sets a ceiling, as
    /// the answer would, for about `limit` at most.
    pub(crate) fn ring(&self, answers: &Answers, limit: Duration) -> Ring {
        if !self.is_monitors() {
            return Ring::NoMonitor;
        }
        let balloon = match self.frames.balloon().lock_within(limit) {
            Ok(Some(balloon)) => balloon,
            Ok(None) => return Ring::Held,
            // For a request of the thread that sets it the answer would wait for its end.
            Err(_) => return Ring::NoMonitor,
        };
        let others = self.others(self.allowance.map_or(balloon.caps, Allowance::caps));
        let is_rung = balloon.monitors.listener(others).is_some_and(|listener| {
            answers.note_ring(listener.thread);
            listener.ring()
        });
        if is_rung { Ring::Rung } else { Ring::NoMonitor }
    }

    /// Whether the ceiling in force is a monitor's, or was when a call began that sets one now.
    fn is_monitors(&self) -> bool {
        // The program sets that of an allowance without the lock.
        let caps = self.allowance.map(Allowance::caps);
        caps.map_or_else(
            // Acquire: pairs with the Release in `adjust`.
            || self.frames.has_monitor_ceiling().load(Ordering::Acquire),
            |caps| caps.container.is_some_and(|bytes| bytes < self.others(caps)),
        )
    }

    /// The lowest ceiling that is no monitor's.
    fn others(&self, caps: Caps) -> usize {
        Caps { container: None, ..caps }.lowest(self.frames.bytes())
    }

    /// Sets the ceiling of a new depot, in which nothing is present unless it was populated.
    pub(crate) fn set_at_build(
        &self,
        bytes: usize,
        is_populated: bool,
    ) -> Result<(), CeilingError> {
        if self.frames.is_pinned() && is_populated {
            return Err(CeilingError::Pinned);
        }
        self.adjust(NewCap::Program(bytes), &mut 0).map(|_| ())
    }

    fn adjust(&self, cap: NewCap<'_>, given_back_bytes: &mut u64) -> Result<usize, CeilingError> {
        let shared = self.frames;
        shared.check_parent().map_err(|_| CeilingError::Forked)?;
        let least = match self.allowance {
            Some(_) => shared.page_size().bytes(),
            None => shared.pageblock_bytes(),
        };
        if let NewCap::Program(bytes) = cap
            && bytes < least
        {
            return Err(CeilingError::TooLow { bytes, least });
        }
        if self.allowance.is_none() && shared.memory().bytes_max() > shared.bytes() {
            return Err(CeilingError::CanGrow);
        }
        // What a higher ceiling adds or allows; told when the lock is free again.
        let _bringing = shared.bringing();
        let mut balloon = lock(shared)?;
        let _setting = SettingGuard::new(shared);
        loop {
            for cap in balloon.combine(cap) {
                match self.allowance {
                    Some(allowance) => allowance.set_cap(cap),
                    None => balloon.caps.set(cap),
                }
            }
            let lowest = balloon.monitors.lowest();
            let is_monitors = lowest.is_some_and(|bytes| bytes < self.others(balloon.caps));
            // It stays set until a ceiling is lifted: requests wait for what that adds. Relaxed:
            // a request that sees it takes the lock.
            shared.has_monitor_ceiling().fetch_or(is_monitors, Ordering::Relaxed);
            let result = match self.allowance {
                Some(allowance) => allow(shared, allowance),
                None => resize(shared, &mut balloon, given_back_bytes),
            };
            // A monitor that a callback ended could not lift its ceiling.
            if balloon.monitors.lowest() == lowest {
                // Release: a request that sees it finds what was added.
                shared.has_monitor_ceiling().store(is_monitors, Ordering::Release);
                return result;
            }
        }
    }
}

/// Locks the ceilings. A callback for the ceiling of another depot does not wait without end: the
/// thread that has the lock may wait for that ceiling.
fn lock(shared: &ReturnableFrames) -> Result<Guard<'_, Balloon>, CeilingError> {
    match is_being_set_here() {
        true => shared.balloon().lock_within(WAIT_MAX)?.ok_or(CeilingError::Reentrant),
        false => Ok(shared.balloon().lock()?),
    }
}

std::thread_local! {
    /// The mark of this process while the thread is setting a ceiling. A child that is forked by a
    /// callback has its parent's, and sets none.
    static SETTING: Cell<Option<ForkMark<'static>>> = const { Cell::new(None) };
}

/// Whether the calling thread is setting a ceiling, of any depot: this call is made by a callback.
/// It must not wait for a thread that may set one, too.
pub(crate) fn is_being_set_here() -> bool {
    SETTING.get().is_some_and(|mark| mark.check().is_ok())
}

/// A guard of what a thread must not do in callbacks under the lock of a ceiling: run wakers, and
/// wait for threads.
struct SettingGuard<'s> {
    _marking: MarkerGuard<'s>,
    /// The mark before: this may be a callback for the ceiling of another depot.
    before: Option<ForkMark<'static>>,
}

impl<'s> SettingGuard<'s> {
    fn new(shared: &'s ReturnableFrames) -> Self {
        let before = SETTING.replace(Some(ForkMark::of_process()));
        SettingGuard { _marking: shared.waiters().leaving_marks(), before }
    }
}

impl Drop for SettingGuard<'_> {
    fn drop(&mut self) {
        SETTING.set(self.before);
    }
}

/// Has the depot as many pages as its ceilings say.
fn resize(
    shared: &ReturnableFrames,
    balloon: &mut Balloon,
    given_back_bytes: &mut u64,
) -> Result<usize, CeilingError> {
    let bytes = balloon.caps.lowest(shared.bytes());
    let above = (shared.bytes() - bytes).div_ceil(shared.pageblock_bytes());
    let wanted_pages = above as u64 * u64::from(PAGEBLOCK_PAGES);
    let _marks = DefaultMarks::note(shared);
    let result = match balloon.pages() {
        pages if pages > wanted_pages => give(shared, balloon, pages - wanted_pages),
        pages => {
            let missing = withhold(shared, balloon, wanted_pages - pages);
            *given_back_bytes += balloon.take_given_back_bytes();
            missing
        }
    };
    let reached = managed_bytes(shared);
    match result {
        Ok(0) => Ok(reached),
        Ok(_) => Err(CeilingError::Held { bytes, reached }),
        Err(why) => Err(why),
    }
}

/// Has this process hold and cache no more than its ceilings say.
fn allow(shared: &ReturnableFrames, allowance: &dyn Allowance) -> Result<usize, CeilingError> {
    let bytes = allowance.caps().lowest(shared.bytes());
    let pages_above = || allowance.held_bytes().saturating_sub(bytes) >> shared.page_size().shift();
    let mut before = usize::MAX;
    while pages_above() > 0 {
        // A request would get what its CPU has cached, and would have to drain nothing.
        shared.frames().drain(Scope::ALL, Mode::Full);
        let above = pages_above();
        if above >= before {
            return Err(CeilingError::Held { bytes, reached: allowance.held_bytes() });
        }
        before = above;
        // The request calls callbacks. It gets pages if others were freed meanwhile.
        let pages = (above as u32).min(PAGEBLOCK_PAGES);
        if pages > 0
            && let Ok(start) = shared.frames().alloc_contiguous(pages, 1, Flags::MOVABLE)
        {
            let freed = shared.frames().free_contiguous(start, pages);
            debug_assert_eq!(freed, Ok(()));
        }
    }
    Ok(bytes)
}

/// Bytes that the allocator has.
fn managed_bytes(shared: &ReturnableFrames) -> usize {
    let frames = shared.frames();
    let zones = frames.zone_ids().filter_map(|zone| frames.zone_stats(zone));
    (zones.map(|zone| zone.managed_pages).sum::<u64>() as usize) << shared.page_size().shift()
}

/// Adds pages to the allocator again; returns how many are still missing.
fn give(
    shared: &ReturnableFrames,
    balloon: &mut Balloon,
    mut pages: u64,
) -> Result<u64, CeilingError> {
    while let Some((zone, run)) = (pages > 0).then(|| balloon.pop(pages)).flatten() {
        let frames = shared.frames();
        let added = match shared.has_backing() {
            // To add memory puts no frame into a store of the program's: a free does.
            true => frames.add_memory_held(zone, run, &mut []),
            false => frames.add_memory(zone, run, &mut []),
        };
        // A child, which a signal handler has forked above this.
        if matches!(added, Err(AddError { why: ConfigError::Forked, .. })) {
            return Err(CeilingError::Forked);
        }
        added.expect("it was removed from this zone, and its metadata is kept");
        if shared.has_backing() {
            let freed = frames.free_contiguous(run.start, run.frames);
            debug_assert_eq!(freed, Ok(()));
        }
        pages -= u64::from(run.frames);
    }
    Ok(pages)
}

/// Removes pages from the allocator; returns how many could not be.
fn withhold(
    shared: &ReturnableFrames,
    balloon: &mut Balloon,
    pages: u64,
) -> Result<u64, CeilingError> {
    let mut missing = pages;
    for run in free_runs(shared, pages)? {
        let pages = take(shared, balloon, run)?;
        missing = missing.saturating_sub(pages);
    }
    let mut lost = 0;
    while missing > 0 && lost < LOST_MAX {
        let Some(pageblock) = request(shared) else { break };
        match take(shared, balloon, pageblock)? {
            0 => lost += 1,
            pages => missing = missing.saturating_sub(pages),
        }
    }
    if missing > 0 && lost == LOST_MAX {
        let mut refused = 0;
        for pageblock in without_pins(shared, balloon)? {
            if missing == 0 || refused == REFUSED_MAX {
                break;
            }
            if request_at(shared, pageblock) {
                missing = missing.saturating_sub(take(shared, balloon, pageblock)?);
            } else {
                refused += 1;
            }
        }
    }
    Ok(missing)
}

/// Number of pageblocks in the depot's memory.
fn pageblocks(shared: &ReturnableFrames) -> u32 {
    (shared.bytes() >> shared.page_size().shift()) as u32 / PAGEBLOCK_PAGES
}

/// The pages of a pageblock.
fn pageblock_at(number: u32) -> FrameRange {
    FrameRange::new(Pfn::new(number * PAGEBLOCK_PAGES), PAGEBLOCK_PAGES)
}

/// Pageblocks of the allocator without a pin, those with the most free pages first.
fn without_pins(
    shared: &ReturnableFrames,
    balloon: &Balloon,
) -> Result<Vec<FrameRange>, CeilingError> {
    let mut is_out = vec![false; pageblocks(shared) as usize];
    for run in balloon.runs() {
        let [first, count] = [run.start.get(), run.frames].map(|pages| pages / PAGEBLOCK_PAGES);
        is_out[first as usize..][..count as usize].fill(true);
    }
    let mut all = Vec::new();
    for (number, _) in (0..).zip(is_out).filter(|&(_, is_out)| !is_out) {
        let pageblock = pageblock_at(number);
        // Locked for one pageblock at a time, as in `free_runs`.
        if !shared.pins().lock()?.has_any(pageblock) {
            all.push(pageblock);
        }
    }
    let free = |run: &FrameRange| {
        (0..run.frames).filter(|&at| shared.frames().is_free(run.start.add(at))).count()
    };
    all.sort_by_cached_key(|run| std::cmp::Reverse(free(run)));
    Ok(all)
}

/// Runs of whole free pageblocks without pins, from the last down, `pages_max` pages at most; each
/// in one zone. Each zone gives up a share that suits its size, and the last ones found more where
/// others have too little.
fn free_runs(shared: &ReturnableFrames, pages_max: u64) -> Result<Vec<FrameRange>, CeilingError> {
    let frames = shared.frames();
    let managed = |zone| frames.zone_stats(zone).map_or(0, |stats| stats.managed_pages);
    let all: u64 = frames.zone_ids().map(managed).sum();
    let mut quotas: Vec<u64> = frames
        .zone_ids()
        .map(|zone| {
            (u128::from(pages_max) * u128::from(managed(zone)) / u128::from(all.max(1))) as u64
        })
        .map(|quota| quota.next_multiple_of(PAGEBLOCK_PAGES.into()))
        .collect();
    let mut left = pages_max;
    let mut runs: Vec<FrameRange> = Vec::new();
    for pageblock in (0..pageblocks(shared)).rev().map(pageblock_at) {
        let first = pageblock.start;
        if left == 0 {
            break;
        }
        if !(0..PAGEBLOCK_PAGES).all(|at| frames.is_free(first.add(at))) {
            continue;
        }
        // Locked for one pageblock at a time: threads that pin do not wait for the whole look.
        if shared.pins().lock()?.has_any(pageblock) {
            continue;
        }
        let Some(quota) = zone_of(shared, first).and_then(|zone| quotas.get_mut(zone.index()))
        else {
            continue;
        };
        if *quota == 0 {
            continue;
        }
        *quota -= u64::from(PAGEBLOCK_PAGES);
        left -= u64::from(PAGEBLOCK_PAGES);
        match runs.last_mut() {
            // Zones lie apart by whole pageblocks, so neighbours may be of two.
            Some(run)
                if run.start == first.add(PAGEBLOCK_PAGES)
                    && zone_of(shared, run.start) == zone_of(shared, first) =>
            {
                *run = FrameRange::new(first, run.frames + PAGEBLOCK_PAGES);
            }
            _ => runs.push(pageblock),
        }
    }
    Ok(runs)
}

/// The zone of a page: there is one per node.
fn zone_of(shared: &ReturnableFrames, pfn: Pfn) -> Option<ZoneId> {
    let frames = shared.frames();
    let node = frames.node_of(pfn)?;
    frames.zone_ids().find(|&zone| frames.zone_stats(zone).is_some_and(|stats| stats.node == node))
}

/// Removes a run and drops its memory; returns how many pages, fewer where other requests were
/// faster.
fn take(
    shared: &ReturnableFrames,
    balloon: &mut Balloon,
    run: FrameRange,
) -> Result<u64, CeilingError> {
    // Until the memory is given back: see `pins.rs`.
    let pins = shared.pins().lock()?;
    let Some(zone) = zone_of(shared, run.start) else { return Ok(0) };
    let mut pages = 0;
    let mut take_part = |part: FrameRange| -> Result<bool, CeilingError> {
        if pins.has_any(part) {
            return Ok(false);
        }
        match shared.frames().remove_memory(zone, part) {
            Ok(()) => {}
            Err(RemoveError::Unsupported) => return Err(CeilingError::Unsupported),
            Err(RemoveError::Forked) => return Err(CeilingError::Forked),
            Err(_) => return Ok(false),
        }
        balloon.push(zone, part);
        match drop_memory(shared, part) {
            Ok(bytes) => balloon.given_back_bytes += bytes,
            // A child's allocator is a copy that takes no memory.
            Err(CeilingError::Forked) => return Err(CeilingError::Forked),
            Err(why) => {
                give(shared, balloon, part.frames.into())?;
                return Err(why);
            }
        }
        pages += u64::from(part.frames);
        Ok(true)
    };
    if !take_part(run)? && run.frames > PAGEBLOCK_PAGES {
        for at in (0..run.frames).step_by(PAGEBLOCK_PAGES as usize) {
            take_part(FrameRange::new(run.start.add(at), PAGEBLOCK_PAGES))?;
        }
    }
    Ok(pages)
}

/// Gives memory back to the system; returns how many bytes of it were present.
fn drop_memory(shared: &ReturnableFrames, part: FrameRange) -> Result<u64, CeilingError> {
    if shared.is_pinned() {
        // Of a new depot (`set_at_build`): nothing was touched yet.
        return Ok(0);
    }
    let mut dropped = DroppedMemory::default();
    match drop_pages(shared, part.start, part.frames, &mut dropped) {
        Ok(()) => Ok(dropped.bytes),
        Err(Errno::CHILD) => Err(CeilingError::Forked),
        Err(errno) => Err(CeilingError::Refused(errno)),
    }
}

/// Has a pageblock reclaimed as for a request, and frees it to the store.
fn request(shared: &ReturnableFrames) -> Option<FrameRange> {
    let flags = Flags::MOVABLE.compact();
    let start = shared.frames().alloc_contiguous(PAGEBLOCK_PAGES, PAGEBLOCK_PAGES, flags).ok()?;
    free_to_store(shared, start);
    Some(FrameRange::new(start, PAGEBLOCK_PAGES))
}

/// Has this pageblock reclaimed and freed to the store, like [`request`]. Returns whether it could
/// be had.
fn request_at(shared: &ReturnableFrames, pageblock: FrameRange) -> bool {
    let FrameRange { start, frames } = pageblock;
    let is_got = shared.frames().alloc_at(start, frames, Flags::MOVABLE.compact()).is_ok();
    if is_got {
        free_to_store(shared, start);
    }
    is_got
}

/// Frees a pageblock in two parts that are no blocks: a CPU would cache blocks of any order.
fn free_to_store(shared: &ReturnableFrames, start: Pfn) {
    const FIRST: u32 = 341;
    const { assert!(!FIRST.is_power_of_two() && !(PAGEBLOCK_PAGES - FIRST).is_power_of_two()) };
    for (at, pages) in [(0, FIRST), (FIRST, PAGEBLOCK_PAGES - FIRST)] {
        let freed = shared.frames().free_contiguous(start.add(at), pages);
        debug_assert_eq!(freed, Ok(()));
    }
}

/// Zones whose watermarks are the defaults for their size.
struct DefaultMarks<'s>(&'s ReturnableFrames, Vec<ZoneId>);

/// Gives them the defaults for the size that they have now, also when a callback panics.
impl Drop for DefaultMarks<'_> {
    fn drop(&mut self) {
        for &zone in &self.1 {
            if let (Some((_, due)), Some(settings)) =
                (Self::marks(self.0, zone), self.0.frames().settings(zone))
            {
                settings.set_watermarks(due);
            }
        }
    }
}

impl<'s> DefaultMarks<'s> {
    fn note(shared: &'s ReturnableFrames) -> Self {
        let is_default =
            |&zone: &ZoneId| Self::marks(shared, zone).is_some_and(|(now, due)| now == due);
        DefaultMarks(shared, shared.frames().zone_ids().filter(is_default).collect())
    }

    /// The watermarks in force, and the defaults.
    fn marks(
        shared: &ReturnableFrames,
        zone: ZoneId,
    ) -> Option<(pagedepot::Watermarks, pagedepot::Watermarks)> {
        let stats = shared.frames().zone_stats(zone)?;
        let due = pagedepot::Watermarks::without_reserve(stats.managed_pages, shared.page_size());
        Some((stats.watermarks, due))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::Depot;

    /// Requests at a ceiling that is no monitor's do not wait for a thread that sets it.
    #[test]
    fn a_ceiling_of_the_program_is_not_waited_for() {
        let block = rustix::param::page_size() * PAGEBLOCK_PAGES as usize;
        let depot = Depot::new(8 * block).unwrap();
        let (ceiling, monitor) = (Ceiling::of(&depot), MonitorId::default());
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        // No thread has this id.
        let listener = Listener { wake: Arc::new(wake), thread: u32::MAX };
        let ring = || ceiling.ring(&Answers::default(), Duration::ZERO) == Ring::Rung;
        let follow = |bytes| ceiling.follow(&monitor, bytes, Some(&listener), &mut 0);
        assert_eq!(follow(Some(4 * block)), Ok(4 * block));
        assert!(ring());
        assert_eq!(ceiling.set(2 * block), Ok(2 * block));
        let (told, rung) = mpsc::channel();
        let other = depot.clone();
        let balloon = depot.shared().balloon().lock().unwrap();
        let ring_long = move || Ceiling::of(&other).ring(&Answers::default(), Duration::MAX);
        std::thread::spawn(move || told.send(ring_long()));
        assert_eq!(rung.recv_timeout(Duration::from_secs(60)), Ok(Ring::NoMonitor));
        drop(balloon);
        assert_eq!(ceiling.set(usize::MAX), Ok(4 * block));
        assert!(ring());
        assert_eq!(follow(None), Ok(8 * block));
        assert!(!ring());
    }

    /// Requests of a callback note that another thread sets the ceiling of their depot for long.
    #[test]
    fn a_callback_for_another_ceiling_meets_a_held_lock() {
        let block = rustix::param::page_size() * PAGEBLOCK_PAGES as usize;
        let [set, held] = [(); 2].map(|()| Depot::new(8 * block).unwrap());
        let (ceiling, monitor) = (Ceiling::of(&held), MonitorId::default());
        assert_eq!(ceiling.follow(&monitor, Some(4 * block), None, &mut 0), Ok(4 * block));
        let _setting = SettingGuard::new(set.shared());
        let ring = || ceiling.ring(&Answers::default(), Duration::ZERO);
        std::thread::scope(|scope| {
            let (told, is_held) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            let frames = held.shared();
            scope.spawn(move || {
                let _balloon = frames.balloon().lock().unwrap();
                told.send(()).unwrap();
                let _ = ends.recv();
            });
            is_held.recv().unwrap();
            assert_eq!(ring(), Ring::Held);
            drop(end);
        });
        let _balloon = held.shared().balloon().lock().unwrap();
        assert_eq!(ring(), Ring::NoMonitor, "its own thread has the lock");
    }
}
