//! A thread that allocates and frees, and what it holds.

use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, Class, Flags, Mobility, Order, Pfn, Residency};

use crate::common::meetings::{Active, Set};
use crate::common::order;
use crate::common::rng::Rng;
use crate::common::threads::run_on;
use crate::device::Device;
use crate::feature::Feature;
use crate::pool::Pool;
use crate::world::{FIRST, FRAMES, LOW, NORMAL, PAGEBLOCK, Phase, REMOTE, Stretch, World};

/// Most stretches of frames that a worker holds.
const HELD_MAX: usize = 250;
/// Frames of a pageblock that a worker holds of those that it scatters.
const SCATTERED: u32 = 8;
/// Most blocks in the pool, in pages.
const POOL_PAGES: u64 = 2000;

enum Held {
    Fixed(Stretch),
    /// A block in this slot, which compaction may move.
    Movable(u32),
}

pub struct Worker<'w> {
    world: &'w World<'w>,
    device: &'w Device<'w>,
    pool: &'w Pool<'w>,
    rng: Rng,
    owner: u32,
    held: Vec<Held>,
    phase: Phase,
    /// Slots that are pinned, and how long yet.
    pinned: Option<(u32, u64, Active<'w>)>,
}

/// A worker at work on a depot.
pub struct AtWork<'a, 'w, 'm, C> {
    pub worker: &'a mut Worker<'w>,
    pub depot: &'a Allocator<'m, C>,
}

impl<'w> Worker<'w> {
    pub fn new(
        world: &'w World<'w>,
        device: &'w Device<'w>,
        pool: &'w Pool<'w>,
        rng: Rng,
        owner: u32,
    ) -> Self {
        let (held, phase) = (Vec::new(), Phase::Wild);
        Worker { world, device, pool, rng, owner, held, phase, pinned: None }
    }

    pub fn held_pages(&self) -> u64 {
        let pages = |held: &Held| match held {
            Held::Fixed(stretch) => stretch.frames,
            Held::Movable(id) => self.world.slot(*id).block.unwrap().frames,
        };
        self.held.iter().map(|held| u64::from(pages(held))).sum()
    }

    fn order(&mut self) -> Order {
        order([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10][self.rng.index(21)])
    }

    /// Flags, and the features that they are.
    fn flags(&mut self) -> (Flags, Set) {
        let mobility = Mobility::ALL[self.rng.index(3)];
        let class = match mobility {
            Mobility::Movable => Class::PAGE_CACHE,
            _ => Class::SHORT_LIVED,
        };
        // Reclaimable blocks are not kept apart: their class changes nothing.
        let (flags, classed) = match self.rng.one_in(3) && mobility != Mobility::Reclaimable {
            true => (Flags::new(mobility).class(class), Feature::Classes.into()),
            false => (Flags::new(mobility), Set::NONE),
        };
        let (flags, via) = match self.rng.below(20) {
            0 => (flags.atomic(), Feature::NoWait.into()),
            1 => (flags.no_reclaim(), Set::NONE),
            2 => (flags.at_most_level(1), Set::NONE),
            3..6 => (flags.compact(), Set::NONE),
            _ if self.world.meetings.wants(Set::from(Feature::Mover).and(Feature::Thinning)) => {
                (flags.compact(), Set::NONE)
            }
            _ => (flags, Set::NONE),
        };
        let via = via.and(classed);
        match self.rng.one_in(8) {
            true => (flags.zeroed(), via.and(Feature::Zeroed)),
            false => (flags, via),
        }
    }

    /// Holds frames that a request got.
    fn hold(&mut self, start: Pfn, frames: u32, order: Option<Order>, flags: Flags, via: Set) {
        self.device.check(start, frames);
        let stretch = self.world.take(start, frames, order, self.owner, via);
        self.push(stretch, flags.mobility() == Mobility::Movable);
    }

    fn push(&mut self, stretch: Stretch, is_movable: bool) {
        let is_block = stretch.order.is_some() && is_movable;
        let slot = if is_block { self.world.enter(stretch) } else { None };
        self.held.push(slot.map_or(Held::Fixed(stretch), Held::Movable));
    }

