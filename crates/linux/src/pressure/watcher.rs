//! One look after the other: what is read, what is decided, what is done.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use pagedepot::cpus::{Cpus as _, Environment as _};
use pagedepot::{CpuId, Mode, Scope};
use pagedepot_rseq::{CpuSet, current_cpu};

use super::counts::{Counters, MonitorCounts};
use super::follower::Follower;
use super::force::{Callback, Force, Yield};
use super::judge::Judge;
use super::needs::Needs;
use super::policy::{Level, Policy};
use super::reading::Reading;
use super::sources::{Reader, Sources};
use super::step::Step;
use crate::depot::handle::{Depot, WeakDepot};
use crate::giving_back::balloon::Listener;
use crate::giving_back::bell::Bell;
use crate::memory::region::{PAGEBLOCK_PAGES, resident_bytes};
use crate::reclaim::Ceiling;
use crate::system::first_panic::FirstPanic;
use crate::system::prim::{now_ms, thread_id};
use crate::system::topology::Topology;

/// Share of a request that has reached a ceiling for which callbacks are asked, and the least
/// number of bytes.
const ANSWER_SHARE: u64 = 64;
const ANSWER_MIN: u64 = 1 << 20;
/// Time between two looks at what is present, in times of what such a look takes.
const LOOK_SHARE: u64 = 100;
/// Factor by which rounds that yield nothing may lie further apart than [`Policy::round_ms`].
const BACKOFF_MAX: u32 = 32;

/// Watches depots without a thread of its own: the program calls [`look`](Self::look) where it
/// suits, from a timer of its event loop for example. Made by
/// [`Builder::watcher`](super::Builder::watcher).
///
/// ```
/// use pagedepot_linux::Depot;
/// use pagedepot_linux::pressure::{Level, Monitor, Sources};
///
/// let depot = Depot::new(16 << 20)?;
/// let mut watcher = Monitor::builder(&depot).sources(Sources::none()).watcher()?;
/// assert_eq!(watcher.look().level, Level::None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watcher {
    depots: Vec<(WeakDepot, Rest)>,
    pub(super) policy: Policy,
    reader: Reader,
    callbacks: Vec<Callback>,
    judge: Judge,
    /// No round before that, unless the level rises.
    next_round_ms: u64,
    /// Times `round_ms` until the round after.
    backoff: u32,
    pub(super) counters: Arc<Counters>,
    /// CPUs that the depots take for isolated.
    isolated: CpuSet,
    follower: Follower,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Look {
    /// The reading of the sources.
    pub reading: Reading,
    /// The level that lasts.
    pub level: Level,
    /// Bytes that were present and were given back to the system.
    pub given_back_bytes: u64,
}

/// The memory of a depot that rests.
#[derive(Clone, Debug, Default)]
struct Rest {
    /// Pages moved between caches and the store, and free there, at the last look.
    seen: (u64, u64),
    since_ms: u64,
    /// Whether all that rests was given back.
    is_given: bool,
    /// Times of looks during the last [`Policy::idle_ms`], and the free pages then.
    free: VecDeque<(u64, u64)>,
    /// The fewest free pages at those looks.
    free_min: u64,
    /// No look at what is present before that: it takes long where much is.
    next_ms: u64,
    needs: Needs,
}

impl Watcher {
    pub(super) fn new(
        depots: &[Depot],
        policy: Policy,
        sources: Sources,
        mut callbacks: Vec<Callback>,
    ) -> Self {
        callbacks.sort_by_key(|callback| callback.priority);
        let rests = depots.iter().map(|depot| (depot.downgrade(), Rest::default()));
        let reader = Reader::new(sources);
        let follower = Follower::new(reader.counts_huge_pages);
        let mut watcher = Watcher {
            depots: rests.collect(),
            policy,
            reader,
            callbacks,
            judge: Judge::default(),
            next_round_ms: 0,
            backoff: 1,
            counters: Arc::default(),
            isolated: isolated(depots),
            follower,
        };
        // Before the program allocates its next page.
        watcher.follow(depots);
        watcher
    }

    /// Looks once, and does what is to be done. It may take as long as a trim.
    pub fn look(&mut self) -> Look {
        self.look_at(now_ms())
    }

