//! Entire pageblocks: put, taken, broken up, and freed twice.

use super::*;
use crate::frame::Order;
use crate::store::section::tests::{boxed, check_hints};

/// Two neighbours that are entire, and nothing else.
fn pair() -> Box<Section<'static>> {
    let section = boxed(false);
    assert_eq!(section.put(0, 2 * PAGEBLOCK_FRAMES), 0);
    assert!(section.is_entire(0) && section.is_entire(1) && section.count_in_words(0) == 0);
    section
}

#[test]
fn a_pair_comes_back_as_one_and_is_taken_as_one() {
    let section = pair();
    assert_eq!(
        (section.count_free(0), section.count_free(1), section.count_whole()),
        (512, 512, 2)
    );
    assert!(!Sort::ALL.into_iter().any(|sort| section.hides(sort)));
    assert!(section.claim(0, 2 * PAGEBLOCK_FRAMES));
    assert!(!section.claim(0, 2 * PAGEBLOCK_FRAMES) && !section.claim(0, 1));
    assert_eq!((section.count_free(0), section.count_whole()), (0, 0));
}

#[test]
fn a_pair_of_which_one_is_whole_in_its_words_is_marked_and_taken() {
    for first in [0, 1] {
        let section = boxed(false);
        let start = |pageblock: u32| pageblock * PAGEBLOCK_FRAMES;
        let put_words = || (0..8).for_each(|word| assert_eq!(section.put(word * 64, 64), 0));
        let put_entire = || assert_eq!(section.put(start(1), PAGEBLOCK_FRAMES), 0);
        if first == 0 {
            put_words();
            put_entire();
        } else {
            put_entire();
            put_words();
        }
        assert!(!section.is_entire(0) && section.is_entire(1));
        assert!(!section.hides(Sort::WarmPair) && section.count_whole() == 2);
        assert!(section.claim(0, 2 * PAGEBLOCK_FRAMES));
        assert_eq!(section.count_free(0) + section.count_free(1), 0);
    }
}

/// All frames are taken while a free is about to set the hint `whole`, which stays then.
#[test]
fn a_part_of_what_was_entire_is_marked_by_an_old_hint() {
    let section = pair();
    assert!(section.claim(0, 2 * PAGEBLOCK_FRAMES));
    section.put_each(0, PAGEBLOCK_FRAMES, |_, _| (), |_| ());
    section.strip(0, |_, _| ());
    section.presence.note_cold(0, 1);
    section.put_entire(0, 1);
    assert!(section.claim(0, PAGEBLOCK_FRAMES));
    section.put(0, 1);
    assert_eq!(section.hints(0), (1, 1));
    assert!(!Sort::ALL.into_iter().any(|sort| section.hides(sort)));
    assert_eq!(section.take(0, Order::BASE, None, 2, |_| ()), 1);
    assert_eq!(section.hints(0), (0, 0));
}

/// Frames were taken for requests that are not akin, and came back by a call that has yet to look
/// whether the pageblock is whole.
#[test]
fn what_is_reported_is_not_mixed() {
    let section = boxed(true);
    assert!(section.claim(0, 1));
    section.note_mixed(0);
    section.put_mask(0, 1);
    assert!(section.claim(0, PAGEBLOCK_FRAMES));
    section.put_reported(0);
    assert!(section.is_reported(0) && !section.is_mixed(0));
}

/// A pageblock that lacked an order before it became entire is hidden from no search.
#[test]
fn the_last_pass_goes_to_entire_pageblocks_that_lacked_an_order() {
    let section = pair();
    assert!(section.claim(0, PAGEBLOCK_FRAMES));
    section.put(0, 1);
    let order = Order::new(8).unwrap();
    assert_eq!(section.take(0, order, None, 1, |_| ()), 0);
    assert!(section.claim(0, 1));
    section.put_entire(0, 1);
    assert_eq!(section.lacks.may_have(0, order) & 1, 0);
    let pass = crate::store::passes::Pass::Any;
    assert_eq!(pass.candidates(&section, 0) & pass.fitting(&section, 0, order) & 3, 3);
}

#[test]
fn a_claim_of_a_part_breaks_up_what_it_touches() {
    let section = pair();
    assert!(section.claim(PAGEBLOCK_FRAMES - 3, 6));
    assert_eq!((section.count_free(0), section.count_free(1)), (509, 509));
    (0..2).for_each(|pageblock| check_hints(&section, pageblock));
    assert!(!section.claim(0, PAGEBLOCK_FRAMES));
    assert_eq!(section.put(PAGEBLOCK_FRAMES - 3, 6), 0);
    (0..2).for_each(|pageblock| check_hints(&section, pageblock));
    assert!(section.claim(0, 2 * PAGEBLOCK_FRAMES));
}

#[test]
fn a_claim_that_cannot_succeed_breaks_up_nothing() {
    let section = pair();
    assert!(section.claim(PAGEBLOCK_FRAMES, 1));
    assert!(!section.claim(0, PAGEBLOCK_FRAMES + 1) && section.is_entire(0));
}

#[test]
fn to_put_nothing_marks_nothing() {
    let section = boxed(false);
    for pageblock in [0, 1, 65] {
        assert_eq!(section.put(pageblock * PAGEBLOCK_FRAMES, 0), 0);
    }
    assert!(!Sort::ALL.into_iter().any(|sort| section.marks.is_set(sort)));
}

#[test]
fn smaller_blocks_are_not_taken_from_the_words_of_an_entire_one() {
    let section = pair();
    for order in [0, 6, 7, 8].map(|n| Order::new(n).unwrap()) {
        assert_eq!(section.take(0, order, None, 1, |_| ()), 0);
    }
    assert!(section.is_entire(0));
    assert_eq!(section.take(0, Order::PAGEBLOCK, None, 1, |one| assert_eq!(one.lowest(), 0)), 1);
}

#[test]
fn what_was_free_already_stays_free_once() {
    let section = boxed(false);
    assert_eq!(section.put(5, 3), 0);
    // Three frames of it are free: the rest joins them in the words.
    let mut doubled = 0;
    section.put_each(0, PAGEBLOCK_FRAMES, |_, mask| doubled += mask.count_ones(), |_| ());
    assert_eq!((doubled, section.count_free(0)), (3, PAGEBLOCK_FRAMES));
    assert!(!section.is_entire(0) && section.count_in_words(0) == PAGEBLOCK_FRAMES);
    check_hints(&section, 0);
}

/// Claims of parts leave the hint `some`, which would hide a second free from the look at the bit.
#[test]
fn what_was_taken_in_parts_comes_back_without_a_hint() {
    for is_reported in [false, true] {
        let section = boxed(false);
        (0..8).for_each(|word| assert_eq!(section.put(word * 64, 64), 0));
        assert!(section.claim(0, 256) && section.claim(256, 256));
        assert_eq!(section.hints(0).0 & 1, 1);
        match is_reported {
            false => assert_eq!(section.put(0, PAGEBLOCK_FRAMES), 0),
            true => section.put_reported(0),
        }
        assert!(section.is_as_one(0));
        assert_eq!(section.hints(0).0 & 1, 0);
        assert!(section.refresh_hints(0), "a free finds that its frame was free");
    }
}

#[test]
fn what_was_entire_already_stays_so() {
    let section = pair();
    assert_eq!(section.put(0, 2 * PAGEBLOCK_FRAMES), 2 * PAGEBLOCK_FRAMES);
    assert!(section.is_entire(0) && section.count_in_words(0) == 0);
    assert!(section.claim(0, 2 * PAGEBLOCK_FRAMES) && section.count_free(0) == 0);
}
