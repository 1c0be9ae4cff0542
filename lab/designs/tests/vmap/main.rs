//! Properties of every vmap design:
//! 1. no two areas overlap, guards included, and guards are not mapped;
//! 2. areas are aligned as asked;
//! 3. memory is mapped, each page to a frame of its own, and keeps what was written to it, also
//!    when it is resized;
//! 4. only live areas can be freed, and each once;
//! 5. a request fails only if there is no room for it, or no frames;
//! 6. frames are freed, and addresses mapped again, only after a flush (`paper.rs`);
//! 7. after everything is freed and purged, all addresses and frames are back;
//! 8. a mapper that fails loses nothing.

mod calls;
mod paper;
mod tables;

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pagedepot::AllocError;
use pagedepot::Pfn;
use pagedepot_lab_designs::vmap::{
    Depot, FramesFreed, GlobalLock, Nodes, PurgedBy, VmapDesign, VmapSetup,
};
use pagedepot_vmap::{MapError, StaleData, VirtAddr, Vmap, VmapConfig, VmapError};
use proptest::prelude::*;

use paper::{CALLERS, PAGE, Paper, run_on};

const PAGES: u32 = 2000;
const FRAMES: u32 = 900;
const CPUS: u32 = 3;

/// Runs `work` with each design, over a `Paper` of its own.
fn for_each_design(
    pages: u32,
    frames: u32,
    lazy_pages_max: u64,
    work: impl Fn(&mut dyn VmapDesign, &Paper),
) {
    run_on(0);
    for frames_freed in [FramesFreed::AtPurge, FramesFreed::AtFree] {
        let setup = VmapSetup {
            lazy_pages_max: Some(lazy_pages_max),
            frames_freed,
            ..VmapSetup::new(CPUS)
        };
        let paper = || match frames_freed {
            FramesFreed::AtPurge => Paper::new(pages, frames),
            FramesFreed::AtFree => Paper::new(pages, frames).flushing(),
        };
        let one = paper();
        // SAFETY: one paper for both, and for this design alone, which flushes as it unmaps where
        // frames are freed at once.
        work(&mut unsafe { GlobalLock::new(setup, &one, &one) }, &one);
        let one = paper();
        // SAFETY: as above.
        work(&mut unsafe { Nodes::new(setup, &one, &one) }, &one);
    }
    let paper = Paper::new(pages, frames);
    let config = VmapConfig {
        stale: StaleData::Keep,
        lazy_pages_max: Some(lazy_pages_max),
        warm_pages_max: Some(100),
        ..VmapConfig::new(CPUS, 2 * pages + 2)
    };
    let bytes = Vmap::<&Paper, &Paper>::metadata_bytes(&config, &&paper).unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes];
    // SAFETY: as above.
    let vmap = unsafe { Vmap::new(&config, &mut metadata, &paper, &paper) }.unwrap();
    work(&mut Depot::new(vmap), &paper);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Address,
    Memory,
    Ram,
}

#[derive(Clone, Debug)]
struct Live {
    start: VirtAddr,
    kind: Kind,
    stamps: Vec<u64>,
}

impl Live {
    fn pages(&self) -> u32 {
        self.stamps.len() as u32
    }

    fn end(&self) -> VirtAddr {
        self.start.add((self.stamps.len() + 1) * PAGE)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { kind: Kind, pages: u32, align_shift: u32 },
    Resize { which: usize, pages: u32 },
    Write { which: usize, page: usize, stamp: u64 },
    Free(usize),
    FreeWrongly(usize),
    Purge,
    Move(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(Kind::Address), Just(Kind::Memory), Just(Kind::Ram)];
    let pages = || prop_oneof![4 => 1..8u32, 3 => 1..60u32, 1 => 1..400u32];
    let align = prop_oneof![4 => Just(0u32), 1 => 0..8u32];
    prop_oneof![
        10 => (kind, pages(), align)
            .prop_map(|(kind, pages, align_shift)| Step::Alloc { kind, pages, align_shift }),
        2 => (any::<usize>(), pages()).prop_map(|(which, pages)| Step::Resize { which, pages }),
        4 => (any::<usize>(), any::<usize>(), any::<u64>())
            .prop_map(|(which, page, stamp)| Step::Write { which, page, stamp }),
        9 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeWrongly),
        1 => Just(Step::Purge),
        2 => (0..CPUS).prop_map(Step::Move),
    ]
}

/// The design, and the naive list of live areas.
struct World<'w> {
    design: &'w mut dyn VmapDesign,
    paper: &'w Paper,
    live: Vec<Live>,
    callers_frames: u32,
}

