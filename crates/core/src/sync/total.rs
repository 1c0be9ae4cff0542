//! Accesses in a total order: those whose sequential consistency an argument needs, by protocol.
//!
//! # Theory
//! In Dekker's pattern each party changes one word and then looks at another, which the other party
//! changes before it looks at the first. Release and acquire let both miss the other's change, as a
//! store may pass a later load. Where all four accesses are sequentially consistent, at least one
//! party sees the other.
//!
//! Nothing else in this crate names that ordering (`tests/total_order.rs` counts the accesses of
//! each protocol). So to weaken one is to change its [`Dekker`] here, or to take the access out of
//! that count. Loom takes sequentially consistent *accesses* for AcqRel ones and models only
//! *fences* of that ordering. So between a party's change and its look stands [`Dekker::fence`],
//! which is a fence in models if both accesses are in the total order, and nothing elsewhere. With
//! either of them weakened, models of the protocol fail, as they do for its mutant.
//!
//! | protocol | a party changes | the other party changes | argued in |
//! |---|---|---|---|
//! | [`HINTS`] | words, as it puts frames; hints | hints, as its search found nothing; marks | `store/section.rs`, `refresh.rs`, `hints.rs`, `entire.rs` |
//! | [`SHELVES`] | a shelf, as it pushes a magazine | the gate, as it disables caches | [`stack`](super::stack), `front/gate.rs` |
//! | [`ASKS`] | the gate, the number that is answered | the number that is asked; sleepers | `pcp/asks.rs` |
//! | [`DRIFT_MARK`] | the count of free pages, the mark | the word of the zone | `zone/delta.rs` |
//! | [`MOVES`] | pages in flight | nothing: a scan looks before and after | [`InFlight`](super::InFlight) |

use super::model::Mutant;
#[cfg(loom)]
use super::model::is_mutant;
use super::prim::Ordering;

/// The orderings of a protocol's accesses; see the module.
#[derive(Clone, Copy)]
pub struct Dekker {
    change: Ordering,
    look: Ordering,
    #[cfg_attr(not(loom), expect(dead_code, reason = "models alone have mutants"))]
    unordered: Mutant,
}

/// Free frames and the hints that lead searches to them.
pub const HINTS: Dekker = Dekker::total(Mutant::UnorderedHints);
/// A CPU's shelves and its gate.
pub const SHELVES: Dekker = Dekker::total(Mutant::UnorderedShelves);
/// The pattern of drains that ask, and owners that answer.
pub const ASKS: Dekker = Dekker::total(Mutant::UnorderedAsks);
/// A zone's count of free pages, and whether it is above the drift mark.
pub const DRIFT_MARK: Dekker = Dekker::total(Mutant::UnorderedMark);
/// Pages in flight. Its accesses have no partner in Dekker's pattern, and so no fence.
pub const MOVES: Dekker = Dekker::total(Mutant::Unannounced);

impl Dekker {
    /// All accesses in the total order.
    const fn total(unordered: Mutant) -> Self {
        Dekker { change: Ordering::SeqCst, look: Ordering::SeqCst, unordered }
    }

    /// The ordering of stores and read-modify-writes.
    #[inline(always)]
    pub const fn change(self) -> Ordering {
        self.change
    }

    /// The ordering of loads, and of exchanges that fail.
    #[inline(always)]
    pub const fn look(self) -> Ordering {
        self.look
    }

    /// Stands between a party's change and its look; see the module.
    #[inline(always)]
    pub fn fence(self) {
        #[cfg(loom)]
        if (self.change, self.look) == (Ordering::SeqCst, Ordering::SeqCst)
            && !is_mutant(self.unordered)
        {
            super::prim::fence(Ordering::SeqCst);
        }
    }
}
