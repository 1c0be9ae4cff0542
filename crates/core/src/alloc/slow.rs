//! Refill and spill: magazines between the store and a CPU.
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

use core::array;

use super::Allocator;
use crate::cache::cpu_zone::{FRONTS, count};
use crate::cache::gate::is_disabled;
use crate::cache::magazine::{Class, MagazineIndex, SLOTS};
use crate::cache::word::Word;
use crate::cache::{WordOffset, is_open};
use crate::cpus::{Cpus, Here};
use crate::error::{AllocError, FreeError};
use crate::flags::Flags;
use crate::frame::{Mobility, Order, Pfn, ZoneId};
use crate::free_high::Moved;
use crate::prefetch::prefetch_write;
use crate::prim::Ordering;
use crate::store::Wanted;
use crate::store::section::Tag;

use super::pressure::Reserve;

/// Attempts at the front before a request goes to the store: enough for every step of a refill and
/// some lost races; a CPU whose sequences never commit must not hang.
const ATTEMPTS_MAX: u32 = 16;

/// A front, named by what it caches and where.
#[derive(Clone, Copy)]
pub(super) struct Front {
    pub here: Here,
    pub zone: ZoneId,
    pub class: Class,
    pub mobility: Mobility,
}

impl Front {
    fn offset(self) -> WordOffset {
        WordOffset::new(self.zone, self.class, self.mobility)
    }
}

/// What an attempt at a front came to.
enum Step {
    /// A block.
    Got(Pfn),
    /// The front has changed: try again.
    Again,
    /// Not through this front: use the store.
    Store,
    /// The zone has none, or may not give any.
    Nothing,
}

