//! A survey of how full each pageblock is, by which compaction chooses its sources and
//! destinations.
//!
//! # Vocabulary
//! * *held*: the frames of a pageblock that are not free here: callers hold them, or CPUs cache
//!   them.
//! * [`Key`]: how dear it is to empty a pageblock or a window of them. Lower is better.
//! * [`KeyRanking`]: the best few candidates of one walk over a zone, so that a walk needs no
//!   memory.
//!
//! The hints say which pageblocks are full or whole without a look at their words, so a walk reads
//! two words per 64 pageblocks and one cache line per partly used one. What it finds is of one
//! moment for each pageblock: a candidate is looked at again before it is used.

use core::ops::Range;

use super::bitmap::Bitmap;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{Mobility, Order, Pfn, ZoneId};
use crate::sync::model::bound;

/// Candidates that one walk keeps.
const RANKED: usize = bound(64, 2);

/// Pageblocks passed for each partly used one that is looked for.
const LOOKS_PER_PARTIAL: usize = 8;

/// The cost of a candidate, and the pageblock it begins at. Ascends strictly over the candidates of
/// all walks with the same [`KeyRanking::after`], so that each is visited at most once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Frames held, and 2^32 for each pageblock of unmovable ones, which so come last.
    pub cost: u64,
    pub first: u32,
}

impl Key {
    /// The key before all candidates.
    pub const NONE: Key = Key { cost: 0, first: 0 };
    /// More than all held frames.
    const UNMOVABLE: u64 = 1 << 32;

    /// Frames held, in all.
    pub fn held(self) -> u64 {
        self.cost % Self::UNMOVABLE
    }

    /// Whether it serves unmovable requests, or a part of it.
    pub fn is_unmovable(self) -> bool {
        self.cost >= Self::UNMOVABLE
    }
}

/// The lowest keys above a bound, ascending.
pub struct KeyRanking {
    keys: [Key; RANKED],
    length: usize,
    after: Option<Key>,
}

impl KeyRanking {
    /// Ranks keys above `after`.
    pub fn after(after: Option<Key>) -> Self {
        KeyRanking { keys: [Key::NONE; RANKED], length: 0, after }
    }

    /// Considers a key. O(log n) if it is not among the lowest.
    pub fn add(&mut self, key: Key) {
        let is_above = self.after.is_none_or(|after| key > after);
        if !is_above || self.length == RANKED && key > self.keys[RANKED - 1] {
            return;
        }
        let at = self.keys[..self.length].partition_point(|other| *other < key);
        let end = (self.length + 1).min(RANKED);
        self.keys.copy_within(at..end - 1, at + 1);
        self.keys[at] = key;
        self.length = end;
    }

    pub fn keys(&self) -> &[Key] {
        &self.keys[..self.length]
    }

    /// Drops the lowest.
    pub fn pop_first(&mut self) {
        self.keys.copy_within(1.., 0);
        self.length = self.length.saturating_sub(1);
    }
}

/// The state of a pageblock that a walk found.
#[derive(Clone, Copy, Debug)]
pub struct PageblockUse {
    pub pageblock: PageblockIndex,
    pub mobility: Mobility,
    /// Frames that are not free here.
    pub held: u32,
}

impl PageblockUse {
    pub fn is_whole(self) -> bool {
        self.held == 0
    }

    /// Frames that blocks may be moved to: none where all are free, or where blocks belong that are
    /// not movable.
    pub fn room(self) -> u32 {
        let is_destination = !self.is_whole() && self.mobility == Mobility::Movable;
        if is_destination { PAGEBLOCK_FRAMES - self.held } else { 0 }
    }

    /// The key of a pageblock to be emptied.
    pub fn key(self) -> Key {
        Key { cost: self.cost(), first: self.pageblock.0 }
    }

    fn cost(self) -> u64 {
        let is_unmovable = self.held > 0 && self.mobility == Mobility::Unmovable;
        u64::from(self.held) + if is_unmovable { Key::UNMOVABLE } else { 0 }
    }
}

