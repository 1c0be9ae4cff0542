//! Pageblocks become whole again while the same amount of memory stays in use.

use crate::common::rng::Rng;
use crate::common::{Single, metadata, open_zone, range, single};
use pagedepot::{
    Config, CpuId, Evacuation, Flags, Mobility, Mode, Order, Pfn, Scope, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{Contiguity, PageblockStats};

const ZONE: ZoneId = ZoneId::new(0);
const PAGEBLOCK_FRAMES: u32 = 512;
const SEED: u64 = 42;
/// Requests of the workload, for the one zone.
const FLAGS: Flags = Flags::MOVABLE.at_most_level(2);

/// LLFree's workload: two CPUs fill memory with single frames, free a share of them at random, then
/// reallocate frames worth a tenth of what is free, round after round (USENIX ATC 2023).
struct Workload {
    depot: Single<'static>,
    held: Vec<Pfn>,
    free: usize,
    rng: Rng,
}

impl Workload {
    fn new(pageblocks: u32, free_percent: usize, evacuation: Evacuation) -> Self {
        Self::beside(pageblocks, 0, free_percent, evacuation)
    }

    /// The workload in a zone behind which another one has `others` pageblocks, all of them free.
    fn beside(pageblocks: u32, others: u32, free_percent: usize, evacuation: Evacuation) -> Self {
        let frames = pageblocks * PAGEBLOCK_FRAMES;
        let (ranges, others) = ([range(0, frames)], [range(frames, others * PAGEBLOCK_FRAMES)]);
        let other = ZoneConfig { level: 3, ..open_zone("other", &others) };
        let zones = [open_zone("z", &ranges), other];
        let zones = if others[0].frames > 0 { &zones[..] } else { &zones[..1] };
        let config = Config { evacuation, ..Config::new(2, zones) };
        let depot = single(&config, Box::leak(metadata(&config).into_boxed_slice()));
        let mut rng = Rng::new(SEED);
        let mut held = Vec::new();
        while let Ok(pfn) = depot.alloc(Order::BASE, FLAGS) {
            held.push(pfn);
            depot.cpus().0.run_on((held.len() / 1000 % 2) as u32);
        }
        assert_eq!(held.len() as u32, pageblocks * PAGEBLOCK_FRAMES, "every frame was handed out");
        (1..held.len()).rev().for_each(|i| held.swap(i, rng.index(i + 1)));
        let free = held.len() * free_percent / 100;
        let mut workload = Workload { depot, held, free, rng };
        for pfn in workload.held.split_off(workload.held.len() - free) {
            workload.on_some_cpu();
            workload.depot.free(pfn, Order::BASE).unwrap();
        }
        workload
    }

    /// CPUs take turns.
    fn on_some_cpu(&mut self) {
        if self.rng.one_in(100) {
            self.depot.cpus().0.run_on(self.depot.cpus().0.cpu() ^ 1);
        }
    }

    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds * self.free / 10 {
            self.on_some_cpu();
            let at = self.rng.index(self.held.len());
            self.depot.free(self.held[at], Order::BASE).unwrap();
            self.held[at] = self.depot.alloc(Order::BASE, FLAGS).unwrap();
        }
    }

    fn stats(&self) -> PageblockStats {
        self.depot.pageblock_stats(ZONE).unwrap()
    }

    /// Every frame is in one place; frees what is held, and then all pageblocks are whole.
    fn finish(self) {
        self.finish_by(|_| ());
    }

    fn finish_by(mut self, check: impl Fn(PageblockStats)) {
        let census = self.depot.validate().unwrap();
        assert_eq!(census.held_pages(), self.held.len() as u64);
        for &pfn in &self.held {
            self.depot.free(pfn, Order::BASE).unwrap();
        }
        self.depot.cpu_caches().disable();
        let stats = self.stats();
        assert_eq!((stats.whole, stats.evacuating), (stats.all, 0));
        check(stats);
        self.depot.validate().unwrap();
    }
}

