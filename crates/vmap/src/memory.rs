//! Requests that map: the caller's frames, or memory that areas own.

use core::panic::Location;

use crate::config::Options;
use crate::error::VmapError;
use crate::kind::Kind;
use crate::map::own::OwnFrames;
use crate::metadata::area::{Area, AreaIndex, State, Traits};
use crate::node::large::LargePools;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::state::VmapState;
use crate::undo::Undo;
use crate::units::{PageRange, VirtAddr};
use pagedepot::Pfn;
use pagedepot::sync::count;

/// The requests that map.
impl<M: Mapper, H: Host> VmapState<'_, M, H> {
    /// A busy area with the caller's frames mapped; its address.
    pub fn map(
        &self,
        frames: &[Pfn],
        kind: Kind,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        let index = self.with_mappings(options.no_wait, || self.map_once(frames, kind, options))?;
        Ok(self.publish(index, kind, options, false, caller))
    }

    fn map_once(
        &self,
        frames: &[Pfn],
        kind: Kind,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        let index = self.obtain(pages, options)?;
        let area = self.hold(index, kind, options);
        let run = PageRange::new(area.start(), pages);
        let undo = Undo(|| self.abandon(index));
        self.mappings().lend(run.start, frames)?;
        self.map_entered(index, run, options)?;
        undo.forget();
        Ok(index)
    }

    /// Makes an area that the caller has obtained one of this kind, with the traits of the request:
    /// after an error a purge goes by them, and not by those of the user before.
    fn hold(&self, index: AreaIndex, kind: Kind, options: &Options) -> &Area {
        let area = self.area(index);
        area.set_word(area.word().held(kind));
        let node = area.traits().node() as u32;
        area.set_traits(Traits::new(node, options.guard, options.protection));
        area
    }

    /// Maps the frames entered for `run`, a part of an area that the caller holds.
    pub fn map_entered(
        &self,
        index: AreaIndex,
        run: PageRange,
        options: &Options,
    ) -> Result<(), VmapError> {
        self.mappings().map_entered(
            (self.host(), self.counters()),
            self.area(index),
            run,
            options.protection,
            !options.no_wait,
        )
    }

    /// Maps the caller's frames into a part of a busy area, from page `offset` of it.
    pub fn map_frames(
        &self,
        start: VirtAddr,
        offset: u32,
        frames: &[Pfn],
        options: &Options,
    ) -> Result<(), VmapError> {
        self.host().check_usable()?;
        let directory = self.directory();
        let (index, word) = directory
            .busy_at(start, Kind::Address)
            .or_else(|| directory.busy_at(start, Kind::Vmap))
            .ok_or(VmapError::NotAllocated)?;
        let area = self.area(index);
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        let end = offset.checked_add(pages).ok_or(VmapError::BadOffset)?;
        if !area.leave_busy(word, word.in_state(State::Held)) {
            return Err(VmapError::NotAllocated);
        }
        // Only an offset inside the area is added to its start: the sum could overflow.
        let run =
            (end <= area.body_pages()).then(|| PageRange::new(area.start().add(offset), pages));
        let options = options.protection(area.traits().protection());
        let mappings = self.mappings();
        let result = match run {
            Some(run) if !run.iter().any(|page| mappings.frames().is_mapped(page)) => mappings
                .lend(run.start, frames)
                .and_then(|()| self.map_entered(index, run, &options)),
            _ => Err(VmapError::BadOffset),
        };
        // A new generation: a reader must not take what it saw before for what is there now.
        count(&self.counters().changed_areas, 1);
        let kind = if area.mapped() > 0 { Kind::Vmap } else { word.kind() };
        area.set_word(area.word().allocated(kind, false));
        result
    }

    /// A busy area with memory of its own; its address.
    #[inline]
    pub fn allocate(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        match self.allocate_warm(pages, options, caller) {
            Some(at) => Ok(at),
            None => self.allocate_cold(pages, options, caller),
        }
    }

    /// A busy area whose frames stayed mapped, from the pool of its size; its address.
    #[inline]
    pub fn allocate_warm(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Option<VirtAddr> {
        if !options.takes_warm() || options.window.is_some() {
            return None;
        }
        let fits = |top| self.directory().is_aligned(self.area(top).start(), options.align);
        let node = self.nodes().of_cpu(self.host().cpu()).1;
        let pool = node.warm().of(pages.wrapping_add(1));
        let index = pool?.pop(self.areas(), fits)?;
        self.mappings().prepare_warm(self.area(index), options);
        Some(self.publish(index, Kind::Vmalloc, options, true, caller))
    }

    #[cold]
    fn allocate_cold(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        if let Some(index) = self.take_large(pages, options) {
            self.mappings().prepare_large(self.counters(), self.area(index), options);
            return Ok(self.publish(index, Kind::Vmalloc, options, true, caller));
        }
        let index =
            self.with_mappings(options.no_wait, || self.allocate_once(pages, pages, options))?;
        // Frames that stay mapped must serve any request: plain ones, read-write.
        let warm = options.takes_warm() && self.nodes().keeps_warm(pages + 1);
        Ok(self.publish(index, Kind::Vmalloc, options, warm, caller))
    }

    /// A busy area of `reserved_pages` pages of addresses, or `pages` if that is more, with memory
    /// of its own in the first `pages`; its address.
    ///
    /// At least one page has memory. Growth that fails in part, and cannot be undone at once, is
    /// cut behind what stays, and the address has to stay with the area.
    pub fn allocate_reserved(
        &self,
        pages: u32,
        reserved_pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        let (room, zeroed) = (pages.max(reserved_pages), options.zeroed());
        let (pages, used) = if pages == 0 { (1, &zeroed) } else { (pages, options) };
        let index =
            self.with_mappings(options.no_wait, || self.allocate_once(pages, room, used))?;
        let word = self.area(index).word().allocated(Kind::Vmalloc, false).reserved(true);
        Ok(self.publish_as(index, word, options, caller))
    }

    /// A large area of `pages` pages whose frames stayed mapped.
    fn take_large(&self, pages: u32, options: &Options) -> Option<AreaIndex> {
        let with_guard = pages.checked_add(1)?;
        let may_take =
            options.takes_warm() && options.window.is_none() && LargePools::has_size(with_guard);
        let fits = |top| self.directory().is_aligned(self.area(top).start(), options.align);
        let large = self.nodes().of_cpu(self.host().cpu()).1.large();
        may_take.then(|| large.pop(self.areas(), with_guard, fits))?
    }

    /// A held area of `room` pages, with memory of its own in the first `pages`.
    fn allocate_once(
        &self,
        pages: u32,
        room: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let index = self.obtain(room, options)?;
        let area = self.hold(index, Kind::Vmalloc, options);
        let run = PageRange::new(area.start(), pages);
        let undo = Undo(|| self.abandon(index));
        self.enter_frames(run, options)?;
        self.map_entered(index, run, options)?;
        self.mappings().prepare_new(self.counters(), run, options)?;
        undo.forget();
        Ok(index)
    }

    /// Allocates frames for `run` and enters them. If there are none, purges first.
    pub fn enter_frames(&self, run: PageRange, options: &Options) -> Result<(), VmapError> {
        let flags = options.flags.unwrap_or(self.flags());
        let flags = if options.no_wait { flags.no_reclaim() } else { flags };
        let own = OwnFrames::new(self.host(), self.mappings().frames(), self.counters());
        let prefers_long_runs = self.mappings().mapper().prefers_long_runs();
        self.with_purges(options.no_wait, || own.allocate(run, flags, prefers_long_runs))?;
        self.mappings().frames().join_runs(run);
        Ok(())
    }
}
