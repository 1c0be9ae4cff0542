//! The messages of pages that were sent: a word for each frame, beside the table of owners.
//!
//! # The word of a frame
//! | bits | field |
//! |---|---|
//! | 0..=31 | number of the message: how often the frame began a page that was sent |
//! | 32..=39 | order of the page |
//! | 40..=47 | 1 + the slot of the process that has the message; 0: no process has it |
//! | 48 | the frame begins a page that was sent |
//! | 49..=54 | the slot of the sender |
//!
//! # Argument
//! * A sender writes the words of all frames of a page, then changes their bytes. So the word of a
//!   frame whose byte says that it was sent is true. Other words are left from earlier pages, or
//!   from a sender that has written them and not changed the bytes yet, or has died before it did.
//! * A claim has two steps. The first puts the claimer's slot into the word, by one
//!   compare-and-swap from the message's own number, order and sender: of all that have the
//!   message, one gets the page, and a message of an earlier page, which has another number, gets
//!   none. The claimer then looks whether all bytes say that the page was sent. If they do not, the
//!   number was guessed, and the claimer puts the word back. So a number that is no message changes
//!   no page, not even one that the claimer has. The second step changes the bytes, those of the
//!   page's first frame last. No other process changes the bytes of a page whose message it does
//!   not have, so the second step cannot fail, and the sender's slot is not used again meanwhile:
//!   its frames are still in the table.
//! * Of many pages, those that lie in one word and come one after another change their bytes
//!   together, behind all their words, and all messages are got before the first page is taken. The
//!   look at their bytes comes behind all their messages, too: what it finds sent stays so, since
//!   the claimer has the messages by then. A death in between leaves some pages with both steps
//!   done, others as between the two, and others as before.
//! * A survivor that takes back what a dead process had sent gets each page's message first, as a
//!   claimer does. So it does not free a page that a live process is claiming. It reads the bytes
//!   before the message. In between a claimer may have taken the page and sent it again, or another
//!   survivor may have freed it for others. So the survivor gets messages of the dead sender alone:
//!   that slot is closed as long as the survivor buries, and none is written for it any more. A
//!   message of another sender is written when the frame is that one's: by its byte, too, it is
//!   not the dead sender's any more.
//! * A claimer that dies between the steps leaves its slot in the word, and the first frame's byte
//!   as it was: a burial finds it ([`Messages::return_claims`]). The burier puts its own slot into
//!   the word, so of several buriers one goes on, and if that one dies, its burial does. The claim
//!   is ended and not undone: to others it has said that the message is gone, for good as far as
//!   they know. What the claimer has not changed of the page is freed, as the burial frees the part
//!   that it has.
//! * By then the live sender may have sent again what the burial of the dead claimer, or of a dead
//!   burier, has freed of such a page. So the rest is told by its place. Claimers and buriers
//!   change a page's last words first: the rest are its first words, up to the first one that is
//!   not the sender's as a whole or whose own message begins a page. A page that is sent again lies
//!   behind the rest, so the first word behind it begins a page if it is the sender's as a whole.
//!   No word of the rest does: the sender has written so before it sent the page.
//! * A claimer that has guessed the number of a page that is just being sent, and dies before it
//!   puts the word back, frees what has been sent of that page, or loses it for as long as its
//!   sender lives.
//!
//! Explored by `tests/loom/messages.rs`.

use std::ops::Range;

use super::owners::{Owner, OwnerTable, WORD_FRAMES};
use super::slots::SLOTS;
use crate::system::prim::{AtomicU64, Mutant, Ordering, is_mutant, prefetch_write};

const NUMBER: u64 = u32::MAX as u64;
const ORDER_SHIFT: u32 = 32;
const CLAIMER_SHIFT: u32 = 40;
const BEGINS: u64 = 1 << 48;
const SENDER_SHIFT: u32 = 49;
/// The largest order of a page.
const ORDER_MAX: u32 = 10;
/// The largest order of a page that lies in one word of the table of owners.
const WORD_ORDER: u8 = WORD_FRAMES.ilog2() as u8;

/// The word of a frame that begins a page that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(u64);

