//! The processes of a segment, each in a slot, found dead and buried by any survivor.
//!
//! # The word of a slot
//! | bits | field |
//! |---|---|
//! | 0..=46 | buriers: the slots of the processes that are burying the one in this slot |
//! | 47 | a burier without a slot, which has the lock of the door |
//! | 48..=51 | [`Stage`] |
//! | 52..=63 | how often the slot was joined, modulo 4096 |
//!
//! Transitions, each one compare-and-swap of the word:
//! * join: empty, without buriers -> joining, one more join; then joining -> live;
//! * leave: live -> dead, by the process itself, which buries itself;
//! * death: live or joining -> dead, by a survivor that found the process dead;
//! * begin: a burier adds its bit to those of a dead slot, unless it is there: then another thread
//!   of the same process buries already;
//! * end: a burier that has given all frames of the slot away takes its bit out, dead -> empty, or
//!   orphaned if the process had sent frames that no process has claimed yet, or left some to an
//!   heir;
//! * orphaned -> dead, by a caller that wants those back;
//! * hold: an heir adds its bit to those of an orphaned or a dead slot while it takes a frame, and
//!   takes it out.
//!
//! # Argument
//! * A process owns frames only while its slot is live. It has put its identity into the slot
//!   before, so a survivor that reads the word, then the identity, judges the process that the
//!   word belongs to: the compare-and-swap to dead fails if the word has changed.
//! * No frames are made of a dead slot's process: it is dead. So any number of buriers may walk
//!   over the table at once, each frame is freed by one compare-and-swap, and a walk that came to
//!   its end after the death has seen all. The first to end makes the slot empty. No process joins
//!   it before the last burier has ended, as its bit keeps joiners out: a burier that sleeps for an
//!   hour frees nothing of a later process. Explored by `tests/loom/slots.rs`.
//! * A burier may die, too. Its bit stays, and keeps the slot closed until its own burial takes it
//!   out of all words ([`Slots::forget_burier`]) before its slot is empty. The bit of the door is
//!   taken out by the next burier that finds it and gets the door's lock, which the kernel drops at
//!   a death. The bit is there as long as a message may have the door for its claimer.
//! * So no word has the bit of a slot that is empty, unless the table is torn. A process that joins
//!   takes its slot's bit out of all words before, with the lock of the empty slot: none buries
//!   from there meanwhile.
//! * A process has the lock of its slot from before it joins until its address space has gone, or
//!   it leaves. The lock is that of an open file description, which the kernel closes when nothing
//!   refers to it any more: once the process has joined, the descriptor is closed, and a page is
//!   mapped that a fork does not copy. A survivor that gets the lock knows that it is no process's,
//!   and none joins while it has the lock: so the word that it swaps is the one that it judged,
//!   however long it slept before.
//! * This assumes that a mapping refers to the file that was opened. Some file systems map another
//!   one, and the lock goes with the last descriptor: overlayfs has a file of its upper layer
//!   mapped, FUSE with passthrough the backing file (`backing_file_mmap` of Linux). A trial cannot
//!   tell: a child that another thread forks meanwhile has the descriptor, and the lock with it,
//!   until that child has ended, and then the process would be taken for dead. So the page is used
//!   on file systems that are known to map the file that was opened, and on no other.
//! * Where there is no such page, the lock is that of the descriptor by which all is mapped, and
//!   which stays open until the process has ended, has executed another program, or drops the
//!   segment after it has left. So the lock is not free while the process lives. That a program
//!   closes no descriptors but its own is a rule of Rust's, and `how-to-share.md` says what happens
//!   otherwise.
//! * A child has the lock of a parent that has died if it shares the parent's address space, if
//!   another thread forked it while the parent joined, or if the parent had no such page: without
//!   `/proc`, on another file system, or where the system refuses `MADV_DONTFORK`. Then a survivor
//!   judges by the identity and swaps without the lock. The word would be another's only if the
//!   child had ended and a multiple of 4096 processes had joined the slot in between. A parent that
//!   has executed another program still has its identity: it stays in its slot until the child has
//!   ended or executed a program.
//! * A process that leaves unmaps that page, or unlocks where it has none. A child that was forked
//!   while it joined keeps the lock all the same, and others pass the empty slot by.
//! * A process that dies while it joins has no frames. Its lock says that it is dead: the identity
//!   in the slot may be another's.

use crate::system::prim::{AtomicU64, Mutant, Ordering, is_mutant, look};