#[test]
fn half_of_the_pageblocks_become_whole_when_half_of_the_frames_are_free() {
    let mut workload = Workload::new(256, 50, Evacuation::Adaptive);
    assert_eq!(workload.stats().whole, 0);
    workload.rounds(100);
    let stats = workload.stats();
    // Of 128 there could be, 2 CPUs keep 1024 frames for refills.
    assert!(stats.whole >= 116, "{stats:?}");
    assert_eq!((stats.all, stats.tainted), (256, 0));
    workload.finish();
}

/// Checks that a loop which finds everything in its fronts heals, whether its frees or its
/// allocations bring the count of a front's operations to its end.
#[test]
fn loops_in_the_fronts_move_the_hand() {
    for is_odd in [false, true] {
        let mut workload = Workload::new(64, 50, Evacuation::Adaptive);
        workload.depot.cpus().0.run_on(0);
        if is_odd {
            workload.held.push(workload.depot.alloc(Order::BASE, Flags::default()).unwrap());
        }
        for _ in 0..200_000 {
            let at = workload.rng.index(workload.held.len());
            workload.depot.free(workload.held[at], Order::BASE).unwrap();
            workload.held[at] = workload.depot.alloc(Order::BASE, Flags::default()).unwrap();
        }
        let stats = workload.stats();
        assert!(stats.whole + stats.evacuating > 0, "odd {is_odd}: {stats:?}");
        workload.finish();
    }
}

/// LLFree's `stress`: CPUs take turns to fill their halves of the memory to a random level, and to
/// empty them in random order to the next one.
struct Stress {
    depot: Single<'static>,
    seats: [Vec<Pfn>; 2],
    half: usize,
    rng: Rng,
}

impl Stress {
    fn new(pageblocks: u32) -> Self {
        let ranges = [range(0, pageblocks * PAGEBLOCK_FRAMES)];
        let zones = [open_zone("z", &ranges)];
        let config = Config::new(2, &zones);
        let depot = single(&config, Box::leak(metadata(&config).into_boxed_slice()));
        let half = (pageblocks * PAGEBLOCK_FRAMES / 2) as usize;
        Stress { depot, seats: Default::default(), half, rng: Rng::new(SEED) }
    }

    /// Brings the half of a CPU to a level.
    fn go_to(&mut self, cpu: usize, level: usize) {
        self.depot.cpus().0.run_on(cpu as u32);
        let held = &mut self.seats[cpu];
        (1..held.len()).rev().for_each(|i| held.swap(i, self.rng.index(i + 1)));
        while held.len() > level {
            self.depot.free(held.pop().unwrap(), Order::BASE).unwrap();
        }
        while held.len() < level {
            held.push(self.depot.alloc(Order::BASE, Flags::default()).unwrap());
        }
    }

    /// The share of the free memory that lies in whole pageblocks, nothing drained.
    fn whole_share(&self) -> f64 {
        let free = 2 * self.half - self.seats.iter().map(Vec::len).sum::<usize>();
        let whole = self.depot.pageblock_stats(ZONE).unwrap().whole;
        (whole * u64::from(PAGEBLOCK_FRAMES)) as f64 / free as f64
    }
}

/// Checks that pageblocks evacuate while memory fills and empties, so that they become whole though
/// it never lies still. The share was 28 % while hands marked in still memory alone.
#[test]
fn pageblocks_become_whole_while_memory_fills_and_empties() {
    let mut stress = Stress::new(256);
    let mut shares = 0.0;
    (0..2).for_each(|cpu| stress.go_to(cpu, stress.half * 98 / 100));
    for turn in 0..96 {
        let level = stress.rng.index(stress.half);
        stress.go_to(turn % 2, level);
        shares += stress.whole_share() / 96.0;
    }
    assert!(shares >= 0.31, "{shares}");
    stress.depot.validate().unwrap();
}

#[test]
fn a_fifth_becomes_whole_in_three_hundred_rounds() {
    let mut workload = Workload::new(512, 20, Evacuation::Goal { percent: 100 });
    workload.rounds(300);
    let stats = workload.stats();
    assert!(stats.whole >= 60, "{stats:?}");
    workload.finish();
}

