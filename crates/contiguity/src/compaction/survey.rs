//! A survey of how full each pageblock is, by which compaction chooses its sources and
//! destinations.
//!
//! # Vocabulary
//! * *held*: the frames of a pageblock that are not free in the store: callers hold them, or CPUs
//!   cache them.
//! * [`Key`]: how dear it is to empty a pageblock or a window of them. Lower is better.
//! * [`KeyRanking`]: the best few candidates of one walk over a zone, so that a walk needs no
//!   memory.
//!
//! The hints say which pageblocks are full or whole without a look at their words, so a walk reads
//! two words per 64 pageblocks and one cache line per partly used one. What it finds is of one
//! moment for each pageblock: a candidate is looked at again before it is used.

use pagedepot::Mobility;
use pagedepot::cpus::Cpus;
use pagedepot::seam::{PAGEBLOCK_FRAMES, PageblockIndex, PageblockUse, ZoneAccess};
use pagedepot::sync::model::bound;

/// Candidates that one walk keeps.
const RANKED: usize = bound(64, 2);

/// Pageblocks passed for each partly used one that is looked for.
const LOOKS_PER_PARTIAL: usize = 8;

/// The cost of a candidate, and the pageblock it begins at. Ascends strictly over the candidates of
/// all walks with the same [`KeyRanking::after`], so that each is visited at most once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    /// Frames held, and 2^32 for each pageblock of unmovable ones, which so come last.
    pub cost: u64,
    pub first: u32,
}

impl Key {
    /// The key before all candidates.
    pub const NONE: Key = Key { cost: 0, first: 0 };
    /// More than all held frames.
    const UNMOVABLE: u64 = 1 << 32;
    /// The key behind all candidates without a pageblock of unmovable ones.
    pub const MOVABLE_MAX: Key = Key { cost: Self::UNMOVABLE - 1, first: u32::MAX };

    /// Frames held, in all.
    pub fn held(self) -> u64 {
        self.cost % Self::UNMOVABLE
    }

    /// Whether the candidate has a pageblock of unmovable ones.
    pub fn is_unmovable(self) -> bool {
        self.cost >= Self::UNMOVABLE
    }
}

/// The lowest keys above a bound, ascending.
pub(super) struct KeyRanking {
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

    /// The first of the keys that are all unmovable, or all not.
    pub fn keys_of_a_kind(&self) -> &[Key] {
        let keys = self.keys();
        match keys.partition_point(|key| !key.is_unmovable()) {
            0 => keys,
            movable => &keys[..movable],
        }
    }

    /// Whether there may have been more keys than are kept.
    pub fn is_full(&self) -> bool {
        self.length == RANKED
    }

    /// Drops the lowest.
    pub fn pop_first(&mut self) {
        self.keys.copy_within(1.., 0);
        self.length = self.length.saturating_sub(1);
    }
}

/// Frames of a pageblock that blocks may be moved to: none where all are free, or where blocks
/// belong that are not movable.
pub(super) fn room(usage: PageblockUse) -> u32 {
    let is_destination = !usage.is_whole() && usage.mobility == Mobility::Movable;
    if is_destination { PAGEBLOCK_FRAMES - usage.held } else { 0 }
}

/// The key of a pageblock to be emptied.
pub(super) fn key(usage: PageblockUse) -> Key {
    Key { cost: cost(usage), first: usage.pageblock.0 }
}

fn cost(usage: PageblockUse) -> u64 {
    let is_unmovable = usage.held > 0 && usage.mobility == Mobility::Unmovable;
    u64::from(usage.held) + if is_unmovable { Key::UNMOVABLE } else { 0 }
}

/// Aligned windows of so many pageblocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub pageblocks: u32,
    /// A multiple of this is where each begins.
    pub step: u32,
}

/// All pageblocks of a zone that could be emptied, ascending. O(zone).
pub(super) fn usages<C: Cpus>(zone: ZoneAccess<'_, '_, C>) -> impl Iterator<Item = PageblockUse> {
    zone.pageblocks().filter_map(move |pageblock| zone.usage(PageblockIndex(pageblock)))
}

impl Windows {
    /// The cheapest windows of a zone to empty. A window with a pageblock that cannot be emptied is
    /// none. O(zone), whatever the windows' size.
    pub fn rank<C: Cpus>(self, zone: ZoneAccess<'_, '_, C>, ranked: &mut KeyRanking) {
        // The sum over the window that ends before `end`, and how many in a row there are.
        let (mut cost_of_window, mut run) = (0u64, 0u32);
        for at in zone.pageblocks() {
            // What the reporting device has refused cannot be had however much is moved.
            let cost_of = |at| {
                let usage = zone.usage(PageblockIndex(at));
                usage.filter(|usage| !zone.is_refused(usage.pageblock)).map(cost)
            };
            let Some(cost_here) = cost_of(at) else {
                (cost_of_window, run) = (0, 0);
                continue;
            };
            (cost_of_window, run) = (cost_of_window + cost_here, run + 1);
            if run > self.pageblocks {
                // It may have changed since it was added: an estimate, which chooses and no more.
                let gone = cost_of(at - self.pageblocks).unwrap_or(0);
                (cost_of_window, run) = (cost_of_window.saturating_sub(gone), self.pageblocks);
            }
            let first = (at + 1).wrapping_sub(self.pageblocks);
            if run == self.pageblocks && first.is_multiple_of(self.step) {
                ranked.add(Key { cost: cost_of_window, first });
            }
        }
    }
}

/// The pageblock of a zone at which a look from `from` on begins.
fn begin<C: Cpus>(zone: ZoneAccess<'_, '_, C>, from: u32) -> u32 {
    let all = zone.pageblocks();
    if all.contains(&from) { from } else { all.start }
}

/// The next pageblock of a zone from `from` on, once around, that is mixed.
pub(super) fn next_mixed<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    from: u32,
) -> Option<PageblockIndex> {
    let (all, from) = (zone.pageblocks(), begin(zone, from));
    zone.next_mixed(from..all.end).or_else(|| zone.next_mixed(all.start..from))
}

/// The sparsest of the next movable pageblocks from `from` on, once around, that are partly used;
/// at most `looks` of them, whose keys are above `above`. Also the first pageblock behind those
/// that were looked at.
pub(super) fn next_sparse<C: Cpus>(
    zone: ZoneAccess<'_, '_, C>,
    from: u32,
    looks: usize,
    above: Key,
) -> (Option<Key>, u32) {
    let (all, from) = (zone.pageblocks(), begin(zone, from));
    let looks_max = looks * LOOKS_PER_PARTIAL;
    let is_partial = |usage: &PageblockUse| {
        room(*usage) > 0 && usage.held > 0 && usage.mobility == Mobility::Movable
    };
    let (mut sparsest, mut next) = (None::<Key>, from.saturating_add(looks_max as u32));
    let around = (from..all.end).chain(all.start..from).map(PageblockIndex);
    for usage in
        around.take(looks_max).filter_map(|at| zone.usage(at)).filter(is_partial).take(looks)
    {
        next = usage.pageblock.0 + 1;
        let key = key(usage);
        if key > above && sparsest.is_none_or(|least| key < least) {
            sparsest = Some(key);
        }
    }
    (sparsest, next)
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
