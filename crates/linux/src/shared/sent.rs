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
use super::messages::{Runs, SentPage};
use super::owners::WORD_FRAMES;
use super::slots::CLAIMED;
use super::store::Reservation;
use crate::pages::batch::CHUNK;
use crate::pages::page::Page;

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
            let refusals = self.claim_chunk(chunk, pages);
            refusals.for_each(|place, error| refused(nth * CHUNK + place, error));
        }
    }

    /// Claims a page that a process has sent. The sender may do so, too. Where the ceiling of this
    /// process leaves no room, that drains what it caches first.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn claim(&self, page: SentPage) -> Result<Page, ClaimError> {
        let (store, sender) = (self.store(), usize::from(page.slot));
        let messages = store.segment().messages();
        if messages.runs(&[page]).valid == 0 {
            return Err(ClaimError::NoPage);
        }
        if self.is_forked() {
            return Err(ClaimError::Forked);
        }
        let (order, frames) = (page.order.into(), 1 << page.order);
        let room = self.room_for(frames);
        if room.blocks < frames {
            return Err(ClaimError::Ceiling);
        }
        if !messages.win(page.pfn, page.unclaimed(), store.slot()) {
            return Err(ClaimError::Gone);
        }
        // The own count first, as in `into_shared`. Both before the page is taken: until then the
        // sender's slot is not used again.
        store.count_taken(frames.into());
        store.segment().slots().add(sender, CLAIMED, frames.into());
        let taken = messages.take(page.pfn, order, sender, store.slot());
        self.claimed(page, taken)
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

    /// Claims up to 64 pages. Returns the places of those that it gets no page for.
    fn claim_chunk(&self, sent: &[SentPage], pages: &mut Vec<Page>) -> Refusals {
        let (store, segment) = (self.store(), self.store().segment());
        let (messages, slots) = (segment.messages(), segment.slots());
        let mut refusals = Refusals::default();
        if self.is_forked() {
            refusals.forked = !0 >> (CHUNK - sent.len());
            return refusals;
        }
        let runs = messages.runs(sent);
        refusals.no_page = !0 >> (CHUNK - sent.len()) & !runs.valid;
        pages.reserve(sent.len());
        let mut room = self.room_for(runs.frames);
        let won = match room.blocks == runs.frames {
            true => messages.win_many(&runs, runs.valid, store.slot()),
            false => self.win_some(&runs, sent, room.blocks, &mut refusals),
        };
        refusals.gone = runs.valid & !won & !refusals.ceiling;
        // A child that a handler forked meanwhile takes nothing for its parent's slot.
        let won = if self.is_forked() { 0 } else { won };
        let frames_of = |run: &[SentPage], won: u64| -> i64 {
            let is_won = |(place, _): &(usize, &SentPage)| won >> place & 1 == 1;
            run.iter().enumerate().filter(is_won).map(|(_, page)| 1 << page.order).sum()
        };
        let frames = if won == runs.valid { runs.frames.into() } else { frames_of(sent, won) };
        room.shrink(frames as u64);
        // As in `claim`.
        store.count_taken(frames);
        let mut place = 0;
        let is_one = |one: &SentPage, next: &SentPage| runs.is_of_one || one.slot == next.slot;
        for run in sent.chunk_by(is_one) {
            let is_all = run.len() == sent.len();
            let frames = if is_all { frames } else { frames_of(run, won >> place) };
            if frames != 0 {
                slots.add(run[0].slot.into(), CLAIMED, frames);
            }
            place += run.len();
        }
        messages.take_many(&runs, won, store.slot(), |place, taken| {
            match self.claimed(sent[place], taken) {
                Ok(page) => pages.push(page),
                Err(_) => refusals.gone |= 1 << place,
            }
        });
        refusals
    }

    /// Gets those of some messages that there is room for, one by one. Returns their bits.
    #[cold]
    fn win_some(
        &self,
        runs: &Runs<'_>,
        sent: &[SentPage],
        mut room: u32,
        refusals: &mut Refusals,
    ) -> u64 {
        let (store, mut won) = (self.store(), 0);
        let is_valid = |(place, _): &(usize, &SentPage)| runs.valid >> place & 1 == 1;
        for (place, page) in sent.iter().enumerate().filter(is_valid) {
            let own = 1 << place;
            match room.checked_sub(1 << page.order) {
                None => refusals.ceiling |= own,
                Some(rest) => {
                    if store.segment().messages().win_many(runs, own, store.slot()) == own {
                        (won, room) = (won | own, rest);
                    }
                }
            }
        }
        won
    }

    /// A page of which so many frames are this process's now, and counted all.
    #[inline]
    fn claimed(&self, page: SentPage, taken: u32) -> Result<Page, ClaimError> {
        let order = Order::new(page.order.into()).ok_or(ClaimError::NoPage)?;
        if taken != order.frames() {
            return Err(self.claimed_in_part(page, taken));
        }
        // SAFETY: the frames are this process's now, and no other value has them: the page that
        // they were was given up by `into_shared` or `send_pages`.
        Ok(unsafe { Page::from_raw(self, Pfn::new(page.pfn), order) })
    }

    /// Corrects the counts where the table is damaged. The frames that were taken are this
    /// process's until it ends; other frames of the page may be others' pages, or its own.
    #[cold]
    fn claimed_in_part(&self, page: SentPage, taken: u32) -> ClaimError {
        let (store, missing) = (self.store(), (1 << page.order) - i64::from(taken));
        store.segment().slots().add(page.slot.into(), CLAIMED, -missing);
        store.count_taken(-missing);
        ClaimError::Gone
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

/// The places of messages that a claim has got no page for, a bit each, by the reason.
#[derive(Default)]
struct Refusals {
    forked: u64,
    no_page: u64,
    ceiling: u64,
    gone: u64,
}

impl Refusals {
    /// Passes each place, in ascending order.
    fn for_each(&self, mut tell: impl FnMut(usize, ClaimError)) {
        let mut left = self.forked | self.no_page | self.ceiling | self.gone;
        while left != 0 {
            let (place, bit) = (left.trailing_zeros() as usize, left & left.wrapping_neg());
            left &= left - 1;
            tell(
                place,
                match bit {
                    _ if self.forked & bit != 0 => ClaimError::Forked,
                    _ if self.no_page & bit != 0 => ClaimError::NoPage,
                    _ if self.ceiling & bit != 0 => ClaimError::Ceiling,
                    _ => ClaimError::Gone,
                },
            );
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
        let mut line = u32::MAX;
        for &(first, _) in pages {
            if first / WORD_FRAMES != line {
                line = first / WORD_FRAMES;
                messages.prefetch(first);
            }
        }
        sent.reserve(pages.len());
        // First, as in `into_shared`.
        store.count_sent(pages.iter().map(|(_, order)| 1 << order).sum());
        let slot = store.slot() as u8;
        messages.send_many(pages, store.slot(), |pfn, order, token| {
            let order = order as u8;
            sent.push(SentPage { pfn, token: token.number(), slot, order });
        });
    }
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        self.send();
    }
}