/// Aligned windows of so many pageblocks.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub pageblocks: u32,
    /// A multiple of this is where each begins.
    pub step: u32,
}

impl Bitmap<'_> {
    /// The pageblock, if it is one of `zone` that could be emptied: with memory, not isolated, no
    /// frame carved.
    pub fn filling(&self, pageblock: PageblockIndex, zone: ZoneId) -> Option<PageblockUse> {
        let tag = self.tags.raw(pageblock);
        if !tag.serves(zone) || tag.is_carved() {
            return None;
        }
        let section = self.section(pageblock.section())?;
        let (at, (some, _)) = (pageblock.in_section(), section.hints(pageblock.in_section() / 64));
        // A hint that is clear may be wrong for a moment: the pageblock then looks full.
        let has_some = some >> (at % 64) & 1 == 1;
        let is_free = has_some || section.is_as_one(at);
        let free = if is_free { section.count_free(at) } else { 0 };
        Some(PageblockUse { pageblock, mobility: tag.mobility(), held: PAGEBLOCK_FRAMES - free })
    }

    /// Free frames of a pageblock now.
    pub fn count_free_of(&self, pageblock: PageblockIndex) -> u32 {
        let section = self.section(pageblock.section());
        section.map_or(0, |section| section.count_free(pageblock.in_section()))
    }

    /// Whether none of the frames `start..start + frames` is free now.
    pub fn are_held(&self, start: Pfn, frames: u32) -> bool {
        self.by_section(start, frames).all(|(section, at, count)| {
            section.is_none_or(|section| section.are_all(at, count, false))
        })
    }

    /// All pageblocks of a zone that could be emptied, ascending. O(zone).
    pub fn fillings(&self, zone: ZoneId, span: (u32, u32)) -> impl Iterator<Item = PageblockUse> {
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        (span.0 * pageblocks..span.1 * pageblocks)
            .filter_map(move |pageblock| self.filling(PageblockIndex(pageblock), zone))
    }

    /// The cheapest windows of a zone to empty. A window with a pageblock that cannot be emptied is
    /// none. O(zone), whatever the windows' size.
    pub fn rank_windows(
        &self,
        (zone, span): (ZoneId, (u32, u32)),
        windows: Windows,
        ranked: &mut KeyRanking,
    ) {
        let all = span.0 * SECTION_PAGEBLOCKS as u32..span.1 * SECTION_PAGEBLOCKS as u32;
        // The sum over the window that ends before `end`, and how many in a row there are.
        let (mut cost, mut run) = (0u64, 0u32);
        for at in all {
            // What the reporting device has refused cannot be had however much is moved.
            let cost_of = |at| {
                let filling = self.filling(PageblockIndex(at), zone);
                let filling = filling.filter(|filling| !self.is_refused(filling.pageblock));
                filling.map(|filling| filling.cost())
            };
            let Some(cost_here) = cost_of(at) else {
                (cost, run) = (0, 0);
                continue;
            };
            (cost, run) = (cost + cost_here, run + 1);
            if run > windows.pageblocks {
                // It may have changed since it was added: an estimate, which chooses and no more.
                let gone = cost_of(at - windows.pageblocks).unwrap_or(0);
                (cost, run) = (cost.saturating_sub(gone), windows.pageblocks);
            }
            let first = (at + 1).wrapping_sub(windows.pageblocks);
            if run == windows.pageblocks && first.is_multiple_of(windows.step) {
                ranked.add(Key { cost, first });
            }
        }
    }

    /// The next pageblock of a zone from `from` on, once around, that is mixed.
    pub fn next_mixed(&self, span: (u32, u32), from: u32) -> Option<PageblockIndex> {
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        let all = span.0 * pageblocks..span.1 * pageblocks;
        let from = if all.contains(&from) { from } else { all.start };
        self.mixed_in(from..all.end).or_else(|| self.mixed_in(all.start..from))
    }

    fn mixed_in(&self, range: Range<u32>) -> Option<PageblockIndex> {
        let mut at = range.start;
        while at < range.end {
            let pageblock = PageblockIndex(at);
            let (section, in_section) = (self.section(pageblock.section()), pageblock.in_section());
            let mixed = section.map_or(0, |section| section.mixed(in_section / 64));
            let mixed = mixed >> (in_section % 64);
            if mixed != 0 {
                at += mixed.trailing_zeros();
                return (at < range.end).then_some(PageblockIndex(at));
            }
            at += (64 - in_section % 64).min(SECTION_PAGEBLOCKS - in_section) as u32;
        }
        None
    }

    /// The sparsest of the next movable pageblocks from `from` on, once around, that are partly
    /// used; at most `looks` of them. Also where the next look begins.
    pub fn next_sparse(
        &self,
        (zone, span): (ZoneId, (u32, u32)),
        from: u32,
        looks: usize,
    ) -> Option<(PageblockIndex, u32)> {
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        let all = span.0 * pageblocks..span.1 * pageblocks;
        let from = if all.contains(&from) { from } else { all.start };
        let is_partial = |filling: &PageblockUse| {
            filling.room() > 0 && filling.held > 0 && filling.mobility == Mobility::Movable
        };
        let (mut sparsest, mut next) = (None::<PageblockUse>, from);
        let around = (from..all.end).chain(all.start..from).map(PageblockIndex);
        for filling in around
            .take(looks * LOOKS_PER_PARTIAL)
            .filter_map(|at| self.filling(at, zone))
            .filter(is_partial)
            .take(looks)
        {
            next = filling.pageblock.0 + 1;
            if sparsest.is_none_or(|least| filling.held < least.held) {
                sparsest = Some(filling);
            }
        }
        sparsest.map(|filling| (filling.pageblock, next))
    }

    /// Takes a block, smaller than a pageblock, from a pageblock of `zone`, unless that is
    /// isolated.
    ///
    /// # Panics
    /// If the order is higher.
    pub fn take_from(&self, pageblock: PageblockIndex, zone: ZoneId, order: Order) -> Option<Pfn> {
        assert!(order < Order::PAGEBLOCK, "a search finds blocks of order {order}");
        let section = self.section(pageblock.section())?;
        if !self.tags.raw(pageblock).serves(zone) {
            return None;
        }
        let first = PageblockIndex((pageblock.section() * SECTION_PAGEBLOCKS) as u32).first();
        let mut found = None;
        section.take(pageblock.in_section(), order, None, 1, |one| {
            found = Some(first.add(one.lowest()))
        });
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn key(cost: u64, first: u32) -> Key {
        Key { cost, first }
    }

    #[test]
    fn the_lowest_keys_are_kept_in_order() {
        let mut all: Vec<Key> =
            (0..1000u64).map(|i| key(i * 7919 % 331, (i * 104_729 % 1000) as u32)).collect();
        let mut ranked = KeyRanking::after(None);
        all.iter().for_each(|&key| ranked.add(key));
        all.sort();
        assert_eq!(ranked.keys(), &all[..RANKED]);

        let bound = all[500];
        let mut ranked = KeyRanking::after(Some(bound));
        all.iter().for_each(|&key| ranked.add(key));
        assert_eq!(ranked.keys(), &all[501..501 + RANKED]);
        ranked.pop_first();
        assert_eq!(ranked.keys(), &all[502..501 + RANKED]);
    }

    #[test]
    fn fewer_keys_than_there_is_room_for() {
        let mut ranked = KeyRanking::after(Some(key(3, 0)));
        [5, 3, 4, 2].iter().for_each(|&cost| ranked.add(key(cost, 1)));
        assert_eq!(ranked.keys(), [key(3, 1), key(4, 1), key(5, 1)]);
    }
}
