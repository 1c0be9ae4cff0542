//! Sections, range by range.

use super::*;
use crate::frame::pageblock::Tag;
use crate::frame::{Kind, Pfn, ZoneId};
use crate::store::hints::{Group, Hints, Summary};
use crate::store::passes::{cold, warm};
use std::mem::MaybeUninit;

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// A section without memory, or one that is free.
pub fn boxed(is_free: bool) -> Box<Section<'static>> {
    let group = Box::leak(Box::new([Group::default()]));
    let mut place: Box<MaybeUninit<Section<'static>>> = Box::new_uninit();
    // SAFETY: the box is aligned and this test's; `init` writes every field.
    unsafe {
        Section::init(place.as_mut_ptr(), Summary::new(group).marks(3), is_free);
        place.assume_init()
    }
}

/// Frames that are free among the first words, as one bit each.
fn free_frames(section: &Section<'_>, words: usize) -> Vec<u64> {
    (0..words)
        .map(|word| section.words_of(word / PAGEBLOCK_WORDS)[word % PAGEBLOCK_WORDS])
        .collect()
}

/// The bits of a range, frame by frame.
fn mask_of(start: u32, frames: u32, words: usize) -> Vec<u64> {
    let mut mask = vec![0; words];
    (start..start + frames).for_each(|at| mask[at as usize / 64] |= 1 << (at % 64));
    mask
}

pub fn check_hints(section: &Section<'_>, pageblock: usize) {
    let free = section.count_in_words(pageblock);
    let (some, whole) = section.hints(pageblock / 64);
    assert!(free == 0 || !section.is_entire(pageblock));
    assert!(free == 0 || some >> (pageblock % 64) & 1 == 1);
    assert_eq!(whole >> (pageblock % 64) & 1 == 1, free == PAGEBLOCK_FRAMES);
    assert!(!Sort::ALL.into_iter().any(|sort| section.hides(sort)));
    assert!(!section.hides_block(pageblock));
}

/// Bytes of the front words of one kind, and of a zone: nine rows, and six words that refuse.
const ROW_BYTES: usize = 11 * 8;
const ZONE_BYTES: usize = 9 * ROW_BYTES + 6 * 8;

#[test]
fn tags_come_back_and_none_is_the_absent_one() {
    for zone in 0..Tag::ZONES_MAX as u32 {
        for kind in Kind::all() {
            let tag = Tag::new(ZoneId::new(zone), kind);
            assert!(tag.is_present());
            assert_eq!((tag.zone().get(), tag.kind()), (zone, kind));
            assert_eq!(tag.fronts_at(), zone as usize * ZONE_BYTES + kind.index() * ROW_BYTES);
            let evacuating = tag.avoided();
            assert_eq!(evacuating.fronts_at(), tag.fronts_at() + 4 * ROW_BYTES);
            assert!(evacuating.is_avoided() && !evacuating.is_settled() && tag.is_settled());
            assert!(evacuating.settled() == tag && evacuating.avoided() == evacuating);
            assert_eq!((evacuating.row(), tag.row()), ((kind, true), (kind, false)));
            assert!(
                evacuating.serves(ZoneId::new(zone)) && evacuating.isolated() == tag.isolated()
            );
            assert!(evacuating.zone() == tag.zone() && !evacuating.is_carved());
            assert!(!tag.is_carved() && tag.of_the_rest() == tag);
            assert!(!tag.is_isolated() && tag.of_isolated().is_none() && !tag.is_removed());
            assert!(tag.serves(ZoneId::new(zone)) && !tag.serves(ZoneId::new(zone + 1)));
            let isolated = tag.isolated();
            assert!(isolated.is_present() && isolated.is_isolated() && !isolated.is_carved());
            assert!(!isolated.is_removed() && !isolated.serves(ZoneId::new(zone)));
            assert_eq!((isolated.of_isolated(), isolated.zone().get()), (Some(tag), zone));
            let refusing = zone as usize * ZONE_BYTES + 8 * ROW_BYTES;
            assert_eq!(isolated.fronts_at(), refusing + 24 + kind.index() * 8);
            assert!(tag.of_isolated().is_none() && tag.serves(tag.zone()));
            assert_eq!(tag.isolated().of_isolated(), Some(tag));
            assert!(tag.isolated().is_present() && !tag.isolated().serves(tag.zone()));
        }
        let carved = Tag::carved(ZoneId::new(zone));
        assert!(carved.is_present() && carved.is_carved());
        assert_eq!(carved.fronts_at(), zone as usize * ZONE_BYTES + 8 * ROW_BYTES + 8);
        assert_eq!(carved.zone().get(), zone);
        assert!(carved.of_the_rest() == Tag::new(ZoneId::new(zone), Kind::UNMOVABLE));
        assert!(!carved.is_isolated() && !carved.is_removed());
        let removed = Tag::removed(ZoneId::new(zone));
        assert!(removed.is_removed() && !removed.is_present() && !removed.is_isolated());
        assert_eq!(
            (removed.fronts_at(), removed.zone().get()),
            (zone as usize * ZONE_BYTES + 8 * ROW_BYTES + 16, zone)
        );
    }
    assert!(!Tag::ABSENT.is_present() && !Tag::ABSENT.is_carved());
    assert!(!Tag::ABSENT.is_isolated() && !Tag::ABSENT.is_removed());
}

