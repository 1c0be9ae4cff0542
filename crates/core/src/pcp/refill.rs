//! Refill: magazines and single blocks from the store to a CPU.
//!
//! # Theory of refill and spill
//! A slow path reads the front word outside any sequence, prepares a magazine that it alone owns,
//! and installs it by one compare-and-store, which fails if the word, the CPU or the gate has
//! changed. Before the install it touches nothing of the front's magazines. Magazines that the
//! install pushes out of the word belong to the slow path from then on. So does the front's second
//! empty magazine, which a refill takes out of the word by a compare-and-store of its own, to fill
//! it. The word may change and change back between the read and the install. It then means the same
//! again (the magazines named in it are the front's, with so many rounds), and the slow path has
//! read nothing else. Therefore a full previous magazine is swapped in and popped from in two
//! steps: before the install its slots may not be read, and after it any code of this CPU may pop
//! them.
//!
//! Worst case of one call, besides the search of the store: one magazine filled, two emptied or
//! shelved; or, of orders 4 to 8, four filled, of which three are shelved, two emptied: at most 3 *
//! 63 frames touched (`ROOM_STEPS_MAX` more magazines when caches are above `high`, and `batch <<
//! 5` pages in blocks of orders 1 to 3 by a CPU that only frees them).

use core::ops::RangeInclusive;

use super::caches::CpuZone;
use super::exchange::Exchange;
use super::high::MovedPages;
use super::state::{ATTEMPTS_MAX, Front, Step};
use crate::cpus::{Cpus, Event, Here};
use crate::frame::{Order, Pfn};
use crate::front::word::{Fill, Word};
use crate::front::{MagazineIndex, SLOTS};
use crate::store::{CHUNK_BLOCKS, SearchRules};
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::{count, prefetch_write};
use crate::zone::Reserve;

