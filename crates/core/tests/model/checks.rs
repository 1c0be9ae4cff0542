//! What must hold after every operation, and when a request may fail.

use pagedepot::{AllocError, Order, ZoneId, ZoneStats};

use crate::common::Single;
use crate::lockstep::Lockstep;
use crate::op::Wish;

/// Frames of a huge.
const HUGE: u32 = 512;

/// All zones' statistics at one moment.
pub struct Tally(Vec<ZoneStats>);

impl Tally {
    pub fn of(depot: &Single<'_>) -> Self {
        Tally(depot.zone_ids().map(|zone| depot.zone_stats(zone).unwrap()).collect())
    }
}

/// Blocks that an operation allocated in a zone, or freed.
#[derive(Clone, Copy, Default)]
struct Flow {
    pages: u64,
    smallest: u64,
    largest: u64,
}

impl Flow {
    fn add(&mut self, frames: u32) {
        let frames = u64::from(frames);
        self.pages += frames;
        self.smallest = if self.smallest == 0 { frames } else { self.smallest.min(frames) };
        self.largest = self.largest.max(frames);
    }

    /// Pages that went through the caches when `direct` blocks did not: at least, at most.
    fn cached(self, direct: u64) -> (i64, i64) {
        (
            (self.pages as i64) - (direct * self.largest) as i64,
            self.pages as i64 - (direct * self.smallest) as i64,
        )
    }
}

/// What an operation moved, by zone. Ranges are not in it: they never go through the caches.
pub struct Flows {
    allocated: Vec<Flow>,
    freed: Vec<Flow>,
}

impl Flows {
    pub fn new(zones: usize) -> Self {
        Flows { allocated: vec![Flow::default(); zones], freed: vec![Flow::default(); zones] }
    }

    pub fn allocated(&mut self, zone: usize, frames: u32) {
        self.allocated[zone].add(frames);
    }

    pub fn freed(&mut self, zone: usize, frames: u32) {
        self.freed[zone].add(frames);
    }
}

impl Lockstep<'_> {
    pub fn check(&mut self, before: &Tally, flows: &Flows) {
        let after = Tally::of(&self.depot);
        let mut served = 0;
        let mut failures = 0;
        for (zone, (old, new)) in before.0.iter().zip(&after.0).enumerate() {
            self.check_conservation(zone, new);
            check_balance(old, new, flows.allocated[zone], flows.freed[zone]);
            let remote = if self.world.track_owner { self.naive.zones[zone].remote_frees } else { 0 };
            assert_eq!(new.counts.remote_frees, remote);
            served += new.counts.hits + new.counts.direct_allocs + new.counts.direct_frees;
            failures += new.counts.failures;
        }
        assert!(served <= self.operations, "{served} of {} operations served", self.operations);
        assert_eq!(failures, self.failures);
        self.check_cpus();
    }

    fn check_conservation(&self, zone: usize, stats: &ZoneStats) {
        let model = &self.naive.zones[zone];
        assert_eq!(stats.managed_pages, model.managed());
        let found = stats.free_pages + stats.cached_pages + stats.carved_pages + model.held_pages;
        assert_eq!(found, stats.managed_pages, "{stats:?}, {} held", model.held_pages);
    }

    /// Nobody is in the middle of anything; closed gates have nothing behind them; limits are kept.
    fn check_cpus(&mut self) {
        for cpu in self.cpus() {
            let is_disabled = self.is_disabled[cpu.index()];
            assert_eq!(self.depot.has_caches(cpu), !is_disabled);
            for zone in self.zones() {
                let stats = self.depot.cpu_stats(cpu, zone).unwrap();
                assert_eq!(stats.in_flight_pages, 0);
                assert!(stats.cached_pages() <= stats.charged_pages);
                if is_disabled {
                    assert_eq!(stats.charged_pages, 0, "{cpu} has no caches, but {stats:?}");
                }
                let peak = &mut self.peak_high[cpu.index()][zone.index()];
                *peak = stats.high_pages.max(*peak);
                assert!(stats.charged_pages <= *peak, "{cpu} {zone}: {stats:?}, never more than {peak}");
            }
        }
    }

    /// Whether a failed request for a block had to fail.
    pub fn check_failed_block(&mut self, error: AllocError, order: Order, wish: Wish) {
        let frames = order.frames();
        self.check_failed(error, wish, frames, Room { frames, align: frames });
        if error == AllocError::Exhausted {
            self.failures += 1;
        }
    }

    /// The same for contiguous frames.
    pub fn check_failed_range(&self, error: AllocError, frames: u32, align: u32, wish: Wish) {
        let block = frames.max(align).next_power_of_two();
        let room = if block < HUGE {
            Room { frames: block, align: block }
        } else {
            Room { frames: frames.next_multiple_of(HUGE), align: align.max(HUGE) }
        };
        self.check_failed(error, wish, frames, room);
    }

    fn check_failed(&self, error: AllocError, wish: Wish, frames: u32, room: Room) {
        let eligible = self.naive.eligible(self.at(), wish);
        if eligible.is_empty() {
            assert_eq!(error, AllocError::NoZone);
            return;
        }
        assert_eq!(error, AllocError::Exhausted);
        for zone in eligible {
            let id = ZoneId::new(zone as u32);
            for cpu in self.cpus() {
                let stats = self.depot.cpu_stats(cpu, id).unwrap();
                assert_eq!(stats.shelved_pages, 0, "a request failed while {cpu} had full magazines");
                if wish.may_reclaim() {
                    assert_eq!(stats.cached_pages(), 0, "a request failed while {cpu} cached pages");
                }
            }
            let stats = self.depot.zone_stats(id).unwrap();
            let floor = if wish.is_atomic { 0 } else { stats.watermarks.min };
            let is_above = stats.free_pages >= u64::from(frames) + floor;
            let mut places = self.naive.zones[zone].places(room.frames, room.align);
            let place = places.find(|&at| self.is_free(at, room.frames));
            assert!(!is_above || place.is_none(), "failed, though {place:x?} is free in {stats:?}");
        }
    }
}

/// What a request needs: so many free frames, at a multiple of so many.
struct Room {
    frames: u32,
    align: u32,
}

fn check_balance(old: &ZoneStats, new: &ZoneStats, allocated: Flow, freed: Flow) {
    let grown = |of: fn(&ZoneStats) -> u64| of(new) as i64 - of(old) as i64;
    let moved = grown(|s| s.counts.refilled_pages)
        - grown(|s| s.counts.spilled_pages)
        - grown(|s| s.counts.drained_pages);
    let (out_min, out_max) = allocated.cached(grown(|s| s.counts.direct_allocs) as u64);
    let (in_min, in_max) = freed.cached(grown(|s| s.counts.direct_frees) as u64);
    let cached = grown(|s| s.cached_pages);
    let (least, most) = (moved + in_min - out_max, moved + in_max - out_min);
    assert!(
        (least..=most).contains(&cached),
        "cached grew by {cached}, expected {least}..={most}: {old:?} {new:?}"
    );
}
