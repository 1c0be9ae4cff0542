//! Evacuation: sparsely used pageblocks leave circulation, so that they become whole.
//!
//! # Vocabulary
//! * A pageblock *evacuates* while its tag says so. It is *settled* when that ends.
//! * *hand*: where a CPU looks next at pageblocks, to see which should evacuate.
//!
//! # Theory
//! Fronts are last in, first out: the frame that was freed last is the next one allocated, whatever
//! pageblock it pins. However many magazines are exchanged with the store, the same frames
//! circulate, and no pageblock becomes whole (decision 0008). So the frames of some pageblocks must
//! not come on top. Their tags lead `free` to fronts of their own, of which no allocation pops: at
//! no cost, because `free` reads the tag anyway. Such a front has one magazine. When it is full it
//! goes to the store, never to a shelf. There searches pass by these pageblocks until they would
//! have to break up a whole one, or fail; they settle those that they take from.
//!
//! The argument why a tag may change while frames are held or cached is in `store/evacuating.rs`.
//! How many pageblocks evacuate is in `zone/evacuation.rs`.
//!
//! # Marking
//! Each CPU has a hand per zone. Its slow paths move it by 16 pageblocks, at a refill and when an
//! allocation finds that its fronts have counted 1023 operations since: a loop that finds
//! everything in its fronts heals, too. Frees do not move it. While memory is only freed, no free
//! frame is taken that a pageblock lacks to be whole. A hand marks only while the zone's free
//! pages, with those that its CPU caches, stay about the same over 4 steps: not while memory fills
//! or empties. After a sixteenth of the zone has been allocated or freed, it first counts the whole
//! pageblocks again, by a turn of a section per step.
//!
//! # Spare magazines
//! A shelf that was filled once keeps its frames for as long as its CPU pushes and pops
//! near the top. They pin every pageblock that they are of, count as free nowhere, and when
//! they are allocated at last they fill pageblocks that evacuate. So magazines of order 0
//! that no front needed over 32 calls of the hand go to the store, 16 at a time, unless half
//! of the zone is whole already.
//!
//! # Bounds
//! One step reads a line of tags, a word of hints each, and at most 16 lines of the bitmap, and
//! changes at most 16 tags. Where nothing evacuates and nothing is to, and where it only counts, it
//! reads only the hints of a section, in three lines, and 8 tags; in the first case 7 of 8 steps
//! are left out (on 256 CPUs 224 of 225, so that all hands together look no more often), until a
//! sixteenth of the zone has been allocated or freed since the last turn.
//! While memory fills or empties, it reads counters alone, at every second call, and the zone's,
//! which all CPUs write then, at every eighth. A slow path is longer by one step and by 16 spare
//! magazines for each mobility, half of what a decay of `high` may spill; and by one magazine for
//! each mobility and order in use at every eighth step, which empties the CPU's fronts for
//! evacuated frames. While any evacuate, a search for small blocks looks at up to 64 pageblocks
//! more (`store/best_fit.rs`), and shelves hold less (`high.rs`).

use super::caches::CpuZone;
use super::hand::Stillness;
use super::state::Front;
use crate::cpus::{Cpus, Here};
use crate::frame::pageblock::{PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{Mobility, Order, ZoneId};
use crate::front::word::Word;
use crate::store::bitmap::Bitmap;
use crate::store::section::Section;
use crate::sync::count;
use crate::sync::model::{IS_LOOM, bound};
use crate::sync::prim::Ordering;
use crate::zone::{Evacuation, HandPlan, State, TurnCounts, Zone};

/// Pageblocks that a step of a hand looks at: a cache line of tags.
const STEP_PAGEBLOCKS: u32 = bound(16, 2);
/// Steps that are left out after each while nothing evacuates.
const REST: u32 = bound(7, 0);
/// Steps that are left out after each while memory fills or empties.
const REST_UNSTEADY: u32 = 1;
/// A hand leaves out [`REST`] steps more for each further so many CPUs of the machine.
const REST_CPUS: u32 = 8;
/// Steps after which a CPU returns what its fronts for evacuated frames hold.
const RETURN_STEPS: u32 = 8;
/// Spare magazines of a shelf that are returned at once.
const SPARE_RETURNED: u32 = 16;
/// Frames that are left in settled pageblocks for each CPU that refills meanwhile.
const KEPT_PER_CPU: u64 = bound(512, 0);

/// A step of a CPU's hand in a zone.
struct HandStep<'s, 'a, 'm, C>(&'s CpuZone<'a, 'm, C>);

