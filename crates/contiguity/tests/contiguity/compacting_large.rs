//! Compaction beside blocks of a pageblock or two.
//!
//! 1. Their destinations are aligned, of the zone, and isolated by no caller.
//! 2. A block that lies in a source and beside it is moved whole, or not at all; while it is named
//!    for a move, all of it is isolated.
//! 3. A window is not given up for frames that lie outside of it.
//! 4. Whatever a mover does with its moves, no frame is lost or in two places.

use std::cell::{Cell, RefCell};

use crate::common::rng::{Rng, seed};
use crate::common::{Single, metadata, open_zone, order, range, single};
use crate::compacting::{By, PAGEBLOCK, Table, ZONE, with_pageblocks};
use pagedepot::{Config, Flags, Mobility, Order, Pfn, Watermarks, ZoneId};
use pagedepot_contiguity::{
    CompactEnd, Compaction, Compactor, Contiguity, Move, Mover, Obstacle, Occupant, Pageblocks,
};

/// Holds one block at a given place.
fn hold_block(depot: &Single<'_>, table: &Table, pageblock: u32, order: Order) {
    let first = Pfn::new(pageblock * PAGEBLOCK);
    depot.alloc_at(first, order.frames(), Flags::default()).unwrap();
    table.insert(first, order);
}

/// Holds a frame that is not in the table: nothing moves it.
fn hold_pinned(depot: &Single<'_>, pageblock: u32) {
    depot.alloc_at(Pfn::new(pageblock * PAGEBLOCK + 7), 1, Flags::default()).unwrap();
}

/// The densest pageblock is the last of its section, or an odd one, or one before another zone.
#[test]
fn a_destination_of_two_pageblocks_is_a_block() {
    for dense in 509..512 {
        with_pageblocks(
            512,
            |_| {},
            |mut depot| {
                let table = Table::default();
                hold_block(&depot, &table, 256, Order::MAX);
                table.hold_at(&depot, dense * PAGEBLOCK);
                let rules = Compaction::range(300 * PAGEBLOCK, PAGEBLOCK);
                let done = depot.compact(ZONE, rules, &table).unwrap();
                assert_eq!(done.end, CompactEnd::Reached, "{done:?}");
                table.check(&mut depot);
                table.free_all(&depot);
                assert_eq!(depot.validate().unwrap().held_pages(), 0);
            },
        );
    }
}

/// Two zones meet inside of an aligned pair of pageblocks.
#[test]
fn a_destination_of_two_pageblocks_is_of_one_zone() {
    let ranges = [[range(0, 9 * PAGEBLOCK)], [range(9 * PAGEBLOCK, 9 * PAGEBLOCK)]];
    let zones = [open_zone("a", &ranges[0]), open_zone("b", &ranges[1])];
    let config = Config::new(1, &zones);
    for (zone, at, others) in [(0, 2, [0, 1, 4, 5, 6, 7]), (1, 14, [10, 11, 12, 13, 16, 17])] {
        let mut memory = metadata(&config);
        let mut depot = single(&config, &mut memory);
        let table = Table::default();
        hold_block(&depot, &table, at, Order::MAX);
        others.into_iter().for_each(|pageblock| hold_pinned(&depot, pageblock));
        // 8 and 9 are whole, a pair, and of different zones.
        let rules = Compaction::range(2 * PAGEBLOCK, 2 * PAGEBLOCK);
        let done = depot.compact(ZoneId::new(zone), rules, &table).unwrap();
        assert_eq!((done.end, done.moved_blocks), (CompactEnd::NothingLeft, 0), "{done:?}");
        assert_eq!(depot.validate().unwrap().held_pages(), table.held_pages() + 6);
    }
}

