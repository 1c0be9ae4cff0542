//! The functions that Linux calls; `glue/pagedepot.h` declares them.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use pagedepot::cpus::implement::{GATES_AT, POP_STEP, PUSH_STEP};
use pagedepot::cpus::{Context, PinnedCpus};
use pagedepot::{
    Allocator, CacheLimits, Config, CpuId, DrainResult, Flags, FrameRange, FreeError, FreeHigh,
    FrontHandle, HighPolicy, Misuse, Mobility, Mode, NodeId, Order, Pfn, Scope, Watermarks,
    ZoneConfig, ZoneId,
};

use crate::buddy::Buddy;
use crate::calls;
use crate::linux::Linux;

/// The per-CPU caches of one `struct zone`: `struct depot` in C.
#[repr(C)]
pub struct Depot {
    /// The address that C's sequences count from.
    base: *mut u8,
    /// The zone's shelf, which is C's alone; null until C makes one.
    shelf: *mut c_void,
    allocator: Allocator<'static, PinnedCpus<Linux>>,
}

/// The head of the memory, before the metadata.
struct Head {
    buddy: Buddy,
    depot: MaybeUninit<Depot>,
}

const HEAD_BYTES: usize = size_of::<Head>().next_multiple_of(256);
const ZONE: ZoneId = ZoneId::new(0);
/// More than any number of a CPU.
const CPUS: usize = 1 << 30;
/// No block.
const NONE: u32 = u32::MAX;
/// All CPUs.
const ALL: u32 = u32::MAX;

fn with_config<R>(cpus: u32, end_pfn: u32, high: u32, run: impl FnOnce(&Config<'_>) -> R) -> R {
    let ranges = [FrameRange::new(Pfn::new(0), end_pfn)];
    // Linux has looked at its own before it asks.
    let none = Watermarks { min: 0, low: 0, high: 0 };
    let zones = [ZoneConfig {
        name: "zone",
        node: NodeId::new(0),
        level: 0,
        ranges: &ranges,
        watermarks: Some(none),
    }];
    let config = Config {
        // As many magazines are made; the limits in force come by `depot_set_limits`.
        high: HighPolicy::Fixed(high.into()),
        on_misuse: Some(on_misuse),
        ..Config::new(cpus, &zones)
    };
    run(&config)
}

fn on_misuse(misuse: Misuse) {
    let (first, frames) = match misuse {
        Misuse::DoubleFree { first, frames } => (first.get(), frames),
        _ => (NONE, 0),
    };
    // SAFETY: it prints.
    unsafe { calls::depot_c_misuse(first, frames) }
}

fn mobility_of(migratetype: u32) -> Mobility {
    match migratetype {
        0 => Mobility::Unmovable,
        1 => Mobility::Movable,
        _ => Mobility::Reclaimable,
    }
}

/// Bytes of memory that [`depot_init`] needs for CPUs `0..cpus`, frames `0..end_pfn` and `high`
/// pages per CPU; 0: not with these numbers.
#[unsafe(no_mangle)]
pub extern "C" fn depot_bytes(cpus: u32, end_pfn: u32, high: u32) -> usize {
    type Depots = Allocator<'static, PinnedCpus<Linux>>;
    // How much it is does not depend on the zone.
    let buddy = Buddy(core::ptr::null_mut());
    with_config(cpus, end_pfn, high, |config| {
        let bytes = Depots::builder(config).backing(Some(&buddy)).metadata_bytes();
        bytes.map_or(0, |bytes| bytes + HEAD_BYTES)
    })
}

/// Makes the depot of a zone, without limits: it caches nothing before [`depot_set_limits`]. A CPU
/// that only frees orders 1 to 3 caches `free_batches` times `batch` of each; `u32::MAX`: as much
/// as any other.
///
/// # Safety
/// `memory` is page-aligned, zeroed, and `bytes` long, as `depot_bytes` said for the same numbers;
/// it is the depot's for good. The zone lives as long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn depot_init(
    memory: *mut u8,
    bytes: usize,
    zone: *mut c_void,
    cpus: u32,
    end_pfn: u32,
    high: u32,
    free_batches: u32,
) -> *const Depot {
    // SAFETY: so many bytes, of this function alone; the head is written before it is read.
    let (head, metadata) = unsafe {
        let head = memory.cast::<Head>();
        head.write(Head { buddy: Buddy(zone), depot: MaybeUninit::uninit() });
        let rest = memory.add(HEAD_BYTES).cast();
        (&mut *head, core::slice::from_raw_parts_mut(rest, bytes - HEAD_BYTES))
    };
    let buddy: &'static Buddy = &head.buddy;
    let free_high = match free_batches {
        u32::MAX => FreeHigh::OFF,
        batches => FreeHigh::batches(batches),
    };
    let made = with_config(cpus, end_pfn, high, |config| {
        let config = &Config { free_high, ..*config };
        // SAFETY: zeroed, but for the head.
        unsafe {
            Allocator::builder(config)
                .backing(Some(buddy))
                .build_zeroed(metadata, PinnedCpus(Linux))
        }
    });
    match made {
        Ok(allocator) => {
            let base = allocator.fronts_at();
            head.depot.write(Depot { base, shelf: core::ptr::null_mut(), allocator })
        }
        Err(_) => core::ptr::null(),
    }
}

