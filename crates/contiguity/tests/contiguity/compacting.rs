//! Held blocks are moved, so that pageblocks and ranges become free.
//!
//! 1. Every block keeps its contents, wherever it lies; none is lost, or in two places.
//! 2. Sources are taken in the order of what they hold, and left alone if a block is pinned.
//! 3. Whatever a mover says or does, the allocator stays sound.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::common::backing::Sets;
use crate::common::rng::{Rng, seed};
use crate::common::threads::{Kernel, Parked, run_on};
use crate::common::{Anywhere, Single, metadata, open_zone, order, range, single, soak};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    AllocError, Allocator, Class, Classes, Config, CpuId, Evacuation, Flags, Misuse, Mobility,
    Mode, Order, Pfn, Scope, Watermarks, ZoneId,
};
use pagedepot_contiguity::{
    CompactEnd, CompactError, CompactResult, Compaction, Compactor, Contiguity, Move, Mover,
    Occupant, Pageblocks, RemoveError,
};

pub(crate) const ZONE: ZoneId = ZoneId::new(0);
pub(crate) const PAGEBLOCK: u32 = 512;

/// A holder of blocks: by first frame, the order and what is in the block.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) blocks: RefCell<BTreeMap<u32, (Order, u64)>>,
    pub(crate) pinned: RefCell<Vec<u32>>,
    pub(crate) moves: RefCell<Vec<(u32, u32)>>,
    next: Cell<u64>,
}

impl Table {
    pub(crate) fn insert(&self, pfn: Pfn, order: Order) -> u64 {
        self.next.set(self.next.get() + 1);
        let before = self.blocks.borrow_mut().insert(pfn.get(), (order, self.next.get()));
        assert_eq!(before, None, "{pfn} was handed out twice");
        self.next.get()
    }

    pub(crate) fn hold(&self, depot: &Single<'_>, order: Order) -> Pfn {
        let pfn = depot.alloc(order, Flags::default()).unwrap();
        self.insert(pfn, order);
        pfn
    }

    pub(crate) fn hold_at(&self, depot: &Single<'_>, frame: u32) {
        depot.alloc_at(Pfn::new(frame), 1, Flags::default()).unwrap();
        self.insert(Pfn::new(frame), Order::BASE);
    }

    pub(crate) fn contents(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.blocks.borrow().values().map(|block| block.1).collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn held_pages(&self) -> u64 {
        self.blocks.borrow().values().map(|block| u64::from(block.0.frames())).sum()
    }

    pub(crate) fn occupant_of(&self, frame: Pfn) -> Occupant {
        let blocks = self.blocks.borrow();
        match blocks.range(..=frame.get()).next_back() {
            Some((&first, &(order, _))) if frame.get() < first + order.frames() => {
                match self.pinned.borrow().contains(&first) {
                    true => Occupant::Pinned,
                    false => Occupant::Movable { first: Pfn::new(first), order },
                }
            }
            _ => Occupant::Unknown,
        }
    }

    pub(crate) fn do_move(&self, this: &Move) {
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.remove(&this.from().get()).expect("what is named is held");
        assert_eq!(block.0, this.order());
        assert!(this.to().is_aligned(this.order()), "{this:?}");
        assert_eq!(blocks.insert(this.to().get(), block), None, "the destination is free");
        self.moves.borrow_mut().push((this.from().get(), this.to().get()));
    }

    pub(crate) fn free_all(&self, depot: &Single<'_>) {
        for (first, (order, _)) in std::mem::take(&mut *self.blocks.borrow_mut()) {
            depot.free(Pfn::new(first), order).unwrap();
        }
    }

    /// Checks that the allocator counts as held what is held here, and nothing else.
    pub(crate) fn check(&self, depot: &mut Single<'_>) {
        assert_eq!(depot.validate().unwrap().held_pages(), self.held_pages());
    }
}

impl Mover for Table {
    fn occupant(&self, frame: Pfn) -> Occupant {
        self.occupant_of(frame)
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        for this in moves {
            self.do_move(this);
            this.moved();
        }
    }
}

/// A mover of one function.
pub(crate) struct By<'t, F>(pub(crate) &'t Table, pub(crate) F);

impl<F: Fn(&Table, &mut [Move])> Mover for By<'_, F> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        self.0.occupant_of(frame)
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        (self.1)(self.0, moves);
    }
}

