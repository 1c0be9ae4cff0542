//! The code that runs on a machine. In all contexts it does the same actions on the same blocks.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::sync::Arc;

use pagedepot::cpus::Cpus;
use pagedepot::seam::{PendingRequest, Relief, register_relief};
use pagedepot::{
    Allocator, CacheLimits, Class, Classes, Config, CpuId, Evacuation, Flags, FrameRange, Mobility,
    Mode, Order, Pfn, Residency, Scope, Watermarks, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{Compaction, Compactor, Contiguity, Reporting};

use crate::blocks::Blocks;
use crate::common::rng::Rng;
use crate::common::{open_zone, order, range};
use crate::source::Source;

/// Actions of the interrupted code per run.
const ACTIONS: u64 = 1500;
/// Most blocks held by all contexts together.
const HELD_MAX: usize = 400;
const FIRST: FrameRange = range(0, 3000);
/// Begins at an odd pageblock.
const SECOND: FrameRange = range(4608, 6000);
const PAGES: u64 = 9000;

struct Stress<'m, C> {
    depot: Allocator<'m, C>,
    source: Arc<Source>,
    rng: RefCell<Rng>,
    blocks: &'m Blocks,
}

/// Makes one run. Returns the numbers of handlers that ran, of blocks that were moved, of
/// pageblocks that were reported, and of requests for which movable blocks gave way.
pub fn run<C: Cpus>(seed: u64, make: impl Fn(Arc<Source>) -> C) -> [u64; 4] {
    let watermarks = Some(Watermarks { min: 20, low: 40, high: 80 });
    let zones = [
        ZoneConfig { level: 1, ..open_zone("first", &[FIRST]) },
        ZoneConfig { watermarks, ..open_zone("second", &[SECOND]) },
    ];
    let checked = seed.is_multiple_of(2);
    let classes = Classes::ALIKE.apart(Mobility::Movable, Class::PAGE_CACHE);
    let source = Arc::new(Source::new(seed));
    let config = Config { checked, classes, ..Config::new(source.cpus, &zones) };
    // Zeroed, as machines that follow gates need it.
    let mut metadata =
        vec![MaybeUninit::zeroed(); Allocator::<C>::metadata_bytes(&config).unwrap()];
    let blocks = Blocks::new(source.clone(), SECOND.end() as usize);
    let thinned = Cell::new(0);
    let compactor =
        CountingCompactor { compactor: Compactor::new(&blocks), blocks: &blocks, thinned };
    let mut stress = Stress {
        depot: Allocator::new(&config, &mut metadata, make(source.clone())).unwrap(),
        source: source.clone(),
        rng: RefCell::new(Rng::new(!seed)),
        blocks: &blocks,
    };
    assert!(register_relief(&stress.depot, &compactor));
    Reporting::of(&stress.depot).register(&blocks).unwrap();
    for _ in 0..ACTIONS / 100 {
        // SAFETY: `stress` lives longer, and is not changed before the handler is forgotten.
        unsafe { source.set_handler(interrupt::<C>, &raw const stress) };
        (0..100).for_each(|_| stress.act());
        source.forget_handler();
        assert_eq!(stress.depot.validate().unwrap().held_pages(), blocks.held_pages());
    }
    stress.finish();
    [source.interrupts(), blocks.moves.get(), blocks.reports.get(), compactor.thinned.get()]
}

/// A compactor, and the number of requests for which it moved blocks before they mixed pageblocks.
struct CountingCompactor<'m> {
    compactor: Compactor<'m>,
    blocks: &'m Blocks,
    thinned: Cell<u64>,
}

// SAFETY: one thread makes it and uses it.
unsafe impl Sync for CountingCompactor<'_> {}

impl<C: Cpus> Relief<C> for CountingCompactor<'_> {
    fn before_mixing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn> {
        let before = self.blocks.moves.get();
        let found = self.compactor.before_mixing(request);
        let is_thinned = found.is_some() && self.blocks.moves.get() > before;
        self.thinned.update(|thinned| thinned + u64::from(is_thinned));
        found
    }

    fn before_failing(&self, request: &PendingRequest<'_, '_, C>) -> Option<Pfn> {
        self.compactor.before_failing(request)
    }
}

