//! Threads that do everything else to a depot.

use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pagedepot_linux::builder::CacheLimits;
use pagedepot_linux::pressure::{Level, Monitor, Policy, Sources};
use pagedepot_linux::reclaim::{
    Ceiling, CeilingError, Compaction, GiveBackEnd, Reporting, TrimError,
};
use pagedepot_linux::shared::{Orphans, SharedDepot, SharedOptions};
use pagedepot_linux::vmalloc::PurgeDepth;
use pagedepot_linux::{CpuId, Depot, Mode, Page, Scope, Vmalloc, ZoneId};

use crate::common::meetings::Set;
use crate::common::rng::Rng;
use crate::common::{mib, order, page_bytes, refuse_with};
use crate::feature::Feature;
use crate::item::Item;
use crate::worker::{Members, Pool};
use crate::world::World;

const ZONE: ZoneId = ZoneId::new(0);
/// The heir of processes that are killed.
pub const HEIR: NonZeroU64 = NonZeroU64::new(7).unwrap();
/// Pages that such a process has at most, cached ones included.
const VICTIM_PAGES: i64 = 2000;

/// Kills a process that shares the segment, after some time.
fn victim(member: &SharedDepot, heir: Option<NonZeroU64>, time: Duration) {
    // SAFETY: the child allocates, which glibc allows after a fork, and ends by a signal.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A panic would unwind into the parent's frames.
        let live = std::panic::AssertUnwindSafe(|| live(member, heir));
        let _ = std::panic::catch_unwind(live);
        // SAFETY: ends the child, which has failed.
        unsafe { libc::_exit(1) };
    }
    assert!(pid > 0);
    std::thread::sleep(time);
    let mut status = 0;
    // SAFETY: a child that was not waited for.
    let waited = unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &mut status, 0)
    };
    assert!(waited == pid && libc::WIFSIGNALED(status), "the child failed: {status:#x}");
}

/// Allocates, sends and frees until it is killed.
fn live(member: &SharedDepot, heir: Option<NonZeroU64>) {
    let options = SharedOptions::join().answers(false);
    let options = heir.map_or(options.clone(), |heir| options.heir(heir));
    let own = SharedDepot::adopt(member.file(), &options).unwrap();
    let mut held: Vec<Page> = Vec::new();
    loop {
        held.extend((0..200).map_while(|n| own.page(order(n % 5)).ok()));
        held.iter_mut().for_each(|page| page[0] = 7);
        let sent = held.pop().map(|page| page.into_shared(&own).unwrap());
        held.extend(sent.and_then(|sent| own.claim(sent).ok()));
        held.clear();
        own.drain(Scope::ALL, Mode::Full);
    }
}

/// Installs a filter, by which the system takes no memory back from this thread. `false`: there are
/// no filters here.
pub fn refuses_this_thread() -> bool {
    refuse_with(libc::SYS_fallocate, libc::EPERM).is_ok()
}

/// Files of a cgroup that is all but full. They are removed at the end.
struct FullGroup(PathBuf);

impl FullGroup {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("pagedepot-full-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let group = FullGroup(path);
        for (file, text) in
            [("memory.max", "1000"), ("memory.current", "999"), ("memory.stat", "anon 9")]
        {
            fs::write(group.0.join(file), text).unwrap();
        }
        group
    }
}

impl Drop for FullGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Switches of a thread.
const SWITCHES: [Feature; 7] = [
    Feature::EvacuationOff,
    Feature::EvacuationGoal,
    Feature::EvacuationAdaptive,
    Feature::Disable,
    Feature::Retire,
    Feature::Decay,
    Feature::Limits,
];

pub struct Control<'d> {
    pub world: Arc<World>,
    pub depot: &'d Depot,
    pub space: Option<Vmalloc>,
    pub rng: Rng,
    pub cpus: u32,
}