/// Number of slots. Models have few.
pub const SLOTS: usize = if cfg!(loom) { 3 } else { 47 };
/// The bit of a burier without a slot.
pub const DOOR: usize = 47;
/// Words of a slot: four cache lines.
pub const SLOT_WORDS: usize = 32;

const BURIERS: u64 = (1 << 48) - 1;
const STAGE_SHIFT: u32 = 48;
const JOIN_SHIFT: u32 = 52;

/// Words of a slot, by line: the word with the identity; counts; requests of others.
const PID: usize = 1;
const START: usize = 2;
const NAMESPACES: usize = 3;
const JOINED_AT: usize = 4;
/// Pages that the process has taken or claimed, less those that it has freed.
pub const TAKEN: usize = 8;
pub const CEILING: usize = 10;
pub const BURIED: usize = 11;
/// The name of the process's heir; 0: none.
pub const HEIR: usize = 12;
/// A word whose lower half is a futex: requests to give back what is cached, and looks for requests
/// of the process itself that wait.
pub const ASKED: usize = 16;
/// Pages that the process has sent: on another line than [`TAKEN`], so that a thread that sends and
/// one that claims do not write one line.
pub const SENT: usize = 20;
pub const ANSWERED: usize = 24;
/// Pages that were sent by the process, and claimed: on another line than its own counts, because
/// claimers write it.
pub const CLAIMED: usize = 28;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// No process has the slot.
    Empty = 0,
    /// A process is taking it.
    Joining = 1,
    /// A process has it, and may own frames.
    Live = 2,
    /// The process has ended, and survivors free what it had.
    Dead = 3,
    /// The process has ended, and had sent frames that were not claimed, or has an heir.
    Orphaned = 4,
}

/// The word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotWord(u64);

impl SlotWord {
    /// The stage of the slot. `None` is for a value that is never written.
    pub fn stage(self) -> Option<Stage> {
        let stages = [Stage::Empty, Stage::Joining, Stage::Live, Stage::Dead, Stage::Orphaned];
        stages.get((self.0 >> STAGE_SHIFT & 0xf) as usize).copied()
    }

    fn is(self, stage: Stage) -> bool {
        self.stage() == Some(stage)
    }

    pub fn has_buriers(self) -> bool {
        self.0 & BURIERS != 0
    }

    fn has(self, burier: usize) -> bool {
        self == self.with(burier)
    }

    fn at(self, stage: Stage) -> Self {
        SlotWord(self.0 & !(0xf << STAGE_SHIFT) | (stage as u64) << STAGE_SHIFT)
    }

    fn with_join(self) -> Self {
        SlotWord(self.0.wrapping_add(1 << JOIN_SHIFT))
    }

    fn with(self, burier: usize) -> Self {
        SlotWord(self.0 | 1 << burier)
    }

    fn without(self, burier: usize) -> Self {
        SlotWord(self.0 & !(1 << burier))
    }
}

/// The process in a slot, as it described itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    pub pid: u64,
    /// Clock ticks from boot to its start; 0: not known.
    pub start: u64,
    /// The numbers of its PID and time namespaces; 0: not known.
    pub namespaces: u64,
    /// Seconds of the epoch at which it joined.
    pub joined_at: u64,
}

/// All slots.
#[derive(Clone, Copy)]
pub struct Slots<'s>(&'s [AtomicU64]);

impl<'s> Slots<'s> {
    /// The slots in these words.
    pub fn new(words: &'s [AtomicU64]) -> Self {
        assert_eq!(words.len(), SLOTS * SLOT_WORDS);
        Slots(words)
    }

