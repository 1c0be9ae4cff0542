//! 1. Claims of all widths (a frame, a word, a pageblock of two words) beside each other: none
//!    gets what another has, and what a failing claim gives back is all there.
//! 2. A hint never says "nothing here" for good where something is, or a search would not find it.
//!    Without the fences of Dekker's pattern it does.
//! 3. Nor does a mark of the summary, whichever sort of pageblock it leads to, and however many
//!    threads it takes to make one of that sort. It does when the search that clears a mark does
//!    not look again, or when the taker that clears `whole` does not look at `some`.
//! 4. Nor when a pageblock that came back cold becomes warm while its owner marks it, or when one
//!    comes back cold whose hint a free has set late. It does when the caller that makes it warm
//!    does not look whether it is whole by then.
//! 5. No pageblock is noted for good to lack an order of which it has a block, whether one free or
//!    two make the block. It is when the search that notes it does not look again, or without the
//!    fences.

use std::sync::Arc;

use super::{Mutant, explore, explore_mutant};
use crate::frame::Order;
use crate::frame::pageblock::PAGEBLOCK_FRAMES;
use crate::store::bits::WORD_FRAMES;
use crate::store::hints::{Group, Sort, Summary};
use crate::store::section::Section;

/// A section of which only the first pageblock is free, in its words.
pub(super) fn section() -> Arc<Section<'static>> {
    // Small, and leaked once per execution: a section keeps a reference to its marks.
    let marks = Summary::new(Box::leak(Box::new([Group::default()]))).marks(0);
    let mut place = Arc::<Section<'_>>::new_uninit();
    let section = Arc::get_mut(&mut place).unwrap();
    // SAFETY: `init` writes all of it.
    let section = unsafe {
        Section::init(section.as_mut_ptr(), marks, false);
        place.assume_init()
    };
    section.put_new(0, PAGEBLOCK_FRAMES);
    section
}

/// All threads have stopped: `held` frames of the first pageblock are not free, and the hints lead
/// to all that are.
pub(super) fn check(section: &Section<'_>, held: u32) {
    check_of(section, PAGEBLOCK_FRAMES, held);
}

/// Checks a section like [`check`], where so many frames were free at first.
pub(super) fn check_of(section: &Section<'_>, frames: u32, held: u32) {
    let free = [0, 1].map(|pageblock| section.count_free(pageblock));
    assert_eq!(free[0] + free[1] + held, frames, "frames were lost, or given twice");
    check_hints(section);
}

fn check_hints(section: &Section<'_>) {
    for pageblock in [0, 1] {
        let free = section.count_in_words(pageblock);
        assert!(free == 0 || !section.is_entire(pageblock), "frames that are free twice");
        let (some, whole) = section.hints(0);
        assert!(some >> pageblock & 1 == 1 || free == 0, "frames that no search would find");
        assert!(
            whole >> pageblock & 1 == 1 || free < PAGEBLOCK_FRAMES,
            "a whole pageblock that no search would find"
        );
        assert!(!section.hides_block(pageblock), "a block that no search would find");
    }
    for sort in Sort::ALL {
        assert!(!section.hides(sort), "no mark leads to what is {sort:?}");
    }
}