/// Checks that pageblocks do not heal by themselves.
#[test]
fn without_evacuation_the_same_frames_circulate() {
    let mut workload = Workload::new(256, 50, Evacuation::Off);
    workload.rounds(100);
    assert_eq!((workload.stats().whole, workload.stats().evacuating), (0, 0));
    assert!(
        !workload.depot.settings(ZONE).unwrap().set_evacuation(Evacuation::Adaptive),
        "it was made without"
    );
    workload.finish();
}

#[test]
fn a_policy_that_is_turned_off_settles_what_evacuates() {
    let mut workload = Workload::new(64, 50, Evacuation::Goal { percent: 100 });
    let begins = (0..100).any(|_| {
        workload.rounds(1);
        workload.stats().evacuating > 0
    });
    assert!(begins);
    assert!(workload.depot.settings(ZONE).unwrap().set_evacuation(Evacuation::Off));
    assert_eq!(workload.depot.settings(ZONE).unwrap().evacuation(), Evacuation::Off);
    assert!(workload.depot.settings(ZoneId::new(1)).is_none());
    workload.rounds(60);
    assert_eq!(workload.stats().evacuating, 0);
    workload.finish();
}

/// Checks that frames in fronts for evacuated frames are no reason to fail: an atomic request gets
/// the last frame.
#[test]
fn every_frame_can_be_had_while_pageblocks_evacuate() {
    let mut workload = Workload::new(64, 50, Evacuation::Goal { percent: 100 });
    workload.rounds(20);
    let free = workload.free;
    workload.depot.cpus().0.run_on(1);
    let mut got: Vec<_> = (0..64)
        .map_while(|_| workload.depot.alloc(Order::BASE, Flags::default().atomic()).ok())
        .collect();
    // Some lie in evacuating pageblocks and are freed into a front that no allocation pops.
    workload.held.append(&mut got);
    workload.depot.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    let more = |depot: &Single<'_>| depot.alloc(Order::BASE, Flags::default().atomic()).ok();
    while let Some(pfn) = more(&workload.depot) {
        workload.held.push(pfn);
    }
    assert_eq!(workload.held.len(), 64 * 512, "{free} were free");
    workload.finish();
}

/// Checks that a CPU shelves little of what it frees while pageblocks evacuate, however much it may
/// cache otherwise: caches keep pageblocks from becoming whole.
#[test]
fn caches_are_small_while_pageblocks_evacuate() {
    let cached = |evacuation| {
        let mut workload = Workload::new(256, 50, evacuation);
        workload.rounds(10);
        workload.depot.cpus().0.run_on(0);
        for pfn in workload.held.split_off(workload.held.len() - 8192) {
            workload.depot.free(pfn, Order::BASE).unwrap();
        }
        assert_eq!(workload.stats().evacuating > 0, evacuation != Evacuation::Off);
        let stats = workload.depot.cpu_stats(CpuId::new(0), ZONE).unwrap();
        let limits = workload.depot.settings(ZONE).unwrap().cache_limits();
        workload.finish();
        (stats, limits)
    };
    let (stats, limits) = cached(Evacuation::Off);
    assert!(stats.cached_pages() >= 1900, "as many as there are magazines: {stats:?}");
    assert_eq!(stats.high_pages, limits.high_max);
    let (stats, limits) = cached(Evacuation::Adaptive);
    // A 32nd of what is free, for two CPUs.
    let part = 256 * u64::from(PAGEBLOCK_FRAMES) / 2 / 32 / 2;
    assert!(stats.high_pages <= part.max(limits.high_min), "{stats:?} {limits:?}");
    assert!(stats.cached_pages() <= stats.high_pages, "{stats:?}");
}

/// Nothing evacuates on a machine that has whole pageblocks enough.
#[test]
fn plenty_of_whole_pageblocks_stay_as_they_are() {
    let mut workload = Workload::new(256, 50, Evacuation::Adaptive);
    // Frees most of it: the pageblocks above stay whole.
    let (low, high): (Vec<_>, Vec<_>) =
        workload.held.drain(..).partition(|pfn| pfn.get() < 64 * PAGEBLOCK_FRAMES);
    for pfn in high {
        workload.depot.free(pfn, Order::BASE).unwrap();
    }
    workload.held = low;
    workload.depot.drain(Scope::ALL, Mode::Full);
    assert!(workload.stats().whole >= 190);
    workload.free = workload.held.len();
    workload.rounds(50);
    assert_eq!(workload.stats().evacuating, 0);
    workload.finish();
}