    /// A word of a slot.
    pub fn word(&self, slot: usize, word: usize) -> &'s AtomicU64 {
        &self.0[slot * SLOT_WORDS + word]
    }

    /// Looks at a slot.
    pub fn look(&self, slot: usize) -> SlotWord {
        // Acquire: pairs with the Release of `go_live`, for the identity.
        SlotWord(look(self.word(slot, 0)))
    }

    /// Slots at a stage.
    pub fn at(&self, stage: Stage) -> impl Iterator<Item = usize> {
        let slots = *self;
        (0..SLOTS).filter(move |&slot| slots.look(slot).is(stage))
    }

    fn swap(&self, slot: usize, from: SlotWord, to: SlotWord) -> bool {
        // AcqRel: a joiner sees what buriers have done, and a burier what the process has.
        let word = self.word(slot, 0);
        word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Changes a slot's word as `next` says, again whenever another caller was faster. Returns
    /// `None` if `next` had nothing to do.
    fn update(&self, slot: usize, next: impl Fn(SlotWord) -> Option<SlotWord>) -> Option<SlotWord> {
        loop {
            let now = self.look(slot);
            let new = next(now)?;
            if self.swap(slot, now, new) {
                return Some(new);
            }
        }
    }

    /// Takes an empty slot, whose lock the caller has. `false`: it is not empty.
    pub fn begin_join(&self, slot: usize) -> bool {
        let now = self.look(slot);
        let is_free = now.is(Stage::Empty) && !now.has_buriers();
        is_free && self.swap(slot, now, now.at(Stage::Joining).with_join())
    }

    /// Describes the process, and lets it own frames. `false`: it was taken for dead.
    pub fn go_live(&self, slot: usize, identity: Identity) -> bool {
        let Identity { pid, start, namespaces, joined_at } = identity;
        let texts = [(PID, pid), (START, start), (NAMESPACES, namespaces), (JOINED_AT, joined_at)];
        let counts = [(TAKEN, 0), (SENT, 0), (CLAIMED, 0), (CEILING, 0), (HEIR, 0)];
        for (word, value) in texts.into_iter().chain(counts) {
            // Relaxed: published by the swap.
            self.word(slot, word).store(value, Ordering::Relaxed);
        }
        let now = self.look(slot);
        now.is(Stage::Joining) && self.swap(slot, now, now.at(Stage::Live))
    }

    /// The process in a slot, as it described itself.
    pub fn identity(&self, slot: usize) -> Identity {
        // Relaxed: read after the word, which is compared again.
        let read = |word| self.word(slot, word).load(Ordering::Relaxed);
        Identity {
            pid: read(PID),
            start: read(START),
            namespaces: read(NAMESPACES),
            joined_at: read(JOINED_AT),
        }
    }

    /// Makes a slot dead whose process ended when the slot had this word, with a burier.
    pub fn kill(&self, slot: usize, seen: SlotWord, burier: usize) -> bool {
        self.swap(slot, seen, seen.at(Stage::Dead).with(burier))
    }

    /// Joins in the burial of a dead slot. `false`: it is not dead, or another thread of this
    /// burier is at work, whose bit keeps the slot closed until that thread ends, and no longer.
    pub fn begin_burial(&self, slot: usize, burier: usize) -> bool {
        let is_other = |now: SlotWord| !now.has(burier) || is_mutant(Mutant::BuriesTwice);
        let is_open = |now: SlotWord| now.is(Stage::Dead) && is_other(now);
        if is_mutant(Mutant::BuriesUnseen) {
            return is_open(self.look(slot));
        }
        self.update(slot, |now| is_open(now).then(|| now.with(burier))).is_some()
    }

    /// Ends a burier's part. All frames of the slot's process have been given away, except those
    /// that it had sent, if there are `orphans`.
    pub fn end_burial(&self, slot: usize, burier: usize, orphans: bool) {
        let next = if orphans { Stage::Orphaned } else { Stage::Empty };
        self.update(slot, |now| {
            let now = now.without(burier);
            Some(if now.is(Stage::Dead) { now.at(next) } else { now })
        });
    }

    /// Whether a burier is at work, or has died at work.
    pub fn have_burier(&self, burier: usize) -> bool {
        (0..SLOTS).any(|slot| self.look(slot).has(burier))
    }

    /// Takes a dead burier out of all slots. To be done before its own slot can be empty.
    pub fn forget_burier(&self, burier: usize) {
        (0..SLOTS).for_each(|slot| self.release(slot, burier));
    }

    /// Calls `act` if the slot is that of a process which has ended and had named this heir, and
    /// keeps joiners out meanwhile, as a burier does. Returns whether `act` did what it is for. No
    /// other thread of this burier is at work.
    pub fn while_left_to(
        &self,
        heir: u64,
        slot: usize,
        burier: usize,
        act: impl FnOnce() -> bool,
    ) -> bool {
        let is_over = |now: SlotWord| now.is(Stage::Dead) || now.is(Stage::Orphaned);
        let is_held = match is_mutant(Mutant::InheritsUnseen) {
            true => is_over(self.look(slot)),
            false => self.update(slot, |now| is_over(now).then(|| now.with(burier))).is_some(),
        };
        let is_done = is_held && self.count(slot, HEIR) == heir && act();
        if is_held {
            self.release(slot, burier);
        }
        is_done
    }

    /// Takes a burier out of a slot.
    fn release(&self, slot: usize, burier: usize) {
        self.update(slot, |now| now.has(burier).then(|| now.without(burier)));
    }

    /// Makes an orphaned slot dead again, so that a burial takes back what its process had sent.
    pub fn wake_orphans(&self, slot: usize, burier: usize) -> bool {
        let dead = |now: SlotWord| now.at(Stage::Dead).with(burier);
        self.update(slot, |now| now.is(Stage::Orphaned).then(|| dead(now))).is_some()
    }

    /// Adds to a count of a slot.
    pub fn add(&self, slot: usize, word: usize, more: i64) {
        // Relaxed: a count publishes nothing. Wrapping: it may be another process's, and hostile.
        self.word(slot, word).fetch_add(more as u64, Ordering::Relaxed);
    }

    pub fn count(&self, slot: usize, word: usize) -> u64 {
        // Relaxed: a count is only looked at.
        self.word(slot, word).load(Ordering::Relaxed)
    }

    /// Pages that the process in a slot holds or caches.
    pub fn held(&self, slot: usize) -> u64 {
        // First: a page that is taken and sent meanwhile is counted, or is not.
        let sent = self.count(slot, SENT);
        let held = self.count(slot, TAKEN).wrapping_sub(sent) as i64;
        held.max(0) as u64
    }

    /// Pages that the process in a slot has sent, and that were not claimed.
    pub fn sent(&self, slot: usize) -> u64 {
        // First: of a page that is sent and claimed meanwhile the claim is not counted.
        let claimed = self.count(slot, CLAIMED);
        let sent = self.count(slot, SENT).wrapping_sub(claimed) as i64;
        sent.max(0) as u64
    }

    /// Pages that belong to the slot: those that are held, and those that were sent.
    pub fn taken(&self, slot: usize) -> u64 {
        self.count(slot, TAKEN).wrapping_sub(self.count(slot, CLAIMED))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::test_units::zeroed_words;

    fn slots() -> Slots<'static> {
        Slots::new(zeroed_words(SLOTS * SLOT_WORDS))
    }

    fn join(slots: Slots<'_>, slot: usize) -> bool {
        slots.begin_join(slot) && slots.go_live(slot, Identity { pid: 7, ..Identity::default() })
    }

    #[test]
    fn a_slot_is_joined_again_after_its_last_burier() {
        let slots = slots();
        assert!(join(slots, 3) && !join(slots, 3));
        let seen = slots.look(3);
        assert!(slots.kill(3, seen, 1) && !slots.kill(3, seen, 1));
        assert!(slots.begin_burial(3, 2));
        slots.end_burial(3, 1, false);
        assert_eq!(slots.look(3).stage(), Some(Stage::Empty));
        assert!(!join(slots, 3), "a burier is at work");
        slots.end_burial(3, 2, false);
        assert!(join(slots, 3));
        // What was seen before is another process.
        assert!(!slots.kill(3, seen, 1));
    }

    /// A recount beside a process that is about to send pages counts claims of them before.
    #[test]
    fn no_fewer_than_no_pages_were_sent() {
        let slots = slots();
        slots.add(3, CLAIMED, 1);
        assert_eq!(slots.sent(3), 0);
        slots.add(3, SENT, 5);
        assert_eq!(slots.sent(3), 4);
    }

    /// Two threads of a process look for the dead. If both buried, the first to end would open the
    /// slot, and the other would free the pages of the process that joins it then.
    #[test]
    fn a_process_buries_a_slot_by_one_thread() {
        let slots = slots();
        assert!(join(slots, 3) && slots.kill(3, slots.look(3), 1));
        assert!(!slots.begin_burial(3, 1), "the thread that found it dead buries it");
        assert!(slots.begin_burial(3, 2) && !slots.begin_burial(3, 2));
        slots.end_burial(3, 1, false);
        assert!(!join(slots, 3));
        slots.end_burial(3, 2, false);
        assert!(join(slots, 3));
    }

    #[test]
    fn a_dead_burier_is_forgotten() {
        let slots = slots();
        assert!(join(slots, 0) && slots.kill(0, slots.look(0), DOOR));
        assert!(slots.begin_burial(0, 5));
        slots.end_burial(0, DOOR, true);
        assert_eq!(slots.look(0).stage(), Some(Stage::Orphaned));
        slots.forget_burier(5);
        assert!(!slots.look(0).has_buriers());
        assert!(slots.wake_orphans(0, 1) && !slots.wake_orphans(0, 1));
        slots.end_burial(0, 1, false);
        assert!(join(slots, 0));
    }
}
