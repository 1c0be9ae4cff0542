//! Performs each operation on the allocator and on the model.

use pagedepot::cpus::{Guard, Processor};
use pagedepot::{
    AllocError, CacheLimits, ConfigError, CpuId, DrainResult, FreeError, Mode, Order, Pfn, Scope,
    Watermarks, ZoneId,
};
use pagedepot_contiguity::{Contiguity, Obstacle, RemoveError};

use crate::common::{order, range};
use crate::lockstep::Lockstep;
use crate::naive::{Held, Naive, Shape};
use crate::op::{Op, Wish, Wrong};
use crate::world::{FIRST_SPARE_SECTION, Keeper, SECTION};

impl Lockstep<'_> {
    pub fn perform(&mut self, op: &Op) {
        match *op {
            Op::Alloc { order, count, wish } => self.alloc(order, count, wish),
            Op::Free { from, stride, count } => {
                let picked = self.naive.pick(from, stride, count);
                picked.into_iter().for_each(|start| self.free_one(start));
            }
            Op::AllocMany { order, count, wish } => self.alloc_many(order, count, wish),
            Op::FreeMany { from, stride, count } => self.free_many(from, stride, count),
            Op::AllocContiguous { frames, align_shift, wish } => {
                self.alloc_contiguous(frames, 1 << align_shift, wish);
            }
            Op::AllocAt { at, frames, wish } => self.alloc_at(at, frames, wish),
            Op::FreeContiguous { which, skip, keep } => self.free_part(which, skip, keep),
            Op::Scatter { which } => {
                if let Some((start, _)) = self.pick_range(which) {
                    self.naive.split(start, 1, Shape::Block(Order::BASE));
                }
            }
            Op::Split { which, to } => self.split(which, to),
            Op::Drain { cpu, zone, mode } => self.drain(cpu, zone, mode),
            Op::DisableCaches => {
                let drained = self.depot.cpu_caches().disable();
                assert_eq!(
                    (drained.left_pages, drained.unreachable_pages, drained.busy_cpus),
                    (0, 0, 0)
                );
                self.is_disabled.fill(true);
            }
            Op::EnableCaches => {
                self.depot.cpu_caches().enable();
                self.is_disabled.fill(false);
            }
            Op::RetireCpu(cpu) => {
                let cpu = usize::from(cpu) % (self.is_disabled.len() + 1);
                let drained = self.depot.cpu_caches().retire(CpuId::new(cpu as u32));
                assert_eq!(
                    (drained.left_pages, drained.unreachable_pages, drained.busy_cpus),
                    (0, 0, 0)
                );
                self.is_disabled
                    .iter_mut()
                    .skip(cpu)
                    .take(1)
                    .for_each(|is_disabled| *is_disabled = true);
            }
            Op::RestoreCpu(cpu) => {
                let cpu = usize::from(cpu) % (self.is_disabled.len() + 1);
                let restored = self.depot.cpu_caches().restore(CpuId::new(cpu as u32));
                assert_eq!(restored, self.is_disabled.get(cpu).copied().unwrap_or(false));
                self.is_disabled
                    .iter_mut()
                    .skip(cpu)
                    .take(1)
                    .for_each(|is_disabled| *is_disabled = false);
            }
            Op::Decay { later_ms } => self.decay(later_ms),
            Op::SetLimits { zone, batch, high_min, more } => {
                self.set_limits(zone, batch, high_min, more)
            }
            Op::SetWatermarks { zone, min } => self.set_watermarks(zone, u64::from(min)),
            Op::AddMemory { zone, at, frames, is_held } => {
                self.add_memory(zone, at, frames, is_held);
            }
            Op::RemoveMemory { which, skip, pageblocks, other_zone } => {
                self.remove_memory(which, skip, pageblocks, other_zone);
            }
            Op::RunOn { cpu, in_interrupt, nowhere } => {
                let anywhere = &self.depot.cpus().0;
                anywhere.run_on(u32::from(cpu) % (self.world.cpus() + 2));
                anywhere.set_interrupt(in_interrupt);
                anywhere.set_nowhere(nowhere);
            }
            Op::Misuse(wrong, which) => self.misuse(wrong, which),
        }
    }

    /// Records and checks a block or range that was handed out.
    fn take(&mut self, pfn: Pfn, held: Held, wish: Option<Wish>) {
        let start = pfn.get();
        let eligible = wish.map(|wish| self.naive.eligible(self.at(), wish));
        let zone = self.naive.allocate(start, held);
        assert!(
            eligible.is_none_or(|eligible| eligible.contains(&zone)),
            "{pfn} is of zone {zone}: {wish:?}"
        );
        for frame in [start, start + held.frames / 2, start + held.frames - 1] {
            assert!(!self.depot.is_free(Pfn::new(frame)));
        }
        if self.world.is_mapped {
            if wish.is_some_and(|wish| wish.is_zeroed) {
                self.arena.check_zeroes(start);
                self.arena.check_zeroes(start + held.frames - 1);
            }
            (start..start + held.frames).for_each(|frame| self.arena.mark(frame));
        }
    }

    fn check_contents(&self, start: u32, frames: u32) {
        if self.world.is_mapped {
            (start..start + frames).for_each(|frame| self.arena.check_marks(frame));
        }
    }

    fn alloc(&mut self, order: Order, count: u16, wish: Wish) {
        for _ in 0..count {
            match self.depot.alloc(order, wish.flags()) {
                Ok(pfn) => self.took_block(pfn, order, wish),
                Err(error) => return self.check_failed_block(error, order, wish),
            }
        }
    }

    fn took_block(&mut self, pfn: Pfn, order: Order, wish: Wish) {
        assert!(pfn.is_aligned(order));
        self.take(pfn, Naive::order_block(order), Some(wish));
        self.operations += 1;
    }

    pub fn free_one(&mut self, start: u32) {
        self.check_contents(start, self.naive.held[&start].frames);
        let held = self.naive.free(start);
        match held.shape {
            Shape::Block(order) => {
                self.depot.free(Pfn::new(start), order).unwrap();
                self.operations += 1;
            }
            Shape::Range => {
                self.depot.free_contiguous(Pfn::new(start), held.frames).unwrap();
                self.operations += 1;
            }
        }
        self.last_freed = Some((start, held));
    }

    fn alloc_many(&mut self, order: Order, count: u16, wish: Wish) {
        let untouched = Pfn::new(u32::MAX);
        let mut out = vec![untouched; usize::from(count)];
        let got = match self.depot.alloc_many(order, wish.flags(), &mut out) {
            Ok(got) => got,
            Err(error) => {
                assert!(out.iter().all(|&pfn| pfn == untouched));
                return self.check_failed_block(error, order, wish);
            }
        };
        assert!(got > 0 && out[got..].iter().all(|&pfn| pfn == untouched));
        out[..got].iter().for_each(|&pfn| self.took_block(pfn, order, wish));
        if got < out.len() {
            self.check_failed_block(AllocError::Exhausted, order, wish);
        }
    }

    fn free_many(&mut self, from: u16, stride: u8, count: u16) {
        let mut batch = Vec::new();
        for start in self.naive.pick(from, stride, count) {
            let Held { frames, shape: Shape::Block(order) } = self.naive.held[&start] else {
                continue;
            };
            self.check_contents(start, frames);
            let held = self.naive.free(start);
            self.operations += 1;
            self.last_freed = Some((start, held));
            batch.push((Pfn::new(start), order));
        }
        self.depot.free_many(&batch).unwrap();
    }

    fn alloc_contiguous(&mut self, frames: u32, align: u32, wish: Wish) {
        match self.depot.alloc_contiguous(frames, align, wish.flags()) {
            Ok(pfn) => {
                assert!(pfn.get().is_multiple_of(align));
                self.take(pfn, Held { frames, shape: Shape::Range }, Some(wish));
                self.operations += 1;
            }
            Err(AllocError::BadSize) => assert!(frames == 0 || frames > SECTION),
            Err(AllocError::BadAlignment) => assert!(align > SECTION),
            Err(AllocError::Unsupported) => {
                assert!(
                    self.world.keeper == Keeper::Blocks && frames.max(align) > Order::MAX.frames()
                );
            }
            Err(error) => self.check_failed_range(error, frames, align, wish),
        }
    }

    fn alloc_at(&mut self, at: u32, frames: u32, wish: Wish) {
        let ranges: Vec<_> = self.naive.zones.iter().flat_map(|zone| zone.ranges.clone()).collect();
        if ranges.is_empty() {
            return;
        }
        let near = ranges[at as usize % ranges.len()];
        // The address may lie in the hole behind the range, too.
        let start = near.start.add(at / 64 % (near.frames + 10));
        match self.depot.alloc_at(start, frames, wish.flags()) {
            Ok(()) => self.take(start, Held { frames, shape: Shape::Range }, None),
            Err(AllocError::BadSize) => assert_eq!(frames, 0),
            Err(AllocError::Unsupported) => assert_eq!(self.world.keeper, Keeper::Blocks),
            Err(error) => self.check_failed_at(error, start.get(), frames, wish),
        }
    }

    fn pick_range(&self, which: u16) -> Option<(u32, u32)> {
        let ranges = self.naive.held.iter().filter(|(_, held)| held.shape == Shape::Range);
        let ranges: Vec<(u32, u32)> = ranges.map(|(&start, held)| (start, held.frames)).collect();
        (!ranges.is_empty()).then(|| ranges[usize::from(which) % ranges.len()])
    }

    fn pick_block(&self, which: u16) -> Option<(u32, Order)> {
        let blocks = self.naive.held.iter().filter_map(|(&start, held)| match held.shape {
            Shape::Block(order) => Some((start, order)),
            Shape::Range => None,
        });
        let blocks: Vec<(u32, Order)> = blocks.collect();
        (!blocks.is_empty()).then(|| blocks[usize::from(which) % blocks.len()])
    }

    fn free_part(&mut self, which: u16, skip: u8, keep: u8) {
        let Some((mut start, mut frames)) = self.pick_range(which) else { return };
        let part = |of: u32, n: u8| (u64::from(of) * u64::from(n) / 256) as u32;
        let (skip, keep) = (part(frames, skip), part(frames, keep));
        if skip > 0 {
            self.naive.cut(start, skip);
            (start, frames) = (start + skip, frames - skip);
        }
        if keep > 0 && keep < frames {
            self.naive.cut(start, frames - keep);
            frames -= keep;
        }
        self.check_contents(start, frames);
        self.naive.free(start);
        self.depot.free_contiguous(Pfn::new(start), frames).unwrap();
        self.operations += 1;
    }

    fn split(&mut self, which: u16, to: Order) {
        let Some((start, from)) = self.pick_block(which) else { return };
        let done = self.depot.split(Pfn::new(start), from, to);
        if to > from {
            assert_eq!(done, Err(FreeError::Misaligned));
            return;
        }
        done.unwrap();
        self.naive.split(start, to.frames(), Shape::Block(to));
    }

    fn drain(&mut self, cpu: Option<u8>, zone: Option<u8>, mode: Mode) {
        let cpu = cpu.map(|cpu| CpuId::new(u32::from(cpu)));
        let zone = zone.map(|zone| ZoneId::new(u32::from(zone)));
        let scope = cpu.map_or(Scope::ALL, Scope::cpu);
        let scope = zone.map_or(scope, |zone| scope.in_zone(zone));
        let cpus: Vec<CpuId> = self.cpus().filter(|&c| cpu.is_none_or(|cpu| cpu == c)).collect();
        let zones: Vec<ZoneId> =
            self.zones().filter(|&z| zone.is_none_or(|zone| zone == z)).collect();
        let places = || cpus.iter().flat_map(|&cpu| zones.iter().map(move |&zone| (cpu, zone)));
        let sum = |of: fn(&pagedepot::CpuStats) -> u64| -> u64 {
            places().map(|(cpu, zone)| of(&self.depot.cpu_stats(cpu, zone).unwrap())).sum()
        };
        let (shelved, in_fronts) = (sum(|s| s.shelved_pages), sum(|s| s.unreachable_pages));
        let handed = sum(|s| s.handed_pages);
        // CPUs with magazines in fronts: what is on a shelf is charged, and full.
        let has_fronts = |cpu: &&CpuId| {
            let stats = |&zone| self.depot.cpu_stats(**cpu, zone).unwrap();
            zones.iter().map(stats).any(|stats| stats.charged_pages > stats.shelved_pages)
        };
        let fenced = cpus.iter().filter(has_fronts).count() as u64;
        let fences = self.depot.cpus().0.fences();

        let mut told = DrainResult::default();
        let mut visited = Vec::new();
        let drained = self.depot.drain_each(scope, mode, |cpu, one| {
            visited.push(cpu);
            told += one;
        });

        assert_eq!(visited, cpus);
        assert_eq!(told, drained);
        assert_eq!((drained.left_pages, drained.in_flight_pages, drained.busy_cpus), (0, 0, 0));
        assert_eq!(drained.fences, self.depot.cpus().0.fences() - fences);
        assert_eq!((sum(|s| s.shelved_pages), sum(|s| s.handed_pages)), (0, 0));
        match mode {
            Mode::Quiet => {
                assert_eq!((drained.taken_pages, drained.fences), (shelved + handed, 0));
                assert_eq!(sum(|s| s.unreachable_pages), in_fronts);
                assert!(drained.unreachable_pages >= in_fronts);
            }
            Mode::Handover => {
                // The CPU that this runs on answers at once, if no handler is above its task.
                let answered = in_fronts - sum(|s| s.unreachable_pages);
                assert_eq!(drained.taken_pages, shelved + handed + answered);
                assert!(drained.pending_pages <= sum(|s| s.charged_pages));
                let is_pending = |cpu: &&CpuId| {
                    let charged = |&zone| self.depot.cpu_stats(**cpu, zone).unwrap().charged_pages;
                    self.depot.cpu_caches().are_enabled(**cpu)
                        && zones.iter().map(charged).sum::<u64>() > 0
                };
                let pending = cpus.iter().filter(is_pending).count() as u64;
                assert_eq!((drained.pending_cpus, drained.fences), (pending, 0));
                if let Some(here) = self.depot.cpus().0.pin().filter(Guard::is_alone) {
                    let here = here.here().cpu;
                    assert!(!cpus.contains(&here) || !is_pending(&&here));
                }
            }
            Mode::Full => {
                let taken = shelved + handed + in_fronts;
                assert_eq!((drained.taken_pages, drained.fences), (taken, fenced));
                assert_eq!((sum(|s| s.unreachable_pages), drained.unreachable_pages), (0, 0));
            }
        }
    }

    fn decay(&mut self, later_ms: u16) {
        self.now_ms += u64::from(later_ms);
        self.depot.cpus().0.set_now_ms(self.now_ms);
        // What was handed over and not collected counts as drained.
        let moved = |this: &Self| -> u64 {
            let counts = this.zones().map(|zone| this.depot.zone_stats(zone).unwrap().counts);
            counts.map(|counts| counts.spilled_pages + counts.drained_pages).sum()
        };
        let before = moved(self);
        assert_eq!(self.depot.cpu_caches().decay(), moved(self) - before);
    }

    fn set_limits(&mut self, zone: u8, batch: u16, high_min: u16, more: u16) {
        let zone = ZoneId::new(u32::from(zone) % (self.naive.zones.len() as u32 + 1));
        let (batch, high_min) = (u64::from(batch), u64::from(high_min));
        let limits = CacheLimits { batch, high_min, high_max: high_min + u64::from(more) };
        let exists = zone.index() < self.naive.zones.len();
        let settings = self.depot.settings(zone);
        assert_eq!(settings.is_some(), exists);
        if let Some(settings) = settings {
            settings.set_cache_limits(limits);
            let set = settings.cache_limits();
            assert_eq!(set, self.depot.zone_stats(zone).unwrap().limits);
            assert_eq!(
                (set.batch, set.high_min, set.high_max),
                (batch.max(1), high_min, limits.high_max)
            );
        }
    }

    fn set_watermarks(&mut self, zone: u8, min: u64) {
        let zone = ZoneId::new(u32::from(zone) % (self.naive.zones.len() as u32 + 1));
        let marks = Watermarks { min, low: min + min / 3, high: min * 2 };
        let exists = zone.index() < self.naive.zones.len();
        let settings = self.depot.settings(zone);
        assert_eq!(settings.is_some(), exists);
        if let Some(settings) = settings {
            assert!(settings.set_watermarks(marks));
            assert!(!settings.set_watermarks(Watermarks { min: min + 1, low: min, high: min }));
            assert!(!settings.set_watermarks(Watermarks { min, low: min + 2, high: min + 1 }));
            assert_eq!(settings.watermarks(), marks);
            assert_eq!(self.depot.zone_stats(zone).unwrap().watermarks, marks);
        }
    }

    /// Adds memory among sixteen pageblocks across the border of two sections.
    fn add_memory(&mut self, zone: u8, at: u32, frames: u32, is_held: bool) {
        let zone = usize::from(zone) % self.naive.zones.len();
        let id = ZoneId::new(zone as u32);
        let added = range(FIRST_SPARE_SECTION * SECTION - 4096 + at % 8192, frames);
        let refusal = if self.world.is_mapped {
            Some(ConfigError::NotAddable { range: added })
        } else {
            self.naive.not_new(zone, added)
        };
        if let Some(error) = refusal {
            assert_eq!(self.depot.add_memory(id, added, &mut []).unwrap_err().why, error);
            assert_eq!(self.depot.add_memory_held(id, added, &mut []).unwrap_err().why, error);
            return;
        }
        let metadata = match self.depot.section_bytes(added) {
            0 => Default::default(),
            _ => self.spare_metadata.pop().expect("one for each spare section"),
        };
        self.naive.add(zone, added);
        if is_held {
            self.depot.add_memory_held(id, added, metadata).unwrap();
            self.take(added.start, Held { frames, shape: Shape::Range }, None);
        } else {
            self.depot.add_memory(id, added, metadata).unwrap();
            if let Some(backing) = self.backing {
                backing.add(id, added);
            }
        }
    }

    fn remove_memory(&mut self, which: u16, skip: u8, pageblocks: u8, other_zone: bool) {
        let all = (0..).zip(&self.naive.zones);
        let all: Vec<_> =
            all.flat_map(|(i, zone)| zone.ranges.iter().map(move |&range| (i, range))).collect();
        if all.is_empty() {
            return;
        }
        let (mut zone, near) = all[usize::from(which) % all.len()];
        if other_zone {
            zone = (zone + 1) % self.naive.zones.len();
        }
        let start = (near.start.get() / 512 + u32::from(skip)) * 512;
        let removed = range(start, u32::from(pageblocks) * 512);
        let result = self.depot.remove_memory(ZoneId::new(zone as u32), removed);
        let frames = start..removed.end() as u32;
        match result {
            Ok(()) => {
                assert!(self.naive.zones[zone].has(start, removed.frames));
                assert!(self.naive.overlap(start, removed.frames).is_none());
                assert!(!frames.clone().any(|frame| self.depot.is_free(Pfn::new(frame))));
                self.naive.remove(zone, removed);
                self.last_freed = None;
                let freed = self.depot.free(removed.start, Order::BASE);
                assert_eq!(freed, Err(FreeError::OutOfRange));
            }
            Err(RemoveError::Unsupported) => assert_eq!(self.world.keeper, Keeper::Blocks),
            Err(RemoveError::Busy { first, pages, skipped_cpus }) => {
                // Held by callers, or never given; all caches have been drained.
                let is_there = |frame: &u32| {
                    self.naive.zones[zone].has(*frame, 1) && !self.naive.is_held(Pfn::new(*frame))
                };
                let missing = frames.clone().filter(|frame| !is_there(frame));
                assert_eq!((missing.count() as u64, skipped_cpus), (pages, 0));
                assert_eq!(frames.clone().find(|frame| !is_there(frame)), Some(first.get()));
                assert_eq!(
                    frames.clone().filter(|&at| self.depot.is_free(Pfn::new(at))).count() as u64,
                    u64::from(removed.frames) - pages
                );
            }
            Err(RemoveError::Obstacle(Obstacle::Carved { first, pages })) => {
                assert!(self.world.is_mapped && pages > 0 && frames.contains(&first.get()));
            }
            Err(RemoveError::Obstacle(Obstacle::NoMemory { first })) => {
                assert!(self.naive.zone_around(first.get(), 512).is_none());
            }
            Err(RemoveError::Obstacle(Obstacle::OtherZone { first, zone: other })) => {
                assert_ne!(other.index(), zone);
                assert_eq!(self.naive.zone_around(first.get(), 512), Some(other.index()));
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Wrong use that must be refused. The checks after it find any change.
    fn misuse(&mut self, wrong: Wrong, which: u16) {
        let block = self.pick_block(which);
        let freed = self
            .last_freed
            .filter(|&(start, held)| self.naive.overlap(start, held.frames).is_none());
        match wrong {
            Wrong::SplitLarger => {
                if let Some((start, from)) = block.filter(|(_, from)| *from < Order::MAX) {
                    let split = self.depot.split(Pfn::new(start), from, order(from.get() + 1));
                    assert_eq!(split, Err(FreeError::Misaligned));
                }
            }
            Wrong::FreeWithOrder(wrong) => {
                if let Some((start, right)) = block.filter(|(_, right)| *right != wrong) {
                    let pfn = Pfn::new(start);
                    if !pfn.is_aligned(wrong) {
                        let error = self.depot.free(pfn, wrong).unwrap_err();
                        assert!(matches!(error, FreeError::Misaligned | FreeError::OutOfRange));
                    } else if self.world.checked {
                        let error = self.depot.free(pfn, wrong).unwrap_err();
                        assert!(
                            matches!(error, FreeError::NotAllocated | FreeError::OutOfRange),
                            "{right} {error}"
                        );
                    }
                }
            }
            Wrong::FreeUnallocated(frame) => {
                let beyond = Pfn::new(u32::MAX - frame % 1024);
                assert_eq!(self.depot.free(beyond, Order::BASE), Err(FreeError::OutOfRange));
                let pfn = Pfn::new(frame % 20000);
                if self.world.checked && !self.naive.is_held(pfn) {
                    assert!(self.depot.free(pfn, Order::BASE).is_err());
                }
            }
            _ if !self.world.checked => {}
            Wrong::FreeTwice => {
                if let Some((start, Held { shape: Shape::Block(order), .. })) = freed {
                    assert_eq!(
                        self.depot.free(Pfn::new(start), order),
                        Err(FreeError::NotAllocated)
                    );
                    let many = self.depot.free_many(&[(Pfn::new(start), order)]).unwrap_err();
                    assert_eq!(
                        (many.first, many.failed, many.error),
                        (0, 1, FreeError::NotAllocated)
                    );
                }
            }
            Wrong::SplitFreed => {
                if let Some((start, Held { shape: Shape::Block(order), .. })) = freed {
                    let split = self.depot.split(Pfn::new(start), order, Order::BASE);
                    assert_eq!(split, Err(FreeError::NotAllocated));
                }
            }
            Wrong::FreeInside(at) => {
                if let Some((start, order)) = block.filter(|(_, order)| *order > Order::BASE) {
                    let inside = Pfn::new(start + 1 + at % (order.frames() - 1));
                    assert_eq!(self.depot.free(inside, Order::BASE), Err(FreeError::NotAllocated));
                }
            }
            Wrong::FreeRangeTwice => {
                if let Some((start, Held { shape: Shape::Range, frames })) = freed {
                    let twice = self.depot.free_contiguous(Pfn::new(start), frames);
                    assert_eq!(twice, Err(FreeError::NotAllocated));
                }
                if let Some((start, frames)) = self.pick_range(which)
                    && self.naive.overlap(start + frames, 1).is_none()
                {
                    assert!(self.depot.free_contiguous(Pfn::new(start), frames + 1).is_err());
                }
            }
        }
    }
}
