//! Models of the races between requests, readers and purges, on a vmap of twelve pages.
//!
//! The mapper is a ledger: it panics when a page is mapped twice, a table is given back under a
//! mapping, or a frame is freed while it is mapped. Models named `..._broken` leave out a part of a
//! protocol and must fail.

#![allow(unsafe_code)]

#[allow(dead_code, reason = "the file has more than this crate uses")]
#[path = "../../core/src/loom_tests/explore.rs"]
mod explore;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::metadata::area::{Area, AreaIndex, Areas};
use crate::model::{Mutant, leave_out};
use crate::node::large::LargePools;
use crate::node::pool::Pools;
use crate::space::spares::Spares;
use crate::units::{PageRange, Vpn};
use crate::{
    AreaState, FlushSpans, Host, Lock, MapError, Mapper, Options, Protection, PurgeDepth, Span,
    StaleData, VirtAddr, Vmap, VmapConfig, VmapError,
};
use pagedepot::{AllocError, CpuId, Flags, FrameRange, FreeManyError, Order, PageSize, Pfn};

const PAGE: usize = 4096;
const PAGES: u32 = 12;
const BASE: usize = 16 * PAGE;
const TABLE: u32 = 4;

std::thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    explore::explore_named(&format!("vmap: {name}"), preemptions, model);
}

#[derive(Default)]
struct State {
    mapped: [Option<u32>; PAGES as usize],
    /// Frames that the host has handed out, of eight.
    taken: [bool; 8],
    /// The next call of `unmap` fails, after half of it.
    unmap_fails: bool,
}

#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<State>>);

impl Ledger {
    fn pages(span: Span) -> std::ops::Range<usize> {
        let first = (span.start.get() - BASE) / PAGE;
        first..first + span.pages as usize
    }

    fn mapped_pages(&self) -> usize {
        self.0.lock().unwrap().mapped.iter().flatten().count()
    }
}

// SAFETY: nothing is ever reached through its addresses.
unsafe impl Mapper for Ledger {
    fn table_pages(&self) -> u32 {
        TABLE
    }

    fn span(&self) -> Span {
        Span::new(VirtAddr::new(BASE), PAGES)
    }

    fn page_size(&self) -> PageSize {
        PageSize::Kib4
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        _how: Protection,
    ) -> Result<(), MapError> {
        let mut state = self.0.lock().unwrap();
        for (i, page) in (0..).zip(Self::pages(Span::new(at, frames.frames))) {
            let old = state.mapped[page].replace(frames.start.get() + i);
            assert_eq!(old, None, "page {page} is mapped twice");
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        let (mut state, pages) = (self.0.lock().unwrap(), Self::pages(span));
        let fails = std::mem::take(&mut state.unmap_fails);
        let done = if fails { pages.len() / 2 } else { pages.len() };
        pages.take(done).for_each(|page| state.mapped[page] = None);
        if fails { Err(MapError::NoTables) } else { Ok(()) }
    }

    fn flush(&self, _spans: FlushSpans<'_>) {}

    unsafe fn release_tables(&self, span: Span) {
        let state = self.0.lock().unwrap();
        let used = Self::pages(span).find(|&page| state.mapped[page].is_some());
        assert_eq!(used, None, "a table is given back that maps something");
    }

    unsafe fn fill(&self, span: Span, _byte: u8) {
        let state = self.0.lock().unwrap();
        assert!(Self::pages(span).all(|page| state.mapped[page].is_some()), "fault");
    }

    unsafe fn fill_frames(&self, _frames: FrameRange, _byte: u8) -> Result<(), MapError> {
        Ok(())
    }

    fn read(&self, frame: Pfn, _offset: usize, buf: &mut [u8]) -> bool {
        buf.fill(frame.get() as u8);
        true
    }
}

struct Frames(Ledger);

// SAFETY: the ledger hands out each frame once until it is freed.
unsafe impl Host for Frames {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(CPU.get()))
    }

