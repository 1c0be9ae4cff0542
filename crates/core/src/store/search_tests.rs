//! Searches over many sections: what they find, and in how many steps.
#![allow(unsafe_code, reason = "makes sections")]

use super::*;
use crate::frame::pageblock::Tag;
use crate::frame::{Kind, ZoneId};
use crate::store::DoubleFree;
use crate::store::SearchRules;
use crate::store::backing::Reports;
use crate::store::hints::{Group, STEPS, Summary};
use crate::store::tags::{AvoidCounts, Tags};
use crate::sync::prim::{AtomicU32, AtomicU64, AtomicUsize};

const ZONE: ZoneId = ZoneId::new(0);
/// 70 GiB of 4 KiB pages: the summary has two words of each sort.
const SECTIONS: usize = 70;
const HUGES: u32 = (SECTIONS * SECTION_PAGEBLOCKS) as u32;
/// Words that one pass may read when it finds what it wants: each word of the summary, those around
/// the hint twice; the hints of three sections, where it begins, where a mark leads without cause,
/// and where the block is, each up to three times, because before and after a mark is cleared they
/// are read again; and the pageblock. A walk over the hints of all sections would be 560 words.
const STEPS_MAX: u64 = 2 * 2 + 3 * 3 * HINT_WORDS as u64 + 1;
/// Passes of a search for small blocks until it has found one, of a search for others.
const fn passes(size: Order) -> u64 {
    if size.get() < Order::PAGEBLOCK.get() { 2 } else { 1 }
}

/// Everything free, and movable.
struct World {
    tags: Vec<AtomicU32>,
    table: Vec<AtomicUsize>,
    groups: &'static [Group],
    failed: AtomicU64,
    avoid_counts: AvoidCounts,
    reports: Reports<'static>,
    hint: AtomicU32,
}

