//! Mapping frames into areas. The one place that calls the mapper's unsafe methods, besides
//! `retire.rs`.

use core::panic::Location;

use super::area::{Area, AreaIndex, State};
use super::config::{Options, Stale};
use super::error::{Kind, VfreeError, VmapError};
use super::frames::FrameRun;
use super::seams::{Host, Mapper};
use super::units::{Protection, Run, VirtAddr, Vpn};
use super::{Vmap, count};
use pagedepot::FrameRange;
use pagedepot::{Order, Pfn};

/// Blocks returned to the page allocator at a time.
const FREE_BATCH: usize = 64;

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Maps the caller's frames, in this order, into a new area.
    ///
    /// Consecutive frames are mapped by one call of the mapper. The frames stay the caller's.
    ///
    /// # Errors
    /// [`VmapError`]; nothing stays mapped but until the next purge.
    #[track_caller]
    pub fn vmap(&self, frames: &[Pfn], options: Options) -> Result<VirtAddr, VmapError> {
        let caller = Location::caller();
        let area = self.obtain_mapped(frames, Kind::Vmap, &options)?;
        Ok(self.publish(area, Kind::Vmap, &options, false, caller))
    }

    /// Unmaps what [`vmap`](Self::vmap) or [`map_frames`](Self::map_frames) mapped, and frees the
    /// area.
    ///
    /// The mapping goes with the next purge: until then stray accesses still reach the frames.
    /// A caller who must know them gone calls [`purge`](Self::purge).
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    pub fn vunmap(&self, start: VirtAddr) -> Result<(), VfreeError> {
        self.release(start, Kind::Vmap, true)
    }

    /// Maps the caller's frames for a short while. As [`vmap`](Self::vmap), but
    /// [`vm_unmap_ram`](Self::vm_unmap_ram) frees it, and checks the number of pages.
    ///
    /// # Errors
    /// As for [`vmap`](Self::vmap).
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Pfn], options: Options) -> Result<VirtAddr, VmapError> {
        let caller = Location::caller();
        let area = self.obtain_mapped(frames, Kind::Ram, &options)?;
        Ok(self.publish(area, Kind::Ram, &options, false, caller))
    }

    /// Unmaps what [`vm_map_ram`](Self::vm_map_ram) mapped; `pages` is how many frames that were.
    /// As with [`vunmap`](Self::vunmap), the mapping goes with the next purge.
    ///
    /// # Errors
    /// [`VfreeError`], also for another number of pages; nothing is changed then.
    pub fn vm_unmap_ram(&self, start: VirtAddr, pages: u32) -> Result<(), VfreeError> {
        let mapped = |(index, _)| self.metadata.areas[index].body().pages();
        if self.busy_at(start, Kind::Ram).map(mapped).is_some_and(|mapped| mapped != pages) {
            return Err(VfreeError::NotAllocated);
        }
        self.release(start, Kind::Ram, true)
    }

    /// Maps the caller's frames into a part of an area of address space, from page `offset` of it:
    /// for ranges that are reserved whole and filled piece by piece. From then on the area is
    /// freed by [`vunmap`](Self::vunmap).
    ///
    /// # Errors
    /// [`VmapError`]. After [`VmapError::Map`] some of the frames may be mapped, and stay so until
    /// the area is freed.
    pub fn map_frames(
        &self,
        start: VirtAddr,
        offset: u32,
        frames: &[Pfn],
    ) -> Result<(), VmapError> {
        self.host.check_usable()?;
        let (index, word) = self
            .busy_at(start, Kind::Address)
            .or_else(|| self.busy_at(start, Kind::Vmap))
            .ok_or(VmapError::NotAllocated)?;
        let area = &self.metadata.areas[index];
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        let end = offset.checked_add(pages).ok_or(VmapError::BadOffset)?;
        if !area.leave_busy(word, word.in_state(State::Held)) {
            return Err(VmapError::NotAllocated);
        }
        // Only an offset inside the area may be added to its start: the sum could overflow.
        let run = (end <= area.body().pages()).then(|| Run::new(area.start().add(offset), pages));
        let result = match run {
            Some(run) if !run.iter().any(|page| self.metadata.frames.is_mapped(page)) => self
                .lend(run.start, frames)
                .and_then(|()| self.map_run(area, run, area.traits().protection(), true)),
            _ => Err(VmapError::BadOffset),
        };
        // A new generation: readers must not take what they saw before for what is now.
        count(&self.node_here().1.counters.changed_areas, 1);
        let kind = if area.mapped() > 0 { Kind::Vmap } else { word.kind() };
        area.set_word(area.word().allocated(kind, false));
        result
    }

    /// A held area with the caller's frames mapped.
    pub(super) fn obtain_mapped(
        &self,
        frames: &[Pfn],
        kind: Kind,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        self.with_mappings(options.no_wait, || self.obtain_mapped_once(frames, kind, options))
    }

    fn obtain_mapped_once(
        &self,
        frames: &[Pfn],
        kind: Kind,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        let index = self.obtain(pages, options)?;
        let area = &self.metadata.areas[index];
        area.set_word(area.word().held(kind));
        let run = Run::new(area.start(), pages);
        let mapped = self
            .lend(run.start, frames)
            .and_then(|()| self.map_run(area, run, options.protection, !options.no_wait));
        if let Err(error) = mapped {
            self.abandon(index, !options.no_wait);
            return Err(error);
        }
        Ok(index)
    }

    /// Enters the caller's frames from `page` on.
    pub(super) fn lend(&self, page: Vpn, frames: &[Pfn]) -> Result<(), VmapError> {
        if frames.contains(&Pfn::new(u32::MAX)) {
            return Err(VmapError::BadFrame);
        }
        for (i, &frame) in (0..).zip(frames) {
            self.metadata.frames.lend(page.add(i), frame);
        }
        Ok(())
    }

    /// Maps the frames entered for `run`, a part of an area the caller holds, and counts them.
    ///
    /// On an error what was mapped is counted, and so is the piece that failed, which may be
    /// mapped in part; frames of its own behind that are freed, and their entries cleared.
    pub(super) fn map_run(
        &self,
        area: &Area,
        run: Run,
        protection: Protection,
        may_wait: bool,
    ) -> Result<(), VmapError> {
        let mut result = Ok(());
        let mut end = run.start;
        for piece in self.metadata.frames.frame_runs(run) {
            if !self.metadata.tables.enter(&self.host, piece.pages, may_wait) {
                result = Err(VmapError::WouldWait);
                break;
            }
            end = piece.pages.end;
            result = self.map_piece(piece, protection);
            if result.is_err() {
                break;
            }
        }
        area.set_mapped(area.mapped() + end.since(run.start));
        if result.is_err() {
            let rest = Run { start: end, end: run.end };
            self.free_own_frames(rest);
            self.metadata.frames.clear(rest);
        }
        result
    }

    fn map_piece(&self, piece: FrameRun, protection: Protection) -> Result<(), VmapError> {
        let frames = FrameRange::new(piece.first, piece.pages.pages());
        // SAFETY: the pages are in the mapper's range, in an area that the caller holds, and
        // entered in the page tables' metadata, so no purge touches them; they were not mapped,
        // since areas leave purges with nothing mapped and `map_frames` looks.
        unsafe { self.mapper.map(self.range.addr(piece.pages.start), frames, protection)? };
        Ok(())
    }

    /// Gives up a held area after an error: what is mapped in it goes with the next purge.
    #[cold]
    pub(super) fn abandon(&self, index: AreaIndex, may_wait: bool) {
        let area = &self.metadata.areas[index];
        let node = &self.metadata.nodes[area.traits().node()];
        count(&node.counters.failures, 1);
        if area.mapped() == 0 {
            // As it came: for the pool.
            area.set_word(area.word().plain(State::Pooled));
        }
        self.release_slow(index, node, may_wait);
    }

    /// Returns an area's own frames in `run`, which are not mapped, to the page allocator.
    /// Returns how many.
    pub(super) fn free_own_frames(&self, run: Run) -> u64 {
        let mut batch = [(Pfn::new(0), Order::BASE); FREE_BATCH];
        let (mut filled, mut frames) = (0, 0);
        let counters = &self.node_here().1.counters;
        let free = |blocks: &[(Pfn, Order)]| {
            // SAFETY: the area's own blocks; they are not mapped, so they are not used.
            if let Err(error) = unsafe { self.host.free_blocks(blocks) } {
                count(&counters.misfreed_frames, error.failed as u64);
            }
        };
        for block in self.metadata.frames.own_blocks(run) {
            frames += u64::from(block.1.frames());
            batch[filled] = block;
            filled += 1;
            if filled == FREE_BATCH {
                free(&batch);
                filled = 0;
            }
        }
        free(&batch[..filled]);
        frames
    }

    /// Overwrites a warm area that its user has freed, if the configuration says so.
    #[inline]
    pub(super) fn poison(&self, area: &Area) {
        if let Stale::Poison(byte) = self.stale {
            self.fill(area.body(), byte);
        }
    }

    /// Makes warm memory, which is mapped read-write, look as promised to its next user.
    #[inline]
    pub(super) fn prepare_warm(&self, area: &Area, options: &Options) {
        if self.promises_zeroes(options) {
            self.fill(area.body(), 0);
        }
    }

    /// Makes memory just mapped with the protection of `options` look as promised to its user.
    pub(super) fn prepare_new(&self, run: Run, options: &Options) -> Result<(), VmapError> {
        if self.promises_zeroes(options) { self.zero(run, options.protection) } else { Ok(()) }
    }

    /// Zeroes an area's own memory in `run`, all of it mapped with this protection.
    pub(super) fn zero(&self, run: Run, protection: Protection) -> Result<(), VmapError> {
        if protection.may_write() {
            self.fill(run, 0);
            return Ok(());
        }
        for piece in self.metadata.frames.frame_runs(run) {
            let frames = FrameRange::new(piece.first, piece.pages.pages());
            // SAFETY: the frames are the area's own, and the caller holds the area.
            unsafe { self.mapper.fill_frames(frames, 0) }?;
        }
        Ok(())
    }

    #[inline]
    fn promises_zeroes(&self, options: &Options) -> bool {
        self.stale == Stale::Zero || options.zeroed
    }

    fn fill(&self, run: Run, byte: u8) {
        // SAFETY: the caller holds the area, and its pages are mapped read-write: only such areas
        // are warm, and `zero` looks at the protection.
        unsafe { self.mapper.fill(self.range.span(run), byte) };
    }
}
