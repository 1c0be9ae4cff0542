//! Requests to give back a number of bytes by some time, as a hypervisor's balloon makes them.

use std::fmt;
use std::time::Instant;

use pagedepot::{Mode, Scope};

use crate::giving_back::callbacks::Callbacks;
use crate::giving_back::gaps::Gaps;
use crate::giving_back::returnable::ReturnableFrames;
use crate::giving_back::trim::{Bounds, Runs, Stop, TrimError, TrimResult, trim_within};
use crate::system::prim::now_ms;

/// Milliseconds after which CPUs that did not hand over their fronts are fenced.
const FENCE_AFTER_MS: u32 = 10;
/// Milliseconds for which handovers are waited for.
const HANDOVER_MS: u32 = 50;
/// Milliseconds for which a gap in the work of isolated CPUs is waited for with pages taken, and up
/// to twice as many before the deadline. Requests that run short, pins and ceilings wait as long.
const GAP_MS: u64 = 50;

/// The result of a [`Depot::give_back`](crate::Depot::give_back).
///
/// ```
/// use std::time::{Duration, Instant};
/// use pagedepot_linux::reclaim::GiveBackEnd;
/// use pagedepot_linux::{Depot, Order};
///
/// let depot = Depot::new(64 << 20)?;
/// depot.page(Order::MAX)?.fill(1); // 4 MiB, touched and freed
/// let given = depot.give_back(1 << 30, Instant::now() + Duration::from_secs(5))?;
/// println!("{} bytes; {}", given.bytes, given.end); // "4194304 bytes; nothing more is free: ..."
/// assert!(given.bytes >= 4 << 20 || given.end != GiveBackEnd::Enough);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GiveBackResult {
    /// Bytes that were present before and are not any more. The last run of free pages goes back
    /// whole, so there may be up to a pageblock (512 pages) more than asked for.
    pub bytes: u64,
    /// Pageblocks that went back whole.
    pub whole_pageblocks: u64,
    /// System calls that dropped memory.
    pub calls: u64,
    /// The reason why no more went back.
    pub end: GiveBackEnd,
}

/// The reason why a request to give memory back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GiveBackEnd {
    /// The request gave back as many bytes as were asked for.
    Enough,
    /// All memory went back that was free.
    NothingFree {
        /// Bytes that are allocated.
        held_bytes: u64,
        /// Bytes that CPUs still cache: isolated ones, and those that were at work.
        cached_bytes: u64,
        /// Bytes that are free and [pinned](crate::Depot::pin_range).
        pinned_bytes: u64,
    },
    /// The deadline was reached.
    Deadline,
    /// A request of the program ran short of pages meanwhile: what is free is needed.
    LowMemory,
    /// Another thread is giving memory back.
    Busy,
    /// A thread of this process ran on an isolated CPU until the deadline, and would have been
    /// interrupted; or the system does not tell where threads run.
    Isolated,
}

impl fmt::Display for GiveBackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GiveBackEnd::Enough => f.write_str("as much as was asked for"),
            GiveBackEnd::NothingFree { held_bytes, cached_bytes, pinned_bytes } => write!(
                f,
                "nothing more is free: {held_bytes} bytes are allocated, {cached_bytes} cached by \
                 CPUs, {pinned_bytes} pinned; free some, and ask again"
            ),
            GiveBackEnd::Deadline => f.write_str("the deadline was reached: give more time"),
            GiveBackEnd::LowMemory => {
                f.write_str("a request ran short of pages: what is free is needed; ask later")
            }
            GiveBackEnd::Busy => f.write_str("another thread is giving memory back: ask later"),
            GiveBackEnd::Isolated => f.write_str(
                "a thread works on an isolated CPU without a pause: have it sleep now and then, \
                 or trim, which interrupts it",
            ),
        }
    }
}

impl From<Stop> for GiveBackEnd {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Enough => GiveBackEnd::Enough,
            Stop::LowMemory => GiveBackEnd::LowMemory,
            Stop::Busy => GiveBackEnd::Busy,
            Stop::Deadline => GiveBackEnd::Deadline,
            Stop::Isolated => GiveBackEnd::Isolated,
        }
    }
}

