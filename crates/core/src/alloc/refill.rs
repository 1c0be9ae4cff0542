//! Refill: magazines and single blocks from the store to a CPU. The theory is in
//! [`front`](super::front).

use super::Allocator;
use super::front::{ATTEMPTS_MAX, Front, Step};
use super::request::{Request, Want};
use crate::alloc::error::AllocError;
use crate::alloc::flags::Flags;
use crate::cpus::{Cpus, Here};
use crate::frame::Class;
use crate::frame::{Mobility, Order, Pfn, ZoneId};
use crate::front::word::Word;
use crate::front::{MagazineIndex, SLOTS};
use crate::pcp::free_high::Moved;
use crate::sync::count;
use crate::sync::prefetch_write;
use crate::zone::Reserve;

impl<C: Cpus> Allocator<'_, C> {
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.cpus.check_usable()?;
        let found = match self.alloc_within(order, flags, Reserve::AboveLow) {
            Some(pfn) => Ok(pfn),
            None => {
                let node = self.node_here();
                self.alloc_under_pressure(Request { want: Want::Block(order), flags, node })
            }
        };
        let pfn = self.end_call_of(found, order)?;
        self.on_alloc(pfn, order, flags);
        Ok(pfn)
    }

    /// Tries the zones in turn, each down to the watermark that `reserve` names.
    pub(super) fn alloc_within(&self, order: Order, flags: Flags, reserve: Reserve) -> Option<Pfn> {
        let here = self.here();
        let node = here.map_or(crate::frame::NodeId::new(0), |here| self.shared(here.cpu).node);
        self.zones_for(node, flags)
            .find_map(|zone| self.alloc_in_zone(here, zone, order, flags, reserve))
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
                // After a drain another CPU has these lines; they come side by side.
                let pcp = self.pcp(front.here.cpu, front.zone);
                prefetch_write(&pcp.in_flight);
                pcp.listed(front.class, front.mobility).into_iter().for_each(prefetch_write);
                self.store.prefetch(self.wanted(front.here, front.zone, front.mobility));
                self.load_from_shelf(front, word)
                    .unwrap_or_else(|| self.refill(front, word, reserve))
            }
        }
    }

    /// Installs a full magazine from the shelf; `None`: there is none.
    fn load_from_shelf(&self, front: Front, word: Word) -> Option<Step> {
        let pcp = self.pcp(front.here.cpu, front.zone);
        let shelf = pcp.shelf(front.class, front.mobility);
        if shelf.count() == 0 {
            return None;
        }
        // Announced before it leaves the shelf: in between it would be in nobody's metadata.
        let moving = pcp.in_flight.begin(u64::from(front.class.magazine_frames()));
        let full = shelf.pop(&self.blocks)?;
        let new = Word::new(full, front.class.rounds(), word.loaded().map(|empty| (empty, false)));
        if self.replace(front, word, new) {
            count(&pcp.counters.shelf_hits, 1);
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
        let pcp = self.pcp(here.cpu, zone);
        self.note_activity(here.cpu, zone);
        let more = if word.magazines() < 2 { u64::from(class.magazine_frames()) } else { 0 };
        if !self.make_room(front, more) {
            return Step::Store;
        }
        let Some(blocks_wanted) = self.refill_size(zone, class, reserve) else {
            return Step::Nothing;
        };
        let Some(empty) = self.acquire_magazine(here.cpu, zone, class) else { return Step::Store };

        let pages = u64::from(blocks_wanted * class.block_frames());
        let moving = pcp.in_flight.begin(pages);
        let mut frames = [0u32; SLOTS + 1];
        let mut got = 0;
        self.store.take_blocks(
            self.wanted(here, zone, mobility),
            class.order(),
            blocks_wanted,
            |pfn| {
                frames[got] = pfn.get();
                got += 1;
            },
        );
        let Some(rest) = got.checked_sub(1) else {
            self.release_magazine(here.cpu, zone, class, empty);
            return Step::Nothing;
        };
        self.fill(empty, &frames[..rest]);
        let taken_pages = got as u64 * u64::from(class.block_frames());
        pcp.add_free(self.zone(zone), -(taken_pages as i64));
        count(&pcp.counters.refilled_blocks, got as u64);
        count(&pcp.counters.refilled_pages, taken_pages);
        self.raise_high_for_refill(here.cpu, zone, taken_pages);
        if rest > 0 {
            count(&pcp.counters.refills, 1);
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

    /// One look where this CPU last found blocks, for orders that are not cached; `None`: the slow
    /// path must search.
    #[inline]
    pub(super) fn alloc_at_once(
        &self,
        order: Order,
        flags: Flags,
    ) -> Result<Option<Pfn>, AllocError> {
        self.cpus.check_usable()?;
        let Some(here) = self.here() else { return Ok(None) };
        let zone = self.first_zone(here, flags);
        let zone =
            zone.filter(|&zone| self.zone_may_give(zone, order.frames().into(), Reserve::AboveLow));
        let Some(zone) = zone else { return Ok(None) };
        let found = self.store.take_at_once(self.wanted(here, zone, flags.mobility()), order);
        if found.is_some() {
            self.note_taken(Some(here), zone, order);
        }
        Ok(found)
    }

    /// Allocates from the store, past the caches.
    fn alloc_direct(
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

    /// As [`alloc_direct`](Self::alloc_direct), whatever the watermarks say. If it finds nothing,
    /// it ends one move in the in_flight of this CPU.
    pub(super) fn take_direct(
        &self,
        here: Option<Here>,
        zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<Pfn> {
        let pages = u64::from(order.frames());
        let pfn = self.wanted_from(here, zone, mobility, |wanted| {
            self.store.take_at_once(wanted, order).or_else(|| {
                // A claim of several words holds some of them before it has all, a change of
                // mobility a whole pageblock; and a hint is cleared a moment before
                // it is known to be right.
                let _moving = self.in_flight(here, zone).begin(pages);
                self.store.take_block(wanted, order)
            })
        })?;
        self.note_taken(here, zone, order);
        Some(pfn)
    }

    /// Counts a block that went from the store to a caller.
    #[inline]
    fn note_taken(&self, here: Option<Here>, zone: ZoneId, order: Order) {
        let pcp = self.pcp_here(here, zone);
        self.add_free(pcp, zone, -i64::from(order.frames()));
        self.counters(pcp, zone).blocks_out.count_out(order);
    }
}