/// One zone of so many pageblocks.
pub(crate) fn with_pageblocks(
    pageblocks: u32,
    change: impl Fn(&mut Config<'_>),
    test: impl FnOnce(Single<'_>),
) {
    let ranges = [range(0, pageblocks * PAGEBLOCK)];
    let zones = [open_zone("a", &ranges)];
    let mut config = Config::new(2, &zones);
    change(&mut config);
    test(single(&config, &mut metadata(&config)));
}

fn whole(depot: &Single<'_>, pageblocks: u32) -> u32 {
    depot.drain(Scope::ALL, Mode::Full);
    let is_whole = |pageblock: &u32| {
        (0..PAGEBLOCK).all(|at| depot.is_free(Pfn::new(pageblock * PAGEBLOCK + at)))
    };
    (0..pageblocks).filter(is_whole).count() as u32
}

/// Blocks of orders 0 to 3 in all memory; then a random part of them is freed.
fn scatter(depot: &Single<'_>, table: &Table, kept_of_ten: u64, orders: u64) {
    scatter_by(&mut Rng::new(seed("compacting")), depot, table, kept_of_ten, orders);
}

fn scatter_by(rng: &mut Rng, depot: &Single<'_>, table: &Table, kept_of_ten: u64, orders: u64) {
    let mut all = Vec::new();
    while let Some(pfn) = {
        let order = order(rng.below(orders) as u32);
        depot.alloc(order, Flags::default()).ok().map(|pfn| (pfn, order))
    } {
        all.push(pfn);
    }
    for (pfn, order) in all {
        match rng.below(10) < kept_of_ten {
            true => drop(table.insert(pfn, order)),
            false => depot.free(pfn, order).unwrap(),
        }
    }
}

#[test]
fn scattered_blocks_are_gathered() {
    for checked in [false, true] {
        let mut rng = Rng::new(seed("compacting"));
        let mut of_larger = (0, 0);
        // Of larger blocks four layouts: in one of some three hundred they leave many gaps.
        for (kept, orders) in [(5, 1), (2, 1), (8, 1), (5, 4), (5, 4), (5, 4), (5, 4)] {
            with_pageblocks(
                32,
                |config| config.checked = checked,
                |mut depot| {
                    let table = Table::default();
                    scatter_by(&mut rng, &depot, &table, kept, orders);
                    let before = table.contents();
                    assert!(whole(&depot, 32) < 4, "it is scattered");
                    let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
                    assert_eq!(table.contents(), before, "every block is somewhere");
                    let free_pages = 32 * 512 - table.held_pages();
                    let possible = free_pages / 512;
                    // Larger blocks leave gaps.
                    let expected = if orders == 1 { possible - 1 } else { possible * 4 / 5 };
                    assert!(done.whole_pageblocks >= expected, "{done:?}, {possible} possible");
                    if orders > 1 {
                        of_larger.0 += done.whole_pageblocks;
                        of_larger.1 += possible;
                    }
                    assert_eq!(u64::from(whole(&depot, 32)), done.whole_pageblocks);
                    assert_eq!(done.end, CompactEnd::NothingLeft);
                    assert_eq!(done.moved_blocks, table.moves.borrow().len() as u64);
                    assert!(done.moved_pages < 16 * 512, "half of the memory at most: {done:?}");
                    table.check(&mut depot);
                    let stats = depot.zone_stats(ZONE).unwrap().compactions;
                    assert_eq!((stats.compactions, stats.moved_pages), (1, done.moved_pages));
                    // Nothing is gained by moving any more.
                    let again = depot.compact(ZONE, Compaction::all(), &table).unwrap();
                    assert!(again.moved_pages < 512, "{again:?}");
                    table.free_all(&depot);
                    assert_eq!(depot.validate().unwrap().held_pages(), 0);
                },
            );
        }
        let (whole, possible) = of_larger;
        assert!(whole >= possible * 9 / 10, "{whole} of {possible}");
    }
}

#[test]
fn the_cheapest_pageblocks_come_first() {
    with_pageblocks(
        8,
        |config| config.caches = false,
        |mut depot| {
            let table = Table::default();
            // Held by pageblock: all have some.
            for (pageblock, held) in [300, 7, 200, 1, 50, 3, 400, 100].into_iter().enumerate() {
                for at in 0..held {
                    table.hold_at(&depot, pageblock as u32 * 512 + at);
                }
            }
            let done = depot.compact(ZONE, Compaction::pageblocks(1), &table).unwrap();
            assert_eq!((done.end, done.whole_pageblocks), (CompactEnd::Reached, 1));
            assert_eq!((done.moved_blocks, done.looks), (1, 1));
            let (from, to) = table.moves.borrow()[0];
            assert_eq!((from / 512, to / 512), (3, 6), "from the sparsest to the densest");
            // Those that are there count.
            let done = depot.compact(ZONE, Compaction::pageblocks(4), &table).unwrap();
            assert_eq!((done.whole_pageblocks, done.moved_blocks), (4, 3 + 7 + 50));
            let done = depot.compact(ZONE, Compaction::pageblocks(4), &table).unwrap();
            assert_eq!((done.end, done.moved_blocks, done.looks), (CompactEnd::Reached, 0, 0));
            table.check(&mut depot);
        },
    );
}

#[test]
fn a_pinned_block_costs_no_move() {
    with_pageblocks(
        4,
        |_| {},
        |mut depot| {
            let table = Table::default();
            for frame in [10, 20, 30, 600, 601, 602, 603, 1100, 1101, 1102, 1103, 1104] {
                table.hold_at(&depot, frame);
            }
            table.pinned.borrow_mut().push(20);
            let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
            assert!(table.blocks.borrow().contains_key(&10), "its neighbours stay: {done:?}");
            assert_eq!((done.pinned_blocks, done.moved_blocks), (1, 4));
            assert_eq!(done.whole_pageblocks, 2);
            assert!(table.blocks.borrow().contains_key(&1100), "nowhere denser to go");
            table.check(&mut depot);
        },
    );
}

/// Pageblocks that are not movable have no room that counts, so a walk missed nothing of theirs.
#[test]
fn a_reclaimable_pageblock_needs_room_for_its_blocks_alone() {
    with_pageblocks(
        2,
        |config| config.caches = false,
        |mut depot| {
            let table = Table::default();
            for _ in 0..10 {
                let pfn = depot.alloc(Order::BASE, Flags::RECLAIMABLE).unwrap();
                table.insert(pfn, Order::BASE);
            }
            let other = 512 - *table.blocks.borrow().keys().next().unwrap() / 512 * 512;
            (0..300).for_each(|at| table.hold_at(&depot, other + at));
            let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
            assert_eq!((done.moved_blocks, done.emptied_pageblocks), (10, 1), "{done:?}");
            table.check(&mut depot);
        },
    );
}

/// Movable blocks leave a pageblock of unmovable ones for any movable one, when all others have
/// been looked at.
#[test]
fn unmovable_pageblocks_are_emptied_last() {
    // Frames held by pageblock, of which the first is unmovable, and by pageblock those moved out.
    for (held, moved) in [
        ([10, 300, 0, 0], [10, 0, 0, 0]),
        // The second is pinned, and has room.
        ([200, 20, 400, 0], [200, 0, 0, 0]),
        ([10, 30, 100, 450], [10, 30, 0, 0]),
        ([400, 5, 300, 500], [0, 5, 0, 0]),
        // A full one; all others are pinned, and have room.
        ([512, 300, 300, 300], [512, 0, 0, 0]),
    ] {
        with_pageblocks(
            4,
            |config| config.caches = false,
            |mut depot| {
                let table = Table::default();
                // The pageblock stays unmovable.
                depot.alloc_at(Pfn::new(0), PAGEBLOCK, Flags::UNMOVABLE).unwrap();
                depot.free_contiguous(Pfn::new(0), PAGEBLOCK).unwrap();
                for (frame, held) in (0..).step_by(512).zip(held) {
                    (frame..frame + held).for_each(|at| table.hold_at(&depot, at));
                }
                let pinned = match held {
                    [_, 20, ..] => 512..513,
                    [512, ..] => 512..4 * 512,
                    _ => 0..0,
                };
                table.pinned.borrow_mut().extend(pinned);
                let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
                let moves = table.moves.borrow();
                assert!(moves.is_sorted_by_key(|&(from, _)| from < 512), "it is last: {done:?}");
                let of = |pageblock| moves.iter().filter(|at| at.0 / 512 == pageblock).count();
                assert_eq!([0, 1, 2, 3].map(of), moved, "{done:?}");
                let emptied = moved.iter().filter(|&&moved| moved > 0).count();
                assert_eq!(done.emptied_pageblocks, emptied as u64, "{done:?}");
                assert_eq!((done.end, done.unplaced_blocks), (CompactEnd::NothingLeft, 0));
                table.check(&mut depot);
            },
        );
    }
}

/// A pageblock of unmovable requests with a block that the mover does not know goes on to serve
/// them while it is looked at.
#[test]
fn unmovable_pageblocks_of_others_are_not_isolated() {
    struct Looks<'t, 'd, 'm>(&'t Table, &'d Single<'m>, Cell<u32>);
    impl Mover for Looks<'_, '_, '_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            self.2.set(self.2.get() + 1);
            let (_, pageblock) = Pageblocks::at(self.1, frame).unwrap();
            assert_eq!(pageblock.mobility, Some(Mobility::Unmovable), "it is isolated");
            self.0.occupant_of(frame)
        }
        fn move_blocks(&self, moves: &mut [Move]) {
            self.0.move_blocks(moves);
        }
    }
    with_pageblocks(
        2,
        |config| config.caches = false,
        |depot| {
            let table = Table::default();
            let unknown = depot.alloc(Order::BASE, Flags::UNMOVABLE).unwrap();
            let other = 512 - unknown.get() / 512 * 512;
            depot.alloc_at(Pfn::new(other), 300, Flags::default()).unwrap();
            let mover = Looks(&table, &depot, Cell::new(0));
            let done = depot.compact(ZONE, Compaction::all(), &mover).unwrap();
            assert_eq!((mover.2.get(), done.unknown_frames, done.looks), (1, 1, 1), "{done:?}");
        },
    );
}

