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
use super::shelf::Shelf;
use super::state::Front;
use crate::cpus::Cpus;
use crate::frame::{Kind, Order, Pfn, ZoneId};
use crate::front::MagazineIndex;
use crate::front::word::{Fill, Word};
use crate::sync::count;
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::Ordering;

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
    /// Puts a full magazine from the shelf in the place of the front's empty one; whether `install`
    /// has done so. If not, `keep` gets it. `None`: there is none.
    #[inline]
    pub fn load_from_shelf(
        self,
        install: impl FnOnce(Word) -> bool,
        keep: impl FnOnce(MagazineIndex),
    ) -> Option<bool> {
        let Exchange { share, front, word } = self;
        let pcp = share.pcp;
        let shelf = pcp.shelf(front.order, front.kind);
        if shelf.count() == 0 {
            return None;
        }
        // Announced before it leaves the shelf: in between no count would include it.
        let moving = share.caches.begin(share.pcp, u64::from(front.order.magazine_frames()));
        let full = shelf.pop(share.blocks())?;
        let new =
            Word::new(full, front.order.rounds(), word.loaded().map(|empty| (empty, Fill::Empty)));
        let installed = install(new);
        if installed {
            count(&pcp.counters.shelf_hits, 1);
            pcp.note_shelf_pop(front.order, front.kind);
            share.note_moved(front, MovedPages::In(front.order.magazine_frames().into()));
            if let Some((empty, _)) = word.previous() {
                share.release_magazine(front.order, empty);
            }
        } else {
            keep(full);
        }
        drop(moving);
        Some(installed)
    }

    /// Installs an empty magazine, which this CPU is charged with, with a block or none in it;
    /// `keep` gets a full one that this pushes out. `false`: `install` has not done so, the
    /// magazine is given back, and the block is still the caller's.
    #[inline]
    pub fn load_empty(
        self,
        empty: MagazineIndex,
        block: Option<Pfn>,
        install: impl FnOnce(Word) -> bool,
        keep: impl FnOnce(MagazineIndex),
    ) -> bool {
        let Exchange { share, front, word } = self;
        let order = front.order;
        let moving = share.caches.begin(share.pcp, u64::from(order.magazine_frames()));
        share.fill(empty, block.as_slice());
        let kept = word.loaded().filter(|_| !front.avoided).map(|full| (full, Fill::Full));
        let installed = install(Word::new(empty, block.is_some().into(), kept));
        if !installed {
            share.release_magazine(order, empty);
        } else if front.avoided {
            share.spill_avoided(*front, word);
        } else if let Some((full, _)) = word.previous() {
            share.note_moved(front, MovedPages::Out(order.magazine_frames().into()));
            keep(full);
        }
        drop(moving);
        installed
    }
}

impl<C: Cpus> Exchange<'_, '_, '_, C> {
    /// Whether a full magazine of a front that has two may go to the shelf.
    #[inline]
    pub(super) fn may_shelve(&self) -> bool {
        let Exchange { share, front, word } = *self;
        word.magazines() == 2
            && share.pcp.shelf(front.order, front.kind).count() < Shelf::COUNT_MAX
            && share.pcp.has_room(front.order.magazine_frames().into())
    }

    /// An empty magazine of this CPU's own, charged to it.
    #[inline]
    pub(super) fn charged_empty(&self) -> Option<MagazineIndex> {
        let empty = self.share.empty_at_hand()?;
        self.share.charge(self.front.order.magazine_frames().into());
        Some(empty)
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
        if IS_LOOM {
            // The slow path takes the same steps; models need not take them twice.
            return None;
        }
        let share = self.share(front.here.cpu, front.zone);
        let word = share.read_front(front)?;
        Exchange { share: &share, front, word }.pop_turned()
    }

    /// Puts a block into this CPU's front, which has not taken it by a push: after a fold of its
    /// word, into its other magazine, or into an empty one, for which a full one goes to the shelf.
    /// `false`: the block is still the caller's. Otherwise the push is the last access to anything
    /// of the allocator.
    ///
    /// Out of line: a push under a lock, which comes before it, saves no registers.
    #[cold]
    #[inline(never)]
    pub fn push_turned(&self, pfn: Pfn, order: Order) -> bool {
        if IS_LOOM {
            return false;
        }
        let pushed = || {
            let (order, here) = (order.cached()?, self.here()?);
            let tag = self.store.simple_tag(pfn).filter(|tag| tag.has_fronts())?;
            let share = self.share(here.cpu, tag.zone());
            let (kind, avoided) = tag.row();
            let front = Front { avoided, ..share.front(here, order, kind) };
            // A CPU that only frees may have to spill what it has.
            let word = share.read_front(&front).filter(|_| !share.only_frees(&front))?;
            let exchange = Exchange { share: &share, front: &front, word };
            pfn.is_aligned(order).then(|| match exchange.push_turned(pfn) {
                Some(pushed) => pushed,
                None => exchange.make_room() && self.push(front.offset(), order, pfn),
            })
        };
        pushed() == Some(true)
    }
}

