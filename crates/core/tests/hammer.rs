//! Threads that do everything at once, for `PAGEDEPOT_SOAK_SECONDS` seconds each (otherwise one).
//! Every frame has a mark with its holder: two holders of one frame meet there.

mod common;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::backing::Sets;
use common::rng::{Rng, seed};
use common::threads::{Claimed, Kernel, run_on};
use common::{order, range, soak};
use pagedepot::cpus::{CpuLock, Cpus, Locked, Pinned};
use pagedepot::{
    Allocator, Backing, CacheLimits, Config, CpuId, Flags, FrameRange, Mobility, Mode, NodeId,
    Order, Pfn, Reporting, ReportingDevice, Scope, Watermarks, ZoneConfig, ZoneId,
};

const SECTION: u32 = 1 << 18;
/// Frames below this one have marks: two sections to begin with, and one that is added.
const FRAMES: u32 = 3 * SECTION;
const CPUS: u32 = 3;
/// Threads that allocate and free. They are more than the CPUs, emulated and real, so that some
/// threads are preempted anywhere.
const WORKERS: u64 = 5;
/// Most stretches of frames that a worker holds.
const HELD_MAX: usize = 300;
/// The memory that is added during the run.
const ADDED: FrameRange = range(2 * SECTION + 100, 3000);

/// A frame's holder (0: none), recorded twice.
struct Mark {
    /// Changed by relaxed operations, which order nothing: two holders of one frame meet here.
    owner: AtomicU32,
    /// What a holder writes into its frame. Without an ordering between one holder and the next
    /// this is a data race, which ThreadSanitizer and Miri see.
    contents: UnsafeCell<u32>,
}

// SAFETY: `contents` is accessed by the frame's holder alone, see `change`.
unsafe impl Sync for Mark {}

struct Marks(Vec<Mark>);

impl Marks {
    fn new() -> Self {
        let mark = |_| Mark { owner: AtomicU32::new(0), contents: UnsafeCell::new(0) };
        Marks((0..FRAMES).map(mark).collect())
    }

    fn take(&self, start: Pfn, frames: u32, owner: u32) {
        self.change(start, frames, 0, owner);
    }

    fn give_back(&self, start: Pfn, frames: u32, owner: u32) {
        self.change(start, frames, owner, 0);
    }

    fn change(&self, start: Pfn, frames: u32, from: u32, to: u32) {
        for mark in &self.0[start.index()..][..frames as usize] {
            // Relaxed: the allocator must order one holder after another.
            let changed =
                mark.owner.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
            assert!(changed.is_ok(), "{start} + {frames}: {from} -> {to} found {changed:?}");
            // SAFETY: the caller holds the frame, and the exchange shows that no other thread does.
            let written = unsafe { mark.contents.get().replace(to) };
            assert_eq!(
                written, from,
                "{start} + {frames}: its holder did not see what the last one wrote"
            );
        }
    }

    /// Whether no frame is held; called when all other threads have stopped.
    fn are_free(&self) -> bool {
        self.0.iter().all(|mark| {
            // SAFETY: no thread holds a frame, or is about to.
            let contents = unsafe { *mark.contents.get() };
            (mark.owner.load(Ordering::Relaxed), contents) == (0, 0)
        })
    }
}

#[derive(Clone, Copy)]
enum Shape {
    Block(Order),
    Range(u32),
}

impl Shape {
    fn frames(self) -> u32 {
        match self {
            Shape::Block(order) => order.frames(),
            Shape::Range(frames) => frames,
        }
    }
}

struct Hammer<'h, 'm, C> {
    depot: &'h Allocator<'m, C>,
    marks: &'h Marks,
    host: &'h Host<'h>,
    stop: &'h AtomicBool,
    failed: &'h AtomicU64,
}

impl<C> Clone for Hammer<'_, '_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Hammer<'_, '_, C> {}

/// A worker, and what it holds.
struct Worker<'h, 'm, C> {
    hammer: Hammer<'h, 'm, C>,
    rng: Rng,
    owner: u32,
    held: Vec<(Pfn, Shape)>,
}

impl<C: Cpus> Worker<'_, '_, C> {
    fn run(mut self) {
        while !self.hammer.stop.load(Ordering::Relaxed) {
            self.step();
        }
        while !self.held.is_empty() {
            self.free();
        }
    }

