//! Frames of avoided pageblocks, on their way from a CPU's fronts to the store; and the steps by
//! which the CPU takes part in [`evacuation`](crate::evacuation).

use super::caches::CpuZone;
use super::state::Front;
use crate::cpus::{Cpus, Here};
use crate::evacuation::HandStep;
use crate::frame::{Mobility, Order};
use crate::front::word::Word;
use crate::sync::count;
use crate::sync::model::IS_LOOM;

/// Spare magazines of a shelf that are returned at once.
const SPARE_RETURNED: u32 = 16;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Moves this CPU's hand.
    #[cold]
    #[inline(never)]
    pub fn step_hand(&self, here: Here) {
        let (pcp, pcps) = (self.pcp, &self.caches.pcps);
        pcp.hand.forget_operations();
        let Some(policy) = pcps.policy(self.zone_id) else { return };
        let Some(bitmap) = self.store().bitmap() else { return };
        let step = HandStep {
            hand: &pcp.hand,
            policy,
            zone_id: self.zone_id,
            zone: self.zone,
            bitmap,
            cpus: pcps.cpus(),
            charged_pages: &pcp.charged_pages,
            counters: &pcp.counters,
            free_delta: &pcp.free_delta,
        };
        // No protocol reads what it counts.
        if !IS_LOOM {
            if pcp.hand.ends_call_window() {
                let is_wanted = step.wants_spares();
                for mobility in Mobility::ALL {
                    let shelved = pcp.shelf(Order::BASE, mobility).count();
                    pcp.spares.end_window(mobility, shelved, is_wanted);
                }
            }
            self.return_spare();
        }
        if step.step() {
            self.return_avoided(here);
        }
    }

    /// Empties a few magazines of each shelf of order 0 that were spare throughout the last window
    /// into the store (the working set of Bonwick & Adams, USENIX 2001). Frames that lie there keep
    /// pageblocks from becoming whole, and fill avoided ones when they are allocated.
    fn return_spare(&self) {
        for mobility in Mobility::ALL {
            let magazines = self.pcp.spares.take(mobility, SPARE_RETURNED);
            if magazines > 0 {
                self.spill_shelf(Order::BASE, mobility, magazines);
            }
        }
    }

    /// Empties the magazine that a front for avoided pageblocks had, into the store.
    pub fn spill_avoided(&self, front: Front, word: Word) {
        let Some(loaded) = word.loaded() else { return };
        let pages = u64::from(word.rounds() * front.order.frames());
        count(&self.pcp.counters.evacuated_pages, pages);
        self.spill(front, loaded, word.rounds());
        self.return_spare();
    }

    /// Empties this CPU's fronts for avoided pageblocks into the store, those of this context;
    /// returns pages.
    #[cold]
    pub fn return_avoided(&self, here: Here) -> u64 {
        if !self.caches.pcps.avoids() {
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
                self.spill_avoided(front, word);
                pages += moved;
            }
            drop(moving);
        }
        pages
    }
}
