//! Joining and leaving a segment, and burying those who did not leave.

use std::cell::LazyCell;
use std::mem;
use std::os::fd::AsFd;

use super::error::SegmentError;
use super::owners::{Owner, OwnerCounts, OwnerSet};
use super::process::{Locks, has_exited, identity};
use super::segment::Segment;
use super::slots::{
    ANSWERED, ASKED, BURIED, CLAIMED, DOOR, HEIR, SENT, SLOTS, SlotWord, Stage, TAKEN,
};
use crate::system::mapping::Mapping;
use crate::system::prim::{AtomicU64, Ordering};

/// The result of a look for dead processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Processes that had ended without leaving, and that no other look had found dead.
    pub processes: u32,
    /// Pages that they had, and that are free now.
    pub pages: u64,
}

/// The fate of frames that a dead process had sent, and that were not claimed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Orphans {
    /// They can still be claimed.
    Stay,
    /// They are free.
    GoBack,
    /// They are free, and so are those that no [heir](super::SharedDepot::inherit) has taken.
    AllGoBack,
}

/// A slot, and the page that has its lock; `None`: the segment has it.
pub type HeldSlot = (usize, Option<Mapping>);

/// Takes a slot for this process.
///
/// `orphans`: what is done to make room when no slot is empty.
pub fn join(segment: &Segment, orphans: Orphans) -> Result<HeldSlot, SegmentError> {
    if let Some(place) = take_slot(segment)? {
        return Ok(place);
    }
    // Nothing is empty: bury the dead first, without a slot.
    let locks = segment.locks();
    if !locks.take(DOOR).map_err(SegmentError::system("locking the segment"))? {
        return Err(SegmentError::Busy);
    }
    bury_dead(segment, DOOR, orphans);
    let joined = take_slot(segment);
    if !segment.is_forked() {
        locks.release(DOOR);
    }
    joined?.ok_or(SegmentError::Full)
}

fn take_slot(segment: &Segment) -> Result<Option<HeldSlot>, SegmentError> {
    // The descriptor is closed when the lock is taken: a child that is forked later has neither.
    let own = segment.own_page()?;
    let locks = own.as_ref().map_or(segment.locks(), |(file, _)| Locks(file.as_fd()));
    let slots = segment.slots();
    for slot in slots.at(Stage::Empty) {
        // Before the word says so: whoever finds the slot taken and its lock free buries it.
        if !locks.take(slot).map_err(SegmentError::system("locking the segment"))? {
            continue;
        }
        // Relaxed: a process counts after its own slot's bit is set, and a sum of counts that
        // change meanwhile may be a little wrong.
        segment.joined().fetch_or(1 << slot, Ordering::Relaxed);
        // Again, with the lock. No process in this slot buries then: by its bits in other words, or
        // in this one, a torn table closes slots.
        if slots.look(slot).stage() == Some(Stage::Empty) {
            slots.forget_burier(slot);
        }
        if slots.begin_join(slot) {
            answer_for_the_one_before(segment, slot);
            if slots.go_live(slot, identity()) {
                return Ok(Some((slot, own.map(|(_, page)| page))));
            }
        }
        locks.release(slot);
    }
    Ok(None)
}

/// Marks requests to the process that had the slot before as answered: its pages are free. The
/// new one is asked when it is live, and not before.
fn answer_for_the_one_before(segment: &Segment, slot: usize) {
    // Relaxed: a request that is missed here is answered by the new process's thread.
    let asked = segment.futex(slot, ASKED).load(Ordering::Relaxed);
    // Release: the burial of the one before comes before; pairs with `SharedStore::ask`.
    segment.futex(slot, ANSWERED).store(asked, Ordering::Release);
}

