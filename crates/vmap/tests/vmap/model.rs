//! Everything at once against a list of areas: no overlap, guards, alignment, contents kept by
//! growth, kinds told apart, everything back in the end.

use pagedepot_vmap::{
    AreaState, Kind, Options, PurgeDepth, StaleData, VfreeError, VirtAddr, VmapConfig, VmapError,
};
use proptest::prelude::*;

use crate::paper::{ByThread, PAGE, Paged, check_all_back, own_frames, paged};

const PAGES: u32 = 3000;
const FRAMES: u32 = 1500;

/// A live area, with what should be in its pages.
struct Live {
    start: VirtAddr,
    kind: Kind,
    guard: u32,
    stamps: Vec<u64>,
}

impl Live {
    fn pages(&self) -> u32 {
        self.stamps.len() as u32
    }

    fn end(&self) -> VirtAddr {
        self.start.add((self.stamps.len() + self.guard as usize) * PAGE)
    }

    fn page(&self, at: usize) -> VirtAddr {
        self.start.add(at * PAGE)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { pages: u32, align_shift: u32, guard: u8 },
    Vmalloc { pages: u32, align_shift: u32, guard: u8 },
    Vmap { pages: u32 },
    Ram { pages: u32 },
    Resize { which: usize, pages: u32 },
    Write { which: usize, page: usize, stamp: u64 },
    Free(usize),
    FreeWrongly(usize),
    Purge(u8),
    Move(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let pages = || prop_oneof![4 => 1..8u32, 3 => 1..100u32, 1 => 1..400u32];
    let align = || prop_oneof![4 => Just(0u32), 1 => 0..8u32];
    let guard = || prop_oneof![4 => Just(1u8), 1 => 0..3u8];
    prop_oneof![
        3 => (pages(), align(), guard())
            .prop_map(|(pages, align_shift, guard)| Step::Alloc { pages, align_shift, guard }),
        6 => (pages(), align(), guard())
            .prop_map(|(pages, align_shift, guard)| Step::Vmalloc { pages, align_shift, guard }),
        3 => pages().prop_map(|pages| Step::Vmap { pages }),
        3 => (1..40u32).prop_map(|pages| Step::Ram { pages }),
        4 => (any::<usize>(), pages()).prop_map(|(which, pages)| Step::Resize { which, pages }),
        8 => (any::<usize>(), any::<usize>(), any::<u64>())
            .prop_map(|(which, page, stamp)| Step::Write { which, page, stamp }),
        12 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeWrongly),
        1 => (0..3u8).prop_map(Step::Purge),
        2 => (0..3u32).prop_map(Step::Move),
    ]
}

struct World {
    vmap: Paged,
    live: Vec<Live>,
    /// The caller's frames used so far: each is mapped once.
    frames: u32,
}

impl World {
    fn enter(&mut self, live: Live) {
        let span = self.vmap.span();
        assert!(live.start >= span.start && live.end() <= span.end(self.vmap.page_size()));
        for other in &self.live {
            assert!(live.end() <= other.start || other.end() <= live.start, "two areas overlap");
        }
        for guard in 0..live.guard as usize {
            assert!(
                !self.vmap.mapper().is_mapped(live.page(live.stamps.len() + guard)),
                "a guard is mapped"
            );
        }
        self.live.push(live);
        self.check(self.live.len() - 1);
    }

    /// Compares a live area with what the vmap says of it.
    fn check(&self, which: usize) {
        let live = &self.live[which];
        for (page, &stamp) in live.stamps.iter().enumerate() {
            let at = live.page(page);
            if live.kind == Kind::Address {
                assert!(!self.vmap.mapper().is_mapped(at));
                continue;
            }
            assert_eq!(self.vmap.mapper().read(at), stamp);
            assert_eq!(self.vmap.frame_at(at), self.vmap.mapper().frame_at(at));
            let mut bytes = [0; 8];
            assert_eq!(self.vmap.read_at(at, &mut bytes), 8);
            assert_eq!(u64::from_le_bytes(bytes), stamp);
        }
        let last = VirtAddr::new(live.end().get() - 1);
        let info = self.vmap.find(last).unwrap();
        assert_eq!(info.state, AreaState::Busy);
        assert_eq!(
            (info.span.start, info.kind, info.guard_pages),
            (live.start, live.kind, live.guard)
        );
        assert_eq!(info.span.pages, live.pages() + live.guard);
    }

    fn take_frames(&mut self, pages: u32) -> Vec<pagedepot::Pfn> {
        let frames = own_frames(self.frames, pages);
        self.frames += pages;
        for &frame in &frames {
            self.vmap.mapper().set_contents(frame, u64::from(frame.get()));
        }
        frames
    }

