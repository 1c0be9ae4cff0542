//! Magazines between a front and what else its CPU has: its shelf, and empty ones.
//!
//! [`refill`](super::refill) and [`spill`](super::spill) exchange them on the way to the store, and
//! install what they have by a sequence. [`guarded`](super::guarded) has the same for a caller that
//! holds a guard.
//!
//! A free that finds its front full makes room first and pushes its block last. Once a front has
//! the block, it no longer keeps the allocator from being taken away.

use super::caches::{Caches, CpuZone};
use super::high::MovedPages;
use super::shelf::{PoppedMagazines, Shelf};
use super::state::Front;
use crate::cpus::Cpus;
use crate::frame::{Kind, Order, Pfn, ZoneId};
use crate::front::MagazineIndex;
use crate::front::word::{Fill, Word};
use crate::sync::count_here;
use crate::sync::model::{IS_LOOM, Mutant, bound, is_mutant};
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;

/// A front of a CPU, with its word when it was read. The front is a reference, as it is to what
/// this calls: a copy is read back in larger parts than it was written in, for which processors
/// wait (decision 0004).
pub struct Exchange<'s, 'a, 'm, C> {
    pub share: &'s CpuZone<'a, 'm, C>,
    pub front: &'s Front,
    pub word: Word,
}

crate::sync::copied!(Exchange<'_, '_, '_, _>);

impl<C: Cpus> Exchange<'_, '_, '_, C> {
    /// Puts a full magazine from the shelf in the place of the front's empty one, or two in the
    /// places of two; whether `install` has done so. If not, `keep` gets them. `None`: there is
    /// none.
    #[inline(always)]
    pub fn load_from_shelf(
        self,
        install: impl FnOnce(Word) -> bool,
        keep: impl FnOnce(PoppedMagazines),
    ) -> Option<bool> {
        let Exchange { share, front, word } = self;
        let (pcp, order) = (share.pcp, front.order);
        let shelf = pcp.shelf(order, front.kind);
        let shelved = shelf.count();
        if shelved == 0 {
            return None;
        }
        let most = self.at_once(false, shelved.min(word.magazines()).max(1));
        // Announced before they leave the shelf: in between no count would include them.
        let moving = share.caches.begin(pcp, (most * order.magazine_frames()).into());
        let full = shelf.pop_chain(share.blocks(), most)?;
        let is_pair = full.count > 1;
        let previous = match is_pair {
            true => Some((full.last, Fill::Full)),
            false => word.loaded().map(|empty| (empty, Fill::Empty)),
        };
        if is_mutant(Mutant::LinksEarly) {
            self.pushed_out(is_pair);
        }
        let installed = install(Word::new(full.first, order.rounds(), previous));
        if installed {
            count_here(&pcp.counters.shelf_hits, 1);
            if pcp.listed(order, front.kind).is_some() {
                // What is left was spare so far.
                pcp.spares.note_pop(front.kind, shelf.count());
            }
            share.note_moved(front, MovedPages::In((full.count * order.magazine_frames()).into()));
            if let Some(empties) = self.pushed_out(is_pair) {
                share.release(order, empties);
            }
        } else {
            keep(full);
        }
        drop(moving);
        Some(installed)
    }

    /// Installs an empty magazine, or two in a front of two full ones. This CPU is charged with
    /// them; the first has a block or none in it. `keep` gets as many full ones, if this pushes
    /// some out. `false`: `install` has not done so, the magazines are given back, and the block is
    /// still the caller's.
    #[inline]
    pub fn load_empty(
        self,
        empties: PoppedMagazines,
        block: Option<Pfn>,
        install: impl FnOnce(Word) -> bool,
        keep: impl FnOnce(PoppedMagazines),
    ) -> bool {
        let Exchange { share, front, word } = self;
        let pages = empties.count * front.order.magazine_frames();
        let moving = share.caches.begin(share.pcp, pages.into());
        share.fill(empties.first, block.as_slice());
        let is_pair = empties.count > 1;
        let kept = match is_pair {
            true => Some((empties.last, Fill::Empty)),
            false => word.loaded().filter(|_| !front.avoided).map(|full| (full, Fill::Full)),
        };
        let installed = install(Word::new(empties.first, block.is_some().into(), kept));
        if !installed {
            share.release(front.order, empties);
        } else if front.avoided {
            share.spill_avoided(*front, word);
        } else if let Some(full) = self.pushed_out(is_pair) {
            share.note_moved(front, MovedPages::Out(pages.into()));
            keep(full);
        }
        drop(moving);
        installed
    }

    /// The magazines of the word that an install left out of the front: its previous one, if it has
    /// one; of a pair both. They are the caller's only once that install has succeeded, so they are
    /// linked no sooner.
    #[inline]
    fn pushed_out(&self, is_pair: bool) -> Option<PoppedMagazines> {
        let (last, _) = self.word.previous()?;
        let Some(first) = self.word.loaded().filter(|_| is_pair) else {
            return Some(last.into());
        };
        // Relaxed: published by the push.
        self.share.blocks().link(first).store(last.get(), Ordering::Relaxed);
        Some(PoppedMagazines { first, last, count: 2 })
    }

    /// Number of magazines to exchange with the shelf at once, of up to `most`: see
    /// [`shelf`](super::shelf).
    #[inline]
    fn at_once(&self, is_put: bool, most: u32) -> u32 {
        let listed = self.share.pcp.listed(self.front.order, self.front.kind);
        listed.map_or(bound(1, most), |listed| listed.exchange(is_put, most))
    }
}