    fn step(&mut self) {
        if self.rng.one_in(50) {
            let cpu = self.rng.below(u64::from(CPUS) + 2) as u32;
            run_on((cpu <= CPUS).then_some(cpu));
        }
        let room = HELD_MAX.saturating_sub(self.held.len());
        match self.rng.below(100) {
            0..=39 if room > 0 => self.alloc(),
            40..=44 if room > 100 => self.alloc_many(),
            45..=47 if room > 0 => self.alloc_range(),
            48..=50 => self.free_many(),
            51..=53 => self.split(),
            _ => self.free(),
        }
    }

    fn flags(&mut self) -> Flags {
        let flags = Flags::new(Mobility::ALL[self.rng.index(3)]);
        match self.rng.below(20) {
            0 => flags.atomic(),
            1 => flags.no_reclaim(),
            2 => flags.at_most_level(1),
            _ => flags,
        }
    }

    fn order(&mut self) -> Order {
        order([0, 0, 0, 0, 1, 2, 3, 3, 4, 6, 7, 9, 10][self.rng.index(13)])
    }

    fn hold(&mut self, pfn: Pfn, shape: Shape) {
        let pageblocks = pfn.get() / 512..(pfn.get() + shape.frames()).div_ceil(512);
        for taken in &self.hammer.host.taken[pageblocks.start as usize..pageblocks.end as usize] {
            assert!(!taken.load(Ordering::Relaxed), "{pfn} was handed out, and the host has it");
        }
        self.hammer.marks.take(pfn, shape.frames(), self.owner);
        self.held.push((pfn, shape));
    }

    /// Removes a stretch from what the worker holds, to free it.
    fn pick(&mut self) -> Option<(Pfn, Shape)> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.rng.index(self.held.len());
        let (pfn, shape) = self.held.swap_remove(at);
        self.hammer.marks.give_back(pfn, shape.frames(), self.owner);
        Some((pfn, shape))
    }

    fn alloc(&mut self) {
        let (order, flags) = (self.order(), self.flags());
        match self.hammer.depot.alloc(order, flags) {
            Ok(pfn) => self.hold(pfn, Shape::Block(order)),
            Err(_) => _ = self.hammer.failed.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn alloc_many(&mut self) {
        let (order, flags) = (order(self.rng.below(5) as u32), self.flags());
        let mut out = [Pfn::new(0); 100];
        let wanted = self.rng.index(out.len()) + 1;
        let got = self.hammer.depot.alloc_many(order, flags, &mut out[..wanted]).unwrap_or(0);
        out[..got].iter().for_each(|&pfn| self.hold(pfn, Shape::Block(order)));
    }

    fn alloc_range(&mut self) {
        let frames = self.rng.below(1500) as u32 + 1;
        let flags = self.flags();
        if self.rng.one_in(2) {
            let align = 1 << self.rng.below(11);
            if let Ok(pfn) = self.hammer.depot.alloc_contiguous(frames, align, flags) {
                assert!(pfn.get().is_multiple_of(align));
                self.hold(pfn, Shape::Range(frames));
            }
        } else {
            let start = Pfn::new(self.rng.below(u64::from(FRAMES)) as u32);
            if self.hammer.depot.alloc_at(start, frames % 40 + 1, flags).is_ok() {
                self.hold(start, Shape::Range(frames % 40 + 1));
            }
        }
    }

    fn free(&mut self) {
        match self.pick() {
            Some((pfn, Shape::Block(order))) => self.hammer.depot.free(pfn, order).unwrap(),
            Some((pfn, Shape::Range(frames))) => {
                self.hammer.depot.free_contiguous(pfn, frames).unwrap()
            }
            None => {}
        }
    }

    fn free_many(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..self.rng.below(150) {
            match self.pick() {
                Some((pfn, Shape::Block(order))) => batch.push((pfn, order)),
                Some((pfn, Shape::Range(frames))) => {
                    batch.extend((0..frames).map(|i| (pfn.add(i), Order::BASE)));
                }
                None => break,
            }
        }
        // Half of the time, runs of one order by calls of their own.
        if self.rng.one_in(2) {
            self.hammer.depot.free_many(&batch).unwrap();
            return;
        }
        for run in batch.chunk_by(|(_, order), (_, next)| order == next) {
            let blocks: Vec<_> = run.iter().map(|&(pfn, _)| pfn).collect();
            self.hammer.depot.free_many_of(run[0].1, &blocks).unwrap();
        }
    }

    fn split(&mut self) {
        let at = match self.held.len() {
            0 => return,
            length => self.rng.index(length),
        };
        let (pfn, Shape::Block(from)) = self.held[at] else { return };
        if from > order(4) || self.held.len() > HELD_MAX {
            return;
        }
        let to = order(self.rng.below(u64::from(from.get()) + 1) as u32);
        self.hammer.depot.split(pfn, from, to).unwrap();
        self.held.swap_remove(at);
        for part in (0..from.frames()).step_by(to.frames() as usize) {
            self.held.push((pfn.add(part), Shape::Block(to)));
        }
    }
}

impl<C: Cpus> Hammer<'_, '_, C> {
    fn until_stopped(self, mut step: impl FnMut()) {
        while !self.stop.load(Ordering::Relaxed) {
            step();
            std::thread::yield_now();
        }
    }

    fn drain(self, mode: Mode, mut rng: Rng) {
        self.until_stopped(|| {
            let scope = match rng.below(4) {
                0 => Scope::ALL,
                1 => Scope::cpu(CpuId::new(rng.below(u64::from(CPUS)) as u32)),
                2 => Scope::zone(ZoneId::new(rng.below(4) as u32)),
                _ => Scope::cpu(CpuId::new(0)).in_zone(ZoneId::new(0)),
            };
            self.depot.drain(scope, mode);
        });
    }

    fn report(self, mut rng: Rng) {
        self.until_stopped(|| {
            let zone = ZoneId::new(rng.below(4) as u32);
            let done = Reporting::of(self.depot).pass(zone, rng.below(40)).unwrap();
            assert!(done.pageblocks < 40);
        });
    }

    fn switch(self, mut rng: Rng) {
        self.until_stopped(|| {
            let cpu = CpuId::new(rng.below(u64::from(CPUS)) as u32);
            match rng.below(8) {
                0 => _ = self.depot.cpu_caches().disable(),
                1 => _ = self.depot.cpu_caches().retire(cpu),
                2..=4 => self.depot.cpu_caches().enable(),
                5 => _ = self.depot.cpu_caches().restore(cpu),
                6 => _ = self.depot.cpu_caches().decay(),
                _ => {
                    let high_min = rng.below(500);
                    let limits =
                        CacheLimits { batch: 63, high_min, high_max: high_min + rng.below(4000) };
                    if let Some(zone) = self.depot.settings(ZoneId::new(rng.below(4) as u32)) {
                        zone.set_cache_limits(limits);
                    }
                }
            }
            assert!(!self.depot.shortage().to_string().is_empty());
            std::thread::sleep(Duration::from_micros(rng.below(2000)));
        });
    }
}

/// A host that takes what is free: by pageblock, whether it has it.
struct Host<'h> {
    taken: Vec<AtomicBool>,
    marks: &'h Marks,
    refusals: AtomicU64,
}