/// A pageblock that is ranked as a destination becomes whole before a block is taken from it.
#[test]
fn a_destination_that_becomes_whole_meanwhile() {
    for call in 1..60 {
        with_pageblocks(
            16,
            |_| {},
            |mut depot| {
                let table = Table::default();
                for pageblock in [0, 4, 7, 8, 10, 11, 12, 13, 14, 15] {
                    hold_pinned(&depot, pageblock);
                }
                // The densest, and one that becomes whole, before a whole one.
                depot.alloc_at(Pfn::new(9 * PAGEBLOCK), 11, Flags::default()).unwrap();
                depot.alloc_at(Pfn::new(5 * PAGEBLOCK), 3, Flags::default()).unwrap();
                table.hold_at(&depot, 519);
                hold_block(&depot, &table, 2, Order::MAX);
                struct Frees<'t, 'd, 'm>(&'t Table, &'d Single<'m>, Cell<u32>);
                impl Mover for Frees<'_, '_, '_> {
                    fn occupant(&self, frame: Pfn) -> Occupant {
                        self.2.set(self.2.get().wrapping_sub(1));
                        if self.2.get() == 0 {
                            self.1.free_contiguous(Pfn::new(5 * PAGEBLOCK), 3).unwrap();
                        }
                        self.0.occupant(frame)
                    }
                    fn move_blocks(&self, moves: &mut [Move]) {
                        self.0.move_blocks(moves);
                    }
                }
                let mover = Frees(&table, &depot, Cell::new(call));
                let done = depot.compact(ZONE, Compaction::range(3 * PAGEBLOCK, PAGEBLOCK), &mover);
                done.unwrap();
                let others = depot.validate().unwrap().held_pages() - table.held_pages();
                assert!([10 + 11, 10 + 11 + 3].contains(&others), "{others}");
                table.free_all(&depot);
                assert_eq!(depot.validate().unwrap().held_pages(), others);
            },
        );
    }
}

/// A mover of one thread, for requests.
struct Registered<'t>(&'t Table);

// SAFETY: one thread; the table is not used by any other.
unsafe impl Sync for Registered<'_> {}

impl Mover for Registered<'_> {
    fn occupant(&self, frame: Pfn) -> Occupant {
        self.0.occupant(frame)
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        self.0.move_blocks(moves);
    }
}

