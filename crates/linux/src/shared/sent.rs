//! Pages that go from one process to another by number.
//!
//! The number is a message that the program carries by whatever it has: a pipe, a ring in another
//! page. A page that was sent is its sender's until a process claims it: the sender can claim it
//! itself, after the receiver did not come. A sender that ends, whatever way, leaves such pages to
//! be claimed, until someone recovers them with [`Orphans::GoBack`](super::Orphans).
//!
//! # Argument
//! Both moves change bytes of the table from one owner to another (`owners.rs`). Of two claims one
//! gets the page. A token that is drawn anew for each page that is sent lies beside the table: a
//! message that arrives when its page has gone back, and was sent again, has another. It is
//! compared once more after the claim, for the page may have been sent again in between. A claimer
//! that finds another then gives the page back as it was; if it dies in that moment, the page is
//! free, and the message that it belonged to is refused.

use std::fmt;

use pagedepot::{Order, Pfn};

use super::depot::SharedDepot;
use super::owners::Owner;
use super::slots::{CEILING, HELD, SENT, SLOTS};
use crate::pages::page::Page;
use crate::system::prim::Ordering;

/// A page on its way to another process, as a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a page that is not claimed stays taken"]
pub struct SentPage {
    pfn: u32,
    token: u32,
    slot: u8,
    order: u8,
}

impl SentPage {
    /// The message as a number.
    pub const fn to_bits(self) -> u128 {
        self.pfn as u128
            | (self.token as u128) << 32
            | (self.slot as u128) << 64
            | (self.order as u128) << 72
    }

    /// The message that [`to_bits`](Self::to_bits) has given. Any number may be tried: a claim
    /// refuses those that are no messages.
    pub const fn from_bits(bits: u128) -> Self {
        SentPage {
            pfn: bits as u32,
            token: (bits >> 32) as u32,
            slot: (bits >> 64) as u8,
            order: (bits >> 72) as u8,
        }
    }
}

/// The reason why a page could not be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another process has claimed it, or it went back.
    Gone,
    /// The message names no page of the segment.
    NoPage,
    /// This process may not have so many pages more: see
    /// [`SharedOptions::ceiling`](super::SharedOptions::ceiling).
    Ceiling,
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimError::Gone => "the page was claimed by another process, or went back",
            ClaimError::NoPage => "the message names no page of this segment",
            ClaimError::Ceiling => "the process has as many pages as it may: free some",
        })
    }
}

impl std::error::Error for ClaimError {}

impl Page {
    /// Sends the page to the process that claims it, with its contents. Returns the page as it was
    /// if it is another depot's.
    ///
    /// # Errors
    /// Returns a page of another depot.
    pub fn into_shared(self, depot: &SharedDepot) -> Result<SentPage, Page> {
        if !self.is_of(depot) {
            return Err(self);
        }
        let (pfn, order) = self.into_raw();
        let (store, first) = (depot.store(), pfn.get());
        let token = store.draw_token();
        // Release: pairs with the Acquire of `claim`. The change of the owner does so, too.
        store.segment().tokens()[first as usize].store(token, Ordering::Release);
        let frames = first..first + order.frames();
        let pages = i64::from(order.frames());
        store.count(SENT, pages);
        store.segment().owners().change(frames, store.owner(), Owner::sent(store.slot()));
        store.count(HELD, -pages);
        let slot = store.slot() as u8;
        Ok(SentPage { pfn: first, token, slot, order: order.get() as u8 })
    }
}

impl SharedDepot {
    /// Claims a page that a process has sent. The sender may do so, too.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&self, page: SentPage) -> Result<Page, ClaimError> {
        let (store, sender) = (self.store(), usize::from(page.slot));
        let order = Order::new(page.order.into()).filter(|_| sender < SLOTS);
        let order = order.ok_or(ClaimError::NoPage)?;
        let (pfn, frames) = (Pfn::new(page.pfn), order.frames());
        let token = store.segment().tokens().get(pfn.index()).ok_or(ClaimError::NoPage)?;
        let end = page.pfn.checked_add(frames).ok_or(ClaimError::NoPage)?;
        if !pfn.is_aligned(order) || end > store.segment().layout().frames {
            return Err(ClaimError::NoPage);
        }
        if store.room() < frames.into() {
            return Err(ClaimError::Ceiling);
        }
        let (sent, mine) = (Owner::sent(sender), store.owner());
        let owners = store.segment().owners();
        // Acquire, both: pairs with the Release of `into_shared`.
        if token.load(Ordering::Acquire) != page.token || !owners.change(page.pfn..end, sent, mine)
        {
            return Err(ClaimError::Gone);
        }
        if token.load(Ordering::Acquire) != page.token {
            owners.change(page.pfn..end, mine, sent);
            return Err(ClaimError::Gone);
        }
        store.count(HELD, frames.into());
        store.segment().slots().add(sender, SENT, -i64::from(frames));
        // SAFETY: the frames are this process's since the change, and no other value has them: the
        // page that they were was given up by `into_shared`.
        Ok(unsafe { Page::from_raw(self, pfn, order) })
    }

    /// Sets the most bytes that this process may have; 0: no limit.
    pub fn set_ceiling(&self, bytes: usize) {
        let (segment, slot) = (self.store().segment(), self.slot());
        let pages = (bytes >> segment.layout().page_size.shift()) as u64;
        // Relaxed: a limit.
        segment.slots().word(slot, CEILING).store(pages, Ordering::Relaxed);
    }
}