impl World<'_> {
    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { kind, pages, align_shift } => {
                self.alloc(kind, pages, PAGE << align_shift)
            }
            Step::Resize { which, pages } => self.resize(which, pages),
            Step::Write { which, page, stamp } => {
                if let Some(which) =
                    self.pick(which).filter(|&at| self.live[at].kind != Kind::Address)
                {
                    let live = &mut self.live[which];
                    let page = page % live.stamps.len();
                    live.stamps[page] = stamp;
                    self.paper.write(live.start.add(page * PAGE), stamp);
                }
            }
            Step::Free(which) => {
                if let Some(which) = self.pick(which) {
                    let live = self.live.swap_remove(which);
                    self.check(&live);
                    self.free(&live);
                    assert!(self.design.vfree(live.start).is_err(), "freed twice");
                }
            }
            Step::FreeWrongly(which) => {
                if let Some(which) = self.pick(which) {
                    let inside = self.live[which].start.add(8);
                    assert!(
                        self.design.vfree(inside).is_err() && self.design.free(inside).is_err()
                    );
                    let outside = VirtAddr::new(PAGE);
                    assert!(self.design.vfree(outside).is_err());
                }
            }
            Step::Purge => self.design.purge(),
            Step::Move(cpu) => run_on(cpu),
        }
    }

    fn alloc(&mut self, kind: Kind, pages: u32, align: usize) {
        let first = CALLERS + self.callers_frames;
        let frames: Vec<Pfn> = (first..first + pages).map(Pfn::new).collect();
        let (align, made) = match kind {
            Kind::Address => (align, self.design.alloc(pages, align)),
            Kind::Memory => (align, self.design.vmalloc(pages, align)),
            Kind::Ram => (1, self.design.map_ram(&frames)),
        };
        match made {
            Ok(start) => {
                assert_eq!(start.get() % align, 0);
                let stamps = match kind {
                    Kind::Address => vec![0; pages as usize],
                    // Its contents are undefined.
                    _ => (0..pages as usize)
                        .map(|i| self.paper.read_at(start.add(i * PAGE)))
                        .collect(),
                };
                if kind == Kind::Ram {
                    self.callers_frames += pages;
                    let mapped = |i: usize| self.paper.frame_at(start.add(i * PAGE));
                    assert!(frames.iter().enumerate().all(|(i, &frame)| mapped(i) == Some(frame)));
                }
                self.enter(Live { start, kind, stamps });
            }
            Err(error) => self.may_fail(error, pages, align),
        }
    }

    fn enter(&mut self, new: Live) {
        for other in &self.live {
            assert!(
                new.end() <= other.start || other.end() <= new.start,
                "{new:?} overlaps {other:?}"
            );
        }
        let guard = new.start.add(new.stamps.len() * PAGE);
        assert_eq!(self.paper.frame_at(guard), None, "a guard is mapped");
        self.check(&new);
        self.live.push(new);
    }

    fn check(&self, live: &Live) {
        for (i, &stamp) in live.stamps.iter().enumerate() {
            let page = live.start.add(i * PAGE);
            match live.kind {
                Kind::Address => assert_eq!(self.paper.frame_at(page), None),
                _ => assert_eq!(self.paper.read_at(page), stamp, "page {i} of {:?}", live.start),
            }
        }
    }

    /// Whether there was no room, or there were no frames, although everything freed was purged.
    fn may_fail(&self, error: VmapError, pages: u32, align: usize) {
        match error {
            VmapError::NoSpace => {
                let needed = (pages + 1) as usize * PAGE + align - PAGE.min(align);
                assert!(self.longest_gap() < needed, "{pages} pages at {align}: there is room");
            }
            VmapError::Frames(AllocError::Exhausted) => {
                let memory = self.live.iter().filter(|live| live.kind == Kind::Memory);
                let held: u32 = memory.map(Live::pages).sum();
                assert!(held + pages > FRAMES, "{pages} pages more than {held}: there are frames");
            }
            _ => panic!("{error}"),
        }
    }

    /// Bytes of the longest range that no live area covers.
    fn longest_gap(&self) -> usize {
        let mut live: Vec<_> =
            self.live.iter().map(|live| (live.start.get(), live.end().get())).collect();
        live.sort_unstable();
        let end = paper::START + PAGES as usize * PAGE;
        live.push((end, end));
        let mut at = paper::START;
        let gaps = live.into_iter().map(|(start, end)| start - std::mem::replace(&mut at, end));
        gaps.max().unwrap_or_default()
    }

    fn resize(&mut self, which: usize, pages: u32) {
        let Some(which) = self.pick(which).filter(|&at| self.live[at].kind == Kind::Memory) else {
            return;
        };
        let mut live = self.live.swap_remove(which);
        let copy = |from, to, pages| self.paper.copy(from, to, pages);
        match self.design.vrealloc(live.start, live.pages(), pages, &copy) {
            Ok(start) => {
                let read = |i: u32| self.paper.read_at(start.add(i as usize * PAGE));
                let added: Vec<u64> = (live.pages()..pages).map(read).collect();
                // A shrunken area may stay as large as it was: the kernel's does.
                if pages >= live.pages()
                    || self.paper.frame_at(start.add(pages as usize * PAGE)).is_none()
                {
                    live.stamps.resize(pages as usize, 0);
                }
                let kept = live.stamps.len() - added.len();
                live.stamps[kept..].copy_from_slice(&added);
                live.start = start;
            }
            // The old and the new place exist at the same time, so the live list cannot tell
            // whether there was room.
            Err(error) => {
                assert!(matches!(error, VmapError::NoSpace | VmapError::Frames(_)), "{error}");
            }
        }
        self.enter(live);
    }

    fn pick(&self, which: usize) -> Option<usize> {
        which.checked_rem(self.live.len())
    }

    fn free(&self, live: &Live) {
        let freed = match live.kind {
            Kind::Address => self.design.free(live.start),
            Kind::Memory => self.design.vfree(live.start),
            Kind::Ram => self.design.unmap_ram(live.start, live.pages()),
        };
        freed.unwrap_or_else(|error| panic!("{live:?}: {error}"));
    }

    fn end(mut self) {
        for live in std::mem::take(&mut self.live) {
            self.check(&live);
            self.free(&live);
        }
        all_back(self.design, self.paper);
    }
}