    fn alloc_block(&self, _order: Order, _flags: Flags) -> Result<Pfn, AllocError> {
        Err(AllocError::Exhausted)
    }

    fn alloc_frames(&self, _flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        let mut state = self.0.0.lock().unwrap();
        let free = state.taken.iter().position(|&taken| !taken).ok_or(AllocError::Exhausted)?;
        state.taken[free] = true;
        out[0] = Pfn::new(free as u32);
        Ok(1)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let mut state = self.0.0.lock().unwrap();
        for (frame, _) in blocks {
            assert!(
                !state.mapped.contains(&Some(frame.get())),
                "{frame} is freed while it is mapped"
            );
            assert!(state.taken[frame.index()], "{frame} is freed twice");
            state.taken[frame.index()] = false;
        }
        Ok(())
    }
}

/// A vmap inside a model.
struct Model {
    vmap: Option<Vmap<'static, Ledger, Frames>>,
    ledger: Ledger,
    memory: *mut [MaybeUninit<u8>],
}

// SAFETY: `memory` is only touched by `drop`.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    fn new(config: VmapConfig) -> Self {
        let ledger = Ledger::default();
        let bytes = Vmap::<Ledger, Frames>::metadata_bytes(&config, &ledger).unwrap();
        let memory: *mut [_] = Box::into_raw(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
        // SAFETY: freed in `drop`, after the vmap.
        let metadata = unsafe { &mut *memory };
        // SAFETY: one ledger, which maps and hands out for this vmap alone.
        let vmap = unsafe { Vmap::new(&config, metadata, ledger.clone(), Frames(ledger.clone())) }
            .unwrap();
        Model { vmap: Some(vmap), ledger, memory }
    }

    fn vmap(&self) -> &Vmap<'static, Ledger, Frames> {
        self.vmap.as_ref().unwrap()
    }

    /// Everything that is not busy is taken back, and only that.
    fn finish(mut self: Arc<Self>, busy_areas: u64) {
        let model = Arc::get_mut(&mut self).expect("all threads have ended");
        let vmap = model.vmap.as_mut().unwrap();
        vmap.validate().unwrap();
        let purged = vmap.purge(PurgeDepth::Everything);
        assert_eq!(purged.stuck_areas, 0);
        let census = vmap.validate().unwrap();
        assert_eq!((census.busy_areas, census.lazy_areas, census.pooled_areas), (busy_areas, 0, 0));
        if busy_areas == 0 {
            assert_eq!(census.free_pages, u64::from(PAGES));
            assert_eq!(vmap.stats().tables, 0);
            assert_eq!(model.ledger.mapped_pages(), 0);
            assert!(
                model.ledger.0.lock().unwrap().taken.iter().all(|&taken| !taken),
                "frames are lost"
            );
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        drop(self.vmap.take());
        // SAFETY: came from `Box::into_raw`; nothing refers to it any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

fn config() -> VmapConfig {
    VmapConfig {
        stale: StaleData::Keep,
        pool_pages_max: Some(8),
        warm_pages_max: Some(4),
        lazy_pages_max: Some(1000),
        ..VmapConfig::new(1, 6)
    }
}

const BARE: Options = Options::DEFAULT.guard_pages(0);

/// Runs the jobs in threads of a model, the first in the model's own.
fn threads(model: &Arc<Model>, jobs: [fn(&Model); 2]) {
    let other = model.clone();
    let second = jobs[1];
    let handle = loom::thread::spawn(move || second(&other));
    jobs[0](model);
    handle.join().unwrap();
}

/// Two areas in a pool; one thread takes one while another takes both, and returns a third and one
/// of them: the pool looks as before, but is not.
fn pool_model() {
    let model = Arc::new(Model::new(config()));
    let vmap = model.vmap();
    let areas = [0; 3].map(|_| vmap.alloc(1, BARE).unwrap());
    areas[..2].iter().for_each(|&area| vmap.free(area).unwrap());
    let other = model.clone();
    let handle = loom::thread::spawn(move || other.vmap().alloc(1, BARE).unwrap());
    let (a, b) = (vmap.alloc(1, BARE).unwrap(), vmap.alloc(1, BARE).unwrap());
    vmap.free(areas[2]).unwrap();
    vmap.free(a).unwrap();
    let c = handle.join().unwrap();
    let d = vmap.alloc(1, BARE).unwrap();
    assert!(b != c && b != d && c != d, "an area has two owners");
    [b, c, d].iter().for_each(|&area| vmap.free(area).unwrap());
    model.finish(0);
}

#[test]
fn a_pooled_area_has_one_owner() {
    explore("pool", 3, pool_model);
}

#[test]
#[should_panic(expected = "an area has two owners")]
fn a_pooled_area_has_one_owner_broken() {
    pagedepot::sync::model::set_mutant(pagedepot::sync::model::Mutant::Untagged);
    explore::explore_mutant(3, pool_model);
}

/// A pool with room for two more is filled while another caller pushes a list of two: where it is
/// refused, the list still ends where it did.
#[test]
fn a_list_that_no_pool_takes_ends_as_before() {
    explore("refused list", 3, || {
        let areas: Arc<Vec<Area>> = Arc::new((0..5).map(|_| Area::new()).collect());
        let pools = Arc::new(Pools::new());
        (0..3).for_each(|_| assert!(pools.raise_limit(1, 100)));
        let [first, last, single, pooled] =
            [1, 2, 3, 4].map(|number| AreaIndex::new(number).unwrap());
        assert!(pools.of(1).unwrap().push(Areas(&areas), pooled));
        let other = (areas.clone(), pools.clone());
        let handle = loom::thread::spawn(move || {
            other.1.of(1).unwrap().push(Areas(&other.0), single);
        });
        let areas = Areas(&areas);
        areas[first].set_next(Some(last));
        if !pools.of(1).unwrap().push_list(areas, first, last, 2) {
            let list: Vec<_> = areas.list(Some(first)).map(AreaIndex::get).collect();
            assert_eq!(list, [1, 2], "the list leads to areas of others");
        }
        handle.join().unwrap();
    });
}

/// Two threads free areas of two sizes, for which there is room for one at a time, and each makes
/// way for its own. No area is lost or has two owners, and limits and charge agree.
#[test]
fn large_areas_make_way_for_each_other() {
    explore("large pools", 3, || {
        let areas: Arc<Vec<Area>> = Arc::new((0..3).map(|_| Area::new()).collect());
        let large = Arc::new(LargePools::new());
        let keep = |areas: &[Area], large: &LargePools, number: u32| {
            let (areas, index) = (Areas(areas), AreaIndex::new(number).unwrap());
            let pages = 10 + number;
            areas[index].place(PageRange::new(Vpn(20 * number), pages));
            if large.push(areas, index, pages, 15) {
                return 0;
            }
            let evicted = large.evict(areas, pages, 15);
            let pushed = large.push(areas, index, pages, 15);
            u32::from(evicted.is_some()) + u32::from(!pushed)
        };
        let other = (areas.clone(), large.clone());
        let handle = loom::thread::spawn(move || keep(&other.0, &other.1, 1));
        let turned_away = keep(&areas, &large, 2) + handle.join().unwrap();
        let kept: u32 = large.iter().map(|(_, pool)| pool.count()).sum();
        assert_eq!(kept + turned_away, 2, "an area is lost");
        let limits: u64 = large.iter().map(|(pages, pool)| u64::from(pages * pool.limit())).sum();
        assert_eq!(limits, large.charged_pages(), "limits and charge disagree");
        assert!(limits <= 15);
    });
}

/// Three spare descriptors; one thread takes two while another takes two, and puts one back: the
/// top is as before, but what it links to is not.
fn spares_model() {
    let areas: Arc<Vec<Area>> = Arc::new((0..4).map(|_| Area::new()).collect());
    let spares = Arc::new(Spares::new());
    spares.put(Areas(&areas), spares.take(Areas(&areas), 3));
    let other = (areas.clone(), spares.clone());
    let handle = loom::thread::spawn(move || {
        let areas = Areas(&other.0);
        let mut supply = other.1.take(areas, 2);
        [(); 2].map(|()| supply.pop(areas))
    });
    let areas = Areas(&areas);
    let (first, kept) = (spares.take(areas, 1), spares.take_one(areas));
    spares.put(areas, first);
    let [a, b] = handle.join().unwrap();
    let left = spares.take_one(areas);
    // Four are wanted of three: one goes without.
    let mut owned: Vec<_> = [kept, a, b, left].into_iter().flatten().map(AreaIndex::get).collect();
    owned.sort_unstable();
    assert_eq!(owned, [1, 2, 3], "a descriptor has two owners, or none");
    assert_eq!((spares.used(), spares.take_one(areas)), (3, None));
}

#[test]
fn a_spare_descriptor_has_one_owner() {
    explore("spares", 3, spares_model);
}

#[test]
#[should_panic(expected = "a descriptor has two owners, or none")]
fn a_spare_descriptor_has_one_owner_broken() {
    pagedepot::sync::model::set_mutant(pagedepot::sync::model::Mutant::Untagged);
    explore::explore_mutant(3, spares_model);
}

/// A thread allocates the second area of a size, which brings a third along, while another
/// allocates one.
#[test]
fn what_is_stocked_is_handed_out_once() {
    explore("stock", 2, || {
        let model = Arc::new(Model::new(VmapConfig { areas_max: 20, ..config() }));
        let vmap = model.vmap();
        let a = vmap.alloc(1, BARE).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || other.vmap().alloc(1, BARE).unwrap());
        let b = vmap.alloc(1, BARE).unwrap();
        let c = handle.join().unwrap();
        assert!(a != b && a != c && b != c, "an area has two owners");
        assert_eq!(vmap.areas().count(), 3 + vmap.stats().cold_areas as usize);
        vmap.free(a).unwrap();
        model.finish(2);
    });
}

/// Requests that may not wait, beside a thread that has the space locked: another node's pool
/// serves one of them, and the next one fails.
#[test]
fn a_request_that_finds_the_space_locked_borrows() {
    explore("borrow", 3, || {
        let model = Arc::new(Model::new(VmapConfig { cpus: 2, ..config() }));
        let vmap = model.vmap();
        CPU.set(1);
        let area = vmap.alloc(1, BARE).unwrap();
        vmap.free(area).unwrap();
        CPU.set(0);
        let other = model.clone();
        let holder = loom::thread::spawn(move || drop(other.vmap().state().lock_space()));
        let first = vmap.alloc(1, BARE.no_wait()).expect("it is carved, or borrowed");
        let next = vmap.alloc(1, BARE.no_wait());
        holder.join().unwrap();
        for held in [Ok(first), next] {
            let Ok(held) = held else {
                assert_eq!(held, Err(VmapError::WouldWait));
                assert_eq!(first, area, "nothing is left to borrow");
                continue;
            };
            // An area that is borrowed stays the other's.
            let info = vmap.areas().find(|info| info.span.start == held).unwrap();
            assert_eq!(info.vmap_node == 1, held == area);
            vmap.free(held).unwrap();
        }
        model.finish(0);
    });
}

/// A listing, while areas are taken and others given back, has each that stays once.
#[test]
fn a_listing_sees_what_stays() {
    explore("listing", 2, || {
        let model = Arc::new(Model::new(VmapConfig { areas_max: 20, ..config() }));
        let vmap = model.vmap();
        let (gone, stays) = (vmap.alloc(1, BARE).unwrap(), vmap.alloc(2, BARE).unwrap());
        vmap.free(gone).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || {
            other.vmap().purge(PurgeDepth::Everything);
            other.vmap().alloc(3, BARE).unwrap();
        });
        let seen: Vec<_> = vmap.areas().map(|info| info.span.start).collect();
        assert!(seen.is_sorted() && seen.contains(&stays), "{seen:?}");
        handle.join().unwrap();
        model.finish(2);
    });
}

