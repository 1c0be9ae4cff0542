//! Taking pages back, and saying where they are.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use pagedepot_linux::reclaim::{Ceiling, GiveBackEnd, GiveBackResult, PinnedRange, Pressure};
use pagedepot_linux::{DrainResult, Mode, Order, Page, Scope};

use crate::blocks::block_of;
use crate::error::{set_errno, status, tell, tell_text};
use crate::handle::{depot, depot_or_text, pagedepot_t};

/// A drain that interrupts no CPU: what lies on shelves.
pub const PAGEDEPOT_QUIET: c_int = 0;
/// A drain that takes everything. Each CPU that runs a thread of this process, is not isolated and
/// caches more than lies on shelves is interrupted once.
pub const PAGEDEPOT_FULL: c_int = 1;
/// A drain that interrupts no CPU, and asks each for what only its owner can take: the next thread
/// there that allocates or frees hands it over.
pub const PAGEDEPOT_HANDOVER: c_int = 2;

/// The result of a drain, in pages unless it says otherwise.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pagedepot_drained_t {
    /// Returned to the store.
    pub taken_pages: u64,
    /// Cached again by the time it ended.
    pub left_pages: u64,
    /// Pages in other callers' hands.
    pub in_flight_pages: u64,
    /// Pages in fronts that the drain did not take, at most.
    pub unreachable_pages: u64,
    /// CPUs that were fenced. A fence interrupts the CPU only if a thread of this process runs
    /// there at that moment. CPUs with locks, as all are with PAGEDEPOT_PER_CPU_LOCKS, need none
    /// and count as none.
    pub fences: u64,
    /// CPUs that another drain was at, or that could not be fenced.
    pub busy_cpus: u64,
    /// CPUs left alone because they are isolated.
    pub isolated_cpus: u64,
    /// CPUs that were asked and have not handed over yet.
    pub pending_cpus: u64,
    /// Pages in fronts of those CPUs, at most: on their way.
    pub pending_pages: u64,
}

impl From<DrainResult> for pagedepot_drained_t {
    fn from(drained: DrainResult) -> Self {
        pagedepot_drained_t {
            taken_pages: drained.taken_pages,
            left_pages: drained.left_pages,
            in_flight_pages: drained.in_flight_pages,
            unreachable_pages: drained.unreachable_pages,
            fences: drained.fences,
            busy_cpus: drained.busy_cpus,
            isolated_cpus: drained.isolated_cpus,
            pending_cpus: drained.pending_cpus,
            pending_pages: drained.pending_pages,
        }
    }
}

/// The result of a trim.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pagedepot_trimmed_t {
    /// Bytes that were present and are no more.
    pub bytes: u64,
    /// System calls that it took.
    pub calls: u64,
    /// 1 when the trim ended early, and bytes may be 0 though much is free: another thread was
    /// trimming, or a request had run out of pages less than 20 ms before and needs what is free.
    /// Try again later.
    pub cut_short: c_int,
}

/// The reason why no more went back: as much was given back as was asked for.
pub const PAGEDEPOT_GIVE_BACK_ENOUGH: c_int = 0;
/// All memory went back that was free: see held_bytes, cached_bytes and pinned_bytes.
pub const PAGEDEPOT_GIVE_BACK_NOTHING_FREE: c_int = 1;
/// The time was up.
pub const PAGEDEPOT_GIVE_BACK_DEADLINE: c_int = 2;
/// A request of the program ran short of pages meanwhile: what is free is needed.
pub const PAGEDEPOT_GIVE_BACK_LOW_MEMORY: c_int = 3;
/// Another thread is giving memory back.
pub const PAGEDEPOT_GIVE_BACK_BUSY: c_int = 4;
/// A thread of the program ran on an isolated CPU all the time, and would have been interrupted.
pub const PAGEDEPOT_GIVE_BACK_ISOLATED: c_int = 5;

/// The result of pagedepot_give_back().
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pagedepot_given_back_t {
    /// Bytes that were present and are no more. The last run of free pages goes back whole, so
    /// there may be up to a pageblock (512 pages) more than asked for.
    pub bytes: u64,
    /// Pageblocks that went back whole.
    pub whole_pageblocks: u64,
    /// System calls that it took.
    pub calls: u64,
    /// The reason why no more went back: PAGEDEPOT_GIVE_BACK_ENOUGH or another.
    pub end: c_int,
    /// Bytes that are allocated, with PAGEDEPOT_GIVE_BACK_NOTHING_FREE.
    pub held_bytes: u64,
    /// Bytes that CPUs still cache, with PAGEDEPOT_GIVE_BACK_NOTHING_FREE.
    pub cached_bytes: u64,
    /// Bytes that are free and pinned, with PAGEDEPOT_GIVE_BACK_NOTHING_FREE.
    pub pinned_bytes: u64,
}

