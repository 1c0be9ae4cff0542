//! Ceilings that follow the limit of the container.
//!
//! # The figure
//! Of a cgroup's limit a margin is left free. What its processes use and cannot drop, less what is
//! present of the depots, is used by others: the program's heap, other programs. The rest is for
//! the depots. So a depot may have what is present of it now, and its share of what is left:
//!
//! `ceiling = present + (limit - margin - used)`
//!
//! The cgroup with the least left decides, of this process's own and those above it. When others
//! take more, less is left, and the ceiling sinks at the next look. Page cache does not count as
//! used: the kernel drops it before it kills.
//!
//! What is present is counted (`mincore`, about a millisecond per GiB) when what is left has
//! changed, or when depots have given memory back: otherwise others may have taken what a depot
//! gave, and the ceiling would be too high by as much. Where the system does not say what is
//! present, a depot keeps the ceiling that it has.
//!
//! Of a depot that processes share the ceiling is that of this process. What is present and others
//! hold counts for nothing: to take a free page that is present costs the container nothing.
//!
//! Huge pages of the system's pool are in no figure of a cgroup, unless version 2 is mounted with
//! `memory_hugetlb_accounting` (Linux 6.7). A depot of them has no share of the room then, and no
//! ceiling.
//!
//! # Why it holds between two looks
//! No request gets a page above a ceiling, however fast the program allocates. Only what others
//! take between two looks is not foreseen, which the margin is for.

use crate::depot::handle::Depot;
use crate::error::CeilingError;
use crate::giving_back::balloon::{Listener, MonitorId};
use crate::memory::region::resident_bytes_of;
use crate::reclaim::Ceiling;
use crate::system::first_panic::FirstPanic;

/// A change of what is left is too small to look at what is present again if it is below this share
/// of the limit.
const CHANGE_SHARE: u64 = 128;

/// The room that the tightest cgroup has for depots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub limit_bytes: u64,
    /// The limit less the margin and less what is used; negative when it is exceeded.
    pub left_bytes: i64,
}

/// The changes of the ceilings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CeilingSum {
    /// The bytes that the depots with a ceiling may have together.
    pub ceiling_bytes: u64,
    /// Depots that cannot have a ceiling.
    pub unprotected: u64,
    /// Bytes that must be freed before the ceilings are as low as they should be.
    pub held_bytes: u64,
    /// Bytes that were present, and were given back to the system because they lie above a ceiling
    /// now: by this call, or by none.
    pub given_back_bytes: u64,
}

/// Sets the ceilings of a monitor's depots.
#[derive(Debug)]
pub(super) struct Follower {
    /// The monitor whose ceilings these are: other monitors of the depots have theirs.
    id: MonitorId,
    /// The thread that answers requests which reach these ceilings, if there is one.
    pub listener: Option<Listener>,
    /// Whether the limit counts huge pages of the system's pool.
    counts_huge_pages: bool,
    /// The room when the ceilings were last set, and the bytes that depots had given back by then.
    last: Option<(Room, usize)>,
    /// Whether depots may have ceilings that this has set.
    is_set: bool,
    followed: CeilingSum,
}

impl Follower {
    pub fn new(counts_huge_pages: bool) -> Self {
        let followed = CeilingSum::default();
        let id = MonitorId::default();
        Follower { id, listener: None, counts_huge_pages, last: None, is_set: false, followed }
    }

    /// Has a thread answer requests that reach the ceilings: the next call that follows sets all.
    pub fn listen(&mut self, listener: Listener) {
        (self.listener, self.last) = (Some(listener), None);
    }

    /// Whether depots may have ceilings of this monitor.
    pub fn may_have_ceilings(&self) -> bool {
        self.is_set
    }

    /// Sets the ceilings if `room` has changed by much, or if too much was held for them. `None`:
    /// there is no limit.
    pub fn follow(&mut self, depots: &[Depot], room: Option<Room>) -> CeilingSum {
        let Some(room) = room else {
            self.let_go(depots);
            return self.followed;
        };
        let dropped = depots.iter().map(|depot| depot.shared().memory().dropped_bytes());
        let dropped_bytes = dropped.fold(0, usize::wrapping_add);
        let most = room.limit_bytes / CHANGE_SHARE;
        let is_near = |(last, dropped): (Room, usize)| {
            last.limit_bytes == room.limit_bytes
                && last.left_bytes.abs_diff(room.left_bytes) <= most
                && dropped_bytes.wrapping_sub(dropped) as u64 <= most
        };
        self.followed.given_back_bytes = 0;
        if self.followed.held_bytes > 0 || !self.last.is_some_and(is_near) {
            // If a callback panics, the next look sets all of them again.
            (self.is_set, self.last) = (true, None);
            let is_complete;
            (self.followed, is_complete) = self.set(depots, room.left_bytes);
            self.last = is_complete.then_some((room, dropped_bytes));
        }
        self.followed
    }

    /// Leaves the depots the ceilings that the program and other monitors set, as the monitor ends.
    /// No request rings for it any more, not even while this waits for a thread that sets a
    /// ceiling, nor if this is a callback of such a call, which lifts those of ended monitors.
    pub fn end(&mut self, depots: &[Depot]) {
        self.id = MonitorId::default();
        self.let_go(depots);
    }