/// Gives this process's slot back, and all frames that it still has.
pub fn leave(segment: &Segment, (slot, page): HeldSlot) {
    let slots = segment.slots();
    let seen = slots.look(slot);
    // Relaxed: what a process has when it leaves, it does not need any more.
    slots.word(slot, HEIR).store(0, Ordering::Relaxed);
    // If a survivor has taken this process for dead, that buries it.
    if seen.stage() == Some(Stage::Live) && slots.kill(slot, seen, slot) {
        bury(segment, slot, &[slot], Orphans::Stay);
    }
    // As in `SharedStore::drop`.
    if segment.is_forked() {
        return mem::forget(page);
    }
    // By which of both this process had the lock.
    drop(page);
    segment.locks().release(slot);
}

/// Buries all processes that have ended without leaving. `burier`: the caller's slot, or the door.
pub fn bury_dead(segment: &Segment, burier: usize, orphans: Orphans) -> Recovery {
    let slots = segment.slots();
    let at_door = end_claims_of_door(segment, burier);
    // On the stack, as all of this is: a request in a signal handler buries, too.
    let (mut dead, mut found, mut processes) = ([0; SLOTS], 0, 0);
    // By bytes: a claimer that died may not have counted.
    let counts = LazyCell::new(|| segment.owners().count());
    let count = |owner| counts.of(owner);
    let wakes = |slot| match (count(Owner::sent(slot)), count(Owner::estate(slot)), orphans) {
        (0, 0, _) | (_, _, Orphans::AllGoBack) => true,
        (sent, _, Orphans::GoBack) => sent > 0,
        (_, _, Orphans::Stay) => false,
    };
    for slot in (0..SLOTS).filter(|&slot| slot != burier && !segment.is_forked()) {
        let seen = slots.look(slot);
        let is_mine = match seen.stage() {
            Some(Stage::Live | Stage::Joining) => {
                let has_ended = kill_ended(segment, slot, seen, burier);
                processes += u32::from(has_ended);
                has_ended
            }
            Some(Stage::Dead) => slots.begin_burial(slot, burier),
            Some(Stage::Orphaned) if wakes(slot) => slots.wake_orphans(slot, burier),
            _ => false,
        };
        if is_mine {
            dead[found] = slot;
            found += 1;
        }
    }
    let pages = at_door + bury(segment, burier, &dead[..found], orphans);
    if at_door > 0 && found == 0 {
        // A live sender's pages were freed, and no burial has counted.
        recount(segment);
    }
    Recovery { processes, pages }
}

/// Makes a slot dead whose process has ended. `false`: it lives, as far as can be known here, or
/// another survivor was faster.
fn kill_ended(segment: &Segment, slot: usize, seen: SlotWord, burier: usize) -> bool {
    let (slots, locks) = (segment.slots(), segment.locks());
    if locks.take(slot) == Ok(true) {
        // No process is in the slot, and none joins as long as this one has the lock.
        let is_killed = slots.kill(slot, seen, burier);
        locks.release(slot);
        return is_killed;
    }
    let is_known = seen.stage() == Some(Stage::Live);
    is_known && has_exited(slots.identity(slot)) && slots.kill(slot, seen, burier)
}

/// Ends the claims of a process that has died as it buried others without a slot. Returns the
/// number of frames that were freed.
fn end_claims_of_door(segment: &Segment, burier: usize) -> u64 {
    let (slots, locks) = (segment.slots(), segment.locks());
    let has_door = burier == DOOR;
    if !slots.have_burier(DOOR) || !has_door && locks.take(DOOR) != Ok(true) {
        return 0;
    }
    // Since this process has the door's lock, no other that lives has the bit.
    let is_door = |slot| slot == DOOR && !segment.is_forked();
    let freed = segment.messages().return_claims(is_door, burier);
    if segment.is_forked() {
        return freed;
    }
    // Last: by the bit survivors of this process find what it has left.
    slots.forget_burier(DOOR);
    if !has_door {
        locks.release(DOOR);
    }
    freed
}