impl From<GiveBackResult> for pagedepot_given_back_t {
    fn from(given: GiveBackResult) -> Self {
        let mut told = pagedepot_given_back_t {
            bytes: given.bytes,
            whole_pageblocks: given.whole_pageblocks,
            calls: given.calls,
            ..Self::default()
        };
        told.end = match given.end {
            GiveBackEnd::Enough => PAGEDEPOT_GIVE_BACK_ENOUGH,
            GiveBackEnd::NothingFree { held_bytes, cached_bytes, pinned_bytes } => {
                (told.held_bytes, told.cached_bytes, told.pinned_bytes) =
                    (held_bytes, cached_bytes, pinned_bytes);
                PAGEDEPOT_GIVE_BACK_NOTHING_FREE
            }
            GiveBackEnd::LowMemory => PAGEDEPOT_GIVE_BACK_LOW_MEMORY,
            GiveBackEnd::Busy => PAGEDEPOT_GIVE_BACK_BUSY,
            GiveBackEnd::Isolated => PAGEDEPOT_GIVE_BACK_ISOLATED,
            // A later version may have more reasons to stop.
            _ => PAGEDEPOT_GIVE_BACK_DEADLINE,
        };
        told
    }
}

/// Numbers of pages by place, and counts of requests by how they were served.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pagedepot_stats_t {
    /// Pages of the depot.
    pub managed_pages: u64,
    /// Free in the store.
    pub free_pages: u64,
    /// Cached by CPUs.
    pub cached_pages: u64,
    /// Allocations and frees that a CPU's front served alone.
    pub hits: u64,
    /// Magazines filled from the store.
    pub refills: u64,
    /// Magazines emptied into the store.
    pub spills: u64,
    /// Pages taken back by drains.
    pub drained_pages: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Bytes of metadata.
    pub metadata_bytes: u64,
}

/// Frees pages that the program can do without, and returns how many.
#[allow(non_camel_case_types, reason = "its name in C")]
pub type pagedepot_reclaim_t = Option<
    unsafe extern "C" fn(context: *mut c_void, wanted_pages: u64, is_last_resort: c_int) -> u64,
>;

/// Takes pages that CPUs cache back to the store: mode PAGEDEPOT_QUIET, PAGEDEPOT_FULL or
/// PAGEDEPOT_HANDOVER. result may be NULL. Returns 0, or -1 with errno.
///
/// What CPUs hand over later is brought to the store by the next drain, by requests that run short,
/// and by pagedepot_drain_handover().
///
/// # Safety
/// `handle` is NULL or a live depot; `result` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_drain(
    handle: *const pagedepot_t,
    mode: c_int,
    result: *mut pagedepot_drained_t,
) -> c_int {
    let Some(depot) = depot(handle) else { return -1 };
    let mode = match mode {
        PAGEDEPOT_QUIET => Mode::Quiet,
        PAGEDEPOT_FULL => Mode::Full,
        PAGEDEPOT_HANDOVER => Mode::Handover,
        _ => {
            set_errno(libc::EINVAL);
            return -1;
        }
    };
    let drained = depot.drain(Scope::ALL, mode);
    // SAFETY: by the caller's promise.
    unsafe { write(result, drained.into()) };
    0
}

/// Drains as PAGEDEPOT_HANDOVER, and waits up to limit_ms milliseconds until each CPU has handed
/// over. CPUs that have not after fence_after_ms milliseconds are interrupted, unless they are
/// isolated; -1: never. result may be NULL.
///
/// Returns 1 when all have handed over, 0 when some are still to come (pending_cpus), or -1 with
/// errno.
///
/// # Safety
/// `handle` is NULL or a live depot; `result` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_drain_handover(
    handle: *const pagedepot_t,
    fence_after_ms: c_int,
    limit_ms: c_uint,
    result: *mut pagedepot_drained_t,
) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    let fence_after_ms = match (fence_after_ms, u32::try_from(fence_after_ms)) {
        (-1, _) => None,
        (_, Ok(ms)) => Some(ms),
        _ => {
            tell_text(libc::EINVAL, "fence_after_ms is -1 (never) or a number of milliseconds");
            return -1;
        }
    };
    let mut handover = depot.drain_handover(Scope::ALL, fence_after_ms);
    let is_complete = handover.wait(limit_ms);
    // SAFETY: by the caller's promise.
    unsafe { write(result, handover.drained().into()) };
    is_complete.into()
}

