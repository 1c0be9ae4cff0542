//! Calls that fail as the kernel makes them fail. Before 6.12 a failed call may leave a hole in the
//! range, into which another thread may map something. Later kernels, and calls that fail early,
//! leave no hole.
//! Properties, whichever call fails:
//! 1. what another thread has mapped stays as it is, also when the range is dropped;
//! 2. those pages are lost, and no others;
//! 3. a request fails at most once, contents stay, and frames and addresses all come back.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use pagedepot::Order;
use pagedepot_vmap::{MapError, Options, PurgeDepth, VmapError};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::Vmalloc;
use crate::system::maps;
use crate::test_units::{mib, page_bytes};
use crate::{Depot, MemoryKind, Page};

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The effect of a failing call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// Nothing.
    Early,
    /// The call unmaps what was there.
    Hole,
    /// The call leaves a hole like `Hole`, in which another thread then maps each page whose number
    /// modulo 3 is `remainder`, or the only one. (Also reservations without access, as heaps make
    /// them.)
    Foreign { remainder: usize, access: ProtFlags },
}

struct Plan {
    failure: Failure,
    calls_left: u64,
    /// Pages that another thread has mapped.
    foreign: Vec<usize>,
}

thread_local!(static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) });

/// Hook for the code under test: the call that follows may fail instead.
pub fn before_mapping(start: *mut c_void, bytes: usize, flags: MapFlags) -> Result<(), Errno> {
    PLAN.with_borrow_mut(|plan| match plan {
        Some(plan) if flags.contains(MapFlags::FIXED) => plan.before(start, bytes),
        _ => Ok(()),
    })
}

impl Plan {
    fn before(&mut self, start: *mut c_void, bytes: usize) -> Result<(), Errno> {
        self.calls_left = self.calls_left.wrapping_sub(1);
        if self.calls_left != u64::MAX {
            return Ok(());
        }
        if self.failure != Failure::Early {
            // SAFETY: what the call would have replaced.
            unsafe { munmap(start, bytes) }.unwrap();
        }
        if let Failure::Foreign { remainder, access } = self.failure {
            let pages = bytes / page_bytes();
            for page in (0..pages).filter(|page| pages == 1 || page % 3 == remainder) {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
                // SAFETY: replaces nothing.
                let at = unsafe {
                    mmap_anonymous(start.byte_add(page * page_bytes()), page_bytes(), access, flags)
                }
                .unwrap();
                if access == READ_WRITE {
                    // SAFETY: just mapped.
                    unsafe { at.cast::<usize>().write_volatile(at.addr()) };
                }
                self.foreign.push(at.expose_provenance());
            }
        }
        Err(Errno::NOMEM)
    }

    fn has_failed(&self) -> bool {
        self.calls_left > u64::MAX / 2
    }

    /// Fails unless all foreign mappings are unchanged.
    fn check_foreign(&self) {
        let mut anonymous = Vec::new();
        maps::for_each_mapping(|mapped| {
            if mapped.offset == 0 && !mapped.is_shared {
                anonymous.push(mapped.range);
            }
        })
        .unwrap();
        for &addr in &self.foreign {
            // Ascending, as they are read.
            let after = anonymous.partition_point(|range| range.start <= addr);
            let is_anonymous = anonymous[..after].last().is_some_and(|range| addr < range.end);
            assert!(is_anonymous, "{addr:#x} is not as it was mapped: {:?}", self.failure);
            if self.failure == (Failure::Foreign { remainder: 0, access: READ_WRITE }) {
                let at = ptr::with_exposed_provenance::<usize>(addr);
                // SAFETY: mapped by `before`, and still.
                assert_eq!(unsafe { at.read_volatile() }, addr, "{addr:#x} was replaced");
            }
        }
    }

    /// Unmaps what the other thread has mapped, which must still be there.
    fn end(self) {
        for addr in self.foreign {
            let at = ptr::with_exposed_provenance_mut(addr);
            // SAFETY: mapped by `before`, and used by no other thread.
            unsafe {
                mprotect(at, page_bytes(), MprotectFlags::READ | MprotectFlags::WRITE)
                    .expect("it is mapped");
                munmap(at, page_bytes()).unwrap();
            }
        }
    }
}

fn with_plan<T>(with: impl FnOnce(&Plan) -> T) -> T {
    PLAN.with_borrow(|plan| with(plan.as_ref().unwrap()))
}

/// Writes `byte` to eight places in each page.
fn fill(buf: &mut [u8], byte: u8) {
    buf.iter_mut().step_by(page_bytes() / 8).for_each(|place| *place = byte);
}

/// Whether each page has `byte` in the places that [`fill`] writes to.
fn is_filled(buf: &[u8], byte: u8) -> bool {
    buf.iter().step_by(page_bytes() / 8).all(|&place| place == byte)
}