impl<C: Cpus> Exchange<'_, '_, '_, C> {
    /// Whether so many full magazines of a front that has two may go to the shelf.
    #[inline]
    pub(super) fn may_shelve(&self, count: u32) -> bool {
        let Exchange { share, front, word } = *self;
        word.magazines() == 2
            && share.pcp.shelf(front.order, front.kind).count() + count <= Shelf::COUNT_MAX
            && share.pcp.has_room((count * front.order.magazine_frames()).into())
    }

    /// Empty magazines of this CPU's own for as many full ones that go to the shelf, charged to it.
    #[inline]
    pub(super) fn charged_empties(&self) -> Option<PoppedMagazines> {
        // Others move one at a time.
        let is_listed = self.share.pcp.listed(self.front.order, self.front.kind).is_some();
        let most = 1 + u32::from((IS_LOOM || is_listed) && self.may_shelve(2));
        let empties = self.share.empties_at_hand(self.at_once(true, most))?;
        self.share.charge((empties.count * self.front.order.magazine_frames()).into());
        Some(empties)
    }
}

impl<C: Cpus> Caches<'_, C> {
    /// A block from this CPU's front in the first zone, of which a pop has got none: from its other
    /// magazine, or the shelf. It is the part of the slow path that knows no reserves.
    pub fn pop_turned(&self, order: Order, kind: Kind) -> Option<Pfn> {
        let (order, here) = (order.cached()?, self.here()?);
        let zone = ZoneId::new(0);
        self.pop_turned_from(&Front { here, zone, order, kind, avoided: false })
    }

    /// A block from a front like [`pop_turned`](Self::pop_turned).
    #[inline]
    pub fn pop_turned_from(&self, front: &Front) -> Option<Pfn> {
        let share = self.share(front.here.cpu, front.zone);
        if IS_LOOM {
            // The slow path takes the same steps; models need not take them twice.
            return None;
        }
        let word = share.caches.read_front(front)?;
        Exchange { share: &share, front, word }.pop_turned()?
    }

    /// Puts a block into this CPU's front, which has not taken it by a push: after a fold of its
    /// word, into its other magazine, or into an empty one, for which a full one goes to the shelf.
    /// `false`: the block is still the caller's, also where misuse that was found on the way is to
    /// be reported after the free. Otherwise the push is the last access to anything of the
    /// allocator.
    ///
    /// Out of line: a push under a lock, which comes before it, saves no registers.
    #[cold]
    #[inline(never)]
    pub fn push_turned(&self, pfn: Pfn, order: Order) -> bool {
        let pushed = || {
            let (order, here) = (order.cached()?, self.here()?);
            let front = Front::of_tag(here, order, self.store.simple_tag(pfn, order)?)?;
            let share = self.share(here.cpu, front.zone);
            // A CPU that only frees may have to spill what it has.
            let word = share.caches.read_front(&front).filter(|_| !share.only_frees(&front))?;
            let exchange = Exchange { share: &share, front: &front, word };
            let is_silent = || !self.store.has_noted();
            pfn.is_aligned(order).then(|| match exchange.push_turned(pfn) {
                Some(pushed) => pushed,
                None => {
                    exchange.make_room() && is_silent() && self.push(front.offset(), order, pfn)
                }
            })
        };
        !IS_LOOM && pushed() == Some(true)
    }
}

