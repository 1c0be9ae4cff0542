//! Unmovable requests have movable blocks moved away before they mix a pageblock.
//!
//! 1. Where blocks can be moved, unmovable ones lie in as few pageblocks as hold them.
//! 2. Every block keeps its contents; none is lost, or in two places, whatever the mover does and
//!    however many threads allocate and free beside it.
//! 3. A request is served as before where moving is in vain, and soon moves no more.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::rng::{Rng, seed};
use crate::common::threads::{Kernel, run_on};
use crate::common::{Single, metadata, open_zone, order, range, single, soak};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    AllocError, Allocator, Config, Evacuation, Flags, FrameRange, Mobility, Mode, Order, Pfn,
    Scope, Watermarks, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{Compactor, Contiguity, Move, Mover, Occupant, Pageblocks};

const ZONE: ZoneId = ZoneId::new(0);
const PAGEBLOCK: u32 = 512;
const UNMOVABLE: Flags = Flags::UNMOVABLE.compact();

/// Movable blocks of one holder: by first frame, the order and what is in the block.
#[derive(Default)]
struct Table {
    blocks: Mutex<BTreeMap<u32, (Order, u64)>>,
    pages: AtomicU64,
    is_pinned: AtomicBool,
    /// Moves that are still to be refused.
    refusals: AtomicU64,
    moved: AtomicU64,
    /// Moves that were asked for.
    tries: AtomicU64,
    asked: AtomicU64,
}

impl Table {
    fn insert(&self, pfn: Pfn, order: Order, contents: u64) {
        let before = self.blocks.lock().unwrap().insert(pfn.get(), (order, contents));
        assert_eq!(before, None, "{pfn} was handed out twice");
        self.pages.fetch_add(order.frames().into(), Ordering::Relaxed);
    }

    /// Takes a random block out.
    fn take(&self, rng: &mut Rng, frames: u32) -> Option<(Pfn, Order, u64)> {
        let mut blocks = self.blocks.lock().unwrap();
        let from = rng.below(frames.into()) as u32;
        let (&first, _) = blocks.range(from..).next().or(blocks.iter().next())?;
        let (order, contents) = blocks.remove(&first)?;
        self.pages.fetch_sub(order.frames().into(), Ordering::Relaxed);
        Some((Pfn::new(first), order, contents))
    }

    fn contents(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.blocks.lock().unwrap().values().map(|at| at.1).collect();
        all.sort_unstable();
        all
    }

    fn held_pages(&self) -> u64 {
        self.blocks.lock().unwrap().values().map(|block| u64::from(block.0.frames())).sum()
    }
}

impl Mover for Table {
    fn occupant(&self, frame: Pfn) -> Occupant {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let blocks = self.blocks.lock().unwrap();
        match blocks.range(..=frame.get()).next_back() {
            Some((&first, &(order, _))) if frame.get() < first + order.frames() => {
                match self.is_pinned.load(Ordering::Relaxed) {
                    true => Occupant::Pinned,
                    false => Occupant::Movable { first: Pfn::new(first), order },
                }
            }
            _ => Occupant::Unknown,
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        let mut blocks = self.blocks.lock().unwrap();
        self.tries.fetch_add(moves.len() as u64, Ordering::Relaxed);
        for this in moves {
            let first = this.from().get();
            match blocks.get(&first) {
                Some(_) if self.refusals.load(Ordering::Relaxed) > 0 => {
                    self.refusals.fetch_sub(1, Ordering::Relaxed);
                    this.pinned();
                }
                Some(&(order, contents)) if order == this.order() => {
                    blocks.remove(&first);
                    let before = blocks.insert(this.to().get(), (order, contents));
                    assert_eq!(before, None, "the destination is free");
                    self.moved.fetch_add(1, Ordering::Relaxed);
                    this.moved();
                }
                _ => this.gone(),
            }
        }
    }
}

/// A full machine: movable single frames in all memory, of which each eighth is free again.
fn scattered(depot: &Single<'_>, table: &Table) {
    let mut rng = Rng::new(seed("confining"));
    let mut contents = 0;
    while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
        contents += 1;
        table.insert(pfn, Order::BASE, contents);
    }
    let held = table.blocks.lock().unwrap().len();
    let frames = held as u32;
    for _ in 0..held / 8 {
        let (pfn, order, _) = table.take(&mut rng, frames).unwrap();
        depot.free(pfn, order).unwrap();
    }
    depot.drain(Scope::ALL, Mode::Full);
}