impl<C: Cpus> HandStep<'_, '_, '_, C> {
    fn step(&self, here: Here) {
        if !self.0.caches.pcps.evacuates() {
            return;
        }
        let Some(bitmap) = self.0.store().bitmap() else { return };
        let hand = &self.0.pcp.hand;
        if !IS_LOOM {
            // No protocol reads what it counts.
            self.note_call();
        }
        if hand.rests() {
            return;
        }
        let stillness = self.stillness();
        // None may begin while memory fills or empties, and a count of whole pageblocks would be
        // outdated when one may.
        let may_rest = !IS_LOOM && self.0.store().tags().evacuating(self.0.zone_id) == 0;
        if may_rest && !stillness.may_become_steady() {
            hand.rest_for(REST_UNSTEADY);
            return;
        }
        let state = self.evacuation_state();
        let is_steady = stillness.is_steady(state.free);
        if may_rest && !is_steady {
            hand.rest_for(REST_UNSTEADY);
            return;
        }
        let orders = self.orders(state).map(|orders| match is_steady {
            true => orders,
            false => HandPlan { quota: orders.quota.min(0), ..orders },
        });
        let is_idle = state.evacuating == 0 && orders.is_none_or(|orders| orders.quota <= 0);
        // None may begin before this turn has ended.
        let is_outdated = self.0.zone.evacuating.is_outdated(state);
        if is_idle && !is_outdated {
            // All CPUs together look about as often on a large machine as on a small one.
            let rest = REST * self.0.caches.pcps.cpus().div_ceil(REST_CPUS);
            hand.rest_for(rest);
        }
        let counts = is_idle || is_outdated && orders.is_some();
        self.look(bitmap, orders.filter(|_| !counts), counts);
        if !is_idle && hand.at().is_multiple_of(RETURN_STEPS * STEP_PAGEBLOCKS) {
            // The last frames of pageblocks that are almost whole would not fill a magazine soon.
            self.0.return_evacuated(here);
        }
    }

    /// Begins a step's look at whether memory fills or empties.
    fn stillness(&self) -> Stillness<'_> {
        let counters = &self.0.pcp.counters;
        let charged = self.0.pcp.charged_pages.load(Ordering::Relaxed) as u64;
        let moved = counters
            .spilled_pages
            .load(Ordering::Relaxed)
            .wrapping_sub(counters.refilled_pages.load(Ordering::Relaxed))
            .wrapping_add(charged);
        let unreported = self.0.pcp.free_delta.read() as u64;
        self.0.pcp.hand.stillness(moved, unreported.wrapping_add(charged))
    }

    fn evacuation_state(&self) -> State {
        let tags = self.0.store().tags();
        State {
            free: self.0.caches.free_estimate(self.0.zone_id).max(0) as u64,
            managed: self.0.zone.managed(),
            kept: KEPT_PER_CPU * u64::from(self.0.caches.pcps.cpus()),
            evacuating: tags.evacuating(self.0.zone_id),
            healed: tags.healed(self.0.zone_id),
        }
    }

    /// The orders to a hand: the number of pageblocks that may still evacuate, and more. `None`:
    /// the policy is off.
    fn orders(&self, state: State) -> Option<HandPlan> {
        let orders = self.0.zone.evacuating.orders(state)?;
        // Below its high watermark a zone needs every frame more than whole pageblocks.
        let is_short = state.free <= self.0.zone.watermarks().high;
        let waits = is_short || self.0.zone.evacuating.is_outdated(state);
        Some(HandPlan { quota: if waits { orders.quota.min(0) } else { orders.quota }, ..orders })
    }

    /// One step of the hand.
    fn look(&self, bitmap: &Bitmap<'_>, orders: Option<HandPlan>, is_idle: bool) {
        let (hand, span) = (&self.0.pcp.hand, self.0.zone.span());
        let (start, end) = (span.0 * SECTION_PAGEBLOCKS as u32, span.1 * SECTION_PAGEBLOCKS as u32);
        if start == end {
            return;
        }
        let at = hand.at() / STEP_PAGEBLOCKS * STEP_PAGEBLOCKS;
        let first = PageblockIndex(if (start..end).contains(&at) { at } else { start });
        if first.0 == start {
            let began = self.evacuation_state();
            hand.begin_turn(began.free, began.healed);
        }
        let mut seen = hand.seen();
        let next = match bitmap.section(first.section()) {
            Some(section) if is_idle => {
                count_from(self.0.zone_id, bitmap, section, first, &mut seen)
            }
            Some(section) => {
                let zone = (self.0.zone_id, self.0.zone);
                look_from(zone, bitmap, section, first, orders, &mut seen);
                first.0 + STEP_PAGEBLOCKS
            }
            None => (first.section() as u32 + 1) * SECTION_PAGEBLOCKS as u32,
        };
        let ends_turn = next >= end;
        if ends_turn && let Some((free, healed)) = hand.turn_start() {
            let state = self.evacuation_state();
            let began = State { free, healed, ..state };
            self.0.zone.evacuating.note_turn(seen, began, state);
            if !IS_LOOM {
                // No protocol reads it, as above.
                bitmap.tags().forget_larger(self.0.zone_id);
            }
        }
        let seen = if ends_turn { TurnCounts::default() } else { seen };
        hand.advance(PageblockIndex(if ends_turn { start } else { next }), seen);
    }

    /// Returns spare magazines, and looks at the end of a window how many are spare.
    fn note_call(&self) {
        if self.0.pcp.hand.ends_call_window() {
            let is_wanted = self.0.zone.evacuating.wants_more(self.0.zone.managed());
            for mobility in Mobility::ALL {
                let shelved = self.0.pcp.shelf(Order::BASE, mobility).count();
                self.0.pcp.spares.end_window(mobility, shelved, is_wanted);
            }
        }
        self.0.return_spare();
    }
}

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Moves this CPU's hand, and makes pageblocks evacuate that it meets.
    #[cold]
    #[inline(never)]
    pub fn step_hand(&self, here: Here) {
        self.pcp.hand.forget_operations();
        HandStep(self).step(here);
    }

    /// Empties a few magazines of each shelf of order 0 that were spare throughout the last window
    /// into the store (the working set of Bonwick & Adams, USENIX 2001). Frames that lie there keep
    /// pageblocks from becoming whole, and fill those that evacuate when they are allocated.
    fn return_spare(&self) {
        for mobility in Mobility::ALL {
            let magazines = self.pcp.spares.take(mobility, SPARE_RETURNED);
            if magazines > 0 {
                self.spill_shelf(Order::BASE, mobility, magazines);
            }
        }
    }

    /// Empties the magazine that a front for evacuated frames had, into the store.
    pub fn spill_evacuated(&self, front: Front, word: Word) {
        let Some(loaded) = word.loaded() else { return };
        let pages = u64::from(word.rounds() * front.order.frames());
        count(&self.pcp.counters.evacuated_pages, pages);
        self.spill(front, loaded, word.rounds());
        self.return_spare();
    }

    /// Empties this CPU's fronts for evacuated frames into the store, those of this context;
    /// returns pages.
    #[cold]
    pub fn return_evacuated(&self, here: Here) -> u64 {
        if !self.caches.pcps.evacuates() {
            return 0;
        }
        let mut pages = 0;
        // Behind those that are popped from.
        for place in Front::places(false)..Front::places(true) {
            let front = Front::at_place(here, self.zone_id, place);
            let Some(word) = self.read_front(&front) else { break };
            if word.rounds() == 0 {
                continue;
            }
            let moved = u64::from(word.rounds() * front.order.frames());
            let moving = self.caches.begin(self.pcp, moved);
            if self.replace(&front, word, Word::EMPTY) {
                self.pcp.count_operations(word.operations());
                self.spill_evacuated(front, word);
                pages += moved;
            }
            drop(moving);
        }
        pages
    }
}