/// The room that is reserved for pinned pageblocks, the first of their group, serves the others.
#[test]
fn pinned_pageblocks_take_no_room_from_others() {
    with_pageblocks(
        4,
        |config| config.caches = false,
        |mut depot| {
            let table = Table::default();
            for (pageblock, held) in [100, 100, 200, 212].into_iter().enumerate() {
                (0..held).for_each(|at| table.hold_at(&depot, pageblock as u32 * 512 + at));
            }
            table.pinned.borrow_mut().extend([50, 512 + 50]);
            let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
            assert_eq!((done.moved_blocks, done.emptied_pageblocks), (200, 1), "{done:?}");
            assert_eq!((done.end, done.pinned_blocks), (CompactEnd::NothingLeft, 2));
            table.check(&mut depot);
        },
    );
}

/// More dense pageblocks than one walk ranks have no block of the order, too little room for one or
/// enough of it, and a sparser one has.
#[test]
fn a_larger_block_finds_room_beyond_the_densest_pageblocks() {
    // Frames of each run of 64, or of the pageblock, that are held there.
    for (run, held) in [(512, 511), (64, 63)] {
        with_pageblocks(
            66,
            |config| config.caches = false,
            |mut depot| {
                let (table, flags) = (Table::default(), Flags::default());
                for start in (0..64 * 512).step_by(run) {
                    depot.alloc_at(Pfn::new(start), held, flags).unwrap();
                }
                depot.alloc_at(Pfn::new(64 * 512), 256, flags).unwrap();
                depot.alloc_at(Pfn::new(65 * 512), 8, flags).unwrap();
                table.insert(Pfn::new(65 * 512), order(3));
                let done = depot.compact(ZONE, Compaction::pageblocks(1), &table).unwrap();
                assert_eq!((done.moved_blocks, done.emptied_pageblocks), (1, 1), "{done:?}");
                assert_eq!(done.unplaced_blocks, 0);
                assert_eq!(table.moves.borrow()[0].1 / 512, 64);
                depot.validate().unwrap();
            },
        );
    }
}

/// More pageblocks than one walk ranks have room in pieces that are too small, and what a walk says
/// of them is not enough to know.
#[test]
fn a_larger_block_finds_room_beyond_many_small_pieces() {
    with_pageblocks(
        140,
        |config| config.caches = false,
        |mut depot| {
            let (table, flags) = (Table::default(), Flags::default());
            for frame in (0..138 * 512).step_by(2) {
                depot.alloc_at(Pfn::new(frame), 1, flags).unwrap();
            }
            depot.alloc_at(Pfn::new(138 * 512), 128, flags).unwrap();
            depot.alloc_at(Pfn::new(139 * 512), 32, flags).unwrap();
            (0..4).for_each(|at| _ = table.insert(Pfn::new(139 * 512 + 8 * at), order(3)));
            let done = depot.compact(ZONE, Compaction::pageblocks(1), &table).unwrap();
            assert_eq!((done.moved_blocks, done.emptied_pageblocks), (4, 1), "{done:?}");
            assert_eq!(done.unplaced_blocks, 0);
            assert!(table.moves.borrow().iter().all(|moved| moved.1 / 512 == 138));
            depot.validate().unwrap();
        },
    );
}

/// A pageblock that may not be looked at any more keeps no room from the reason for the end.
#[test]
fn a_budget_that_is_used_up_is_the_reason_for_the_end() {
    with_pageblocks(
        3,
        |config| config.caches = false,
        |mut depot| {
            let table = Table::default();
            for (pageblock, held) in [(0, 100), (1, 200), (2, 200)] {
                (0..held).for_each(|at| table.hold_at(&depot, pageblock * 512 + at));
            }
            table.pinned.borrow_mut().push(0);
            let rules = Compaction::all().looks_max(1);
            let done = depot.compact(ZONE, rules, &table).unwrap();
            assert_eq!((done.moved_blocks, done.end), (0, CompactEnd::Budget), "{done:?}");
            table.check(&mut depot);
        },
    );
}

#[test]
fn budgets_are_kept() {
    with_pageblocks(
        16,
        |_| {},
        |mut depot| {
            let table = Table::default();
            scatter(&depot, &table, 5, 1);
            for moves in [0, 1, 17, 100] {
                let rules = Compaction::all().moves_max(moves);
                let done = depot.compact(ZONE, rules, &table).unwrap();
                assert_eq!((done.end, done.moved_blocks), (CompactEnd::Budget, moves));
            }
            let done = depot.compact(ZONE, Compaction::all().looks_max(0), &table).unwrap();
            assert_eq!((done.end, done.moved_blocks, done.looks), (CompactEnd::Budget, 0, 0));
            let done = depot.compact(ZONE, Compaction::all().looks_max(2), &table).unwrap();
            assert_eq!((done.end, done.looks), (CompactEnd::Budget, 2));
            let done = depot.compact(ZONE, Compaction::range(512, 1).looks_max(0), &table).unwrap();
            assert_eq!(
                (done.range.is_some(), done.end),
                (done.end == CompactEnd::Reached, done.end)
            );
            table.check(&mut depot);
        },
    );
}

#[test]
fn what_cannot_be_asked_for() {
    with_pageblocks(
        8,
        |_| {},
        |mut depot| {
            let table = Table::default();
            table.hold_at(&depot, 5);
            let compact = |zone, rules| depot.compact(ZoneId::new(zone), rules, &table);
            let all = Compaction::all();
            assert_eq!(compact(1, all), Err(CompactError::NoSuchZone { zone: 1 }));
            assert_eq!(compact(u32::MAX, all), Err(CompactError::NoSuchZone { zone: u32::MAX }));
            for (frames, align) in [(0, 1), (1, 0), (1, 3), (u32::MAX, u32::MAX)] {
                let error = CompactError::BadRange { frames, align };
                assert_eq!(compact(0, Compaction::range(frames, align)), Err(error));
            }
            let error = CompactError::TooLarge { wanted: 9, managed: 8 };
            assert_eq!(compact(0, Compaction::pageblocks(9)), Err(error));
            assert_eq!(compact(0, Compaction::range(4097, 1)), Err(error));
            assert!(matches!(
                compact(0, Compaction::range(u32::MAX, 1 << 31)),
                Err(CompactError::TooLarge { managed: 8, .. })
            ));
            // No multiple of the alignment but the first frame is in the zone.
            let done = compact(0, Compaction::range(512, 1 << 31)).unwrap();
            assert_eq!(done.range, Some(range(0, 512)));
            assert!(!error.to_string().is_empty());
            table.check(&mut depot);
        },
    );
    let ranges = [range(0, 4096)];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(1, &zones);
    let sets = Sets::new(&zones, true);
    let builder = Single::builder(&config).backing(Some(&sets));
    let mut memory = vec![MaybeUninit::uninit(); builder.metadata_bytes().unwrap()];
    let depot = builder.build(&mut memory, PinnedCpus(Anywhere::new())).unwrap();
    let refused = depot.compact(ZONE, Compaction::all(), &Table::default());
    assert_eq!(refused, Err(CompactError::Unsupported));
}

