//! Pages that go from one process to another by number.
//!
//! The number is a message that the program carries by whatever it has: a pipe, a ring in another
//! page. A page that was sent is its sender's until a process claims it: the sender can claim it
//! itself, after the receiver did not come. A sender that ends, whatever way, leaves such pages to
//! be claimed, until someone recovers them with [`Orphans::GoBack`](super::Orphans).
//!
//! `messages.rs` has the argument: one claim of a message gets the page, also when processes die.

use std::fmt;

use pagedepot::{Mode, Order, Pfn, Scope};

use super::depot::SharedDepot;
use super::messages::Token;
use super::slots::{CLAIMED, SLOTS};
use super::store::Reservation;
use crate::pages::batch::CHUNK;
use crate::pages::page::Page;

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
        depot.shared().sites().clear(pfn);
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
    /// Sends pages like [`Page::into_shared`], 64 at a time, and appends their messages to `sent`:
    /// counts change once for all, and pages one after another that lie in the same eight frames
    /// change their owner together. The messages are in the order of the pages. Returns the pages
    /// that it did not send: those of another depot, and in a forked child all of them.
    ///
    /// ```
    /// use pagedepot_linux::shared::{SharedDepot, SharedOptions};
    /// use pagedepot_linux::{Order, Page};
    ///
    /// let depot = SharedDepot::create_memfd("batches", &SharedOptions::new(1 << 20))?;
    /// let pages: Vec<Page> = depot.alloc_pages(Order::BASE, 64)?.collect();
    /// let mut sent = Vec::new();
    /// assert!(depot.send_pages(pages, &mut sent).is_empty());
    ///
    /// // Here, or in another process of the segment.
    /// let mut pages = Vec::new();
    /// depot.claim_pages(&sent, &mut pages, |_, error| eprintln!("{error}"));
    /// assert_eq!(pages.len(), 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "pages that were not sent are freed"]
    pub fn send_pages(
        &self,
        pages: impl IntoIterator<Item = Page>,
        sent: &mut Vec<SentPage>,
    ) -> Vec<Page> {
        if self.is_forked() {
            return pages.into_iter().collect();
        }
        let mut unsent = Vec::new();
        let mut outbox = Outbox { depot: self, pages: [(0, 0); CHUNK], length: 0, sent };
        for page in pages {
            if page.is_of(self) {
                outbox.add(page);
            } else {
                unsent.push(page);
            }
        }
        unsent
    }

    /// Claims pages like [`claim`](Self::claim), 64 at a time, and appends those that it gets to
    /// `pages`, in their order. Passes the place in `sent` of each message that it gets no page for
    /// to `refused`. Counts and owners change as in [`send_pages`](Self::send_pages).
    pub fn claim_pages(
        &self,
        sent: &[SentPage],
        pages: &mut Vec<Page>,
        mut refused: impl FnMut(usize, ClaimError),
    ) {
        for (nth, chunk) in sent.chunks(CHUNK).enumerate() {
            // Refused last: it may panic, and nothing is in between then.
            let mut refusals = [None; CHUNK];
            self.claim_chunk(chunk, pages, &mut refusals);
            for (place, error) in refusals.into_iter().enumerate() {
                error.into_iter().for_each(|error| refused(nth * CHUNK + place, error));
            }
        }
    }

    /// Claims a page that a process has sent. The sender may do so, too. Where the ceiling of this
    /// process leaves no room, that drains what it caches first.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&self, page: SentPage) -> Result<Page, ClaimError> {
        let (store, sender) = (self.store(), usize::from(page.slot));
        store.segment().messages().prefetch(page.pfn);
        let message = self.message(page)?;
        let frames = 1 << message.order();
        let room = self.room_for(frames);
        if room.blocks < frames {
            return Err(ClaimError::Ceiling);
        }
        let messages = store.segment().messages();
        if !messages.win(page.pfn, message, store.slot()) {
            return Err(ClaimError::Gone);
        }
        // The own count first, as in `into_shared`. Both before the page is taken: until then the
        // sender's slot is not used again.
        store.count_taken(frames.into());
        store.segment().slots().add(sender, CLAIMED, frames.into());
        let taken = messages.take(page.pfn, message.order(), sender, store.slot());
        self.claimed(page.pfn, message, taken)
    }

    /// Room for so many pages below the ceiling of this process, or for as many as there is. Where
    /// it is short, this process gives up what it caches, and waits for what a trim has taken.
    #[inline]
    pub(super) fn room_for(&self, pages: u32) -> Reservation<'_> {
        let room = self.store().reserve(pages, 0);
        if room.blocks == pages {
            return room;
        }
        drop(room);
        self.make_room_for(pages)
    }

    #[cold]
    fn make_room_for(&self, pages: u32) -> Reservation<'_> {
        self.shared().trimming().wait_for_pages();
        self.drain(Scope::ALL, Mode::Full);
        self.store().reserve(pages, 0)
    }

    /// Claims up to 64 pages. Puts an error at the place of each that it gets no page for.
    fn claim_chunk(
        &self,
        sent: &[SentPage],
        pages: &mut Vec<Page>,
        refusals: &mut [Option<ClaimError>; CHUNK],
    ) {
        let (store, segment) = (self.store(), self.store().segment());
        let (messages, slots) = (segment.messages(), segment.slots());
        sent.iter().for_each(|page| messages.prefetch(page.pfn));
        pages.reserve(sent.len());
        let wanted = sent.iter().filter_map(|&page| self.message(page).ok());
        let mut room = self.room_for(wanted.map(|message| 1 << message.order()).sum());
        let mut left = room.blocks;
        let (mut won, mut places, mut count) = ([(0, Token::NONE); CHUNK], [0; CHUNK], 0);
        for (place, &page) in sent.iter().enumerate() {
            let got = self.message(page).and_then(|message| {
                let rest = left.checked_sub(1 << message.order()).ok_or(ClaimError::Ceiling)?;
                let is_won = messages.win(page.pfn, message, store.slot());
                is_won.then_some((message, rest)).ok_or(ClaimError::Gone)
            });
            match got {
                Ok((message, rest)) => {
                    (won[count], places[count], left) = ((page.pfn, message), place, rest);
                    count += 1;
                }
                Err(error) => refusals[place] = Some(error),
            }
        }
        // A child that a handler forked meanwhile takes nothing for its parent's slot.
        let won = &won[..if self.is_forked() { 0 } else { count }];
        let frames_of = |run: &[(u32, Token)]| run.iter().map(|one| 1i64 << one.1.order()).sum();
        room.shrink(frames_of(won) as u64);
        // As in `claim`.
        store.count_taken(frames_of(won));
        for run in won.chunk_by(|one, next| one.1.sender() == next.1.sender()) {
            slots.add(run[0].1.sender(), CLAIMED, frames_of(run));
        }
        let mut places = places.into_iter();
        messages.take_many(won, store.slot(), |first, message, taken| {
            let place = places.next().expect("as many as were won");
            match self.claimed(first, message, taken) {
                Ok(page) => pages.push(page),
                Err(error) => refusals[place] = Some(error),
            }
        });
    }

    /// The message of a page that was sent, as its word has it.
    #[inline]
    fn message(&self, page: SentPage) -> Result<Token, ClaimError> {
        let sender = usize::from(page.slot);
        let order = Order::new(page.order.into()).filter(|_| sender < SLOTS);
        let order = order.ok_or(ClaimError::NoPage)?;
        if self.is_forked() {
            return Err(ClaimError::Forked);
        }
        let end = page.pfn.checked_add(order.frames()).ok_or(ClaimError::NoPage)?;
        if !Pfn::new(page.pfn).is_aligned(order) || end > self.store().segment().layout().frames {
            return Err(ClaimError::NoPage);
        }
        Ok(Token::new(page.token, order.get(), sender))
    }

    /// A page of which so many frames are this process's now, and counted all.
    fn claimed(&self, first: u32, message: Token, taken: u32) -> Result<Page, ClaimError> {
        let order = Order::new(message.order()).ok_or(ClaimError::NoPage)?;
        if taken != order.frames() {
            // The table is damaged. What was taken is this process's until it ends; other frames of
            // the page may be others' pages, or its own.
            let (store, missing) = (self.store(), i64::from(order.frames() - taken));
            store.segment().slots().add(message.sender(), CLAIMED, -missing);
            store.count_taken(-missing);
            return Err(ClaimError::Gone);
        }
        // SAFETY: the frames are this process's now, and no other value has them: the page that
        // they were was given up by `into_shared` or `send_pages`.
        Ok(unsafe { Page::from_raw(self, Pfn::new(first), order) })
    }

    /// Whether this process is a forked child of the one that joined.
    pub(super) fn is_forked(&self) -> bool {
        self.store().segment().is_forked()
    }

    /// Sets the most bytes that this process may have, as [`SharedOptions::ceiling`] does; 0: no
    /// limit. What it holds above stays until it is freed; [`Ceiling::set`] has some reclaimed. A
    /// forked child changes nothing.
    ///
    /// [`SharedOptions::ceiling`]: super::SharedOptions::ceiling
    /// [`Ceiling::set`]: crate::reclaim::Ceiling::set
    pub fn set_ceiling(&self, bytes: usize) {
        if !self.is_forked() {
            self.store().set_ceiling(bytes);
        }
    }
}