impl<C: Cpus> Allocator<'_, C> {
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.cpus.check_usable()?;
        let pfn = match self.alloc_within(order, flags, Reserve::AboveLow) {
            Some(pfn) => pfn,
            None => self.alloc_under_pressure(order, flags)?,
        };
        self.on_alloc(pfn, order, flags);
        Ok(pfn)
    }

    /// Tries the zones in turn, each down to the watermark that `reserve` names.
    pub(super) fn alloc_within(&self, order: Order, flags: Flags, reserve: Reserve) -> Option<Pfn> {
        let here = self.here();
        let node = here.map_or(crate::frame::NodeId::new(0), |here| self.shared(here.cpu).node);
        self.zones_for(node, flags).find_map(|zone| self.alloc_in_zone(here, zone, order, flags, reserve))
    }

    fn alloc_in_zone(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        order: Order,
        flags: Flags,
        reserve: Reserve,
    ) -> Option<Pfn> {
        if let (Some(class), Some(here)) = (Class::of(order), here) {
            let front = Front { here, zone, class, mobility: flags.mobility() };
            for _ in 0..ATTEMPTS_MAX {
                match self.alloc_from_front(front, reserve) {
                    Step::Got(pfn) => return Some(pfn),
                    Step::Again => {}
                    Step::Store => break,
                    Step::Nothing => return None,
                }
            }
        }
        self.alloc_direct(here, zone, order, flags.mobility(), reserve)
    }

    /// One step towards a block from this front.
    fn alloc_from_front(&self, front: Front, reserve: Reserve) -> Step {
        let Some(word) = self.read_front(front) else { return Step::Store };
        if word.rounds() > 0 && !word.operations_full() {
            return match self.cpus.pop(&self.blocks, front.offset()) {
                Some(frame) => Step::Got(Pfn::new(frame)),
                None => Step::Again,
            };
        }
        if word.operations_full() {
            return self.fold(front, word);
        }
        match (word.loaded(), word.previous()) {
            (Some(loaded), Some((previous, true))) => {
                let swapped = Word::new(previous, front.class.rounds(), Some((loaded, false)));
                self.replace(front, word, swapped);
                Step::Again
            }
            _ => {
                // After a drain another CPU has both lines; they come side by side.
                prefetch_write(&self.cpu_zone(front.here.cpu, front.zone).flux);
                self.store.prefetch(self.wanted(front.here, front.zone, front.mobility));
                self.load_from_shelf(front, word).unwrap_or_else(|| self.refill(front, word, reserve))
            }
        }
    }

    /// The front word, if the gate is open.
    fn read_front(&self, front: Front) -> Option<Word> {
        // Acquire: pairs with the Release of `Closed::drop`.
        let open = is_open(self.blocks.gate(front.here.cpu).load(Ordering::Acquire));
        open.then(|| Word(self.blocks.word(front.here, front.offset()).load(Ordering::Relaxed)))
    }

    /// Installs `new` in place of `old`, keeping the count of operations.
    fn replace(&self, front: Front, old: Word, new: Word) -> bool {
        let new = new.with_operations(old.operations());
        let done = self.cpus.compare_store(&self.blocks, front.here, front.offset(), old.0, new.0);
        if !done {
            count(&self.cpu_zone(front.here.cpu, front.zone).counters.lost_races, 1);
        }
        done
    }

    /// Moves the count of operations from the word to the counters.
    fn fold(&self, front: Front, word: Word) -> Step {
        let folded = word.with_operations(0);
        if self.cpus.compare_store(&self.blocks, front.here, front.offset(), word.0, folded.0) {
            count(&self.cpu_zone(front.here.cpu, front.zone).counters.hits, word.operations());
        }
        Step::Again
    }

    /// Installs a full magazine from the shelf; `None`: there is none.
    fn load_from_shelf(&self, front: Front, word: Word) -> Option<Step> {
        let books = self.cpu_zone(front.here.cpu, front.zone);
        let shelf = books.shelf(front.class, front.mobility);
        if shelf.count() == 0 {
            return None;
        }
        // Announced before it leaves the shelf: in between it would be in nobody's books.
        let moving = books.flux.begin(u64::from(front.class.magazine_frames()));
        let full = shelf.pop(&self.blocks)?;
        let new = Word::new(full, front.class.rounds(), word.loaded().map(|empty| (empty, false)));
        if self.replace(front, word, new) {
            count(&books.counters.shelf_hits, 1);
            self.note_moved(front, Moved::In(front.class.magazine_frames().into()));
            if let Some((empty, _)) = word.previous() {
                self.release_magazine(front.here.cpu, front.zone, front.class, empty);
            }
        } else {
            self.shelve(front, full);
        }
        drop(moving);
        Some(Step::Again)
    }

    /// Fills a magazine from the store, serves the request first, and installs the rest.
    fn refill(&self, front: Front, word: Word, reserve: Reserve) -> Step {
        let Front { here, zone, class, mobility } = front;
        let books = self.cpu_zone(here.cpu, zone);
        self.note_activity(here.cpu, zone);
        let more = if word.magazines() < 2 { u64::from(class.magazine_frames()) } else { 0 };
        if !self.make_room(front, more) {
            return Step::Store;
        }
        let Some(blocks_wanted) = self.refill_size(zone, class, reserve) else { return Step::Nothing };
        let Some(empty) = self.acquire_magazine(here.cpu, zone, class) else { return Step::Store };

        let pages = u64::from(blocks_wanted * class.block_frames());
        let moving = books.flux.begin(pages);
        let mut frames = [0u32; SLOTS + 1];
        let mut got = 0;
        self.store.take_blocks(self.wanted(here, zone, mobility), class.order(), blocks_wanted, |pfn| {
            frames[got] = pfn.get();
            got += 1;
        });
        let Some(rest) = got.checked_sub(1) else {
            self.release_magazine(here.cpu, zone, class, empty);
            return Step::Nothing;
        };
        self.fill(empty, &frames[..rest]);
        let taken_pages = got as u64 * u64::from(class.block_frames());
        self.zone(zone).add_free(Some(books), -(taken_pages as i64));
        count(&books.counters.refilled_blocks, got as u64);
        count(&books.counters.refilled_pages, taken_pages);
        self.raise_high_for_refill(here.cpu, zone, taken_pages);
        if rest > 0 {
            count(&books.counters.refills, 1);
            self.note_moved(front, Moved::In(taken_pages));
            self.install_refilled(front, word, empty, rest as u32);
        } else {
            self.release_magazine(here.cpu, zone, class, empty);
        }
        drop(moving);
        Step::Got(Pfn::new(frames[rest]))
    }

    fn install_refilled(&self, front: Front, word: Word, filled: MagazineIndex, rounds: u32) {
        let Front { here, zone, class, .. } = front;
        let new = Word::new(filled, rounds, word.loaded().map(|empty| (empty, false)));
        if self.replace(front, word, new) {
            if let Some((empty, _)) = word.previous() {
                self.release_magazine(here.cpu, zone, class, empty);
            }
        } else if rounds == class.rounds() {
            self.shelve(front, filled);
        } else {
            self.spill(front, filled, rounds);
        }
    }

    /// Blocks to move at once: a magazine and the one asked for, or the latter alone when the
    /// watermark allows no more. `None`: not even that.
    fn refill_size(&self, zone: ZoneId, class: Class, reserve: Reserve) -> Option<u32> {
        let full = class.rounds() + 1;
        let block = u64::from(class.block_frames());
        // What may be taken from a reserve is for this request, not for whoever pops next.
        let shared = if reserve == Reserve::All { Reserve::AboveMin } else { reserve };
        if self.zone_may_give(zone, u64::from(full) * block, shared) {
            Some(full)
        } else {
            self.zone_may_give(zone, block, reserve).then_some(1)
        }
    }

    fn fill(&self, magazine: MagazineIndex, frames: &[u32]) {
        let slots = &self.blocks.magazine(magazine).slots;
        for (slot, &frame) in slots.iter().zip(frames) {
            // Relaxed: published by whatever hands the magazine on.
            slot.store(frame, Ordering::Relaxed);
        }
    }

    /// Allocates from the store, past the caches.
    pub(super) fn alloc_direct(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
        reserve: Reserve,
    ) -> Option<Pfn> {
        let allowed = self.zone_may_give(zone, u64::from(order.frames()), reserve);
        allowed.then(|| self.take_direct(here, zone, order, mobility)).flatten()
    }

    /// As [`alloc_direct`](Self::alloc_direct), whatever the watermarks say. Ends one move in the
    /// flux of this CPU.
    pub(super) fn take_direct(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<Pfn> {
        let pages = u64::from(order.frames());
        let pfn = self.wanted_from(here, zone, mobility, |wanted| {
            // A claim of several words holds some of them before it has all.
            let _moving = self.flux(here, zone).begin(pages);
            self.store.take_block(wanted, order)
        })?;
        let books = self.cpu_zone_here(here, zone);
        self.zone(zone).add_free(books, -(pages as i64));
        self.count_direct_alloc(books, zone, 1, pages);
        Some(pfn)
    }

    fn wanted(&self, here: Here, zone: ZoneId, mobility: Mobility) -> Wanted<'_> {
        let hint = &self.cpu_zone(here.cpu, zone).accounts.hints[mobility.index()];
        Wanted { zone, mobility, span: self.zone(zone).span(), hint }
    }

    /// Calls `search` with a hint of this CPU, or a hint of its own.
    pub(super) fn wanted_from<R>(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        mobility: Mobility,
        search: impl FnOnce(Wanted<'_>) -> R,
    ) -> R {
        match here {
            Some(here) => search(self.wanted(here, zone, mobility)),
            None => {
                let hint = crate::prim::AtomicU32::new(0);
                search(Wanted { zone, mobility, span: self.zone(zone).span(), hint: &hint })
            }
        }
    }

    /// Frees a block to the store, past the caches.
    pub(super) fn free_direct(&self, pfn: Pfn, order: Order, zone: ZoneId) -> Result<(), FreeError> {
        self.cpus.check_usable()?;
        let here = self.here();
        let moving = self.flux(here, zone).begin(u64::from(order.frames()));
        let doubled = self.store.put(pfn, order.frames());
        let books = self.cpu_zone_here(here, zone);
        let freed = i64::from(order.frames()) - i64::from(doubled);
        self.zone(zone).add_free(books, freed);
        // Not before they are counted: until then a watermark may hide them.
        drop(moving);
        self.count_direct_free(books, zone, 1, u64::from(order.frames()));
        self.report_doubled(doubled);
        if doubled > 0 { Err(FreeError::NotAllocated) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, pfn: Pfn, class: Class, tag: Tag) -> Result<(), FreeError> {
        self.cpus.check_usable()?;
        if let Some(here) = self.here() {
            let front = Front { here, zone: tag.zone(), class, mobility: tag.mobility() };
            for _ in 0..ATTEMPTS_MAX {
                match self.free_to_front(front, pfn) {
                    Step::Got(_) => return Ok(()),
                    Step::Again => {}
                    Step::Store | Step::Nothing => break,
                }
            }
        }
        self.free_direct(pfn, class.order(), tag.zone())
    }

    /// One step towards getting rid of a block through this front; `Got`: it is gone.
    fn free_to_front(&self, front: Front, pfn: Pfn) -> Step {
        let Some(word) = self.read_front(front) else { return Step::Store };
        let rounds_max = front.class.rounds();
        if word.operations_full() {
            return self.fold(front, word);
        }
        if word.loaded().is_some() && word.rounds() < rounds_max {
            let pushed = self.cpus.push(&self.blocks, front.offset(), rounds_max, pfn.get());
            return if pushed { Step::Got(pfn) } else { Step::Again };
        }
        match (word.loaded(), word.previous()) {
            (Some(loaded), Some((previous, false))) => {
                self.replace(front, word, Word::new(previous, 0, Some((loaded, true))));
                Step::Again
            }
            _ => self.load_empty(front, word, pfn),
        }
    }

    /// Installs an empty magazine with the block in it; a full one that this pushes out goes to
    /// the shelf or to the store.
    fn load_empty(&self, front: Front, word: Word, pfn: Pfn) -> Step {
        let Front { here, zone, class, .. } = front;
        let books = self.cpu_zone(here.cpu, zone);
        self.note_activity(here.cpu, zone);
        let more = if word.magazines() < 2 { u64::from(class.magazine_frames()) } else { 0 };
        if more > 0 && !self.make_room(front, more) {
            return Step::Store;
        }
        let Some(empty) = self.acquire_magazine(here.cpu, zone, class) else {
            return self.unload(front, word);
        };
        let moving = books.flux.begin(u64::from(class.magazine_frames()));
        self.fill(empty, &[pfn.get()]);
        let new = Word::new(empty, 1, word.loaded().map(|full| (full, true)));
        let installed = self.replace(front, word, new);
        if !installed {
            self.release_magazine(here.cpu, zone, class, empty);
        } else if let Some((full, _)) = word.previous() {
            self.note_moved(front, Moved::Out(class.magazine_frames().into()));
            self.shelve(front, full);
            self.spill_if_only_freeing(front);
        }
        drop(moving);
        if installed { Step::Got(pfn) } else { Step::Again }
    }

    /// No empty magazine is to be had: spill the loaded one and go on with it.
    fn unload(&self, front: Front, word: Word) -> Step {
        let Some(loaded) = word.loaded() else { return Step::Store };
        let books = self.cpu_zone(front.here.cpu, front.zone);
        let moving = books.flux.begin(u64::from(front.class.magazine_frames()));
        // Both leave: a front has a loaded magazine or none at all.
        if self.replace(front, word, Word::EMPTY) {
            count(&books.counters.hits, word.operations());
            if let Some((previous, full)) = word.previous() {
                self.spill(front, previous, if full { front.class.rounds() } else { 0 });
            }
            self.spill(front, loaded, word.rounds());
        }
        drop(moving);
        Step::Again
    }

    /// Puts a full magazine that the caller owns on the CPU's shelf, or into the store when the
    /// CPU caches more than `high`.
    fn shelve(&self, front: Front, full: MagazineIndex) {
        let Front { here, zone, class, mobility } = front;
        let books = self.cpu_zone(here.cpu, zone);
        // The magazine is charged already: no more is needed than what there is.
        if self.above_high(here.cpu, zone) && !self.raise_high_for_free(here.cpu, zone) {
            self.spill(front, full, class.rounds());
            self.spill_more(front);
            return;
        }
        let shelf = books.shelf(class, mobility);
        if let Err(full) = shelf.push(&self.blocks, full) {
            self.spill(front, full, class.rounds());
            return;
        }
        crate::prim::dekker_fence();
        // SeqCst: pairs with the closing of the gate in `disable_caches`, which takes the shelf
        // afterwards: either that sees this magazine or this sees the gate.
        if is_disabled(self.blocks.gate(here.cpu).load(Ordering::SeqCst)) {
            self.spill_shelf(here.cpu, zone, class, mobility, u32::MAX);
        }
    }

    /// Empties a magazine that the caller owns into the store.
    pub(super) fn spill(&self, front: Front, magazine: MagazineIndex, rounds: u32) {
        let books = self.cpu_zone(front.here.cpu, front.zone);
        if rounds > 0 {
            count(&books.counters.spills, 1);
            count(&books.counters.spilled_blocks, u64::from(rounds));
            count(&books.counters.spilled_pages, u64::from(rounds * front.class.block_frames()));
        }
        let pages = self.empty_magazine(front.class, magazine, rounds);
        self.zone(front.zone).add_free(Some(books), pages);
        self.release_magazine(front.here.cpu, front.zone, front.class, magazine);
    }

    /// Returns the first `rounds` blocks of a magazine to the store; the magazine stays the
    /// caller's, who has announced them in the flux. Returns by how many pages the store grew.
    pub(super) fn empty_magazine(&self, class: Class, magazine: MagazineIndex, rounds: u32) -> i64 {
        // From the top, as pop would have: runs come out in the order they went in.
        let slots = &self.blocks.magazine(magazine).slots[..rounds as usize];
        let frames = slots.iter().rev().map(|slot| Pfn::new(slot.load(Ordering::Relaxed)));
        let doubled = self.store.put_blocks(class.order(), frames);
        self.report_doubled(doubled);
        i64::from(rounds * class.block_frames()) - i64::from(doubled)
    }

    /// Empties up to `magazines_max` magazines of a shelf into the store; returns pages moved.
    pub(super) fn spill_shelf(
        &self,
        cpu: crate::frame::CpuId,
        zone: ZoneId,
        class: Class,
        mobility: Mobility,
        magazines_max: u32,
    ) -> u64 {
        let books = self.cpu_zone(cpu, zone);
        let front = Front { here: Here::task(cpu), zone, class, mobility };
        let mut pages = 0;
        for _ in 0..magazines_max {
            let moving = books.flux.begin(u64::from(class.magazine_frames()));
            let Some(full) = books.shelf(class, mobility).pop(&self.blocks) else { break };
            self.spill(front, full, class.rounds());
            drop(moving);
            pages += u64::from(class.magazine_frames());
        }
        pages
    }

    /// Takes one front that has not been used since the last look back to the store, if it is the
    /// clock hand's turn (second chance).
    pub(super) fn empty_coldest_front(&self, except: Front) -> bool {
        let Front { here, zone, .. } = except;
        let books = self.cpu_zone(here.cpu, zone);
        let fronts: [(Class, Mobility); FRONTS] =
            array::from_fn(|i| (Class::ALL[i / Mobility::COUNT], Mobility::ALL[i % Mobility::COUNT]));
        for _ in 0..fronts.len() {
            let at = books.accounts.clock_hand.fetch_add(1, Ordering::Relaxed) as usize % fronts.len();
            let front = Front { here, zone, class: fronts[at].0, mobility: fronts[at].1 };
            if front.class == except.class && front.mobility == except.mobility {
                continue;
            }
            let Some(word) = self.read_front(front) else { return false };
            if word.magazines() == 0 {
                continue;
            }
            if books.seen[at].swap(word.0, Ordering::Relaxed) != word.0 {
                continue;
            }
            self.unload(front, word);
            return true;
        }
        false
    }
}
