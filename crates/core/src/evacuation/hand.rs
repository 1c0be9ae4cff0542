//! The state of a CPU's hand in a zone, by which it looks for pageblocks that should evacuate, and
//! of the spare magazines on its shelves; and a step of it: which pageblocks of a zone begin to
//! evacuate, and which end.
//!
//! All of it is Relaxed, loads and stores: policy alone reads it. An interrupt in between may make
//! the same step, or lose a count.
//!
//! # Marking
//! Each CPU has a hand per zone. It moves by 16 pageblocks at a refill of blocks that are not large
//! (below order 6), and when an allocation finds that its fronts have counted 1023 operations
//! since: a loop that finds everything in its fronts heals, too. Frees do not move it. While memory
//! is only freed, no free frame is taken that a pageblock lacks to be whole.
//!
//! It marks also while memory fills. What fills memory then comes from dense pageblocks, and sparse
//! ones keep what they have until all others are full, so that each time that memory empties they
//! lose more of it. After a sixteenth of the zone has been allocated or freed, the hand first
//! counts the whole pageblocks again, by a turn of a section per step.
//!
//! # Spare magazines
//! A shelf that was filled once keeps its frames for as long as its CPU pushes and pops
//! near the top. They pin every pageblock that they are of, count as free nowhere, and when
//! they are allocated at last they fill pageblocks that evacuate. So magazines of order 0
//! that no front needed over 32 calls of the hand go to the store, 16 at a time, unless half
//! of the zone is whole already.
//!
//! # After an exit
//! A program that exits frees more than its CPU may cache, so most of it is spilled. Its pageblocks
//! become whole but for a few frames that the CPU still caches, and the next program would be given
//! those. So a CPU that has spilled more than it caches, since its hand was called last, returns
//! its fronts of order 0, and up to 16 magazines of each shelf. At most that doubles what it
//! spills. Its next refills come from dense pageblocks.
//!
//! # Bounds
//! One step reads a line of tags, a word of hints each, and at most 16 lines of the bitmap, and
//! changes at most 16 tags. Where nothing evacuates and nothing is to, and where it only counts, it
//! reads only the hints of a section, in three lines, and 16 tags; where zones meet, one tag for
//! each pageblock of the word of hints. In the first case 7 of 8 steps are left out (on 256 CPUs
//! 224 of 225, so that all hands together look no more often), until a sixteenth of the zone has
//! been allocated or freed since the last turn, and while they count then 3 of 4, because a loop
//! may allocate and free as much over and over. A step that is not left out reads the zone's count
//! of free pages, a line that all CPUs write. A slow path is longer by one step and by 16 spare
//! magazines for each mobility, half of what a decay of `high` may spill; after an exit by two of
//! each front and 16 of each shelf more; and by one magazine for each mobility and order in use at
//! every eighth step, which empties the CPU's fronts for evacuated frames. While any evacuate, a
//! search for small blocks looks at up to 64 pageblocks more (`store/best_fit.rs`), and shelves
//! hold less (`pcp/spill.rs`).

use super::policy::{HandPlan, State, TurnCounts, ZonePolicy};
use crate::frame::pageblock::{PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{Kind, ZoneId};
use crate::store::bitmap::Bitmap;
use crate::store::bits;
use crate::store::section::Section;
use crate::sync::model::{IS_LOOM, bound};
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};
use crate::zone::Zone;

/// Operations of fronts after which an allocation moves the hand.
const OPERATIONS: u64 = 1023;
/// Free pages when the turn of a hand began, if it did not begin where the zone does.
const NO_TURN: u64 = u64::MAX;
/// Calls of a hand over which a magazine must be left on its shelf to count as spare. Each comes
/// after 1023 operations of the fronts at most: what a loop of 16384 allocations and as many frees
/// needs is not spare.
const SPARE_CALLS: u32 = 32;

/// The hand of a CPU in a zone.
#[derive(Default)]
pub struct Hand {
    /// The pageblock that the CPU looks at next, to see whether it should evacuate.
    at: AtomicU32,
    /// Pageblocks that the hand has seen on this turn, packed.
    seen: AtomicU64,
    /// Free pages of the zone when this turn began, or [`NO_TURN`].
    free_at_start: AtomicU64,
    /// Pageblocks of the zone that had become whole when this turn began.
    healed_at_start: AtomicU32,
    /// Calls so far, rests included.
    calls: AtomicU32,
    /// Calls that the hand rests for.
    rest: AtomicU32,
    /// Operations of the fronts, as the counters have them, when the hand was moved last.
    moved_at: AtomicU64,
    /// Pages that the CPU had spilled when the hand was called last.
    pub spilled_at: AtomicU64,
}

impl Hand {
    pub fn new(at: u32) -> Self {
        Hand { at: AtomicU32::new(at), free_at_start: AtomicU64::new(NO_TURN), ..Hand::default() }
    }