#[test]
fn a_mover_that_panics_loses_nothing() {
    for checked in [false, true] {
        for panics_after in 0..20 {
            with_pageblocks(
                8,
                |config| config.checked = checked,
                |mut depot| {
                    let table = Table::default();
                    scatter(&depot, &table, 5, 3);
                    let before = table.contents();
                    let made = Cell::new(0);
                    let mover = By(&table, |table: &Table, moves: &mut [Move]| {
                        for this in moves {
                            assert!(made.get() < panics_after, "on purpose");
                            made.set(made.get() + 1);
                            table.do_move(this);
                            this.moved();
                        }
                    });
                    let compact = || depot.compact(ZONE, Compaction::all(), &mover);
                    let result = catch_unwind(AssertUnwindSafe(compact));
                    assert!(result.is_err());
                    assert_eq!(table.contents(), before);
                    table.check(&mut depot);
                    // Nothing stays isolated.
                    depot.compact(ZONE, Compaction::all(), &table).unwrap();
                    table.free_all(&depot);
                    depot.remove_memory(ZONE, range(0, 8 * 512)).unwrap();
                },
            );
        }
    }
}

#[test]
fn a_mover_that_moves_nothing() {
    with_pageblocks(
        8,
        |config| config.checked = true,
        |mut depot| {
            let table = Table::default();
            scatter(&depot, &table, 5, 1);
            let says: [fn(&mut Move); 3] = [|_| {}, Move::pinned, Move::gone];
            for say in says {
                let mover = By(&table, |_: &Table, moves: &mut [Move]| {
                    moves.iter_mut().for_each(say);
                });
                let before = depot.validate().unwrap().held_pages();
                let done = depot.compact(ZONE, Compaction::all(), &mover).unwrap();
                assert_eq!((done.moved_blocks, done.emptied_pageblocks), (0, 0), "{done:?}");
                assert!(done.pinned_blocks + done.gone_blocks > 0);
                assert_eq!(depot.validate().unwrap().held_pages(), before);
            }
        },
    );
}

/// Answers about blocks that cannot be.
#[test]
fn a_mover_that_lies_about_blocks() {
    struct Liar(Cell<u32>);
    impl Mover for Liar {
        fn occupant(&self, frame: Pfn) -> Occupant {
            self.0.set(self.0.get() + 1);
            let block = |first: u32, order| Occupant::Movable {
                first: Pfn::new(first),
                order: Order::new(order).unwrap(),
            };
            let at = frame.get();
            match self.0.get() % 7 {
                0 => block(at + 1, 0),
                1 => block(at | 1, 1),
                2 => block(u32::MAX, 0),
                3 => block(at & !1023, 10),
                4 => block(at & !511, 9),
                5 => block(0, 10),
                _ => Occupant::Unknown,
            }
        }

        fn move_blocks(&self, moves: &mut [Move]) {
            panic!("nothing can be moved: {moves:?}");
        }
    }
    with_pageblocks(
        8,
        |_| {},
        |mut depot| {
            let table = Table::default();
            for frame in (3..8 * 512).step_by(700) {
                table.hold_at(&depot, frame);
            }
            for _ in 0..7 {
                depot.compact(ZONE, Compaction::all(), &Liar(Cell::new(0))).unwrap();
                table.check(&mut depot);
            }
        },
    );
}

/// Checks that `checked` finds a move of a block that its holder freed, as it finds a double free.
#[test]
fn a_move_of_what_is_not_held_is_reported() {
    static REPORTS: AtomicU64 = AtomicU64::new(0);
    fn note(_: Misuse) {
        REPORTS.fetch_add(1, Ordering::Relaxed);
    }
    for checked in [false, true] {
        with_pageblocks(
            4,
            |config| {
                config.checked = checked;
                config.on_misuse = Some(note);
            },
            |mut depot| {
                let table = Table::default();
                table.hold_at(&depot, 5);
                (600..700).for_each(|frame| table.hold_at(&depot, frame));
                let mover = By(&table, |table: &Table, moves: &mut [Move]| {
                    for this in moves {
                        depot.free(this.from(), this.order()).unwrap();
                        table.do_move(this);
                        this.moved();
                    }
                });
                let before = REPORTS.load(Ordering::Relaxed);
                let rules = Compaction::pageblocks(3).moves_max(1);
                assert_eq!(depot.compact(ZONE, rules, &mover).unwrap().moved_blocks, 1);
                assert_eq!(REPORTS.load(Ordering::Relaxed), before + 1);
                table.check(&mut depot);
            },
        );
    }
}

/// Misuse that was noted, and whose report panics, is left to another call: one that removes memory
/// has to tell its caller that it owns the range.
#[test]
fn a_removal_leaves_reports_that_panic_to_others() {
    struct RemovingMover<'t, 'd, 'm>(&'t Table, &'d Single<'m>, Cell<Option<RemoveResult>>);
    type RemoveResult = Result<(), RemoveError>;
    impl Mover for RemovingMover<'_, '_, '_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            self.0.occupant_of(frame)
        }
        fn move_blocks(&self, moves: &mut [Move]) {
            moves.iter().for_each(|this| self.1.free(this.from(), this.order()).unwrap());
            self.0.move_blocks(moves);
        }
        fn progress(&self, _: &CompactResult) -> ControlFlow<()> {
            self.2.set(Some(self.1.remove_memory(ZONE, range(3 * 512, 512))));
            ControlFlow::Break(())
        }
    }
    with_pageblocks(
        4,
        |config| config.caches = false,
        |mut depot| {
            let table = Table::default();
            table.hold_at(&depot, 5);
            (600..700).for_each(|frame| table.hold_at(&depot, frame));
            let mover = RemovingMover(&table, &depot, Cell::new(None));
            let compact = || depot.compact(ZONE, Compaction::pageblocks(4), &mover);
            assert!(catch_unwind(AssertUnwindSafe(compact)).is_err(), "a block was freed twice");
            assert_eq!(mover.2.get(), Some(Ok(())));
            assert_eq!(depot.validate().unwrap().managed_pages, 3 * 512);
            table.check(&mut depot);
        },
    );
}