/// Every range of the first four words, and those around the border of two pageblocks.
fn ranges() -> impl Iterator<Item = (u32, u32)> {
    let few_words = (0..256).flat_map(|start| (1..=256 - start).map(move |frames| (start, frames)));
    let edges = [0, 1, 63, 64, 65, 448, 511, 512, 513, 575, 576, 1023, 1024];
    let pageblocks = edges.into_iter().flat_map(move |start| {
        edges.into_iter().filter(move |end| *end > start).map(move |end| (start, end - start))
    });
    few_words.chain(pageblocks)
}

#[test]
fn a_claim_takes_its_range_or_nothing() {
    const WORDS: usize = 2 * PAGEBLOCK_WORDS;
    let section = boxed(true);
    let all = vec![!0; WORDS];
    for (start, frames) in ranges() {
        let mask = mask_of(start, frames, WORDS);
        let rest: Vec<u64> = mask.iter().map(|bits| !bits).collect();
        assert!(section.claim(start, frames));
        assert_eq!(free_frames(&section, WORDS), rest, "{start} + {frames}");
        assert!(!section.claim(start, frames));
        (0..2).for_each(|pageblock| check_hints(&section, pageblock));
        // One frame back: the claim must put all others back, too.
        for missing in [start, start + frames / 2, start + frames - 1] {
            assert_eq!(section.put(missing, 1), 0);
            assert_eq!(section.claim(start, frames), frames == 1);
            let expected = mask_of(missing, u32::from(frames > 1), WORDS);
            let expected: Vec<u64> = expected.iter().zip(&rest).map(|(a, b)| a | b).collect();
            assert_eq!(
                free_frames(&section, WORDS),
                expected,
                "{start} + {frames} without {missing}"
            );
            if frames > 1 {
                assert!(section.claim(missing, 1));
            }
        }
        assert_eq!(section.put(start, frames), 0);
        assert_eq!(free_frames(&section, WORDS), all);
        assert_eq!(section.put(start, frames), frames, "all were free");
        (0..2).for_each(|pageblock| check_hints(&section, pageblock));
    }
}

#[test]
fn a_claim_that_fails_in_its_last_word_leaves_all_as_it_was() {
    const WORDS: usize = 2 * PAGEBLOCK_WORDS;
    let section = boxed(true);
    for missing in 0..1024 {
        assert!(section.claim(missing, 1));
        let before = free_frames(&section, WORDS);
        assert!(!section.claim(0, 1024));
        assert!(!section.claim(missing / 128 * 128, 128));
        assert_eq!(free_frames(&section, WORDS), before);
        assert_eq!(section.put(missing, 1), 0);
    }
}

#[test]
fn put_counts_what_was_free_already() {
    let section = boxed(false);
    assert_eq!(section.put(10, 100), 0);
    assert_eq!(section.put(0, 20), 10);
    assert_eq!(section.put(100, 20), 10);
    assert_eq!(section.put(0, 120), 120);
    assert_eq!(section.put(5, 0), 0);
    assert_eq!(section.count_free(0), 120);
    check_hints(&section, 0);
}