    /// Whether the fronts had enough operations since the hand was moved. `hits` counts them.
    pub fn is_due(&self, hits: &AtomicU64) -> bool {
        let moved_at = self.moved_at.load(Ordering::Relaxed);
        !IS_LOOM && hits.load(Ordering::Relaxed).wrapping_sub(moved_at) >= OPERATIONS
    }

    /// Notes that the hand is moved, after `hits` operations.
    pub fn note_move(&self, hits: &AtomicU64) {
        // No protocol reads it.
        if !IS_LOOM {
            self.moved_at.store(hits.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts a call; `true`: it ends a window over which spare magazines are counted.
    pub fn ends_call_window(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed).wrapping_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        calls.is_multiple_of(SPARE_CALLS)
    }

    pub fn at(&self) -> u32 {
        self.at.load(Ordering::Relaxed)
    }
}

/// Magazines of order 0 that lay on their shelves throughout a window of calls of the hand.
#[derive(Default)]
pub struct Spares {
    /// The fewest magazines that each shelf had in the present window.
    least: [AtomicU32; Kind::COUNT],
    /// Magazines of each shelf that were spare in the last window and are still to be returned.
    spare: [AtomicU32; Kind::COUNT],
}

impl Spares {
    /// Notes that a magazine has left a shelf for a front, which has `shelved` left.
    pub fn note_pop(&self, kind: Kind, shelved: u32) {
        let least = &self.least[kind.index()];
        if shelved < least.load(Ordering::Relaxed) {
            least.store(shelved, Ordering::Relaxed);
        }
    }

    /// Ends a window for a shelf that has `shelved` magazines. `is_wanted`: the next window is to
    /// return those that were spare.
    pub fn end_window(&self, kind: Kind, shelved: u32, is_wanted: bool) {
        let [least, spare] = [&self.least, &self.spare].map(|cells| &cells[kind.index()]);
        let spare_now = if is_wanted { least.load(Ordering::Relaxed) } else { 0 };
        spare.store(spare_now, Ordering::Relaxed);
        least.store(shelved, Ordering::Relaxed);
    }

    /// Takes up to `max` magazines from the count of those to be returned; how many.
    pub fn take(&self, kind: Kind, max: u32) -> u32 {
        let spare = &self.spare[kind.index()];
        let left = spare.load(Ordering::Relaxed);
        let taken = left.min(max);
        if taken > 0 {
            spare.store(left - taken, Ordering::Relaxed);
        }
        taken
    }
}

/// Pageblocks that a step of a hand looks at: a cache line of tags.
const STEP_PAGEBLOCKS: u32 = bound(16, 2);
/// Steps that are left out after each while nothing evacuates.
const REST: u32 = bound(7, 0);
/// Steps that are left out after each that only counts because much was allocated or freed.
const REST_OUTDATED: u32 = bound(3, 0);
/// A hand leaves out [`REST`] steps more for each further so many CPUs of the machine.
const REST_CPUS: u32 = 8;
/// Steps after which a CPU returns what its fronts for avoided pageblocks hold.
const RETURN_STEPS: u32 = 8;
/// Frames that are left in settled pageblocks for each CPU that refills meanwhile.
const KEPT_PER_CPU: u64 = bound(512, 0);

/// A step of a CPU's hand in a zone.
pub struct HandStep<'s, 'm> {
    pub hand: &'s Hand,
    pub policy: &'s ZonePolicy,
    pub zone_id: ZoneId,
    pub zone: &'s Zone,
    pub bitmap: &'s Bitmap<'m>,
    /// CPUs of the machine.
    pub cpus: u32,
}

impl HandStep<'_, '_> {
    /// Moves the hand. `true`: the CPU is to return what its fronts for avoided pageblocks hold.
    pub fn step(&self) -> bool {
        let hand = self.hand;
        let rest = hand.rest.load(Ordering::Relaxed);
        if rest > 0 {
            hand.rest.store(rest - 1, Ordering::Relaxed);
            return false;
        }
        let state = self.state();
        let is_outdated = self.policy.is_outdated(state);
        // None may begin before this turn has ended, or below the high watermark: there a zone
        // needs every frame more than whole pageblocks.
        let waits = is_outdated || state.free <= self.zone.watermarks().high;
        let orders = self.policy.orders(state).map(|orders| match waits {
            true => HandPlan { quota: 0, ..orders },
            false => orders,
        });
        let is_idle = state.evacuating == 0 && orders.is_none_or(|orders| orders.quota == 0);
        let counts = is_idle || is_outdated && orders.is_some();
        let rest = match (counts, is_outdated) {
            (true, true) => REST_OUTDATED,
            // All CPUs together look about as often on a large machine as on a small one.
            (true, false) => REST * self.cpus.div_ceil(REST_CPUS),
            (false, _) => 0,
        };
        if rest > 0 {
            hand.rest.store(rest, Ordering::Relaxed);
        }
        self.look(orders, counts);
        // The last frames of pageblocks that are almost whole would not fill a magazine soon.
        hand.at().is_multiple_of(RETURN_STEPS * STEP_PAGEBLOCKS)
    }

    fn state(&self) -> State {
        let tags = self.bitmap.tags;
        State {
            free: self.zone.free_estimate().max(0) as u64,
            managed: self.zone.managed(),
            kept: KEPT_PER_CPU * u64::from(self.cpus),
            evacuating: tags.avoided(self.zone_id),
            healed: tags.healed(self.zone_id),
        }
    }

    /// Looks at the pageblocks that come next; `counts`: it only counts them.
    fn look(&self, orders: Option<HandPlan>, counts: bool) {
        let (hand, bitmap, span) = (self.hand, self.bitmap, self.zone.span());
        let (start, end) = (span.0 * SECTION_PAGEBLOCKS as u32, span.1 * SECTION_PAGEBLOCKS as u32);
        if start == end {
            return;
        }
        let at = hand.at() / STEP_PAGEBLOCKS * STEP_PAGEBLOCKS;
        let first = PageblockIndex(if (start..end).contains(&at) { at } else { start });
        if first.0 == start {
            let began = self.state();
            hand.free_at_start.store(began.free, Ordering::Relaxed);
            hand.healed_at_start.store(began.healed, Ordering::Relaxed);
        }
        let mut seen = TurnCounts::unpack(hand.seen.load(Ordering::Relaxed));
        let next = match bitmap.section(first.section()) {
            Some(section) if !counts => {
                self.look_from(section, first, orders, &mut seen);
                first.0 + STEP_PAGEBLOCKS
            }
            section => {
                section.inspect(|section| self.count(section, first, &mut seen));
                (first.section() as u32 + 1) * SECTION_PAGEBLOCKS as u32
            }
        };
        let ends_turn = next >= end;
        // A CPU's first turn may have begun in the middle.
        let free = hand.free_at_start.load(Ordering::Relaxed);
        if ends_turn && free != NO_TURN {
            let healed = hand.healed_at_start.load(Ordering::Relaxed);
            let state = self.state();
            let began = State { free, healed, ..state };
            self.policy.note_turn(seen, began, state);
            if !IS_LOOM {
                // No protocol reads it.
                bitmap.tags.forget_larger(self.zone_id);
            }
        }
        let seen = if ends_turn { TurnCounts::default() } else { seen };
        hand.seen.store(seen.pack(), Ordering::Relaxed);
        hand.at.store(if ends_turn { start } else { next }, Ordering::Relaxed);
    }

    /// Looks at the pageblocks from `first` on, all in one word of hints.
    fn look_from(
        &self,
        section: &Section<'_>,
        first: PageblockIndex,
        orders: Option<HandPlan>,
        seen: &mut TurnCounts,
    ) {
        let bitmap = self.bitmap;
        let HandPlan { quota: mut left, free_min } = orders.unwrap_or_default();
        let at = first.in_section() / 64;
        let (some, evacuating) = (section.hints(at).0, section.avoided(at));
        let free = section.entirely_free_or_reported(at);
        for pageblock in (first.0..first.0 + STEP_PAGEBLOCKS).map(PageblockIndex) {
            let bit = pageblock.in_section() % 64;
            let is = |word: u64| word >> bit & 1 == 1;
            let tag = bitmap.tags.raw(pageblock);
            if !is(some | evacuating | free) || !tag.serves(self.zone_id) {
                continue;
            }
            if is(free) {
                seen.whole += 1;
                bitmap.settle(section, pageblock);
                continue;
            }
            seen.partial += 1;
            if tag.is_avoided() {
                if orders.is_none() {
                    bitmap.settle(section, pageblock);
                }
            } else if left > 0
                && section.count_free(pageblock.in_section()) >= free_min
                && bitmap.avoid(section, pageblock, self.zone_id)
            {
                left -= 1;
            }
        }
    }

    /// Counts the pageblocks of a section from `first` on. Those in one word of hints, of which the
    /// first and the last serve the zone, count as if all did.
    fn count(&self, section: &Section<'_>, first: PageblockIndex, seen: &mut TurnCounts) {
        let base = first.0 - first.in_section() as u32;
        for (word, mask) in bits::masks(first.in_section() as u32, SECTION_PAGEBLOCKS as u32) {
            let free = section.entirely_free_or_reported(word) & mask;
            let some = section.hints(word).0 & mask & !free;
            let serves = |bit: &u32| {
                let pageblock = PageblockIndex(base + word as u32 * u64::BITS + bit);
                self.bitmap.tags.raw(pageblock).serves(self.zone_id)
            };
            let are_ours = || serves(&mask.trailing_zeros()) && serves(&mask.ilog2());
            let of_zone = match free | some == 0 || are_ours() {
                true => !0,
                false => bits::each(mask).filter(serves).fold(0, |of_zone, bit| of_zone | 1 << bit),
            };
            seen.whole += (free & of_zone).count_ones();
            seen.partial += (some & of_zone).count_ones();
        }
    }
}