/// One zone of 16 pageblocks, and a table whose blocks requests may move.
fn with_registered(test: impl Fn(Single<'_>, &Table)) {
    let (table, ranges) = (Table::default(), [range(0, 16 * PAGEBLOCK)]);
    let zones = [open_zone("a", &ranges)];
    let config = Config::new(2, &zones);
    let (mut memory, registered) = (metadata(&config), Registered(&table));
    let compactor = Compactor::new(&registered);
    let depot = single(&config, &mut memory);
    compactor.register(&depot).unwrap();
    test(depot, &table);
}

fn is_isolated(depot: &Single<'_>, pageblock: u32) -> bool {
    let obstacle = depot.obstacle(range(pageblock * PAGEBLOCK, PAGEBLOCK));
    matches!(obstacle, Some(Obstacle::Isolated { .. }))
}

/// All of a block is isolated while it is named for a move, and only as long.
#[test]
fn a_block_across_an_edge_is_isolated_whole() {
    for free in [[3, 4, 5], [2, 3, 4]] {
        let held = [2, 4];
        with_pageblocks(
            16,
            |_| {},
            |mut depot| {
                let table = Table::default();
                held.into_iter().for_each(|at| hold_block(&depot, &table, at, Order::MAX));
                let others = [0, 1, 2, 3, 4, 5, 6, 7]
                    .into_iter()
                    .filter(|at| !free.contains(at) && !held.iter().any(|&held| held == at & !1));
                others.chain([10, 11, 14, 15]).for_each(|pageblock| hold_pinned(&depot, pageblock));
                let mover = By(&table, |table: &Table, moves: &mut [Move]| {
                    for this in moves.iter() {
                        let pageblock = this.from().get() / PAGEBLOCK;
                        let mut both = pageblock..pageblock + 2;
                        assert!(both.all(|pageblock| is_isolated(&depot, pageblock)), "{this:?}");
                    }
                    table.move_blocks(moves);
                });
                let rules = Compaction::range(3 * PAGEBLOCK, PAGEBLOCK);
                let done = depot.compact(ZONE, rules, &mover).unwrap();
                assert_eq!((done.end, done.moved_blocks), (CompactEnd::Reached, 2), "{done:?}");
                assert!(!(0..16).any(|pageblock| is_isolated(&depot, pageblock)));
                table.free_all(&depot);
                depot.validate().unwrap();
            },
        );
    }
}

/// Frames at a given address in the middle of blocks of all sizes.
#[test]
fn frames_at_a_given_address_are_emptied() {
    for (first, frames) in [(3, 512), (3, 1024), (2, 100), (4, 2048), (5, 513)] {
        with_registered(|mut depot, table| {
            hold_block(&depot, table, 2, Order::MAX);
            hold_block(&depot, table, 4, Order::MAX);
            hold_block(&depot, table, 6, Order::PAGEBLOCK);
            hold_block(&depot, table, 7, order(8));
            (9..12).for_each(|at| table.hold_at(&depot, at * PAGEBLOCK + 3));
            let start = Pfn::new(first * PAGEBLOCK);
            depot.alloc_at(start, frames, Flags::default().compact()).unwrap();
            let is_in = |frame: &u32| (start.get()..start.get() + frames).contains(frame);
            assert!(!table.blocks.borrow().keys().any(is_in));
            depot.free_contiguous(start, frames).unwrap();
            table.check(&mut depot);
            table.free_all(&depot);
            assert_eq!(depot.validate().unwrap().held_pages(), 0);
        });
    }
}

/// A request whose block lies in pageblocks that another caller has isolated goes without.
#[test]
fn an_edge_that_another_caller_has_isolated() {
    with_registered(|mut depot, table| {
        hold_block(&depot, table, 4, Order::MAX);
        (0..3).for_each(|at| table.hold_at(&depot, 2 * PAGEBLOCK + at));
        table.hold_at(&depot, 6 * PAGEBLOCK);
        let inner = Cell::new(None);
        // While 2 to 4 are isolated, and 5 with them, a request for 5 to 6 does without.
        let mover = By(table, |table: &Table, moves: &mut [Move]| {
            let start = Pfn::new(5 * PAGEBLOCK);
            let flags = Flags::default().compact();
            inner.set(Some(depot.alloc_at(start, 2 * PAGEBLOCK, flags).is_ok()));
            table.move_blocks(moves);
        });
        let pinned = [0, 1, 7, 8, 9, 12, 14, 15];
        pinned.into_iter().for_each(|pageblock| hold_pinned(&depot, pageblock));
        let rules = Compaction::range(3 * PAGEBLOCK, PAGEBLOCK);
        let done = depot.compact(ZONE, rules, &mover).unwrap();
        assert_eq!(inner.get(), Some(false), "{done:?}");
        assert_eq!(depot.validate().unwrap().held_pages(), table.held_pages() + 8);
    });
}

/// Checks that frames outside of a window are not hidden with it.
#[test]
fn a_window_is_kept_whose_block_began_before_it() {
    for at in [2, 4] {
        for spare in [1700, 3000] {
            let free = 16 * 512 - 1024 - 10;
            let low = free - spare;
            let ranges = [range(0, 16 * PAGEBLOCK)];
            let mut zones = [open_zone("a", &ranges)];
            zones[0].watermarks = Some(Watermarks { min: 0, low, high: low });
            let config = Config::new(1, &zones);
            let mut memory = metadata(&config);
            let mut depot = single(&config, &mut memory);
            let table = Table::default();
            // The one window of three pageblocks without a pinned frame: 3, 4, 5.
            let second = if at == 2 { 15 } else { 2 };
            for pageblock in [0, 1, second, 6, 7, 10, 11, 12, 13, 14] {
                hold_pinned(&depot, pageblock);
            }
            hold_block(&depot, &table, at, Order::MAX);
            let rules = Compaction::range(3 * PAGEBLOCK, PAGEBLOCK).looks_max(20);
            let done = depot.compact(ZONE, rules, &table).unwrap();
            assert_eq!(done.end, CompactEnd::Reached, "block at {at}, {spare} to spare: {done:?}");
            assert_eq!(done.range, Some(range(3 * PAGEBLOCK, 3 * PAGEBLOCK)));
            assert_eq!(depot.validate().unwrap().held_pages(), table.held_pages() + 10);
        }
    }
}

/// A holder frees its block of two pageblocks in the middle of a compaction and takes blocks of
/// another order; the mover looks at first frames alone.
#[test]
fn a_block_does_not_become_one_of_another_order() {
    struct Careless<'t, 'd, 'm> {
        table: &'t Table,
        depot: &'d Single<'m>,
        calls_left: Cell<u32>,
    }
    impl Careless<'_, '_, '_> {
        fn change_hands(&self) {
            let block = self.table.blocks.borrow_mut().remove(&(2 * PAGEBLOCK));
            let Some((order, _)) = block else { return };
            self.depot.free(Pfn::new(2 * PAGEBLOCK), order).unwrap();
            for n in [8, 8, 3, 9] {
                self.table.hold(self.depot, crate::common::order(n));
            }
        }
    }
    impl Mover for Careless<'_, '_, '_> {
        fn occupant(&self, frame: Pfn) -> Occupant {
            self.calls_left.set(self.calls_left.get().wrapping_sub(1));
            if self.calls_left.get() == 0 {
                self.change_hands();
            }
            self.table.occupant(frame)
        }
        fn move_blocks(&self, moves: &mut [Move]) {
            for this in moves {
                match self.table.blocks.borrow().contains_key(&this.from().get()) {
                    true => {}
                    false => {
                        this.gone();
                        continue;
                    }
                }
                self.table.do_move(this);
                this.moved();
            }
        }
    }
    for checked in [false, true] {
        for movable in [2..6, 0..4] {
            for calls in 1..12 {
                with_pageblocks(
                    16,
                    |config| config.checked = checked,
                    |mut depot| {
                        let table = Table::default();
                        // Searches of this CPU lead to the block's place.
                        depot.alloc_at(Pfn::new(0), 2 * PAGEBLOCK, Flags::default()).unwrap();
                        let block = table.hold(&depot, Order::MAX);
                        assert_eq!(block, Pfn::new(2 * PAGEBLOCK));
                        depot.free_contiguous(Pfn::new(0), 2 * PAGEBLOCK).unwrap();
                        let pinned = (0..8).filter(|at| !movable.contains(at) && at & !1 != 2);
                        pinned.for_each(|pageblock| hold_pinned(&depot, pageblock));
                        (10..16).for_each(|at| table.hold_at(&depot, at * PAGEBLOCK));
                        let others = depot.validate().unwrap().held_pages() - table.held_pages();
                        let mover =
                            Careless { table: &table, depot: &depot, calls_left: Cell::new(calls) };
                        let rules = Compaction::range(3 * PAGEBLOCK, PAGEBLOCK).looks_max(2);
                        depot.compact(ZONE, rules, &mover).unwrap();
                        let census = depot.validate().unwrap();
                        assert_eq!(
                            census.held_pages(),
                            table.held_pages() + others,
                            "{calls} calls"
                        );
                        table.free_all(&depot);
                        assert_eq!(depot.validate().unwrap().held_pages(), others);
                    },
                );
            }
        }
    }
}

