//! Memory of our own: frames from the page allocator, mapped one behind the other.

use core::panic::Location;

use super::area::{AreaIndex, State};
use super::config::Options;
use super::error::{Kind, MapError, VfreeError, VmapError};
use super::seams::{Host, Mapper};
use super::units::{Run, VirtAddr, Vpn};
use super::{Vmap, count};
use pagedepot::Flags;
use pagedepot::{Order, Pfn};

/// Single frames asked for at a time.
const FRAME_BATCH: usize = 64;

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Allocates `pages` pages of memory at consecutive addresses, with a guard behind.
    ///
    /// A size whose frames stayed mapped costs one atomic operation and what
    /// [`VmapConfig::stale`](super::VmapConfig::stale) asks for. Otherwise frames come from the
    /// page allocator, in the largest blocks to be had without effort, single frames otherwise.
    ///
    /// Memory that must not be writable is made afresh, and so is memory aligned beyond a page,
    /// unless the last that was freed of its size is so aligned.
    ///
    /// # Errors
    /// [`VmapError`]; nothing is kept then but until the next purge.
    #[inline]
    #[track_caller]
    pub fn vmalloc(&self, pages: u32, options: Options) -> Result<VirtAddr, VmapError> {
        let caller = Location::caller();
        if options.takes_warm() && options.window.is_none() {
            let fits = |top| self.is_aligned(self.metadata.areas[top].start(), options.align);
            let pool = self.node_here().1.warm.of(pages.wrapping_add(1));
            if let Some(index) = pool.and_then(|pool| pool.pop(self.metadata.areas, fits)) {
                self.prepare_warm(&self.metadata.areas[index], &options);
                return Ok(self.publish(index, Kind::Vmalloc, &options, true, caller));
            }
        }
        self.vmalloc_cold(pages, &options, caller)
    }

    /// Frees what [`vmalloc`](Self::vmalloc) or [`vrealloc`](Self::vrealloc) returned. Any CPU may
    /// free it.
    ///
    /// Frames stay mapped for the next caller where the node's budget has room; otherwise the next
    /// purge unmaps them, and until then they are quarantined.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then. A second free is always found.
    #[inline]
    pub fn vfree(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.release(start, Kind::Vmalloc, true)
    }

    /// As [`vfree`](Self::vfree) for callers who may not wait, interrupt handlers for example:
    /// takes no lock, and leaves a purge that is due to others, whom [`Host::purge_wanted`]
    /// tells.
    ///
    /// # Errors
    /// As [`vfree`](Self::vfree).
    pub fn vfree_atomic(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.release(start, Kind::Vmalloc, false)
    }

    #[cold]
    fn vmalloc_cold(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        self.with_mappings(options.no_wait, || self.vmalloc_once(pages, options, caller))
    }

    fn vmalloc_once(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        let index = self.obtain(pages, options)?;
        let area = &self.metadata.areas[index];
        area.set_word(area.word().held(Kind::Vmalloc));
        let run = Run::new(area.start(), pages);
        let mapped = self
            .enter_frames(run, options)
            .and_then(|()| self.map_run(area, run, options.protection, !options.no_wait))
            .and_then(|()| self.prepare_new(run, options));
        if let Err(error) = mapped {
            self.abandon(index, !options.no_wait);
            return Err(error);
        }
        // Frames that stay mapped must serve any request: plain ones, read-write.
        let warm = options.takes_warm() && self.warm_pages_max > 0;
        Ok(self.publish(index, Kind::Vmalloc, options, warm, caller))
    }

    /// Gets frames for `run` and enters them. If there are none, freed areas return theirs first.
    fn enter_frames(&self, run: Run, options: &Options) -> Result<(), VmapError> {
        self.with_purges(options.no_wait, || self.try_enter_frames(run, options))
    }

    /// As [`enter_frames`](Self::enter_frames), once; on an error all are freed again.
    fn try_enter_frames(&self, run: Run, options: &Options) -> Result<(), VmapError> {
        let flags = options.flags.unwrap_or(self.flags);
        let flags = if options.no_wait { flags.no_reclaim() } else { flags };
        let mut at = run.start;
        let mut order_max = Order::MAX.get();
        while at < run.end {
            let left = run.end.since(at);
            let order = left.ilog2().min(order_max);
            let entered = match order {
                0 => self.enter_singles(at, left, flags),
                _ => self.enter_block(at, order, flags).ok_or(VmapError::BadFrame),
            };
            match entered {
                Ok(pages) => at = at.add(pages),
                // No such block without effort: smaller ones from here on.
                Err(_) if order > 0 => order_max = order - 1,
                Err(error) => {
                    let entered = Run { start: run.start, end: at };
                    self.free_own_frames(entered);
                    self.metadata.frames.clear(entered);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// One block of `order`, if it is to be had; returns its pages.
    fn enter_block(&self, at: Vpn, order: u32, flags: Flags) -> Option<u32> {
        let order = Order::new(order)?;
        // Effort for a large block is worth it only where runs are scarce.
        let flags = if self.mapper.prefers_long_runs() { flags } else { flags.no_reclaim() };
        let frame = self.host.alloc_block(order, flags).ok()?;
        self.enter_own(at, frame, order)
    }

    fn enter_singles(&self, at: Vpn, left: u32, flags: Flags) -> Result<u32, VmapError> {
        let mut frames = [Pfn::new(0); FRAME_BATCH];
        let wanted = frames.len().min(left as usize);
        let got = self.host.alloc_frames(flags, &mut frames[..wanted])?;
        let mut entered = 0;
        for &frame in &frames[..got] {
            entered += self.enter_own(at.add(entered), frame, Order::BASE).unwrap_or(0);
        }
        if entered == 0 { Err(VmapError::BadFrame) } else { Ok(entered) }
    }

    /// Enters a block, unless its numbers cannot be kept; then it goes back.
    fn enter_own(&self, at: Vpn, frame: Pfn, order: Order) -> Option<u32> {
        if u64::from(frame.get()) + u64::from(order.frames()) > u64::from(u32::MAX) {
            // SAFETY: just allocated, and not used yet.
            let _ = unsafe { self.host.free_blocks(&[(frame, order)]) };
            return None;
        }
        self.metadata.frames.put_block(at, frame, order);
        Some(order.frames())
    }

    /// Changes the size of what [`vmalloc`](Self::vmalloc) returned, to `pages` pages; contents up
    /// to the smaller size are kept. Grows in place where the addresses behind are free; otherwise
    /// the frames are mapped at a new address, not copied, and the old one is as freed. What is no
    /// longer needed is unmapped and returned at once, by a flush.
    ///
    /// New memory is as [`vmalloc`](Self::vmalloc)'s. `options` say how to ask for it; the area's
    /// guard and protection stay as they are.
    ///
    /// # Errors
    /// [`VmapError`]; the area is as it was then.
    #[track_caller]
    pub fn vrealloc(
        &self,
        start: VirtAddr,
        pages: u32,
        options: Options,
    ) -> Result<VirtAddr, VmapError> {
        let caller = Location::caller();
        self.host.check_usable()?;
        let (index, word) = self.busy_at(start, Kind::Vmalloc).ok_or(VmapError::NotAllocated)?;
        let area = &self.metadata.areas[index];
        if !area.leave_busy(word, word.in_state(State::Held)) {
            return Err(VmapError::NotAllocated);
        }
        let (old, guard, protection) =
            (area.body().pages(), area.traits().guard() as u8, area.traits().protection());
        let options = Options { guard, protection, ..options };
        let result = match pages {
            0 => Err(VmapError::BadSize),
            _ if pages < old => self.shrink(index, pages).map(|()| index),
            _ if pages == old => Ok(index),
            _ => self.with_mappings(options.no_wait, || self.grow(index, pages, &options)),
        };
        if let Ok(moved) = result
            && moved != index
        {
            return Ok(self.publish(moved, Kind::Vmalloc, &options, word.is_warm(), caller));
        }
        // A new generation: readers must not take what they saw before for what is now.
        count(&self.node_here().1.counters.changed_areas, 1);
        // What lost its guard on the way is not for the pool.
        let warm = word.is_warm() && area.traits().guard() == u32::from(guard);
        area.set_word(area.word().allocated(Kind::Vmalloc, warm));
        result.map(|_| start)
    }

    /// Returns the pages of a held area from `pages` on.
    fn shrink(&self, index: AreaIndex, pages: u32) -> Result<(), VmapError> {
        let area = &self.metadata.areas[index];
        let at = area.start().add(pages);
        let (block_at, table) = (self.metadata.frames.block_start(at), &self.metadata.frames);
        if block_at < at {
            let (frame, order) = table.block_at(block_at).ok_or(VmapError::BadFrame)?;
            // SAFETY: a block of the area, which the caller holds.
            if !unsafe { self.host.split_block(frame, order) } {
                // The block stays whole, and so does the area. What its user no longer needs is new
                // memory when the area grows again.
                return self
                    .zero(Run { start: at, end: area.body().end }, area.traits().protection());
            }
            table.split_block(block_at, order);
        }
        self.cut(index, at)
    }

    /// Cuts a held area at `at`: unmaps and returns what is behind, keeping a guard.
    fn cut(&self, index: AreaIndex, at: Vpn) -> Result<(), VmapError> {
        let rest = self.lock_space().reserve_descriptor().ok_or(VmapError::NoAreas)?;
        self.cut_into(index, at, rest);
        Ok(())
    }

    /// As [`cut`](Self::cut), with a descriptor at hand: this cannot fail.
    fn cut_into(&self, index: AreaIndex, at: Vpn, rest: AreaIndex) {
        let (area, behind) = (&self.metadata.areas[index], &self.metadata.areas[rest]);
        let kept = at.since(area.start()).min(area.mapped());
        let guard = area.traits().guard();
        self.lock_space().split(index, at, rest);
        behind.set_word(behind.word().held(Kind::Vmalloc));
        behind.set_mapped(area.mapped() - kept);
        area.set_mapped(kept);
        area.set_traits(area.traits().without_guard());
        self.quarantine(behind);
        if self.retire_now(rest) {
            let space = self.lock_space();
            space.shift(index, rest, guard);
            space.give_back(rest);
            area.set_traits(area.traits().with_guard(guard));
        } else {
            // It could not be unmapped: the next purge will try again. Until then nobody gets the
            // addresses behind, but they are no guard.
            self.push_lazy(rest);
        }
    }

    fn grow(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        match self.grow_in_place(index, pages, options) {
            Err(VmapError::Occupied | VmapError::NoAreas | VmapError::Map(MapError::Lost)) => {
                self.grow_elsewhere(index, pages, options)
            }
            result => result.map(|()| index),
        }
    }

    fn grow_in_place(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<(), VmapError> {
        let area = &self.metadata.areas[index];
        let old = area.body();
        let rest = {
            let space = self.lock_space();
            // For undoing it: then there is no time to look for one.
            let rest = space.reserve_descriptor().ok_or(VmapError::NoAreas)?;
            if let Err(error) = space.extend(index, pages - old.pages()) {
                space.unreserve_descriptor(rest);
                return Err(error);
            }
            rest
        };
        let more = Run { start: old.end, end: area.body().end };
        let mapped = self
            .lost_in(Run { start: old.end, end: area.end() })
            .map_or(Ok(()), |_| Err(VmapError::Map(MapError::Lost)))
            .and_then(|()| self.enter_frames(more, options))
            .and_then(|()| self.map_run(area, more, options.protection, !options.no_wait))
            .and_then(|()| self.prepare_new(more, options));
        match mapped {
            Ok(()) => self.lock_space().unreserve_descriptor(rest),
            Err(_) => self.cut_into(index, old.end, rest),
        }
        mapped
    }

    /// Maps an area's frames, and more, in a new place, and leaves the old one to a purge.
    fn grow_elsewhere(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let old = self.metadata.areas[index].body();
        let new_index = self.obtain(pages, options)?;
        let (left, new) = (&self.metadata.areas[index], &self.metadata.areas[new_index]);
        new.set_word(new.word().held(Kind::Vmalloc));
        // See the argument on aliases in `retire.rs`.
        new.set_traits(left.traits());
        let (start, table) = (new.start(), &self.metadata.frames);
        let more = Run { start: start.add(old.pages()), end: start.add(pages) };
        let mapped = self.enter_frames(more, options).and_then(|()| {
            for (i, page) in (0..).zip(old.iter()) {
                if let Some(frame) = table.get(page) {
                    table.lend(start.add(i), frame);
                }
            }
            self.map_run(new, Run { start, end: more.end }, options.protection, !options.no_wait)?;
            self.prepare_new(more, options)
        });
        if let Err(error) = mapped {
            new.set_word(new.word().aliased());
            self.abandon(new_index, !options.no_wait);
            return Err(error);
        }
        // The frames are the new area's now, and the old one has borrowed them.
        table.hand_over(old, start);
        left.set_word(left.word().held(Kind::Vmap).aliased());
        self.make_lazy(index, !options.no_wait);
        Ok(new_index)
    }
}