/// Checks that all addresses and frames are back after everything was freed.
fn all_back(design: &mut dyn VmapDesign, paper: &Paper) {
    design.purge();
    design.validate().unwrap();
    assert_eq!((paper.frames_out(), paper.mapped_pages()), (0, 0), "{}", design.name());
    let counts = design.counts();
    assert_eq!((counts.lazy_pages, counts.pooled_pages), (0, 0), "{}", design.name());
    assert_eq!(counts.flushed_pages, paper.flushed_pages(), "{}", design.name());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]
    #[test]
    fn areas_behave_like_a_list(
        steps in prop::collection::vec(step(), 1..150),
        often in any::<bool>(),
    ) {
        let lazy_pages_max = if often { 200 } else { 1500 };
        for_each_design(PAGES, FRAMES, lazy_pages_max, |design, paper| {
            let mut world = World { design, paper, live: Vec::new(), callers_frames: 0 };
            for (i, step) in steps.iter().enumerate() {
                world.step(step.clone());
                if i % 16 == 0 {
                    world.design.validate().unwrap();
                }
            }
            world.end();
        });
    }
}

/// Each thread writes stamps to its memory and checks them later.
#[test]
fn threads_keep_apart() {
    for_each_design(4000, 3000, 500, |design, paper| {
        let shared = &*design;
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || work(shared, paper, number));
            }
        });
        all_back(design, paper);
    });
}

/// There is room for all. But in the kernel's designs no request waits for a purge that is under
/// way. While the purger does not run, other threads go on until every frame is in a lazy area. A
/// request that has purged once and then finds the same again fails.
fn vmalloc_at_last(design: &dyn VmapDesign, pages: u32) -> VirtAddr {
    loop {
        match design.vmalloc(pages, 1) {
            Ok(start) => return start,
            Err(VmapError::Frames(AllocError::Exhausted)) if design.name() != "depot" => {
                std::thread::yield_now();
            }
            Err(error) => panic!("{}: {error}", design.name()),
        }
    }
}

fn work(design: &dyn VmapDesign, paper: &Paper, number: u64) {
    let mut random = number + 1;
    let mut below = |n: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let stamp = |addr: VirtAddr| number << 56 | addr.get() as u64;
    let mut held: Vec<(VirtAddr, u32)> = Vec::new();
    for _ in 0..1500 {
        run_on(below(u64::from(CPUS)) as u32);
        if held.len() < 8 && below(2) == 0 {
            let pages = 1 + below(12) as u32;
            let start = vmalloc_at_last(design, pages);
            (0..pages as usize)
                .map(|i| start.add(i * PAGE))
                .for_each(|page| paper.write(page, stamp(page)));
            held.push((start, pages));
        } else if !held.is_empty() {
            let (start, pages) = held.swap_remove(below(held.len() as u64) as usize);
            let mut all = (0..pages as usize).map(|i| start.add(i * PAGE));
            assert!(all.all(|page| paper.read_at(page) == stamp(page)), "{}", design.name());
            design.vfree(start).expect("it was allocated");
        }
    }
    held.into_iter().for_each(|(start, _)| design.vfree(start).expect("it was allocated"));
}

