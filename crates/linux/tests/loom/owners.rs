//! The table of owners of a segment, with frames that are freed while another process searches.
//!
//! 1. No frame has two owners, and no change of one is lost beside a change of another.
//! 2. At rest, a search finds each frame that is free.

use std::sync::Arc;

use crate::shared::owners::{Owner, OwnerTable, groups_of};
use crate::system::prim::{AtomicU64, Mutant, Ordering};
use crate::{MUTANT, explore_looks, spawn};

const ME: Owner = Owner::slot(0);
const YOU: Owner = Owner::slot(1);
const THIRD: Owner = Owner::slot(2);

/// A group of frames, all but the first two absent.
struct Segment {
    full: [AtomicU64; 1],
    words: [AtomicU64; 8],
}

impl Segment {
    /// The frames 0 and 1 belong to `owner`.
    fn new(owner: Owner) -> Arc<Self> {
        let segment = Segment {
            full: [AtomicU64::new(0)],
            words: std::array::from_fn(|_| AtomicU64::new(!0)),
        };
        let mut bytes = [0xff; 8];
        bytes[..2].fill(owner.index() as u8);
        segment.words[0].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        Arc::new(segment)
    }

    fn table(&self) -> OwnerTable<'_> {
        OwnerTable::new(&self.full, &self.words)
    }

    /// Takes as many of the two frames as a search finds.
    fn take(&self, owner: Owner) -> u32 {
        self.table().take_small(owner, 0, 2, &mut 0, |first, starts| {
            assert!(first == 0 && starts < 4);
            for frame in (0..2).filter(|frame| starts >> frame & 1 == 1) {
                assert_eq!(self.table().owner(frame), Some(owner));
            }
        })
    }

    fn put(&self, owner: Owner, frame: u32) {
        self.table().put_all(owner, groups_of(frame..frame + 1), |_, _| panic!("its owner"));
    }
}

/// Two frames of one word: each goes on to another owner, and two processes want the second. Frames
/// that change alone change no other, and one process gets each.
fn frames_change_alone() {
    explore_looks(|| {
        let segment = Segment::new(ME);
        let change =
            |segment: &Segment, frame: u32, to| segment.table().change(frame..frame + 1, ME, to);
        let other = spawn(&segment, move |segment| {
            (change(segment, 0, Owner::sent(0)), change(segment, 1, YOU))
        });
        let got = segment.table().change_those(1..2, ME, THIRD);
        let (is_sent, is_taken) = other.join().unwrap();
        assert!(is_sent && segment.table().owner(0) == Some(Owner::sent(0)), "a change is lost");
        assert_eq!(got + u32::from(is_taken), 1, "one of two gets a frame");
        let owner = if is_taken { YOU } else { THIRD };
        assert_eq!(segment.table().owner(1), Some(owner));
    });
}

#[test]
fn a_frame_that_changes_alone_changes_once() {
    frames_change_alone();
}

#[test]
#[should_panic(expected = "a change is lost")]
fn a_frame_must_change_by_an_exchange_of_its_word() {
    MUTANT.set(Some(Mutant::StoresOwners));
    frames_change_alone();
}

/// One process frees a frame while another finds the group full.
fn a_free_beside_a_search() {
    explore_looks(|| {
        let segment = Segment::new(ME);
        let search = spawn(&segment, |segment| segment.take(YOU));
        segment.put(ME, 0);
        let taken = search.join().unwrap();
        assert_eq!(taken + segment.take(THIRD), 1, "a free frame is hidden");
    });
}

#[test]
fn a_frame_that_is_freed_beside_a_search_is_found() {
    a_free_beside_a_search();
}

#[test]
#[should_panic(expected = "a free frame is hidden")]
fn a_search_must_look_again() {
    MUTANT.set(Some(Mutant::LooksForFreeEarly));
    a_free_beside_a_search();
}

/// A process dies between freeing a frame and telling of it: a burial, or a request that would
/// fail, shows the frame.
#[test]
fn what_a_dead_process_has_hidden_is_shown() {
    explore_looks(|| {
        let segment = Segment::new(ME);
        let dying = spawn(&segment, |segment| segment.words[0].fetch_and(!0xff, Ordering::Release));
        segment.take(YOU);
        dying.join().unwrap();
        segment.table().show_free();
        segment.take(THIRD);
        assert_eq!(segment.table().count_free(), 0);
    });
}

/// Two survivors bury a process that has an heir, while the heir takes what there is.
#[test]
fn an_estate_goes_to_its_heir() {
    explore_looks(|| {
        let segment = Segment::new(ME);
        let estate = Owner::estate(0);
        let dead = || crate::shared::owners::OwnerSet::new([ME]);
        let other = spawn(&segment, move |segment| segment.table().give_all(0..1, &dead(), estate));
        let heir = spawn(&segment, move |segment| {
            let take = |frame| segment.table().change(frame..frame + 1, estate, YOU);
            (0..2).filter(|&frame| take(frame)).count() as u64
        });
        let given = segment.table().give_all(0..1, &dead(), estate) + other.join().unwrap();
        let taken = heir.join().unwrap();
        let counts = segment.table().count();
        assert_eq!((given, taken + counts.of(estate)), (2, 2));
        assert_eq!(counts.of(YOU), taken);
    });
}

/// Two survivors bury the same process while a third takes what becomes free.
#[test]
fn two_burials_free_each_frame_once() {
    explore_looks(|| {
        let segment = Segment::new(ME);
        let dead = || crate::shared::owners::OwnerSet::new([ME]);
        let other =
            spawn(&segment, move |segment| segment.table().give_all(0..1, &dead(), Owner::FREE));
        let given = segment.table().give_all(0..1, &dead(), Owner::FREE);
        let taken = segment.take(YOU);
        let given = given + other.join().unwrap();
        assert_eq!(given, 2);
        assert_eq!(taken + segment.take(THIRD), 2);
    });
}
