//! The policy for the number of a zone's pageblocks that evacuate.
//!
//! # Theory
//! Pageblocks that evacuate give their frames to the store one by one, and their holders' next
//! allocations come from other pageblocks. Those must have room for them. Let `s` be the free
//! frames of partly used pageblocks, `e` the number of pageblocks that evacuate, and `f` their free
//! frames. Then there are `s - f` frames of room for `512 * e - f` held ones. The difference, `s -
//! 512 * e`, does not change when a held frame moves. So there is room as long as `e <= s / 512`,
//! however densely used those pageblocks are, and `e` pageblocks then become whole. The policy
//! keeps `e` at that number, less the free frames that the goal allows outside of whole pageblocks.
//!
//! `s` is the zone's free pages less 512 for each whole pageblock. The hands of the CPUs that walk
//! over the zone count whole pageblocks, once per turn. Evacuated pageblocks are also counted when
//! they become whole. Pageblocks that are broken up during a turn stay counted until the next one,
//! so too few evacuate. If too many are marked, searches settle some: they take from those before
//! they break up a whole pageblock.

use crate::frame::pageblock::PAGEBLOCK_FRAMES;
use crate::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Whether sparsely used pageblocks evacuate: frames that are freed there are not allocated again
/// before the pageblock is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evacuation {
    /// No pageblock evacuates. Drains and searches skip the work for it.
    Off,
    /// Pageblocks evacuate until this share of the zone's free memory, in percent, lies in whole
    /// pageblocks; 512 pages per CPU may lie elsewhere besides. They evacuate only while the zone
    /// is above its high watermark. More than 100 means 100.
    Goal {
        /// The share.
        percent: u8,
    },
    /// Pageblocks evacuate as with `Goal { percent: 100 }`, but none begins to while half of the
    /// zone lies in whole pageblocks.
    #[default]
    Adaptive,
}

/// Encoding of policies: a percentage, or one of these values.
const OFF: u32 = u32::MAX;
const ADAPTIVE: u32 = u32::MAX - 1;

impl Evacuation {
    fn pack(self) -> u32 {
        match self {
            Evacuation::Off => OFF,
            Evacuation::Goal { percent } => percent.min(100).into(),
            Evacuation::Adaptive => ADAPTIVE,
        }
    }

    fn unpack(word: u32) -> Self {
        match word {
            OFF => Evacuation::Off,
            ADAPTIVE => Evacuation::Adaptive,
            percent => Evacuation::Goal { percent: percent as u8 },
        }
    }
}

/// Pageblocks that a hand has met on a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    /// Pageblocks that are wholly free.
    pub whole: u32,
    /// Pageblocks that are partly free.
    pub partial: u32,
}

impl TurnCounts {
    pub fn pack(self) -> u64 {
        u64::from(self.whole) << 32 | u64::from(self.partial)
    }

    pub fn unpack(word: u64) -> Self {
        TurnCounts { whole: (word >> 32) as u32, partial: word as u32 }
    }
}

/// The state of a zone, as far as counters tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Free pages, and all pages.
    pub free: u64,
    pub managed: u64,
    /// Free pages that are left for what CPUs refill during a turn.
    pub kept: u64,
    /// Pageblocks that evacuate, and how many of them have become whole so far.
    pub evacuating: u32,
    pub healed: u32,
}

/// A zone's policy, and the counts that it needs. Relaxed: each field is a whole of its own, and a
/// hand that reads an old one decides as it would have a moment ago.
#[derive(Default)]
pub struct ZonePolicy {
    policy: AtomicU32,
    /// Pageblocks that the last turn of a hand has [`TurnCounts`].
    seen: AtomicU64,
    /// Free pages, and pageblocks healed, when that turn began.
    seen_free: AtomicU64,
    seen_healed: AtomicU32,
    /// A pageblock that evacuates must have at least the mean free count divided by this. Grows
    /// while too few pageblocks have so many.
    divisor: AtomicU32,
}

/// The orders to a hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandPlan {
    /// Pageblocks that should begin to evacuate.
    pub quota: u64,
    /// Free frames that such a pageblock must have.
    pub free_min: u32,
}

/// If this part of the zone was allocated or freed, the next turn is made with fewer rests.
const OUTDATED_PART: u64 = 16;
/// The largest divisor of the mean free count.
const DIVISOR_MAX: u32 = PAGEBLOCK_FRAMES;

impl ZonePolicy {
    pub fn new(policy: Evacuation) -> Self {
        let (policy, divisor) = (AtomicU32::new(policy.pack()), AtomicU32::new(1));
        ZonePolicy { policy, divisor, ..ZonePolicy::default() }
    }

    pub fn get(&self) -> Evacuation {
        // Relaxed: a policy.
        Evacuation::unpack(self.policy.load(Ordering::Relaxed))
    }