/// A listing has an area of one page that is freed and allocated again meanwhile.
#[test]
fn a_listing_sees_what_is_freed_and_comes_back() {
    explore("listing of what comes back", 2, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let area = vmap.alloc(1, BARE).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || {
            other.vmap().free(area).unwrap();
            assert_eq!(other.vmap().alloc(1, BARE), Ok(area));
        });
        assert!(vmap.areas().any(|info| info.span.start == area));
        handle.join().unwrap();
        model.finish(1);
    });
}

/// A listing beside a request that takes a pooled area with another guard: as long as the area is
/// pooled, it has the guard of its last user.
#[test]
fn a_listing_sees_a_pooled_area_as_it_was_freed() {
    explore("listing of what is taken", 2, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let area = vmap.alloc(2, BARE).unwrap();
        vmap.free(area).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || {
            for info in other.vmap().areas() {
                let is_pooled = info.state == AreaState::Pooled;
                assert!(!is_pooled || info.guard_pages == 0, "a guard that no user had");
            }
        });
        assert_eq!(vmap.alloc(1, BARE.guard_pages(1)), Ok(area));
        handle.join().unwrap();
        model.finish(1);
    });
}

/// A listing has the area behind one that is cut meanwhile.
#[test]
fn a_listing_sees_what_is_behind_a_cut() {
    explore("listing beside a cut", 2, || {
        let model = Arc::new(Model::new(VmapConfig { areas_max: 20, ..config() }));
        let vmap = model.vmap();
        let memory = vmap.vmalloc(3, Options::DEFAULT).unwrap();
        let stays = vmap.alloc(1, BARE).unwrap();
        assert_eq!(stays, memory.add(4 * PAGE));
        let other = model.clone();
        let handle = loom::thread::spawn(move || {
            assert_eq!(other.vmap().vrealloc(memory, 1, Options::DEFAULT), Ok(memory));
        });
        let seen: Vec<_> = vmap.areas().map(|info| info.span.start).collect();
        assert!(seen.contains(&memory) && seen.contains(&stays), "{seen:?}");
        handle.join().unwrap();
        vmap.vfree(memory).unwrap();
        model.finish(1);
    });
}