/// The part of `high` that one refill of large blocks may bring.
const LARGE_PART: u64 = 4;
/// Magazines that one refill may fill besides the one for its front.
const EXTRA_MAX: usize = 3;
/// The orders of which it may: a search costs them more than what it then takes.
const SEVERAL: RangeInclusive<u32> = 4..=8;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// A block for a caller on this CPU, from its front or past it. What the CPU's own fronts hold
    /// of avoided pageblocks goes to the store before the zone has none.
    pub fn alloc(&self, here: Here, order: Order, rules: SearchRules) -> Option<Pfn> {
        let found = self.alloc_once(here, order, rules);
        if found.is_none() && self.return_avoided(here) {
            return self.alloc_once(here, order, rules);
        }
        found
    }

    fn alloc_once(&self, here: Here, order: Order, rules: SearchRules) -> Option<Pfn> {
        if let Some(order) = order.cached() {
            let front = self.front(here, order, rules.kind);
            for _ in 0..ATTEMPTS_MAX {
                match self.alloc_from_front(front, rules) {
                    Step::Got(pfn) => return Some(pfn),
                    Step::Again => {}
                    Step::Store => break,
                    Step::Nothing => return None,
                }
            }
        }
        self.caches.alloc_direct(Some(here), self.zone_id, order, rules)
    }

    /// One step towards a block from this front.
    fn alloc_from_front(&self, front: Front, rules: SearchRules) -> Step {
        let Some(word) = self.caches.read_front(&front) else { return self.at_closed_gate(front) };
        let exchange = Exchange { share: self, front: &front, word };
        if let Some(popped) = exchange.pop_turned() {
            return popped.map_or(Step::Again, Step::Got);
        }
        if let Some(pair) = word.divisible(front.order.rounds()) {
            return exchange.divide(pair).map_or(Step::Again, Step::Got);
        }
        // After a drain another CPU has these lines; they come side by side.
        let pcp = self.pcp;
        prefetch_write(&pcp.in_flight);
        pcp.listed(front.order, front.kind).into_iter().for_each(prefetch_write);
        self.store().prefetch(&self.wanted(front.order, rules));
        self.refill(front, word, rules)
    }

    /// Fills a magazine from the store, serves the request first, and installs the rest.
    ///
    /// Out of line: what it keeps on the stack would cost requests that the shelf serves.
    #[inline(never)]
    fn refill(&self, front: Front, word: Word, rules: SearchRules) -> Step {
        let order = front.order;
        let pcp = self.pcp;
        // None is added to two.
        let more = if word.magazines() < 2 { order.magazine_frames().into() } else { 0 };
        if front.never_fits(word, more, self.zone.limits().high_max) {
            return Step::Store;
        }
        self.note_activity();
        if !order.is_large() {
            self.step_hand(front.here);
        }
        if !self.make_room(front, more) {
            return Step::Store;
        }
        let Some(blocks_wanted) = self.refill_size(order, rules.reserve) else {
            return Step::Nothing;
        };
        let (empty, word) = match self.empty_to_fill(front, word) {
            Ok(found) => found,
            Err(step) => return step,
        };
        let mut extra =
            SpareMagazines { share: self, order, magazines: [None; EXTRA_MAX], count: 0 };
        if blocks_wanted >= order.rounds() {
            extra.acquire(rules.reserve);
        }
        let blocks_wanted = blocks_wanted + extra.count as u32 * order.rounds();

        let pages = u64::from(blocks_wanted * order.frames());
        let moving = self.caches.begin(self.pcp, pages);
        let mut frames = [Pfn::new(0); SLOTS + 1];
        let mut got = 0;
        let wanted = self.wanted(order, rules);
        self.store().take_blocks(&wanted, order, blocks_wanted, |found| {
            got += found.write_to(&mut frames[got..]);
        });
        let Some(rest) = got.checked_sub(1) else {
            self.release(order, empty.into());
            extra.release();
            return Step::Nothing;
        };
        let taken_pages = got as u64 * u64::from(order.frames());
        self.add_free(-(taken_pages as i64));
        count(&pcp.counters.refilled_blocks, got as u64);
        count(&pcp.counters.refilled_pages, taken_pages);
        self.raise_high_for_refill(taken_pages);
        // What was taken first is handed out last, also from the shelf.
        let shelved = extra.shelve(front, &frames[..rest]);
        let rest_loaded = rest - shelved;
        self.fill(empty, &frames[shelved..rest]);
        if rest_loaded > 0 {
            count(&pcp.counters.refills, 1);
            self.note_moved(&front, MovedPages::In(taken_pages));
            self.install_refilled(front, word, empty, rest_loaded as u32);
        } else {
            self.release(order, empty.into());
        }
        extra.release();
        drop(moving);
        self.tell(Event::Refill, order, got as u32);
        Step::Got(frames[rest])
    }

    /// An empty magazine, charged to this CPU, and the front's word from then on. It is the front's
    /// second one, if it has one: to take another and give that back would come to the same, and
    /// write the stack of empties and the charge twice each.
    fn empty_to_fill(&self, front: Front, word: Word) -> Result<(MagazineIndex, Word), Step> {
        let Some((empty, rest)) = word.without_empty() else {
            return self
                .acquire_magazine(front.order)
                .map(|empty| (empty, word))
                .ok_or(Step::Store);
        };
        if is_mutant(Mutant::FillsUntaken) {
            return Ok((empty, word));
        }
        if self.replace(&front, word, rest) { Ok((empty, rest)) } else { Err(Step::Again) }
    }

    fn install_refilled(&self, front: Front, word: Word, filled: MagazineIndex, rounds: u32) {
        let order = front.order;
        let new = Word::new(filled, rounds, word.loaded().map(|empty| (empty, Fill::Empty)));
        debug_assert!(word.previous().is_none(), "the install would lose it");
        if self.replace(&front, word, new) {
            return;
        }
        if rounds == order.rounds() {
            self.shelve(front, filled.into());
        } else {
            self.spill(front, filled, rounds);
        }
    }

    /// Blocks to move at once: a magazine and the one asked for, or the latter alone when the
    /// watermark allows no more. `None`: not even that.
    ///
    /// Of large blocks at most a quarter of `high`: a CPU that asks for one block of order 10 does
    /// not hide seven, and one that asks for many soon has a higher `high`.
    fn refill_size(&self, order: Order, reserve: Reserve) -> Option<u32> {
        let block = u64::from(order.frames());
        let magazine = order.whole_pageblocks(order.rounds() + 1);
        let full = if order.is_large() {
            let high = self.pcp.high.pages();
            (high / LARGE_PART / block).clamp(1, u64::from(magazine)) as u32
        } else {
            magazine
        };
        if full > 1 && self.may_give(u64::from(full) * block, shared_reserve(reserve)) {
            Some(full)
        } else {
            self.may_give(block, reserve).then_some(1)
        }
    }
}