    pub fn set(&self, policy: Evacuation) {
        self.policy.store(policy.pack(), Ordering::Relaxed);
    }

    /// Counts free memory that the zone is given as a turn would: without it the hands of all CPUs
    /// walk over new memory with fewer rests, and find that it is whole.
    pub fn note_given(&self, pages: u64, whole: u32) {
        // Relaxed, as in `note_turn`.
        self.seen.fetch_add(TurnCounts { whole, partial: 0 }.pack(), Ordering::Relaxed);
        self.seen_free.fetch_add(pages, Ordering::Relaxed);
    }

    /// Ends a turn of a hand. `began` is the zone's state when the turn began.
    pub fn note_turn(&self, seen: TurnCounts, began: State, state: State) {
        // Relaxed, and not all at once: of two turns that end together, a policy may see parts.
        self.seen.store(seen.pack(), Ordering::Relaxed);
        self.seen_healed.store(began.healed, Ordering::Relaxed);
        self.seen_free.store(began.free, Ordering::Relaxed);
        let is_short = self.orders(state).is_some_and(|orders| orders.quota > 0);
        let divisor = self.divisor.load(Ordering::Relaxed);
        let next = if is_short { (divisor * 2).min(DIVISOR_MAX) } else { 1 };
        if next != divisor {
            self.divisor.store(next, Ordering::Relaxed);
        }
    }

    /// Whether so much was allocated or freed since the last turn that its counts are of little
    /// use.
    pub fn is_outdated(&self, state: State) -> bool {
        let change = self.seen_free.load(Ordering::Relaxed).abs_diff(state.free);
        change > state.managed / OUTDATED_PART
    }

    /// Whether more pageblocks should be whole, of `managed` pages, by the counts of the last turn.
    pub fn wants_more(&self, managed: u64) -> bool {
        let seen = TurnCounts::unpack(self.seen.load(Ordering::Relaxed));
        match self.get() {
            Evacuation::Off => false,
            Evacuation::Goal { percent } => {
                let wanted = self.seen_free.load(Ordering::Relaxed) / 100 * u64::from(percent);
                u64::from(seen.whole) * u64::from(PAGEBLOCK_FRAMES) < wanted
            }
            Evacuation::Adaptive => !is_plenty(u64::from(seen.whole), managed),
        }
    }

    /// Computes the orders to a hand, with the number of pageblocks that may still evacuate.
    /// `None`: the policy is off.
    pub fn orders(&self, state: State) -> Option<HandPlan> {
        let block = u64::from(PAGEBLOCK_FRAMES);
        let seen = TurnCounts::unpack(self.seen.load(Ordering::Relaxed));
        // Wrapping, and negative if another hand wrote between the two loads.
        let healed = state.healed.wrapping_sub(self.seen_healed.load(Ordering::Relaxed)) as i32;
        let whole = u64::from(seen.whole) + healed.max(0) as u64;
        let whole_pages = whole * block;
        let percent = match self.get() {
            Evacuation::Off => return None,
            Evacuation::Goal { percent } => percent,
            Evacuation::Adaptive if is_plenty(whole, state.managed) => {
                return Some(HandPlan::default());
            }
            Evacuation::Adaptive => 100,
        };
        let scattered = state.free.saturating_sub(whole_pages);
        let left = state.free / 100 * u64::from(100 - percent.min(100)) + state.kept;
        let room = scattered.saturating_sub(left) / block;
        let mean = scattered / u64::from(seen.partial.max(1));
        let divisor = self.divisor.load(Ordering::Relaxed).max(1);
        let free_min = (mean.min(block) as u32 * 15 / 16 / divisor).max(1);
        Some(HandPlan { quota: room.saturating_sub(state.evacuating.into()), free_min })
    }
}