/// Checks that one of all threads that free an area succeeds, though it is allocated again in
/// between.
#[test]
fn an_area_is_freed_once() {
    explore("free", 3, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let area = vmap.alloc(1, BARE).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || u64::from(other.vmap().free(area).is_ok()));
        let mut freed = u64::from(vmap.free(area).is_ok());
        let again = vmap.alloc(1, BARE);
        freed += handle.join().unwrap();
        let allocated = 1 + u64::from(again.is_ok());
        assert!(freed >= 1 && freed <= allocated);
        model.finish(allocated - freed);
    });
}

/// Areas become lazy while a purge takes the list, and another decays pools.
#[test]
fn what_is_freed_during_a_purge_is_purged_once() {
    explore("lazy", 2, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let (a, b) =
            (vmap.vmap(&[Pfn::new(20)], BARE).unwrap(), vmap.vmap(&[Pfn::new(21)], BARE).unwrap());
        vmap.vunmap(a).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || other.vmap().vunmap(b).unwrap());
        vmap.purge(PurgeDepth::Lazy);
        handle.join().unwrap();
        assert!(model.ledger.mapped_pages() <= 1);
        model.finish(0);
    });
}

/// A purge puts two areas into their pool at once, while a thread empties it.
#[test]
fn a_row_of_areas_is_handed_out_once() {
    explore("row", 2, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let map = |frame| vmap.vmap(&[Pfn::new(frame)], BARE).unwrap();
        [map(20), map(21)].into_iter().for_each(|area| vmap.vunmap(area).unwrap());
        let other = model.clone();
        let handle = loom::thread::spawn(move || {
            let areas = [(); 2].map(|()| other.vmap().alloc(1, BARE).unwrap());
            assert_ne!(areas[0], areas[1]);
            areas.into_iter().for_each(|area| other.vmap().free(area).unwrap());
        });
        vmap.purge(PurgeDepth::Lazy);
        handle.join().unwrap();
        assert_eq!(model.ledger.mapped_pages(), 0);
        model.finish(0);
    });
}