/// Exchanges by sequences of their own.
impl<C: Cpus> Exchange<'_, '_, '_, C> {
    /// A block from a front whose word may have to be folded, or that gets its other magazine or
    /// those of the shelf. `Some(None)`: the front has changed. `None`: the slow path has more to
    /// do.
    #[inline(always)]
    pub fn pop_turned(self) -> Option<Option<Pfn>> {
        let Exchange { share, front, word } = self;
        let rounds_max = front.order.rounds();
        if share.caches.pcps.avoids() && share.pcp.hand.is_due(&share.pcp.counters.hits) {
            // It may take magazines out of the front: then the exchange fails.
            share.step_hand(front.here);
        }
        let is_turned = if word.operations_full() {
            share.exchange(front, word, word.folded())
        } else if word.rounds() > 0 {
            true
        } else if word.divisible(rounds_max).is_some() {
            return None;
        } else if let Some(exchanged) = word.with_filled_loaded(rounds_max) {
            share.exchange(front, word, exchanged)
        } else {
            let install = |new| share.replace(front, word, new);
            self.load_from_shelf(install, |full| share.shelve(*front, full))?
        };
        // No closure: it would be a function of its own.
        let popped = if is_turned { share.caches.pop(front.offset()) } else { None };
        Some(popped.map(Pfn::new))
    }

    /// Puts a block into a front that has room, after a fold of its word or an exchange of its
    /// magazines where it needs one. `Some(false)`: the front has changed. `None`: its magazines
    /// are full, or it has none.
    #[inline(always)]
    pub fn push_turned(self, pfn: Pfn) -> Option<bool> {
        let Exchange { share, front, word } = self;
        let rounds_max = front.order.rounds();
        let folded = if word.operations_full() { word.folded_by_push() } else { word };
        let ready = match word.loaded() {
            Some(_) if word.rounds() < rounds_max => folded,
            _ => folded.with_room_loaded(rounds_max)?,
        };
        let is_turned = ready == word || share.exchange(front, word, ready);
        Some(is_turned && share.caches.push(front.offset(), front.order, pfn))
    }

    /// Loads empty magazines into a front of two full ones, of which as many go to the shelf.
    /// `false`: the front has other magazines, the CPU has no place for more, or the front has
    /// changed.
    #[inline]
    fn make_room(self) -> bool {
        let Exchange { share, front, word } = self;
        if !self.may_shelve(1) {
            return false;
        }
        share.note_activity();
        let Some(empties) = self.charged_empties() else { return false };
        let install = |new| share.replace(front, word, new);
        self.load_empty(empties, None, install, |full| share.shelve(*front, full))
    }

    /// Divides the blocks of the front's full magazine between that and the loaded one, which is
    /// empty. Returns the newest; `None`: the front has changed. See
    /// [`word`](crate::front::word).
    ///
    /// Slots of magazines in a word change while they are copied. So both magazines leave the word
    /// first, and come back with what they then hold, unless the CPU has got others meanwhile.
    #[cold]
    pub fn divide(self, (empty, full): (MagazineIndex, MagazineIndex)) -> Option<Pfn> {
        let Exchange { share, front, word } = self;
        let rounds_max = front.order.rounds();
        let kept = Fill::Half.rounds(rounds_max);
        let moving = share.caches.begin(share.pcp, u64::from(front.order.magazine_frames()));
        let left = if is_mutant(Mutant::DividesInPlace) { word } else { Word::EMPTY };
        if !share.replace(front, word, left) {
            return None;
        }
        // Plus one for the block that this call returns.
        share.pcp.count_operations(word.operations() + 1);
        count_here(&share.pcp.counters.exchanges, 1);
        let (from, to) = (share.blocks().magazine(full), share.blocks().magazine(empty));
        let newer = &from.slots[kept as usize..rounds_max as usize];
        for (to, from) in to.slots.iter().zip(newer) {
            // Relaxed, both: this caller owns the magazines; the install publishes them.
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let newest = newer[newer.len() - 1].load(Ordering::Relaxed);
        let rounds = rounds_max - kept - 1;
        let divided = Word::new(empty, rounds, Some((full, Fill::Half)));
        if !share.replace(front, left, divided) {
            share.spill(*front, full, kept);
            share.spill(*front, empty, rounds);
        }
        drop(moving);
        Some(Pfn::new(newest))
    }
}