/// One zone of so many pageblocks, scattered.
fn with_pageblocks(
    pageblocks: u32,
    watermarks: Watermarks,
    test: impl FnOnce(&mut Single<'_>, &Table),
) {
    with_free_pageblocks(pageblocks, watermarks, |depot, table| {
        scattered(depot, table);
        test(depot, table);
    });
}

/// One zone of so many pageblocks.
fn with_free_pageblocks(
    pageblocks: u32,
    watermarks: Watermarks,
    test: impl FnOnce(&mut Single<'_>, &Table),
) {
    let table = Table::default();
    let ranges = [range(0, pageblocks * PAGEBLOCK)];
    let zones = [ZoneConfig { watermarks: Some(watermarks), ..open_zone("a", &ranges) }];
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let compactor = Compactor::new(&table);
    let mut depot = single(&config, &mut memory);
    compactor.register(&depot).unwrap();
    test(&mut depot, &table);
}

/// Pageblocks in which these frames lie.
fn pageblocks_of(frames: &[Pfn]) -> BTreeSet<u32> {
    frames.iter().map(|pfn| pfn.get() / PAGEBLOCK).collect()
}

fn alloc_many(depot: &Single<'_>, count: usize, flags: Flags) -> Vec<Pfn> {
    (0..count).map(|_| depot.alloc(Order::BASE, flags).unwrap()).collect()
}

fn check(depot: &mut Single<'_>, table: &Table, others: &[Pfn]) {
    let census = depot.validate().unwrap();
    assert_eq!(census.held_pages(), table.held_pages() + others.len() as u64);
}

#[test]
fn unmovable_blocks_lie_in_as_few_pageblocks_as_hold_them() {
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        let before = table.contents();
        let unmovable = alloc_many(depot, 600, UNMOVABLE);
        assert_eq!(pageblocks_of(&unmovable).len(), 2);
        assert!(table.moved.load(Ordering::Relaxed) <= 2 * u64::from(PAGEBLOCK));
        assert_eq!(depot.pageblock_stats(ZONE).unwrap().tainted, 0);
        assert_eq!(table.contents(), before);
        check(depot, table, &unmovable);
        let counts = depot.zone_stats(ZONE).unwrap().compactions;
        assert_eq!(counts.moved_blocks, table.moved.load(Ordering::Relaxed));
    });
    // Without leave to move they are mixed.
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        let unmovable = alloc_many(depot, 600, Flags::UNMOVABLE);
        assert!(pageblocks_of(&unmovable).len() > 4);
        assert!(depot.pageblock_stats(ZONE).unwrap().tainted > 4);
        check(depot, table, &unmovable);
    });
}

/// Reclaimable and unmovable requests share what neither of them has of its own.
#[test]
fn unmovable_and_reclaimable_blocks_are_akin() {
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        let mut held = alloc_many(depot, 100, UNMOVABLE);
        depot.drain(Scope::ALL, Mode::Full);
        let moved = table.moved.load(Ordering::Relaxed);
        held.extend(alloc_many(depot, 100, Flags::RECLAIMABLE.compact()));
        assert_eq!(pageblocks_of(&held).len(), 1);
        assert_eq!(table.moved.load(Ordering::Relaxed), moved);
        check(depot, table, &held);
    });
}

/// Movable blocks that came to an unmovable pageblock when all else was taken leave it again.
#[test]
fn guests_leave() {
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        let mut unmovable = alloc_many(depot, 1000, UNMOVABLE);
        depot.drain(Scope::ALL, Mode::Full);
        let places = pageblocks_of(&unmovable);
        // A surge ends; page cache takes all that is free.
        for pfn in unmovable.split_off(500) {
            depot.free(pfn, Order::BASE).unwrap();
        }
        let mut contents = 1 << 32;
        while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
            contents += 1;
            table.insert(pfn, Order::BASE, contents);
        }
        let is_guest = |frame: &u32| places.contains(&(frame / PAGEBLOCK));
        assert!(table.blocks.lock().unwrap().keys().filter(|frame| is_guest(frame)).count() > 400);
        let mut rng = Rng::new(seed("guests"));
        for _ in 0..1000 {
            let (pfn, order, _) = table.take(&mut rng, 16 * PAGEBLOCK).unwrap();
            depot.free(pfn, order).unwrap();
        }
        depot.drain(Scope::ALL, Mode::Full);
        let before = table.contents();
        // The next surge.
        unmovable.extend(alloc_many(depot, 500, UNMOVABLE));
        let more: Vec<_> = pageblocks_of(&unmovable).difference(&places).copied().collect();
        assert!(more.len() <= 1, "{more:?} besides {places:?}");
        assert_eq!(table.contents(), before);
        check(depot, table, &unmovable);
    });
}