/// A table becomes empty while a thread maps through it.
fn table_model() {
    let model = Arc::new(Model::new(config()));
    let vmap = model.vmap();
    let (lazy, next) = (vmap.vmap(&[Pfn::new(20)], BARE).unwrap(), vmap.alloc(1, BARE).unwrap());
    assert!(next.get() < BASE + TABLE as usize * PAGE, "both are mapped by one table");
    vmap.vunmap(lazy).unwrap();
    let other = model.clone();
    let handle = loom::thread::spawn(move || {
        other.vmap().map_frames(next, 0, &[Pfn::new(21)], BARE).unwrap();
        other.ledger.0.lock().unwrap().mapped[Ledger::pages(Span::new(next, 1)).start]
    });
    vmap.purge(PurgeDepth::Lazy);
    assert_eq!(handle.join().unwrap(), Some(21));
    let page = Ledger::pages(Span::new(next, 1)).start;
    assert_eq!(model.ledger.0.lock().unwrap().mapped[page], Some(21), "a mapping was lost");
    vmap.vunmap(next).unwrap();
    model.finish(0);
}

#[test]
fn a_table_is_given_back_only_when_nothing_is_mapped() {
    explore("table", 3, table_model);
}

#[test]
#[should_panic(expected = "Table {")]
fn a_table_is_given_back_only_when_nothing_is_mapped_broken() {
    leave_out(Mutant::TableLock);
    explore::explore_mutant(3, table_model);
}