#[test]
fn a_mapper_that_fails_loses_nothing() {
    for nth in 1..8 {
        for_each_design(500, 300, 100, |design, paper| {
            // Holes among the frames, so that areas need several calls.
            let small: Vec<_> = (0..40).map(|_| design.vmalloc(1, 1).unwrap()).collect();
            small.iter().step_by(2).for_each(|&start| design.vfree(start).unwrap());
            design.purge();
            paper.fail_map_in.store(nth, Relaxed);
            let made: Vec<_> = (0..4).map(|_| design.vmalloc(13, 1)).collect();
            let failed =
                made.iter().filter(|made| matches!(made, Err(VmapError::Map(MapError::NoTables))));
            assert!(failed.count() <= 1);
            made.into_iter().flatten().for_each(|start| design.vfree(start).unwrap());
            paper.fail_map_in.store(0, Relaxed);
            paper.fail_unmap_in.store(nth, Relaxed);
            design.purge();
            design.validate().unwrap();
            paper.fail_unmap_in.store(0, Relaxed);
            small.iter().skip(1).step_by(2).for_each(|&start| design.vfree(start).unwrap());
            all_back(design, paper);
        });
    }
}

/// The thread's open question: page tables grow and are never given back. `depot` gives them back.
#[test]
fn page_tables_stay_but_for_ours() {
    for_each_design(4000, 3000, 100_000, |design, _| {
        for _ in 0..2 {
            let areas: Vec<_> = (0..100).map(|_| design.vmalloc(15, 1).unwrap()).collect();
            let peak = design.counts().tables;
            areas.into_iter().for_each(|start| design.vfree(start).unwrap());
            design.purge();
            let left = design.counts().tables;
            // 1600 pages from page 3 of a table on.
            assert_eq!(peak, 101, "{}", design.name());
            let expected = if design.name() == "depot" { 0..=1 } else { peak..=peak };
            assert!(expected.contains(&left), "{}: {left} of {peak} tables left", design.name());
        }
    });
}

/// Two areas, one at either end: their hull covers what lies between.
#[test]
fn the_kernels_flushes_name_the_hull_and_ours_what_needs_it() {
    for_each_design(1000, 900, 100_000, |design, _| {
        let [low, between, high] = [3, 600, 3].map(|pages| design.vmalloc(pages, 1).unwrap());
        design.vfree(low).unwrap();
        design.vfree(high).unwrap();
        design.purge();
        let counts = design.counts();
        assert_eq!(counts.needed_pages, 6, "{}", design.name());
        let expected = if design.name() == "depot" { 6 } else { 609 };
        assert_eq!(counts.flushed_pages, expected, "{}", design.name());
        design.vfree(between).unwrap();
    });
}

/// A worker that does not run leaves everything lazy; the shrinker gives pools back.
#[test]
fn a_worker_purges_what_was_queued_and_the_shrinker_empties_pools() {
    let paper = Paper::new(10_000, 0);
    let setup = VmapSetup {
        lazy_pages_max: Some(60),
        purged_by: PurgedBy::Worker,
        pool_areas_max: Some(8),
        ..VmapSetup::new(2)
    };
    // SAFETY: one paper for both, and for this design alone.
    let mut nodes = unsafe { Nodes::new(setup, &paper, &paper) };
    run_on(1);
    let areas: Vec<_> = (0..30).map(|_| nodes.alloc(5, 1).unwrap()).collect();
    areas[..9].iter().for_each(|&start| nodes.free(start).unwrap());
    assert!(!nodes.work(), "54 pages are not enough");
    areas[9..].iter().for_each(|&start| nodes.free(start).unwrap());
    assert_eq!((nodes.counts().purges, nodes.counts().lazy_pages), (0, 180));
    assert!(nodes.work() && !nodes.work());
    // 8 of the 30 areas fit into the pool.
    let counts = nodes.counts();
    assert_eq!((counts.purges, counts.lazy_pages, counts.pooled_pages), (1, 0, 48));
    assert_eq!((nodes.shrink(), nodes.shrink()), (8, 0));
    assert_eq!((nodes.counts().pooled_pages, nodes.counts().free_pages), (0, 10_000));
    nodes.validate().unwrap();
}

