//! Checks that must hold after every operation, and when a request may fail.

use pagedepot::{AllocError, Order, ZoneId, ZoneStats};

use crate::lockstep::Lockstep;
use crate::naive::Zone;
use crate::op::Wish;
use crate::world::Keeper;

impl Lockstep<'_> {
    pub fn check(&mut self) {
        let mut served = 0;
        let mut failures = 0;
        for (zone, model) in self.naive.zones.iter().enumerate() {
            let stats = self.depot.zone_stats(ZoneId::new(zone as u32)).unwrap();
            check_conservation(&stats, model);
            check_balance(&stats, model);
            served += stats.counts.hits + stats.counts.direct_allocs + stats.counts.direct_frees;
            failures += stats.counts.failures;
        }
        assert!(served <= self.operations, "{served} of {} operations served", self.operations);
        assert_eq!(failures, self.failures);
        self.check_cpus();
    }

    /// Checks each CPU: nothing is in flight, closed gates have nothing behind them, limits are
    /// kept.
    fn check_cpus(&mut self) {
        for cpu in self.cpus() {
            let is_disabled = self.is_disabled[cpu.index()];
            assert_eq!(self.depot.cpu_caches().are_enabled(cpu), !is_disabled);
            for zone in self.zones() {
                let stats = self.depot.cpu_stats(cpu, zone).unwrap();
                assert_eq!(stats.in_flight_pages, 0);
                assert!(stats.cached_pages() - stats.handed_pages <= stats.charged_pages);
                if is_disabled {
                    assert_eq!(stats.charged_pages, 0, "{cpu} has no caches, but {stats:?}");
                }
                let peak = &mut self.peak_high[cpu.index()][zone.index()];
                *peak = stats.high_pages.max(*peak);
                // A limit that adapts may have been raised and lowered again by one operation where
                // whole pageblocks are short: to a batch below what was charged, but never is more
                // charged than it may grow to.
                let limits = self.depot.zone_stats(zone).unwrap().limits;
                let adapts = limits.high_min < limits.high_max;
                let most = if adapts { *peak + limits.batch } else { *peak };
                assert!(
                    stats.charged_pages <= most.min(limits.high_max.max(*peak)),
                    "{cpu} {zone}: {stats:?}, never more than {most}, {limits:?}"
                );
            }
        }
    }

    /// Checks that a request for a block that failed had to fail.
    pub fn check_failed_block(&mut self, error: AllocError, order: Order, wish: Wish) {
        let frames = order.frames();
        self.check_failed(error, wish, frames, Room { frames, align: frames });
        if error == AllocError::Exhausted {
            self.failures += 1;
        }
    }

    /// Checks a request for contiguous frames that failed.
    pub fn check_failed_range(&mut self, error: AllocError, frames: u32, align: u32, wish: Wish) {
        let block = frames.max(align).next_power_of_two();
        let room = match self.world.keeper {
            Keeper::Blocks => Room { frames: block, align: block },
            Keeper::Bitmap | Keeper::Ranges => Room { frames, align },
        };
        self.check_failed(error, wish, frames, room);
        if error == AllocError::Exhausted {
            self.failures += 1;
        }
    }

    /// Checks a request for frames at a given address that failed.
    pub fn check_failed_at(&mut self, error: AllocError, start: u32, frames: u32, wish: Wish) {
        assert_eq!(error, AllocError::NotAvailable);
        if let Some(zone) = self.naive.zone_around(start, frames) {
            self.failures += 1;
            self.check_caches(ZoneId::new(zone as u32), wish);
        }
        let is_there = self.naive.zone_of(start, frames).is_some();
        assert!(
            !is_there || !self.is_free(start, frames),
            "failed, though {start:x} + {frames} is free"
        );
    }

    fn check_failed(&self, error: AllocError, wish: Wish, frames: u32, room: Room) {
        let eligible = self.naive.eligible(self.at(), wish);
        if eligible.is_empty() {
            assert_eq!(error, AllocError::NoZone);
            return;
        }
        assert_eq!(error, AllocError::Exhausted);
        let is_possible =
            eligible.iter().any(|&zone| self.naive.zones[zone].managed() >= u64::from(frames));
        for zone in eligible {
            let id = ZoneId::new(zone as u32);
            if is_possible {
                self.check_caches(id, wish);
            }
            let stats = self.depot.zone_stats(id).unwrap();
            let floor = if wish.is_atomic { 0 } else { stats.watermarks.min };
            let is_above = stats.free_pages >= u64::from(frames) + floor;
            let place = self.find_room(&self.naive.zones[zone], room);
            assert!(!is_above || place.is_none(), "failed, though {place:x?} is free in {stats:?}");
        }
    }

    /// Checks that a request took back all that it may before it failed.
    fn check_caches(&self, zone: ZoneId, wish: Wish) {
        for cpu in self.cpus() {
            let stats = self.depot.cpu_stats(cpu, zone).unwrap();
            assert_eq!(stats.shelved_pages, 0, "a request failed while {cpu} had full magazines");
            if wish.may_reclaim() {
                assert_eq!(stats.cached_pages(), 0, "a request failed while {cpu} cached pages");
            }
        }
    }

    /// The lowest place in a zone that has the room, searched frame by frame.
    fn find_room(&self, zone: &Zone, room: Room) -> Option<u32> {
        // Frames `start..next` are free.
        let (mut start, mut next) = (0, 0);
        for frame in zone.frames() {
            if frame != next {
                start = frame;
            }
            next = frame + 1;
            if !self.is_free(frame, 1) {
                start = next;
            }
            let first = start.next_multiple_of(room.align);
            if next >= first + room.frames {
                return Some(first);
            }
        }
        None
    }
}

/// The need of a request: a number of free frames, and their alignment.
#[derive(Clone, Copy)]
struct Room {
    frames: u32,
    align: u32,
}

fn check_conservation(stats: &ZoneStats, model: &Zone) {
    assert_eq!(stats.managed_pages, model.managed());
    let found = stats.free_pages + stats.cached_pages + stats.carved_pages + model.held_pages();
    assert_eq!(found, stats.managed_pages, "{stats:?}, {} held", model.held_pages());
}

fn check_balance(stats: &ZoneStats, model: &Zone) {
    let counts = &stats.counts;
    let freed = model.freed_pages - counts.direct_free_pages;
    let allocated = model.allocated_pages - counts.direct_alloc_pages;
    let cached =
        counts.refilled_pages + freed - counts.spilled_pages - counts.drained_pages - allocated;
    assert_eq!(stats.cached_pages, cached, "{stats:?}");
}