/// A block that cannot be moved at one moment keeps no other one, and leaves at a later request.
#[test]
fn a_busy_block_leaves_later() {
    with_free_pageblocks(6, Watermarks::default(), |depot, table| {
        for at in 0..200 {
            depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap();
            table.insert(Pfn::new(at), Order::BASE, u64::from(at));
        }
        for start in (1..6).map(|pageblock| pageblock * PAGEBLOCK) {
            depot.alloc_at(Pfn::new(start), 300, Flags::default()).unwrap();
        }
        depot.drain(Scope::ALL, Mode::Full);
        table.refusals.store(1, Ordering::Relaxed);
        let mut unmovable = alloc_many(depot, 1, UNMOVABLE);
        assert_eq!(table.moved.load(Ordering::Relaxed), 199);
        let (_, first) = Pageblocks::at(depot, Pfn::new(0)).unwrap();
        assert_eq!(first.mobility, Some(Mobility::Unmovable));
        // The last one needs its place.
        unmovable.extend(alloc_many(depot, 511, UNMOVABLE));
        assert_eq!(table.moved.load(Ordering::Relaxed), 200);
        assert_eq!(pageblocks_of(&unmovable), BTreeSet::from([0]));
        let census = depot.validate().unwrap();
        assert_eq!(census.held_pages(), 200 + 5 * 300 + 512);
    });
}

/// A block for which there is no room elsewhere keeps no smaller one.
#[test]
fn a_block_without_a_destination_is_passed() {
    with_free_pageblocks(4, Watermarks::default(), |depot, table| {
        let hold = |at, size: Order| {
            depot.alloc_at(Pfn::new(at), size.frames(), Flags::default()).unwrap();
            table.insert(Pfn::new(at), size, u64::from(at));
        };
        hold(0, order(3));
        (8..108).for_each(|at| hold(at, Order::BASE));
        // Single frames are free elsewhere.
        for at in (PAGEBLOCK..4 * PAGEBLOCK).step_by(2) {
            depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap();
        }
        depot.drain(Scope::ALL, Mode::Full);
        let found = depot.alloc(Order::BASE, UNMOVABLE).unwrap();
        assert!(found.get() < PAGEBLOCK);
        assert_eq!(table.moved.load(Ordering::Relaxed), 100);
        assert!(table.blocks.lock().unwrap().contains_key(&0));
    });
}

/// A pageblock in which the request finds no block goes on to serve movable requests.
#[test]
fn movable_pageblocks_without_a_block_stay_movable() {
    with_free_pageblocks(8, Watermarks::default(), |depot, _| {
        // Held by others in both halves.
        for at in (0..8 * PAGEBLOCK).step_by(256) {
            depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap();
        }
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(depot.alloc(order(8), UNMOVABLE), Err(AllocError::Exhausted));
        let mut all = Pageblocks::of(depot, ZONE).unwrap();
        assert!(all.all(|pageblock| pageblock.mobility == Some(Mobility::Movable)));
    });
}

/// A sparse pageblock in which no block of the order can come together keeps no other one from
/// being thinned, and is left as it is.
#[test]
fn pageblocks_without_a_block_are_passed() {
    with_free_pageblocks(8, Watermarks::default(), |depot, table| {
        // One frame in eight, and some that could be moved.
        for at in 0..64 {
            depot.alloc_at(Pfn::new(8 * at), 1, Flags::default()).unwrap();
        }
        let movable = (0..10).map(|at| 8 * at + 1).chain(PAGEBLOCK..PAGEBLOCK + 200);
        for at in movable {
            depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap();
            table.insert(Pfn::new(at), Order::BASE, u64::from(at));
        }
        for start in (2..8).map(|pageblock| pageblock * PAGEBLOCK) {
            depot.alloc_at(Pfn::new(start), 300, Flags::default()).unwrap();
        }
        depot.drain(Scope::ALL, Mode::Full);
        let found = depot.alloc(order(3), UNMOVABLE).unwrap();
        assert_eq!(found.get() / PAGEBLOCK, 1);
        assert_eq!(table.moved.load(Ordering::Relaxed), 200);
        let stats = depot.pageblock_stats(ZONE).unwrap();
        assert_eq!(stats.tainted, 0);
        assert!((0..10).all(|at| table.blocks.lock().unwrap().contains_key(&(8 * at + 1))));
    });
}