/// Warm areas come and go while a purge empties the pools.
#[test]
fn warm_memory_is_somebodys_or_purged() {
    explore("warm", 2, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let first = vmap.vmalloc(1, Options::DEFAULT).unwrap();
        vmap.vfree(first).unwrap();
        assert_eq!(vmap.stats().warm_areas, 1);
        threads(
            &model,
            [
                |model| {
                    model.vmap().purge(PurgeDepth::Everything);
                },
                |model| {
                    let vmap = model.vmap();
                    let addr = vmap.vmalloc(1, Options::DEFAULT).unwrap();
                    let page = Ledger::pages(Span::new(addr, 1)).start;
                    assert!(model.ledger.0.lock().unwrap().mapped[page].is_some(), "fault");
                    vmap.vfree(addr).unwrap();
                },
            ],
        );
        model.finish(0);
    });
}

/// Looking at an area while its addresses are given to others, in other sizes.
fn look_model() {
    let model = Arc::new(Model::new(VmapConfig { pool_pages_max: Some(0), ..config() }));
    let vmap = model.vmap();
    let area = vmap.alloc(2, BARE).unwrap();
    let wall = vmap.alloc(1, BARE).unwrap();
    let other = model.clone();
    let handle = loom::thread::spawn(move || other.vmap().find(area.add(PAGE)));
    vmap.free(area).unwrap();
    vmap.purge(PurgeDepth::Lazy);
    let new = vmap.alloc(1, BARE).unwrap();
    assert_eq!(new, area);
    let seen = handle.join().unwrap();
    if let Some(info) = seen {
        assert_eq!((info.span.start, info.span.pages), (area, 2), "an area that never was");
    }
    vmap.free(new).unwrap();
    vmap.free(wall).unwrap();
    model.finish(0);
}