/// Frees the frames of dead slots, in whose words the burier is, or leaves them to heirs, and opens
/// the slots again. Returns the number of frames that were freed.
fn bury(segment: &Segment, burier: usize, dead: &[usize], orphans: Orphans) -> u64 {
    if dead.is_empty() {
        return 0;
    }
    let (slots, owners, messages) = (segment.slots(), segment.owners(), segment.messages());
    // A child that a handler forked goes no further, since its parent may have ended the burial.
    let goes_on = || !segment.is_forked();
    let groups = || (0..owners.groups()).take_while(|_| goes_on());
    let mut pages = messages.return_claims(|slot| goes_on() && dead.contains(&slot), burier);
    let has_heir: [bool; SLOTS] = std::array::from_fn(|slot| slots.count(slot, HEIR) != 0);
    let heirless = dead.iter().filter(|&&slot| !has_heir[slot]);
    pages += owners.give_all(groups(), &held_by(heirless), Owner::FREE);
    for slot in dead.iter().filter(|&&slot| has_heir[slot]) {
        owners.give_all(groups(), &held_by([slot]), Owner::estate(*slot));
    }
    if orphans == Orphans::AllGoBack {
        let estates = dead.iter().map(|&slot| Owner::estate(slot));
        pages += owners.give_all(groups(), &OwnerSet::new(estates), Owner::FREE);
    }
    if orphans != Orphans::Stay {
        let is_theirs = |owner| goes_on() && dead.iter().any(|&slot| owner == Owner::sent(slot));
        pages += messages.take_back(is_theirs, burier);
    }
    let counts = owners.count();
    for &slot in dead.iter().take_while(|_| goes_on()) {
        let sent = orphans_of(slot, &counts);
        let sent_ever = sent.wrapping_add(slots.count(slot, CLAIMED));
        // Relaxed, both: the swap that ends the burial publishes them to a joiner.
        slots.word(slot, TAKEN).store(sent_ever, Ordering::Relaxed);
        slots.word(slot, SENT).store(sent_ever, Ordering::Relaxed);
        if slot != burier {
            slots.forget_burier(slot);
        }
        slots.add(slot, BURIED, 1);
        slots.end_burial(slot, burier, sent > 0);
    }
    recount(segment);
    pages
}

fn held_by<'s>(slots: impl IntoIterator<Item = &'s usize>) -> OwnerSet {
    OwnerSet::new(slots.into_iter().map(|&slot| Owner::slot(slot)))
}

/// Pages that were sent and not claimed, and that were left to an heir.
fn orphans_of(slot: usize, counts: &OwnerCounts) -> u64 {
    counts.of(Owner::sent(slot)) + counts.of(Owner::estate(slot))
}

/// Corrects the counts that a process has left wrong by its death: the pages that have memory, and
/// those that were claimed. A process counts a claim beside the step that it counts, in the words
/// of the sender, which lives on; all other counts of a slot are its process's own, and a burial
/// sets them. While other processes change the segment, it may leave a count wrong by what they are
/// about to change: until the next recount.
pub fn recount(segment: &Segment) {
    for _ in 0..4 {
        let seen = Census::take(segment);
        if seen.is_exact() {
            return;
        }
        seen.correct(segment, &Census::take(segment));
    }
}

/// Counts of a segment beside what they count.
struct Census {
    /// Pages of each slot that were sent ever, those of them that were claimed, and those that are
    /// there.
    sent: [(u64, u64, u64); SLOTS],
    /// Pages that have memory: as it is written, and as there are.
    present: (u64, u64),
}

impl Census {
    fn take(segment: &Segment) -> Self {
        let (slots, layout) = (segment.slots(), segment.layout());
        let words = |slot| (slots.count(slot, SENT), slots.count(slot, CLAIMED));
        let words: [_; SLOTS] = std::array::from_fn(words);
        // Relaxed: a count.
        let present = segment.present().load(Ordering::Relaxed);
        let counts = segment.owners().count();
        let sent = |slot: usize| {
            let (sent, claimed) = words[slot];
            (sent, claimed, orphans_of(slot, &counts))
        };
        let absent = counts.of(Owner::ABSENT);
        let there = u64::from(layout.padding().end).saturating_sub(absent);
        let there = there.min(layout.frames.into());
        Census { sent: std::array::from_fn(sent), present: (present, there) }
    }

