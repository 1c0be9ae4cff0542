//! Threads that do everything else to a depot.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagedepot::cpus::Cpus;
use pagedepot::{
    Allocator, CacheLimits, Class, CpuId, Evacuation, Flags, FrameRange, Mode, Scope, Watermarks,
    ZoneId,
};
use pagedepot_contiguity::{Compaction, Contiguity, Pageblocks, Reporting};

use crate::common::backing::Sets;
use crate::common::meetings::{Active, Set};
use crate::common::order;
use crate::common::rng::Rng;
use crate::device::Device;
use crate::feature::{Deed, Feature};
use crate::mover::{BusySlots, Slots};
use crate::world::{LATE, LOW, NORMAL, PAGEBLOCK, Phase, REMOTE, REMOVER, World};

/// Most of the memory that the device has at a time, in percent.
const REPORTED_PERCENT: i64 = 15;

/// The longest time of a phase, and of a policy.
const PHASE: Duration = Duration::from_millis(40);

const POLICIES: [Feature; 3] =
    [Feature::EvacuationOff, Feature::EvacuationGoal, Feature::EvacuationAdaptive];

/// Switches of a thread: isolated CPUs first, which one thread does.
const SWITCHES: [Feature; 5] =
    [Feature::IsolatedCpus, Feature::Disable, Feature::Retire, Feature::Decay, Feature::Limits];