impl World {
    fn new() -> &'static Self {
        let movable = Tag::new(ZONE, Kind::MOVABLE);
        let groups: Vec<_> = (0..Summary::groups(SECTIONS)).map(|_| Group::default()).collect();
        let world: &'static World = Box::leak(Box::new(World {
            tags: (0..HUGES).map(|_| AtomicU32::new(movable.0)).collect(),
            table: (0..SECTIONS).map(|_| AtomicUsize::new(0)).collect(),
            groups: groups.leak(),
            failed: AtomicU64::new(0),
            avoid_counts: AvoidCounts::default(),
            reports: Reports::default(),
            hint: AtomicU32::new(0),
        }));
        for number in 0..SECTIONS {
            let section = Box::leak(Box::<Section<'_>>::new_uninit());
            // SAFETY: this test's alone; `init` writes every field.
            let section = unsafe {
                Section::init(section.as_mut_ptr(), Summary::new(world.groups).marks(number), true);
                section.assume_init_ref()
            };
            assert!(world.bitmap().install(number, section));
        }
        world
    }

    fn bitmap(&'static self) -> Bitmap<'static> {
        self.bitmap_that(false)
    }

    fn bitmap_that(&'static self, avoids: bool) -> Bitmap<'static> {
        Bitmap::new(
            &self.table,
            Tags::new(&self.tags, false, &self.avoid_counts),
            Summary::new(self.groups),
            &self.failed,
            &self.reports,
            avoids,
        )
    }

    fn wanted(&'static self) -> SearchRequest<'static> {
        SearchRequest {
            zone: ZONE,
            rules: SearchRules::any(Kind::MOVABLE),
            span: (0, SECTIONS as u32),
            hint: &self.hint,
        }
    }

    /// Takes a block, and says in how many steps.
    fn take(&'static self, order: Order) -> (Option<Pfn>, u64) {
        STEPS.set(0);
        let found = self.bitmap().take_block(&self.wanted(), order);
        (found, STEPS.get())
    }

    fn put(&'static self, pfn: Pfn, order: Order) {
        assert_eq!(self.bitmap().put(pfn, order.frames()), DoubleFree::NONE);
    }

    fn hold(&'static self, pageblock: u32) {
        assert!(self.bitmap().claim(PageblockIndex(pageblock).first(), PAGEBLOCK_FRAMES));
    }
}

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

fn random(state: &mut u64) -> u32 {
    // Xorshift (Marsaglia 2003).
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u32
}

/// However many blocks are held, the next one costs the same.
#[test]
fn held_blocks_are_not_walked_over() {
    for size in (4..=Order::MAX.get()).map(order) {
        let world = World::new();
        // Where this CPU begins: in the middle of a section's hints.
        world.hint.store(3 * SECTION_PAGEBLOCKS as u32 + 200, Ordering::Relaxed);
        let blocks = HUGES * PAGEBLOCK_FRAMES / size.frames();
        let mut steps_max = 0;
        for held in 0..blocks {
            let (found, steps) = world.take(size);
            found.unwrap_or_else(|| panic!("{size}: {held} of {blocks} are held"));
            steps_max = steps_max.max(steps);
        }
        assert!(steps_max <= passes(size) * STEPS_MAX, "{size}: {steps_max} steps");
        assert_eq!(world.take(size).0, None, "{size}");
    }
}

/// One block comes back, far from where the search begins, and is taken again.
#[test]
fn one_free_block_is_found_quickly_wherever_it_is() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for size in (4..=Order::MAX.get()).map(order) {
        let world = World::new();
        let frames = HUGES * PAGEBLOCK_FRAMES;
        assert!(world.bitmap().claim(Pfn::new(0), frames));
        // The first search finds marks without cause, and clears them. So does each search on its
        // way from the hint: some read more, but not on average.
        assert_eq!(world.take(size).0, None);
        let (rounds, mut steps_sum) = (200, 0);
        for _ in 0..rounds {
            world.hint.store(random(&mut state) % HUGES, Ordering::Relaxed);
            let block = Pfn::new(random(&mut state) % (frames / size.frames()) * size.frames());
            world.put(block, size);
            let (found, steps) = world.take(size);
            assert_eq!(found, Some(block), "{size}");
            steps_sum += steps;
        }
        assert!(steps_sum <= rounds * passes(size) * STEPS_MAX, "{size}: {steps_sum} steps");
    }
}

/// Holds one of each pair of pageblocks: there is no block of the highest order, until one comes
/// back.
#[test]
fn pageblocks_without_their_neighbours_are_not_looked_at_for_pairs() {
    let world = World::new();
    (0..HUGES).step_by(2).for_each(|pair| world.hold(pair + pair / 2 % 2));
    assert_eq!(world.take(Order::MAX).0, None);
    for held in (0..HUGES).step_by(2).map(|pair| pair + pair / 2 % 2) {
        world.put(PageblockIndex(held).first(), Order::PAGEBLOCK);
        let (found, steps) = world.take(Order::MAX);
        assert_eq!(found, Some(PageblockIndex(held & !1).first()));
        assert!(steps <= STEPS_MAX, "{steps} steps");
    }
}

/// Every second frame of all pageblocks is free. The first search for a larger block looks into all
/// of them, the others into none, until one has such a block again.
#[test]
fn scattered_pageblocks_are_looked_into_once() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let world = World::new();
    assert!(world.bitmap().claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
    let words = HUGES * PAGEBLOCK_FRAMES / bits::WORD_FRAMES;
    for word in 0..words {
        let first = Pfn::new(word * bits::WORD_FRAMES);
        let frames = (0..bits::WORD_FRAMES).step_by(2).map(|at| first.add(at));
        assert_eq!(world.bitmap().put_blocks(Order::BASE, frames), DoubleFree::NONE);
    }
    // Each of the passes reads the hints of all sections, and what is around the hint twice.
    let walk = PASSES.len() as u64 * (SECTIONS * HINT_WORDS + SECTIONS) as u64;
    for size in (1..Order::PAGEBLOCK.get()).rev().map(order) {
        let (found, steps) = world.take(size);
        assert!(found.is_none() && steps > HUGES.into(), "{size}: {steps} steps");
        let (found, steps) = world.take(size);
        assert!(found.is_none() && steps <= walk, "{size}: {steps} steps");
        for _ in 0..10 {
            let block = random(&mut state) % (HUGES * PAGEBLOCK_FRAMES / size.frames());
            let start = Pfn::new(block * size.frames());
            let missing = || (1..size.frames()).step_by(2).map(|at| start.add(at));
            missing().for_each(|pfn| world.put(pfn, Order::BASE));
            let (found, steps) = world.take(size);
            assert!(found == Some(start) && steps <= walk + 1, "{size}: {steps} steps");
            world.put(start, size);
            missing().for_each(|pfn| assert!(world.bitmap().claim(pfn, 1)));
            // The hint is the search's own: it looks there again, and finds none.
            assert_eq!(world.take(size).0, None);
        }
    }
}

/// A pair needs both its pageblocks in the zone.
#[test]
fn a_pair_does_not_cross_the_border_of_a_zone() {
    let world = World::new();
    let other = Tag::new(ZoneId::new(1), Kind::MOVABLE);
    for pageblock in 0..HUGES {
        if pageblock % 2 == 1 && pageblock != 4001 {
            world.bitmap().tags.set(PageblockIndex(pageblock), other);
        }
    }
    assert_eq!(world.take(Order::MAX).0, Some(PageblockIndex(4000).first()));
    assert_eq!(world.take(Order::MAX).0, None);
}

/// Checks that the last pass of each search finds frames that no mark leads to.
#[test]
fn no_search_fails_because_of_a_mark() {
    for size in Order::all() {
        let world = World::new();
        assert!(world.bitmap().claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
        assert_eq!(world.take(size).0, None);
        // As another search might have left it, just before it looks at the hints again.
        let block = Pfn::new(HUGES / 2 * PAGEBLOCK_FRAMES);
        world.put(block, size);
        let marks = world.bitmap().summary.marks(SECTIONS / 2);
        Sort::ALL.into_iter().for_each(|sort| marks.clear(sort, || false));
        assert_eq!(world.take(size).0, Some(block), "{size}");
    }
}

/// Blocks of all orders come and go; a request fails only if there is no free block of that order,
/// and no section with pageblocks of a sort is ever left without its mark.
#[test]
fn searches_agree_with_a_look_at_every_block() {
    let (world, mut state) = (World::new(), 0x2545_f491_4f6c_dd1d);
    // All but a few pageblocks of some sections, so that requests fail.
    let left = [0, 1, 65].map(|section| section * SECTION_FRAMES + 70 * PAGEBLOCK_FRAMES);
    let left_frames = 12 * PAGEBLOCK_FRAMES;
    assert!(world.bitmap().claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
    left.into_iter().for_each(|start| {
        assert_eq!(world.bitmap().put(Pfn::new(start), left_frames), DoubleFree::NONE)
    });
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    let is_free = |start: u32, size: Order| {
        let section = world.bitmap().section((start / SECTION_FRAMES) as usize).unwrap();
        (start..start + size.frames()).all(|frame| section.is_free(frame % SECTION_FRAMES))
    };
    let mut refused = 0;
    for round in 0..30_000 {
        let is_filling = round / 500 % 2 == 0;
        if random(&mut state) % 4 < if is_filling { 3 } else { 1 } || held.is_empty() {
            let size = order(random(&mut state) % (Order::MAX.get() - 5) + 6);
            let is_moved_at_once = size.get() == 6 || size >= Order::PAGEBLOCK;
            let at_once = (is_moved_at_once && random(&mut state).is_multiple_of(2))
                .then(|| world.bitmap().take_at_once(&world.wanted(), size))
                .flatten();
            match at_once.or_else(|| world.take(size).0) {
                Some(start) => held.push((start, size)),
                None => {
                    refused += 1;
                    let blocks =
                        |start| (start..start + left_frames).step_by(size.frames() as usize);
                    let free =
                        left.into_iter().flat_map(blocks).find(|&start| is_free(start, size));
                    assert_eq!(free, None, "{size}");
                }
            }
        } else {
            let (start, size) = held.swap_remove(random(&mut state) as usize % held.len());
            match random(&mut state) % 2 {
                0 => world.put(start, size),
                _ => {
                    assert_eq!(
                        world.bitmap().put_blocks(size, [start].into_iter()),
                        DoubleFree::NONE
                    )
                }
            }
        }
        let section = world.bitmap().section(round % SECTIONS).unwrap();
        assert!(!Sort::ALL.into_iter().any(|sort| section.hides(sort)));
        let pageblock = random(&mut state) as usize % SECTION_PAGEBLOCKS;
        assert!(!section.hides_block(pageblock));
    }
    assert!(refused > 20, "{refused} refused");
}

/// While pageblocks evacuate and larger blocks are wanted, too, a small block comes from the
/// smallest free block there is. Else, and when there is none smaller than order 3, it comes from
/// where the search was last.
#[test]
fn small_blocks_fit_best_while_pageblocks_evacuate() {
    for evacuates in [false, true] {
        let world = World::new();
        let mut bitmap = world.bitmap();
        bitmap.avoids = true;
        assert!(bitmap.claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
        // Pageblock 100 + n has four free blocks of order n, 105 is whole, 99 has two frames.
        let at = |pageblock: u32, block: u32| PageblockIndex(pageblock).first().add(block * 64);
        for n in 0..4 {
            (0..4).for_each(|block| world.put(at(100 + n, block), order(n)));
        }
        world.put(at(105, 0), Order::PAGEBLOCK);
        [0, 7].into_iter().for_each(|block| world.put(at(99, block), Order::BASE));
        if evacuates {
            assert!(bitmap.avoid(bitmap.section(0).unwrap(), PageblockIndex(99), ZONE));
        }
        world.hint.store(103, Ordering::Relaxed);
        let take = |want: u32, size: Order| {
            let mut found = Vec::new();
            bitmap.take_blocks(&world.wanted(), size, want, |one| found.push(one));
            let in_each = found.into_iter().flat_map(|one| {
                let mut frames = [Pfn::new(0); 64];
                let blocks = one.write_to(&mut frames);
                frames[..blocks].to_vec()
            });
            in_each.map(|pfn| pfn.get() / PAGEBLOCK_FRAMES).collect::<Vec<_>>()
        };
        // No request has wanted larger blocks yet.
        assert_eq!(take(2, order(0)), [103; 2]);
        world.put(at(103, 0).add(6), order(1));
        assert_eq!(take(1, order(1)), [if evacuates { 101 } else { 103 }]);
        if !evacuates {
            continue;
        }
        world.put(at(101, 0), order(1));
        assert_eq!(take(4, order(0)), [100; 4]);
        assert_eq!(take(2, order(1)), [101; 2]);
        // Then what is below order 3.
        let mut fours = take(6, order(0));
        fours.sort();
        assert_eq!(fours, [101, 101, 101, 101, 102, 102]);
        assert_eq!(take(3, order(2)), [102; 3]);
        assert_eq!(take(2, order(0)), [102; 2]);
        assert_eq!(take(4, order(3)), [103; 4]);
        // Then what evacuates, and whole ones last.
        assert_eq!(take(2, order(0)), [99; 2]);
        assert_eq!(take(1, order(0)), [105]);
    }
}

/// Checks that the wanted entire pageblocks come by one operation on each word of hints, and that
/// the others stay.
#[test]
fn entire_pageblocks_are_taken_together() {
    for size in (7..=Order::MAX.get()).map(order) {
        let world = World::new();
        assert!(world.bitmap().claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
        // Some on both sides of the border of a word; in the middle one is held.
        let (first, held, pageblocks) = (58, 64, 12);
        for pageblock in (first..first + pageblocks).filter(|pageblock| pageblock / 2 != held / 2) {
            world.put(PageblockIndex(pageblock).first(), Order::PAGEBLOCK);
        }
        let free = (pageblocks - 2) * PAGEBLOCK_FRAMES / size.frames();
        let mut found = Vec::new();
        let got = world
            .bitmap()
            .take_blocks(&world.wanted(), size, free - 1, |one| found.push(Pfn::new(one.lowest())));
        assert_eq!((got, found.len() as u32), (free - 1, free - 1), "{size}");
        found.push(world.take(size).0.unwrap());
        assert_eq!(world.take(size).0, None, "{size}");
        found.sort();
        let blocks = (first * PAGEBLOCK_FRAMES..(first + pageblocks) * PAGEBLOCK_FRAMES)
            .step_by(size.frames() as usize)
            .filter(|start| start / PAGEBLOCK_FRAMES / 2 != held / 2);
        assert!(found.iter().map(|pfn| pfn.get()).eq(blocks), "{size}: {found:?}");
        // All go back, and are entire again.
        assert_eq!(world.bitmap().put_blocks(size, found.into_iter()), DoubleFree::NONE);
        let section = world.bitmap().section(0).unwrap();
        let entire = |pageblock: u32| section.is_entire(pageblock as usize);
        assert_eq!((first..first + pageblocks).filter(|&at| entire(at)).count(), 10, "{size}");
    }
}

/// Checks that a search for pageblocks goes on where it took the last, and then to the section that
/// has fewest.
#[test]
fn pageblocks_come_from_one_word_of_hints_until_it_has_none() {
    let world = World::new();
    let (bitmap, second) = (world.bitmap_that(true), SECTION_PAGEBLOCKS as u32);
    assert!(bitmap.claim(Pfn::new(0), 2 * SECTION_FRAMES));
    for pageblock in (0..10).chain(second..second + 5) {
        world.put(PageblockIndex(pageblock).first(), Order::PAGEBLOCK);
    }
    world.hint.store(0, Ordering::Relaxed);
    for expected in [0..4, 4..10, second..second + 3] {
        let mut got = Vec::new();
        let want = expected.len() as u32;
        let give = |found: WordBlocks| got.push(PageblockIndex::of(Pfn::new(found.lowest())).0);
        assert_eq!(bitmap.take_blocks(&world.wanted(), Order::PAGEBLOCK, want, give), want);
        assert_eq!(got, expected.collect::<Vec<_>>());
    }
}

/// A list in which blocks are twice: they are free once, and told.
#[test]
fn pageblocks_that_go_back_twice_are_free_once() {
    for size in [Order::PAGEBLOCK, Order::MAX] {
        let world = World::new();
        assert!(world.bitmap().claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
        let blocks = [4, 6, 4].map(|pageblock| PageblockIndex(pageblock).first());
        let doubled = world.bitmap().put_blocks(size, blocks.into_iter());
        assert_eq!(doubled.frames, size.frames());
        let mut found = [world.take(size).0, world.take(size).0];
        found.sort();
        assert_eq!(found, [Some(blocks[0]), Some(blocks[1])]);
        assert_eq!(world.take(size).0, None);
    }
}

/// A pageblock with a free block throughout that is whole when the passes for partly free ones come
/// by, and partly free when the one for whole ones does. Others take and free between the passes
/// what makes it so; here the receiver of the blocks does. Only the last pass can take it.
#[test]
fn a_huge_that_no_pass_but_the_last_selects_is_not_skipped() {
    let world = World::new();
    let half = order(Order::PAGEBLOCK.get() - 1);
    assert!(world.bitmap().claim(Pfn::new(0), HUGES * PAGEBLOCK_FRAMES));
    let [partial, whole, later] = [1, 2, 3].map(|pageblock| PageblockIndex(pageblock).first());
    let evasive = PageblockIndex(SECTION_PAGEBLOCKS as u32).first();
    world.put(partial, half);
    world.put(whole, Order::PAGEBLOCK);
    world.put(evasive, Order::PAGEBLOCK);
    let mut found = Vec::new();
    let got = world.bitmap().take_blocks(&world.wanted(), half, 5, |one| {
        found.push(Pfn::new(one.lowest()));
        match found.len() {
            // The pass for whole pageblocks has taken both halves of one.
            3 => {
                assert!(world.bitmap().claim(evasive, 1));
                world.put(later, half);
            }
            // The next pass for partly free ones has found the other.
            4 => world.put(evasive, order(0)),
            _ => {}
        }
    });
    assert_eq!(found[..4], [partial, whole.add(half.frames()), whole, later]);
    assert_eq!(
        (got, found.last().map(|&block| PageblockIndex::of(block))),
        (5, Some(PageblockIndex::of(evasive)))
    );
}

/// Stops a free that has found its pageblock reported: before it takes its frame out of the words
/// another caller wakes the pageblock and puts all there.
#[test]
fn a_strip_that_comes_late_takes_nothing() {
    let world = World::new();
    let (bitmap, pageblock) = (world.bitmap(), PageblockIndex(300));
    let section = bitmap.section(0).unwrap();
    world.hold(300);
    bitmap.put_reported(section, pageblock);
    assert!(section.take_reported(300));
    assert_eq!(bitmap.put(pageblock.first(), PAGEBLOCK_FRAMES), DoubleFree::NONE);
    assert_eq!(bitmap.strip(section, pageblock), DoubleFree::NONE);
    assert_eq!(section.count_free(300), PAGEBLOCK_FRAMES);
}
