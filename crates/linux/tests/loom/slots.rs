//! The slots of a segment, with processes that have died, survivors that bury them, and others that
//! join.
//!
//! 1. A burial frees no frame of a process that has joined the slot since.
//! 2. An heir takes no frame that was left to another.

use std::sync::Arc;

use crate::shared::owners::{Owner, OwnerSet, OwnerTable};
use crate::shared::slots::{HEIR, Identity, SLOT_WORDS, SLOTS, Slots, Stage};
use crate::system::prim::{AtomicU32, AtomicU64, Mutant, Ordering};
use crate::{MUTANT, explore_looks, spawn};

/// The slot of the process that dies, and of two survivors.
const DEAD: usize = 0;
const ONE: usize = 1;
const TWO: usize = 2;
/// Names of heirs.
const EARLY: u64 = 7;
const LATE: u64 = 9;

struct Segment {
    slots: Vec<AtomicU64>,
    /// The lock of the slot: 1 while a process has it. The models assume that it lasts until the
    /// process leaves or dies, and the kernel drops it then: what that rests on, no model sees. The
    /// argument in `slots.rs` of the crate has it.
    lock: AtomicU32,
    full: [AtomicU64; 1],
    words: [AtomicU64; 8],
}

impl Segment {
    /// The process has one frame, all others are absent, and has just died.
    fn new(heir: u64) -> Arc<Self> {
        let segment = Segment {
            slots: (0..SLOTS * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect(),
            lock: AtomicU32::new(0),
            full: [AtomicU64::new(0)],
            words: std::array::from_fn(|_| AtomicU64::new(!0)),
        };
        segment.words[0].store(!0xff, Ordering::Relaxed);
        assert!(segment.lives_and_dies(heir));
        Arc::new(segment)
    }

    fn slots(&self) -> Slots<'_> {
        Slots::new(&self.slots)
    }

    fn table(&self) -> OwnerTable<'_> {
        OwnerTable::new(&self.full, &self.words)
    }

    fn take_lock(&self) -> bool {
        // As of the kernel's locks.
        let taken = self.lock.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok()
    }

    fn release(&self) {
        self.lock.store(0, Ordering::Release);
    }

    /// Joins, if it can, as `take_slot` in `members.rs` does. Its lock stays.
    fn join(&self) -> bool {
        let (slots, seen) = (self.slots(), self.slots().look(DEAD));
        if seen.stage() != Some(Stage::Empty) || !self.take_lock() {
            return false;
        }
        if slots.look(DEAD).stage() == Some(Stage::Empty) {
            slots.forget_burier(DEAD);
        }
        let identity = Identity { pid: 7, ..Identity::default() };
        let is_in = slots.begin_join(DEAD) && slots.go_live(DEAD, identity);
        if !is_in {
            self.release();
        }
        is_in
    }

    /// Takes the frame, if it is free.
    fn take(&self) -> bool {
        self.table().claim(Owner::slot(DEAD), 0..1)
    }

    /// A process joins, takes the frame, names an heir, and dies.
    fn lives_and_dies(&self, heir: u64) -> bool {
        let has_lived = self.join() && self.take();
        self.slots().word(DEAD, HEIR).store(heir, Ordering::Relaxed);
        self.release();
        has_lived
    }

    /// Buries the process, as `bury_dead` does, if it has ended.
    fn bury(&self, burier: usize, to: Owner) {
        let (slots, seen) = (self.slots(), self.slots().look(DEAD));
        let is_mine = match seen.stage() {
            Some(Stage::Live) if self.take_lock() => {
                let is_killed = slots.kill(DEAD, seen, burier);
                self.release();
                is_killed
            }
            Some(Stage::Dead) => slots.begin_burial(DEAD, burier),
            _ => false,
        };
        if is_mine {
            self.table().give_all(0..1, &OwnerSet::new([Owner::slot(DEAD)]), to);
            slots.end_burial(DEAD, burier, to != Owner::FREE);
        }
    }

    /// Takes the frame, if it was left to this heir.
    fn inherit(&self, burier: usize, heir: u64) -> bool {
        self.slots().while_left_to(heir, DEAD, burier, || {
            self.table().change(0..1, Owner::estate(DEAD), Owner::slot(burier))
        })
    }
}

/// A survivor buries a process, and so does `other`, which may be another thread of the survivor,
/// while a process joins the slot and takes the frame.
fn two_burials_beside_a_joiner(other: usize) {
    explore_looks(move || {
        let segment = Segment::new(0);
        let other = spawn(&segment, move |segment| segment.bury(other, Owner::FREE));
        segment.bury(ONE, Owner::FREE);
        let has_frame = segment.join() && segment.take();
        other.join().unwrap();
        let owner = segment.table().owner(0);
        let expected = if has_frame { Owner::slot(DEAD) } else { Owner::FREE };
        assert_eq!(owner, Some(expected), "a burial frees what is another's");
    });
}

#[test]
fn a_burial_frees_nothing_of_a_later_process() {
    two_burials_beside_a_joiner(TWO);
}

#[test]
fn one_thread_of_a_survivor_buries() {
    two_burials_beside_a_joiner(ONE);
}

#[test]
#[should_panic(expected = "a burial frees what is another's")]
fn a_burier_must_look_for_its_other_threads() {
    MUTANT.set(Some(Mutant::BuriesTwice));
    two_burials_beside_a_joiner(ONE);
}

#[test]
#[should_panic(expected = "a burial frees what is another's")]
fn a_burier_must_be_seen() {
    MUTANT.set(Some(Mutant::BuriesUnseen));
    two_burials_beside_a_joiner(TWO);
}

/// An heir takes the frame, and opens the slot. A later process gets it, leaves it to another heir,
/// and is buried. The first heir looks for frames all the time.
fn an_heir_that_is_late() {
    explore_looks(|| {
        let segment = Segment::new(EARLY);
        segment.bury(ONE, Owner::estate(DEAD));
        let late = spawn(&segment, |segment| segment.inherit(TWO, EARLY));
        let is_taken = segment.inherit(ONE, EARLY);
        let mut is_left_again = false;
        if is_taken {
            let slots = segment.slots();
            assert!(slots.wake_orphans(DEAD, ONE));
            slots.end_burial(DEAD, ONE, false);
            assert!(segment.table().change(0..1, Owner::slot(ONE), Owner::FREE));
            is_left_again = segment.lives_and_dies(LATE);
            segment.bury(ONE, Owner::estate(DEAD));
        }
        let is_late = late.join().unwrap();
        assert!(is_late != is_taken, "an heir takes what was left to another");
        assert_eq!(segment.inherit(ONE, LATE), is_left_again);
    });
}

#[test]
fn an_heir_takes_only_what_was_left_to_it() {
    an_heir_that_is_late();
}

#[test]
#[should_panic(expected = "an heir takes what was left to another")]
fn an_heir_must_be_seen() {
    MUTANT.set(Some(Mutant::InheritsUnseen));
    an_heir_that_is_late();
}