/// Allocates, grows and frees buffers and mappings. Returns the first error.
fn session(space: &Vmalloc, page: &Page) -> Result<(), VmapError> {
    let mut result = Ok(());
    let mut note = |error: VmapError| {
        assert_eq!(error, VmapError::Map(MapError::NoTables));
        result = result.and(Err(error));
    };
    let mut bufs = Vec::new();
    for (guard, pages) in (0..).zip([1, 3, 8, 40, 520]) {
        match space.buf_with(pages * page_bytes(), Options::DEFAULT.guard_pages(guard % 3)) {
            Ok(mut buf) => {
                fill(&mut buf, guard + 1);
                bufs.push((buf, guard + 1));
            }
            Err(error) => note(error),
        }
    }
    match space.vmap(&[page.pfn(); 5], Options::DEFAULT) {
        // SAFETY: never used.
        Ok(at) => unsafe { space.vunmap(at) }.unwrap(),
        Err(error) => note(error),
    }
    for (buf, byte) in &mut bufs {
        let before = buf.len();
        buf.resize(before + 7 * page_bytes()).unwrap_or_else(&mut note);
        assert!(is_filled(&buf[..before], *byte) && is_filled(&buf[before..], 0));
    }
    bufs.truncate(3);
    if let Some(error) = space.purge(PurgeDepth::Lazy).error {
        note(error.into());
    }
    assert!(bufs.iter().all(|(buf, byte)| is_filled(&buf[..page_bytes()], *byte)));
    drop(bufs);
    if let Some(error) = space.shrink().error {
        note(error.into());
    }
    result
}

/// Number of pages that a depot can provide.
fn pages(depot: &Depot) -> usize {
    let all: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    all.len()
}

/// Runs sessions in which the nth call fails. Returns whether a call failed, and how many pages
/// were lost.
fn with_call_failing(failure: Failure, n: u64) -> (bool, usize) {
    let depot = Arc::new(Depot::builder(8 * mib()).memory(MemoryKind::Memfd).build().unwrap());
    let all_pages = pages(&depot);
    // Every 32nd page is held, so that large areas take several calls.
    let all: Vec<_> = std::iter::from_fn(|| depot.page(Order::BASE).ok()).collect();
    let held: Vec<_> = all.into_iter().filter(|page| page.pfn().get() % 32 == 31).collect();
    let mut space =
        Vmalloc::builder(&depot).bytes(64 * mib()).mappings_max(20_000).build().unwrap();
    let mappings = space.mappings();
    PLAN.set(Some(Plan { failure, calls_left: n, foreign: Vec::new() }));
    let result = session(&space, &held[0]);
    let has_failed = with_plan(Plan::has_failed);
    PLAN.with_borrow_mut(|plan| plan.as_mut().unwrap().calls_left |= 1 << 62);
    assert!(result.is_ok() || has_failed);
    // The call failed once. From now on every request succeeds; only lost pages are missing.
    session(&space, &held[0]).unwrap();
    // The lowest addresses, with what is lost among them.
    let all: Vec<_> = std::iter::from_fn(|| space.buf(31 * page_bytes()).ok()).take(50).collect();
    assert!(all.len() > 40 && all.iter().all(|buf| buf[0] == 0));
    drop(all);
    space.shrink();
    let census = space.validate().unwrap();
    assert_eq!(
        (census.mapped_pages, census.own_frames, census.lazy_areas),
        (0, 0, 0),
        "{census:?}"
    );
    let lost = with_plan(|plan| plan.foreign.len());
    assert_eq!(space.stats().lost_pages, lost as u64, "{failure:?} at call {n}");
    assert!(space.mappings() >= mappings && space.mappings() <= mappings + 2 * lost as u32);
    with_plan(Plan::check_foreign);
    drop(space);
    with_plan(Plan::check_foreign);
    PLAN.take().unwrap().end();
    drop(held);
    assert_eq!(pages(&depot), all_pages);
    (has_failed, lost)
}

/// Lets every call fail once. Returns the number of pages that were lost.
fn each_call_fails(failure: Failure) -> usize {
    let mut all_lost = 0;
    for n in 0.. {
        let (has_failed, lost) = with_call_failing(failure, n);
        all_lost += lost;
        if !has_failed {
            assert!(n > 40, "{n} calls");
            break;
        }
    }
    all_lost
}

#[test]
fn calls_that_change_nothing_lose_nothing() {
    assert_eq!(each_call_fails(Failure::Early), 0);
}

#[test]
fn holes_are_filled() {
    assert_eq!(each_call_fails(Failure::Hole), 0);
}

#[test]
fn mappings_of_others_in_a_hole_are_left_alone() {
    for remainder in [0, 2] {
        let lost = each_call_fails(Failure::Foreign { remainder, access: READ_WRITE });
        assert!(lost > 100, "{lost}");
    }
}

#[test]
fn reservations_of_others_in_a_hole_are_left_alone() {
    assert!(each_call_fails(Failure::Foreign { remainder: 0, access: ProtFlags::empty() }) > 100);
}