#[test]
fn a_look_sees_an_area_that_was() {
    explore("look", 2, look_model);
}

#[test]
#[should_panic(expected = "an area that never was")]
fn a_look_sees_an_area_that_was_broken() {
    leave_out(Mutant::SecondLook);
    explore::explore_mutant(2, look_model);
}

/// Checks that a read finds data that was at the address at some moment, or finds no area.
#[test]
fn reading_sees_what_was_there_or_nothing() {
    explore("read", 2, || {
        let model = Arc::new(Model::new(config()));
        let vmap = model.vmap();
        let area = vmap.vmap(&[Pfn::new(20)], BARE).unwrap();
        let other = model.clone();
        let handle = loom::thread::spawn(move || {
            let mut byte = [9];
            (other.vmap().read_at(area, &mut byte), byte[0])
        });
        vmap.vunmap(area).unwrap();
        vmap.purge(PurgeDepth::Lazy);
        let again = vmap.vmap(&[Pfn::new(30)], BARE).unwrap();
        assert_eq!(again, area);
        let seen = handle.join().unwrap();
        assert!([(1, 20), (1, 30), (0, 0)].contains(&seen), "{seen:?}");
        vmap.vunmap(again).unwrap();
        model.finish(0);
    });
}

/// A reader looks for the frame at an area's page, as `frame_at` does, while the area is freed and
/// allocated again for another frame.
fn frame_model() {
    use crate::Kind;
    use crate::metadata::area::State;
    use crate::metadata::frames::FrameTable;
    use crate::units::Vpn;
    use pagedepot::sync::prim::{AtomicU8, AtomicU32};

    struct Metadata {
        area: Area,
        frames: [AtomicU32; 1],
        orders: [AtomicU8; 1],
    }
    impl Metadata {
        fn table(&self) -> FrameTable<'_> {
            FrameTable { frames: &self.frames, orders: &self.orders }
        }
    }
    let metadata =
        Metadata { area: Area::new(), frames: [AtomicU32::new(0)], orders: [AtomicU8::new(0)] };
    let metadata = Arc::new(metadata);
    metadata.table().lend(Vpn(0), Pfn::new(20));
    let first = metadata.area.word().allocated(Kind::Vmap, false);
    metadata.area.set_word(first);
    let other = metadata.clone();
    let reader = loom::thread::spawn(move || {
        let word = other.area.word();
        let frame = other.table().get(Vpn(0));
        (word, frame.filter(|_| other.area.still(word)))
    });
    assert!(metadata.area.leave_busy(first, first.in_state(State::Held)));
    metadata.table().lend(Vpn(0), Pfn::new(30));
    metadata.area.set_word(metadata.area.word().allocated(Kind::Vmap, false));
    let (word, frame) = reader.join().unwrap();
    assert!(word != first || frame != Some(Pfn::new(30)), "the frame of another area");
}

#[test]
fn a_frame_is_of_the_area_that_was_looked_at() {
    explore("frame", 3, frame_model);
}

#[test]
#[should_panic(expected = "the frame of another area")]
fn a_frame_is_of_the_area_that_was_looked_at_broken() {
    leave_out(Mutant::LookOrder);
    explore::explore_mutant(3, frame_model);
}

/// Memory that moves, and is freed, while a purge takes what is there: its frames outlive all
/// mappings.
fn alias_model() {
    let model = Arc::new(Model::new(config()));
    let vmap = model.vmap();
    let memory = vmap.vmalloc(1, Options::DEFAULT).unwrap();
    let wall = vmap.alloc(1, BARE).unwrap();
    let other = model.clone();
    let handle = loom::thread::spawn(move || {
        other.vmap().purge(PurgeDepth::Decay);
    });
    let moved = vmap.vrealloc(memory, 2, Options::DEFAULT).unwrap();
    assert_ne!(moved, memory);
    vmap.vfree(moved).unwrap();
    handle.join().unwrap();
    vmap.free(wall).unwrap();
    model.finish(0);
}