impl<'h> Host<'h> {
    fn new(marks: &'h Marks) -> Self {
        let taken = (0..FRAMES / 512).map(|_| AtomicBool::new(false)).collect();
        Host { taken, marks, refusals: AtomicU64::new(0) }
    }

    fn swap(&self, range: FrameRange, taken: bool) {
        for at in (0..range.frames).step_by(512) {
            let pageblock = (range.start.get() + at) / 512;
            let was = self.taken[pageblock as usize].swap(taken, Ordering::Relaxed);
            assert_ne!(was, taken, "pageblock {pageblock} was reported twice, or needed twice");
        }
    }
}

impl ReportingDevice for Host<'_> {
    fn report(&self, ranges: &[FrameRange]) -> bool {
        for &range in ranges {
            self.marks.take(range.start, range.frames, u32::MAX);
            std::thread::yield_now();
            self.marks.give_back(range.start, range.frames, u32::MAX);
            self.swap(range, true);
        }
        true
    }

    fn needed(&self, pageblock: FrameRange) -> bool {
        if self.refusals.fetch_add(1, Ordering::Relaxed).is_multiple_of(16) {
            return false;
        }
        self.swap(pageblock, false);
        true
    }
}

/// Hammers a depot on `cpus` until its time is over, and checks what is left. `backed`: over a
/// backing, with ranges or without.
fn hammer<C: Cpus + Send>(name: &str, checked: bool, backed: Option<bool>, cpus: C) {
    let seed = seed(name);
    let low = [range(0, 2048)];
    let normal = [range(4096, 20_000), range(SECTION - 3000, 3000 + 5000)];
    let remote = [range(SECTION + 8192, 9000)];
    let zone = |name, node, level, ranges| ZoneConfig {
        name,
        node: NodeId::new(node),
        level,
        ranges,
        watermarks: Some(Watermarks { min: 64, low: 128, high: 256 }),
    };
    let zones = [
        zone("low", 0, 1, &low),
        zone("normal", 0, 2, &normal),
        zone("remote", 1, 2, &remote),
        zone("empty", 1, 3, &[]),
    ];
    let config = Config {
        cpu_nodes: &[NodeId::new(0), NodeId::new(1)],
        pfn_limit: Some(Pfn::new(FRAMES)),
        checked,
        track_owner: checked,
        ..Config::new(CPUS, &zones)
    };
    let memory = |bytes| vec![MaybeUninit::uninit(); bytes];
    // Metadata that is large enough for a bitmap is large enough without.
    let marks = Marks::new();
    let host = Host::new(&marks);
    let mut metadata = memory(Allocator::<C>::metadata_bytes(&config).unwrap());
    let mut added_metadata = memory(1 << 20);
    let sets = backed.map(|has_ranges| Sets::new(&zones, has_ranges));
    let under = sets.as_ref().map(|sets| sets as &dyn Backing);
    let mut depot = Allocator::builder(&config).backing(under).build(&mut metadata, cpus).unwrap();
    let stop = AtomicBool::new(false);
    let failed = AtomicU64::new(0);
    let hammer = Hammer { depot: &depot, marks: &marks, host: &host, stop: &stop, failed: &failed };
    let rng = |n| Rng::new(seed + n);
    let time = soak(Duration::from_secs(1));
    std::thread::scope(|scope| {
        for n in 1..=WORKERS {
            let worker = Worker { hammer, rng: rng(n), owner: n as u32, held: Vec::new() };
            scope.spawn(move || {
                run_on(Some(n as u32 % CPUS));
                worker.run();
            });
        }
        scope.spawn(move || hammer.drain(Mode::Quiet, rng(11)));
        scope.spawn(move || hammer.drain(Mode::Full, rng(12)));
        scope.spawn(move || hammer.drain(Mode::Full, rng(13)));
        scope.spawn(move || hammer.drain(Mode::Handover, rng(14)));
        scope.spawn(move || hammer.switch(rng(15)));
        if backed.is_none() {
            Reporting::of(&depot).register(&host).unwrap();
            scope.spawn(move || hammer.report(rng(16)));
        }
        let end = Instant::now() + time;
        std::thread::sleep(time / 2);
        depot.add_memory(ZoneId::new(3), ADDED, &mut added_metadata).unwrap();
        if let Some(sets) = &sets {
            sets.add(ZoneId::new(3), ADDED);
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(marks.are_free());
    let census = depot.validate().unwrap();
    assert_eq!((census.held_pages(), census.managed_pages), (0, 2048 + 28_000 + 9000 + 3000));
    depot.cpu_caches().enable();
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.busy_cpus, drained.unreachable_pages, drained.in_flight_pages), (0, 0, 0));
    assert_eq!(depot.validate().unwrap().free_pages, census.managed_pages);
    let reports = Reporting::of(&depot).counts();
    println!(
        "{name}: {} requests failed, {} claims, {reports:?}",
        failed.into_inner(),
        depot.failed_claims()
    );
    assert_eq!(reports.needed > 0, backed.is_none());
}

fn locks() -> [CpuLock; CPUS as usize] {
    std::array::from_fn(|_| CpuLock::new())
}

#[test]
fn locked() {
    hammer("locked", false, None, Locked::new(&locks(), Claimed::new()));
}

#[test]
fn locked_and_checked() {
    hammer("locked_and_checked", true, None, Locked::new(&locks(), Claimed::new()));
}

#[test]
fn pinned() {
    hammer("pinned", false, None, Pinned(Kernel::new(CPUS)));
}

#[test]
fn pinned_and_checked() {
    hammer("pinned_and_checked", true, None, Pinned(Kernel::new(CPUS)));
}

#[test]
fn over_a_backing() {
    hammer("over_a_backing", false, Some(false), Pinned(Kernel::new(CPUS)));
}

#[test]
fn over_a_backing_with_ranges_and_checked() {
    hammer(
        "over_a_backing_with_ranges_and_checked",
        true,
        Some(true),
        Locked::new(&locks(), Claimed::new()),
    );
}