    /// Looks like [`look`](Self::look), with the time, in milliseconds of any clock that does not
    /// go back.
    pub fn look_at(&mut self, now_ms: u64) -> Look {
        let (reading, unreadable) = self.reader.read(&self.policy);
        self.counters.looks.add(1);
        self.counters.unreadable.add(unreadable);
        let before = self.judge.level();
        let level = self.judge.judge(&self.policy, &reading, now_ms);
        self.counters.level.set(level as u64);
        let mut look = Look { reading, level, given_back_bytes: 0 };
        let depots: Vec<Depot> = self.depots().collect();
        look.given_back_bytes += self.follow(&depots);
        if level > before {
            (self.backoff, self.next_round_ms) = (1, now_ms);
        }
        if level > Level::None && now_ms >= self.next_round_ms {
            let done = self.force().round(&depots, level, reading.over_bytes);
            self.counters.rounds[level as usize - 1].add(1);
            look.given_back_bytes += done.given_back_bytes;
            self.schedule(now_ms, done);
        }
        for depot in &depots {
            look.given_back_bytes += self.rest(depot, now_ms);
        }
        look
    }

    /// Has the ceilings follow the limit; asks callbacks for what is held above them. Returns how
    /// many bytes that were present went back to the system.
    fn follow(&mut self, depots: &[Depot]) -> u64 {
        let room = self.reader.room(&self.policy);
        let mut followed = self.follower.follow(depots, room);
        let mut given_back_bytes = followed.given_back_bytes;
        if followed.held_bytes > 0 && self.force().call_back(followed.held_bytes) > 0 {
            followed = self.follower.follow(depots, self.reader.room(&self.policy));
            given_back_bytes += followed.given_back_bytes;
        }
        self.counters.above_ceiling_bytes.add(given_back_bytes);
        self.counters.ceiling_bytes.set(followed.ceiling_bytes);
        self.counters.unprotected.set(followed.unprotected);
        given_back_bytes
    }

    /// Has the calling thread answer requests that reach a ceiling: it is woken by `wake`.
    pub(super) fn listen(&mut self, wake: Arc<OwnedFd>) {
        self.follower.listen(Listener { wake, thread: thread_id() });
        let depots: Vec<Depot> = self.depots().collect();
        self.follow(&depots);
    }

    /// Frees memory for requests that have reached a ceiling: by a higher one if the limit has
    /// room, and by callbacks.
    pub(super) fn answer(&mut self) {
        self.counters.rings.add(1);
        let depots: Vec<Depot> = self.depots().collect();
        let mut rung = Rung(depots.iter().filter_map(RungDepot::new).collect());
        // A request that rings later gets the next answer, which may free pages of its depot.
        rung.0.retain(|it| it.bell.answers.take_ring(thread_id()));
        // What panics while a ceiling is set may be a callback of a depot that was not rung for.
        let (mut panics, mut freed_bytes) = (FirstPanic::default(), 0);
        panics.catch(|| self.follow(&depots));
        let is_stuck = rung.0.iter().any(|it| it.rise_bytes() == 0);
        if is_stuck && self.follower.may_have_ceilings() {
            let ceiling_bytes = self.counters.ceiling_bytes.get();
            freed_bytes = self.force().call_back((ceiling_bytes / ANSWER_SHARE).max(ANSWER_MIN));
            // The pages lie in the caches of the CPU that this thread was on.
            let here = Scope::cpu(current_cpu());
            for depot in &depots {
                depot.drain(here, Mode::Full);
                depot.drain(Scope::ALL, Mode::Quiet);
            }
            if freed_bytes > 0 {
                // What was freed may be no pages of depots, which may have more then.
                panics.catch(|| self.follow(&depots));
            }
        }
        // Else the ceiling of another monitor may be in force now.
        if self.follower.may_have_ceilings() {
            for it in rung.0.drain(..) {
                let freed_bytes = freed_bytes.saturating_add(it.rise_bytes());
                it.bell.answers.give(freed_bytes >> it.depot.page_size().shift());
            }
        }
        panics.resume();
    }

    /// The counts so far.
    pub fn counts(&self) -> MonitorCounts {
        self.counters.snapshot()
    }

    /// The depots that still have handles.
    pub(super) fn depots(&self) -> impl Iterator<Item = Depot> {
        self.depots.iter().filter_map(|(depot, _)| depot.upgrade())
    }

    pub(super) fn sources(&self) -> &Sources {
        &self.reader.sources
    }

