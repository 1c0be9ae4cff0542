//! Messages of pages that were sent, claimed by several processes, any of which may die.
//!
//! 1. One claim of a message gets the page.
//! 2. After the burial of all that have died a page is free, or has an owner that lives, or can be
//!    claimed by its message.
//! 3. A burial takes no message of a sender that lives.

use std::sync::Arc;

use crate::shared::messages::{Messages, SentPage, Token};
use crate::shared::owners::{Owner, OwnerSet, OwnerTable};
use crate::system::prim::{AtomicU64, Mutant, Ordering};
use crate::{MUTANT, explore_looks, spawn};

/// Order of the page: it fills two words, so that a claimer can die in between.
const ORDER: u32 = 4;
const FRAMES: u32 = 1 << ORDER;
/// Frames that have words: those of the page, and a word more.
const TOKENS: usize = FRAMES as usize + 8;
/// Slots: a sender, three that have its message.
const SENDER: usize = 0;
const ONE: usize = 1;
const TWO: usize = 2;
const THREE: usize = 3;

struct Segment {
    full: [AtomicU64; 1],
    words: [AtomicU64; 8],
    tokens: [AtomicU64; TOKENS],
}

impl Segment {
    /// All frames but those of the page are absent.
    fn new() -> (Arc<Self>, Token) {
        let word = |nth| if nth < 2 { 0x0101_0101_0101_0101 } else { !0 };
        let segment = Segment {
            full: [AtomicU64::new(0)],
            words: std::array::from_fn(|nth| AtomicU64::new(word(nth))),
            tokens: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        let token = segment.messages().send(0, ORDER, SENDER);
        (Arc::new(segment), token)
    }

    fn owners(&self) -> OwnerTable<'_> {
        OwnerTable::new(&self.full, &self.words)
    }

    fn messages(&self) -> Messages<'_> {
        Messages::new(&self.tokens, self.owners())
    }

    fn claim(&self, token: Token, claimer: usize) -> bool {
        self.claim_at(0, token, claimer)
    }

    fn claim_at(&self, first: u32, token: Token, claimer: usize) -> bool {
        let is_won = self.messages().win(first, token, claimer);
        if is_won {
            let taken = self.messages().take(first, token.order(), token.sender(), claimer);
            assert_eq!(taken, 1 << token.order(), "a claim that is won takes the page");
        }
        is_won
    }

    /// The page's words that a claimer has changed before it died: the last ones.
    fn take_words(&self, count: usize, claimer: usize) {
        for word in (0..2).rev().take(count) {
            let own = u64::from_le_bytes([Owner::slot(claimer).index() as u8; 8]);
            self.words[word].store(own, Ordering::Release);
        }
    }

    fn bury(&self, dead: usize, burier: usize) -> u64 {
        let freed = self.messages().return_claims(|slot| slot == dead, burier);
        freed + self.owners().give_all(0..1, &OwnerSet::new([Owner::slot(dead)]), Owner::FREE)
    }
}

/// A receiver that is late, while the sender takes its page back and sends it again.
fn a_late_receiver() {
    explore_looks(|| {
        let (segment, token) = Segment::new();
        let late = spawn(&segment, move |segment| segment.claim(token, ONE));
        let again = segment.claim(token, SENDER).then(|| {
            let again = segment.messages().send(0, ORDER, SENDER);
            assert_ne!(again, token);
            again
        });
        let is_late = late.join().unwrap();
        assert!(is_late != again.is_some(), "one of them gets the page");
        if let Some(again) = again {
            assert!(segment.claim(again, TWO), "the page that was sent again is there");
        }
    });
}

#[test]
fn a_message_gets_its_own_page_or_none() {
    a_late_receiver();
}

#[test]
#[should_panic(expected = "one of them gets the page")]
fn a_claim_must_get_the_message() {
    MUTANT.set(Some(Mutant::SharesMessages));
    a_late_receiver();
}

/// A number that is guessed before the page was sent gets all of it or nothing, and the message can
/// be claimed in the second case.
#[test]
fn a_guess_gets_a_page_that_was_sent_or_nothing() {
    explore_looks(|| {
        let (segment, token) = Segment::new();
        assert!(segment.claim(token, SENDER));
        let next = Token::new(token.number() + 1, ORDER, SENDER);
        let guess = spawn(&segment, move |segment| segment.claim(next, ONE));
        let sent = segment.messages().send(0, ORDER, SENDER);
        assert_eq!(sent, next);
        let is_got = segment.claim(sent, TWO);
        assert!(is_got != guess.join().unwrap() || !is_got && segment.claim(sent, TWO));
    });
}

/// The message of a page, as its receiver has it.
fn message(first: u32, token: Token) -> SentPage {
    let number = u128::from(first) | u128::from(token.number()) << 32;
    SentPage::from_bits(number | (token.sender() as u128) << 64 | u128::from(token.order()) << 72)
}