#[test]
fn frames_that_moved_are_freed_after_their_aliases() {
    explore("alias", 3, alias_model);
}

#[test]
#[should_panic(expected = "is freed while it is mapped")]
fn frames_that_moved_are_freed_after_their_aliases_broken() {
    leave_out(Mutant::PoolsFirst);
    explore::explore_mutant(3, alias_model);
}

/// A purge that cannot unmap, while another maps through the table that it has locked: the table
/// stays, what is stuck goes with the next purge, and its frame is not freed before.
fn stuck_model() {
    let model = Arc::new(Model::new(VmapConfig { warm_pages_max: Some(0), ..config() }));
    let vmap = model.vmap();
    let memory = vmap.vmalloc(1, BARE).unwrap();
    let other = model.clone();
    vmap.vfree(memory).unwrap();
    model.ledger.0.lock().unwrap().unmap_fails = true;
    let handle = loom::thread::spawn(move || {
        let vmap = other.vmap();
        let next = vmap.vmap(&[Pfn::new(20)], BARE).unwrap();
        let page = Ledger::pages(Span::new(next, 1)).start;
        assert_eq!(other.ledger.0.lock().unwrap().mapped[page], Some(20), "a mapping was lost");
        vmap.vunmap(next).unwrap();
    });
    let purged = vmap.purge(PurgeDepth::Lazy);
    assert!(purged.stuck_areas > 0 && purged.error == Some(MapError::NoTables));
    handle.join().unwrap();
    model.finish(0);
}

#[test]
fn what_is_stuck_keeps_its_table_and_its_frames() {
    explore("stuck", 3, stuck_model);
}

#[test]
#[should_panic(expected = "Table {")]
fn what_is_stuck_keeps_its_table_and_its_frames_broken() {
    leave_out(Mutant::Reenter);
    explore::explore_mutant(3, stuck_model);
}

/// A purge that cannot unmap, while another purges and allocates, too: each area is in one place.
#[test]
fn what_is_stuck_is_purged_by_the_next() {
    explore("stuck, two purges", 2, || {
        let model = Arc::new(Model::new(VmapConfig { warm_pages_max: Some(0), ..config() }));
        let vmap = model.vmap();
        let memory = vmap.vmalloc(2, BARE).unwrap();
        vmap.vfree(memory).unwrap();
        model.ledger.0.lock().unwrap().unmap_fails = true;
        threads(
            &model,
            [
                |model| {
                    model.vmap().purge(PurgeDepth::Lazy);
                },
                |model| {
                    let vmap = model.vmap();
                    vmap.purge(PurgeDepth::Everything);
                    let next = vmap.vmalloc(1, BARE).unwrap();
                    vmap.vfree(next).unwrap();
                },
            ],
        );
        model.finish(0);
    });
}

/// The lock has one holder, also among threads that only try.
#[test]
fn a_lock_has_one_holder() {
    explore("lock", 3, || {
        let lock = Arc::new(Lock::new());
        let inside = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let host = || Frames(Ledger::default());
        let hold = |inside: &loom::sync::atomic::AtomicU32| {
            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two hold the lock");
            inside.fetch_sub(1, Ordering::Relaxed);
        };
        let (other, within) = (lock.clone(), inside.clone());
        let handle = loom::thread::spawn(move || {
            for _ in 0..3 {
                if other.try_lock(&host()).is_some_and(|_guard| {
                    hold(&within);
                    true
                }) {
                    return;
                }
            }
        });
        for _ in 0..2 {
            let waiter = host();
            let _guard = lock.lock(&waiter);
            hold(&inside);
        }
        handle.join().unwrap();
    });
}