/// # Safety
/// `stress` is a `Stress<'_, C>` that lives.
unsafe fn interrupt<C: Cpus>(stress: *const ()) {
    // SAFETY: by this function's contract.
    unsafe { &*stress.cast::<Stress<'_, C>>() }.act();
}

impl<C: Cpus> Stress<'_, C> {
    fn below(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    /// Does one random action, whatever code has been interrupted.
    fn act(&self) {
        let has_room = self.blocks.len() < HELD_MAX;
        match self.below(100) {
            0..=43 if has_room => self.alloc(),
            44..=48 if has_room => self.alloc_many(),
            49..=52 => self.free_many(),
            53..=57 => self.drain(),
            58 => self.switch(),
            59..=60 if has_room => self.alloc_range(),
            61..=62 => self.split(),
            63 => self.compact(),
            64 => self.remove_and_add(),
            65 => self.report(),
            _ => self.free(),
        }
    }

    fn flags(&self) -> Flags {
        let class = [Class::UNKNOWN, Class::PAGE_CACHE][self.below(2) as usize];
        let flags = Flags::new(Mobility::ALL[self.below(3) as usize]).class(class);
        // Handlers may not wait. Some do not pass the flag, and their fences are refused.
        match self.source.depth() > 0 && self.below(4) > 0 {
            true => flags.atomic(),
            false if self.below(6) == 0 => flags.compact(),
            false => flags,
        }
    }

    /// A handler that waits for what it has interrupted waits long, and in vain.
    fn may_wait(&self) -> bool {
        self.source.depth() == 0 || self.below(20) == 0
    }

    fn order(&self) -> Order {
        order([0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 4, 7, 8, 9, 10][self.below(15) as usize])
    }

    fn alloc(&self) {
        let (order, flags) = (self.order(), self.flags());
        if let Ok(pfn) = self.depot.alloc(order, flags) {
            self.blocks.hold(pfn, order);
        }
    }

    fn alloc_many(&self) {
        let order = order(self.below(4) as u32);
        let mut out = [Pfn::new(0); 90];
        let wanted = self.below(90) as usize;
        let got = self.depot.alloc_many(order, self.flags(), &mut out[..wanted]).unwrap_or(0);
        out[..got].iter().for_each(|&pfn| self.blocks.hold(pfn, order));
    }

    fn alloc_range(&self) {
        let frames = self.below(40) as u32 + 1;
        let start = match self.below(2) {
            0 => self.depot.alloc_contiguous(frames, 1, self.flags()).ok(),
            _ => {
                let start = Pfn::new(self.below(SECOND.end() - 40) as u32);
                self.depot.alloc_at(start, frames, self.flags()).is_ok().then_some(start)
            }
        };
        if let Some(start) = start {
            (0..frames).for_each(|i| self.blocks.hold(start.add(i), Order::BASE));
        }
    }

    fn free(&self) {
        if let Some((pfn, order)) = self.blocks.pick(|length| self.below(length)) {
            self.depot.free(pfn, order).unwrap();
        }
    }

    fn free_many(&self) {
        let batch: Vec<_> = (0..self.below(100))
            .map_while(|_| self.blocks.pick(|length| self.below(length)))
            .collect();
        self.depot.free_many(&batch).unwrap();
    }

    fn drain(&self) {
        let mode = [Mode::Full, Mode::Quiet, Mode::Handover][self.below(3) as usize];
        let scope = match self.below(3) {
            0 => Scope::ALL,
            1 => Scope::cpu(CpuId::new(self.below(u64::from(self.source.cpus)) as u32)),
            _ => Scope::zone(ZoneId::new(self.below(2) as u32)),
        };
        self.depot.drain(scope, mode);
    }

    fn switch(&self) {
        let cpu = CpuId::new(self.below(u64::from(self.source.cpus)) as u32);
        match self.below(7) {
            0 if self.may_wait() => _ = self.depot.cpu_caches().retire(cpu),
            1 if self.may_wait() => _ = self.depot.cpu_caches().disable(),
            4 => {
                let policies =
                    [Evacuation::Off, Evacuation::Goal { percent: 50 }, Evacuation::Adaptive];
                let policy = policies[self.below(3) as usize];
                self.depot.settings(ZoneId::new(1)).unwrap().set_evacuation(policy);
            }
            2 => _ = self.depot.cpu_caches().decay(),
            3 => {
                let high_min = self.below(300);
                let limits =
                    CacheLimits { batch: 31, high_min, high_max: high_min + self.below(2000) };
                if let Some(zone) = self.depot.settings(ZoneId::new(self.below(2) as u32)) {
                    zone.set_cache_limits(limits);
                }
            }
            _ => self.depot.cpu_caches().enable(),
        }
    }

    fn split(&self) {
        let Some((pfn, from)) = self.blocks.pick(|length| self.below(length)) else { return };
        let to = order(from.get() - self.below(u64::from(from.get().min(3)) + 1) as u32);
        self.depot.split(pfn, from, to).unwrap();
        let parts = (0..from.frames()).step_by(to.frames() as usize);
        parts.for_each(|at| self.blocks.hold(pfn.add(at), to));
    }

    fn compact(&self) {
        let rules = match self.below(3) {
            0 => Compaction::all(),
            1 => Compaction::order(order(8 + self.below(3) as u32)),
            _ => Compaction::range(self.below(2000) as u32 + 1, 1 << self.below(11)),
        };
        let rules = rules.looks_max(4).moves_max(self.below(200));
        let mode = if self.may_wait() { Mode::Full } else { Mode::Quiet };
        // More may be asked for than the zone has.
        _ = self.depot.compact(ZoneId::new(self.below(2) as u32), rules.drain(mode), self.blocks);
    }

    fn remove_and_add(&self) {
        if !self.may_wait() {
            return;
        }
        let first = SECOND.start.get() / 512;
        let whole = (SECOND.end() / 512) as u32 - first;
        let range = range((first + self.below(u64::from(whole)) as u32) * 512, 512);
        let zone = ZoneId::new(1);
        if self.depot.remove_memory(zone, range).is_err() {
            return;
        }
        if self.below(2) == 0 {
            return self.depot.add_memory(zone, range, &mut []).unwrap();
        }
        self.depot.add_memory_held(zone, range, &mut []).unwrap();
        if self.below(2) == 0 {
            return Residency::of(&self.depot).free_absent(range.start, 512).unwrap();
        }
        for at in (0..512).step_by(64) {
            self.depot.free_contiguous(range.start.add(at), 64).unwrap();
        }
    }

    fn report(&self) {
        let zone = ZoneId::new(self.below(2) as u32);
        Reporting::of(&self.depot).pass(zone, self.below(3)).unwrap();
    }

    fn finish(mut self) {
        while self.blocks.len() > 0 {
            self.free();
        }
        self.depot.cpu_caches().enable();
        let drained = self.depot.drain(Scope::ALL, Mode::Full);
        assert_eq!((drained.busy_cpus, drained.unreachable_pages), (0, 0));
        assert_eq!(self.depot.validate().unwrap().free_pages, PAGES);
    }
}