/// A segment in which pages of the word behind that of the page were sent together, and their
/// messages.
fn segment_with_many<const N: usize>(pages: [(u32, u32); N]) -> (Arc<Segment>, [SentPage; N]) {
    let (segment, _) = Segment::new();
    let mut sent = Vec::new();
    // The frames of the page that `new` has sent are left out.
    segment.words[2].store(0xffff_ffff_0101_0101, Ordering::Relaxed);
    let note = |first, _, token| sent.push(message(first, token));
    segment.messages().send_many(&pages, SENDER, note);
    (segment, sent.try_into().expect("as many as were sent"))
}

impl Segment {
    /// Claims pages together. Returns how many it got.
    fn claim_many(&self, sent: &[SentPage], claimer: usize) -> u32 {
        let messages = self.messages();
        let runs = messages.runs(sent);
        let won = messages.win_many(&runs, runs.valid, claimer);
        let mut frames = 0;
        messages.take_many(&runs, won, claimer, |_, taken| {
            assert!(taken > 0, "a claim that is won takes the page");
            frames += taken;
        });
        assert!(frames >= won.count_ones());
        won.count_ones()
    }
}

/// Pages of one word, sent together, and two receivers that claim all, in either order.
#[test]
fn each_of_many_messages_gets_its_page_once() {
    explore_looks(|| {
        let (segment, sent) = segment_with_many([(16, 1), (18, 0), (19, 0)]);
        let [one, two, three] = sent;
        let other = spawn(&segment, move |segment| segment.claim_many(&[three, one, two], ONE));
        let count = segment.claim_many(&sent, TWO) + other.join().unwrap();
        assert_eq!(count, 3, "each is claimed once");
        let owners = segment.owners();
        assert_eq!(owners.count().of(Owner::sent(SENDER)), u64::from(FRAMES));
        assert_eq!(owners.count_free(), 0);
    });
}

/// A claimer of two pages of one word has died when it had got some of their messages. A survivor
/// buries it, while another process claims both. (Behind its last step, which takes both pages at
/// once, they are the dead one's as any others, and a claim shares nothing with a burial.)
#[test]
fn a_claimer_of_many_that_dies_leaves_pages_that_are_free_or_can_be_claimed() {
    for got in [0b00, 0b01, 0b11] {
        explore_looks(move || {
            let (segment, sent) = segment_with_many([(18, 0), (19, 0)]);
            let messages = segment.messages();
            assert_eq!(messages.win_many(&messages.runs(&sent), got, ONE), got);
            let claim = spawn(&segment, move |segment| segment.claim_many(&sent, TWO));
            let freed = segment.bury(ONE, THREE);
            let claimed = claim.join().unwrap() + segment.claim_many(&sent, TWO);
            assert_eq!(freed, u64::from(got.count_ones()), "a message that was claimed is gone");
            assert_eq!(u64::from(claimed) + freed, 2, "each is free, or was claimed once");
            assert_eq!(segment.owners().count_free(), freed);
        });
    }
}

/// Two pages of one word are being sent while one of their numbers is guessed, beside a message of
/// the other. The guess gets a page that was sent, or nothing, and the messages get the rest.
#[test]
fn a_guess_among_many_messages_takes_no_page_that_was_not_sent() {
    explore_looks(|| {
        let (segment, sent) = segment_with_many([(18, 0), (19, 0)]);
        assert_eq!(segment.claim_many(&sent, SENDER), 2);
        let next = |page: SentPage| SentPage::from_bits(page.to_bits() + (1 << 32));
        let next = [next(sent[0]), next(sent[1])];
        let guess = spawn(&segment, move |segment| segment.claim_many(&next, ONE));
        segment.messages().send_many(&[(18, 0), (19, 0)], SENDER, |first, _, token| {
            assert!(next.contains(&message(first, token)));
        });
        let got = guess.join().unwrap();
        assert_eq!(got + segment.claim_many(&next, TWO), 2);
    });
}

/// A claimer has died behind so many of its steps. Two survivors bury it, and a third process
/// claims the page.
fn two_burials_beside_a_claim(steps: usize) {
    explore_looks(move || {
        let (segment, token) = Segment::new();
        if steps > 0 {
            assert!(segment.messages().win(0, token, ONE));
        }
        segment.take_words(steps.saturating_sub(1), ONE);
        let other = spawn(&segment, |segment| segment.bury(ONE, TWO));
        let claim = spawn(&segment, move |segment| segment.claim(token, SENDER));
        let freed = segment.bury(ONE, THREE) + other.join().unwrap();
        let is_claimed = claim.join().unwrap();
        let free = segment.owners().count_free();
        assert_eq!(free, freed);
        assert_eq!(is_claimed, steps == 0, "a message that was claimed is gone");
        assert_eq!(free, if steps == 0 { 0 } else { u64::from(FRAMES) });
    });
}

