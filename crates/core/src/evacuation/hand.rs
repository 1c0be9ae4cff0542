//! The state of a CPU's hand in a zone, by which it looks for pageblocks that should evacuate, and
//! of the spare magazines on its shelves. A step is in [`step`](super::step).
//!
//! All of it is Relaxed, loads and stores: policy alone reads it. An interrupt in between may make
//! the same step, or lose a count.

use super::policy::TurnCounts;
use crate::frame::pageblock::PageblockIndex;
use crate::frame::{Mobility, Order};
use crate::sync::model::{IS_LOOM, bound};
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Operations of fronts after which an allocation moves the hand.
const OPERATIONS: u64 = 1023;
/// Free pages when the turn of a hand began, if it did not begin where the zone does.
const NO_TURN: u64 = u64::MAX;
/// Steps over which free pages must stay about the same before a pageblock is marked.
const STEADY_STEPS: u32 = bound(4, 1);
/// Calls of a hand over which a magazine must be left on its shelf to count as spare. Each comes
/// after 1023 operations of the fronts at most: what a loop of 16384 allocations and as many frees
/// needs is not spare.
const SPARE_CALLS: u32 = 32;

/// The hand of a CPU in a zone.
pub struct Hand {
    /// The pageblock that the CPU looks at next, to see whether it should evacuate.
    at: AtomicU32,
    /// Pageblocks that the hand has seen on this turn, packed.
    seen: AtomicU64,
    /// Free pages of the zone when this turn began, or [`NO_TURN`].
    free_at_start: AtomicU64,
    /// Pageblocks of the zone that had become whole when this turn began.
    healed_at_start: AtomicU32,
    /// Steps so far.
    steps: AtomicU32,
    /// Free pages of the zone at the end of the last window of steps, and at that of the one
    /// before.
    free_before: [AtomicU64; 2],
    /// Pages that this CPU had moved to the store, less those from it, at the same two ends.
    moved_before: [AtomicU64; 2],
    /// Calls so far, rests included.
    calls: AtomicU32,
    /// Calls that the hand rests for.
    rest: AtomicU32,
    /// Operations of the CPU's fronts since they last moved the hand.
    operations: AtomicU64,
}

impl Hand {
    pub fn new(at: u32) -> Self {
        Hand {
            at: AtomicU32::new(at),
            seen: AtomicU64::new(0),
            free_at_start: AtomicU64::new(NO_TURN),
            healed_at_start: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            free_before: core::array::from_fn(|_| AtomicU64::new(0)),
            moved_before: core::array::from_fn(|_| AtomicU64::new(0)),
            calls: AtomicU32::new(0),
            rest: AtomicU32::new(0),
            operations: AtomicU64::new(0),
        }
    }

    /// Adds operations of a front to those after which the hand is moved.
    pub fn note_operations(&self, operations: u64) {
        // No protocol reads it.
        if !IS_LOOM {
            let all = self.operations.load(Ordering::Relaxed) + operations;
            self.operations.store(all, Ordering::Relaxed);
        }
    }

    /// Whether the fronts' operations are enough to move the hand.
    pub fn is_due(&self) -> bool {
        !IS_LOOM && self.operations.load(Ordering::Relaxed) >= OPERATIONS
    }

    /// Counts operations anew, because the hand is moved.
    pub fn forget_operations(&self) {
        if !IS_LOOM {
            self.operations.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a call; `true`: it ends a window over which spare magazines are counted.
    pub fn ends_call_window(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed).wrapping_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        calls.is_multiple_of(SPARE_CALLS)
    }

    /// Rests for one call, if the hand is to.
    pub fn rests(&self) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest_for(rest - 1);
        }
        rest > 0
    }

    /// Makes the hand rest for so many calls.
    pub fn rest_for(&self, calls: u32) {
        self.rest.store(calls, Ordering::Relaxed);
    }

    /// Begins a step's look at whether memory fills or empties. `moved_pages`: those that this CPU
    /// moved to the store, less those from it; `own_free`: see [`Stillness`].
    pub fn stillness(&self, moved_pages: u64, own_free: u64) -> Stillness<'_> {
        let steps = self.steps.load(Ordering::Relaxed).wrapping_add(1);
        self.steps.store(steps, Ordering::Relaxed);
        let ends_window = steps.is_multiple_of(STEADY_STEPS);
        let is_own_still = is_still(&self.moved_before, ends_window, moved_pages);
        Stillness { hand: self, own_free, ends_window, is_own_still }
    }

    pub fn at(&self) -> u32 {
        self.at.load(Ordering::Relaxed)
    }

    /// Begins a turn.
    pub fn begin_turn(&self, free: u64, healed: u32) {
        self.free_at_start.store(free, Ordering::Relaxed);
        self.healed_at_start.store(healed, Ordering::Relaxed);
    }

    /// Free pages and healed pageblocks when this turn began. `None`: it is the CPU's first, and
    /// may have begun in the middle.
    pub fn turn_start(&self) -> Option<(u64, u32)> {
        let free = self.free_at_start.load(Ordering::Relaxed);
        (free != NO_TURN).then(|| (free, self.healed_at_start.load(Ordering::Relaxed)))
    }

    /// Pageblocks that the hand has seen on this turn.
    pub fn seen(&self) -> TurnCounts {
        TurnCounts::unpack(self.seen.load(Ordering::Relaxed))
    }

    /// Moves the hand to a pageblock; `seen` are those of the turn so far.
    pub fn advance(&self, to: PageblockIndex, seen: TurnCounts) {
        self.seen.store(seen.pack(), Ordering::Relaxed);
        self.at.store(to.0, Ordering::Relaxed);
    }
}

