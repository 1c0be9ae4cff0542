//! The address spaces of this process, which share its mappings.
//!
//! Memory that was freed stays mapped, whether the space that freed it is used again or not. A
//! request whose own space has purged in vain has the others purge, once.
//!
//! # Argument
//! A request that asks holds no lock, and neither does a thread that adds or removes a space, but
//! for `validate`, which pauses the callbacks of the space's depot before. A purge asks for no
//! frames, and so for no callback. So the list's lock comes before those of each space, after that
//! of a depot's callbacks, and no thread waits in a circle. Under it each purge waits in bounds, as
//! under memory pressure: a space whose locks do not come free is left out.
//!
//! A space is alive while it is in the list: its end takes it out first, and waits for a request
//! that asks. Wakers, which may drop a space, run when the list is free. A child of a process that
//! had a space cannot lock the list: its own spaces are not in it, and do not ask.

use std::sync::Arc;

use pagedepot::{Pressure, ZoneId};

use crate::giving_back::shrinkers::SpaceList;
use crate::system::first_panic::FirstPanic;
use crate::system::fork_mark::ForkMark;
use crate::system::sync::OnceValue;
use crate::waiting::closed_cpus::ClosedCpus;
use crate::waiting::waiters::Waiters;

/// Address spaces that purge for each other.
pub(super) type Spaces = SpaceList<Peer>;

/// An address space, as others of the process know it.
pub(super) struct Peer {
    /// The address where its range begins.
    pub start: usize,
    /// Requests that wait for pages of its depot.
    pub waiters: Arc<Waiters<ClosedCpus>>,
}

impl Spaces {
    /// The address spaces of this process.
    pub fn of_process() -> &'static Self {
        static SPACES: OnceValue<Spaces> = OnceValue::new();
        SPACES.get_or_make(|| Spaces::new(ForkMark::of_process()))
    }

    /// Purges all spaces but that whose range begins at `start`. Returns whether there are any.
    pub fn purge_others(&self, start: usize) -> bool {
        let mut panics = FirstPanic::default();
        let mut asked = Vec::new();
        if let Some(list) = self.lock_soon() {
            for other in list.iter().filter(|other| other.about.start != start) {
                asked.push(other.about.waiters.clone());
                let (zone, wanted_pages) = (ZoneId::new(0), u64::MAX);
                let everything = Pressure { zone, wanted_pages, is_last_resort: true };
                panics.catch(|| other.space().reclaim(everything));
            }
        }
        for waiters in asked.iter().filter(|waiters| waiters.are_marked()) {
            panics.catch(|| waiters.answer());
        }
        panics.resume();
        !asked.is_empty()
    }
}