    /// Removes a stretch from what is held.
    fn pick(&mut self) -> Option<Stretch> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.rng.index(self.held.len());
        self.remove(at)
    }

    fn remove(&mut self, at: usize) -> Option<Stretch> {
        if let Held::Movable(id) = self.held[at]
            && self.pinned.as_ref().is_some_and(|pinned| pinned.0 == id)
        {
            return None;
        }
        match self.held.swap_remove(at) {
            Held::Fixed(stretch) => Some(stretch),
            Held::Movable(id) => Some(self.world.leave(id)),
        }
    }

    /// Pins a block for some steps.
    fn pin(&mut self) {
        if self.pinned.is_some() || self.held.is_empty() {
            return;
        }
        let at = self.rng.index(self.held.len());
        if let Held::Movable(id) = self.held[at] {
            let mut slot = self.world.slot(id);
            slot.pins += 1;
            let now = self.world.meetings.begin(Feature::Pins);
            self.world.meetings.meet(Feature::Pins, slot.block.unwrap().via);
            let steps = self.rng.below(200) + 1;
            self.pinned = Some((id, steps, now));
        }
    }

    fn unpin(&mut self, now: bool) {
        let Some((id, steps, _)) = &mut self.pinned else { return };
        *steps -= 1;
        if *steps == 0 || now {
            self.world.slot(*id).pins -= 1;
            self.pinned = None;
        }
    }

    fn leave_in_pool(&mut self) {
        if self.pool.pages() > POOL_PAGES {
            return;
        }
        match self.pick() {
            Some(block) if block.order.is_some() => self.pool.leave(block),
            Some(range) => self.held.push(Held::Fixed(range)),
            None => {}
        }
    }
}

