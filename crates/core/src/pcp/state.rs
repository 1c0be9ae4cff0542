//! The state of a CPU for one zone, besides its front words: shelves, policies, counters.
//!
//! Drainers of other CPUs touch these, so they never share a cache line with the front words. And
//! fronts as the slow paths name them.

use super::high::{Clock, FreeCounts, High};
use super::shelf::{Empties, HandedStack, Part, PoppedMagazines, Shelf, ShelfIndex};
use crate::cpus::Change;
use crate::evacuation::{Hand, Spares};
use crate::frame::pageblock::{FRONTS, ROWS, Tag};
use crate::frame::{Kind, Mobility, Order, Pfn, ZoneId};
use crate::front::word::Word;
use crate::front::{BlockArray, Here, Magazine, WordOffset};
use crate::store::{SearchRequest, SearchRules};
use crate::sync::model::IS_LOOM;
use crate::sync::prim::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use crate::sync::{CachePadded, Caller, InFlight, count, count_here};
use crate::zone::counts::{Counters, Counts};
use crate::zone::delta::Delta;
use crate::zone::{GroupDelta, Zone};

/// Shelves per zone.
pub const SHELF_COUNT: usize = Order::CACHED * Kind::COUNT;
/// Pages. Nearly all changes of the free count are smaller, and are added without asking whether
/// they are too large to keep.
const LARGE_CHANGE: u64 = Order::PAGEBLOCK.frames() as u64;
/// The state of a CPU for one zone, besides its front words.
///
/// A drain of order 0 writes the first cache line and the list of magazines beside it. So the
/// owner's next slow path misses these two lines, and no other line of its own.
#[repr(C, align(128))]
pub struct Pcp {
    /// Frames on their way between owners.
    pub in_flight: InFlight,
    /// Pages of all magazines that are in this CPU's fronts and shelves, each charged in full.
    /// Relaxed where the owner compares it with `high`: it sees its own charges, and a drain that
    /// it does not see yet only makes it spill early.
    pub charged_pages: AtomicI64,
    /// Change of the zone's free count that has not been added to it yet.
    pub free_delta: Delta,
    /// Empty magazines that drains brought back.
    pub returned: Empties,
    /// Full magazines, `[order][kind]`. Those of order 0 lie in the first cache line, but for what
    /// is kept apart.
    shelves: [Shelf; SHELF_COUNT],
    /// The magazines that the owner handed over to drains that asked for them.
    pub handed: HandedStack,
    /// The stacks that other CPUs write, on a line that the owner does not touch but to report what
    /// it keeps of the free count.
    pub others: CachePadded<Others>,
    // What follows is policy, on lines of its own: nothing is published by it. A policy decides by
    // it how much to cache and where to look first, and finds out by a claim whether it was right.
    pub high: High,
    /// Pageblock at which the next search of the store begins, by kind. Relaxed: a hint.
    hints: [AtomicU32; Kind::COUNT],
    /// Pageblock at which the next search for whole pageblocks begins. It is a hint of its own: it
    /// would lead other searches away from the pageblocks that they are filling.
    whole_hint: AtomicU32,
    pub hand: Hand,
    pub spares: Spares,
    pub free_counts: FreeCounts,
    /// Versions of the shelves: one that has the same version is cold.
    pub cold_shelves: Clock<SHELF_COUNT>,
    pub counters: CachePadded<Counters>,
    /// Front words: a front that has not changed is cold.
    pub cold_fronts: Clock<FRONTS>,
    /// Lists of the magazines on the shelves of order 0.
    listed: [ShelfIndex; Kind::COUNT],
}

/// The fields that other CPUs than the owner write.
#[derive(Default)]
pub struct Others {
    /// Blocks and pages taken back by drains. Relaxed: statistics.
    drained: [AtomicU64; 2],
    /// The delta of the group of CPUs that begins with this one, if one does.
    pub group_delta: GroupDelta,
}

impl Pcp {
    pub fn new(high_pages: i64, hint: u32) -> Self {
        Pcp {
            in_flight: InFlight::default(),
            charged_pages: AtomicI64::new(0),
            free_delta: Delta::default(),
            returned: Empties::default(),
            shelves: core::array::from_fn(|_| Shelf::default()),
            handed: HandedStack::default(),
            others: CachePadded::default(),
            high: High::new(high_pages),
            hints: core::array::from_fn(|_| AtomicU32::new(hint)),
            whole_hint: AtomicU32::new(hint),
            hand: Hand::new(hint),
            spares: Spares::default(),
            free_counts: FreeCounts::default(),
            cold_shelves: Clock::new(),
            counters: CachePadded::new(Counters::default()),
            cold_fronts: Clock::new(),
            listed: core::array::from_fn(|_| ShelfIndex::default()),
        }
    }

