//! `vmalloc`, mappings and purges over the frames of an allocator.
//!
//! The mapper is a ledger: it panics when a page is mapped twice, or a table is given back under a
//! mapping. A frame that is freed while it is mapped shows when it is mapped again.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex as StdMutex};

use shuttle::thread;

use super::machine::{CPUS, Depot, FRAMES, rng, run_on};
use super::{explore, explore_mutant};
use crate::{
    FlushSpans, Host, MapError, Mapper, Options, Protection, PurgeDepth, Span, StaleData, VirtAddr,
    Vmap, VmapConfig,
};
use pagedepot::cpus::Cpus;
use pagedepot::sync::model::Mutant;
use pagedepot::{AllocError, CpuId, Flags, FrameRange, FreeManyError, Order, PageSize, Pfn};

const PAGE: usize = 4096;
/// Whole tables: those at the ends of a range that begins or ends inside one stay.
const PAGES: u32 = 4 * 512;
const BASE: usize = 512 * PAGE;
/// Frames that no allocator has: those of `vmap` and `vm_map_ram`.
const FOREIGN: u32 = 1 << 20;

/// The frame that is mapped at each page, and the number of mappings of each frame.
struct State {
    mapped: Vec<Option<u32>>,
    aliases: Vec<u32>,
}

#[derive(Clone)]
struct Ledger(Arc<StdMutex<State>>);

impl Ledger {
    fn new(frames: u32) -> Self {
        Ledger(Arc::new(StdMutex::new(State {
            mapped: vec![None; PAGES as usize],
            aliases: vec![0; frames as usize],
        })))
    }

    fn pages(span: Span) -> std::ops::Range<usize> {
        let first = (span.start.get() - BASE) / PAGE;
        first..first + span.pages as usize
    }

    fn check_mapped(&self, start: VirtAddr, pages: u32) {
        let state = self.0.lock().unwrap();
        assert!(
            Self::pages(Span::new(start, pages)).all(|page| state.mapped[page].is_some()),
            "fault"
        );
    }

    fn is_mapped(&self, frame: Pfn) -> bool {
        self.0.lock().unwrap().aliases[frame.index()] > 0
    }
}

// SAFETY: nothing is ever reached through its addresses.
unsafe impl Mapper for Ledger {
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
        for (frame, page) in (frames.start.get()..).zip(Self::pages(Span::new(at, frames.frames))) {
            let old = state.mapped[page].replace(frame);
            assert_eq!(old, None, "page {page} is mapped twice");
            if frame < FOREIGN {
                state.aliases[frame as usize] += 1;
            }
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        let mut state = self.0.lock().unwrap();
        for page in Self::pages(span) {
            if let Some(frame) = state.mapped[page].take().filter(|&frame| frame < FOREIGN) {
                state.aliases[frame as usize] -= 1;
            }
        }
        Ok(())
    }