/// Pages to send, which it sends also when the iterator that brings them panics.
struct Outbox<'d> {
    depot: &'d SharedDepot,
    /// The first frame and the order of each.
    pages: [(u32, u32); CHUNK],
    length: usize,
    sent: &'d mut Vec<SentPage>,
}

impl Outbox<'_> {
    /// Takes a page of the depot.
    fn add(&mut self, page: Page) {
        let (pfn, order) = page.into_raw();
        self.depot.shared().sites().clear(pfn);
        self.pages[self.length] = (pfn.get(), order.get());
        self.length += 1;
        if self.length == CHUNK {
            self.send();
        }
    }

    fn send(&mut self) {
        let pages = &self.pages[..std::mem::take(&mut self.length)];
        // The iterator may have forked.
        if pages.is_empty() || self.depot.is_forked() {
            return;
        }
        let (store, sent) = (self.depot.store(), &mut *self.sent);
        let messages = store.segment().messages();
        pages.iter().for_each(|(first, _)| messages.prefetch(*first));
        sent.reserve(pages.len());
        // First, as in `into_shared`.
        store.count_sent(pages.iter().map(|(_, order)| 1 << order).sum());
        messages.send_many(pages, store.slot(), |pfn, token| {
            let (slot, order) = (store.slot() as u8, token.order() as u8);
            sent.push(SentPage { pfn, token: token.number(), slot, order });
        });
    }
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        self.send();
    }
}