/// The number by which sequences name a front; the same for all depots. 0: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn depot_front(
    depot: &Depot,
    in_handler: bool,
    order: u32,
    migratetype: u32,
) -> u32 {
    let context = if in_handler { Context::Interrupt } else { Context::Task };
    let front = Order::new(order)
        .and_then(|order| depot.allocator.fronts().find(context, order, mobility_of(migratetype)));
    front.map_or(0, FrontHandle::to_bits)
}

/// A number that the caller passes in a whole register, below `limit`, so that no instruction has
/// to clear the rest of it.
///
/// # Safety
/// It is.
#[inline(always)]
unsafe fn below(limit: usize, number: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { core::hint::assert_unchecked(number < limit) };
    number as u32
}

/// A front as [`depot_pop_next`] gets it.
///
/// # Safety
/// Requires what [`below`] requires, with 16 bits.
#[inline(always)]
unsafe fn for_pops(front: usize) -> FrontHandle {
    // SAFETY: the caller's promise.
    FrontHandle::for_pops(unsafe { below(1 << 16, front) } as u16)
}

/// Whether these are the numbers that C's sequences have to compute with.
#[unsafe(no_mangle)]
pub extern "C" fn depot_has_sequences(gates_at: u32, pop_step: u64, push_step: u64) -> bool {
    (gates_at as usize, pop_step, push_step) == (GATES_AT, POP_STEP, PUSH_STEP)
}

/// A block for C's pop that found none, or `u32::MAX`: once a magazine a bounded step to the CPU's
/// next one.
///
/// # Safety
/// Preemption is off, this is `cpu`, one of those that the depot was made for, and `front` is the
/// upper 16 bits of what [`depot_front`] said for whether a handler runs. Above a second handler
/// there is no front.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn depot_pop_next(depot: &Depot, cpu: usize, front: usize) -> u32 {
    // SAFETY: the caller's promise, which is what a guard says.
    unsafe {
        let (cpu, front) = (CpuId::new(below(CPUS, cpu)), for_pops(front));
        depot.allocator.fronts().pop_next(cpu, front).map_or(NONE, Pfn::get)
    }
}

/// Pops up to `wanted` blocks into `out` by one sequence, as many as the front's magazine has, or
/// one from the CPU's next; returns how many.
///
/// # Safety
/// Requires what [`depot_pop_next`] requires; there is room for `wanted`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn depot_pop_many(
    depot: &Depot,
    cpu: usize,
    front: usize,
    out: *mut MaybeUninit<Pfn>,
    wanted: usize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let (cpu, front) = (CpuId::new(below(CPUS, cpu)), for_pops(front));
        let out = core::slice::from_raw_parts_mut(out, wanted);
        let popped = depot.allocator.fronts().pop_many(cpu, front, out).len();
        if popped == 0
            && let Some(to) = out.first_mut()
            && let Some(pfn) = depot.allocator.fronts().pop_next(cpu, front)
        {
            to.write(pfn);
            return 1;
        }
        popped
    }
}

/// Puts a block that C's push had no room for into the front's next magazine. `false`: it is still
/// the caller's.
///
/// # Safety
/// Requires what [`depot_pop_next`] requires, with all of what [`depot_front`] said; the block is
/// the caller's, of the front's order and this depot's zone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn depot_push_next(
    depot: &Depot,
    cpu: usize,
    front: usize,
    pfn: u32,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let (cpu, pfn) = (CpuId::new(below(CPUS, cpu)), Pfn::new(pfn));
        let front = FrontHandle::from_bits(below(1 << 32, front));
        depot.allocator.fronts().push_next(cpu, front, pfn)
    }
}