#[test]
fn a_claimer_that_dies_leaves_a_message_that_is_gone_or_was_never_claimed() {
    (0..4).for_each(two_burials_beside_a_claim);
}

/// A claimer has died between two words. Two survivors bury it, and the sender sends frames of the
/// page again as soon as they are free: its new message gets them, and the old one gets nothing. If
/// one `has_died`, one of the survivors has died, too, when it had got the old message.
fn two_burials_beside_a_sender(order: u32, has_died: bool) {
    explore_looks(move || {
        let (segment, token) = Segment::new();
        assert!(segment.messages().win(0, token, if has_died { TWO } else { ONE }));
        segment.take_words(1, ONE);
        let sender = spawn(&segment, move |segment| {
            let taken = segment.owners().claim(Owner::slot(SENDER), 8..8 + (1 << order));
            taken.then(|| segment.messages().send(8, order, SENDER))
        });
        let other = (!has_died).then(|| spawn(&segment, |segment| segment.bury(ONE, TWO)));
        let mut freed = segment.bury(ONE, THREE);
        if has_died {
            freed += segment.bury(TWO, THREE);
        }
        freed += other.map_or(0, |other| other.join().unwrap());
        let again = sender.join().unwrap();
        assert_eq!(freed, u64::from(FRAMES), "the page went back");
        assert!(!segment.claim(token, SENDER), "its message gets nothing");
        let sent = again.map_or(0, |_| 1 << order);
        assert_eq!(segment.owners().count_free(), freed - sent);
        assert!(again.is_none_or(|again| segment.claim_at(8, again, ONE)));
    });
}

#[test]
fn a_sender_that_sends_again_between_two_burials_has_one_message() {
    for (order, has_died) in [(3, false), (0, false), (3, true), (0, true)] {
        two_burials_beside_a_sender(order, has_died);
    }
}

#[test]
#[should_panic(expected = "the page went back")]
fn a_burier_must_look_where_pages_were_sent_again() {
    MUTANT.set(Some(Mutant::OverlooksSent));
    two_burials_beside_a_sender(3, false);
}

/// A burier dies as it takes back a dead sender's page, and is buried, while another process claims
/// the page.
#[test]
fn a_page_that_is_taken_back_is_not_claimed_as_well() {
    for has_died in [false, true] {
        explore_looks(move || {
            let (segment, token) = Segment::new();
            let is_sender = |owner| owner == Owner::sent(SENDER);
            if has_died {
                assert!(segment.messages().win(0, token, ONE));
            }
            let claim = spawn(&segment, move |segment| segment.claim(token, TWO));
            let mut freed = segment.bury(ONE, THREE);
            freed += segment.messages().take_back(is_sender, THREE);
            match claim.join().unwrap() {
                true => assert_eq!(freed, 0),
                false => assert_eq!(freed, u64::from(FRAMES)),
            }
            assert_eq!(segment.owners().count_free(), freed);
        });
    }
}

/// A survivor takes back what a dead process had sent, while another process claims the page and
/// sends it on.
fn a_burial_beside_a_relay() {
    explore_looks(|| {
        let (segment, token) = Segment::new();
        let relay = spawn(&segment, move |segment| {
            segment.claim(token, TWO).then(|| segment.messages().send(0, ORDER, TWO))
        });
        let freed = segment.messages().take_back(|owner| owner == Owner::sent(SENDER), THREE);
        let again = relay.join().unwrap();
        assert_eq!(freed, if again.is_some() { 0 } else { u64::from(FRAMES) });
        assert!(again.is_none_or(|again| segment.claim(again, ONE)), "its message gets the page");
    });
}

#[test]
fn a_page_that_is_sent_on_beside_a_burial_has_a_message() {
    a_burial_beside_a_relay();
}

#[test]
#[should_panic(expected = "its message gets the page")]
fn a_burier_must_look_whose_message_it_takes() {
    MUTANT.set(Some(Mutant::TakesAnyMessage));
    a_burial_beside_a_relay();
}

/// Two survivors take back what a dead process had sent. A third process gets a frame of it as soon
/// as it is free, and sends it.
#[test]
fn a_frame_that_is_free_and_sent_beside_a_burial_has_a_message() {
    explore_looks(|| {
        let (segment, _) = Segment::new();
        let take_back = |segment: &Segment, burier| {
            segment.messages().take_back(|owner| owner == Owner::sent(SENDER), burier)
        };
        let other = spawn(&segment, move |segment| take_back(segment, ONE));
        let sender = spawn(&segment, |segment| {
            let is_taken = segment.owners().claim(Owner::slot(TWO), 0..1);
            is_taken.then(|| segment.messages().send(0, 0, TWO))
        });
        let freed = take_back(&segment, THREE) + other.join().unwrap();
        assert_eq!(freed, u64::from(FRAMES));
        assert!(sender.join().unwrap().is_none_or(|sent| segment.claim(sent, ONE)));
    });
}