    fn force(&mut self) -> Force<'_> {
        Force {
            policy: &self.policy,
            reader: &self.reader,
            callbacks: &mut self.callbacks,
            counters: &self.counters,
            isolated: &self.isolated,
        }
    }

    fn schedule(&mut self, now_ms: u64, done: Yield) {
        let is_in_vain = (done.freed_bytes, done.given_back_bytes) == (0, 0);
        self.backoff = if is_in_vain { (2 * self.backoff).min(BACKOFF_MAX) } else { 1 };
        let pause_ms = u64::from(self.policy.round_ms) * u64::from(self.backoff);
        self.next_round_ms = now_ms.saturating_add(pause_ms);
    }

    /// Gives back what was not used for a while; returns how many bytes.
    fn rest(&mut self, depot: &Depot, now_ms: u64) -> u64 {
        let idle_ms = u64::from(self.policy.idle_ms);
        let is_it = |(other, _): &(WeakDepot, Rest)| other.upgrade().as_ref() == Some(depot);
        let Some(at) = self.depots.iter().position(is_it) else { return 0 };
        if idle_ms == 0 {
            return 0;
        }
        let mut rest = std::mem::take(&mut self.depots[at].1);
        if activity(depot) != rest.seen || rest.free.is_empty() {
            (rest.since_ms, rest.is_given) = (now_ms, false);
        }
        // Pages that a CPU no longer needs settle in the store, from look to look.
        depot.cpu_caches().decay();
        let seen = activity(depot);
        rest.seen = seen;
        rest.free.push_back((now_ms, seen.1));
        // The last look at least `idle_ms` ago stays: from then on there is a figure.
        while rest.free.get(1).is_some_and(|next| now_ms.saturating_sub(next.0) >= idle_ms) {
            rest.free.pop_front();
        }
        rest.free_min = rest.free.iter().map(|&(_, free)| free).min().unwrap_or(0);
        let is_known =
            rest.free.front().is_some_and(|first| now_ms.saturating_sub(first.0) >= idle_ms);
        let mut given_back_bytes = 0;
        if !rest.is_given && now_ms.saturating_sub(rest.since_ms) >= idle_ms {
            given_back_bytes = self.give_all(depot, &mut rest, now_ms);
        } else if is_known && now_ms >= rest.next_ms {
            given_back_bytes = self.give_surplus(depot, &mut rest, now_ms);
        }
        self.depots[at].1 = rest;
        given_back_bytes
    }

    /// Gives back the free memory of a depot at rest, less what its refaults say that it needs.
    fn give_all(&mut self, depot: &Depot, rest: &mut Rest, now_ms: u64) -> u64 {
        let mut done = Yield::default();
        self.note_present(depot, rest, now_ms);
        let needs_none = rest.needs.bytes() == 0;
        let mut force = self.force();
        // What a purge frees lies in caches, too.
        for step in [Step::Purge, Step::QuietDrain, Step::HandoverDrain] {
            force.take(depot, step, Level::None, &mut done);
        }
        if needs_none {
            force.take(depot, Step::Trim, Level::None, &mut done);
        }
        // The drains moved pages, too.
        rest.seen = activity(depot);
        let mut given_back_bytes = done.given_back_bytes;
        if needs_none {
            self.counters.idle_rounds.add(1);
            rest.is_given = !done.is_cut_short;
            rest.needs.given_back(given_back_bytes);
        } else {
            rest.free_min = rest.seen.1;
            given_back_bytes = self.give_surplus(depot, rest, now_ms);
            // Once more when refaults are forgotten.
            rest.since_ms = now_ms;
        }
        given_back_bytes
    }

    /// Gives back memory of a depot in use: as much as was free all the while, less what its
    /// refaults say that it needs again.
    fn give_surplus(&mut self, depot: &Depot, rest: &mut Rest, now_ms: u64) -> u64 {
        let bytes = |pages: u64| pages << depot.page_size().shift();
        let pageblock_bytes = bytes(PAGEBLOCK_PAGES.into());
        if bytes(rest.free_min) < pageblock_bytes || depot.shared().is_pinned() {
            return 0;
        }
        let Some(present_bytes) = self.note_present(depot, rest, now_ms) else { return 0 };
        let free_pages = rest.seen.1;
        let used_bytes = (depot.bytes() as u64).saturating_sub(bytes(free_pages));
        let fluctuation = bytes(free_pages.saturating_sub(rest.free_min));
        let surplus = [used_bytes, fluctuation, rest.needs.bytes()]
            .into_iter()
            .fold(present_bytes, u64::saturating_sub);
        if surplus < pageblock_bytes {
            return 0;
        }
        self.counters.surplus_rounds.add(1);
        let done = self.force().give_surplus(depot, surplus);
        rest.needs.given_back(done.given_back_bytes);
        done.given_back_bytes
    }

    /// Returns the bytes that are present, if the system says, after noting what refaulted.
    fn note_present(&self, depot: &Depot, rest: &mut Rest, now_ms: u64) -> Option<u64> {
        let began = Instant::now();
        let present_bytes = resident_bytes(depot.shared().memory()).ok()? as u64;
        rest.next_ms = now_ms.saturating_add(LOOK_SHARE * began.elapsed().as_millis() as u64);
        let (idle_ms, window_ms) = (self.policy.idle_ms, self.policy.refault_window_ms);
        rest.needs.note(present_bytes, now_ms, (idle_ms.into(), window_ms.into()));
        Some(present_bytes)
    }
}

