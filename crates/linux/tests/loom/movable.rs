//! 1. While a block is accessed it is not copied, and what an access wrote is in the copy.
//! 2. Its holder and compaction never both free one page, and none is lost.
//! 3. Compaction frees what its holder held: with that order, whatever lay there before.
//! 4. A block that was pinned during an access stays where it is.
//! 5. No entry is left of a block that was freed, and no two holders have one slot.
//! 6. A forked child waits for no copy.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use crate::moving::place::{Extent, PlaceState};
use crate::moving::table::Table;
use crate::system::bits::Bits;
use crate::system::prim::{ForkMark, Mutant};
use crate::{IS_CHILD, MUTANT, explore, spawn};
use pagedepot::loom_tests::explore::explore_named;

const PAGES: u32 = 6;
/// The value that the next owner of a page writes to it, when a holder or compaction has freed it.
const FREED: u32 = 99;

/// A table, and the pages of a depot. Loom reports accesses to a page's cell that race.
struct Scene {
    table: Table,
    pinned: Bits,
    pages: [UnsafeCell<u32>; PAGES as usize],
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Send for Scene {}
// SAFETY: as above.
unsafe impl Sync for Scene {}

/// A block of order 0, and one of order 1.
fn page(first: u32) -> Extent {
    Extent { first, order: 0 }
}

fn pair(first: u32) -> Extent {
    Extent { first, order: 1 }
}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Scene {
            table: Table::new(PAGES, ForkMark).unwrap(),
            pinned: Bits::new(PAGES as usize).unwrap(),
            pages: [0; PAGES as usize].map(UnsafeCell::new),
        })
    }

    fn set(&self, first: u32, order: u32, value: u32) {
        for page in &self.pages[first as usize..][..1 << order] {
            // SAFETY: see `Scene`.
            page.with_mut(|cell| unsafe { *cell = value });
        }
    }

    fn get(&self, page: u32) -> u32 {
        // SAFETY: see `Scene`.
        self.pages[page as usize].with(|cell| unsafe { *cell })
    }

    /// A holder gets a block and writes to it.
    fn hold(&self, block: Extent, value: u32) -> u32 {
        self.set(block.first, block.order, value);
        self.table.insert(block).expect("fewer slots are in use than there are pages")
    }

    /// Calls `act` with the first page of a holder's block, which stays there.
    fn access<R>(&self, slot: u32, act: impl FnOnce(u32) -> R) -> R {
        let place = self.table.place(slot);
        let result = act(place.begin_access(ForkMark));
        place.end_access();
        result
    }

    /// A holder frees its block, whose pages are others' then. Returns the first page.
    fn free(&self, slot: u32, order: u32) -> u32 {
        let first = self.table.remove(slot);
        self.set(first, order, FREED);
        first
    }

    /// Compaction moves a block, and frees what it has then: the block, or its destination.
    fn compact(&self, from: Extent, to: u32) -> bool {
        let found = self.table.move_block(from, to, &self.pinned, || {
            for at in 0..1 << from.order {
                self.set(to + at, 0, self.get(from.first + at));
            }
        });
        let freed = if found == PlaceState::Ours { from.first } else { to };
        self.set(freed, from.order, FREED);
        found == PlaceState::Ours
    }

    /// All blocks were freed.
    fn check_at_rest(&self) {
        assert!((0..PAGES).all(|page| self.table.find(page).is_none()), "an entry was left");
    }
}

#[test]
fn accesses_and_a_copy() {
    explore(|| {
        let scene = Scene::new();
        let slot = scene.hold(pair(0), 0);
        let compaction = spawn(&scene, |scene| scene.compact(pair(0), 2));
        for value in 1..=2 {
            scene.access(slot, |first| {
                assert_eq!((scene.get(first), scene.get(first + 1)), (value - 1, value - 1));
                scene.set(first, 1, value);
            });
        }
        compaction.join().unwrap();
        assert_eq!(scene.access(slot, |first| scene.get(first + 1)), 2);
        scene.free(slot, 1);
        scene.check_at_rest();
    });
}

fn given_up_or_moved() {
    explore(|| {
        let scene = Scene::new();
        let slot = scene.hold(page(0), 1);
        let compaction = spawn(&scene, |scene| scene.compact(page(0), 1));
        let freed = scene.free(slot, 0);
        let is_moved = compaction.join().unwrap();
        assert_eq!(freed, u32::from(is_moved), "one of the two frees page 0, the other page 1");
        scene.check_at_rest();
    });
}

#[test]
fn a_block_is_freed_by_its_holder_or_moved() {
    given_up_or_moved();
}

/// The holder finds no entry at the new page yet, and compaction writes one that stays.
#[test]
#[should_panic(expected = "an entry was left")]
fn the_entry_comes_before_the_page() {
    MUTANT.set(Some(Mutant::SetsPageEarly));
    given_up_or_moved();
}

/// A holder that frees its page without giving the place up: the model must see it.
#[test]
#[should_panic(expected = "Causality violation")]
fn freed_without_giving_up() {
    explore(|| {
        let scene = Scene::new();
        let slot = scene.hold(page(0), 1);
        let compaction = spawn(&scene, |scene| scene.compact(page(0), 1));
        scene.set(scene.table.place(slot).page(), 0, FREED);
        compaction.join().unwrap();
    });
}