    /// Records `pages` more (or fewer) free pages of this zone. `group` finds the delta of the
    /// CPU's group.
    #[inline]
    pub fn add_free<'g>(
        &self,
        zone: &Zone,
        pages: i64,
        caller: Caller,
        group: impl FnOnce() -> &'g GroupDelta,
    ) {
        if zone.is_backed {
            return;
        }
        if pages.unsigned_abs() >= LARGE_CHANGE && zone.takes_at_once(pages) {
            return zone.add_reported(pages);
        }
        let delta = self.free_delta.add(pages);
        if delta.abs() > zone.delta_max() {
            self.report_free(zone, delta, caller, group);
        }
    }

    /// Adds the CPU's changes, about `delta`, to its group's.
    #[cold]
    #[inline(never)]
    fn report_free<'g>(
        &self,
        zone: &Zone,
        delta: i64,
        caller: Caller,
        group: impl FnOnce() -> &'g GroupDelta,
    ) {
        // Announced: until the levels above have them, a watermark may hide pages that other
        // callers on this CPU have freed.
        let _moving = self.in_flight.begin(delta.unsigned_abs(), caller);
        self.free_delta.report(|pages| group().add(zone, pages));
    }

    /// Whether the CPU's magazines are charged with more than `high`.
    pub fn is_above_high(&self) -> bool {
        self.charged_pages.load(Ordering::Relaxed) > self.high.get()
    }

    /// Whether the CPU may be charged with `pages` more as `high` is now.
    pub fn has_room(&self, pages: u64) -> bool {
        self.charged_pages.load(Ordering::Relaxed) + pages as i64 <= self.high.get()
    }

    /// A search of the store for blocks of an order and a kind, from where this CPU last found
    /// some.
    pub fn wanted(
        &self,
        zone: ZoneId,
        span: (u32, u32),
        order: Order,
        rules: SearchRules,
    ) -> SearchRequest<'_> {
        let hint = match order < Order::PAGEBLOCK {
            true => &self.hints[rules.kind.index()],
            false => &self.whole_hint,
        };
        SearchRequest { zone, rules, span, hint }
    }

    /// Counts the operations that `new`, which has replaced `old`, has not kept; and an exchange,
    /// if another magazine is loaded in it.
    pub fn count_exchange(&self, old: Word, new: Word) {
        self.count_operations(old.operations() - new.operations());
        if old.loaded() != new.loaded() {
            count_here(&self.counters.exchanges, 1);
        }
    }

    /// Counts operations of fronts.
    pub fn count_operations(&self, operations: u64) {
        count_here(&self.counters.hits, operations);
    }

    /// The counters, with what drainers count.
    pub fn counts(&self) -> Counts {
        let [drained_blocks, drained_pages] =
            [0, 1].map(|i| self.others.drained[i].load(Ordering::Relaxed));
        Counts { drained_blocks, drained_pages, ..self.counters.read() }
    }

    /// Counts what a drain took back.
    pub fn count_drained(&self, order: Order, blocks: u32) {
        count(&self.others.drained[0], blocks.into());
        count(&self.others.drained[1], u64::from(blocks) * u64::from(order.frames()));
    }

    /// Pages of all magazines that this CPU has: on shelves, in fronts and in hands, in full.
    pub fn charged(&self) -> u64 {
        self.charged_pages.load(Ordering::Relaxed).max(0) as u64
    }

    #[inline]
    pub fn shelf(&self, order: Order, kind: Kind) -> &Shelf {
        &self.shelves[order.index() * Kind::COUNT + kind.index()]
    }

    /// The shelf at a place of [`shelves`](Self::shelves), with its order and kind.
    pub fn shelf_at(&self, place: usize) -> (Order, Kind, &Shelf) {
        let (order, kind) = (place / Kind::COUNT, place % Kind::COUNT);
        (Order::at_place(order), Kind::from_bits(kind as u32), &self.shelves[place])
    }

    /// Pushes full magazines to a front's shelf, and lists them. `false`: they are too many for it.
    #[inline]
    pub fn push_to_shelf(&self, blocks: &BlockArray, front: &Front, full: PoppedMagazines) -> bool {
        let shelf = self.shelf(front.order, front.kind);
        if let Some(listed) = self.listed(front.order, front.kind) {
            listed.note(shelf.count(), full);
        }
        shelf.push_chain(blocks, full.first, full.last, full.count).is_ok()
    }

    /// The list of a shelf's magazines; order 0 alone has long shelves of small blocks.
    #[inline]
    pub fn listed(&self, order: Order, kind: Kind) -> Option<&ShelfIndex> {
        // No protocol reads it; to a model each access would be two executions.
        (order == Order::BASE && !IS_LOOM).then(|| &self.listed[kind.index()])
    }

    /// All shelves with their order and kind.
    pub fn shelves(&self) -> impl Iterator<Item = (Order, Kind, &Shelf)> {
        (0..SHELF_COUNT).map(|place| self.shelf_at(place))
    }
}