    fn flush(&self, _spans: FlushSpans<'_>) {}

    unsafe fn release_tables(&self, span: Span) {
        let state = self.0.lock().unwrap();
        let used = Self::pages(span).find(|&page| state.mapped[page].is_some());
        assert_eq!(used, None, "a table is given back that maps something");
    }

    unsafe fn fill(&self, span: Span, _byte: u8) {
        self.check_mapped(span.start, span.pages);
    }

    unsafe fn fill_frames(&self, _frames: FrameRange, _byte: u8) -> Result<(), MapError> {
        Ok(())
    }

    fn read(&self, _frame: Pfn, _offset: usize, buf: &mut [u8]) -> bool {
        buf.fill(0);
        true
    }
}

/// The allocator, asked and watched.
struct Frames {
    depot: Arc<Depot>,
    ledger: Ledger,
}

impl Frames {
    fn check_free(&self, blocks: &[(Pfn, Order)]) {
        for &(pfn, order) in blocks {
            let used = (0..order.frames()).find(|&i| self.ledger.is_mapped(pfn.add(i)));
            assert_eq!(used, None, "{pfn} is freed while it is mapped");
        }
    }
}

// SAFETY: as the allocator, which hands out each frame once until it is freed.
unsafe impl Host for Frames {
    fn cpu(&self) -> Option<CpuId> {
        self.depot.allocator.cpus().here().map(|here| here.cpu)
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.depot.allocator.alloc(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.depot.allocator.alloc_many(Order::BASE, flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        self.check_free(blocks);
        self.depot.allocator.free_many(blocks)
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        self.depot.allocator.split(frame, order, Order::BASE).is_ok()
    }
}

/// A vmap over an allocator.
struct Space {
    vmap: Option<Vmap<'static, Ledger, Frames>>,
    depot: Arc<Depot>,
    ledger: Ledger,
    memory: *mut [MaybeUninit<u8>],
}

// SAFETY: `memory` is only touched by `drop`.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    fn new(config: &VmapConfig) -> Arc<Self> {
        let depot = Depot::new();
        let ledger = Ledger::new(FRAMES);
        let bytes = Vmap::<Ledger, Frames>::metadata_bytes(config, &ledger).unwrap();
        let memory: *mut [_] = Box::into_raw(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
        let host = Frames { depot: depot.clone(), ledger: ledger.clone() };
        // SAFETY: freed in `drop`, after the vmap.
        let metadata = unsafe { &mut *memory };
        // SAFETY: one ledger and one allocator, which map and hand out for this vmap alone.
        let vmap = unsafe { Vmap::new(config, metadata, ledger.clone(), host) }.unwrap();
        Arc::new(Space { vmap: Some(vmap), depot, ledger, memory })
    }

    fn vmap(&self) -> &Vmap<'static, Ledger, Frames> {
        self.vmap.as_ref().unwrap()
    }