/// Blocks come out free, aligned, once, as many as there are, and nothing else goes.
#[test]
fn take_gives_blocks_that_were_free() {
    let mut pattern = 0x9e37_79b9_7f4a_7c15u64;
    let section = boxed(false);
    for round in 0..2000 {
        let words: [u64; PAGEBLOCK_WORDS] = std::array::from_fn(|_| {
            pattern = pattern.rotate_left(7).wrapping_mul(0x2545_f491_4f6c_dd1d);
            // Denser and denser, so that large blocks come up too.
            [pattern, pattern | pattern >> 32, pattern | 0xffff_ffff, !0][round % 4]
        });
        let size = order(round as u32 % 7);
        let want = [1, 3, 64, 600][round / 7 % 4];
        (0..).zip(words).for_each(|(word, mask)| _ = section.put_mask(word, mask));
        section.refresh_hints(0);
        // Two of five leave the blocks of a larger order alone.
        let larger = size.get() + 1..=bits::WORD_ORDER_MAX;
        let spared = larger.map(order).nth(round / 28 % 6).filter(|_| round % 5 < 2);
        let offered = |word: &u64| spared.map_or(*word, |spared| bits::outside(*word, spared));
        let there: u32 =
            words.iter().map(offered).map(|word| bits::free_blocks(word, size).count_ones()).sum();
        let mut left = words;
        let give = |found: WordBlocks| {
            let mut frames = [Pfn::new(0); 64];
            let blocks = found.write_to(&mut frames);
            for at in frames[..blocks].iter().map(|pfn| pfn.get()) {
                let mask = bits::block_mask(size) << (at % 64);
                assert!(
                    at % size.frames() == 0 && left[at as usize / 64] & mask == mask,
                    "{at} {size}"
                );
                left[at as usize / 64] &= !mask;
            }
        };
        let taken = section.take(0, size, spared, want, give);
        assert_eq!(taken, want.min(there), "{words:x?} {size} {want} {spared:?}");
        assert_eq!(free_frames(&section, PAGEBLOCK_WORDS), left);
        check_hints(&section, 0);
        (0..PAGEBLOCK_WORDS).for_each(|word| section.words[word].store(0, Ordering::Relaxed));
        section.clear_whole(0);
    }
}

/// Searches for larger blocks than a page must not look at empty pageblocks again and again.
#[test]
fn whoever_takes_the_last_block_clears_the_hint() {
    let section = boxed(true);
    for size in (0..=Order::PAGEBLOCK.get()).map(order) {
        let blocks = PAGEBLOCK_FRAMES / size.frames();
        assert_eq!(section.take(1, size, None, blocks - 1, |_| ()), blocks - 1);
        assert_eq!(section.hints(0).0 >> 1 & 1, 1, "{size}: one is left");
        assert_eq!(section.take(1, size, None, 1, |_| ()), 1);
        assert_eq!(section.hints(0).0 >> 1 & 1, 0, "{size}");
        // By halves: at once they would come back as entire.
        for half in [PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES + PAGEBLOCK_FRAMES / 2] {
            assert_eq!(section.put(half, PAGEBLOCK_FRAMES / 2), 0);
        }
        check_hints(&section, 1);
    }
}

/// The orders of which pageblock 0 may have blocks.
fn may_have(section: &Section<'_>) -> Vec<u32> {
    (0..Order::PAGEBLOCK.get()).filter(|&n| section.lacks.may_have(0, order(n)) & 1 == 1).collect()
}

/// A search that finds no block notes that, and a free that makes one of that order or above. What
/// makes smaller ones changes nothing.
#[test]
fn a_search_notes_which_orders_are_lacking() {
    let section = boxed(false);
    let all: Vec<_> = (0..Order::PAGEBLOCK.get()).collect();
    for searched in 1..Order::PAGEBLOCK.get() {
        assert_eq!(section.put(0, 1), 0);
        assert_eq!(may_have(&section), all, "no search has looked");
        assert_eq!(section.take(0, order(searched), None, 1, |_| ()), 0);
        assert_eq!(may_have(&section), (0..searched).collect::<Vec<_>>());
        // Its buddy, and so on: a block of each order in turn.
        for made in 0..Order::PAGEBLOCK.get() - 1 {
            let frames = order(made).frames();
            assert_eq!(section.put(frames, frames), 0);
            check_hints(&section, 0);
            let expected = if made + 1 < searched {
                (0..searched).collect()
            } else {
                (0..=made + 1).collect::<Vec<_>>()
            };
            assert_eq!(may_have(&section), expected, "order {} after {searched}", made + 1);
        }
        // The rest of the pageblock, which is whole so.
        assert_eq!(section.put(PAGEBLOCK_FRAMES / 2, PAGEBLOCK_FRAMES / 2), 0);
        check_hints(&section, 0);
        assert_eq!(may_have(&section), all);
        assert!(section.claim(0, PAGEBLOCK_FRAMES));
    }
}

