//! Joining and leaving a segment, and burying those who did not leave.

use super::error::SegmentError;
use super::owners::{Owner, OwnerSet};
use super::process::{has_ended, identity};
use super::segment::Segment;
use super::slots::{BURIED, DOOR, HELD, SENT, SLOTS, Stage};
use crate::system::prim::Ordering;

/// The result of a look for dead processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Processes that had ended without leaving.
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
}

/// Takes a slot for this process. Returns its number.
pub fn join(segment: &Segment) -> Result<usize, SegmentError> {
    if let Some(slot) = take_slot(segment)? {
        return Ok(slot);
    }
    // Nothing is empty: bury the dead first, without a slot.
    let locks = segment.locks();
    if !locks.take(DOOR).map_err(SegmentError::system("locking the segment"))? {
        return Err(SegmentError::Busy);
    }
    segment.slots().forget_burier(DOOR);
    bury_dead(segment, DOOR, Orphans::Stay);
    let joined = take_slot(segment);
    locks.release(DOOR);
    joined?.ok_or(SegmentError::Full)
}

fn take_slot(segment: &Segment) -> Result<Option<usize>, SegmentError> {
    let (slots, locks) = (segment.slots(), segment.locks());
    for slot in 0..SLOTS {
        if slots.look(slot).stage() != Some(Stage::Empty) || slots.look(slot).has_buriers() {
            continue;
        }
        // Before the word says so: whoever finds the slot taken and its lock free buries it.
        if !locks.take(slot).map_err(SegmentError::system("locking the segment"))? {
            continue;
        }
        if slots.begin_join(slot) && slots.go_live(slot, identity()) {
            return Ok(Some(slot));
        }
        locks.release(slot);
    }
    Ok(None)
}

/// Gives this process's slot back, and all frames that it still has.
pub fn leave(segment: &Segment, slot: usize) {
    let slots = segment.slots();
    let seen = slots.look(slot);
    // If a survivor has taken this process for dead, that buries it.
    if seen.stage() == Some(Stage::Live) && slots.kill(slot, seen, slot) {
        bury(segment, slot, &[slot], Orphans::Stay);
    }
    segment.locks().release(slot);
}

/// Buries all processes that have ended without leaving. `burier`: the caller's slot, or the door.
pub fn bury_dead(segment: &Segment, burier: usize, orphans: Orphans) -> Recovery {
    let (slots, locks) = (segment.slots(), segment.locks());
    let mut dead = Vec::new();
    for slot in (0..SLOTS).filter(|&slot| slot != burier) {
        let seen = slots.look(slot);
        let is_mine = match seen.stage() {
            Some(Stage::Live) => {
                let has_ended = has_ended(slots.identity(slot), locks, slot, segment.name());
                has_ended && slots.kill(slot, seen, burier)
            }
            Some(Stage::Joining) => {
                locks.is_held(slot) == Ok(false) && slots.kill(slot, seen, burier)
            }
            Some(Stage::Dead) => slots.begin_burial(slot, burier),
            Some(Stage::Orphaned) if orphans == Orphans::GoBack || !has_sent(segment, slot) => {
                slots.wake_orphans(slot, burier)
            }
            _ => false,
        };
        if is_mine {
            dead.push(slot);
        }
    }
    bury(segment, burier, &dead, orphans)
}

fn has_sent(segment: &Segment, slot: usize) -> bool {
    segment.slots().count(slot, SENT) as i64 > 0
}

/// Frees the frames of dead slots, in whose words the burier is, and opens the slots again.
fn bury(segment: &Segment, burier: usize, dead: &[usize], orphans: Orphans) -> Recovery {
    if dead.is_empty() {
        return Recovery::default();
    }
    let (slots, owners) = (segment.slots(), segment.owners());
    let held = dead.iter().map(|&slot| Owner::slot(slot));
    let sent = dead.iter().filter(|_| orphans == Orphans::GoBack).map(|&slot| Owner::sent(slot));
    let pages = owners.give_all(&OwnerSet::new(held.chain(sent)), Owner::FREE);
    let counts = owners.count();
    let mut processes = 0;
    for &slot in dead {
        let sent = counts[Owner::sent(slot).index()];
        // Relaxed, both: the swap that ends the burial publishes them to a joiner.
        slots.word(slot, HELD).store(0, Ordering::Relaxed);
        slots.word(slot, SENT).store(sent, Ordering::Relaxed);
        if slot != burier {
            processes += 1;
            slots.forget_burier(slot);
        }
        slots.add(slot, BURIED, 1);
        slots.end_burial(slot, burier, sent > 0);
    }
    Recovery { processes, pages }
}