/// Whether half of a zone lies in whole pageblocks.
fn is_plenty(whole: u64, managed: u64) -> bool {
    2 * whole * u64::from(PAGEBLOCK_FRAMES) >= managed
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BLOCK: u64 = PAGEBLOCK_FRAMES as u64;

    fn after_turn(policy: Evacuation, whole: u32, partial: u32) -> ZonePolicy {
        let evacuating = ZonePolicy::new(policy);
        evacuating.note_turn(TurnCounts { whole, partial }, State::default(), State::default());
        evacuating
    }

    #[test]
    fn policies_and_turns_come_back() {
        for policy in [
            Evacuation::Off,
            Evacuation::Adaptive,
            Evacuation::Goal { percent: 0 },
            Evacuation::Goal { percent: 100 },
        ] {
            assert_eq!(ZonePolicy::new(policy).get(), policy);
        }
        assert_eq!(Evacuation::Goal { percent: 255 }.pack(), 100);
        for turn in [TurnCounts::default(), TurnCounts { whole: u32::MAX, partial: 7 }] {
            assert_eq!(TurnCounts::unpack(turn.pack()), turn);
        }
    }

    /// Half of 2048 pageblocks' frames are free, none of the pageblocks is whole.
    const HALF: State =
        State { free: 1024 * BLOCK, managed: 2048 * BLOCK, kept: 0, evacuating: 0, healed: 0 };

    #[test]
    fn as_many_evacuate_as_the_others_have_room_for() {
        let zone = after_turn(Evacuation::Goal { percent: 100 }, 0, 2048);
        let quota = |state| zone.orders(state).unwrap().quota;
        assert_eq!(quota(HALF), 1024);
        assert_eq!(quota(State { evacuating: 1024, ..HALF }), 0);
        assert_eq!(quota(State { evacuating: 1030, ..HALF }), 0);
        assert_eq!(quota(State { kept: 2 * BLOCK, ..HALF }), 1022);
        // Each that becomes whole makes room for one less, and is one less itself.
        assert_eq!(quota(State { evacuating: 924, healed: 100, ..HALF }), 0);
        // When 1000 have become whole, 24 are left, by the next turn and before.
        assert_eq!(quota(State { healed: 1000, ..HALF }), 24);
        let healed = State { healed: 1000, ..HALF };
        zone.note_turn(TurnCounts { whole: 1000, partial: 1048 }, healed, healed);
        assert_eq!(quota(State { healed: 1000, ..HALF }), 24);
    }

    #[test]
    fn what_a_pageblock_must_have_free_falls_while_too_few_have_it() {
        let zone = after_turn(Evacuation::Goal { percent: 100 }, 0, 2048);
        let free_min = |state| zone.orders(state).unwrap().free_min;
        assert_eq!(free_min(HALF), 240);
        zone.note_turn(TurnCounts { whole: 0, partial: 2048 }, HALF, HALF);
        assert_eq!(free_min(HALF), 120);
        (0..20).for_each(|_| zone.note_turn(TurnCounts { whole: 0, partial: 2048 }, HALF, HALF));
        assert_eq!(free_min(HALF), 1);
        let full = State { evacuating: 1024, ..HALF };
        zone.note_turn(TurnCounts { whole: 0, partial: 2048 }, full, full);
        assert_eq!(free_min(HALF), 240);
    }

    #[test]
    fn none_evacuate_while_whole_ones_are_plentiful() {
        let state = State { free: 1536 * BLOCK, ..HALF };
        let orders = |policy, whole| after_turn(policy, whole, 2048 - whole).orders(state);
        let quota = |policy, whole| orders(policy, whole).unwrap().quota;
        assert_eq!(orders(Evacuation::Off, 0), None);
        assert_eq!(quota(Evacuation::Adaptive, 1024), 0);
        assert_eq!(quota(Evacuation::Adaptive, 1023), 513);
        assert_eq!(quota(Evacuation::Goal { percent: 50 }, 768), 0);
        assert_eq!(quota(Evacuation::Goal { percent: 50 }, 700), 68);
        // More whole ones than there is memory, as hands may have seen: not below 0.
        assert_eq!(quota(Evacuation::Goal { percent: 100 }, 2000), 0);
    }

    #[test]
    fn a_goal_that_is_reached_wants_no_more() {
        for (percent, whole, wants) in [(90, 1800, true), (90, 1850, false), (0, 0, false)] {
            let zone = ZonePolicy::new(Evacuation::Goal { percent });
            zone.note_given(2048 * BLOCK, whole);
            assert_eq!(zone.wants_more(4096 * BLOCK), wants, "{percent} % of 2048, {whole}");
        }
    }

    #[test]
    fn memory_that_is_given_counts_as_seen() {
        let zone = ZonePolicy::new(Evacuation::Adaptive);
        let given = State { free: 2048 * BLOCK, managed: 2048 * BLOCK, ..State::default() };
        assert!(zone.is_outdated(given));
        (0..2).for_each(|_| zone.note_given(1024 * BLOCK, 1024));
        assert!(!zone.is_outdated(given) && !zone.wants_more(given.managed));
        assert_eq!(zone.orders(given).unwrap().quota, 0);
        // What was allocated since is outdated, as after a turn.
        assert!(zone.is_outdated(State { free: 1900 * BLOCK, ..given }));
    }

    #[test]
    fn a_turn_is_outdated_when_a_sixteenth_of_the_zone_has_changed() {
        let zone = ZonePolicy::new(Evacuation::Adaptive);
        zone.note_turn(TurnCounts::default(), HALF, HALF);
        assert!(!zone.is_outdated(HALF));
        for free in [HALF.free - 128 * BLOCK - 1, HALF.free + 128 * BLOCK + 1] {
            assert!(zone.is_outdated(State { free, ..HALF }));
        }
    }
}