/// Each pageblock has hints of its own.
#[test]
fn lacking_orders_are_noted_by_pageblock() {
    let section = boxed(false);
    let lacks = |pageblock: usize, n: u32| pageblock as u32 * 7 % 9 < n;
    for pageblock in 0..SECTION_PAGEBLOCKS {
        assert_eq!(section.put(pageblock as u32 * PAGEBLOCK_FRAMES, 1), 0);
        if let Some(first) = (1..9).find(|&n| lacks(pageblock, n)) {
            assert_eq!(section.take(pageblock, order(first), None, 1, |_| ()), 0);
        }
    }
    for n in 1..9 {
        for i in 0..HINT_WORDS {
            let expected =
                (0..64).filter(|bit| !lacks(i * 64 + bit, n)).fold(0, |all, bit| all | 1 << bit);
            assert_eq!(section.lacks.may_have(i, order(n)), expected, "order {n}, word {i}");
        }
    }
}

/// Blocks of several words come from words that are whole.
#[test]
fn large_blocks_come_from_words_that_are_whole() {
    let section = boxed(false);
    for pattern in 0..1u32 << PAGEBLOCK_WORDS {
        let whole = |word: &usize| pattern >> word & 1 == 1;
        for size in (7..=Order::PAGEBLOCK.get()).map(order) {
            for want in [1, 2, 8] {
                (0..PAGEBLOCK_WORDS).for_each(|word| {
                    section.words[word]
                        .store(if whole(&word) { !0 } else { !1 }, Ordering::Relaxed);
                });
                section.clear_whole(0);
                section.refresh_hints(0);
                let words = size.frames() as usize / 64;
                let there: Vec<_> = (0..PAGEBLOCK_WORDS)
                    .step_by(words)
                    .filter(|&at| (at..at + words).all(|word| whole(&word)))
                    .collect();
                let mut found = Vec::new();
                section.take(0, size, None, want, |one| found.push(one.lowest() as usize / 64));
                assert_eq!(found, there[..there.len().min(want as usize)], "{pattern:#b} {size}");
                check_hints(&section, 0);
            }
        }
    }
}

#[test]
fn sorts_are_read_off_the_hints() {
    // A hint may say that a pageblock is whole while the other says that it is empty.
    for (some, whole, cold) in (0..1 << 12).map(|n: u64| (n & 15, n >> 4 & 15, n >> 8)) {
        let bit = |word: u64, pageblock: u32| word >> pageblock & 1 == 1;
        for pageblock in 0..64 {
            let is = |sort: Sort| bit(sort.of_hints(Hints { some, whole, cold }), pageblock);
            let is_whole = bit(whole, pageblock);
            assert_eq!(is(Sort::Partial), bit(some, pageblock) && !is_whole);
            assert_eq!(is(Sort::Warm), is_whole && !bit(cold, pageblock));
            assert_eq!(is(Sort::Cold), is_whole && bit(cold, pageblock));
            let is_pair = pageblock % 2 == 0 && is_whole && bit(whole, pageblock + 1);
            let is_any_cold = is_pair && (bit(cold, pageblock) || bit(cold, pageblock + 1));
            assert_eq!(is(Sort::WarmPair), is_pair && !is_any_cold, "{whole:#b} {cold:#b}");
            assert_eq!(is(Sort::ColdPair), is_pair && is_any_cold, "{whole:#b} {cold:#b}");
        }
    }
}