    fn enter_mapped(&mut self, start: VirtAddr, kind: Kind, guard: u32, frames: &[pagedepot::Pfn]) {
        let stamps = frames.iter().map(|frame| u64::from(frame.get())).collect();
        self.enter(Live { start, kind, guard, stamps });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc { pages, align_shift, guard } => {
                let options = Options::DEFAULT.align(PAGE << align_shift).guard_pages(guard);
                match self.vmap.alloc(pages, options) {
                    Ok(start) => {
                        assert_eq!(start.get() % (PAGE << align_shift), 0);
                        let stamps = vec![0; pages as usize];
                        self.enter(Live {
                            start,
                            kind: Kind::Address,
                            guard: guard.into(),
                            stamps,
                        });
                    }
                    Err(error) => assert_eq!(error, VmapError::NoSpace),
                }
            }
            Step::Vmalloc { pages, align_shift, guard } => {
                let options = Options::DEFAULT.align(PAGE << align_shift).guard_pages(guard);
                match self.vmap.vmalloc(pages, options) {
                    Ok(start) => {
                        assert_eq!(start.get() % (PAGE << align_shift), 0);
                        let stamps = vec![0; pages as usize];
                        self.enter(Live {
                            start,
                            kind: Kind::Vmalloc,
                            guard: guard.into(),
                            stamps,
                        });
                    }
                    Err(error) => self.may_be_short(error),
                }
            }
            Step::Vmap { pages } => {
                let frames = self.take_frames(pages);
                match self.vmap.vmap(&frames, Options::DEFAULT) {
                    Ok(start) => self.enter_mapped(start, Kind::Vmap, 1, &frames),
                    Err(error) => assert_eq!(error, VmapError::NoSpace),
                }
            }
            Step::Ram { pages } => {
                let frames = self.take_frames(pages);
                match self.vmap.vm_map_ram(&frames, Options::DEFAULT) {
                    Ok(start) => self.enter_mapped(start, Kind::Ram, 1, &frames),
                    Err(error) => assert_eq!(error, VmapError::NoSpace),
                }
            }
            Step::Resize { which, pages } => self.resize(which, pages),
            Step::Write { which, page, stamp } => {
                if let Some(which) =
                    self.pick(which).filter(|&at| self.live[at].kind != Kind::Address)
                {
                    let live = &mut self.live[which];
                    let page = page % live.stamps.len();
                    live.stamps[page] = stamp;
                    self.vmap.mapper().write(live.page(page), stamp);
                    self.check(which);
                }
            }
            Step::Free(which) => {
                if let Some(which) = self.pick(which) {
                    self.check(which);
                    let live = self.live.swap_remove(which);
                    self.free(&live).unwrap();
                    assert_eq!(self.free(&live), Err(VfreeError::NotAllocated));
                }
            }
            Step::FreeWrongly(which) => {
                if let Some(which) = self.pick(which) {
                    let live = &self.live[which];
                    let other = if live.kind == Kind::Vmap { Kind::Vmalloc } else { Kind::Vmap };
                    let wrong = Live { kind: other, stamps: live.stamps.clone(), ..*live };
                    assert!(self.free(&wrong).is_err());
                    let inside =
                        Live { start: live.start.add(8), stamps: live.stamps.clone(), ..*live };
                    assert!(self.free(&inside).is_err());
                    self.check(which);
                }
            }
            Step::Purge(depth) => {
                let depths = [PurgeDepth::Lazy, PurgeDepth::Decay, PurgeDepth::Everything];
                let purged = self.vmap.purge(depths[usize::from(depth)]);
                assert_eq!(purged.stuck_areas, 0);
            }
            Step::Move(cpu) => ByThread::run_on(cpu),
        }
    }

    fn resize(&mut self, which: usize, pages: u32) {
        let Some(which) = self.pick(which).filter(|&at| self.live[at].kind == Kind::Vmalloc) else {
            return;
        };
        let mut live = self.live.swap_remove(which);
        match self.vmap.vrealloc(live.start, pages, Options::DEFAULT) {
            Ok(start) => {
                live.start = start;
                live.stamps.resize(pages as usize, 0);
            }
            Err(error) => self.may_be_short(error),
        }
        self.enter(live);
    }

    fn pick(&self, which: usize) -> Option<usize> {
        which.checked_rem(self.live.len())
    }

    fn may_be_short(&self, error: VmapError) {
        let frames = VmapError::Frames(pagedepot::AllocError::Exhausted);
        assert!(error == VmapError::NoSpace || error == frames, "{error:?}");
    }

    fn free(&self, live: &Live) -> Result<(), VfreeError> {
        match live.kind {
            Kind::Address => self.vmap.free(live.start),
            Kind::Vmap => self.vmap.vunmap(live.start),
            Kind::Vmalloc => self.vmap.vfree(live.start),
            Kind::Ram => self.vmap.vm_unmap_ram(live.start, live.pages()),
            Kind::Lost => unreachable!("this mapper loses nothing"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn areas_behave_like_a_list(
        steps in prop::collection::vec(step(), 1..200),
        poisons in any::<bool>(),
    ) {
        // Poison would show up where zeroes are promised to grown areas, so both must be zeroed.
        let stale = StaleData::Zero;
        let lazy_pages_max = Some(if poisons { 300 } else { 2000 });
        let config = VmapConfig {
            stale,
            lazy_pages_max,
            warm_pages_max: Some(200),
            metadata_is_zero: poisons,
            ..VmapConfig::new(2, 1000)
        };
        ByThread::run_on(0);
        let mut world = World { vmap: paged(PAGES, FRAMES, &config), live: Vec::new(), frames: 0 };
        for (i, step) in steps.into_iter().enumerate() {
            world.step(step);
            if i % 10 == 0 {
                world.vmap.validate().unwrap();
            }
        }
        (0..world.live.len()).for_each(|which| world.check(which));
        let census = world.vmap.validate().unwrap();
        let busy: u64 = world.live.iter().map(|live| u64::from(live.pages() + live.guard)).sum();
        prop_assert_eq!(census.busy_pages, busy);
        for live in std::mem::take(&mut world.live) {
            world.free(&live).unwrap();
        }
        check_all_back(&mut world.vmap);
    }
}
