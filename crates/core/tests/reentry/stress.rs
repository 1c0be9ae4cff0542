//! The code that runs on a machine. In all contexts it does the same actions on the same blocks.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::sync::Arc;

use pagedepot::cpus::Cpus;
use pagedepot::{
    Allocator, CacheLimits, Config, CpuId, Flags, FrameRange, Mobility, Mode, Order, Pfn, Scope,
    Watermarks, ZoneConfig, ZoneId,
};

use crate::common::rng::Rng;
use crate::common::{open_zone, order, range};
use crate::source::{CPUS, Source};

/// Actions of the interrupted code per run.
const ACTIONS: u64 = 1500;
/// Most blocks held by all contexts together.
const HELD_MAX: usize = 400;
const FIRST: FrameRange = range(0, 3000);
const SECOND: FrameRange = range(4096, 6000);
const PAGES: u64 = 9000;

struct Stress<'m, C> {
    depot: Allocator<'m, C>,
    source: Arc<Source>,
    rng: RefCell<Rng>,
    held: RefCell<Vec<(Pfn, Order)>>,
    /// Whether each frame is held.
    is_held: Vec<Cell<bool>>,
}

/// Makes one run. Returns the number of handlers that ran.
pub fn run<C: Cpus>(seed: u64, make: impl Fn(Arc<Source>) -> C) -> u64 {
    let watermarks = Some(Watermarks { min: 20, low: 40, high: 80 });
    let zones = [
        ZoneConfig { level: 1, ..open_zone("first", &[FIRST]) },
        ZoneConfig { watermarks, ..open_zone("second", &[SECOND]) },
    ];
    let checked = seed.is_multiple_of(2);
    let config =
        Config { checked, track_owner: seed.is_multiple_of(3), ..Config::new(CPUS, &zones) };
    // Zeroed, as machines that follow gates need it.
    let mut metadata =
        vec![MaybeUninit::zeroed(); Allocator::<C>::metadata_bytes(&config).unwrap()];
    let source = Arc::new(Source::new(seed));
    let mut stress = Stress {
        depot: Allocator::new(&config, &mut metadata, make(source.clone())).unwrap(),
        source: source.clone(),
        rng: RefCell::new(Rng::new(!seed)),
        held: RefCell::default(),
        is_held: vec![Cell::new(false); SECOND.end() as usize],
    };
    for _ in 0..ACTIONS / 100 {
        // SAFETY: `stress` lives longer, and is not changed before the handler is forgotten.
        unsafe { source.set_handler(interrupt::<C>, &raw const stress) };
        (0..100).for_each(|_| stress.act());
        source.forget_handler();
        let held: u64 =
            stress.held.borrow().iter().map(|(_, order)| u64::from(order.frames())).sum();
        assert_eq!(stress.depot.validate().unwrap().held_pages(), held);
    }
    stress.finish();
    source.interrupts()
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
        let has_room = self.held.borrow().len() < HELD_MAX;
        match self.below(100) {
            0..=44 if has_room => self.alloc(),
            45..=49 if has_room => self.alloc_many(),
            50..=54 => self.free_many(),
            55..=59 => self.drain(),
            60 => self.switch(),
            61..=62 if has_room => self.alloc_range(),
            _ => self.free(),
        }
    }

    fn flags(&self) -> Flags {
        let flags = Flags::new(Mobility::ALL[self.below(3) as usize]);
        // Handlers may not wait. Some do not pass the flag, and their fences are refused.
        match self.source.depth() > 0 && self.below(4) > 0 {
            true => flags.atomic(),
            false => flags,
        }
    }

    fn order(&self) -> Order {
        order([0, 0, 0, 0, 0, 1, 2, 3, 3, 4, 7, 9][self.below(12) as usize])
    }

    fn hold(&self, pfn: Pfn, order: Order) {
        for frame in pfn.get()..pfn.get() + order.frames() {
            let twice = self.is_held[frame as usize].replace(true);
            assert!(!twice, "{pfn} was handed out twice, at depth {}", self.source.depth());
        }
        self.held.borrow_mut().push((pfn, order));
    }

    /// Removes a block from those held, so that handlers no longer see it.
    fn pick(&self) -> Option<(Pfn, Order)> {
        let mut held = self.held.borrow_mut();
        let length = held.len();
        let (pfn, order) =
            (length > 0).then(|| held.swap_remove(self.below(length as u64) as usize))?;
        (pfn.get()..pfn.get() + order.frames())
            .for_each(|frame| self.is_held[frame as usize].set(false));
        Some((pfn, order))
    }

    fn alloc(&self) {
        let (order, flags) = (self.order(), self.flags());
        if let Ok(pfn) = self.depot.alloc(order, flags) {
            self.hold(pfn, order);
        }
    }

    fn alloc_many(&self) {
        let order = order(self.below(4) as u32);
        let mut out = [Pfn::new(0); 90];
        let wanted = self.below(90) as usize;
        let got = self.depot.alloc_many(order, self.flags(), &mut out[..wanted]).unwrap_or(0);
        out[..got].iter().for_each(|&pfn| self.hold(pfn, order));
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
            (0..frames).for_each(|i| self.hold(start.add(i), Order::BASE));
        }
    }

    fn free(&self) {
        if let Some((pfn, order)) = self.pick() {
            self.depot.free(pfn, order).unwrap();
        }
    }

    fn free_many(&self) {
        let batch: Vec<_> = (0..self.below(100)).map_while(|_| self.pick()).collect();
        self.depot.free_many(&batch).unwrap();
    }

    fn drain(&self) {
        let mode = [Mode::Full, Mode::Quiet, Mode::Handover][self.below(3) as usize];
        let scope = match self.below(3) {
            0 => Scope::ALL,
            1 => Scope::cpu(CpuId::new(self.below(u64::from(CPUS)) as u32)),
            _ => Scope::zone(ZoneId::new(self.below(2) as u32)),
        };
        self.depot.drain(scope, mode);
    }

    fn switch(&self) {
        let cpu = CpuId::new(self.below(u64::from(CPUS)) as u32);
        // A handler that disables caches while it has interrupted their drain waits long, and in
        // vain.
        let may_wait = self.source.depth() == 0 || self.below(20) == 0;
        match self.below(6) {
            0 if may_wait => _ = self.depot.cpu_caches().retire(cpu),
            1 if may_wait => _ = self.depot.cpu_caches().disable(),
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

    fn finish(mut self) {
        while !self.held.borrow().is_empty() {
            self.free();
        }
        self.depot.cpu_caches().enable();
        let drained = self.depot.drain(Scope::ALL, Mode::Full);
        assert_eq!((drained.busy_cpus, drained.unreachable_pages), (0, 0));
        assert_eq!(self.depot.validate().unwrap().free_pages, PAGES);
    }
}