/// Blocks of higher orders are confined, too.
#[test]
fn blocks_of_order_3() {
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        let blocks: Vec<_> = (0..60).map(|_| depot.alloc(order(3), UNMOVABLE).unwrap()).collect();
        assert_eq!(pageblocks_of(&blocks).len(), 1);
        let census = depot.validate().unwrap();
        assert_eq!(census.held_pages(), table.held_pages() + 60 * 8);
    });
}

#[test]
fn requests_go_on_where_nothing_can_be_moved() {
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        table.is_pinned.store(true, Ordering::Relaxed);
        let unmovable = alloc_many(depot, 800, UNMOVABLE);
        assert_eq!(table.moved.load(Ordering::Relaxed), 0);
        let counts = depot.zone_stats(ZONE).unwrap().compactions;
        assert!(counts.compactions > 0 && counts.compact_reached == 0, "{counts:?}");
        let asked = table.asked.swap(0, Ordering::Relaxed);
        let pageblocks = asked / u64::from(PAGEBLOCK);
        assert!(asked > 0 && pageblocks < 100, "asked of {pageblocks} pageblocks");
        check(depot, table, &unmovable);
    });
}

/// A mover that refuses each move is asked for a few of each pageblock, not for all.
#[test]
fn a_request_ends_where_moves_are_refused() {
    with_pageblocks(8, Watermarks::default(), |depot, table| {
        table.refusals.store(u64::MAX, Ordering::Relaxed);
        let unmovable = alloc_many(depot, 1, UNMOVABLE);
        let tries = table.tries.load(Ordering::Relaxed);
        assert!((1..=4 * 32).contains(&tries), "{tries}");
        check(depot, table, &unmovable);
    });
}

/// Checks that no memory is held back for moves below `low`.
#[test]
fn nothing_moves_near_a_watermark() {
    let watermarks = Watermarks { min: 64, low: 900, high: 1000 };
    with_pageblocks(16, watermarks, |depot, table| {
        let unmovable = alloc_many(depot, 300, UNMOVABLE);
        assert_eq!(table.moved.load(Ordering::Relaxed), 0);
        check(depot, table, &unmovable);
    });
}

#[test]
fn requests_that_may_not_wait_move_nothing() {
    with_pageblocks(16, Watermarks::default(), |depot, table| {
        let mut held = alloc_many(depot, 100, UNMOVABLE.atomic());
        held.extend(alloc_many(depot, 100, UNMOVABLE.no_reclaim()));
        held.extend(alloc_many(depot, 100, Flags::MOVABLE.compact()));
        assert_eq!(table.asked.load(Ordering::Relaxed), 0);
        check(depot, table, &held);
    });
}

/// Threads with tables of their own, behind one mover.
struct Threads(Vec<Table>);

impl Mover for Threads {
    fn occupant(&self, frame: Pfn) -> Occupant {
        let known = |table: &Table| match table.occupant(frame) {
            Occupant::Unknown => None,
            known => Some(known),
        };
        self.0.iter().find_map(known).unwrap_or(Occupant::Unknown)
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        for this in moves {
            let is_held =
                |table: &&Table| table.blocks.lock().unwrap().contains_key(&this.from().get());
            match self.0.iter().find(is_held) {
                Some(table) => table.move_blocks(std::slice::from_mut(this)),
                None => this.gone(),
            }
        }
    }
}

/// Number of steps that fill the memory, and move blocks.
const STEPS_MIN: u32 = 200_000;

/// The contents of each frame: those of a block, or 0.
type Contents = [AtomicU64];