    /// Leaves the depots the ceilings that the program and other monitors set.
    fn let_go(&mut self, depots: &[Depot]) {
        self.last = None;
        if std::mem::take(&mut self.is_set) {
            for depot in depots {
                // A waker that panics keeps no other depot below a ceiling.
                let follow = || Ceiling::of(depot).follow(&self.id, None, None, &mut 0);
                let result = FirstPanic::default().catch(follow);
                // In a callback of the call that sets it: the next look does.
                self.is_set |= result == Some(Err(CeilingError::Reentrant));
            }
        }
        self.followed = CeilingSum::default();
    }

    /// Sets the ceilings. `false`: those of some depot cannot be set now, by a callback that is
    /// called while its own thread sets one.
    fn set(&self, depots: &[Depot], left_bytes: i64) -> (CeilingSum, bool) {
        let is_counted =
            |depot: &&Depot| self.counts_huge_pages || !depot.shared().memory().is_hugetlb();
        let counted = depots.iter().filter(is_counted);
        let all_bytes = counted.clone().map(Depot::bytes).sum::<usize>().max(1);
        let unprotected = (depots.len() - counted.clone().count()) as u64;
        let mut followed = CeilingSum { unprotected, ..CeilingSum::default() };
        let (mut panics, mut is_complete) = (FirstPanic::default(), true);
        for depot in counted {
            let share = i128::from(left_bytes) * depot.bytes() as i128 / all_bytes as i128;
            // Pages of a segment that are present and other processes' are no room for this one.
            let (common, shift) = (depot.shared().common(), depot.page_size().shift());
            let is_room =
                |offset: usize| common.is_none_or(|it| it.is_room((offset >> shift) as u32));
            let Ok(present) = resident_bytes_of(depot.shared().memory(), is_room) else {
                followed.unprotected += 1;
                continue;
            };
            let target = (present as i128 + share).clamp(0, depot.bytes() as i128) as usize;
            let given_back_bytes = &mut followed.given_back_bytes;
            let listener = self.listener.as_ref();
            if listener.is_some() {
                // Where there is no place for a callback, requests fail sooner.
                let _ = depot.shared().ring_at_ceilings();
            }
            let ceiling = Ceiling::of(depot);
            let follow = || ceiling.follow(&self.id, Some(target), listener, given_back_bytes);
            // A depot's callback that panics keeps no other depot without a ceiling.
            let Some(result) = panics.catch(follow) else { continue };
            let reached = match result {
                Ok(bytes) => bytes,
                Err(CeilingError::Held { bytes, reached }) => {
                    followed.held_bytes += reached.saturating_sub(bytes) as u64;
                    reached
                }
                Err(error) => {
                    is_complete &= error != CeilingError::Reentrant;
                    followed.unprotected += 1;
                    continue;
                }
            };
            followed.ceiling_bytes += reached as u64;
        }
        panics.resume();
        (followed, is_complete)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::Order;
    use crate::waiting::answers::{Answers, Ring};

    /// A follower whose listener is a thread with an id that no thread has.
    fn follower() -> Follower {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut follower = Follower::new(false);
        follower.listen(Listener { wake: Arc::new(wake), thread: u32::MAX });
        follower
    }

    /// A monitor that cannot lift its ceiling at once is rung for by requests that reach it.
    #[test]
    fn a_ceiling_that_stays_is_answered() {
        let block = rustix::param::page_size() << 9;
        let depots = [Depot::new(8 * block).unwrap()];
        let ceiling = Ceiling::of(&depots[0]);
        let mut follower = follower();
        let room = Room { limit_bytes: 4 * block as u64, left_bytes: 4 * block as i64 };
        follower.follow(&depots, Some(room));
        assert_eq!(ceiling.bytes(), 4 * block);
        let ring = || ceiling.ring(&Answers::default(), Duration::ZERO) == Ring::Rung;
        assert!(ring());
        let balloon = depots[0].shared().balloon().lock().unwrap();
        // As in a callback of the call that has the lock.
        follower.follow(&depots, None);
        drop(balloon);
        assert!(ceiling.bytes() == 4 * block && ring());
        follower.follow(&depots, None);
        assert!(ceiling.bytes() == 8 * block && !ring());
    }

    /// A monitor is rung for at the ceiling of one depot while it sets that of the next.
    #[test]
    fn a_ceiling_is_answered_from_the_start() {
        let block = rustix::param::page_size() << 9;
        let depots = [(); 2].map(|()| Depot::new(8 * block).unwrap());
        let (first, (told, rings)) = (depots[0].clone(), mpsc::channel());
        let callback = move |_| {
            let _ = told.send(Ceiling::of(&first).ring(&Answers::default(), Duration::ZERO));
            0
        };
        depots[1].on_pressure(callback).unwrap();
        let _held: Vec<_> = (0..6).map(|_| depots[1].page(Order::PAGEBLOCK).unwrap()).collect();
        let room = Room { limit_bytes: 8 * block as u64, left_bytes: 8 * block as i64 };
        follower().follow(&depots, Some(room));
        assert_eq!(rings.try_recv(), Ok(Ring::Rung));
        assert!(depots[0].shared().callbacks().bell().is_some());
    }
}