impl Token {
    /// The word of a page that no process has claimed yet.
    pub const fn new(number: u32, order: u32, sender: usize) -> Self {
        let (order, sender) = ((order as u64) << ORDER_SHIFT, (sender as u64) << SENDER_SHIFT);
        Token(BEGINS | sender | order | number as u64)
    }

    /// The number of the message.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    pub const fn order(self) -> u32 {
        (self.0 >> ORDER_SHIFT) as u8 as u32
    }

    /// The slot of the process that has sent the page.
    pub const fn sender(self) -> usize {
        (self.0 >> SENDER_SHIFT) as usize & 0x3f
    }

    const fn claimer(self) -> Option<usize> {
        ((self.0 >> CLAIMER_SHIFT) as u8 as usize).checked_sub(1)
    }

    const fn unclaimed(self) -> Self {
        Token(self.0 & !(0xff << CLAIMER_SHIFT))
    }

    const fn claimed_by(self, slot: usize) -> Self {
        Token(self.unclaimed().0 | (slot as u64 + 1) << CLAIMER_SHIFT)
    }

    /// The frames of the page that begins at `first`. `None`: no page begins there, or the word is
    /// damaged.
    fn frames(self, first: u32, end: u32) -> Option<Range<u32>> {
        let order = self.order();
        let is_sent = self.0 & BEGINS != 0 && order <= ORDER_MAX;
        let count = 1u32.checked_shl(order)?;
        let fits = is_sent && first.is_multiple_of(count) && end.checked_sub(first)? >= count;
        fits.then(|| first..first + count)
    }
}

/// A page on its way to another process, as a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a page that is not claimed stays taken"]
pub struct SentPage {
    /// The page's first frame.
    pub(super) pfn: u32,
    /// The number of the message.
    pub(super) token: u32,
    /// The slot of the sender.
    pub(super) slot: u8,
    pub(super) order: u8,
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

    /// The word of the page's first frame while no process has claimed it.
    #[inline]
    pub(super) fn unclaimed(self) -> Token {
        Token::new(self.token, self.order.into(), self.slot.into())
    }
}

/// Up to 64 messages, and the runs that they form. A run is pages one after another in one word of
/// the table, of one sender and order: their owner changes by one operation. A page that fills
/// words is a run by itself.
pub struct Runs<'m> {
    sent: &'m [SentPage],
    /// The places at which runs begin.
    starts: u64,
    /// The places of messages of pages that the segment can have.
    pub valid: u64,
    /// Frames of the pages of valid messages.
    pub frames: u32,
    /// Whether all have one sender.
    pub is_of_one: bool,
}

impl<'m> Runs<'m> {
    /// Each run, and its place.
    #[inline]
    fn iter(&self) -> impl Iterator<Item = (usize, &'m [SentPage])> + use<'m> {
        let (sent, mut left) = (self.sent, self.starts);
        std::iter::from_fn(move || {
            let place = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            let end = if left == 0 { sent.len() } else { left.trailing_zeros() as usize };
            Some((place, sent.get(place..end)?))
        })
    }
}

/// The words of all frames, and the owners of the frames.
#[derive(Clone, Copy)]
pub struct Messages<'t> {
    tokens: &'t [AtomicU64],
    owners: OwnerTable<'t>,
}

impl<'t> Messages<'t> {
    pub fn new(tokens: &'t [AtomicU64], owners: OwnerTable<'t>) -> Self {
        Messages { tokens, owners }
    }

