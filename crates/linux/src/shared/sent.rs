//! Pages that go from one process to another by number.
//!
//! The number is a message that the program carries by whatever it has: a pipe, a ring in another
//! page. A page that was sent is its sender's until a process claims it: the sender can claim it
//! itself, after the receiver did not come. A sender that ends, whatever way, leaves such pages to
//! be claimed, until someone recovers them with [`Orphans::GoBack`](super::Orphans).
//!
//! `messages.rs` has the argument: one claim of a message gets the page, also when processes die.

use std::fmt;

use pagedepot::{Order, Pfn};

use super::depot::SharedDepot;
use super::messages::Token;
use super::owners::groups_of;
use super::slots::{CEILING, CLAIMED, SLOTS};
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
    /// The calling process is a forked child, which is no member of the segment.
    Forked,
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
            ClaimError::Forked => "a forked child is no member of the segment: open it there",
            ClaimError::NoPage => "the message names no page of this segment",
            ClaimError::Ceiling => "the process has as many pages as it may: free some",
        })
    }
}

impl std::error::Error for ClaimError {}

impl Page {
    /// Sends the page to the process that claims it, with its contents.
    ///
    /// # Errors
    /// Returns the page as it was if it is another depot's, and in a forked child, which is no
    /// member of the segment.
    pub fn into_shared(self, depot: &SharedDepot) -> Result<SentPage, Page> {
        if !self.is_of(depot) || depot.is_forked() {
            return Err(self);
        }
        let (pfn, order) = self.into_raw();
        let (store, first) = (depot.store(), pfn.get());
        store.segment().messages().prefetch(first);
        // First: a count that is too high for a moment hides free pages, one too low invents them.
        store.count_sent(order.frames());
        let token = store.segment().messages().send(first, order.get(), store.slot());
        let (slot, order) = (store.slot() as u8, order.get() as u8);
        Ok(SentPage { pfn: first, token: token.number(), slot, order })
    }
}

impl SharedDepot {
    /// Claims a page that a process has sent. The sender may do so, too.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&self, page: SentPage) -> Result<Page, ClaimError> {
        let (store, sender) = (self.store(), usize::from(page.slot));
        store.segment().messages().prefetch(page.pfn);
        let order = Order::new(page.order.into()).filter(|_| sender < SLOTS);
        let order = order.ok_or(ClaimError::NoPage)?;
        if self.is_forked() {
            return Err(ClaimError::Forked);
        }
        let (pfn, frames) = (Pfn::new(page.pfn), order.frames());
        let end = page.pfn.checked_add(frames).ok_or(ClaimError::NoPage)?;
        if !pfn.is_aligned(order) || end > store.segment().layout().frames {
            return Err(ClaimError::NoPage);
        }
        let room = store.reserve(frames, 0);
        if room.blocks < frames {
            return Err(ClaimError::Ceiling);
        }
        let (messages, slots) = (store.segment().messages(), store.segment().slots());
        let message = Token::new(page.token, order.get(), sender);
        if !messages.win(page.pfn, message, store.slot()) {
            return Err(ClaimError::Gone);
        }
        // Before the page is taken: until then the sender's slot is not used again.
        slots.add(sender, CLAIMED, frames.into());
        store.count_taken(frames.into());
        let taken = messages.take(page.pfn, order.get(), sender, store.slot());
        if taken != frames {
            // The table is damaged.
            let all = groups_of(page.pfn..end);
            store.segment().owners().put_all(store.owner(), all, |_, _| ());
            store.count_taken(-i64::from(frames));
            return Err(ClaimError::Gone);
        }
        // SAFETY: the frames are this process's now, and no other value has them: the page that
        // they were was given up by `into_shared`.
        Ok(unsafe { Page::from_raw(self, pfn, order) })
    }

    /// Whether this process is a forked child of the one that joined.
    pub(super) fn is_forked(&self) -> bool {
        self.shared().movables().fork_mark().check().is_err()
    }

    /// Sets the most bytes that this process may have; 0: no limit.
    pub fn set_ceiling(&self, bytes: usize) {
        let (segment, slot) = (self.store().segment(), self.slot());
        let pages = (bytes >> segment.layout().page_size.shift()) as u64;
        // Relaxed: a limit.
        segment.slots().word(slot, CEILING).store(pages, Ordering::Relaxed);
    }
}