/// Threads allocate and free all kinds of blocks on little memory; moves run beside them.
#[test]
fn beside_threads() {
    for (checked, evacuation) in [(false, Evacuation::Adaptive), (true, Evacuation::Off)] {
        const CPUS: u32 = 3;
        const FRAMES: u32 = 48 * PAGEBLOCK;
        let ranges = [FrameRange::new(Pfn::new(0), FRAMES)];
        let zones = [open_zone("a", &ranges)];
        let config = Config { checked, evacuation, ..Config::new(CPUS, &zones) };
        let bytes = Allocator::<PinnedCpus<Kernel>>::metadata_bytes(&config).unwrap();
        let mut memory = vec![MaybeUninit::uninit(); bytes];
        let mover = Threads((0..CPUS).map(|_| Table::default()).collect());
        let compactor = Compactor::new(&mover);
        let mut depot =
            Allocator::new(&config, &mut memory, PinnedCpus(Kernel::new(CPUS))).unwrap();
        compactor.register(&depot).unwrap();
        // Of unmovable blocks alone: what lies there is the thread's own.
        let contents: Vec<_> = (0..FRAMES).map(|_| AtomicU64::new(0)).collect();
        let time = soak(Duration::from_millis(700));
        let end = Instant::now() + time;
        let moved =
            || -> u64 { mover.0.iter().map(|table| table.moved.load(Ordering::Relaxed)).sum() };
        // On a busy machine the threads meet late.
        let goes_on = || Instant::now() < end || moved() == 0 && Instant::now() < end + 30 * time;
        std::thread::scope(|scope| {
            for (cpu, table) in (0..CPUS).zip(&mover.0) {
                let (depot, contents, goes_on) = (&depot, &*contents, &goes_on);
                scope.spawn(move || {
                    run_on(Some(cpu));
                    churn(depot, table, contents, cpu, goes_on);
                });
            }
        });
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
        assert!(moved() > 0);
    }
}

/// One thread: movable blocks in most of its share of the memory; unmovable ones surge.
fn churn(
    depot: &Allocator<'_, PinnedCpus<Kernel>>,
    table: &Table,
    contents: &Contents,
    cpu: u32,
    goes_on: impl Fn() -> bool,
) {
    let mut rng = Rng::new(seed("confining beside") + u64::from(cpu));
    let owner = u64::from(cpu) + 1;
    let frames = contents.len() as u32;
    let stamp = |first: Pfn, order: Order, value: u64, expected: u64| {
        for frame in &contents[first.index()..first.index() + order.frames() as usize] {
            assert_eq!(frame.swap(value, Ordering::Relaxed), expected, "{first}");
        }
    };
    let mut unmovable: Vec<(Pfn, Order)> = Vec::new();
    let (mut grows, mut pages, mut is_full) = (true, 0, false);
    let mut steps = 0;
    while steps < STEPS_MIN || goes_on() {
        steps += 1;
        // Movable blocks come first, so that unmovable ones find no whole pageblock.
        let is_over = table.pages.load(Ordering::Relaxed) > u64::from(frames) * 3 / 10;
        is_full |= is_over;
        if !is_full || rng.below(3) > 0 {
            let order = order([0, 0, 0, 0, 1, 2][rng.index(6)]);
            if is_over {
                let (pfn, order, _) = table.take(&mut rng, frames).unwrap();
                depot.free(pfn, order).unwrap();
            } else if let Ok(pfn) = depot.alloc(order, Flags::default()) {
                table.insert(pfn, order, owner);
            }
            continue;
        }
        grows = if grows { pages < 600 } else { pages < 50 };
        if grows {
            let order = order([0, 0, 0, 1, 3][rng.index(5)]);
            let flags = [UNMOVABLE, UNMOVABLE, Flags::RECLAIMABLE.compact()][rng.index(3)];
            if let Ok(pfn) = depot.alloc(order, flags) {
                stamp(pfn, order, owner, 0);
                unmovable.push((pfn, order));
                pages += order.frames();
            }
        } else if !unmovable.is_empty() {
            let (pfn, order) = unmovable.swap_remove(rng.index(unmovable.len()));
            stamp(pfn, order, 0, owner);
            depot.free(pfn, order).unwrap();
            pages -= order.frames();
        }
        if rng.below(2000) == 0 {
            depot.drain(Scope::ALL, [Mode::Quiet, Mode::Full, Mode::Handover][rng.index(3)]);
        }
    }
    for (pfn, order) in unmovable {
        stamp(pfn, order, 0, owner);
        depot.free(pfn, order).unwrap();
    }
    while let Some((pfn, order, _)) = table.take(&mut rng, frames) {
        depot.free(pfn, order).unwrap();
    }
}