/// The mover frees blocks of the source, allocates, drains, and compacts by itself.
#[test]
fn a_mover_that_uses_the_allocator() {
    struct Busy<'t, 'd, 'm>(&'t Table, &'d Single<'m>, Cell<u32>);
    impl Mover for Busy<'_, '_, '_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            self.0.occupant_of(frame)
        }

        fn move_blocks(&self, moves: &mut [Move]) {
            let (table, depot) = (self.0, self.1);
            for this in &mut *moves {
                self.2.set(self.2.get() + 1);
                if self.2.get().is_multiple_of(3) {
                    let (order, _) = table.blocks.borrow_mut().remove(&this.from().get()).unwrap();
                    depot.free(this.from(), order).unwrap();
                    this.gone();
                } else {
                    table.do_move(this);
                    this.moved();
                }
            }
            table.hold(depot, Order::BASE);
            if self.2.get().is_multiple_of(5) {
                depot.drain(Scope::ALL, Mode::Full);
                let rules = Compaction::all().looks_max(1);
                depot.compact(ZONE, rules, table).unwrap();
            }
        }
    }
    for checked in [false, true] {
        with_pageblocks(
            16,
            |config| config.checked = checked,
            |mut depot| {
                let table = Table::default();
                scatter(&depot, &table, 4, 2);
                let busy = Busy(&table, &depot, Cell::new(0));
                let done = depot.compact(ZONE, Compaction::all(), &busy).unwrap();
                assert!(done.gone_blocks > 0 && done.moved_blocks > 0, "{done:?}");
                table.check(&mut depot);
            },
        );
    }
}

#[test]
fn cached_frames_are_drained_once_per_group() {
    with_pageblocks(
        4,
        |_| {},
        |mut depot| {
            let table = Table::default();
            let held = table.hold(&depot, Order::BASE);
            // The rest of the pageblock is partly cached.
            let cached: Vec<Pfn> = (0..300).map(|_| table.hold(&depot, Order::BASE)).collect();
            for pfn in cached {
                table.blocks.borrow_mut().remove(&pfn.get());
                depot.free(pfn, Order::BASE).unwrap();
            }
            let other = (held.get() / 512 + 1) % 4 * 512;
            (0..40).for_each(|at| table.hold_at(&depot, other + at));
            assert!(depot.cpu_stats(CpuId::new(0), ZONE).unwrap().cached_pages() > 0);
            let quiet = Compaction::pageblocks(3).drain(Mode::Quiet);
            let done = depot.compact(ZONE, quiet, &table).unwrap();
            assert_eq!(depot.cpus().0.fences(), 0, "{done:?}");
            let done = depot.compact(ZONE, Compaction::pageblocks(3), &table).unwrap();
            assert_eq!(done.end, CompactEnd::Reached, "{done:?}");
            table.check(&mut depot);
        },
    );
}

/// Frames that CPUs cache are not free in their pageblocks, but there is room for blocks there once
/// they are drained.
#[test]
fn full_caches_hide_no_room() {
    let (cpus, pageblocks) = (8, 16);
    let ranges = [range(0, pageblocks * PAGEBLOCK)];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(cpus, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let table = Table::default();
    let all: Vec<Pfn> =
        std::iter::from_fn(|| depot.alloc(Order::BASE, Flags::default()).ok()).collect();
    for (i, pfn) in all.into_iter().enumerate() {
        if i % 4 == 0 {
            table.insert(pfn, Order::BASE);
            continue;
        }
        depot.cpus().0.run_on(i as u32 % cpus);
        depot.free(pfn, Order::BASE).unwrap();
    }
    let stats = |cpu| depot.cpu_stats(CpuId::new(cpu), ZONE).unwrap().cached_pages();
    let cached: u64 = (0..cpus).map(stats).sum();
    assert!(cached >= 400, "{cached} pages are cached");
    let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
    // A quarter of the memory is held, and of each pageblock.
    let expected = (12, 12 * 128);
    assert_eq!((done.whole_pageblocks, done.moved_blocks), expected, "{done:?}, cached: {cached}");
    table.check(&mut depot);
}

/// The frame is free, in a pageblock that is being emptied.
#[test]
fn a_request_for_given_frames_waits_for_those_that_are_emptied() {
    struct Asked<'a> {
        start: Sender<Pfn>,
        held: u32,
        cpus: &'a Parked,
    }
    impl Mover for Asked<'_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            match frame.get() == self.held {
                true => Occupant::Movable { first: frame, order: Order::BASE },
                false => Occupant::Unknown,
            }
        }

        fn move_blocks(&self, moves: &mut [Move]) {
            let (waits, began) = (self.cpus.waits(), Instant::now());
            self.start.send(moves[0].from().add(1)).unwrap();
            // Until the other thread waits. If it does not, its request has failed.
            while self.cpus.waits() == waits && began.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            moves.iter_mut().for_each(Move::moved);
        }
    }
    let ranges = [range(0, 4 * PAGEBLOCK)];
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let depot = Allocator::new(&config, &mut memory, PinnedCpus(Parked::new(2))).unwrap();
    run_on(Some(0));
    (0..300).for_each(|at| depot.alloc_at(Pfn::new(at), 1, Flags::default()).unwrap());
    depot.alloc_at(Pfn::new(PAGEBLOCK), 1, Flags::default()).unwrap();
    let (start, asked) = std::sync::mpsc::channel();
    let mover = Asked { start, held: PAGEBLOCK, cpus: &depot.cpus().0 };
    std::thread::scope(|scope| {
        let depot = &depot;
        let answer = scope.spawn(move || {
            run_on(Some(1));
            depot.alloc_at(asked.recv().unwrap(), 1, Flags::default())
        });
        depot.compact(ZONE, Compaction::pageblocks(4), &mover).unwrap();
        assert_eq!(answer.join().unwrap(), Ok(()));
    });
}

