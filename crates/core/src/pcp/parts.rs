//! Taking fronts, and what came from them: linked, handed over, returned to the store.

use super::part::{Part, Parts};
use super::share::CpuZone;
use super::shelf::Chain;
use crate::cpus::Cpus;
use crate::front::MagazineIndex;
use crate::front::word::Word;
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;
use crate::sync::{count, prefetch_write};

impl<C: Cpus> CpuZone<'_, '_, C> {
    /// Empties all front words of a CPU in a zone, and calls `with` with each magazine of these
    /// fronts, which the caller owns from then on. Only the holder of the closed gate may call
    /// this, after the fence.
    pub fn take_fronts(&self, mut with: impl FnMut(Part)) {
        self.caches.pcps.used_fronts(self.cpu, self.zone_id).for_each(|(front, cell, word)| {
            count(&self.pcp.counters.hits, word.operations());
            // Relaxed: published by the Release that reopens the gate.
            cell.store(Word::EMPTY.0, Ordering::Relaxed);
            if let Some(loaded) = word.loaded() {
                with(Part::new(loaded, front.class, word.rounds()));
            }
            if let Some((previous, fill)) = word.previous() {
                with(Part::new(previous, front.class, fill.rounds(front.class.rounds())));
            }
        });
    }

    /// Takes all fronts, linked.
    pub fn take_parts(&self) -> Option<Part> {
        let mut parts = None;
        self.take_fronts(|part| {
            self.link(part, parts);
            parts = Some(part);
        });
        parts
    }

    /// Takes all fronts for the next drain: empty magazines stay with the CPU, the others go to
    /// `handed` by one operation and are charged to no CPU any more. Returns the pages. O(fronts),
    /// at most 2 magazines each.
    pub fn hand_fronts(&self) -> u64 {
        let pages = self.caches.pcps.front_pages(self.cpu, self.zone_id);
        // What finds nothing moves nothing.
        let moving = (pages > 0).then(|| self.caches.begin(self.pcp, pages));
        let (mut chain, mut charged) = (None, 0);
        self.take_fronts(|part| {
            let (magazine, class, rounds) = part.unpack();
            if rounds == 0 {
                return self.release_magazine(class, magazine);
            }
            charged += i64::from(class.magazine_frames());
            let (first, last) = chain.unwrap_or((part, part));
            if chain.is_some() {
                self.link(part, Some(first));
            }
            chain = Some((part, last));
        });
        if let Some((first, last)) = chain {
            let pushed = self.pcp.handed.push_chain(&Parts(self.blocks()), first, last, 0);
            debug_assert!(pushed.is_ok(), "what is not counted has no limit");
            // Not before it is there: a CPU that is charged with nothing is not waited for.
            self.charge(-charged);
        }
        drop(moving);
        pages
    }

    fn link(&self, part: Part, rest: Option<Part>) {
        // Relaxed: the magazine is this caller's alone.
        Parts(self.blocks()).link(part).store(rest.map_or(0, Parts::number), Ordering::Relaxed);
    }

    /// Returns what `take_parts` took to the store; the number of pages.
    pub fn return_parts(&self, mut parts: Option<Part>) -> u64 {
        let mut pages = 0;
        while let Some(part) = parts {
            parts = Parts(self.blocks()).next(part);
            let (magazine, class, _) = part.unpack();
            let grown = self.empty_part(part);
            self.add_free(grown);
            self.release_magazine(class, magazine);
            pages += part.pages();
        }
        pages
    }

    /// Returns what was handed over to the store; the number of pages.
    pub fn drain_handed(&self) -> u64 {
        let (pcp, parts) = (self.pcp, Parts(self.blocks()));
        let Some(first) = pcp.handed.peek(&parts) else { return 0 };
        // Announced before it is taken. How much follows is not known yet: readers of the word ask
        // whether there is anything.
        let moving = self.caches.begin(self.pcp, first.pages());
        let Some(chain) = pcp.handed.take_all(&parts) else { return 0 };
        let (mut pages, mut grown, mut magazines) = (0, 0, 0);
        let (mut at, mut last) = (Some(chain.first), chain.first.unpack().0);
        while let Some(part) = at {
            at = parts.next(part);
            let next = at.map(|next| next.unpack().0);
            if let Some(next) = next {
                prefetch_write(self.blocks().magazine(next));
            }
            grown += self.empty_part(part);
            pages += part.pages();
            magazines += 1;
            last = part.unpack().0;
            // From here on a link of empty magazines. Relaxed: published by the push below.
            let number = next.map_or(0, MagazineIndex::get);
            self.blocks().link(last).store(number, Ordering::Relaxed);
        }
        self.add_free(grown);
        self.push_returned(Chain { first: chain.first.unpack().0, count: magazines }, last);
        drop(moving);
        pages
    }

    /// Empties a magazine that the caller owns into the store, for a drain. Returns by how many
    /// pages the store grew.
    fn empty_part(&self, part: Part) -> i64 {
        let (magazine, class, rounds) = part.unpack();
        self.count_drained(class, rounds);
        self.empty_magazine(class, magazine, rounds)
    }
}