    pub fn owners(&self) -> OwnerTable<'t> {
        self.owners
    }

    /// Asks for the lines of a page's message and owner, both of which the process that has sent or
    /// claimed the page before may have written last.
    #[inline]
    pub fn prefetch(&self, first: u32) {
        if let Some(word) = self.tokens.get(first as usize) {
            prefetch_write(word);
            self.owners.prefetch(first);
        }
    }

    /// Sends a page of the process in the slot `sender`. Returns its message.
    #[inline]
    pub fn send(&self, first: u32, order: u32, sender: usize) -> Token {
        let token = self.write(first, order, sender);
        self.owners.change(first..first + (1 << order), Owner::slot(sender), Owner::sent(sender));
        token
    }

    /// Sends pages of the process in the slot `sender`, and passes their messages. Pages of one
    /// word, one after another, change their owner by one operation.
    #[inline]
    pub fn send_many(
        &self,
        pages: &[(u32, u32)],
        sender: usize,
        mut tell: impl FnMut(u32, u32, Token),
    ) {
        let is_small = |order: u32| order <= u32::from(WORD_ORDER);
        let is_beside = |one: &(u32, u32), next: &(u32, u32)| {
            is_one_word(one.0, next.0) && is_small(one.1.max(next.1))
        };
        for run in pages.chunk_by(is_beside) {
            if let [(first, order)] = *run {
                tell(first, order, self.send(first, order, sender));
                continue;
            }
            let mut bytes = 0;
            for &(first, order) in run {
                bytes |= page_bytes_of(first, order);
                tell(first, order, self.write(first, order, sender));
            }
            // Any: one that another process has damaged keeps no other here.
            let word = (run[0].0 / WORD_FRAMES) as usize;
            self.owners.change_any_in_word(word, bytes, Owner::slot(sender), Owner::sent(sender));
        }
    }

    /// Writes the words of a page's frames. Returns its message.
    #[inline]
    pub(super) fn write(&self, first: u32, order: u32, sender: usize) -> Token {
        let frames = first..first + (1 << order);
        // Relaxed, all but the last: the frames are the caller's, and the change of their owner
        // publishes the words.
        for word in &self.tokens[first as usize + 1..frames.end as usize] {
            let now = word.load(Ordering::Relaxed);
            if now & !NUMBER != 0 {
                word.store(now & NUMBER, Ordering::Relaxed);
            }
        }
        let word = &self.tokens[first as usize];
        let number = Token(word.load(Ordering::Relaxed)).number().wrapping_add(1);
        let token = Token::new(number, order, sender);
        // Release: pairs with the Acquire of `win`.
        word.store(token.0, Ordering::Release);
        token
    }

    /// Gets a message for the process in the slot `claimer`, which then [takes](Self::take) the
    /// page. `false`: another process has got it, or the page went back, or was not sent yet.
    #[inline]
    pub fn win(&self, first: u32, message: Token, claimer: usize) -> bool {
        if is_mutant(Mutant::SharesMessages) {
            return self.token(first) == message;
        }
        let own = message.claimed_by(claimer);
        if !self.swap(first, message, own) {
            return false;
        }
        let sender = Owner::sent(message.sender());
        if self.owners.is_all(first..first + (1 << message.order()), sender) {
            return true;
        }
        self.swap(first, own, message);
        false
    }

    /// Takes a page whose message the caller has got. Returns the number of frames: fewer than the
    /// page has if the table is damaged.
    #[inline]
    pub fn take(&self, first: u32, order: u32, sender: usize, claimer: usize) -> u32 {
        let frames = first..first + (1 << order);
        self.owners.change_those(frames, Owner::sent(sender), Owner::slot(claimer))
    }

    /// The runs of up to 64 messages. Asks for the lines of their pages.
    #[inline]
    pub fn runs<'m>(&self, sent: &'m [SentPage]) -> Runs<'m> {
        let mut runs = Runs { sent, starts: 0, valid: 0, frames: 0, is_of_one: true };
        let (mut run, mut size, mut end) = (None, 0, 0);
        for (place, page) in sent.iter().enumerate() {
            let own = (page.pfn / WORD_FRAMES, page.slot, page.order);
            if run != Some(own) {
                run = (page.order <= WORD_ORDER).then_some(own);
                runs.starts |= 1 << place;
                runs.is_of_one &= page.slot == sent[0].slot;
                size = 1u32.checked_shl(page.order.into()).unwrap_or(0);
                let is_known = u32::from(page.order) <= ORDER_MAX && usize::from(page.slot) < SLOTS;
                // Where no page begins that ends in the segment: none is valid.
                end = if is_known { (self.end() + 1).saturating_sub(size) } else { 0 };
                self.prefetch(page.pfn);
            }
            if page.pfn < end && page.pfn & (size - 1) == 0 {
                runs.valid |= 1 << place;
                runs.frames += size;
            }
        }
        runs
    }

    /// Gets those messages that have a bit in `wanted`, by their places, and takes no page yet.
    /// Returns the bits of those that it got. The bytes of a run are looked at once, behind all its
    /// messages.
    #[inline]
    pub fn win_many(&self, runs: &Runs<'_>, wanted: u64, claimer: usize) -> u64 {
        let mut won = 0;
        for (place, run) in runs.iter() {
            won |= match *run {
                [_] if wanted >> place & 1 == 0 => 0,
                [page] => u64::from(self.win(page.pfn, page.unclaimed(), claimer)) << place,
                _ => self.win_run(run, wanted >> place, claimer) << place,
            };
        }
        won
    }

    #[inline]
    fn win_run(&self, run: &[SentPage], wanted: u64, claimer: usize) -> u64 {
        let (mut won, mut bytes) = (0, 0);
        for (place, page) in run.iter().enumerate() {
            let own = page_bytes_of(page.pfn, page.order.into());
            // A second message of the same page gets none.
            if wanted >> place & 1 == 0 || bytes & own != 0 {
                continue;
            }
            let message = page.unclaimed();
            if self.swap(page.pfn, message, message.claimed_by(claimer)) {
                (won, bytes) = (won | 1 << place, bytes | own);
            }
        }
        // There is no such slot where all numbers were damaged.
        if won == 0 {
            return 0;
        }
        let (word, sender) = (run[0].pfn / WORD_FRAMES, Owner::sent(run[0].slot.into()));
        let there = self.owners.bytes_in_word(word as usize, bytes, sender);
        if there == bytes { won } else { self.put_back(run, won, there, claimer) }
    }

    /// Puts those messages of a run back whose pages are not there: the numbers were guessed.
    /// Returns the bits of the others.
    #[cold]
    fn put_back(&self, run: &[SentPage], won: u64, there: u64, claimer: usize) -> u64 {
        let mut rest = won;
        for (place, page) in run.iter().enumerate() {
            let own = page_bytes_of(page.pfn, page.order.into());
            if won >> place & 1 == 1 && there & own != own {
                let message = page.unclaimed();
                self.swap(page.pfn, message.claimed_by(claimer), message);
                rest &= !(1 << place);
            }
        }
        rest
    }

    /// Takes those pages that have a bit in `won`: their messages the caller has got. Passes the
    /// place of each, and the number of frames that [`take`](Self::take) returns.
    #[inline]
    pub fn take_many(
        &self,
        runs: &Runs<'_>,
        won: u64,
        claimer: usize,
        mut tell: impl FnMut(usize, u32),
    ) {
        for (begin, run) in runs.iter() {
            let is_won = |(place, _): &(usize, &SentPage)| won >> (begin + place) & 1 == 1;
            if !run.iter().enumerate().any(|page| is_won(&page)) {
                continue;
            }
            if let [page] = *run {
                let (order, sender) = (page.order.into(), page.slot.into());
                tell(begin, self.take(page.pfn, order, sender, claimer));
                continue;
            }
            let pages = run.iter().enumerate().filter(is_won);
            let own = |page: &SentPage| page_bytes_of(page.pfn, page.order.into());
            let bytes = pages.clone().fold(0, |bytes, (_, page)| bytes | own(page));
            let (from, to) = (Owner::sent(run[0].slot.into()), Owner::slot(claimer));
            let word = (run[0].pfn / WORD_FRAMES) as usize;
            let taken = self.owners.change_any_in_word(word, bytes, from, to);
            for (place, page) in pages {
                let frames = match taken == bytes {
                    true => 1 << page.order,
                    false => (taken & own(page)).count_ones() / 8,
                };
                tell(begin + place, frames);
            }
        }
    }

    /// Ends the claims of processes that have died: frees what they have not taken of the pages.
    /// Returns the number of frames. Comes before the frames of these processes are freed.
    pub fn return_claims(&self, is_dead: impl Fn(usize) -> bool, burier: usize) -> u64 {
        let mut freed = 0;
        self.owners.for_each_sent(|first, owner| {
            let token = self.token(first);
            let Some(frames) = token.frames(first, self.end()) else { return };
            let is_left = token.claimer().is_some_and(&is_dead);
            if !is_left || !self.swap(first, token, token.claimed_by(burier)) {
                return;
            }
            let rest = self.rest(frames, owner);
            freed += u64::from(self.owners.change_those(rest, owner, Owner::FREE));
        });
        freed
    }

    /// The frames of a page that its claimer, which has died, and the buriers before this one have
    /// not changed: its first words.
    fn rest(&self, frames: Range<u32>, owner: Owner) -> Range<u32> {
        // The bytes first: a page that was sent there since had its message before.
        let is_changed = |word: &u32| {
            !self.owners.is_all(*word..*word + WORD_FRAMES, owner)
                || self.token(*word).0 & BEGINS != 0 && !is_mutant(Mutant::OverlooksSent)
        };
        let mut words = frames.clone().step_by(WORD_FRAMES as usize).skip(1);
        let end = words.find(is_changed);
        frames.start..end.unwrap_or(frames.end)
    }

    /// Frees the pages that some senders, which are dead, have sent, and whose messages no process
    /// has. Returns the number of frames.
    pub fn take_back(&self, is_dead: impl Fn(Owner) -> bool, burier: usize) -> u64 {
        let (mut freed, mut next) = (0, 0);
        self.owners.for_each_sent(|first, owner| {
            if first < next || !is_dead(owner) {
                return;
            }
            let token = self.token(first).unclaimed();
            let is_theirs =
                Owner::sent(token.sender()) == owner || is_mutant(Mutant::TakesAnyMessage);
            let frames = match token.frames(first, self.end()).filter(|_| is_theirs) {
                Some(frames) => {
                    next = frames.end;
                    if !self.swap(first, token, token.claimed_by(burier)) {
                        return;
                    }
                    frames
                }
                // Part of a page whose sender died as it sent it, a frame that is another's by now,
                // or the table is damaged.
                None => first..first + 1,
            };
            freed += u64::from(self.owners.change_those(frames, owner, Owner::FREE));
        });
        freed
    }

    fn end(&self) -> u32 {
        self.tokens.len() as u32
    }

    fn token(&self, frame: u32) -> Token {
        // Acquire: pairs with the Release of `send`. A frame behind the last has no word.
        let word = self.tokens.get(frame as usize);
        Token(word.map_or(0, |word| word.load(Ordering::Acquire)))
    }

    #[inline]
    fn swap(&self, first: u32, from: Token, to: Token) -> bool {
        let Some(word) = self.tokens.get(first as usize) else { return false };
        // AcqRel: what the process that had the message has done comes before.
        word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Whether two pages begin in one word.
#[inline]
fn is_one_word(one: u32, other: u32) -> bool {
    one / WORD_FRAMES == other / WORD_FRAMES
}

/// The bits of the bytes of a page that lies in one word.
#[inline]
const fn page_bytes_of(first: u32, order: u32) -> u64 {
    !0 >> (64 - (8 << order)) << (8 * (first % WORD_FRAMES))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::shared::owners::OwnerSet;
    use crate::test_units::zeroed_words;

    /// Words of a segment that another process has damaged: two pages have a frame in common. One
    /// of them gets it.
    #[test]
    fn pages_that_overlap_are_not_taken_together() {
        let (full, words) = OwnerTable::lengths(64);
        let owners = OwnerTable::new(zeroed_words(full), zeroed_words(words));
        let messages = Messages::new(zeroed_words(64), owners);
        assert!(owners.claim(Owner::slot(1), 0..64));
        let mut sent = Vec::new();
        let mut note = |pfn, order, token: Token| {
            sent.push(SentPage { pfn, token: token.number(), slot: 1, order: order as u8 });
        };
        messages.send_many(&[(4, 2), (32, 4), (50, 0), (51, 0)], 1, &mut note);
        for (first, order) in [(5, 0), (33, 0)] {
            note(first, order, messages.write(first, order, 1));
        }
        // One twice, in one run.
        sent.push(sent[2]);
        sent.sort_unstable_by_key(|page| page.pfn);
        let runs = messages.runs(&sent);
        assert_eq!((runs.valid, runs.starts), (0x7f, 0b1_1111));
        let won = messages.win_many(&runs, runs.valid, 2);
        let mut taken = Vec::new();
        messages.take_many(&runs, won, 2, |place, frames| taken.push((sent[place].pfn, frames)));
        assert_eq!(taken, [(4, 4), (5, 0), (32, 16), (33, 0), (50, 1), (51, 1)]);
    }

    /// Messages that name no page of the segment, beside one that does.
    #[test]
    fn messages_of_no_page_are_not_valid() {
        let (full, words) = OwnerTable::lengths(60);
        let owners = OwnerTable::new(zeroed_words(full), zeroed_words(words));
        let messages = Messages::new(zeroed_words(60), owners);
        let no_slot = SLOTS as u8;
        let sent = [(59, 0, 0), (60, 0, 0), (56, 2, 0), (56, 3, 0), (1, 1, 0), (4, 11, 0)]
            .into_iter()
            .chain([(4, 32, 0), (4, 255, 0), (u32::MAX, 0, 0), (4, 0, no_slot), (0, 6, 0)])
            .map(|(pfn, order, slot)| SentPage { pfn, token: 1, slot, order });
        let sent: Vec<_> = sent.collect();
        let runs = messages.runs(&sent);
        assert_eq!((runs.valid, runs.frames), (0b101, 5));
        assert_eq!(messages.win_many(&runs, runs.valid, 2), 0);
    }

    /// A page that a dead process had sent is claimed and sent on, between a survivor's looks at
    /// its owner and at its message. The survivor leaves that message to its receiver.
    #[test]
    fn a_burial_takes_no_message_of_a_live_sender() {
        let (full, words) = OwnerTable::lengths(64);
        let owners = OwnerTable::new(zeroed_words(full), zeroed_words(words));
        let messages = Messages::new(zeroed_words(64), owners);
        assert!(owners.claim(Owner::slot(1), 0..1));
        let first = messages.send(0, 0, 1);
        let again = Cell::new(None);
        let is_dead = |owner| {
            assert!(messages.win(0, first, 2) && messages.take(0, 0, 1, 2) == 1);
            again.set(Some(messages.send(0, 0, 2)));
            owner == Owner::sent(1)
        };
        assert_eq!(messages.take_back(is_dead, 3), 0);
        assert!(messages.win(0, again.get().unwrap(), 4));
    }

    /// A claimer died between two words of a page, a survivor has freed what it had, and the sender
    /// sends these frames again. Another survivor had begun to end the claim, and died, too.
    #[test]
    fn a_burial_leaves_what_was_sent_again_in_a_page_that_was_claimed_in_part() {
        for order in [0, 3] {
            let (full, words) = OwnerTable::lengths(64);
            let owners = OwnerTable::new(zeroed_words(full), zeroed_words(words));
            let messages = Messages::new(zeroed_words(64), owners);
            assert!(owners.claim(Owner::slot(1), 0..16));
            let first = messages.send(0, 4, 1);
            assert!(messages.win(0, first, 2));
            assert!(owners.change(8..16, Owner::sent(1), Owner::slot(2)));
            assert!(messages.swap(0, first.claimed_by(2), first.claimed_by(3)));
            assert_eq!(messages.return_claims(|slot| slot == 2, 4), 0);
            assert_eq!(owners.give_all(0..1, &OwnerSet::new([Owner::slot(2)]), Owner::FREE), 8);

            assert!(owners.claim(Owner::slot(1), 8..8 + (1 << order)));
            let again = messages.send(8, order, 1);
            assert_eq!(messages.return_claims(|slot| slot == 3, 4), 8, "the rest of the page");
            assert!(!messages.win(0, first, 5));
            assert!(messages.win(8, again, 6));
            assert_eq!(messages.take(8, order, 1, 6), 1 << order);
        }
    }
}