/// Frames that are free in a pageblock that another caller empties stay that caller's, also where
/// memory is too low for the request to isolate it.
#[test]
fn a_request_for_given_frames_takes_none_that_another_caller_isolated() {
    let ranges = [range(0, 4 * PAGEBLOCK)];
    let mut zones = [open_zone("a", &ranges)];
    zones[0].watermarks = Some(Watermarks { min: 0, low: 1000, high: 1000 });
    let config = Config { caches: false, ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let compactor = Compactor::new(&Elsewhere);
    let depot = single(&config, &mut memory);
    compactor.register(&depot).unwrap();
    let table = Table::default();
    table.hold_at(&depot, 0);
    (0..300).for_each(|at| table.hold_at(&depot, PAGEBLOCK + at / 100 * PAGEBLOCK + at % 100));
    let asked = Cell::new(0);
    let mover = By(&table, |table: &Table, moves: &mut [Move]| {
        asked.set(asked.get() + 1);
        let request = depot.alloc_at(Pfn::new(1), 2, Flags::MOVABLE.compact());
        assert_eq!(request, Err(AllocError::NotAvailable));
        table.move_blocks(moves);
    });
    let done = depot.compact(ZONE, Compaction::range(PAGEBLOCK, PAGEBLOCK), &mover).unwrap();
    assert_eq!((done.end, done.range), (CompactEnd::Reached, Some(range(0, PAGEBLOCK))));
    assert_eq!((asked.get(), done.moved_blocks), (1, 1), "{done:?}");
}

/// Free memory need not be isolated to be found, and requests look there meanwhile.
#[test]
fn a_free_range_is_found_where_memory_is_low() {
    let ranges = [range(0, 8 * PAGEBLOCK)];
    let mut zones = [open_zone("a", &ranges)];
    zones[0].watermarks = Some(Watermarks { min: 0, low: 2000, high: 2100 });
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let table = Table::default();
    table.hold_at(&depot, 0);
    let rules = Compaction::range(7 * PAGEBLOCK, PAGEBLOCK);
    let done = depot.compact(ZONE, rules, &table).unwrap();
    assert_eq!((done.end, done.range), (CompactEnd::Reached, Some(range(512, 7 * 512))));
    table.free_all(&depot);
}

/// Holds the first half of each of eight pageblocks.
fn hold_halves(depot: &Single<'_>, table: &Table) {
    (0..8 * 256).for_each(|at| table.hold_at(depot, at / 256 * 512 + at % 256));
}

#[test]
fn nothing_is_isolated_where_memory_is_low() {
    let ranges = [range(0, 8 * 512)];
    let mut zones = [open_zone("a", &ranges)];
    zones[0].watermarks = Some(Watermarks { min: 0, low: 2000, high: 2100 });
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let table = Table::default();
    hold_halves(&depot, &table);
    let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
    assert_eq!((done.end, done.moved_blocks), (CompactEnd::LowMemory, 0));
    assert!(depot.settings(ZONE).unwrap().set_watermarks(Watermarks {
        min: 0,
        low: 100,
        high: 200
    }));
    let done = depot.compact(ZONE, Compaction::all(), &table).unwrap();
    assert_eq!(done.whole_pageblocks, 4, "{done:?}");
    table.check(&mut depot);
}

/// Free memory outside of the sources of both is compared with the watermark.
#[test]
fn two_compactions_together_leave_as_much_as_one() {
    let ranges = [range(0, 8 * 512)];
    let mut zones = [open_zone("a", &ranges)];
    zones[0].watermarks = Some(Watermarks { min: 0, low: 1000, high: 1000 });
    let config = Config::new(1, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let table = Table::default();
    hold_halves(&depot, &table);
    let inner = RefCell::new(Vec::new());
    let outer = By(&table, |table: &Table, moves: &mut [Move]| {
        // 8 * 256 pages are free, of which the outer compaction has isolated two pageblocks.
        let done = depot.compact(ZONE, Compaction::all(), table).unwrap();
        inner.borrow_mut().push((done.end, done.moved_blocks));
        table.move_blocks(moves);
    });
    let done = depot.compact(ZONE, Compaction::all(), &outer).unwrap();
    assert_eq!(done.whole_pageblocks, 4, "{done:?}");
    assert_eq!(inner.take()[0], (CompactEnd::LowMemory, 0));
    table.check(&mut depot);
}

/// A mover that allocates leaves too little for a further batch, after the only one.
#[test]
fn a_window_that_is_empty_serves_though_memory_is_low_by_now() {
    let ranges = [range(0, 4 * PAGEBLOCK)];
    let mut zones = [open_zone("a", &ranges)];
    zones[0].watermarks = Some(Watermarks { min: 0, low: 1400, high: 1400 });
    let config = Config { caches: false, ..Config::new(1, &zones) };
    for (held, expected) in [(10, CompactEnd::Reached), (20, CompactEnd::LowMemory)] {
        let mut memory = metadata(&config);
        let mut depot = single(&config, &mut memory);
        let table = Table::default();
        (0..4 * held).for_each(|at| table.hold_at(&depot, at / held * 512 + at % held));
        let mover = By(&table, |table: &Table, moves: &mut [Move]| {
            table.move_blocks(moves);
            for _ in 0..100 {
                table.hold(&depot, Order::BASE);
            }
        });
        let done = depot.compact(ZONE, Compaction::range(512, 512), &mover).unwrap();
        assert_eq!((done.end, done.range.is_some()), (expected, held == 10), "{done:?}");
        assert_eq!(done.moved_blocks, held.min(16).into());
        table.check(&mut depot);
    }
}

#[test]
fn the_mover_may_stop_it() {
    struct Stops<'t>(&'t Table, Cell<u32>);
    impl Mover for Stops<'_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            self.0.occupant(frame)
        }

        fn move_blocks(&self, moves: &mut [Move]) {
            self.0.move_blocks(moves);
        }

        fn progress(&self, so_far: &CompactResult) -> ControlFlow<()> {
            self.1.set(self.1.get() + 1);
            assert_eq!(so_far.looks, so_far.looks.max(u64::from(self.1.get())));
            if self.1.get() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    with_pageblocks(
        32,
        |_| {},
        |mut depot| {
            let table = Table::default();
            scatter(&depot, &table, 3, 1);
            let stops = Stops(&table, Cell::new(0));
            let done = depot.compact(ZONE, Compaction::all(), &stops).unwrap();
            assert_eq!((done.end, stops.1.get()), (CompactEnd::Stopped, 3));
            assert_eq!(done.emptied_pageblocks, 3);
            table.check(&mut depot);
        },
    );
}

/// A gibibyte out of three: the one with the fewest held blocks is emptied.
#[test]
fn a_gibibyte_is_emptied() {
    let gib = 1u32 << 18;
    let ranges = [range(0, 3 * gib)];
    let zones = [open_zone("a", &ranges)];
    let config = Config { caches: false, ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    let table = Table::default();
    for (section, step) in [(0, 1000), (1, 3000), (2, 500)] {
        (100..gib).step_by(step).for_each(|at| table.hold_at(&depot, section * gib + at));
    }
    let before = table.contents();
    // As blocks of order 9, too.
    depot.alloc_at(Pfn::new(gib + 2048), 512, Flags::default()).unwrap();
    depot.free_contiguous(Pfn::new(gib + 2048), 512).unwrap();
    let done = depot.compact(ZONE, Compaction::range(gib, gib), &table).unwrap();
    assert_eq!(done.range, Some(range(gib, gib)));
    assert_eq!((done.moved_blocks, done.looks), (88, 1), "{done:?}");
    assert_eq!(table.contents(), before);
    table.check(&mut depot);
    assert_eq!(depot.alloc_contiguous(gib, gib, Flags::default()), Ok(Pfn::new(gib)));
    // What is not aligned is found by the sum over each window.
    let done = depot.compact(ZONE, Compaction::range(3 * 512, 1), &table).unwrap();
    assert_eq!((done.end, done.range.map(|range| range.frames)), (CompactEnd::Reached, Some(1536)));
}

#[test]
fn a_request_has_blocks_moved_if_it_may() {
    for checked in [false, true] {
        let table = Table::default();
        struct One<'t>(&'t Table);
        // SAFETY: one thread; the table is not used by any other.
        unsafe impl Sync for One<'_> {}
        impl Mover for One<'_> {
            fn occupant(&self, frame: Pfn) -> Occupant {
                self.0.occupant(frame)
            }
            fn move_blocks(&self, moves: &mut [Move]) {
                self.0.move_blocks(moves);
            }
        }
        let mover = One(&table);
        let ranges = [range(0, 16 * 512)];
        let zones = [open_zone("a", &ranges)];
        let config = Config { checked, ..Config::new(2, &zones) };
        let mut memory = metadata(&config);
        let (compactor, second) = (Compactor::new(&mover), Compactor::new(&mover));
        let mut depot = single(&config, &mut memory);
        compactor.register(&depot).unwrap();
        assert!(second.register(&depot).is_err());
        scatter(&depot, &table, 5, 1);
        let flags = Flags::default();
        assert_eq!(depot.alloc_contiguous(1024, 1024, flags), Err(AllocError::Exhausted));
        for refused in [flags.compact().no_reclaim(), flags.compact().atomic()] {
            assert_eq!(depot.alloc_contiguous(1024, 1024, refused), Err(AllocError::Exhausted));
        }
        let start = depot.alloc_contiguous(1024, 1024, flags.compact()).unwrap();
        assert!(start.get().is_multiple_of(1024));
        // 700 frames of two pageblocks, for unmovable frames.
        let some = depot.alloc_contiguous(700, 1, Flags::UNMOVABLE.compact()).unwrap();
        let block = depot.alloc(Order::PAGEBLOCK, flags.compact()).unwrap();
        assert_eq!(depot.validate().unwrap().held_pages(), table.held_pages() + 1024 + 700 + 512);
        let stats = depot.zone_stats(ZONE).unwrap().compactions;
        assert_eq!((stats.compactions, stats.compact_reached), (3, 3));
        depot.free_contiguous(start, 1024).unwrap();
        depot.free_contiguous(some, 700).unwrap();
        depot.free(block, Order::PAGEBLOCK).unwrap();

        // These frames and no others.
        let first = *table.blocks.borrow().keys().nth(10).unwrap();
        let at = Pfn::new(first - 100.min(first));
        assert_eq!(depot.alloc_at(at, 900, flags), Err(AllocError::NotAvailable));
        depot.alloc_at(at, 900, flags.compact()).unwrap();
        assert!(
            !table.blocks.borrow().keys().any(|frame| (at.get()..at.get() + 900).contains(frame))
        );
        table.pinned.borrow_mut().extend(table.blocks.borrow().keys());
        assert!(depot.alloc_at(Pfn::new(0), 4000, flags.compact()).is_err(), "all are pinned");
        depot.free_contiguous(at, 900).unwrap();
        table.check(&mut depot);
    }
}