impl<C: Cpus> AtWork<'_, '_, '_, C> {
    /// Works until the round is over.
    pub fn run(mut self) {
        run_on(Some(self.worker.owner % self.depot.cpu_count()));
        while !self.worker.world.is_over() {
            self.step();
        }
    }

    /// Frees everything.
    pub fn end(mut self) {
        self.worker.unpin(true);
        while !self.worker.held.is_empty() {
            self.free();
        }
    }

    fn step(&mut self) {
        if self.worker.rng.one_in(50) {
            let cpus = self.depot.cpu_count();
            let cpu = self.worker.rng.below(u64::from(cpus) + 2) as u32;
            run_on((cpu <= cpus).then_some(cpu));
        }
        self.worker.unpin(false);
        let phase = self.worker.world.phase();
        let before = std::mem::replace(&mut self.worker.phase, phase);
        match phase {
            Phase::Calm => return self.step_calmly(),
            Phase::Surge if self.worker.rng.one_in(50) => return self.surge(),
            // So that there are whole pageblocks again.
            Phase::Wild if before == Phase::Surge => self.free_down_to(HELD_MAX / 5),
            _ => {}
        }
        let is_full = self.worker.held.len() >= HELD_MAX || !self.worker.world.usage.has_room();
        let wants_at = !is_full && self.worker.world.meetings.wants(Feature::At);
        let wants_ranges = self.worker.world.meetings.wants(Feature::Absent);
        match self.worker.rng.below(100) {
            _ if is_full && self.worker.rng.one_in(2) => self.free(),
            0..=9 if wants_at => self.alloc_at(),
            10..=19 if wants_ranges => {
                self.alloc_range();
                self.free_range();
            }
            0..=37 if !is_full => self.alloc(),
            38..=42 if !is_full => self.alloc_many(),
            43..=46 if !is_full => self.alloc_range(),
            47..=49 if !is_full => self.alloc_at(),
            50..=52 => self.free_many(),
            53..=56 => self.split(),
            57..=58 => self.worker.pin(),
            59..=60 => self.worker.leave_in_pool(),
            61 => self.free_from_pool(),
            _ => self.free(),
        }
    }

    fn free_down_to(&mut self, held: usize) {
        while self.worker.held.len() > held {
            self.free();
        }
    }

    /// Allocates and frees single frames, from pageblocks of which others are held here and there.
    fn step_calmly(&mut self) {
        self.free_down_to(HELD_MAX / 2);
        if self.worker.held.len() < HELD_MAX / 3 {
            self.scatter();
        }
        let (flags, via) = (Flags::MOVABLE, Feature::Order0.into());
        for _ in 0..HELD_MAX / 3 {
            let request = |this: &Self| Some((this.depot.alloc(Order::BASE, flags).ok()?, 1));
            let Some(pfn) = self.request(1, via, request) else { break };
            self.worker.hold(pfn, 1, Some(Order::BASE), flags, via);
        }
        (0..HELD_MAX / 3).for_each(|_| self.free());
    }

    /// Leaves movable frames in many pageblocks, then asks for more unmovable ones than the others
    /// have room for.
    fn surge(&mut self) {
        self.free_down_to(HELD_MAX / 4);
        let pageblocks = HELD_MAX as u32 / 2 / SCATTERED;
        _ = (0..pageblocks).all(|_| self.scatter());
        while self.worker.held.len() < HELD_MAX {
            let order = order([0, 0, 0, 3, 6, 8][self.worker.rng.index(6)]);
            let via = Feature::of_order(order).into();
            if !self.alloc_block(order, Flags::UNMOVABLE.compact(), via, 9) {
                break;
            }
        }
    }

    /// Holds some frames of a pageblock, and frees the others. `false`: there was none.
    fn scatter(&mut self) -> bool {
        let (flags, via) = (Flags::MOVABLE, Feature::of_order(Order::PAGEBLOCK).into());
        let frames = Order::PAGEBLOCK.frames();
        let request = |this: &Self| Some((this.depot.alloc(Order::PAGEBLOCK, flags).ok()?, frames));
        let Some(start) = self.request(frames, via, request) else { return false };
        self.worker.device.check(start, frames);
        self.depot.split(start, Order::PAGEBLOCK, Order::BASE).unwrap();
        let via = via.and(Feature::Split);
        let mut rest = Vec::new();
        for (at, pfn) in (0..frames).map(|at| (at, start.add(at))) {
            match at % (frames / SCATTERED) {
                0 => self.worker.hold(pfn, 1, Some(Order::BASE), flags, via),
                _ => rest.push(pfn),
            }
        }
        self.depot.free_many_of(Order::BASE, &rest).unwrap();
        self.worker.world.usage.use_pages(-(rest.len() as i64));
        true
    }

    /// Counts frames as used while `request` asks for them, and those that it got from then on.
    fn request<R>(
        &self,
        frames: u32,
        via: Set,
        request: impl FnOnce(&Self) -> Option<(R, u32)>,
    ) -> Option<R> {
        let world = self.worker.world;
        let attempt = world.meetings.attempt();
        let found = world.usage.while_requested(frames, || request(self));
        found.inspect(|_| drop(attempt.succeed(via)))
    }

    fn alloc(&mut self) {
        let (order, (flags, via)) = (self.worker.order(), self.worker.flags());
        let via = via.and(Feature::of_order(order));
        let kind = self.worker.rng.below(10);
        self.alloc_block(order, flags, via, kind);
    }

    /// Allocates a block by a call of a kind. `false`: there was none.
    fn alloc_block(&mut self, order: Order, flags: Flags, via: Set, kind: u64) -> bool {
        let found = self.request(order.frames(), via, |this| {
            let depot = this.depot;
            let pfn = match kind {
                0 => depot.try_alloc(order, flags),
                1 => depot.look(order, flags).ok(),
                2 => depot.alloc_fast(order, flags).or_else(|| depot.alloc(order, flags).ok()),
                _ if order == Order::BASE => this.alloc_surely(flags),
                _ => depot.alloc(order, flags).ok(),
            };
            Some((pfn?, order.frames()))
        });
        if let Some(pfn) = found {
            self.worker.hold(pfn, order.frames(), Some(order), flags, via);
        }
        found.is_some()
    }

    /// A frame, which must be there if little of the memory is in use.
    fn alloc_surely(&self, flags: Flags) -> Option<Pfn> {
        let plain = Flags::new(flags.mobility());
        let may_all = [plain, plain.compact(), plain.zeroed(), plain.compact().zeroed()];
        let request = || self.depot.alloc(Order::BASE, flags).ok();
        match may_all.contains(&flags.class(Class::UNKNOWN)) {
            true => {
                let usage = &self.worker.world.usage;
                usage.request_surely(request, || self.depot.shortage().to_string())
            }
            false => request(),
        }
    }

    fn alloc_many(&mut self) {
        let order = order([0, 0, 0, 1, 2, 3, 4, 5, 9, 10][self.worker.rng.index(10)]);
        let (flags, via) = self.worker.flags();
        let via = via.and(Feature::Bulk).and(Feature::of_order(order));
        let mut out = [Pfn::new(0); 80];
        let wanted = self.worker.rng.index(out.len() >> order.get().min(6)) + 1;
        let got = self.request(wanted as u32 * order.frames(), via, |this| {
            let got = this.depot.alloc_many(order, flags, &mut out[..wanted]).ok()?;
            Some((got, got as u32 * order.frames()))
        });
        for &pfn in &out[..got.unwrap_or(0)] {
            self.worker.hold(pfn, order.frames(), Some(order), flags, via);
        }
    }

    fn alloc_range(&mut self) {
        let (flags, via) = self.worker.flags();
        let via = via.and(Feature::Ranges);
        let frames = match self.worker.rng.below(4) {
            0 => self.worker.rng.below(2500) as u32 + 1024,
            1 => 1 << self.worker.rng.below(12),
            _ => self.worker.rng.below(700) as u32 + 1,
        };
        let align = 1 << self.worker.rng.below(12);
        let found = self.request(frames, via, |this| {
            Some((this.depot.alloc_contiguous(frames, align, flags).ok()?, frames))
        });
        if let Some(start) = found {
            assert!(start.get().is_multiple_of(align));
            self.worker.hold(start, frames, None, flags, via);
        }
    }

    fn alloc_at(&mut self) {
        let rng = &mut self.worker.rng;
        let (start, frames) = match rng.below(4) {
            // Whole pageblocks, of which some are in use.
            0 => {
                let pageblocks = rng.below(3) as u32 + 1;
                let first = rng.below(u64::from(NORMAL[0].frames / PAGEBLOCK - pageblocks)) as u32;
                (NORMAL[0].start.get() + first * PAGEBLOCK, pageblocks * PAGEBLOCK)
            }
            1 => (LOW[0].start.get() + rng.below(2000) as u32, rng.below(40) as u32 + 1),
            2 => (REMOTE[0].start.get() + rng.below(12000) as u32, rng.below(40) as u32 + 1),
            _ => (FIRST + rng.below(u64::from(FRAMES)) as u32, rng.below(40) as u32 + 1),
        };
        let (is_try, start) = (rng.one_in(3), Pfn::new(start));
        let (flags, via) = match frames >= PAGEBLOCK && !is_try {
            true => (Flags::default().compact(), Set::NONE),
            false => self.worker.flags(),
        };
        let via = via.and(Feature::At);
        let found = self.request(frames, via, |this| {
            let done = match is_try {
                true => this.depot.try_alloc_at(start, frames, flags),
                false => this.depot.alloc_at(start, frames, flags),
            };
            done.ok().map(|()| ((), frames))
        });
        if found.is_some() {
            self.worker.hold(start, frames, None, flags, via);
        }
    }

    fn free(&mut self) {
        if let Some(stretch) = self.worker.pick() {
            self.free_stretch(&stretch);
        }
    }

    /// Frees the last stretch if it is a range.
    fn free_range(&mut self) {
        if matches!(self.worker.held.last(), Some(Held::Fixed(last)) if last.order.is_none())
            && let Some(range) = self.worker.remove(self.worker.held.len() - 1)
        {
            self.free_stretch(&range);
        }
    }

    fn free_stretch(&self, stretch: &Stretch) {
        let world = self.worker.world;
        let is_absent = stretch.order.is_none()
            && (stretch.serial.is_multiple_of(3) || world.meetings.wants(Feature::Absent));
        let _now = world.meetings.begin(stretch.via.and_if(is_absent, Feature::Absent));
        world.give_back(stretch);
        let Stretch { start, frames, order, .. } = *stretch;
        match order {
            Some(order) => self.free_block(start, order, stretch.serial),
            None if is_absent => {
                let residency = Residency::of(self.depot);
                match stretch.serial.is_multiple_of(2) {
                    true => residency.free_absent(start, frames).unwrap(),
                    false => residency.free_present(start, frames).unwrap(),
                }
            }
            None => self.depot.free_contiguous(start, frames).unwrap(),
        }
        world.usage.use_pages(-i64::from(stretch.frames));
    }

    /// Frees a block by one of the calls that do.
    fn free_block(&self, start: Pfn, order: Order, serial: u32) {
        let depot = self.depot;
        match serial % 8 {
            0 => depot.free_as(start, order, Mobility::ALL[serial as usize / 8 % 3]).unwrap(),
            1 if depot.free_fast(start, order) || depot.free_to_front(start, order) => {}
            1 => depot.free_refused(start, order).unwrap(),
            _ => depot.free(start, order).unwrap(),
        }
    }

    fn free_from_pool(&mut self) {
        if let Some(block) = self.worker.pool.take() {
            self.free_stretch(&block);
        }
    }

    fn free_many(&mut self) {
        let world = self.worker.world;
        let (mut batch, mut pages) = (Vec::new(), 0);
        let _now = world.meetings.begin(Feature::Bulk);
        for _ in 0..self.worker.rng.below(60) {
            let Some(stretch) = self.worker.pick() else { break };
            world.meetings.meet(Feature::Bulk, stretch.via);
            world.give_back(&stretch);
            pages += i64::from(stretch.frames);
            match stretch.order {
                Some(order) => batch.push((stretch.start, order)),
                None => {
                    let frames = (0..stretch.frames).map(|at| stretch.start.add(at));
                    batch.extend(frames.map(|pfn| (pfn, Order::BASE)));
                }
            }
        }
        if self.worker.rng.one_in(2) {
            let (single, others) = batch.into_iter().partition(|block| block.1 == Order::BASE);
            let single: Vec<Pfn> =
                Vec::into_iter(single).map(|block: (Pfn, Order)| block.0).collect();
            self.depot.free_many_of(Order::BASE, &single).unwrap();
            batch = others;
        }
        self.depot.free_many(&batch).unwrap();
        world.usage.use_pages(-pages);
    }

    fn split(&mut self) {
        let room = HELD_MAX.saturating_sub(self.worker.held.len());
        if self.worker.held.is_empty() {
            return;
        }
        let at = self.worker.rng.index(self.worker.held.len());
        let Some(block) = self.worker.remove(at) else { return };
        let Some(from) = block.order else {
            self.worker.held.push(Held::Fixed(block));
            return;
        };
        let least = from.get().saturating_sub(room.max(1).ilog2().min(6));
        let to = least + self.worker.rng.below(u64::from(from.get() - least) + 1) as u32;
        let to = order(to);
        let via = block.via.and(Feature::Split).and(Feature::of_order(to));
        let _now = self.worker.world.meetings.begin(via);
        self.depot.split(block.start, from, to).unwrap();
        let is_movable = self.worker.rng.one_in(2);
        for at in (0..block.frames).step_by(to.frames() as usize) {
            let part = Stretch {
                start: block.start.add(at),
                frames: to.frames(),
                order: Some(to),
                offset: block.offset + at,
                via,
                ..block
            };
            self.worker.push(part, is_movable);
        }
    }
}