/// Empty magazines for a refill of several, charged to its CPU.
struct SpareMagazines<'s, 'a, 'm, C> {
    share: &'s CpuZone<'a, 'm, C>,
    order: Order,
    magazines: [Option<MagazineIndex>; EXTRA_MAX],
    count: usize,
}

impl<'s, 'a, 'm, C: Cpus> SpareMagazines<'s, 'a, 'm, C> {
    /// Takes as many as a quarter of `high` has room for beside the first, if they fit under
    /// `high`, the zone may give what they take, and they are at hand.
    fn acquire(&mut self, reserve: Reserve) {
        if IS_LOOM || !SEVERAL.contains(&self.order.get()) {
            // To a model, which has no such order, a policy would be one more place to switch.
            return;
        }
        let (pcp, frames) = (self.share.pcp, u64::from(self.order.magazine_frames()));
        let high = pcp.high.pages();
        let room = (high / LARGE_PART / frames).saturating_sub(1);
        let fitting = (high.saturating_sub(pcp.charged()) / frames).min(room).min(EXTRA_MAX as u64);
        let pages = (fitting + 1) * frames + u64::from(self.order.frames());
        if fitting == 0 || !self.share.may_give(pages, shared_reserve(reserve)) {
            return;
        }
        for _ in 0..fitting {
            let Some(empty) = self.share.empties_at_hand(1) else { break };
            self.share.charge(frames as i64);
            self.magazines[self.count] = Some(empty.first);
            self.count += 1;
        }
    }

    fn pop(&mut self) -> Option<MagazineIndex> {
        self.count = self.count.checked_sub(1)?;
        self.magazines[self.count].take()
    }

    /// Puts full magazines of the first of these frames on the shelf, but for what the front takes.
    /// Returns how many frames that were.
    fn shelve(&mut self, front: Front, frames: &[Pfn]) -> usize {
        let rounds = self.order.rounds() as usize;
        let mut shelved = 0;
        while frames.len() - shelved > rounds
            && let Some(empty) = self.pop()
        {
            self.share.fill(empty, &frames[shelved..shelved + rounds]);
            self.share.shelve(front, empty.into());
            shelved += rounds;
        }
        shelved
    }

    /// Gives those back that were not needed.
    fn release(mut self) {
        while let Some(empty) = self.pop() {
            self.share.release(self.order, empty.into());
        }
    }
}

/// The reserve of a refill for all but the block of its request: a reserve is for this request
/// alone, not for later pops from the front.
fn shared_reserve(reserve: Reserve) -> Reserve {
    if reserve == Reserve::All { Reserve::AboveMin } else { reserve }
}

// What a refill takes, beside the block of its request, fits into its list of frames.
const _: () = {
    assert!(SLOTS < CHUNK_BLOCKS);
    let mut order = *SEVERAL.start();
    while !IS_LOOM && order <= *SEVERAL.end() {
        let rounds = Order::at_place(order as usize).rounds() as usize;
        assert!((1 + EXTRA_MAX) * rounds <= SLOTS);
        order += 1;
    }
};
