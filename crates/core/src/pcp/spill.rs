//! Spill: magazines and single blocks from a CPU to the store. The theory is in
//! [`refill`](super::refill).
//!
//! # Room under `high`
//! Here is what a CPU moves out to stay below the limit on its cache, at refills, frees
//! and decays. The limit itself is in [`high`](super::high).
//!
//! # While whole pageblocks are short
//! Cached frames keep pageblocks from becoming whole, and no search finds them. Of memory that is
//! nearly full, most of what is free can lie in caches, while requests of other orders and
//! mobilities break up whole pageblocks, or mix others; watermarks do not see that. What a program
//! freed when it exited is handed out from the top of a shelf, frame by frame out of all pageblocks
//! that it had. So while some pageblocks are avoided, or less than half of the zone is whole, all
//! CPUs together may cache a 32nd of what is free, but each as much as `high_min`. Magazines in
//! fronts are not refused for it: `high` grows for these, and falls when the next one is to be
//! shelved.
//!
//! Frames that are freed in avoided pageblocks go from fronts of their own straight to the store.
//! Which pageblocks these are is the policy of [`evacuation`](crate::evacuation), which a CPU steps
//! here.

use super::caches::CpuZone;
use super::exchange::Exchange;
use super::high::{self, BATCH_SCALE, MovedPages};
use super::magazines::Carver;
use super::shelf::PoppedMagazines;
use super::state::{ATTEMPTS_MAX, Front, SHELF_COUNT, Step};
use crate::cpus::{Cpus, Environment, Event, Here};
use crate::evacuation::{Evacuation, HandStep, ZonePolicy};
use crate::frame::pageblock::FRONTS;
use crate::frame::{Kind, Order, Pfn};
use crate::front::MagazineIndex;
use crate::front::gate::is_disabled;
use crate::front::word::Word;
use crate::sync::count;
use crate::sync::model::IS_LOOM;
use crate::sync::prim::Ordering;
use crate::sync::total::SHELVES;
use crate::zone::CacheLimits;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Frees a block of a caller on this CPU through its front. `false`: not through this front.
    pub fn free(&self, front: Front, pfn: Pfn) -> bool {
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
        let Some(word) = self.caches.read_front(&front) else { return self.at_closed_gate(front) };
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

    /// Installs an empty magazine with the block in it, or two; full ones that this pushes out go
    /// to the shelf or to the store.
    fn load_empty(&self, front: Front, word: Word, pfn: Pfn) -> Step {
        let order = front.order;
        let is_full = word.magazines() >= if front.avoided { 1 } else { 2 };
        let more = if is_full { 0 } else { u64::from(order.magazine_frames()) };
        if more > 0 && front.never_fits(word, more, self.zone.limits().high_max) {
            return Step::Store;
        }
        self.note_activity();
        if more > 0 && !self.make_room(front, more) {
            return Step::Store;
        }
        let exchange = Exchange { share: self, front: &front, word };
        let at_hand = if exchange.may_shelve(1) { exchange.charged_empties() } else { None };
        let Some(empties) = at_hand.or_else(|| Some(self.acquire_magazine(order)?.into())) else {
            return self.unload(front, word);
        };
        self.prefetch_next_empty();
        let install = |new| self.replace(&front, word, new);
        let keep = |full| self.shelve(front, full);
        if exchange.load_empty(empties, Some(pfn), install, keep) {
            Step::Got(pfn)
        } else {
            Step::Again
        }
    }

    /// Empties a front into the store. It has no magazine then.
    pub fn unload(&self, front: Front, word: Word) -> Step {
        let Some(loaded) = word.loaded() else { return Step::Store };
        let moving = self.caches.begin(self.pcp, u64::from(front.order.magazine_frames()));
        // Both leave: a front has a loaded magazine or none at all.
        if self.replace(&front, word, Word::EMPTY) {
            self.pcp.count_operations(word.operations());
            if let Some((previous, fill)) = word.previous() {
                self.spill(front, previous, fill.rounds(front.order.rounds()));
            }
            match front.avoided {
                true => self.spill_avoided(front, word),
                false => self.spill(front, loaded, word.rounds()),
            }
        }
        drop(moving);
        Step::Again
    }

    /// Puts one or two full magazines that the caller owns on the CPU's shelf, or into the store
    /// when the CPU caches more than `high`.
    pub fn shelve(&self, front: Front, full: PoppedMagazines) {
        let Front { here, order, kind, .. } = front;
        let pcp = self.pcp;
        if !IS_LOOM {
            // One that is above what it may be now is lowered, so that what comes is spilled, and
            // more.
            let (limits, charged) = (self.zone.limits(), pcp.charged_pages.load(Ordering::Relaxed));
            pcp.high.lower(charged, self.high_most(limits) as i64, limits);
        }
        // They are charged already: no more is needed than what there is.
        let is_above = pcp.is_above_high() && !self.raise_high_for_free(0);
        if is_above || !pcp.push_to_shelf(self.blocks(), &front, full) {
            full.each().for_each(|full| self.spill(front, full, order.rounds()));
            if is_above {
                self.spill_more(front);
            }
            return;
        }
        SHELVES.fence();
        // SeqCst: pairs with the closing of the gate in `disable_cpu`, which takes the shelf
        // afterwards: either that sees this magazine or this sees the gate.
        if is_disabled(self.blocks().gate(here.cpu).load(SHELVES.look())) {
            self.spill_shelf(order, kind, u32::MAX);
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
        self.release(front.order, magazine.into());
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
    pub fn spill_shelf(&self, order: Order, kind: Kind, magazines_max: u32) -> u64 {
        let pcp = self.pcp;
        let front = self.task_front(order, kind);
        let mut pages = 0;
        for _ in 0..magazines_max {
            let moving = self.caches.begin(self.pcp, u64::from(order.magazine_frames()));
            let Some(full) = pcp.shelf(order, kind).pop(self.blocks()) else { break };
            self.spill(front, full, order.rounds());
            drop(moving);
            pages += u64::from(order.magazine_frames());
        }
        pages
    }
}

/// Magazines moved out per slow path to come back under `high`, or of a cold shelf.
const ROOM_STEPS_MAX: u32 = 4;
/// Magazines moved out per decay of a CPU's zone.
const DECAY_MAGAZINES_MAX: u32 = 32;
/// The part of a zone's free pages that its CPUs together cache while whole pageblocks are short.
const AVOIDED_PART: u64 = 32;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// The largest `high` now, but for what fronts need.
    fn high_most(&self, limits: CacheLimits) -> u64 {
        let wants_more = |policy: &ZonePolicy| policy.wants_more(self.zone.managed());
        // Some are avoided, or more should be.
        let are_whole_short = || {
            self.store().tags.avoided(self.zone_id) > 0
                || self.caches.pcps.policy(self.zone_id).is_some_and(wants_more)
        };
        if IS_LOOM || !limits.adapts() || !are_whole_short() {
            return limits.high_max;
        }
        let free = self.caches.free_estimate(self.zone_id).max(0) as u64;
        let part = free / AVOIDED_PART / u64::from(self.caches.pcps.cpus());
        part.clamp(limits.high_min, limits.high_max)
    }

    /// Whether `high` may grow: it adapts, and the zone is above its high watermark.
    fn may_raise_high(&self, limits: CacheLimits) -> bool {
        limits.adapts() && self.caches.is_above_high(self.zone_id)
    }

    /// Raises `high` so that `pages` more fit under it, if it may grow and `most` allows as many.
    fn raise_high(&self, pages: u64, most: u64) -> bool {
        let limits = self.zone.limits();
        let needed = self.pcp.charged_pages.load(Ordering::Relaxed) + pages as i64;
        let most = most.min(limits.high_max) as i64;
        if needed > most || !self.may_raise_high(limits) {
            return false;
        }
        self.pcp.high.raise(needed, most, limits);
        true
    }

    /// A refill of so many pages lets the CPU cache as many more, or a batch (`nr_pcp_alloc`).
    pub fn raise_high_for_refill(&self, pages: u64) {
        if IS_LOOM {
            return;
        }
        Carver(self).carve_early();
        let (high, limits) = (&self.pcp.high, self.zone.limits());
        let now = high.get();
        if now < limits.high_max as i64 && self.may_raise_high(limits) {
            let raised = now + limits.batch.max(pages) as i64;
            high.set(raised.min(self.high_most(limits) as i64).max(now));
        }
    }

    /// Raises `high` for frees as if the CPU had refilled, but no further than to 33 batches
    /// (`nr_pcp_high`, where `free_count` and so what it asks for is bounded). What a CPU only
    /// frees is no demand. `true`: `pages` more fit under it.
    pub fn raise_high_for_free(&self, pages: u64) -> bool {
        let limits = self.zone.limits();
        let batches = (limits.batch << BATCH_SCALE) + limits.batch;
        self.raise_high(pages, batches.min(self.high_most(limits)))
    }

    /// Tells the rule for CPUs that only free what a front moved.
    pub fn note_moved(&self, front: &Front, moved: MovedPages) {
        if high::regards(front.order) {
            let (limits, managed) = (self.zone.limits(), self.zone.managed());
            self.pcp.free_counts.note_moved(front.order, moved, limits, managed);
        }
    }

    /// Whether the CPU counts as one that only frees blocks of this order.
    pub fn only_frees(&self, front: &Front) -> bool {
        high::regards(front.order)
            && self.pcp.free_counts.only_frees(front.order, self.zone.limits())
    }

    /// Whether a CPU that only frees has filled a magazine and caches more than it may then, in the
    /// front and its shelf together.
    pub fn exceeds_free_high(&self, front: &Front, word: Word) -> bool {
        let order = front.order;
        if word.rounds() < order.rounds() || front.avoided || !self.only_frees(front) {
            return false;
        }
        let (pcp, limits) = (self.pcp, self.zone.limits());
        let shelved = pcp.shelf(order, front.kind).count() * order.rounds();
        let blocks = u64::from(word.frames(order.rounds()) + shelved);
        let pages = blocks * u64::from(order.frames());
        pages > self.caches.pcps.free_high.pages(limits.batch, pcp.high.pages())
    }

    /// A CPU that caches more than `high` spilled a magazine: if it only frees, the whole shelf
    /// follows; else its coldest front, or magazines of its coldest shelf. So what it used before
    /// makes room for what it uses now.
    pub fn spill_more(&self, front: Front) {
        if self.only_frees(&front) {
            self.spill_at_once(front);
        } else if !self.empty_coldest_front(front, Order::CACHED) {
            // One row: this comes with every magazine that is spilled.
            self.spill_coldest_shelf(front);
        }
    }

    /// Spills magazines of a shelf of another order or mobility that was not used since the last
    /// look, if it is the clock hand's turn (second chance).
    fn spill_coldest_shelf(&self, except: Front) {
        if IS_LOOM {
            // A policy; to a model each access would be one more place to switch.
            return;
        }
        let (pcp, clock) = (self.pcp, &self.pcp.cold_shelves);
        let mut next = clock.hand();
        for _ in 0..Order::CACHED {
            let at = if next < SHELF_COUNT { next } else { 0 };
            next = at + 1;
            // Most are: nothing else is looked at of those.
            let (order, kind, shelf) = pcp.shelf_at(at);
            if shelf.is_empty() {
                continue;
            }
            if !clock.is_cold(at, shelf.version()) || (order, kind) == (except.order, except.kind) {
                continue;
            }
            self.spill_shelf(order, kind, ROOM_STEPS_MAX);
            // Still cold, and the next to be looked at, unless its CPU uses it.
            clock.note(at, shelf.version());
            next = at;
            break;
        }
        clock.set_hand(next);
    }

    /// Takes one front that has not been used since the last look back to the store, if it is the
    /// clock hand's turn (second chance). Looks at `places_max` fronts.
    pub fn empty_coldest_front(&self, except: Front, places_max: usize) -> bool {
        let words = self.blocks().fronts(except.here, self.zone_id);
        let places = Front::places(self.caches.pcps.avoids());
        let clock = &self.pcp.cold_fronts;
        let hand = clock.hand() % places;
        let end = hand + places_max.min(places);
        clock.set_hand(end % places);
        for at in (hand..end.min(places)).chain(0..end.saturating_sub(places)) {
            // Most are empty: nothing else is looked at of those.
            if words[at].load(Ordering::Relaxed) == Word::EMPTY.0 || at == except.place() {
                continue;
            }
            let front = Front::at_place(except.here, self.zone_id, at);
            let Some(word) = self.caches.read_front(&front) else { return false };
            if !clock.is_cold(at, word.0) {
                continue;
            }
            clock.set_hand(at + 1);
            self.unload(front, word);
            return true;
        }
        false
    }

    /// Spills a whole shelf, up to `batch << 5` pages (`nr_pcp_free`). If only its top were
    /// spilled, the pages at its bottom, which were freed first, would never be used again.
    pub fn spill_at_once(&self, front: Front) {
        let pages_max = self.zone.limits().batch << BATCH_SCALE;
        let magazines_max = pages_max / u64::from(front.order.magazine_frames());
        let magazines_max = u32::try_from(magazines_max).unwrap_or(u32::MAX).max(1);
        self.spill_shelf(front.order, front.kind, magazines_max);
    }

    /// Makes room for `pages` more in a front under `high`: raises it, spills shelved magazines,
    /// empties other fronts that are cold, a few steps at most. `false`: there is none.
    pub fn make_room(&self, front: Front, pages: u64) -> bool {
        for _ in 0..ROOM_STEPS_MAX {
            if self.pcp.has_room(pages) {
                return true;
            }
            let more = self.raise_high(pages, u64::MAX)
                || self.spill_any_shelf(1) > 0
                || self.empty_coldest_front(front, FRONTS);
            if !more {
                return false;
            }
        }
        self.pcp.has_room(pages)
    }

    /// Empties up to `magazines_max` shelved magazines, the largest blocks last.
    pub fn spill_any_shelf(&self, magazines_max: u32) -> u64 {
        let (mut pages, mut left) = (0, magazines_max);
        for place in 0..SHELF_COUNT {
            if left == 0 {
                break;
            }
            // Most are empty, and a spill announces itself before it finds out.
            let (order, kind, shelf) = self.pcp.shelf_at(place);
            if shelf.is_empty() {
                continue;
            }
            let moved = self.spill_shelf(order, kind, left);
            left -= (moved / u64::from(order.magazine_frames())) as u32;
            pages += moved;
        }
        pages
    }

    /// Remembers that the slow path ran, and decays `high` when it is time.
    pub fn note_activity(&self) {
        let now = self.caches.cpus.environment().now_ms();
        if now != 0 && self.pcp.high.note_activity(now) {
            self.decay();
        }
    }

    /// Lowers `high` towards what is cached, and spills the excess; forgets half of what the CPU
    /// allocated. Returns pages moved to the store.
    fn decay(&self) -> u64 {
        let charged = self.pcp.charged_pages.load(Ordering::Relaxed);
        self.pcp.high.decay(charged, self.zone.limits());
        self.pcp.free_counts.decay();
        // No drain may have come for it.
        let mut pages = self.drain_handed();
        for _ in 0..DECAY_MAGAZINES_MAX {
            if !self.pcp.is_above_high() {
                break;
            }
            match self.spill_any_shelf(1) {
                0 => break,
                moved => pages += moved,
            }
        }
        pages
    }

    /// Decays `high` like [`decay`](Self::decay), and spills more if the CPU has been idle.
    pub fn decay_at(&self, now_ms: u64) -> u64 {
        let pages = self.decay();
        // Three ticks idle: a batch more, as the kernel does for remote zones.
        if self.pcp.high.is_idle(now_ms) {
            return pages + self.spill_any_shelf(DECAY_MAGAZINES_MAX);
        }
        pages
    }
}

/// Whether frees of many blocks may bring a CPU another magazine. If not, it keeps what it has
/// cached, and the blocks go to the store: to cache them would cost a spilled magazine each. Where
/// `high` is to fall, or the CPU may count as one that only frees, they go through the front all
/// the same, which sees to that.
pub fn caches_batch<C: Cpus>(share: &CpuZone<'_, '_, C>, order: Order) -> bool {
    let (pcp, pages) = (share.pcp, order.magazine_frames().into());
    share.note_activity();
    high::regards(order)
        || pcp.has_room(pages)
        || pcp.high.pages() > share.high_most(share.zone.limits())
        || share.raise_high_for_free(pages)
}

/// Spare magazines of a shelf that are returned at once.
const SPARE_RETURNED: u32 = 16;

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Moves this CPU's hand.
    #[cold]
    #[inline(never)]
    pub fn step_hand(&self, here: Here) {
        let (pcp, pcps) = (self.pcp, &self.caches.pcps);
        pcp.hand.note_move(&pcp.counters.hits);
        let Some(policy) = pcps.policy(self.zone_id) else { return };
        let Some(bitmap) = self.store().bitmap() else { return };
        let step = HandStep {
            hand: &pcp.hand,
            policy,
            zone_id: self.zone_id,
            zone: self.zone,
            bitmap,
            cpus: pcps.cpus(),
        };
        // No protocol reads what it counts.
        if !IS_LOOM {
            if pcp.hand.ends_call_window() {
                let is_wanted = policy.wants_more(self.zone.managed());
                for kind in Kind::all() {
                    let shelved = pcp.shelf(Order::BASE, kind).count();
                    pcp.spares.end_window(kind, shelved, is_wanted);
                }
            }
            let (spilled, at) = (&pcp.counters.spilled_pages, &pcp.hand.spilled_at);
            let most = at.load(Ordering::Relaxed) + pcp.charged();
            if spilled.load(Ordering::Relaxed) > most && policy.get() != Evacuation::Off {
                self.return_cached(here);
            }
            self.return_spare();
            at.store(spilled.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if step.step() {
            self.return_avoided(here);
        }
    }

    /// Empties a few magazines of each shelf of order 0 that were spare throughout the last window
    /// into the store (the working set of Bonwick & Adams, USENIX 2001). Frames that lie there keep
    /// pageblocks from becoming whole, and fill avoided ones when they are allocated.
    fn return_spare(&self) {
        for kind in Kind::all() {
            let magazines = self.pcp.spares.take(kind, SPARE_RETURNED);
            self.spill_shelf(Order::BASE, kind, magazines);
        }
    }

    /// Empties this CPU's fronts of order 0, and a few magazines of each shelf, into the store.
    fn return_cached(&self, here: Here) {
        for kind in Kind::all() {
            self.spill_shelf(Order::BASE, kind, SPARE_RETURNED);
            let front = self.front(here, Order::BASE, kind);
            if let Some(word) = self.caches.read_front(&front) {
                self.unload(front, word);
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

    /// Empties this CPU's fronts into the store, those of this context, from a
    /// [place](Front::place) on; whether they had blocks.
    #[cold]
    pub fn return_fronts(&self, here: Here, first: usize) -> bool {
        let mut had_blocks = false;
        for place in first..Front::places(self.caches.pcps.avoids()) {
            let front = Front::at_place(here, self.zone_id, place);
            // Other code on this CPU may use it meanwhile.
            for _ in 0..ATTEMPTS_MAX {
                let Some(word) = self.caches.read_front(&front) else { return had_blocks };
                if word.frames(front.order.rounds()) == 0 {
                    break;
                }
                self.unload(front, word);
                had_blocks = true;
            }
        }
        had_blocks
    }

    /// Empties the fronts for avoided pageblocks like [`return_fronts`](Self::return_fronts): they
    /// lie behind those that are popped from.
    pub fn return_avoided(&self, here: Here) -> bool {
        self.return_fronts(here, Front::places(false))
    }
}