/// A program's depots live on without this monitor, below the ceilings that the program and other
/// monitors set.
impl Drop for Watcher {
    fn drop(&mut self) {
        let depots: Vec<Depot> = self.depots().collect();
        self.follower.end(&depots);
        if self.follower.listener.is_some() {
            depots.iter().filter_map(bell).for_each(|bell| bell.answers.end());
        }
    }
}

/// A depot that was rung for, and its ceiling then.
struct RungDepot<'d> {
    depot: &'d Depot,
    bell: Arc<Bell>,
    ceiling_bytes: usize,
}

impl<'d> RungDepot<'d> {
    /// A depot that may have been rung for. `None`: no request of it ever rang.
    fn new(depot: &'d Depot) -> Option<Self> {
        Some(RungDepot { depot, bell: bell(depot)?, ceiling_bytes: Ceiling::of(depot).bytes() })
    }

    /// The bytes by which the ceiling is higher now.
    fn rise_bytes(&self) -> u64 {
        Ceiling::of(self.depot).bytes().saturating_sub(self.ceiling_bytes) as u64
    }
}

/// Depots that were rung for, until they are answered. Requests of those that are left ring again.
struct Rung<'d>(Vec<RungDepot<'d>>);

impl Drop for Rung<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|it| it.bell.answers.end());
    }
}

/// The bell that requests of a depot ring, if there was ever one.
fn bell(depot: &Depot) -> Option<Arc<Bell>> {
    depot.shared().callbacks().bell()
}

/// Numbers that change when pages are allocated or freed past the fronts: pages refilled and
/// spilled, and free ones.
fn activity(depot: &Depot) -> (u64, u64) {
    let zones = depot.zone_ids().filter_map(|zone| depot.zone_stats(zone));
    zones.fold((0, 0), |(moved, free), zone| {
        let counts = zone.counts;
        let moves = counts.refilled_pages.wrapping_add(counts.spilled_pages);
        (moves.wrapping_add(moved), zone.free_pages.wrapping_add(free))
    })
}

/// The CPUs that any of the depots leaves alone.
pub(super) fn isolated(depots: &[Depot]) -> CpuSet {
    let is_isolated = |cpu: &CpuId| {
        depots.iter().any(|depot| depot.shared().frames().cpus().environment().is_isolated(*cpu))
    };
    (0..Topology::read().cpu_count()).map(CpuId::new).filter(is_isolated).collect()
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("policy", &self.policy)
            .field("sources", self.sources())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::pressure::Monitor;
    use crate::test_units::mib;

    /// Has a monitor with so many bytes of limit answer, and returns whether it calls a callback.
    fn is_called_back(limit_bytes: Option<usize>, is_rung: bool) -> bool {
        let depot = Depot::new(16 * mib()).unwrap();
        let is_called = Arc::new(AtomicBool::new(false));
        let calls = is_called.clone();
        let callback = move |_| {
            calls.store(true, Ordering::Relaxed);
            0
        };
        let name = format!("pagedepot-answer-{}-{}", std::process::id(), thread_id());
        let group = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&group).unwrap();
        let max = limit_bytes.map_or("max".into(), |bytes| bytes.to_string());
        std::fs::write(group.join("memory.max"), max).unwrap();
        std::fs::write(group.join("memory.current"), "0").unwrap();
        let builder = Monitor::builder(&depot).sources(Sources::none().and_cgroup_v2(&group));
        let mut watcher = builder.on_pressure(0, callback).watcher().unwrap();
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        watcher.listen(Arc::new(wake));
        if is_rung {
            bell(&depot).unwrap().answers.note_ring(thread_id());
        }
        watcher.answer();
        std::fs::remove_dir_all(group).unwrap();
        is_called.load(Ordering::Relaxed)
    }

    /// A request that rang before the limit was lifted calls no callbacks, and neither does a ring
    /// that an earlier answer was for.
    #[test]
    fn callbacks_are_called_for_requests_at_a_ceiling_alone() {
        assert!(is_called_back(Some(8 * mib()), true));
        assert!(!is_called_back(Some(8 * mib()), false));
        assert!(!is_called_back(None, false));
    }
}