    /// All threads have ended, and freed what they held: everything is taken back.
    fn finish(mut self: Arc<Self>) {
        let space = Arc::get_mut(&mut self).expect("all threads have ended");
        let vmap = space.vmap.as_mut().unwrap();
        vmap.validate().unwrap();
        assert_eq!(vmap.purge(PurgeDepth::Everything).stuck_areas, 0);
        let census = vmap.validate().unwrap();
        assert_eq!((census.busy_areas, census.lazy_areas, census.pooled_areas), (0, 0, 0));
        assert_eq!((census.free_pages, vmap.stats().tables), (u64::from(PAGES), 0));
        drop(space.vmap.take());
        let depot = space.depot.clone();
        drop(self);
        depot.finish();
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        drop(self.vmap.take());
        // SAFETY: came from `Box::into_raw`; nothing refers to it any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

enum Held {
    Memory(VirtAddr, u32),
    Area(VirtAddr),
    Mapped(VirtAddr),
    Ram(VirtAddr, u32),
}

/// One thread's work.
fn work(space: &Space, number: u32, steps: u32) {
    let (vmap, mut rng, mut held) = (space.vmap(), rng(), Vec::new());
    let foreign: Vec<Pfn> = (0..20).map(|i| Pfn::new(FOREIGN + number * 100 + i)).collect();
    let free = |held: Held| match held {
        Held::Memory(addr, pages) => {
            space.ledger.check_mapped(addr, pages);
            vmap.vfree(addr).unwrap();
        }
        Held::Area(addr) => vmap.free(addr).unwrap(),
        Held::Mapped(addr) => vmap.vunmap(addr).unwrap(),
        Held::Ram(addr, pages) => vmap.vm_unmap_ram(addr, pages).unwrap(),
    };
    for _ in 0..steps {
        if rng.one_in(8) {
            run_on(rng.below(u64::from(CPUS)) as u32);
        }
        if held.len() < 8 && rng.below(5) < 3 {
            let pages_max = if rng.one_in(4) { 20 } else { 2 };
            let pages = 1 + rng.below(pages_max) as u32;
            let frames = &foreign[..pages as usize];
            let new = match rng.below(8) {
                0..4 => vmap.vmalloc(pages, Options::DEFAULT).map(|addr| Held::Memory(addr, pages)),
                4..6 => vmap.alloc(pages, Options::DEFAULT).map(Held::Area),
                6 => vmap.vmap(frames, Options::DEFAULT).map(Held::Mapped),
                _ => vmap.vm_map_ram(frames, Options::DEFAULT).map(|addr| Held::Ram(addr, pages)),
            };
            held.push(new.unwrap());
        } else if !held.is_empty() {
            free(held.swap_remove(rng.index(held.len())));
        }
    }
    held.into_iter().for_each(free);
}

/// Workers, a purger, and one that reads and lists.
fn everything(config: &VmapConfig) {
    let space = Space::new(config);
    let workers = (0..3).map(|number| {
        let space = space.clone();
        thread::spawn(move || {
            run_on(number);
            work(&space, number, 30);
        })
    });
    let purger = [PurgeDepth::Lazy, PurgeDepth::Decay, PurgeDepth::Everything].map(|depth| {
        let space = space.clone();
        thread::spawn(move || {
            space.vmap().purge(depth);
            space.vmap().purge(depth);
        })
    });
    let reader = {
        let space = space.clone();
        thread::spawn(move || {
            assert!(space.vmap().areas().is_sorted_by(|a, b| a.span.start < b.span.start));
            let mut rng = rng();
            for _ in 0..10 {
                let at = VirtAddr::new(BASE + rng.index(60) * PAGE);
                if let Some(info) = space.vmap().find(at) {
                    assert!(info.span.start <= at, "an area that never was");
                }
            }
        })
    };
    let threads: Vec<_> = workers.chain(purger).chain([reader]).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    space.finish();
}

fn config() -> VmapConfig {
    VmapConfig::new(CPUS, 400)
}

#[test]
fn with_warm_areas() {
    explore("with_warm_areas", || everything(&config()));
}

#[test]
fn with_early_purges() {
    explore("with_early_purges", || {
        everything(&VmapConfig {
            lazy_pages_max: Some(8),
            warm_pages_max: Some(0),
            stale: StaleData::Keep,
            ..config()
        });
    });
}

/// Areas of one size, few enough that a pool soon looks as it did before.
fn one_size() {
    let space = Space::new(&config());
    let owned = Arc::new(StdMutex::new(BTreeSet::new()));
    let threads = [(); 3].map(|()| {
        let (space, owned) = (space.clone(), owned.clone());
        thread::spawn(move || {
            run_on(0);
            let (vmap, mut rng) = (space.vmap(), rng());
            let mut held = Vec::new();
            let free = |addr| {
                owned.lock().unwrap().remove(&addr);
                vmap.free(addr).expect("an area has one owner");
            };
            for _ in 0..40 {
                if held.len() < 3 && rng.one_in(2) {
                    let addr = vmap.alloc(1, Options::DEFAULT).unwrap();
                    assert!(owned.lock().unwrap().insert(addr), "an area has two owners");
                    held.push(addr);
                } else if !held.is_empty() {
                    free(held.swap_remove(rng.index(held.len())));
                }
            }
            held.into_iter().for_each(free);
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    space.finish();
}

#[test]
fn a_pooled_area_has_one_owner() {
    explore("a_pooled_area_has_one_owner", one_size);
}

/// Two areas in a pool; one thread takes one while another takes both, and returns a third and one
/// of them: the pool looks as before, but is not.
fn two_in_a_pool() {
    let space = Space::new(&config());
    let vmap = space.vmap();
    run_on(0);
    let areas = [0; 3].map(|_| vmap.alloc(1, Options::DEFAULT).unwrap());
    areas[..2].iter().for_each(|&area| vmap.free(area).unwrap());
    let other = space.clone();
    let handle = thread::spawn(move || {
        run_on(0);
        other.vmap().alloc(1, Options::DEFAULT).unwrap()
    });
    let (a, b) =
        (vmap.alloc(1, Options::DEFAULT).unwrap(), vmap.alloc(1, Options::DEFAULT).unwrap());
    vmap.free(areas[2]).unwrap();
    vmap.free(a).unwrap();
    let c = handle.join().unwrap();
    let d = vmap.alloc(1, Options::DEFAULT).unwrap();
    assert!(b != c && b != d && c != d, "an area has two owners");
    [b, c, d].iter().for_each(|&area| vmap.free(area).unwrap());
    space.finish();
}

#[test]
fn a_pool_that_looks_as_before() {
    explore("a_pool_that_looks_as_before", two_in_a_pool);
}

#[test]
#[should_panic = "an area has two owners"]
fn a_pool_that_looks_as_before_without_tags() {
    explore_mutant("a_pool_that_looks_as_before_without_tags", Mutant::Untagged, two_in_a_pool);
}