pub(super) fn spawn(
    section: &Arc<Section<'static>>,
    body: impl FnOnce(&Section<'_>) -> u32 + 'static,
) -> loom::thread::JoinHandle<u32> {
    let section = section.clone();
    loom::thread::spawn(move || body(&section))
}

/// Takes one frame, if there is one.
fn take(section: &Section<'_>) -> u32 {
    section.take(0, Order::BASE, None, 1, |_| {})
}

/// Claims so many frames from the first on.
fn claim(section: &Section<'_>, frames: u32) -> u32 {
    if section.claim(0, frames) { frames } else { 0 }
}

#[test]
fn frame_word_and_pageblock() {
    explore(|| {
        let section = section();
        let pageblock = spawn(&section, |section| claim(section, PAGEBLOCK_FRAMES));
        let word = spawn(&section, |section| claim(section, WORD_FRAMES));
        let one = take(&section);
        check(&section, one + pageblock.join().unwrap() + word.join().unwrap());
    });
}

#[test]
fn one_of_two_claims_of_all_succeeds() {
    explore(|| {
        let section = section();
        let other = spawn(&section, |section| claim(section, PAGEBLOCK_FRAMES));
        let mine = claim(&section, PAGEBLOCK_FRAMES);
        let theirs = other.join().unwrap();
        assert_eq!(mine + theirs, PAGEBLOCK_FRAMES);
        check(&section, PAGEBLOCK_FRAMES);
    });
}

/// One takes the last frame and finds no more, another puts one back.
fn last_frame() {
    let section = section();
    assert!(section.claim(0, PAGEBLOCK_FRAMES) && section.put(0, 1) == 0);
    let other = spawn(&section, |section| section.put(1, 1));
    let taken = section.take(0, Order::BASE, None, 2, |_| {});
    assert_eq!(other.join().unwrap(), 0);
    check(&section, PAGEBLOCK_FRAMES - 2 + taken);
}

#[test]
fn last_frame_taken_while_another_comes_back() {
    explore(last_frame);
}

#[test]
#[should_panic(expected = "frames that no search would find")]
fn last_frame_without_the_fences() {
    explore_mutant(Mutant::UnorderedHints, last_frame);
}

#[test]
fn first_frame_taken_while_the_last_comes_back() {
    explore(|| {
        let section = section();
        assert!(section.claim(0, 1));
        let other = spawn(&section, |section| section.put(0, 1));
        let taken = take(&section);
        assert_eq!(other.join().unwrap(), 0);
        check(&section, taken);
    });
}

/// One takes the last block of a pageblock, which clears the hint; another puts a frame of a word
/// back that was seen empty.
#[test]
fn last_block_taken_while_a_frame_comes_back() {
    explore(|| {
        let section = section();
        assert!(section.claim(0, WORD_FRAMES));
        let other = spawn(&section, |section| section.put(0, 1));
        let taken = section.take(0, Order::new(6).unwrap(), None, 1, |_| {});
        assert_eq!((taken, other.join().unwrap()), (1, 0));
        check(&section, PAGEBLOCK_FRAMES - 1);
    });
}

/// Pageblocks become ones of a sort, each by a thread of its own, while a search clears the mark:
/// it found none. All of the section is held before, and its marks are set.
pub(super) fn marked(sort: Sort, changes: &[fn(&Section<'_>)]) {
    let section = section();
    if let Sort::Cold | Sort::ColdPair = sort {
        assert!(section.claim(0, PAGEBLOCK_FRAMES));
        section.presence.note_cold(0, 0b11);
        section.put_new(0, PAGEBLOCK_FRAMES);
    }
    section.put_new(PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES);
    assert!(section.claim(PAGEBLOCK_FRAMES, 1) && section.put(PAGEBLOCK_FRAMES, 1) == 0);
    assert!(
        section.claim(0, PAGEBLOCK_FRAMES) && section.claim(PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES)
    );
    let change = |change: fn(&Section<'_>)| {
        spawn(&section, move |section| {
            change(section);
            0
        })
    };
    let changes: Vec<_> = changes.iter().copied().map(change).collect();
    section.clear_mark(sort);
    changes.into_iter().for_each(|change| _ = change.join().unwrap());
    check_hints(&section);
}

fn put_frame(section: &Section<'_>) {
    assert_eq!(section.put(1, 1), 0);
}

/// Whole, in its words.
pub(super) fn put_pageblock(section: &Section<'_>) {
    section.put_new(0, PAGEBLOCK_FRAMES);
}

fn put_neighbour(section: &Section<'_>) {
    section.put_new(PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES);
}

#[test]
fn mark_of_a_partial_pageblock() {
    explore(|| marked(Sort::Partial, &[put_frame]));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_partial_huge_cleared_unseen() {
    explore_mutant(Mutant::ClearsUnseen, || marked(Sort::Partial, &[put_frame]));
}

#[test]
fn mark_of_a_whole_pageblock() {
    explore(|| marked(Sort::Warm, &[put_pageblock]));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_whole_huge_cleared_unseen() {
    explore_mutant(Mutant::ClearsUnseen, || marked(Sort::Warm, &[put_pageblock]));
}

/// Neither of the two that come back makes the pair alone.
#[test]
fn mark_of_a_pair() {
    explore(|| marked(Sort::WarmPair, &[put_pageblock, put_neighbour]));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_pair_cleared_unseen() {
    explore_mutant(Mutant::ClearsUnseen, || {
        marked(Sort::WarmPair, &[put_pageblock, put_neighbour])
    });
}

/// A pageblock becomes partial by two hints: one thread takes its last frames, which clears
/// `whole`, another puts a frame back, which sets `some`.
fn partial_by_two_hints() {
    let section = section();
    let first = section.take_at_once(0, Order::BASE).unwrap();
    // As if the pageblock had been whole until now: its hint says so, and nothing is marked as
    // partial.
    assert_eq!(section.put(first, 1), 0);
    section.clear_mark(Sort::Partial);
    let other = spawn(&section, |section| {
        let at = section.take_at_once(0, Order::BASE).expect("no thread takes all but one");
        section.put(at, 1);
        0
    });
    let taken = section.take(0, Order::BASE, None, PAGEBLOCK_FRAMES - 1, |_| {});
    other.join().unwrap();
    check(&section, taken);
}

#[test]
fn mark_of_a_huge_that_is_partial_by_two_hints() {
    explore(partial_by_two_hints);
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_huge_that_is_partial_by_one_hint() {
    explore_mutant(Mutant::MarksByOneHint, partial_by_two_hints);
}

/// The owner of a pageblock gives it back cold, while another takes a frame of it as soon as it is
/// there, frees it, and takes one again, which it frees or `keeps`. The pageblock is whole in
/// between, and the owner may be late to set the mark that leads to it.
fn warms_while_it_is_marked(keeps: bool) {
    let section = section();
    assert!(section.claim(0, PAGEBLOCK_FRAMES));
    [Sort::Warm, Sort::Cold].into_iter().for_each(|sort| section.clear_mark(sort));
    let other = spawn(&section, move |section| {
        for round in 0..2 {
            match section.take_at_once(0, Order::BASE) {
                Some(_) if keeps && round == 1 => return 1,
                Some(at) => assert_eq!(section.put(at, 1), 0),
                None => {}
            }
        }
        0
    });
    section.presence.note_cold(0, 1);
    section.put_new(0, PAGEBLOCK_FRAMES);
    check(&section, other.join().unwrap());
}

#[test]
fn mark_of_a_pageblock_that_becomes_warm() {
    explore(|| warms_while_it_is_marked(false));
}

#[test]
fn mark_of_a_pageblock_that_becomes_warm_and_stays_used() {
    explore(|| warms_while_it_is_marked(true));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_pageblock_that_becomes_warm_unseen() {
    explore_mutant(Mutant::WarmsUnseen, || warms_while_it_is_marked(true));
}

#[test]
#[should_panic = "no mark leads"]
fn mark_of_a_cold_pageblock_cleared_unseen() {
    explore_mutant(Mutant::ClearsUnseen, || marked(Sort::Cold, &[put_cold]));
}

#[test]
fn mark_of_a_cold_pageblock() {
    explore(|| marked(Sort::Cold, &[put_cold]));
}

#[test]
fn mark_of_a_pair_of_which_one_is_cold() {
    explore(|| marked(Sort::ColdPair, &[put_cold, put_neighbour]));
}

fn put_cold(section: &Section<'_>) {
    section.presence.note_cold(0, 1);
    section.put_new(0, PAGEBLOCK_FRAMES);
}

/// A free makes a pageblock whole, and is late to set its hint: another has taken all of it by
/// then, and puts it back cold.
fn comes_back_cold_while_it_is_hinted() {
    let section = section();
    assert!(section.claim(0, 1));
    let other = spawn(&section, |section| section.put(0, 1));
    if section.claim(0, PAGEBLOCK_FRAMES) {
        put_cold(&section);
    }
    assert_eq!(other.join().unwrap(), 0);
    check(&section, 0);
}

#[test]
fn mark_of_a_cold_pageblock_that_has_an_old_hint() {
    explore(comes_back_cold_while_it_is_hinted);
}

const PAIR: Order = match Order::new(1) {
    Some(order) => order,
    None => unreachable!(),
};

/// A search for pairs finds none, while `missing` frames come back, each by a thread of its own,
/// that complete one. `searched`: another has found none before.
fn pair_comes_back(missing: &[u32], searched: bool) {
    let section = section();
    assert!(section.claim(0, PAGEBLOCK_FRAMES) && section.put(4, 1) == 0);
    if missing.len() == 1 {
        assert_eq!(section.put(0, 1), 0);
    }
    if searched {
        assert_eq!(section.take(0, PAIR, None, 1, |_| ()), 0);
        assert_eq!(section.lacks.may_have(0, PAIR) & 1, 0);
    }
    let frees: Vec<_> = missing
        .iter()
        .map(|&frame| spawn(&section, move |section| section.put(frame, 1)))
        .collect();
    let taken = 2 * section.take(0, PAIR, None, 1, |_| ());
    frees.into_iter().for_each(|free| assert_eq!(free.join().unwrap(), 0));
    check(&section, PAGEBLOCK_FRAMES - 3 + taken);
}

#[test]
fn pair_comes_back_to_a_search() {
    explore(|| pair_comes_back(&[1], false));
}

#[test]
#[should_panic = "a block that no search would find"]
fn pair_comes_back_unseen() {
    explore_mutant(Mutant::LacksUnseen, || pair_comes_back(&[1], false));
}

#[test]
#[should_panic = "a block that no search would find"]
fn pair_comes_back_without_the_fences() {
    explore_mutant(Mutant::UnorderedHints, || pair_comes_back(&[1], false));
}

#[test]
fn pair_comes_back_by_two_frees() {
    explore(|| pair_comes_back(&[0, 1], false));
}

#[test]
fn pair_comes_back_where_it_was_lacking() {
    explore(|| pair_comes_back(&[0, 1], true));
}

/// Searches for two orders find none, while a free makes a block of the smaller one.
#[test]
fn two_searches_find_no_pair() {
    explore(|| {
        let section = section();
        assert!(section.claim(0, PAGEBLOCK_FRAMES) && section.put(0, 1) + section.put(4, 1) == 0);
        let larger = Order::new(2).unwrap();
        let other = spawn(&section, move |section| section.take(0, larger, None, 1, |_| ()));
        let free = spawn(&section, |section| section.put(1, 1));
        let taken = 2 * section.take(0, PAIR, None, 1, |_| ());
        assert_eq!((other.join().unwrap(), free.join().unwrap()), (0, 0));
        check(&section, PAGEBLOCK_FRAMES - 3 + taken);
    });
}