/// Whether about as much is freed as allocated, by this CPU or in the zone: the free pages changed
/// by less over the last steps than half of as many refills take. While memory fills or empties,
/// nothing need heal. The CPU is asked for itself, too: beside others that come and go with whole
/// magazines, the zone's count is never still.
pub struct Stillness<'h> {
    hand: &'h Hand,
    /// Pages that the zone's count of free pages lacks: those that this CPU has not reported yet,
    /// and those that it is charged with. A CPU that allocates what it has cached fills memory,
    /// too.
    own_free: u64,
    ends_window: bool,
    is_own_still: bool,
}

impl Stillness<'_> {
    /// Whether [`is_steady`](Self::is_steady) need be asked. If not, the answer is no: the zone's
    /// count changed by too much in the window that ended last. While CPUs fill or empty memory,
    /// each has to fetch the count's line from the others, and so reads it once per window only.
    pub fn may_become_steady(&self) -> bool {
        // Relaxed: this CPU's own; an interrupt in between makes one step more or less.
        let [last, before] = [0, 1].map(|i| self.hand.free_before[i].load(Ordering::Relaxed));
        self.is_own_still || self.ends_window || is_small_change(last, before)
    }

    pub fn is_steady(&self, free: u64) -> bool {
        let free = free.wrapping_add(self.own_free);
        is_still(&self.hand.free_before, self.ends_window, free) || self.is_own_still
    }
}

/// Whether a count is about what it was at the ends of the last two windows, the one that ends now
/// included.
fn is_still([last, before]: &[AtomicU64; 2], ends_window: bool, now: u64) -> bool {
    if ends_window {
        before.store(last.swap(now, Ordering::Relaxed), Ordering::Relaxed);
    }
    let [last, before] = [last, before].map(|cell| cell.load(Ordering::Relaxed));
    is_small_change(last, before) && is_small_change(last, now)
}

/// Whether two counts of pages differ by less than half of what a window's refills take.
fn is_small_change(a: u64, b: u64) -> bool {
    let refilled = u64::from(STEADY_STEPS * Order::BASE.magazine_frames());
    (a.wrapping_sub(b) as i64).unsigned_abs() <= refilled / 2
}

/// Magazines of order 0 that lay on their shelves throughout a window of calls of the hand.
pub struct Spares {
    /// The fewest magazines that each shelf had in the present window.
    least: [AtomicU32; Mobility::COUNT],
    /// Magazines of each shelf that were spare in the last window and are still to be returned.
    spare: [AtomicU32; Mobility::COUNT],
}

impl Spares {
    pub fn new() -> Self {
        let cells = || core::array::from_fn(|_| AtomicU32::new(0));
        Spares { least: cells(), spare: cells() }
    }

    /// Notes that a magazine has left a shelf for a front, which has `shelved` left.
    pub fn note_pop(&self, mobility: Mobility, shelved: u32) {
        let least = &self.least[mobility.index()];
        if shelved < least.load(Ordering::Relaxed) {
            least.store(shelved, Ordering::Relaxed);
        }
    }

    /// Ends a window for a shelf that has `shelved` magazines. `is_wanted`: the next window is to
    /// return those that were spare.
    pub fn end_window(&self, mobility: Mobility, shelved: u32, is_wanted: bool) {
        let [least, spare] = [&self.least, &self.spare].map(|cells| &cells[mobility.index()]);
        let spare_now = if is_wanted { least.load(Ordering::Relaxed) } else { 0 };
        spare.store(spare_now, Ordering::Relaxed);
        least.store(shelved, Ordering::Relaxed);
    }

    /// Takes up to `max` magazines from the count of those to be returned; how many.
    pub fn take(&self, mobility: Mobility, max: u32) -> u32 {
        let spare = &self.spare[mobility.index()];
        let left = spare.load(Ordering::Relaxed);
        let taken = left.min(max);
        if taken > 0 {
            spare.store(left - taken, Ordering::Relaxed);
        }
        taken
    }
}