/// The pageblocks of the other zone are whole, and the hints of both lie in one word.
#[test]
fn plenty_of_whole_pageblocks_of_another_zone_do_not_count() {
    let mut workload = Workload::beside(32, 32, 50, Evacuation::Adaptive);
    workload.rounds(200);
    let stats = workload.stats();
    assert!(stats.whole + stats.evacuating >= 8, "{stats:?}");
    workload.finish();
}

/// Unmovable blocks that had to go to movable pageblocks are counted until these are whole.
#[test]
fn mixed_pageblocks_are_tainted_until_they_are_whole() {
    let mut workload = Workload::new(8, 10, Evacuation::Adaptive);
    workload.depot.drain(Scope::ALL, Mode::Full);
    let unmovable = Flags::new(Mobility::Unmovable);
    let pfn = workload.depot.alloc(Order::BASE, unmovable).unwrap();
    let tainted = workload.stats().tainted;
    assert!(tainted >= 1, "every pageblock is movable");
    workload.held.push(pfn);
    workload.finish_by(|stats| assert_eq!(stats.tainted, 0));
}

/// A program that exits leaves its CPU little in caches while few pageblocks are whole.
#[test]
fn caches_are_small_while_whole_pageblocks_are_short() {
    let ranges = [range(0, 128 * PAGEBLOCK_FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(2, &zones);
    let mut metadata = metadata(&config);
    let mut depot = single(&config, &mut metadata);
    let alloc = |_| depot.alloc(Order::BASE, Flags::default()).unwrap();
    // Every eighth frame outlives its program. The first one ends with a loop in its fronts.
    let mut kept = Vec::new();
    for program in 0..3 {
        let all: Vec<_> = (0..124 * PAGEBLOCK_FRAMES - kept.len() as u32).map(alloc).collect();
        for (n, pfn) in all.into_iter().enumerate() {
            match n % 8 {
                0 => kept.push(pfn),
                _ => depot.free(pfn, Order::BASE).unwrap(),
            }
        }
        for _ in 0..if program == 0 { 400_000 } else { 0 } {
            depot.free(alloc(0), Order::BASE).unwrap();
        }
    }
    let (zone, limits) =
        (depot.zone_stats(ZONE).unwrap(), depot.settings(ZONE).unwrap().cache_limits());
    assert!(2 * depot.pageblock_stats(ZONE).unwrap().whole < 128);
    let free = zone.free_pages + zone.cached_pages;
    let part = (free / 32 / 2).max(limits.high_min);
    assert!(2 * part < limits.high_max, "{limits:?}");
    assert!(zone.cached_pages <= part + 126, "{} cached, {part}", zone.cached_pages);
    kept.iter().for_each(|&pfn| depot.free(pfn, Order::BASE).unwrap());
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}

/// Checks that what a program leaves in caches when it exits does not become the next one's: its
/// pageblocks would not be whole for as long as that runs.
#[test]
fn a_program_begins_in_few_of_the_pageblocks_that_another_has_left() {
    let ranges = [range(0, 128 * PAGEBLOCK_FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(2, &zones);
    let mut metadata = metadata(&config);
    let depot = single(&config, &mut metadata);
    let alloc = |_| depot.alloc(Order::BASE, Flags::default()).unwrap();
    let mut rng = Rng::new(SEED);
    let mut all: Vec<_> = (0..120 * PAGEBLOCK_FRAMES).map(alloc).collect();
    (1..all.len()).rev().for_each(|i| all.swap(i, rng.index(i + 1)));
    for &pfn in &all {
        depot.free(pfn, Order::BASE).unwrap();
    }
    // From the last magazine, and from the store.
    let next: Vec<_> = (0..PAGEBLOCK_FRAMES).map(alloc).collect();
    let begun = |next: &[Pfn]| {
        let begun = next.iter().map(|pfn| pfn.get() / PAGEBLOCK_FRAMES);
        begun.collect::<std::collections::HashSet<_>>().len()
    };
    assert!(begun(&next[63..]) <= 8, "{}", begun(&next[63..]));
}
