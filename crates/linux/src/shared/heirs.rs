//! Pages of a dead process that go to an heir.
//!
//! # Argument
//! A burial gives the frames of a process that had named an heir to its estate: a byte of the table
//! that no process's own steps write (`owners.rs`). Its slot stays closed while there is such a
//! byte, so the byte names this process and its heir. An heir takes each frame by one
//! compare-and-swap from the estate's byte to its own: of several heirs one gets it, and what an
//! heir that dies has taken is found by its own burial. Explored by `tests/loom/owners.rs`.
//!
//! An iterator may be older than the process whose byte it meets: others may have taken the estate
//! that it was made for, and the slot has been joined again since. So the heir holds the slot, as a
//! burier does, while it compares the name and takes the frame.

use std::num::NonZeroU64;

use pagedepot::{Order, Pfn};

use super::depot::SharedDepot;
use super::members::{self, Orphans};
use super::owners::{Owner, OwnerSet};
use super::slots::{HEIR, SLOTS, Stage};
use crate::pages::page::Page;
use crate::system::prim::Ordering;

impl SharedDepot {
    /// Names the heir of this process: a number that the application chooses. When the process dies
    /// without leaving, its pages, cached ones included, keep their contents, and stay until a
    /// process [inherits](Self::inherit) them by that name, or opens the segment with
    /// [`Orphans::AllGoBack`]. `None`: they are free when the process dies.
    ///
    /// Pages that the process has sent go to those that claim them, as always.
    ///
    /// A forked child changes nothing.
    pub fn set_heir(&self, heir: Option<NonZeroU64>) {
        if self.is_forked() {
            return;
        }
        let name = heir.map_or(0, NonZeroU64::get);
        // Relaxed: a burial that reads the name before has come before.
        self.store().segment().slots().word(self.slot(), HEIR).store(name, Ordering::Relaxed);
    }

    /// Takes the pages of dead processes that have named this heir, one after the other, in the
    /// order of their numbers. Each is a page of order 0. Pages that the iterator does not come to
    /// stay for another call, or another heir.
    ///
    /// ```
    /// use std::num::NonZeroU64;
    /// use pagedepot_linux::shared::{SharedDepot, SharedOptions};
    ///
    /// let depot = SharedDepot::create_memfd("pool", &SharedOptions::new(1 << 20))?;
    /// let pages: Vec<_> = depot.inherit(NonZeroU64::new(7).unwrap()).collect();
    /// assert!(pages.is_empty(), "no process has died");
    /// # Ok::<(), pagedepot_linux::shared::SegmentError>(())
    /// ```
    pub fn inherit(&self, heir: NonZeroU64) -> Inheritance<'_> {
        self.recover(Orphans::Stay);
        let slots = self.store().segment().slots();
        let is_left = |&slot: &usize| {
            let is_over = matches!(slots.look(slot).stage(), Some(Stage::Orphaned | Stage::Dead));
            is_over && slots.count(slot, HEIR) == heir.get()
        };
        let estates = OwnerSet::new((0..SLOTS).filter(is_left).map(Owner::estate));
        Inheritance { depot: self, heir, estates, next: 0 }
    }
}

/// The pages of dead processes that have named an heir: see [`SharedDepot::inherit`].
#[must_use = "pages are taken as the iterator comes to them"]
pub struct Inheritance<'d> {
    depot: &'d SharedDepot,
    heir: NonZeroU64,
    estates: OwnerSet,
    next: u32,
}

impl Inheritance<'_> {
    /// Takes a frame of an estate, if that is the heir's.
    fn take_frame(&self, frame: u32, owner: Owner) -> bool {
        let store = self.depot.store();
        let (slots, burier) = (store.segment().slots(), store.slot());
        // One thread of a process holds a slot, or buries.
        let Some(_alone) = store.bury_alone() else { return false };
        let Some(slot) = owner.slot_of_estate() else { return false };
        let owners = store.segment().owners();
        slots.while_left_to(self.heir.get(), slot, burier, || {
            owners.change(frame..frame + 1, owner, store.owner())
        })
    }
}

impl Iterator for Inheritance<'_> {
    type Item = Page;

    /// The next page. `None` also comes when this process may not have more
    /// ([`SharedOptions::ceiling`](super::SharedOptions::ceiling)), and in a forked child.
    fn next(&mut self) -> Option<Page> {
        let store = self.depot.store();
        let owners = store.segment().owners();
        while self.next < store.segment().layout().frames {
            let room = self.depot.room_for(1);
            if room.blocks == 0 || self.depot.is_forked() {
                return None;
            }
            let frame = self.next;
            self.next += 1;
            let Some(owner) = owners.owner(frame).filter(|&owner| self.estates.contains(owner))
            else {
                continue;
            };
            if self.take_frame(frame, owner) {
                store.count_taken(1);
                // SAFETY: the frame is this process's since the change, and no other value has it:
                // its owner is dead.
                let page = unsafe { Page::from_raw(self.depot, Pfn::new(frame), Order::BASE) };
                return Some(page);
            }
        }
        None
    }
}

impl Drop for Inheritance<'_> {
    /// Opens the slots whose estates are empty. The pages that were taken are counted now: by slot
    /// they could be counted for a process that has joined it since.
    fn drop(&mut self) {
        if self.next > 0 && !self.depot.is_forked() {
            members::recount(self.depot.store().segment());
            self.depot.store().recover(Orphans::Stay);
        }
    }
}
