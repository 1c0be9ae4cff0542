//! Fronts as the slow paths see them, [`refill`](super::refill) and [`spill`](super::spill).
//!
//! # Theory
//! A slow path reads the front word outside any sequence, prepares a magazine that it alone owns,
//! and installs it by one compare-and-store, which fails if the word, the CPU or the gate has
//! changed. Before the install it touches nothing of the front's magazines; what the install
//! pushes out of the word is its own from then on. The word it compared may have changed and
//! changed back in between: it then means the same again (the magazines named in it are the
//! front's, with so many rounds), and nothing else was read. That is why a full previous magazine
//! is swapped in and popped from in two steps: its slots may not be read before the install, and
//! after it they are everybody's on this CPU.
//!
//! Worst case of one call, besides the search of the store: one magazine filled, two emptied, one
//! shelved: at most 3 * 63 frames touched (`ROOM_STEPS_MAX` more magazines when caches are above
//! `high`, and `batch << 5` pages in blocks of orders 1 to 3 by a CPU that only frees them).

use super::share::Share;
use crate::cpus::{Cpus, Here};
use crate::frame::Class;
use crate::frame::{Mobility, Pfn, ZoneId};
use crate::front::MagazineIndex;
use crate::front::word::Word;
use crate::front::{WordOffset, is_open};
use crate::store::Wanted;
use crate::sync::count;
use crate::sync::prim::Ordering;

/// Attempts at the front before a request goes to the store: enough for every step of a refill and
/// some lost races; a CPU whose sequences never commit must not hang.
pub const ATTEMPTS_MAX: u32 = 16;

/// A front, named by what it caches and where.
#[derive(Clone, Copy)]
pub struct Front {
    pub here: Here,
    pub zone: ZoneId,
    pub class: Class,
    pub mobility: Mobility,
}

impl Front {
    pub fn offset(self) -> WordOffset {
        WordOffset::new(self.zone, self.class, self.mobility)
    }
}

/// What an attempt at a front came to.
pub enum Step {
    /// A block.
    Got(Pfn),
    /// The front has changed: try again.
    Again,
    /// Not through this front: use the store.
    Store,
    /// The zone has none, or may not give any.
    Nothing,
}

impl<C: Cpus> Share<'_, '_, C> {
    /// The front word, if the gate is open.
    pub fn read_front(&self, front: Front) -> Option<Word> {
        // Acquire: pairs with the Release of `Closed::drop`.
        let open = is_open(self.blocks().gate(front.here.cpu).load(Ordering::Acquire));
        open.then(|| Word(self.blocks().word(front.here, front.offset()).load(Ordering::Relaxed)))
    }

    /// Installs `new` in place of `old`, keeping the count of operations.
    pub fn replace(&self, front: Front, old: Word, new: Word) -> bool {
        let new = new.with_operations(old.operations());
        let done =
            self.caches.cpus.compare_store(self.blocks(), front.here, front.offset(), old.0, new.0);
        if !done {
            count(&self.pcp.counters.lost_races, 1);
        }
        done
    }

    /// Moves the count of operations from the word to the counters.
    pub fn fold(&self, front: Front, word: Word) -> Step {
        let folded = word.with_operations(0);
        if self.caches.cpus.compare_store(
            self.blocks(),
            front.here,
            front.offset(),
            word.0,
            folded.0,
        ) {
            count(&self.pcp.counters.hits, word.operations());
        }
        Step::Again
    }

    /// Writes frames to the slots of a magazine that the caller owns.
    pub fn fill(&self, magazine: MagazineIndex, frames: &[u32]) {
        let slots = &self.blocks().magazine(magazine).slots;
        for (slot, &frame) in slots.iter().zip(frames) {
            // Relaxed: published by whatever hands the magazine on.
            slot.store(frame, Ordering::Relaxed);
        }
    }

    /// A search of the store from where this CPU last found blocks.
    pub fn wanted(&self, mobility: Mobility) -> Wanted<'_> {
        self.pcp.wanted(self.zone_id, self.zone.span(), mobility)
    }
}