/// Checks that frames are freed with their area, as in the kernel, where a mapper allows it;
/// addresses stay lazy. What cannot be unmapped keeps its frames until a purge.
#[test]
fn frames_are_freed_with_their_area_where_the_mapper_flushes() {
    let paper = Paper::new(1000, 100).flushing();
    let setup = VmapSetup { frames_freed: FramesFreed::AtFree, ..VmapSetup::new(2) };
    // SAFETY: one paper for both, and for this design alone; it flushes as it unmaps.
    let mut nodes = unsafe { Nodes::new(setup, &paper, &paper) };
    let [one, other] = [10, 20].map(|pages| nodes.vmalloc(pages, 1).unwrap());
    nodes.vfree(one).unwrap();
    assert_eq!((paper.frames_out(), paper.mapped_pages(), nodes.counts().lazy_pages), (20, 20, 11));
    paper.fail_unmap_in.store(1, Relaxed);
    nodes.vfree(other).unwrap();
    assert_eq!((paper.frames_out(), nodes.counts().lazy_pages), (20, 32));
    nodes.purge();
    assert_eq!((paper.frames_out(), paper.mapped_pages(), nodes.counts().lazy_pages), (0, 0, 0));
    nodes.validate().unwrap();
}

/// Each purge finds many times as much lazy as is due, and leaves lists to the CPUs of nodes, which
/// are at work meanwhile.
#[test]
fn helpers_settle_what_a_late_purge_leaves_them() {
    let paper = Paper::new(100_000, 0);
    let setup =
        VmapSetup { lazy_pages_max: Some(4), purged_by: PurgedBy::Worker, ..VmapSetup::new(CPUS) };
    // SAFETY: one paper for both, and for this design alone.
    let mut nodes = unsafe { Nodes::new(setup, &paper, &paper) };
    // Alone: the purger takes back what it left to CPUs that free nothing.
    for cpu in 0..CPUS {
        run_on(cpu);
        let areas: Vec<_> = (0..10).map(|_| nodes.alloc(3, 1).unwrap()).collect();
        areas.into_iter().for_each(|start| nodes.free(start).unwrap());
    }
    assert!(nodes.work());
    let counts = nodes.counts();
    assert_eq!((counts.lazy_pages, counts.pooled_pages), (0, u64::from(CPUS) * 40));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owners = [0, 1, 2].map(|cpu| {
            let nodes = &nodes;
            scope.spawn(move || {
                run_on(cpu);
                for turn in 0..2000 {
                    let areas = [0, 1, 2, 3].map(|i| nodes.alloc(1 + (turn + i) % 5, 1).unwrap());
                    areas.into_iter().for_each(|start| nodes.free(start).unwrap());
                }
            })
        });
        // Relaxed: nothing is published but the flag.
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                nodes.work();
            }
        });
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        is_over.store(true, Relaxed);
    });
    nodes.purge();
    assert_eq!((nodes.counts().lazy_pages, nodes.counts().free_pages), (0, 100_000));
    nodes.validate().unwrap();
}

/// A freed area comes back through its node's pool, and only there.
#[test]
fn nodes_pool_what_a_purge_left_them() {
    let paper = Paper::new(10_000, 0);
    let setup = VmapSetup { lazy_pages_max: Some(60), ..VmapSetup::new(2) };
    // SAFETY: one paper for both, and for this design alone.
    let nodes = unsafe { Nodes::new(setup, &paper, &paper) };
    run_on(1);
    let areas: Vec<_> = (0..10).map(|_| nodes.alloc(5, 1).unwrap()).collect();
    areas.iter().for_each(|&start| nodes.free(start).unwrap());
    // The tenth free made 60 pages lazy, and purged them into the pool of 6 pages.
    let counts = nodes.counts();
    assert_eq!((counts.purges, counts.lazy_pages, counts.pooled_pages), (1, 0, 60));
    run_on(0);
    nodes.alloc(5, 1).unwrap();
    assert_eq!(nodes.counts().pool_hits, 0);
    run_on(1);
    assert!(areas.contains(&nodes.alloc(5, 1).unwrap()));
    assert_eq!(nodes.counts().pool_hits, 1);
    // The ninth of these frees purges: a quarter of the nine areas of 6 pages leaves its pool, and
    // the nine freed areas of 7 pages enter theirs.
    let more: Vec<_> = (0..10).map(|_| nodes.alloc(6, 1).unwrap()).collect();
    more.iter().for_each(|&start| nodes.free(start).unwrap());
    assert_eq!(nodes.counts().pooled_pages, 7 * 6 + 9 * 7);
}