/// A compaction within another one, whose movers exchange their moves.
#[test]
fn moves_that_are_exchanged_are_not_made() {
    for says in [Move::moved, Move::gone, Move::pinned] {
        with_pageblocks(
            16,
            |config| config.checked = true,
            |mut depot| {
                let table = Table::default();
                table.hold_at(&depot, 5);
                table.hold_at(&depot, 2 * PAGEBLOCK + 9);
                (0..50).for_each(|at| table.hold_at(&depot, 9 * PAGEBLOCK + at));
                let rules = Compaction::all().looks_max(1);
                let outer = By(&table, |_: &Table, moves: &mut [Move]| {
                    says(&mut moves[0]);
                    let outer = RefCell::new(moves);
                    let inner = By(&table, |_: &Table, moves: &mut [Move]| {
                        std::mem::swap(&mut outer.borrow_mut()[0], &mut moves[0]);
                    });
                    depot.compact(ZONE, rules, &inner).unwrap();
                });
                let done = depot.compact(ZONE, rules, &outer).unwrap();
                assert_eq!(done.moved_blocks, 0, "{done:?}");
                table.check(&mut depot);
                table.free_all(&depot);
                assert_eq!(depot.validate().unwrap().held_pages(), 0);
            },
        );
    }
}

/// Random blocks of orders 0 to 10, and every target: each block keeps its contents and can be
/// freed, and what was to be emptied is free.
#[test]
fn blocks_of_all_orders_move() {
    let first_seed = seed("large blocks");
    let (moved, large) = (Cell::new(0), Cell::new(0));
    for round in 0..200 {
        let checked = round % 2 == 1;
        // The last pageblock is one without a partner in every second round.
        let pageblocks = 24 + round / 2 % 2;
        with_pageblocks(
            pageblocks,
            |config| config.checked = checked,
            |mut depot| {
                let table = Table::default();
                let mut rng = Rng::new(first_seed + u64::from(round));
                let lowest = [0, 6, 8, 9][rng.index(4)];
                let mut all = Vec::new();
                while let Some(block) = {
                    let order = order(lowest + rng.below(u64::from(11 - lowest)) as u32);
                    depot.alloc(order, Flags::default()).ok().map(|pfn| (pfn, order))
                } {
                    all.push(block);
                }
                let kept = 1 + rng.below(5);
                for (pfn, order) in all {
                    match rng.below(10) < kept {
                        true => drop(table.insert(pfn, order)),
                        false => depot.free(pfn, order).unwrap(),
                    }
                }
                let before = table.contents();
                for _ in 0..12 {
                    let frames = 1 + rng.below(10 * u64::from(PAGEBLOCK)) as u32;
                    let align = 1 << rng.below(12);
                    let rules = match rng.below(4) {
                        0 => Compaction::order(order(8 + rng.below(3) as u32)),
                        1 => Compaction::all().looks_max(3),
                        _ => Compaction::range(frames, align),
                    };
                    let done = depot.compact(ZONE, rules, &table).unwrap();
                    if let Some(found) = done.range.filter(|_| done.end == CompactEnd::Reached) {
                        let whole = found.start.get()..found.end().next_multiple_of(512) as u32;
                        assert!(whole.into_iter().all(|frame| depot.is_free(Pfn::new(frame))));
                    }
                    assert_eq!(table.contents(), before);
                    table.check(&mut depot);
                }
                let moves = table.moves.borrow();
                let blocks = table.blocks.borrow().clone();
                let is_large =
                    |to: &u32| blocks.get(to).is_some_and(|&(order, _)| order.get() >= 8);
                moved.set(moved.get() + moves.len());
                large.set(large.get() + moves.iter().filter(|(_, to)| is_large(to)).count());
                table.free_all(&depot);
                assert_eq!(depot.validate().unwrap().held_pages(), 0);
                let all = range(0, pageblocks * PAGEBLOCK);
                depot.remove_memory(ZONE, all).unwrap();
            },
        );
    }
    let (moved, large) = (moved.get(), large.get());
    assert!(moved > 400 && large > 60, "{moved} moved, {large} of them of orders 8 to 10");
}