/// A block is dropped and its pages are handed out again, to two holders, before compaction moves
/// what it found there.
fn pages_of_another_order() {
    explore(|| {
        let scene = Scene::new();
        let slot = scene.hold(pair(0), 1);
        let compaction = spawn(&scene, |scene| scene.compact(pair(0), 2));
        if scene.free(slot, 1) == 0 {
            let slots = [scene.hold(page(0), 2), scene.hold(page(1), 3)];
            for (slot, value) in slots.into_iter().zip(2..) {
                assert_eq!(scene.access(slot, |first| scene.get(first)), value);
                scene.free(slot, 0);
            }
        }
        compaction.join().unwrap();
        scene.check_at_rest();
    });
}

#[test]
fn compaction_moves_what_it_found_or_nothing() {
    pages_of_another_order();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_order_that_is_not_compared_frees_the_neighbour() {
    MUTANT.set(Some(Mutant::MovesAnyOrder));
    pages_of_another_order();
}

/// A block follows another one at the same page, with the same slot.
fn pages_of_another_holder() {
    explore(|| {
        let scene = Scene::new();
        let slot = scene.hold(page(0), 1);
        let compaction = spawn(&scene, |scene| scene.compact(page(0), 1));
        if scene.free(slot, 0) == 0 {
            let slot = scene.hold(page(0), 2);
            assert_eq!(scene.access(slot, |first| scene.get(first)), 2);
            scene.free(slot, 0);
        }
        compaction.join().unwrap();
        scene.check_at_rest();
    });
}

#[test]
fn the_next_holder_of_a_page_and_a_slot() {
    pages_of_another_holder();
}

#[test]
#[should_panic(expected = "an entry was left")]
fn a_block_is_entered_before_it_can_be_moved() {
    MUTANT.set(Some(Mutant::OpensEarly));
    pages_of_another_holder();
}

fn pinned_during_an_access() {
    explore(|| {
        let scene = Scene::new();
        let slot = scene.hold(pair(0), 1);
        let compaction = spawn(&scene, |scene| scene.compact(pair(0), 2));
        // Its second page, for a device that has the address from now on.
        let pinned = scene.access(slot, |first| {
            scene.pinned.set(first as usize + 1..first as usize + 2);
            first
        });
        compaction.join().unwrap();
        assert_eq!(scene.table.place(slot).page(), pinned, "a pinned page was moved");
        scene.free(slot, 1);
        scene.check_at_rest();
    });
}

#[test]
fn a_pin_is_final() {
    pinned_during_an_access();
}

#[test]
#[should_panic(expected = "a pinned page was moved")]
fn pins_are_looked_for_when_the_place_is_taken() {
    MUTANT.set(Some(Mutant::LooksForPinsEarly));
    pinned_during_an_access();
}

#[test]
fn two_holders_beside_compaction() {
    explore(|| {
        let scene = Scene::new();
        let first = scene.hold(page(0), 1);
        let other = spawn(&scene, |scene| {
            let slot = scene.hold(page(1), 2);
            assert_eq!(scene.access(slot, |first| scene.get(first)), 2);
            scene.free(slot, 0);
        });
        let compaction = spawn(&scene, |scene| {
            scene.compact(page(0), 2);
            scene.compact(page(1), 3);
        });
        scene.free(first, 0);
        other.join().unwrap();
        compaction.join().unwrap();
        scene.check_at_rest();
    });
}

/// One holder takes a slot while another takes two and frees the first.
fn slots_come_and_go() {
    explore(|| {
        let scene = Scene::new();
        let slots = [page(0), page(1), page(2)].map(|block| scene.hold(block, 0));
        slots.into_iter().for_each(|slot| _ = scene.free(slot, 0));
        let other = spawn(&scene, |scene| {
            let first = scene.hold(page(0), 1);
            let second = scene.hold(page(1), 2);
            scene.free(first, 0);
            second
        });
        let third = scene.hold(page(2), 3);
        let second = other.join().unwrap();
        // What the list has left is none of theirs.
        let fourth = scene.hold(page(3), 4);
        for (slot, page) in [(second, 1), (third, 2), (fourth, 3)] {
            assert_eq!(scene.table.place(slot).page(), page, "two holders have a slot");
            scene.free(slot, 0);
        }
        scene.check_at_rest();
    });
}

#[test]
fn each_holder_has_a_slot_of_its_own() {
    slots_come_and_go();
}

#[test]
#[should_panic(expected = "two holders have a slot")]
fn heads_of_the_list_are_told_apart() {
    MUTANT.set(Some(Mutant::UntaggedSlots));
    slots_come_and_go();
}

/// The parent forks while compaction copies a block: its child reads, pins and drops it.
fn forked_during_a_copy() {
    // One thread: there is one interleaving.
    explore_named("a child beside a copy", 0, || {
        let scene = Scene::new();
        let (held, copied) = (scene.hold(page(0), 1), scene.hold(page(1), 2));
        assert_eq!(scene.table.place(copied).begin_copy(page(1)), PlaceState::Ours);
        IS_CHILD.set(true);
        for (slot, value) in [(held, 1), (copied, 2)] {
            assert_eq!(scene.access(slot, |first| scene.get(first)), value);
            assert_eq!(scene.free(slot, 0), value - 1);
        }
        IS_CHILD.set(false);
    });
}

#[test]
fn a_child_waits_for_no_copy() {
    forked_during_a_copy();
}

#[test]
#[should_panic(expected = "exceeded maximum number of branches")]
fn a_child_that_waits_is_noticed() {
    MUTANT.set(Some(Mutant::WaitsInChild));
    forked_during_a_copy();
}