/// A block from this CPU's caches or the zone, or `u32::MAX`. It reclaims nothing: Linux does. The
/// lower half of `alloc_flags` goes to [`depot_c_take`](calls::depot_c_take).
#[unsafe(no_mangle)]
pub extern "C" fn depot_alloc(
    depot: &Depot,
    order: u32,
    migratetype: u32,
    alloc_flags: u32,
) -> u32 {
    let Some(order) = Order::new(order) else { return NONE };
    let flags = Flags::new(mobility_of(migratetype)).backing_bits(alloc_flags as u16);
    depot.allocator.try_alloc(order, flags).map_or(NONE, Pfn::get)
}

/// Frees a block to this CPU's caches or the zone. `false`: it cannot be of this zone, and is still
/// the caller's. A block that was free before has been reported by then, and stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn depot_free(depot: &Depot, pfn: u32, order: u32, migratetype: u32) -> bool {
    let Some(order) = Order::new(order) else { return false };
    let freed = depot.allocator.free_as(Pfn::new(pfn), order, mobility_of(migratetype));
    !matches!(freed, Err(FreeError::OutOfRange | FreeError::Misaligned))
}

/// The result of a drain; `struct depot_drained` in C.
#[repr(C)]
pub struct Done {
    taken_pages: u64,
    left_pages: u64,
    unreachable_pages: u64,
    fences: u64,
    busy_cpus: u64,
    isolated_cpus: u64,
    pending_cpus: u64,
}

impl From<DrainResult> for Done {
    fn from(drained: DrainResult) -> Self {
        Done {
            taken_pages: drained.taken_pages,
            left_pages: drained.left_pages + drained.in_flight_pages,
            unreachable_pages: drained.unreachable_pages,
            fences: drained.fences,
            busy_cpus: drained.busy_cpus,
            isolated_cpus: drained.isolated_cpus,
            pending_cpus: drained.pending_cpus,
        }
    }
}

/// Drains one CPU, or all of them (`u32::MAX`): quietly (0), fully (1), or by asking CPUs to hand
/// over (2).
#[unsafe(no_mangle)]
pub extern "C" fn depot_drain(depot: &Depot, cpu: u32, mode: u32, done: &mut Done) {
    let scope = if cpu == ALL { Scope::ALL } else { Scope::cpu(CpuId::new(cpu)) };
    let mode = match mode {
        0 => Mode::Quiet,
        1 => Mode::Full,
        _ => Mode::Handover,
    };
    *done = depot.allocator.drain(scope, mode).into();
}

/// Hands over what this CPU has in its fronts, if a drain asked for it.
#[unsafe(no_mangle)]
pub extern "C" fn depot_hand_over(depot: &Depot) -> bool {
    depot.allocator.cpu_caches().hand_over()
}

/// Takes the caches of a CPU away; it has none until [`depot_restore_cpu`].
#[unsafe(no_mangle)]
pub extern "C" fn depot_retire_cpu(depot: &Depot, cpu: u32, done: &mut Done) {
    *done = depot.allocator.cpu_caches().retire(CpuId::new(cpu)).into();
}

/// Lets a CPU cache again.
#[unsafe(no_mangle)]
pub extern "C" fn depot_restore_cpu(depot: &Depot, cpu: u32) {
    depot.allocator.cpu_caches().restore(CpuId::new(cpu));
}

/// Sets the number of pages that each CPU may cache; a refill is a magazine, whatever `batch` is.
#[unsafe(no_mangle)]
pub extern "C" fn depot_set_limits(depot: &Depot, high_min: u32, high_max: u32, batch: u32) {
    let limits =
        CacheLimits { batch: batch.into(), high_min: high_min.into(), high_max: high_max.into() };
    if let Some(zone) = depot.allocator.settings(ZONE) {
        zone.set_cache_limits(limits);
    }
}

/// Spills what CPUs have not used for a while. Once a second.
#[unsafe(no_mangle)]
pub extern "C" fn depot_decay(depot: &Depot) -> u64 {
    depot.allocator.cpu_caches().decay()
}

/// Pages that a CPU caches: Linux's `pcp->count`.
#[unsafe(no_mangle)]
pub extern "C" fn depot_cached(depot: &Depot, cpu: u32) -> u64 {
    depot.allocator.cpu_stats(CpuId::new(cpu), ZONE).map_or(0, |stats| stats.cached_pages())
}