/// A mover that keeps a block leaves room beside it: the request is for less than a pageblock.
#[test]
fn a_request_gets_what_its_compaction_freed_around_a_block_that_stays() {
    let ranges = [range(0, 4 * PAGEBLOCK)];
    let zones = [open_zone("a", &ranges)];
    let config = Config { caches: false, ..Config::new(1, &zones) };
    let mover = Stubborn(AtomicU64::new(0));
    let compactor = Compactor::new(&mover);
    for (mobility, frames) in
        [(Mobility::Movable, 8), (Mobility::Unmovable, 8), (Mobility::Movable, 20)]
    {
        let mut memory = metadata(&config);
        let depot = single(&config, &mut memory);
        compactor.register(&depot).unwrap();
        let held = (0..4 * PAGEBLOCK).step_by(8);
        held.for_each(|at| depot.alloc_at(Pfn::new(at), 1, Flags::MOVABLE).unwrap());
        let request = |flags: Flags| match frames {
            8 => depot.alloc(order(3), flags),
            _ => depot.alloc_contiguous(frames, 1, flags),
        };
        let flags = Flags::new(mobility);
        assert_eq!(request(flags), Err(AllocError::Exhausted));
        request(flags.compact()).unwrap();
        let stats = depot.zone_stats(ZONE).unwrap();
        assert!(stats.compactions.moved_pages > 0, "{stats:?}");
        assert_eq!(stats.counts.failures, 1, "without `compact`");
    }
}

/// Moves all blocks like [`Elsewhere`], but one of each sixteen.
struct Stubborn(AtomicU64);

impl Mover for Stubborn {
    fn occupant(&self, frame: Pfn) -> Occupant {
        Elsewhere.occupant(frame)
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        for this in moves {
            match self.0.fetch_add(1, Ordering::Relaxed) % 16 {
                15 => this.pinned(),
                _ => this.moved(),
            }
        }
    }
}

/// A request's class decides which pageblocks its frames become, also where blocks were moved.
#[test]
fn pageblocks_emptied_for_a_class_are_kept_apart() {
    let mover = Elsewhere;
    let ranges = [range(0, 4 * 512)];
    let zones = [open_zone("a", &ranges)];
    let classes = Classes::ALIKE.apart(Mobility::Movable, Class::PAGE_CACHE);
    let config = Config { classes, caches: false, ..Config::new(1, &zones) };
    let mut memory = metadata(&config);
    let compactor = Compactor::new(&mover);
    let depot = single(&config, &mut memory);
    compactor.register(&depot).unwrap();
    (0..4).for_each(|at| depot.alloc_at(Pfn::new(at * 512), 1, Flags::MOVABLE).unwrap());
    for flags in [Flags::MOVABLE.class(Class::PAGE_CACHE), Flags::MOVABLE] {
        let start = depot.alloc_contiguous(512, 512, flags.compact()).unwrap();
        let (_, pageblock) = Pageblocks::at(&depot, start).unwrap();
        assert_eq!(pageblock.mobility, Some(Mobility::Movable));
        assert_eq!(pageblock.is_apart, flags != Flags::MOVABLE);
    }
}

/// Moves every frame by itself, and keeps no account of them.
struct Elsewhere;

impl Mover for Elsewhere {
    fn occupant(&self, frame: Pfn) -> Occupant {
        Occupant::Movable { first: frame, order: Order::BASE }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        moves.iter_mut().for_each(Move::moved);
    }
}

/// Blocks of a thread: those that are being moved are found by a lock.
type Shared = Mutex<BTreeMap<u32, Order>>;

/// A mover over the blocks of several threads.
struct Threads<'t> {
    tables: &'t [Shared],
    contents: &'t [AtomicU64],
}

impl Threads<'_> {
    fn stamp(&self, first: u32, order: Order, value: u64, expected: u64) {
        for frame in first..first + order.frames() {
            let before = self.contents[frame as usize].swap(value, Ordering::Relaxed);
            assert_eq!(before, expected, "frame {frame}");
        }
    }
}

impl Mover for Threads<'_> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        for table in self.tables {
            if let Some((&first, &order)) = table.lock().unwrap().range(..=frame.get()).next_back()
                && frame.get() < first + order.frames()
            {
                return Occupant::Movable { first: Pfn::new(first), order };
            }
        }
        Occupant::Unknown
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        for this in moves {
            let owner = self.tables.iter().enumerate().find_map(|(owner, table)| {
                let mut table = table.lock().unwrap();
                // The block may have been freed, and its frame be another block's by now.
                if table.get(&this.from().get()) != Some(&this.order()) {
                    return None;
                }
                table.remove(&this.from().get());
                let owner = owner as u64 + 1;
                self.stamp(this.to().get(), this.order(), owner, 0);
                self.stamp(this.from().get(), this.order(), 0, owner);
                assert_eq!(table.insert(this.to().get(), this.order()), None);
                Some(owner)
            });
            if owner.is_some() { this.moved() } else { this.gone() }
        }
    }
}

/// Threads allocate, free and drain while two compact and one removes memory.
#[test]
fn beside_everything() {
    for checked in [false, true] {
        let moved = beside_threads(checked, &[0, 0, 0, 1, 2, 5], Evacuation::Adaptive);
        assert!(moved > 0);
    }
}

