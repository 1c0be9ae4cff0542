//! Exchanges of magazines under a guard that the caller holds. No step takes one again, none
//! reaches the store, whose lock the caller may have, and no walk over zones comes before. Guards
//! and that walk are half of a slow path's instructions where many blocks are used at a time.

use super::caches::CpuZone;
use super::exchange::Exchange;
use super::high;
use super::shelf::{Part, Parts, PoppedMagazines};
use super::state::Front;
use crate::cpus::{Cpus, PinnedCpus, Processor, sequence};
use crate::frame::Pfn;
use crate::front::word::Word;

/// Exchanges under a guard of the caller.
impl<'s, 'a, 'm, P: Processor> Exchange<'s, 'a, 'm, PinnedCpus<P>> {
    /// The front as it is now, if its gate is open.
    pub fn of(share: &'s CpuZone<'a, 'm, PinnedCpus<P>>, front: &'s Front) -> Option<Self> {
        share.caches.read_front(front).map(|word| Exchange { share, front, word })
    }

    /// A block from the front, or from the next full magazine that this CPU has: the front's other
    /// one, or one of its shelf. `None`: it has none, or the slow path has more to do.
    pub fn pop(mut self) -> Option<Pfn> {
        // The slow path steps the hand then.
        let pcp = self.share.pcp;
        if self.share.caches.pcps.avoids() && pcp.hand.is_due(&pcp.counters.hits) {
            return None;
        }
        if self.word.operations_full() {
            self = self.folded(self.word.folded())?;
        }
        let (front, word) = (self.front, self.word);
        let rounds_max = front.order.rounds();
        // Only the slow path divides magazines.
        if word.rounds() == 0 && word.divisible(rounds_max).is_some() {
            return None;
        }
        let is_loaded = word.rounds() > 0
            || match word.with_filled_loaded(rounds_max) {
                Some(exchanged) => self.exchange(exchanged),
                None => {
                    self.load_from_shelf(|new| self.install(new), |full| self.set_aside(full))?
                }
            };
        let pop = || sequence::pop(self.share.blocks(), front.here, front.offset());
        is_loaded.then(pop)?.map(Pfn::new)
    }

    /// Puts a block into the front, into its other magazine, or into an empty one, for which a full
    /// one goes to the shelf. `false`: the CPU has no such place or caches too much, or the
    /// slow path has more to do; the block is still the caller's.
    pub fn push(mut self, pfn: Pfn) -> bool {
        if self.word.operations_full() {
            let Some(folded) = self.folded(self.word.folded_by_push()) else { return false };
            self = folded;
        }
        let (front, word) = (self.front, self.word);
        let rounds_max = front.order.rounds();
        // So has a front without magazines, which has no credit.
        let has_room = word.rounds() < rounds_max
            || match word.with_room_loaded(rounds_max) {
                // It may have to spill what it has, which the slow path does.
                _ if self.share.only_frees(front) => return false,
                Some(exchanged) => self.exchange(exchanged),
                None => return self.push_to_empty(pfn),
            };
        let (blocks, offset) = (self.share.blocks(), front.offset());
        has_room && sequence::push(blocks, front.here, offset, rounds_max, pfn.get())
    }

    fn push_to_empty(self, pfn: Pfn) -> bool {
        let pcp = self.share.pcp;
        // The slow path, which keeps the clock, has run in this millisecond. To decay a CPU that
        // only exchanged magazines would look idle.
        let has_noted_activity =
            || pcp.high.active_ms() == self.share.caches.cpus.environment().now_ms();
        if high::regards(self.front.order) || !self.may_shelve(1) || !has_noted_activity() {
            return false;
        }
        let Some(empties) = self.charged_empties() else { return false };
        self.load_empty(empties, Some(pfn), |new| self.install(new), |full| self.set_aside(full))
    }

    /// Puts full magazines on the CPU's shelf. If handlers have filled that meanwhile, they are
    /// handed over: the next drain or decay takes them.
    ///
    /// Neither `high` nor the gate is looked at, as [`CpuZone::shelve`] does. The one can have
    /// fallen only since [`has_room`](super::state::Pcp::has_room) was asked, and the next slow
    /// path sees it. A caller that disables the CPU meanwhile waits for this caller's guard, and
    /// takes the shelf afterwards.
    fn set_aside(&self, full: PoppedMagazines) {
        let (share, order) = (self.share, self.front.order);
        if share.pcp.push_to_shelf(share.blocks(), self.front, full) {
            return;
        }
        for full in full.each() {
            let part = Part::new(full, order, order.rounds());
            let pushed = share.pcp.handed.push(&Parts(share.blocks()), part);
            debug_assert!(pushed.is_ok(), "what is not counted has no limit");
            share.charge(-i64::from(order.magazine_frames()));
        }
    }

    /// Installs a word like [`CpuZone::replace`]. It fails only if the gate was closed meanwhile.
    fn install(&self, new: Word) -> bool {
        self.commit(new.with_operations(self.word.operations()))
    }

    /// The front with credit for further operations.
    fn folded(mut self, folded: Word) -> Option<Self> {
        if !self.exchange(folded) {
            return None;
        }
        self.word = folded;
        Some(self)
    }

    /// Exchanges magazines like [`CpuZone::exchange`]. It fails only if the gate was closed
    /// meanwhile.
    fn exchange(&self, new: Word) -> bool {
        let done = self.commit(new);
        if done {
            self.share.pcp.count_exchange(self.word, new);
        }
        done
    }

    fn commit(&self, new: Word) -> bool {
        let (blocks, front) = (self.share.blocks(), self.front);
        sequence::commit(blocks, front.here, front.word_change(self.word, new))
    }
}