/// Counts the pageblocks from `first` to the end of its section, each 64 as if they were of the
/// zone of the first of them. Returns the pageblock behind them.
fn count_from(
    zone: ZoneId,
    bitmap: &Bitmap<'_>,
    section: &Section<'_>,
    first: PageblockIndex,
    seen: &mut TurnCounts,
) -> u32 {
    let end = (first.section() as u32 + 1) * SECTION_PAGEBLOCKS as u32;
    let mut at = first.0;
    while at < end {
        let in_section = at as usize % SECTION_PAGEBLOCKS;
        let bit = in_section % 64;
        if bitmap.tags().raw(PageblockIndex(at)).serves(zone) {
            let some = section.hints(in_section / 64).0;
            let free = section.entirely_free_or_reported(in_section / 64);
            seen.whole += (free >> bit).count_ones();
            seen.partial += ((some & !free) >> bit).count_ones();
        }
        at += (64 - bit) as u32;
    }
    end
}

/// Looks at the pageblocks from `first` on, all in one word of hints.
fn look_from(
    (id, zone): (ZoneId, &Zone),
    bitmap: &Bitmap<'_>,
    section: &Section<'_>,
    first: PageblockIndex,
    orders: Option<HandPlan>,
    seen: &mut TurnCounts,
) {
    let is_off = zone.evacuating.policy() == Evacuation::Off;
    let mut left = orders.map_or(0, |orders| orders.quota);
    let free_min = orders.map_or(0, |orders| orders.free_min);
    let at = first.in_section() / 64;
    let (some, evacuating) = (section.hints(at).0, section.evacuating(at));
    let free = section.entirely_free_or_reported(at);
    for pageblock in (first.0..first.0 + STEP_PAGEBLOCKS).map(PageblockIndex) {
        let bit = pageblock.in_section() % 64;
        let is = |word: u64| word >> bit & 1 == 1;
        let tag = bitmap.tags().raw(pageblock);
        if !is(some | evacuating | free) || !tag.serves(id) {
            continue;
        }
        if is(free) {
            seen.whole += 1;
            bitmap.settle(section, pageblock);
            continue;
        }
        seen.partial += 1;
        if tag.is_evacuating() {
            if is_off {
                bitmap.settle(section, pageblock);
            }
        } else if left > 0
            && section.count_free(pageblock.in_section()) >= free_min
            && bitmap.evacuate(section, pageblock, id)
        {
            left -= 1;
        }
    }
}