    fn is_exact(&self) -> bool {
        let is_right =
            |(sent, claimed, there): &(u64, u64, u64)| sent.wrapping_sub(*claimed) == *there;
        self.present.0 == self.present.1 && self.sent.iter().all(is_right)
    }

    /// Corrects each count that a later look has found as it was, beside the pages that are there.
    fn correct(&self, segment: &Segment, later: &Self) {
        let slots = segment.slots();
        let correct = |word: &AtomicU64, from, to| {
            // Relaxed, both: a count.
            let _ = word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        };
        for (slot, (seen, again)) in self.sent.iter().zip(&later.sent).enumerate() {
            let (sent, claimed, there) = *seen;
            if seen == again {
                correct(slots.word(slot, CLAIMED), claimed, sent.wrapping_sub(there));
            }
        }
        if self.present == later.present {
            correct(segment.present(), self.present.0, self.present.1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pagedepot::{Backing as _, Block, Mobility, Order, ZoneId};

    use super::*;
    use crate::shared::messages::Token;
    use crate::shared::{ClaimError, SentPage, SharedDepot, SharedOptions};
    use crate::test_units::in_child;

    /// A process was killed as it sent a page, before the page was another's. Its frame is handed
    /// out again, and the number that the message would have had is guessed: it changes nothing.
    #[test]
    fn a_guessed_message_frees_no_page_of_the_claimer() {
        let options = SharedOptions::new(1 << 20).answers(false);
        let depot = SharedDepot::create_memfd("test", &options).unwrap();
        let page = depot.page(Order::BASE).unwrap();
        let (first, dead) = (page.pfn().get(), depot.slot() + 1);
        let token = depot.store().segment().messages().write(first, 0, dead);
        let guess = u128::from(first) | u128::from(token.number()) << 32;
        let guess = SentPage::from_bits(guess | (dead as u128) << 64);
        let owner = || depot.store().segment().owners().owner(first);
        assert_eq!(depot.claim(guess).unwrap_err(), ClaimError::Gone);
        assert_eq!(owner(), Some(Owner::slot(depot.slot())));
        let (mut got, mut errors) = (Vec::new(), Vec::new());
        depot.claim_pages(&[guess, guess], &mut got, |_, error| errors.push(error));
        assert_eq!((got.len(), errors), (0, vec![ClaimError::Gone; 2]));
        assert_eq!(owner(), Some(Owner::slot(depot.slot())));
        drop(page);
        assert_eq!((depot.refused_pages(), depot.segment_stats().lost_pages), (0, 0));
    }

    /// A process without a slot dies as it takes back what a dead one has sent, and a survivor has
    /// ended that burial. The page goes back.
    #[test]
    fn a_claim_of_the_door_ends_with_its_process() {
        for orphans in [Orphans::Stay, Orphans::GoBack] {
            let options = SharedOptions::new(1 << 20).answers(false);
            let depot = SharedDepot::create_memfd("test", &options).unwrap();
            let options = SharedOptions::join().answers(false);
            let sender = SharedDepot::adopt(depot.file(), &options).unwrap();
            let (slot, page) = (sender.slot(), sender.page(Order::BASE).unwrap());
            let first = page.pfn().get();
            let sent = page.into_shared(&sender).unwrap();
            drop(sender);
            let segment = depot.store().segment();
            let message = Token::new((sent.to_bits() >> 32) as u32, 0, slot);
            assert!(segment.slots().wake_orphans(slot, DOOR));
            assert!(segment.messages().win(first, message, DOOR));
            assert_eq!(depot.claim(sent).unwrap_err(), ClaimError::Gone);
            assert_eq!(depot.recover(orphans).pages, 1);
            assert!(!segment.slots().have_burier(DOOR));
            assert_eq!(depot.claim(sent).unwrap_err(), ClaimError::Gone);
            depot.recover(Orphans::Stay);
            assert_eq!(depot.segment_stats().processes.len(), 1, "the slot is open again");
        }
    }

    /// A handler forks above a free and a burial, and the child goes on there.
    #[test]
    fn a_child_of_a_handler_frees_and_buries_nothing() {
        let options = SharedOptions::new(1 << 20).answers(false);
        let depot = SharedDepot::create_memfd("test", &options).unwrap();
        let other = SharedDepot::adopt(depot.file(), &options).unwrap();
        let pages = [&depot, &other].map(|depot| depot.page(Order::BASE).unwrap());
        let (segment, dead) = (depot.store().segment(), other.slot());
        let slots = segment.slots();
        assert!(slots.kill(dead, slots.look(dead), depot.slot()));
        let block = Block::new(pages[0].pfn(), Order::BASE, Mobility::Unmovable);
        let before = depot.segment_stats();
        in_child(|| {
            depot.store().put(ZoneId::new(0), &[block]);
            bury(segment, depot.slot(), &[dead], Orphans::AllGoBack);
        });
        assert_eq!(depot.segment_stats(), before);
        assert!(bury(segment, depot.slot(), &[dead], Orphans::Stay) > 0);
    }

    /// A process that has left is not one that died, though a recovery opens its slot.
    #[test]
    fn a_process_that_has_left_is_not_counted_as_dead() {
        let options = SharedOptions::new(1 << 20).answers(false);
        let depot = SharedDepot::create_memfd("test", &options).unwrap();
        let other = SharedDepot::adopt(depot.file(), &options).unwrap();
        let sent = other.page(Order::BASE).unwrap().into_shared(&other).unwrap();
        drop(other);
        drop(depot.claim(sent).unwrap());
        assert_eq!(depot.recover(Orphans::Stay), Recovery::default());
        assert_eq!(depot.segment_stats().processes.len(), 1, "the slot is open again");
    }

    /// A table that is torn has buriers in the words of slots in which no process is.
    #[test]
    fn a_slot_opens_when_its_buriers_slot_is_joined() {
        let options = SharedOptions::new(1 << 20).answers(false);
        let depot = SharedDepot::create_memfd("test", &options).unwrap();
        for (slot, burier) in [(20, 3), (21, 30), (5, 5)] {
            let word = depot.store().segment().slots().word(slot, 0);
            word.fetch_or(1 << burier, Ordering::Relaxed);
        }
        let join = || SharedDepot::adopt(depot.file(), &options).ok();
        assert_eq!(std::iter::from_fn(join).collect::<Vec<_>>().len(), SLOTS - 1);
    }

    /// While a process holds the door's lock it may be at work, and keeps what it has claimed.
    #[test]
    fn a_claim_of_the_door_lasts_as_long_as_its_process() {
        let options = SharedOptions::new(1 << 20).answers(false);
        let depot = SharedDepot::create_memfd("test", &options).unwrap();
        let [other, joiner] = [0; 2].map(|_| SharedDepot::adopt(depot.file(), &options).unwrap());
        let locks = joiner.store().segment().locks();
        assert_eq!(locks.take(DOOR), Ok(true));
        let sent = depot.page(Order::BASE).unwrap().into_shared(&depot).unwrap();
        let segment = depot.store().segment();
        let (first, number) = (sent.to_bits() as u32, (sent.to_bits() >> 32) as u32);
        assert!(segment.messages().win(first, Token::new(number, 0, depot.slot()), DOOR));
        // The bit of the door in some slot's word: here in that of one that has left.
        let slot = other.slot();
        drop(other);
        let slots = segment.slots();
        let word = slots.word(slot, 0);
        word.fetch_or(1 << DOOR, Ordering::Relaxed);
        depot.recover(Orphans::GoBack);
        assert!(slots.have_burier(DOOR) && depot.claim(sent).is_err());
        locks.release(DOOR);
        assert_eq!(depot.recover(Orphans::GoBack).pages, 1);
        assert!(!slots.have_burier(DOOR) && depot.claim(sent).is_err());
    }
}