pub struct Control<'a, 'w, 'm, C> {
    pub world: &'w World<'w>,
    pub device: &'w Device<'w>,
    pub depot: &'a Allocator<'m, C>,
    pub rng: Rng,
    /// The backing, if there is one.
    pub sets: Option<&'a Sets>,
    /// Sets the isolated CPUs, a bit each; for one thread.
    pub isolate_cpus: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl<'w, C: Cpus> Control<'_, 'w, '_, C> {
    fn until_over(&mut self, mut step: impl FnMut(&mut Self)) {
        while !self.world.is_over() {
            step(self);
            std::thread::yield_now();
        }
    }

    fn begin(&self, features: impl Into<Set>) -> Active<'w> {
        self.world.meetings.begin(features)
    }

    fn choose(&mut self, among: &[Feature]) -> Feature {
        self.world.meetings.choose(&mut self.rng, among)
    }

    fn cpu(&mut self) -> CpuId {
        CpuId::new(self.rng.below(u64::from(self.depot.cpu_count())) as u32)
    }

    fn zone(&mut self) -> ZoneId {
        ZoneId::new(self.rng.below(4) as u32)
    }

    fn scope(&mut self) -> Scope {
        match self.rng.below(4) {
            0 => Scope::ALL,
            1 => Scope::cpu(self.cpu()),
            2 => Scope::zone(self.zone()),
            _ => Scope::cpu(self.cpu()).in_zone(self.zone()),
        }
    }

    fn rest(&mut self, us_max: u64) {
        std::thread::sleep(Duration::from_micros(self.rng.below(us_max)));
    }

    /// Rests, and until pageblocks may be disturbed.
    fn rest_calmly(&mut self, us_max: u64) {
        self.rest(us_max);
        while self.world.phase() == Phase::Calm && !self.world.is_over() {
            self.rest(1000);
        }
    }

    pub fn drain(mut self) {
        self.until_over(|this| {
            let scope = this.scope();
            match this.choose(&[Feature::Drain, Feature::Drain, Feature::Handover]) {
                Feature::Drain => {
                    let _now = this.world.meetings.begin(Feature::Drain);
                    this.depot.drain(scope, [Mode::Full, Mode::Quiet][this.rng.index(2)]);
                }
                _ if this.rng.one_in(2) => {
                    let _now = this.world.meetings.begin(Feature::Handover);
                    this.depot.drain(scope, Mode::Handover);
                }
                _ => {
                    let _now = this.world.meetings.begin(Feature::Handover);
                    let fence_after_ms = [None, Some(0), Some(2)][this.rng.index(3)];
                    let mut handover = this.depot.drain_handover(scope, fence_after_ms);
                    this.rest(500);
                    if this.rng.one_in(2) {
                        let _drain = this.world.meetings.begin(Feature::Drain);
                        this.depot.drain(scope, Mode::Full);
                    }
                    this.depot.cpu_caches().hand_over();
                    if !handover.poll() {
                        handover.wait(1);
                    }
                }
            }
        });
    }

    pub fn switch(mut self) {
        let world = self.world;
        let kinds = if self.isolate_cpus.is_some() { &SWITCHES[..] } else { &SWITCHES[1..] };
        self.until_over(|this| {
            let cpu = this.cpu();
            let caches = this.depot.cpu_caches();
            match this.choose(kinds) {
                Feature::Disable => {
                    let _now = world.meetings.begin(Feature::Disable);
                    caches.disable();
                    this.rest(2000);
                    this.depot.cpu_caches().enable();
                }
                Feature::Retire => {
                    let _now = world.meetings.begin(Feature::Retire);
                    caches.retire(cpu);
                    this.rest(1000);
                    this.depot.cpu_caches().restore(cpu);
                }
                Feature::Decay => {
                    for _ in 0..10 {
                        let _now = world.meetings.begin(Feature::Decay);
                        this.depot.cpu_caches().decay();
                        std::thread::yield_now();
                    }
                }
                Feature::Limits => this.set_limits(),
                _ => this.isolate_cpu(),
            }
            assert!(!this.depot.shortage().to_string().is_empty());
            this.rest(200);
        });
        if let Some(isolate) = self.isolate_cpus {
            isolate(0);
        }
    }

    fn set_limits(&mut self) {
        // Large caches take more magazines than there are, so that frames are carved.
        let is_large = self.world.meetings.wants(Feature::Carving);
        let high_min = self.rng.below(500) + if is_large { 2000 } else { 0 };
        let limits = CacheLimits { batch: 63, high_min, high_max: high_min + self.rng.below(4000) };
        let zone = self.zone();
        let min = self.rng.below(3) * 64;
        let low = min + self.rng.below(100);
        let marks = Watermarks { min, low, high: low + self.rng.below(200) };
        for _ in 0..10 {
            let _now = self.begin(Feature::Limits);
            for zone in self.depot.zone_ids().filter(|&one| is_large || one == zone) {
                let settings = self.depot.settings(zone).unwrap();
                settings.set_cache_limits(limits);
                assert!(settings.set_watermarks(marks));
            }
            std::thread::yield_now();
        }
    }

    /// Sets policies of evacuation, and watches what comes of them.
    pub fn evacuate(mut self) {
        let mut policies: Vec<_> = (0..4).map(|at| (self.policy(ZoneId::new(at)), None)).collect();
        let mut turned: Option<Instant> = None;
        self.until_over(|this| {
            let phase = this.world.phase();
            let evacuate = this.watch(&mut policies);
            let is_due = turned.is_none_or(|turned| turned.elapsed() > PHASE);
            if is_due || phase == Phase::Calm && evacuate {
                this.world.set_phase(match phase {
                    Phase::Wild if !evacuate && this.wants_calm() => Phase::Calm,
                    Phase::Wild | Phase::Calm if this.wants_surge() => Phase::Surge,
                    _ => Phase::Wild,
                });
                this.set_policies(&mut policies);
                turned = Some(Instant::now());
            }
            this.rest(500);
        });
        self.world.set_phase(Phase::Wild);
    }

    /// Sets policies for a phase that begins: such that pageblocks evacuate in a calm one, or
    /// another one of a zone where some do.
    fn set_policies(&mut self, policies: &mut [(Feature, Option<Active<'w>>)]) {
        match self.world.phase() {
            Phase::Calm => {
                let at = self.rng.index(2);
                self.set_policy(ZoneId::new(1), POLICIES[1 + at], policies);
                self.set_policy(ZoneId::new(2), POLICIES[2 - at], policies);
            }
            // What evacuates meets what is wanted.
            Phase::Surge => {}
            Phase::Wild => {
                let evacuating = (0..4).find(|&zone| self.evacuates(zone));
                let zone = evacuating.map_or(self.zone(), |zone| ZoneId::new(zone as u32));
                let policy = self.choose(&POLICIES);
                self.set_policy(zone, policy, policies);
            }
        }
    }

    fn policy(&self, zone: ZoneId) -> Feature {
        match self.depot.settings(zone).unwrap().evacuation() {
            Evacuation::Off => Feature::EvacuationOff,
            Evacuation::Goal { .. } => Feature::EvacuationGoal,
            Evacuation::Adaptive => Feature::EvacuationAdaptive,
        }
    }

    fn wants_calm(&self) -> bool {
        let of_calm = Set::from(Feature::EvacuationGoal).and(Feature::EvacuationAdaptive);
        self.world.meetings.wants(of_calm.and(Feature::Carving))
    }

    fn wants_surge(&self) -> bool {
        self.world.meetings.wants(Set::from(Feature::Thinning).and(Feature::Refusing))
    }

    /// Notes by which policies pageblocks evacuate now. `true`: by all that set some to it.
    fn watch(&self, policies: &mut [(Feature, Option<Active<'w>>)]) -> bool {
        for (zone, (policy, at_work)) in policies.iter_mut().enumerate() {
            match *policy == Feature::EvacuationOff || self.evacuates(zone) {
                true => _ = at_work.get_or_insert_with(|| self.begin(*policy)),
                false => *at_work = None,
            }
        }
        let is_at_work = |one| policies.iter().any(|(policy, now)| *policy == one && now.is_some());
        POLICIES[1..].iter().all(|&one| is_at_work(one))
    }

    fn evacuates(&self, zone: usize) -> bool {
        let stats = self.depot.pageblock_stats(ZoneId::new(zone as u32));
        stats.is_some_and(|stats| stats.evacuating > 0)
    }

    /// Sets the policy of a zone. Those that are not off are at work while pageblocks evacuate.
    fn set_policy(
        &mut self,
        zone: ZoneId,
        feature: Feature,
        policies: &mut [(Feature, Option<Active<'w>>)],
    ) {
        let policy = feature.policy(100 - self.rng.below(10) as u8);
        if !self.depot.settings(zone).unwrap().set_evacuation(policy) {
            return;
        }
        let (before, at_work) = &mut policies[zone.index()];
        if self.evacuates(zone.index()) {
            self.world.meetings.meet(*before, feature);
            if feature == Feature::EvacuationOff {
                self.world.note(Deed::SwitchedOff);
            }
        }
        (*before, *at_work) = (feature, None);
    }

    fn isolate_cpu(&mut self) {
        let isolate = self.isolate_cpus.expect("one thread isolates CPUs");
        let _now = self.begin(Feature::IsolatedCpus);
        let cpu = self.cpu();
        // Fronts behind a lock stay within reach.
        let usage = &self.world.usage;
        let _withheld = self.depot.cpus().fence_disturbs(cpu).then(|| usage.withhold());
        isolate(1 << cpu.get());
        self.rest(3000);
        if self.depot.drain(Scope::cpu(cpu), Mode::Full).unreachable_pages > 0 {
            self.world.note(Deed::LeftAlone);
        }
        isolate(0);
        self.depot.drain(Scope::ALL, Mode::Full);
    }

    pub fn compact(mut self) {
        let via = Set::from(Feature::Compaction);
        let busy = BusySlots {
            slots: Slots::new(self.world, via),
            depot: self.depot,
            kept: Mutex::new(Vec::new()),
        };
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
            let zone = this.zone();
            let attempt = this.world.meetings.attempt();
            // More may be asked for than the zone has.
            if let Ok(done) = this.depot.compact(zone, rules.drain(mode), &busy)
                && done.moved_blocks > 0
            {
                drop(attempt.succeed(via));
            }
            this.rest_calmly(300);
        });
        busy.end();
    }

    pub fn report(mut self) {
        self.until_over(|this| {
            let zone = this.zone();
            let is_wanted = this.world.meetings.wants(Feature::Refusing);
            this.device.refuses.store(is_wanted || this.rng.one_in(5), Ordering::Relaxed);
            let is_less =
                this.world.usage.managed() * REPORTED_PERCENT / 100 > this.device.taken_frames();
            if is_less {
                let attempt = this.world.meetings.attempt();
                let most = this.rng.below(6);
                let done = Reporting::of(this.depot).pass(zone, most).unwrap();
                assert!(done.pageblocks <= most);
                drop((done.pageblocks > 0).then(|| attempt.succeed(Feature::Reporting)));
            }
            this.rest_calmly(if is_wanted { 200 } else { 1000 });
        });
        self.device.refuses.store(false, Ordering::Relaxed);
    }

    pub fn remove(mut self) {
        self.until_over(|this| {
            let (zone, of) = [(0, LOW[0]), (1, NORMAL[0]), (2, REMOTE[0])][this.rng.index(3)];
            let (zone, all) = (ZoneId::new(zone), of.frames / PAGEBLOCK);
            let pageblocks = this.rng.below(3) as u32 + 1;
            let first = this.rng.below(u64::from(all - pageblocks + 1)) as u32;
            let range = FrameRange::new(of.start.add(first * PAGEBLOCK), pageblocks * PAGEBLOCK);
            // Callers hold frames of most.
            let whole = if this.rng.one_in(3) { None } else { this.whole(zone, of) };
            let range = whole.unwrap_or(range);
            if this.rng.one_in(3) {
                this.reassign(zone, range);
            } else {
                this.remove_and_add(zone, range);
            }
            this.rest_calmly(500);
        });
    }

    /// A pageblock of a range that is whole now.
    fn whole(&mut self, zone: ZoneId, within: FrameRange) -> Option<FrameRange> {
        let from = within.start.add(self.rng.below(u64::from(within.frames)) as u32);
        let all = Pageblocks::of(self.depot, zone)?.filter(|at| at.is_whole());
        let mut ranges = all.map(|at| FrameRange::new(at.first, PAGEBLOCK));
        ranges.find(|range| range.start >= from && range.end() <= within.end())
    }

    fn reassign(&mut self, zone: ZoneId, range: FrameRange) {
        let world = self.world;
        let frames = i64::from(range.frames);
        let flags = [Flags::MOVABLE, Flags::UNMOVABLE][self.rng.index(2)];
        world.usage.manage(-frames);
        let attempt = world.meetings.attempt();
        let done = self.depot.reassign(zone, range, flags.class(Class::PAGE_CACHE));
        world.usage.manage(frames);
        if done.is_ok() {
            world.note(Deed::Reassigned);
            let via = Set::from(Feature::Removal).and(Feature::Isolation).and(Feature::Classes);
            drop(attempt.succeed(via));
        }
    }

    fn remove_and_add(&mut self, zone: ZoneId, range: FrameRange) {
        let world = self.world;
        let frames = i64::from(range.frames);
        world.usage.manage(-frames);
        let attempt = world.meetings.attempt();
        let removed = self.depot.remove_memory(zone, range);
        if removed.is_err() {
            world.usage.manage(frames);
            return;
        }
        let removing = attempt.succeed(Set::from(Feature::Removal).and(Feature::Isolation));
        world.note(Deed::Removed);
        self.device.check(range.start, range.frames);
        world.marks.take(range.start, range.frames, REMOVER);
        world.note_via(range.start, range.frames, Feature::Removal.into());
        (0..range.frames).for_each(|at| world.arena.write(range.start.add(at), u64::MAX));
        // In a surge there is hardly a pageblock to remove: one stays away until then.
        let is_wanted = world.meetings.wants(Feature::Thinning);
        self.rest(if is_wanted { 60_000 } else { 2000 });
        drop(removing);
        world.marks.give_back(range.start, range.frames, REMOVER);
        let _adding = world.meetings.begin(Set::from(Feature::Adding).and(Feature::Isolation));
        world.note_via(range.start, range.frames, Feature::Adding.into());
        if self.rng.one_in(2) {
            self.depot.add_memory(zone, range, &mut []).unwrap();
            if let Some(sets) = self.sets {
                sets.add(zone, range);
            }
            world.usage.manage(frames);
            return;
        }
        world.usage.use_pages(frames);
        self.depot.add_memory_held(zone, range, &mut []).unwrap();
        world.usage.manage(frames);
        let mut start = range.start;
        while u64::from(start.get()) < range.end() {
            let left = range.end() as u32 - start.get();
            let piece = (self.rng.below(300) as u32 + 1).min(left);
            self.depot.free_contiguous(start, piece).unwrap();
            world.usage.use_pages(-i64::from(piece));
            start = start.add(piece);
            std::thread::yield_now();
        }
    }
}

impl World<'_> {
    /// Adds the memory that comes late.
    pub fn add_late<'m, C: Cpus>(
        &self,
        depot: &Allocator<'m, C>,
        metadata: &'m mut [std::mem::MaybeUninit<u8>],
    ) {
        let _now = self.meetings.begin(Set::from(Feature::Adding).and(Feature::Isolation));
        depot.add_memory(ZoneId::new(3), LATE, metadata).unwrap();
        self.usage.manage(LATE.frames.into());
    }
}