/// Pages that the magazines of a CPU hold at most: those in its caches, and those that a task there
/// has in hand.
#[unsafe(no_mangle)]
pub extern "C" fn depot_charged(depot: &Depot, cpu: u32) -> u64 {
    depot.allocator.cpu_stats(CpuId::new(cpu), ZONE).map_or(0, |stats| stats.charged_pages)
}

/// The number of pages that a CPU may cache now: Linux's `pcp->high`.
#[unsafe(no_mangle)]
pub extern "C" fn depot_high(depot: &Depot, cpu: u32) -> u64 {
    depot.allocator.settings(ZONE).and_then(|zone| zone.high(CpuId::new(cpu))).unwrap_or(0)
}

/// Whether every cached frame is in one place. Only while no other code allocates or frees.
#[unsafe(no_mangle)]
pub extern "C" fn depot_validate(depot: &Depot, cached_pages: &mut u64) -> bool {
    match depot.allocator.validate_at_rest() {
        Ok(census) => {
            *cached_pages = census.cached_pages;
            true
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    //! The library over a zone whose lists are a set of free frames.

    use std::alloc::{Layout, alloc_zeroed};
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use pagedepot::Block;

    use super::*;
    use crate::linux::HERE_NONE;

    static FREE: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    /// Frames that were reported as freed twice.
    static MISUSED: AtomicU32 = AtomicU32::new(0);

    // SAFETY, here and below: no other definition of the symbol is linked.
    #[unsafe(no_mangle)]
    extern "C" fn depot_c_put(
        _: *mut c_void,
        blocks: *const Block,
        count: u32,
        first: &mut u32,
    ) -> u32 {
        // SAFETY: the library passes so many blocks.
        let blocks = unsafe { core::slice::from_raw_parts(blocks, count as usize) };
        let mut free = FREE.lock().unwrap();
        let frames = blocks.iter().flat_map(|block| {
            let start = block.pfn().get();
            start..start + block.order().frames()
        });
        let doubled: Vec<_> = frames.filter(|&frame| !free.insert(frame)).collect();
        doubled.first().inspect(|&&frame| *first = frame);
        doubled.len() as u32
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_take(
        _: *mut c_void,
        _: u32,
        _: u32,
        _: u32,
        _: *mut Block,
        _: u32,
    ) -> u32 {
        0
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_free_pages(_: *mut c_void) -> u64 {
        FREE.lock().unwrap().len() as u64
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_is_free(pfn: u32) -> bool {
        FREE.lock().unwrap().contains(&pfn)
    }

    /// Refuses, so that nothing is cached.
    #[unsafe(no_mangle)]
    extern "C" fn depot_c_pin() -> u32 {
        HERE_NONE
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_unpin() {}

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_fence(_: u32) -> bool {
        false
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_is_quiescent(_: u32) -> bool {
        false
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_is_isolated(_: u32) -> bool {
        false
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_now_ms() -> u64 {
        0
    }

    #[unsafe(no_mangle)]
    extern "C" fn depot_c_misuse(_: u32, frames: u32) {
        MISUSED.fetch_add(frames, Ordering::Relaxed);
    }

    #[test]
    fn a_depot_has_metadata_of_all_frames_that_have_numbers() {
        assert!(depot_bytes(1, u32::MAX - 1023, 0) > depot_bytes(1, 1024, 0));
    }

    #[test]
    fn a_block_that_was_freed_twice_is_not_given_back() {
        let end_pfn = 1024;
        let bytes = depot_bytes(1, end_pfn, 0);
        assert!(bytes > 0);
        // SAFETY: the layout is of more than no bytes. Never freed: the depot is static.
        let memory = unsafe { alloc_zeroed(Layout::from_size_align(bytes, 4096).unwrap()) };
        // SAFETY: zeroed, aligned and never used otherwise; the zone is not looked at.
        let depot =
            unsafe { &*depot_init(memory, bytes, core::ptr::null_mut(), 1, end_pfn, 0, u32::MAX) };
        assert!(depot_free(depot, 8, 3, 1));
        assert_eq!(MISUSED.load(Ordering::Relaxed), 0);
        assert!(depot_free(depot, 8, 3, 1), "C would free it to the lists");
        assert_eq!(MISUSED.load(Ordering::Relaxed), 8);
        // The caller's still: of another zone, and no block.
        assert!(!depot_free(depot, end_pfn, 0, 1));
        assert!(!depot_free(depot, 9, 3, 1));
        assert_eq!(FREE.lock().unwrap().len(), 8);
    }
}