/// Checks the marks of a section by its free frames.
#[test]
fn marks_follow_what_is_free() {
    let section = boxed(false);
    let are_set = |section: &Section<'_>, sorts: [Sort; 3]| sorts.map(|s| section.marks.is_set(s));
    let marks =
        |section: &Section<'_>| are_set(section, [Sort::Partial, Sort::Warm, Sort::WarmPair]);
    let cleared = |section: &Section<'_>| {
        Sort::ALL.into_iter().for_each(|sort| section.clear_mark(sort));
        marks(section)
    };
    assert_eq!(marks(&section), [false; 3], "nothing is free");
    assert_eq!(section.put(5 * PAGEBLOCK_FRAMES + 7, 1), 0);
    assert_eq!(cleared(&section), [true, false, false], "one frame is");
    // The second pageblock of one pair and the first of the next are none.
    assert_eq!(
        section.put(5 * PAGEBLOCK_FRAMES, 7)
            + section.put(5 * PAGEBLOCK_FRAMES + 8, 2 * PAGEBLOCK_FRAMES - 8),
        0
    );
    assert_eq!(marks(&section), [true, true, false]);
    assert_eq!(cleared(&section), [false, true, false], "two pageblocks are, entirely");
    assert_eq!(section.put(4 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES), 0);
    assert_eq!(marks(&section), [false, true, true], "what comes back entirely was never partial");
    assert!(section.claim(4 * PAGEBLOCK_FRAMES + 100, 1));
    assert_eq!(cleared(&section), [true, true, false]);
    assert!(section.claim(5 * PAGEBLOCK_FRAMES, 2 * PAGEBLOCK_FRAMES));
    assert_eq!(cleared(&section), [true, false, false]);
    assert_eq!(section.take(4, order(0), None, PAGEBLOCK_FRAMES, |_| ()), PAGEBLOCK_FRAMES - 1);
    assert_eq!(cleared(&section), [false; 3]);
    let free = boxed(true);
    let cold_marks =
        |section: &Section<'_>| are_set(section, [Sort::Partial, Sort::Cold, Sort::ColdPair]);
    assert_eq!((marks(&free), cold_marks(&free)), ([false; 3], [false, true, true]));
    assert!(free.claim(0, PAGEBLOCK_FRAMES), "a whole one");
    assert_eq!(marks(&free), [false; 3], "and nothing is partly free");
    assert_eq!(free.put(0, PAGEBLOCK_FRAMES), 0);
    assert_eq!(marks(&free), [false, true, false], "its neighbour is cold");
}

/// Checks that pageblocks which were taken are warm when they are back, whichever way they go, and
/// that those put as cold are cold until then.
#[test]
fn what_was_taken_is_warm() {
    for (taken_at, taken_frames) in [(0, 1), (511, 1), (0, 64), (0, 512)] {
        for (put_at, put_frames) in [(0, 512), (0, 1024)] {
            let section = boxed(true);
            assert_eq!((warm(&section, 0), cold(&section, 0)), (0, !0));
            assert!(section.claim(taken_at, taken_frames));
            assert_eq!((warm(&section, 0), cold(&section, 0)), (0, !1));
            assert_eq!((section.presence.first_touches(), section.presence.refaults()), (1, 0));
            assert_eq!(section.put(taken_at, taken_frames), 0);
            assert_eq!(
                (warm(&section, 0), cold(&section, 0)),
                (1, !1),
                "{taken_at} {taken_frames}"
            );
            (0..2).for_each(|pageblock| check_hints(&section, pageblock));

            let all = put_at..put_at + put_frames;
            let mask = (1 << (put_frames / PAGEBLOCK_FRAMES)) - 1;
            assert!(section.claim(all.start, put_frames));
            section.presence.note_cold(0, mask);
            section.put_new(all.start, put_frames);
            assert_eq!((warm(&section, 0), cold(&section, 0)), (0, !0));
            (0..2).for_each(|pageblock| check_hints(&section, pageblock));
            let before = section.presence.first_touches();
            assert!(section.claim(all.start, put_frames));
            assert_eq!(section.presence.refaults(), u64::from(put_frames / PAGEBLOCK_FRAMES));
            assert_eq!(section.presence.first_touches(), before);
        }
    }
}

/// Takers by one block, and by many, of all orders.
#[test]
fn every_take_of_a_cold_pageblock_warms_it() {
    for size in (0..=Order::PAGEBLOCK.get()).map(order) {
        let section = boxed(true);
        let mut found = Vec::new();
        assert_eq!(section.take(3, size, None, 1, |one| found.push(one.lowest())), 1);
        assert_eq!(section.put(found[0], size.frames()), 0);
        assert_eq!((warm(&section, 0), cold(&section, 0)), (8, !8), "{size}");
        if size.get() <= bits::WORD_ORDER_MAX {
            let at = section.take_at_once(5, size).unwrap();
            assert_eq!(section.put(at, size.frames()), 0);
            assert_eq!(warm(&section, 0), 8 | 32, "{size}");
        }
        [3, 5].into_iter().for_each(|pageblock| check_hints(&section, pageblock));
    }
}