const _: () = assert!(align_of::<Magazine>() <= align_of::<Pcp>());
const _: () = assert!(
    IS_LOOM || core::mem::offset_of!(Pcp, shelves) + Mobility::COUNT * size_of::<Shelf>() <= 64
);

/// Attempts at the front before a request goes to the store: enough for every step of a refill and
/// some lost races; a CPU whose sequences never commit must not hang.
pub const ATTEMPTS_MAX: u32 = 16;

/// Names a front: the blocks that it caches, and its CPU, context and zone.
#[derive(Clone, Copy)]
pub struct Front {
    pub here: Here,
    pub zone: ZoneId,
    pub order: Order,
    pub kind: Kind,
    /// Whether it takes the frames of avoided pageblocks. It has one magazine at most, no shelf,
    /// and is never popped from.
    pub avoided: bool,
}

impl Front {
    /// The front that takes frames with this tag. `None`: none does. By a branch that expects a
    /// movable frame of the first zone: else all that a free does next would wait for the tag, as
    /// in [`WordOffset::expected`].
    #[inline]
    pub fn of_tag(here: Here, order: Order, tag: Tag) -> Option<Front> {
        let (zone, kind) = (ZoneId::new(0), Kind::MOVABLE);
        if tag == Tag::new(zone, kind) {
            return Some(Front { here, zone, order, kind, avoided: false });
        }
        core::hint::cold_path();
        let (kind, avoided) = tag.has_fronts().then_some(tag)?.row();
        Some(Front { here, zone: tag.zone(), order, kind, avoided })
    }

    pub fn offset(self) -> WordOffset {
        let tag = Tag::new(self.zone, self.kind);
        WordOffset::of_tag(if self.avoided { tag.avoided() } else { tag }, self.order)
    }

    /// The magazines of its word.
    pub fn parts(self, word: Word) -> impl Iterator<Item = Part> {
        let loaded = word.loaded().map(|loaded| (loaded, word.rounds()));
        let rounds_max = self.order.rounds();
        let previous = word.previous().map(|(previous, fill)| (previous, fill.rounds(rounds_max)));
        let magazines = loaded.into_iter().chain(previous);
        magazines.map(move |(magazine, rounds)| Part::new(magazine, self.order, rounds))
    }

    /// The change of its word from `old` to `new`.
    #[inline]
    pub fn word_change(self, old: Word, new: Word) -> Change<'static> {
        Change::Word { at: self.offset(), old: old.0, new: new.0 }
    }

    /// The place of its word among all of its context and zone, as they lie in memory.
    pub fn place(self) -> usize {
        let row = self.kind.index() + if self.avoided { Kind::COUNT } else { 0 };
        row * Order::CACHED + self.order.index()
    }

    /// Number of fronts of a context of a CPU in a zone: those that are popped from come first.
    pub fn places(avoids: bool) -> usize {
        Order::CACHED * if avoids { ROWS } else { Kind::COUNT }
    }

    /// The front with this [`place`](Self::place).
    pub fn at_place(here: Here, zone: ZoneId, place: usize) -> Front {
        let row = place / Order::CACHED;
        Front {
            here,
            zone,
            order: Order::at_place(place % Order::CACHED),
            kind: Kind::from_bits((row % Kind::COUNT) as u32),
            avoided: row >= Kind::COUNT,
        }
    }

    /// Whether it can never have a magazine of `more` pages beside those in its word, because the
    /// CPU may not cache as much. So it is with blocks that are large for the memory of a CPU: they
    /// go past the caches before anything else is looked at.
    #[inline]
    pub fn never_fits(self, word: Word, more: u64, high_max: u64) -> bool {
        u64::from(word.magazines() * self.order.magazine_frames()) + more > high_max
    }
}

/// The result of an attempt at a front.
pub enum Step {
    /// A block.
    Got(Pfn),
    /// The front has changed: try again.
    Again,
    /// The front cannot serve the request: use the store.
    Store,
    /// The zone has none, or may not give any.
    Nothing,
}
