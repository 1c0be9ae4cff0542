//! Threads that do everything else to a depot.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, CacheLimits, Class, CpuId, Flags, FrameRange, Mode, Scope, ZoneId};
use pagedepot_contiguity::{Compaction, Contiguity, Reporting};

use crate::common::meetings::{Active, Set};
use crate::common::order;
use crate::common::rng::Rng;
use crate::device::Device;
use crate::feature::Feature;
use crate::mover::{BusySlots, Slots};
use crate::worker::CPUS;
use crate::world::{LATE, LOW, NORMAL, PAGEBLOCK, REMOTE, REMOVER, World};

/// Most of the memory that the device has at a time, in percent.
const REPORTED_PERCENT: i64 = 15;

/// Switches of a thread: policies first, which one thread does, then isolated CPUs.
const SWITCHES: [Feature; 8] = [
    Feature::EvacuationOff,
    Feature::EvacuationGoal,
    Feature::EvacuationAdaptive,
    Feature::IsolatedCpus,
    Feature::Disable,
    Feature::Retire,
    Feature::Decay,
    Feature::Limits,
];

pub struct Control<'a, 'w, 'm, C> {
    pub world: &'w World<'w>,
    pub device: &'w Device<'w>,
    pub depot: &'a Allocator<'m, C>,
    pub rng: Rng,
    /// Whether it sets policies of evacuation; one thread does.
    pub sets_policies: bool,
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
        CpuId::new(self.rng.below(u64::from(CPUS)) as u32)
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
        let mut policies: Vec<_> = (0..4).map(|_| None).collect();
        if self.sets_policies {
            (0..8).for_each(|n| self.set_policy(SWITCHES[n % 3], &mut policies));
        }
        let kinds = match (self.sets_policies, self.isolate_cpus) {
            (true, _) => &SWITCHES[..],
            (_, Some(_)) => &SWITCHES[3..],
            _ => &SWITCHES[4..],
        };
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
                Feature::IsolatedCpus => this.isolate_cpu(),
                policy => this.set_policy(policy, &mut policies),
            }
            assert!(!this.depot.shortage().to_string().is_empty());
            this.rest(200);
        });
        if let Some(isolate) = self.isolate_cpus {
            isolate(0);
        }
    }

    fn set_limits(&mut self) {
        let high_min = self.rng.below(500);
        let limits = CacheLimits { batch: 63, high_min, high_max: high_min + self.rng.below(4000) };
        let zone = self.zone();
        for _ in 0..10 {
            let _now = self.begin(Feature::Limits);
            self.depot.settings(zone).unwrap().set_cache_limits(limits);
            std::thread::yield_now();
        }
    }

    /// Sets the policy of a zone. It is at work until the next one, as `policies` has it by zone.
    fn set_policy(&mut self, feature: Feature, policies: &mut [Option<(Feature, Active<'w>)>]) {
        let zone = self.zone();
        let policy = feature.policy(self.rng.below(101) as u8);
        if !self.depot.settings(zone).unwrap().set_evacuation(policy) {
            return;
        }
        let meetings = &self.world.meetings;
        if let Some((before, _)) = policies[zone.index()].take() {
            meetings.meet(before, feature);
        }
        policies[zone.index()] = Some((feature, meetings.begin(feature)));
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
            let _now = this.world.meetings.begin(via);
            // More may be asked for than the zone has.
            _ = this.depot.compact(zone, rules.drain(mode), &busy);
            drop(_now);
            this.rest(300);
        });
        busy.end();
    }

    pub fn report(mut self) {
        self.until_over(|this| {
            let zone = this.zone();
            let refuses = this.rng.one_in(5);
            this.device.refuses.store(refuses, Ordering::Relaxed);
            let _refuses = refuses.then(|| this.world.meetings.begin(Feature::Refusing));
            let is_less =
                this.world.usage.managed() * REPORTED_PERCENT / 100 > this.device.taken_frames();
            let now = this.world.meetings.begin(Feature::Reporting);
            if is_less {
                let done = Reporting::of(this.depot).pass(zone, this.rng.below(4)).unwrap();
                assert!(done.pageblocks < 4);
            }
            drop(now);
            this.rest(1000);
        });
        self.device.refuses.store(false, Ordering::Relaxed);
    }

    pub fn remove(mut self) {
        self.until_over(|this| {
            let (zone, of) = [(0, LOW[0]), (1, NORMAL[0]), (2, REMOTE[0])][this.rng.index(3)];
            let (zone, all) = (ZoneId::new(zone), of.frames / PAGEBLOCK);
            let pageblocks = this.rng.below(3) as u32 + 1;
            let first = this.rng.below(u64::from(all - pageblocks + 1)) as u32;
            let start = of.start.add(first * PAGEBLOCK);
            this.remove_and_add(zone, FrameRange::new(start, pageblocks * PAGEBLOCK));
            this.rest(500);
        });
    }

    fn remove_and_add(&mut self, zone: ZoneId, range: FrameRange) {
        let world = self.world;
        let frames = i64::from(range.frames);
        world.usage.manage(-frames);
        let removing = self.begin(Set::from(Feature::Removal).and(Feature::Isolation));
        if self.rng.one_in(3) {
            let flags = [Flags::MOVABLE, Flags::UNMOVABLE][self.rng.index(2)];
            // Callers may hold frames of it.
            let _ = self.depot.reassign(zone, range, flags.class(Class::PAGE_CACHE));
            world.usage.manage(frames);
            return;
        }
        let removed = self.depot.remove_memory(zone, range);
        if removed.is_err() {
            world.usage.manage(frames);
            return;
        }
        self.device.check(range.start, range.frames);
        world.marks.take(range.start, range.frames, REMOVER);
        world.note_via(range.start, range.frames, Feature::Removal.into());
        (0..range.frames).for_each(|at| world.arena.write(range.start.add(at), u64::MAX));
        self.rest(300);
        drop(removing);
        world.marks.give_back(range.start, range.frames, REMOVER);
        let _adding = world.meetings.begin(Set::from(Feature::Adding).and(Feature::Isolation));
        world.note_via(range.start, range.frames, Feature::Adding.into());
        if self.rng.one_in(2) {
            self.depot.add_memory(zone, range, &mut []).unwrap();
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