/// Gives back at most `bytes_max` bytes, by growing force, until `deadline`.
pub(crate) fn give_back(
    (depot, callbacks): (&ReturnableFrames, &Callbacks),
    bytes_max: u64,
    deadline: Instant,
) -> Result<GiveBackResult, TrimError> {
    let mut request = Request {
        depot,
        callbacks,
        bytes_max,
        deadline,
        gaps: Gaps::of(depot.isolated_cpus()),
        trimmed: TrimResult::default(),
    };
    let stop = request.run()?;
    let TrimResult { bytes, whole_pageblocks, calls, pinned_pages, .. } = request.trimmed;
    let end = stop.map_or_else(|| nothing_free(depot, pinned_pages), GiveBackEnd::from);
    Ok(GiveBackResult { bytes, whole_pageblocks, calls, end })
}

struct Request<'d> {
    depot: &'d ReturnableFrames,
    callbacks: &'d Callbacks,
    bytes_max: u64,
    deadline: Instant,
    gaps: Gaps<'d>,
    trimmed: TrimResult,
}

impl Request<'_> {
    /// Whole pageblocks first, then parts: of what is free, then of what CPUs cache.
    fn run(&mut self) -> Result<Option<Stop>, TrimError> {
        self.depot.frames().drain(Scope::ALL, Mode::Quiet);
        if let Some(stop) = self.trim()? {
            return Ok(Some(stop));
        }
        if self.left_ms() == 0 {
            return Ok(Some(Stop::Deadline));
        }
        self.take_caches();
        self.trim()
    }

    fn trim(&mut self) -> Result<Option<Stop>, TrimError> {
        // The second trim meets the same ones.
        self.trimmed.pinned_pages = 0;
        for runs in [Runs::Whole, Runs::Parts] {
            let (deadline, gaps) = (self.deadline, &mut self.gaps);
            let mut moment = || {
                let left_ms = left_ms(deadline);
                let is_last = left_ms < 2 * GAP_MS;
                let end_ms = now_ms() + if is_last { left_ms } else { GAP_MS };
                match left_ms {
                    0 => Err(Stop::Deadline),
                    _ if gaps.wait(end_ms) => Ok(true),
                    // The system does not tell where threads run, or no time is left.
                    _ if is_last || now_ms() < end_ms => Err(Stop::Isolated),
                    _ => Ok(false),
                }
            };
            let bytes_max = self.bytes_max.saturating_sub(self.trimmed.bytes);
            let bounds = Bounds { bytes_max, runs: &[runs], moment: &mut moment };
            let stop = trim_within(self.depot, bounds, &mut self.trimmed)?;
            if stop.is_some() {
                return Ok(stop);
            }
        }
        Ok(None)
    }

    /// Has CPUs hand over their fronts, and address spaces give up what they keep. Isolated CPUs
    /// are not interrupted.
    fn take_caches(&self) {
        self.callbacks.shrink(self.depot, false);
        let wait_ms = HANDOVER_MS.min(self.left_ms().try_into().unwrap_or(u32::MAX));
        self.depot.frames().drain_handover(Scope::ALL, Some(FENCE_AFTER_MS)).wait(wait_ms);
        self.depot.frames().drain(Scope::ALL, Mode::Quiet);
    }

    fn left_ms(&self) -> u64 {
        left_ms(self.deadline)
    }
}

fn left_ms(deadline: Instant) -> u64 {
    deadline.saturating_duration_since(Instant::now()).as_millis().try_into().unwrap_or(u64::MAX)
}

fn nothing_free(depot: &ReturnableFrames, pinned_pages: u64) -> GiveBackEnd {
    let bytes = |pages: u64| pages << depot.page_size().shift();
    let frames = depot.frames();
    let zones = frames.zone_ids().filter_map(|zone| frames.zone_stats(zone));
    let (held, cached) = zones.fold((0, 0), |(held, cached), zone| {
        let used = zone.managed_pages.saturating_sub(zone.free_pages);
        (held + used.saturating_sub(zone.cached_pages), cached + zone.cached_pages)
    });
    GiveBackEnd::NothingFree {
        held_bytes: bytes(held),
        cached_bytes: bytes(cached),
        pinned_bytes: bytes(pinned_pages),
    }
}