/// Hands over what this thread's CPU keeps, if a drain has asked for it: for threads that are about
/// to sleep, or to compute for long. Returns 1 when it has, 0 when nothing was asked, or -1 with
/// errno.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_hand_over(handle: *const pagedepot_t) -> c_int {
    let Some(depot) = depot(handle) else { return -1 };
    depot.cpu_caches().hand_over().into()
}

/// Gives the memory of free pages back to the system. result may be NULL. Returns 0, or -1 with
/// errno: EBUSY when the depot is pinned.
///
/// # Safety
/// `handle` is NULL or a live depot; `result` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_trim(
    handle: *const pagedepot_t,
    result: *mut pagedepot_trimmed_t,
) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    match depot.trim() {
        Ok(trimmed) => {
            let told = pagedepot_trimmed_t {
                bytes: trimmed.bytes,
                calls: trimmed.calls,
                cut_short: trimmed.cut_short.into(),
            };
            // SAFETY: by the caller's promise.
            unsafe { write(result, told) };
            0
        }
        Err(error) => {
            tell(&error);
            -1
        }
    }
}

/// Gives at least so many bytes of free memory back to the system, if there are as many, within
/// limit_ms milliseconds: for a program that is told by a number what to give up. Whole pageblocks
/// go first, then parts of others; then CPUs are asked for what they cache. Isolated CPUs are not
/// interrupted: memory goes back while no thread of the program runs there. result may be NULL; it
/// says how much went back, and why not more. Returns 0, or -1 with errno: EBUSY when the depot is
/// pinned.
///
/// # Safety
/// `handle` is NULL or a live depot; `result` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_give_back(
    handle: *const pagedepot_t,
    bytes: u64,
    limit_ms: c_uint,
    result: *mut pagedepot_given_back_t,
) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    let deadline = Instant::now() + Duration::from_millis(limit_ms.into());
    match depot.give_back(bytes, deadline) {
        Ok(given) => {
            // SAFETY: by the caller's promise.
            unsafe { write(result, given.into()) };
            0
        }
        Err(error) => {
            tell(&error);
            -1
        }
    }
}

/// Sets how many bytes the depot hands out and keeps resident at most, rounded down to whole
/// pageblocks (512 pages). A lower ceiling takes pages back as a request does that runs short: it
/// drains, and calls callbacks. Returns 0, or -1 with errno: EINVAL below one pageblock, ENOMEM
/// when too much is held, then the ceiling is as low as it could be made; EBUSY when the depot is
/// pinned, ENOTSUP when it can grow.
///
/// In a depot that processes share, it is the most that this process holds and caches, rounded down
/// to pages, as ceiling of its options; what others may have does not change. After ENOMEM it is in
/// force: this process gets no page until it holds less. EINVAL below one page.
///
/// # Safety
/// `handle` is NULL or a live depot. Not called by signal handlers, nor by callbacks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_set_ceiling(handle: *const pagedepot_t, bytes: usize) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    status(Ceiling::of(depot).set(bytes).map(drop))
}

/// The ceiling in force: all bytes that the depot can have, unless one was set. 0: the handle is
/// NULL.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_ceiling(handle: *const pagedepot_t) -> usize {
    depot(handle).map_or(0, |depot| Ceiling::of(depot).bytes())
}

/// Keeps trims away from pages that a device maps (io_uring, VFIO, RDMA), until as many calls of
/// pagedepot_unpin() with the same range. Returns 0, or -1 with errno: EINVAL when no page of the
/// depot begins at start (a buffer that begins inside a page lies on one page more), or pages is
/// more than there are.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_pin(
    handle: *const pagedepot_t,
    start: *const c_void,
    pages: u32,
) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    let Some(first) = block_of(depot.raw(), start, Order::BASE) else { return not_ours() };
    // What keeps the range pinned is let go by `pagedepot_unpin`.
    status(depot.pin_range(first, pages).map(|pinned: PinnedRange| drop(pinned.keep())))
}

/// See pagedepot_pin(). Returns 0, or -1 with errno: EINVAL when no page of the depot begins at
/// start, or some of the pages are not pinned.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_unpin(
    handle: *const pagedepot_t,
    start: *const c_void,
    pages: u32,
) -> c_int {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    let Some(first) = block_of(depot.raw(), start, Order::BASE) else { return not_ours() };
    status(depot.unpin_range(first, pages))
}