/// Frames at a given address serve what their request says, whichever way they were had.
#[test]
fn whole_pageblocks_serve_the_mobility_of_their_request() {
    with_registered(|depot, table| {
        table.hold_at(&depot, 2 * PAGEBLOCK + 5);
        let info = |pageblock: u32| {
            let mut all = Pageblocks::of(&depot, ZONE).unwrap();
            all.find(|info| info.first.get() / PAGEBLOCK == pageblock).unwrap()
        };
        let mobility_of = |pageblock| info(pageblock).mobility;
        let at = |pageblock: u32| Pfn::new(pageblock * PAGEBLOCK);
        depot.alloc_at(at(0), PAGEBLOCK, Flags::UNMOVABLE).unwrap();
        assert_eq!(mobility_of(0), Some(Mobility::Unmovable));
        depot.try_alloc_at(at(1), PAGEBLOCK, Flags::RECLAIMABLE).unwrap();
        assert_eq!(mobility_of(1), Some(Mobility::Reclaimable));
        depot.alloc_at(at(2), PAGEBLOCK + 1, Flags::UNMOVABLE.compact()).unwrap();
        assert_eq!(mobility_of(2), Some(Mobility::Unmovable));
        assert_eq!(mobility_of(3), Some(Mobility::Movable), "of which others may hold frames");
        assert!(info(3).is_tainted, "by one frame");
        depot.try_alloc_at(at(4).add(5), 10, Flags::UNMOVABLE).unwrap();
        depot.try_alloc_at(at(5).add(5), 10, Flags::MOVABLE).unwrap();
        assert_eq!([4, 5].map(|pageblock| info(pageblock).is_tainted), [true, false]);
    });
}