/// Exchanges by sequences of their own.
impl<C: Cpus> Exchange<'_, '_, '_, C> {
    /// A block from a front whose word only has to be folded, or that gets its other magazine or
    /// one of the shelf. `None`: the slow path has more to do.
    #[inline]
    pub fn pop_turned(self) -> Option<Pfn> {
        let Exchange { share, front, word } = self;
        let rounds_max = front.order.rounds();
        if share.caches.pcps.avoids() && share.pcp.hand.is_due() {
            // It may take magazines out of the front: then the exchange fails.
            share.step_hand(front.here);
        }
        let is_turned = if word.operations_full() {
            share.exchange(front, word, word.folded())
        } else if word.rounds() > 0 || word.divisible(rounds_max).is_some() {
            return None;
        } else if let Some(exchanged) = word.with_filled_loaded(rounds_max) {
            share.exchange(front, word, exchanged)
        } else {
            self.load_shelved()?
        };
        let pop = || share.caches.pop(front.offset());
        is_turned.then(pop)?.map(Pfn::new)
    }

    /// Puts a block into a front that has room, after a fold of its word or an exchange of its
    /// magazines where it needs one. `Some(false)`: the front has changed. `None`: its magazines
    /// are full, or it has none.
    #[inline]
    pub fn push_turned(self, pfn: Pfn) -> Option<bool> {
        let Exchange { share, front, word } = self;
        let rounds_max = front.order.rounds();
        let folded = if word.operations_full() { word.folded() } else { word };
        let ready = match word.loaded() {
            Some(_) if word.rounds() < rounds_max => folded,
            _ => folded.with_room_loaded(rounds_max)?,
        };
        let is_turned = ready == word || share.exchange(front, word, ready);
        Some(is_turned && share.caches.push(front.offset(), front.order, pfn))
    }

    /// Loads an empty magazine into a front of two full ones, of which one goes to the shelf.
    /// `false`: the front has other magazines, the CPU has no place for more, or the front has
    /// changed.
    #[cold]
    #[inline(never)]
    fn make_room(self) -> bool {
        let Exchange { share, front, word } = self;
        if !self.may_shelve() {
            return false;
        }
        share.note_activity();
        let Some(empty) = self.charged_empty() else { return false };
        let install = |new| share.replace(front, word, new);
        self.load_empty(empty, None, install, |full| share.shelve(*front, full))
    }

    /// Loads a full magazine like [`load_from_shelf`](Self::load_from_shelf); one that was not
    /// installed goes back to the shelf.
    pub fn load_shelved(self) -> Option<bool> {
        let Exchange { share, front, word } = self;
        let install = |new| share.replace(front, word, new);
        self.load_from_shelf(install, |full| share.shelve(*front, full))
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
        count(&share.pcp.counters.exchanges, 1);
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