#[cold]
fn not_ours() -> c_int {
    tell_text(libc::EINVAL, "no page of the depot begins at this address");
    -1
}

/// Gives the memory of a block back to the system and keeps the block: its contents are zeroes from
/// now on, and the next access brings memory again. Returns the bytes that were present, or -1 with
/// errno: EBUSY when pages of it are pinned, EINVAL when it can be no block of this order of this
/// depot, another when the system refuses.
///
/// # Safety
/// `handle` is NULL or a live depot; the block is the caller's, of this order, and no thread uses
/// it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_discard(
    handle: *const pagedepot_t,
    block: *mut c_void,
    order: c_uint,
) -> i64 {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    let Some(order) = Order::new(order) else {
        tell_text(libc::EINVAL, "there is no such order: 10 is the largest");
        return -1;
    };
    let Some(pfn) = block_of(depot.raw(), block, order) else {
        tell_text(libc::EINVAL, "no block of this order of the depot begins at this address");
        return -1;
    };
    // SAFETY: the caller's promise; the block stays the caller's.
    let mut page = ManuallyDrop::new(unsafe { Page::from_raw(depot, pfn, order) });
    match page.discard() {
        Ok(bytes) => bytes as i64,
        Err(error) => {
            tell(&error);
            -1
        }
    }
}

/// Calls reclaim(context, ...) when pages run short, from the thread that asks for one: it frees
/// what the program can do without and returns the number of pages. At most 7 can be registered,
/// and one less for each of: a segment, a space that there ever was, a monitor that has set a
/// ceiling. They go with the depot. Returns 0, or -1 with errno: ENOSPC for one too many.
///
/// # Safety
/// `handle` is NULL or a live depot. `reclaim` may be called from any thread that allocates from
/// the depot or sets its ceiling, and from those of the library, with `context`, until the depot is
/// deleted; it neither unwinds nor jumps out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_on_pressure(
    handle: *const pagedepot_t,
    reclaim: pagedepot_reclaim_t,
    context: *mut c_void,
) -> c_int {
    /// The caller's own; by its promise any thread may pass it on.
    struct Context(*mut c_void);
    // SAFETY: as said.
    unsafe impl Send for Context {}
    // SAFETY: as said.
    unsafe impl Sync for Context {}

    let Some(depot) = depot_or_text(handle) else { return -1 };
    let Some(reclaim) = reclaim else {
        tell_text(libc::EINVAL, "there is no function to call: reclaim is NULL");
        return -1;
    };
    let context = Context(context);
    status(depot.on_pressure(move |pressure: Pressure| {
        let context = &context;
        // SAFETY: by the caller's promise.
        unsafe { reclaim(context.0, pressure.wanted_pages, pressure.is_last_resort.into()) }
    }))
}

/// Counts pages by place: sums over all zones, not read at one moment. Returns 0, or -1 with errno.
///
/// # Safety
/// `handle` is NULL or a live depot; `result` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_stats(
    handle: *const pagedepot_t,
    result: *mut pagedepot_stats_t,
) -> c_int {
    let Some(depot) = depot(handle) else { return -1 };
    let mut sum = pagedepot_stats_t {
        metadata_bytes: depot.metadata_use().total() as u64,
        ..pagedepot_stats_t::default()
    };
    for zone in depot.zone_ids().filter_map(|zone| depot.zone_stats(zone)) {
        sum.managed_pages += zone.managed_pages;
        sum.free_pages += zone.free_pages;
        sum.cached_pages += zone.cached_pages;
        sum.hits += zone.counts.hits;
        sum.refills += zone.counts.refills;
        sum.spills += zone.counts.spills;
        sum.drained_pages += zone.counts.drained_pages;
        sum.failures += zone.counts.failures;
    }
    // SAFETY: by the caller's promise.
    unsafe { write(result, sum) };
    0
}

/// Checks the depot's metadata while no other thread is in a call of it. Returns the number of
/// pages that callers hold, or -1 with errno EIO and a text that names the fault.
///
/// # Safety
/// `handle` is NULL or a live depot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_validate(handle: *const pagedepot_t) -> i64 {
    let Some(depot) = depot_or_text(handle) else { return -1 };
    match depot.validate() {
        Ok(census) => census.held_pages() as i64,
        Err(fault) => {
            tell_text(libc::EIO, &fault.to_string());
            -1
        }
    }
}

/// # Safety
/// `place` is NULL or can be written.
unsafe fn write<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
}