impl Control<'_> {
    fn until_over(&mut self, mut step: impl FnMut(&mut Self)) {
        while !self.world.is_over() {
            step(self);
            std::thread::yield_now();
        }
    }

    /// Repeats a step that takes time of the others until its pairs have met; then one in a round.
    fn until_met(&mut self, feature: Feature, mut step: impl FnMut(&mut Self)) {
        self.until_over(|this| {
            step(this);
            while !this.world.meetings.wants(feature) && !this.world.is_over() {
                this.rest(10_000);
            }
        });
    }

    fn choose(&mut self, among: &[Feature]) -> Feature {
        self.world.meetings.choose(&mut self.rng, among)
    }

    fn cpu(&mut self) -> CpuId {
        CpuId::new(self.rng.below(self.cpus.into()) as u32)
    }

    fn scope(&mut self) -> Scope {
        if self.rng.one_in(2) { Scope::ALL } else { Scope::cpu(self.cpu()) }
    }

    fn rest(&mut self, us_max: u64) {
        std::thread::sleep(Duration::from_micros(self.rng.below(us_max)));
    }

    pub fn drain(mut self) {
        let world = self.world.clone();
        self.until_over(|this| {
            let scope = this.scope();
            match this.choose(&[Feature::Drain, Feature::Drain, Feature::Handover]) {
                Feature::Drain => {
                    let _now = world.meetings.begin(Feature::Drain);
                    this.depot.drain(scope, [Mode::Full, Mode::Quiet][this.rng.index(2)]);
                }
                _ if this.rng.one_in(2) => {
                    let _now = world.meetings.begin(Feature::Handover);
                    this.depot.drain(scope, Mode::Handover);
                }
                _ => {
                    let _now = world.meetings.begin(Feature::Handover);
                    let fence_after_ms = [None, Some(0), Some(2)][this.rng.index(3)];
                    let mut handover = this.depot.drain_handover(scope, fence_after_ms);
                    this.rest(500);
                    if this.rng.one_in(2) {
                        let _drain = world.meetings.begin(Feature::Drain);
                        this.depot.drain(scope, Mode::Full);
                    }
                    this.depot.cpu_caches().hand_over();
                    handover.wait(1);
                }
            }
        });
    }

    pub fn switch(mut self) {
        let world = self.world.clone();
        let mut policy = None;
        self.until_over(|this| {
            let (cpu, caches) = (this.cpu(), this.depot.cpu_caches());
            match this.choose(&SWITCHES) {
                Feature::Disable => {
                    let _now = world.meetings.begin(Feature::Disable);
                    caches.disable();
                    this.rest(2000);
                    caches.enable();
                }
                Feature::Retire => {
                    let _now = world.meetings.begin(Feature::Retire);
                    caches.retire(cpu);
                    this.rest(1000);
                    caches.restore(cpu);
                }
                Feature::Decay => {
                    for _ in 0..10 {
                        let _now = world.meetings.begin(Feature::Decay);
                        caches.decay();
                        std::thread::yield_now();
                    }
                }
                Feature::Limits => {
                    let high_min = this.rng.below(500);
                    let high_max = high_min + this.rng.below(4000);
                    for _ in 0..10 {
                        let _now = world.meetings.begin(Feature::Limits);
                        let limits = CacheLimits { batch: 63, high_min, high_max };
                        this.depot.settings(ZONE).unwrap().set_cache_limits(limits);
                        std::thread::yield_now();
                    }
                }
                feature => {
                    this.depot.settings(ZONE).unwrap().set_evacuation(feature.policy(70));
                    if let Some((before, _)) = policy.take() {
                        world.meetings.meet(before, feature);
                    }
                    policy = Some((feature, world.meetings.begin(feature)));
                }
            }
            assert!(!this.depot.shortage().to_string().is_empty());
            this.rest(300);
        });
    }

    pub fn compact(mut self) {
        self.until_over(|this| {
            let rules = match this.rng.below(5) {
                0 => Compaction::all(),
                1 => Compaction::pageblocks(this.rng.below(20) as u32 + 1),
                2 => Compaction::order(order(8 + this.rng.below(3) as u32)),
                3 => Compaction::range(512 << this.rng.below(4), 512 << this.rng.below(4)),
                _ => Compaction::range(this.rng.below(3000) as u32 + 1, 1),
            };
            let rules = rules.moves_max(this.rng.below(2000)).looks_max(this.rng.below(10) + 1);
            let mode = [Mode::Quiet, Mode::Full, Mode::Handover][this.rng.index(3)];
            let via = Set::from(Feature::Compaction).and(Feature::Isolation);
            let now = this.world.meetings.begin(via);
            // More may be asked for than there is.
            _ = this.depot.compact(rules.drain(mode));
            drop(now);
            this.rest(500);
        });
    }

    /// Gives memory back to the system, and purges.
    pub fn give_back(mut self) {
        let world = self.world.clone();
        self.until_over(|this| {
            match this.rng.below(4) {
                0 => {
                    let _now = world.meetings.begin(Feature::Trim);
                    this.depot.trim().unwrap();
                }
                3 => {
                    let _now = world.meetings.begin(Feature::GiveBack);
                    let bytes = this.rng.below(16 * mib() as u64);
                    let deadline = Instant::now() + Duration::from_millis(this.rng.below(20));
                    let given = this.depot.give_back(bytes, deadline).unwrap();
                    assert!(given.end != GiveBackEnd::Enough || given.bytes >= bytes, "{given:?}");
                    // The last run is a pageblock at most.
                    assert!(given.bytes < bytes + 2 * mib() as u64 || bytes == 0, "{given:?}");
                }
                1 => {
                    let depth = [PurgeDepth::Lazy, PurgeDepth::Decay, PurgeDepth::Everything]
                        [this.rng.index(3)];
                    if let Some(space) = &this.space {
                        let _now = world.meetings.begin(Feature::Vmalloc);
                        space.purge(depth);
                    }
                }
                _ => this.rest(3000),
            }
            this.rest(1000);
        });
    }

    /// Looks at a cgroup that is all but full, as a monitor does, whose callback frees what workers
    /// left behind.
    pub fn watch(mut self, pool: &Pool) {
        let (group, pool, world) = (FullGroup::new(), pool.clone(), self.world.clone());
        let free = move |_| {
            let Some(item) = pool.lock().unwrap().pop() else { return 0 };
            world.meetings.meet(Feature::Monitor, item.via);
            let bytes = u64::from(item.pages()) * page_bytes() as u64;
            Item::free(item);
            bytes
        };
        // Without a ceiling, whose pages nothing counts here.
        let policy = Policy { round_ms: 1, idle_ms: 0, margin_percent: None, ..Policy::default() };
        let builder = Monitor::builder(self.depot).policy(policy).on_pressure(0, free);
        let mut watcher =
            builder.sources(Sources::none().and_cgroup_v2(&group.0)).watcher().unwrap();
        self.until_met(Feature::Monitor, |this| {
            let now = this.world.meetings.begin(Feature::Monitor);
            assert_eq!(watcher.look().level, Level::Critical);
            drop(now);
            this.rest(10_000);
        });
    }

    /// Publishes statistics, and asks for drains as readers do.
    #[cfg(feature = "publish")]
    pub fn publish(mut self) {
        use pagedepot_linux::publish::{Publisher, Reader, Request, Snapshot};
        /// Time that a snapshot may take, far more than it needs.
        const PATIENCE: Duration = Duration::from_secs(60);
        self.until_met(Feature::Publishing, |this| {
            let _now = this.world.meetings.begin(Feature::Publishing);
            let publisher = Publisher::new(this.depot).directory(std::env::temp_dir());
            let publisher = match &this.space {
                Some(space) => publisher.space(space),
                None => publisher,
            };
            let publication = publisher.start().unwrap();
            let mut reader = Reader::open(publication.path()).unwrap();
            for mode in [Mode::Quiet, Mode::Full, Mode::Handover] {
                let request = reader.ask(Request { mode, cpu: None }).unwrap();
                // The first may have been begun before the request came.
                let answer = |snapshot: Snapshot| snapshot.drained.map(|answer| answer.request);
                while answer(reader.refresh(PATIENCE).unwrap()) != Some(request) {}
            }
        });
    }

    #[cfg(not(feature = "publish"))]
    pub fn publish(self) {}

    /// Gives whole pageblocks back.
    pub fn report(mut self) {
        self.until_over(|this| {
            let now = this.world.meetings.begin(Feature::Reporting);
            Reporting::of(this.depot).pass(this.rng.below(6)).unwrap();
            drop(now);
            this.rest(1000);
        });
    }

    /// Sets ceilings, of a depot that does not grow.
    pub fn limit(mut self) {
        self.until_over(|this| {
            let bytes = this.depot.bytes() * (60 + this.rng.below(41) as usize) / 100;
            _ = this.set_ceiling(bytes, Set::NONE);
            this.rest(3000);
        });
    }

    /// Sets a ceiling. Where pages are held it gets as low as it can.
    fn set_ceiling(&self, bytes: usize, via: Set) -> Result<usize, CeilingError> {
        let world = &self.world;
        let _alone = world.ceilings.lock().unwrap_or_else(PoisonError::into_inner);
        let ceiling = Ceiling::of(self.depot);
        let change = match bytes < ceiling.bytes() {
            true => Set::from(Feature::Removal).and(Feature::Isolation),
            false => {
                // It adds what was removed before.
                world.meetings.meet(Feature::Adding, Feature::Removal);
                Feature::Adding.into()
            }
        };
        let _now = world.meetings.begin(via.and(Feature::Ceiling).and(change));
        let _withheld = world.usage.withhold();
        let result = ceiling.set(bytes);
        world.usage.manage((ceiling.bytes() / page_bytes()) as i64 - world.usage.managed());
        result
    }

    /// Gives memory back to a system that refuses this thread.
    pub fn be_refused(mut self, ceilings: bool) {
        if !refuses_this_thread() {
            return;
        }
        let via = Set::from(Feature::Refusing);
        self.until_over(|this| {
            match this.rng.below(3) {
                0 if ceilings => {
                    // Lower than what others set, so that memory would have to go back.
                    let bytes = this.depot.bytes() * (30 + this.rng.below(25) as usize) / 100;
                    let lowered = this.set_ceiling(bytes, via);
                    let why = matches!(
                        lowered,
                        Err(CeilingError::Refused(_) | CeilingError::Held { .. })
                    );
                    assert!(why, "{lowered:?}");
                }
                1 if this.rng.one_in(2) => {
                    let _now = this.world.meetings.begin(via.and(Feature::GiveBack));
                    let deadline = Instant::now() + Duration::from_millis(20);
                    match this.depot.give_back(u64::MAX, deadline) {
                        Ok(given) => assert_eq!(given.bytes, 0, "{given:?}"),
                        Err(TrimError::Refused { trimmed, .. }) => {
                            assert_eq!(trimmed.bytes, 0, "{trimmed:?}");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                1 => {
                    let _now = this.world.meetings.begin(via.and(Feature::Trim));
                    match this.depot.trim() {
                        Ok(trimmed) | Err(TrimError::Refused { trimmed, .. }) => {
                            assert_eq!(trimmed.bytes, 0, "{trimmed:?}");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => {
                    let _now = this.world.meetings.begin(via.and(Feature::Reporting));
                    Reporting::of(this.depot).pass(this.rng.below(6)).unwrap();
                }
            }
            this.rest(3000);
        });
    }

    /// Has processes that share the segment killed, and takes back what they had.
    pub fn kill(mut self, members: &Members) {
        let world = self.world.clone();
        self.until_over(|this| {
            let heir = this.rng.one_in(2).then_some(HEIR);
            let via = Set::from(Feature::Deaths).and_if(heir.is_some(), Feature::Heirs);
            let _now = world.meetings.begin(via);
            world.usage.use_pages(VICTIM_PAGES);
            let us = this.rng.below(5000);
            victim(&members.own, heir, Duration::from_micros(us));
            let survivor = if this.rng.one_in(2) { &members.own } else { &members.peer };
            survivor.recover(Orphans::GoBack);
            survivor.inherit(HEIR).for_each(drop);
            world.usage.use_pages(-VICTIM_PAGES);
            this.rest(5000);
        });
    }

    /// Takes memory out of the segment and gives it back, and sets a ceiling of one member.
    pub fn share(mut self, members: &Members) {
        let world = self.world.clone();
        self.until_over(|this| {
            let withheld = world.usage.withhold();
            let size = world.meetings.begin(Feature::SegmentSize);
            let bytes = members.own.bytes();
            let least = bytes * (60 + this.rng.below(40) as usize) / 100;
            assert!(members.own.shrink(least) >= least);
            if this.rng.one_in(2) {
                let _now = world.meetings.begin(Feature::Share);
                members.peer.set_ceiling(least / 2);
                this.rest(5000);
                members.peer.set_ceiling(0);
            }
            assert!(members.peer.grow(bytes) <= bytes);
            drop((size, withheld));
            this.rest(10_000);
        });
        assert_eq!(members.own.grow(usize::MAX), members.own.bytes());
    }

    /// Grows the depot, as far as it goes.
    pub fn grow(mut self) {
        let world = self.world.clone();
        // In most rounds it does not grow, and runs short.
        let steps = self.rng.below(if world.meetings.wants(Feature::Growing) { 300 } else { 1500 });
        for _ in 0..steps {
            if world.is_over() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _now = world.meetings.begin(Set::from(Feature::Growing).and(Feature::Adding));
        let before = self.depot.bytes();
        self.depot.grow(ZONE, 1).unwrap();
        // The round goes on with as much in use as before.
        world.usage.set_goal(4);
        world.usage.manage(((self.depot.bytes() - before) / page_bytes()) as i64);
        while !world.is_over() {
            self.depot.grow(ZONE, 1).unwrap_err();
            self.rest(20_000);
        }
    }
}