/// Runs compaction beside everything, with blocks of one and two pageblocks, which cross the edges
/// of windows.
#[test]
fn large_blocks_beside_everything() {
    for checked in [false, true] {
        let moved = beside_threads(checked, &[0, 1, 7, 8, 9, 10], Evacuation::Adaptive);
        assert!(moved > 0);
    }
}

/// Runs compaction beside everything, with small blocks that leave half of the memory free,
/// scattered: pageblocks evacuate.
#[test]
fn beside_everything_while_pageblocks_evacuate() {
    for checked in [false, true] {
        let policy = Evacuation::Goal { percent: 100 };
        let moved = beside_threads(checked, &[0, 0, 0, 0, 0, 1], policy);
        assert!(moved > 0);
    }
}

/// Returns how many blocks were moved. How many pageblocks evacuate depends on the threads' timing.
fn beside_threads(checked: bool, orders: &[u32], evacuation: Evacuation) -> u64 {
    const CPUS: u32 = 3;
    const PAGEBLOCKS: u32 = 24;
    let ranges = [range(0, PAGEBLOCKS * 512)];
    let zones = [open_zone("a", &ranges)];
    let config = Config { checked, evacuation, ..Config::new(CPUS, &zones) };
    let bytes = Allocator::<PinnedCpus<Kernel>>::metadata_bytes(&config).unwrap();
    let mut memory = vec![MaybeUninit::uninit(); bytes];
    let contents: Vec<_> = (0..PAGEBLOCKS * 512).map(|_| AtomicU64::new(0)).collect();
    let tables: Vec<Shared> = (0..CPUS).map(|_| Shared::default()).collect();
    let mover = Threads { tables: &tables, contents: &contents };
    let compactor = Compactor::new(&mover);
    let mut depot = Allocator::new(&config, &mut memory, PinnedCpus(Kernel::new(CPUS))).unwrap();
    compactor.register(&depot).unwrap();
    let time = soak(Duration::from_millis(700));
    let end = Instant::now() + time;
    let is_scattered = evacuation != Evacuation::Adaptive;
    let is_large = orders.iter().any(|&order| order > 8);
    let (shared, mover) = (&depot, &mover);
    let [emptied, moved, evacuating] = [const { AtomicU64::new(0) }; 3];
    let goes_on = || {
        // On a busy machine the compactors come late.
        let is_late = moved.load(Ordering::Relaxed) == 0 && Instant::now() < end + 30 * time;
        Instant::now() < end || is_late
    };
    let goes_on = &goes_on;
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            scope.spawn(move || {
                run_on(Some(cpu));
                let mut rng = Rng::new(seed("compacting beside") + u64::from(cpu));
                let owner = u64::from(cpu) + 1;
                let table = &mover.tables[cpu as usize];
                while goes_on() {
                    let length = table.lock().unwrap().len();
                    // Scattered: what is held fills memory, then a third of it, at random.
                    let held_max = match is_scattered {
                        true if Instant::now() < end - time * 3 / 4 => 3100,
                        true => 1500,
                        false if is_large => 9,
                        false => 1200,
                    };
                    if length < held_max && rng.below(2) == 0 {
                        let order = order(orders[rng.index(orders.len())]);
                        let Ok(pfn) = shared.alloc(order, Flags::default()) else { continue };
                        let mut table = table.lock().unwrap();
                        mover.stamp(pfn.get(), order, owner, 0);
                        assert_eq!(table.insert(pfn.get(), order), None);
                    } else if length > 0 {
                        let from = rng.below(u64::from(PAGEBLOCKS * 512)) as u32;
                        let mut table = table.lock().unwrap();
                        let found = table.range(from..).next().or(table.iter().next());
                        let (first, order) = found.map(|(&first, &order)| (first, order)).unwrap();
                        table.remove(&first);
                        mover.stamp(first, order, 0, owner);
                        drop(table);
                        shared.free(Pfn::new(first), order).unwrap();
                    }
                    match rng.below(500) {
                        0 => {
                            let mode = [Mode::Quiet, Mode::Full, Mode::Handover][rng.index(3)];
                            shared.drain(Scope::ALL, mode);
                        }
                        1 => {
                            let flags = Flags::default();
                            let flags = if is_scattered { flags } else { flags.compact() };
                            if let Ok(start) = shared.alloc_contiguous(1100, 1, flags) {
                                mover.stamp_range(start, 1100, 9, 0);
                                mover.stamp_range(start, 1100, 0, 9);
                                shared.free_contiguous(start, 1100).unwrap();
                            }
                        }
                        _ => {}
                    }
                }
                for (first, order) in std::mem::take(&mut *table.lock().unwrap()) {
                    mover.stamp(first, order, 0, owner);
                    shared.free(Pfn::new(first), order).unwrap();
                }
            });
        }
        for compactor in 0..2 {
            let (emptied, moved, evacuating) = (&emptied, &moved, &evacuating);
            scope.spawn(move || {
                run_on(None);
                let mut rng = Rng::new(seed("compactors") + compactor);
                while goes_on() {
                    let stats = shared.pageblock_stats(ZONE).unwrap();
                    evacuating.fetch_max(stats.evacuating, Ordering::Relaxed);
                    let rules = match rng.below(4) {
                        // What compaction has emptied need not evacuate.
                        _ if is_scattered => Compaction::all().moves_max(4),
                        0 => Compaction::all(),
                        1 => Compaction::range(1024, 512),
                        2 => Compaction::pageblocks(rng.below(u64::from(PAGEBLOCKS) / 2) as u32),
                        _ => Compaction::all().moves_max(rng.below(300)).drain(Mode::Quiet),
                    };
                    match shared.compact(ZONE, rules, mover) {
                        Ok(done) => {
                            emptied.fetch_add(done.emptied_pageblocks, Ordering::Relaxed);
                            moved.fetch_add(done.moved_blocks, Ordering::Relaxed);
                        }
                        Err(CompactError::TooLarge { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        scope.spawn(move || {
            run_on(None);
            let mut rng = Rng::new(seed("remover"));
            while goes_on() {
                let some = range(rng.below(u64::from(PAGEBLOCKS)) as u32 * 512, 512);
                match shared.remove_memory(ZONE, some) {
                    Ok(()) => {
                        mover.stamp_range(some.start, 512, 7, 0);
                        mover.stamp_range(some.start, 512, 0, 7);
                        shared.add_memory(ZONE, some, &mut []).unwrap();
                    }
                    Err(RemoveError::Busy { .. } | RemoveError::Obstacle(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    });
    let census = depot.validate().unwrap();
    assert_eq!((census.managed_pages, census.held_pages()), (u64::from(PAGEBLOCKS) * 512, 0));
    depot.remove_memory(ZONE, ranges[0]).unwrap();
    println!("{emptied:?} pageblocks emptied by {moved:?} moves, {evacuating:?} evacuated");
    moved.into_inner()
}

impl Threads<'_> {
    fn stamp_range(&self, start: Pfn, frames: u32, value: u64, expected: u64) {
        let one = |frame| self.stamp(frame, Order::BASE, value, expected);
        (start.get()..start.get() + frames).for_each(one);
    }
}
