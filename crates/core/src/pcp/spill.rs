//! Spill: magazines and single blocks from a CPU to the store. The theory is in
//! [`refill`](super::refill).

use super::caches::CpuZone;
use super::exchange::Exchange;
use super::state::{ATTEMPTS_MAX, Front, Step};
use crate::cpus::{Cpus, Event, Here};
use crate::frame::{Mobility, Order, Pfn};
use crate::front::MagazineIndex;
use crate::front::gate::is_disabled;
use crate::front::word::Word;
use crate::sync::count;
use crate::sync::prim::Ordering;
use crate::sync::total::SHELVES;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Frees a block of a caller on this CPU through its front. `false`: not through this front.
    pub fn free(
        &self,
        here: Here,
        pfn: Pfn,
        order: Order,
        (mobility, evacuates): (Mobility, bool),
    ) -> bool {
        let front = Front { evacuates, ..self.front(here, order, mobility) };
        for _ in 0..ATTEMPTS_MAX {
            match self.free_to_front(front, pfn) {
                Step::Got(_) => return true,
                Step::Again => {}
                Step::Store | Step::Nothing => break,
            }
        }
        false
    }

    /// One step towards getting rid of a block through this front; `Got`: it is gone.
    fn free_to_front(&self, front: Front, pfn: Pfn) -> Step {
        let Some(word) = self.read_front(&front) else { return self.at_closed_gate(front) };
        if self.exceeds_free_high(&front, word) {
            // The front begins anew with an empty magazine: were a full one kept beside it, its
            // pages would have left the processor's cache by the time that another CPU gets them.
            let step = self.unload(front, word);
            self.spill_at_once(front);
            return step;
        }
        match (Exchange { share: self, front: &front, word }.push_turned(pfn)) {
            Some(true) => Step::Got(pfn),
            Some(false) => Step::Again,
            None => self.load_empty(front, word, pfn),
        }
    }

    /// Installs an empty magazine with the block in it; a full one that this pushes out goes to
    /// the shelf or to the store.
    fn load_empty(&self, front: Front, word: Word, pfn: Pfn) -> Step {
        let order = front.order;
        let is_full = word.magazines() >= front.magazines_max();
        let more = if is_full { 0 } else { u64::from(order.magazine_frames()) };
        if more > 0 && front.never_fits(word, more, self.zone.limits().high_max) {
            return Step::Store;
        }
        self.note_activity();
        if more > 0 && !self.make_room(front, more) {
            return Step::Store;
        }
        let Some(empty) = self.acquire_magazine(order) else {
            return self.unload(front, word);
        };
        let exchange = Exchange { share: self, front: &front, word };
        let install = |new| self.replace(&front, word, new);
        let keep = |full| self.shelve(front, full);
        if exchange.load_empty(empty, Some(pfn), install, keep) {
            Step::Got(pfn)
        } else {
            Step::Again
        }
    }

    /// No empty magazine is to be had: spill the loaded one and go on with it.
    pub fn unload(&self, front: Front, word: Word) -> Step {
        let Some(loaded) = word.loaded() else { return Step::Store };
        let moving = self.caches.begin(self.pcp, u64::from(front.order.magazine_frames()));
        // Both leave: a front has a loaded magazine or none at all.
        if self.replace(&front, word, Word::EMPTY) {
            self.pcp.count_operations(word.operations());
            if let Some((previous, fill)) = word.previous() {
                self.spill(front, previous, fill.rounds(front.order.rounds()));
            }
            self.spill(front, loaded, word.rounds());
        }
        drop(moving);
        Step::Again
    }

    /// Puts a full magazine that the caller owns on the CPU's shelf, or into the store when the
    /// CPU caches more than `high`.
    pub fn shelve(&self, front: Front, full: MagazineIndex) {
        let Front { here, order, mobility, .. } = front;
        let pcp = self.pcp;
        self.limit_high();
        // The magazine is charged already: no more is needed than what there is.
        if self.pcp.is_above_high() && !self.raise_high_for_free() {
            self.spill(front, full, order.rounds());
            self.spill_more(front);
            return;
        }
        let shelf = pcp.shelf(order, mobility);
        if let Some(listed) = pcp.listed(order, mobility) {
            listed.note(shelf.count(), full);
        }
        if let Err(full) = shelf.push(self.blocks(), full) {
            self.spill(front, full, order.rounds());
            return;
        }
        SHELVES.fence();
        // SeqCst: pairs with the closing of the gate in `disable_cpu`, which takes the shelf
        // afterwards: either that sees this magazine or this sees the gate.
        if is_disabled(self.blocks().gate(here.cpu).load(SHELVES.look())) {
            self.spill_shelf(order, mobility, u32::MAX);
        }
    }

    /// Empties a magazine that the caller owns into the store.
    pub fn spill(&self, front: Front, magazine: MagazineIndex, rounds: u32) {
        let pcp = self.pcp;
        if rounds > 0 {
            count(&pcp.counters.spills, 1);
            count(&pcp.counters.spilled_blocks, u64::from(rounds));
            count(&pcp.counters.spilled_pages, u64::from(rounds * front.order.frames()));
            self.tell(Event::Spill, front.order, rounds);
        }
        let pages = self.empty_magazine(front.order, magazine, rounds);
        self.add_free(pages);
        self.release_magazine(front.order, magazine);
    }

    /// Returns the first `rounds` blocks of a magazine to the store, which the caller has announced
    /// as in flight; it keeps the magazine. Returns by how many pages the store grew.
    pub fn empty_magazine(&self, order: Order, magazine: MagazineIndex, rounds: u32) -> i64 {
        // From the top, as pop would have: runs come out in the order they went in.
        let slots = &self.blocks().magazine(magazine).slots[..rounds as usize];
        let frames = slots.iter().rev().map(|slot| Pfn::new(slot.load(Ordering::Relaxed)));
        let doubled = self.store().put_blocks(order, frames);
        self.store().note_doubled(doubled);
        i64::from(rounds * order.frames()) - i64::from(doubled.frames)
    }

    /// Empties up to `magazines_max` magazines of a shelf into the store; returns pages moved.
    pub fn spill_shelf(&self, order: Order, mobility: Mobility, magazines_max: u32) -> u64 {
        let pcp = self.pcp;
        let front = self.task_front(order, mobility);
        let mut pages = 0;
        for _ in 0..magazines_max {
            let moving = self.caches.begin(self.pcp, u64::from(order.magazine_frames()));
            let Some(full) = pcp.shelf(order, mobility).pop(self.blocks()) else { break };
            self.spill(front, full, order.rounds());
            drop(moving);
            pages += u64::from(order.magazine_frames());
        }
        pages
    }
}
