//! Requests that map: the caller's frames, or memory that areas own.

use core::panic::Location;

use crate::addresses::Addresses;
use crate::config::Options;
use crate::error::VmapError;
use crate::kind::Kind;
use crate::map::own::OwnFrames;
use crate::metadata::area::{AreaIndex, State};
use crate::node::large::LargePools;
use crate::parts::Parts;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::units::{PageRange, VirtAddr};
use pagedepot::sync::count;
use pagedepot::{Flags, Pfn};

/// Address space with frames mapped in it.
pub struct Memory<'m, M, H> {
    addresses: Addresses<'m, M, H>,
    /// Flags of frames, unless the request has its own.
    flags: Flags,
}

impl<'m, M: Mapper, H: Host> Memory<'m, M, H> {
    pub fn new(addresses: Addresses<'m, M, H>, flags: Flags) -> Self {
        Memory { addresses, flags }
    }

    #[inline]
    pub fn addresses(&self) -> &Addresses<'m, M, H> {
        &self.addresses
    }

    #[inline]
    fn parts(&self) -> &Parts<'m, M, H> {
        self.addresses.purger().parts()
    }

    /// A busy area with the caller's frames mapped; its address.
    pub fn map(
        &self,
        frames: &[Pfn],
        kind: Kind,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        let index = self
            .addresses
            .with_mappings(options.no_wait, || self.map_once(frames, kind, options))?;
        Ok(self.addresses.publish(index, kind, options, false, caller))
    }

    fn map_once(
        &self,
        frames: &[Pfn],
        kind: Kind,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        let index = self.addresses.obtain(pages, options)?;
        let area = self.parts().area(index);
        area.set_word(area.word().held(kind));
        let run = PageRange::new(area.start(), pages);
        let mapped = self
            .parts()
            .mappings()
            .lend(run.start, frames)
            .and_then(|()| self.map_entered(index, run, options));
        if let Err(error) = mapped {
            self.addresses.abandon(index, !options.no_wait);
            return Err(error);
        }
        Ok(index)
    }

    /// Maps the frames entered for `run`, a part of an area that the caller holds.
    pub fn map_entered(
        &self,
        index: AreaIndex,
        run: PageRange,
        options: &Options,
    ) -> Result<(), VmapError> {
        let parts = self.parts();
        parts.mappings().map_entered(
            (parts.host(), parts.counters()),
            parts.area(index),
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
        let parts = self.parts();
        parts.host().check_usable()?;
        let directory = parts.directory();
        let (index, word) = directory
            .busy_at(start, Kind::Address)
            .or_else(|| directory.busy_at(start, Kind::Vmap))
            .ok_or(VmapError::NotAllocated)?;
        let area = parts.area(index);
        let pages = u32::try_from(frames.len()).map_err(|_| VmapError::BadSize)?;
        let end = offset.checked_add(pages).ok_or(VmapError::BadOffset)?;
        if !area.leave_busy(word, word.in_state(State::Held)) {
            return Err(VmapError::NotAllocated);
        }
        // Only an offset inside the area is added to its start: the sum could overflow.
        let run =
            (end <= area.body().pages()).then(|| PageRange::new(area.start().add(offset), pages));
        let options = options.protection(area.traits().protection());
        let mappings = parts.mappings();
        let result = match run {
            Some(run) if !run.iter().any(|page| mappings.frames().is_mapped(page)) => mappings
                .lend(run.start, frames)
                .and_then(|()| self.map_entered(index, run, &options)),
            _ => Err(VmapError::BadOffset),
        };
        // A new generation: a reader must not take what it saw before for what is there now.
        count(&parts.counters().changed_areas, 1);
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
        if options.takes_warm() && options.window.is_none() {
            let parts = self.parts();
            let fits = |top| parts.directory().is_aligned(parts.area(top).start(), options.align);
            let node = parts.nodes().of_cpu(parts.host().cpu()).1;
            let pool = node.warm().of(pages.wrapping_add(1));
            if let Some(index) = pool.and_then(|pool| pool.pop(parts.areas(), fits)) {
                parts.mappings().prepare_warm(parts.area(index), options);
                return Ok(self.addresses.publish(index, Kind::Vmalloc, options, true, caller));
            }
        }
        self.allocate_cold(pages, options, caller)
    }

    #[cold]
    fn allocate_cold(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        if let Some(index) = self.take_large(pages, options) {
            let parts = self.parts();
            parts.mappings().prepare_large(parts.counters(), parts.area(index), options);
            return Ok(self.addresses.publish(index, Kind::Vmalloc, options, true, caller));
        }
        let index = self
            .addresses
            .with_mappings(options.no_wait, || self.allocate_once(pages, pages, options))?;
        // Frames that stay mapped must serve any request: plain ones, read-write.
        let warm = options.takes_warm() && self.parts().nodes().keeps_warm(pages + 1);
        Ok(self.addresses.publish(index, Kind::Vmalloc, options, warm, caller))
    }

    /// A busy area of `reserved_pages` pages of addresses, or `pages` if that is more, with memory
    /// of its own in the first `pages`; its address.
    pub fn allocate_reserved(
        &self,
        pages: u32,
        reserved_pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        let room = pages.max(reserved_pages);
        let index = self
            .addresses
            .with_mappings(options.no_wait, || self.allocate_once(pages, room, options))?;
        let word = self.parts().area(index).word().allocated(Kind::Vmalloc, false).reserved(true);
        Ok(self.addresses.publish_as(index, word, options, caller))
    }

    /// A large area of `pages` pages whose frames stayed mapped.
    fn take_large(&self, pages: u32, options: &Options) -> Option<AreaIndex> {
        let (parts, with_guard) = (self.parts(), pages.checked_add(1)?);
        let may_take =
            options.takes_warm() && options.window.is_none() && LargePools::has_size(with_guard);
        let fits = |top| parts.directory().is_aligned(parts.area(top).start(), options.align);
        let large = parts.nodes().of_cpu(parts.host().cpu()).1.large();
        may_take.then(|| large.pop(parts.areas(), with_guard, fits))?
    }

    /// A held area of `room` pages, with memory of its own in the first `pages`.
    fn allocate_once(
        &self,
        pages: u32,
        room: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let index = self.addresses.obtain(room, options)?;
        let area = self.parts().area(index);
        area.set_word(area.word().held(Kind::Vmalloc));
        let run = PageRange::new(area.start(), pages);
        let mapped = self
            .enter_frames(run, options)
            .and_then(|()| self.map_entered(index, run, options))
            .and_then(|()| {
                self.parts().mappings().prepare_new(self.parts().counters(), run, options)
            });
        if let Err(error) = mapped {
            self.addresses.abandon(index, !options.no_wait);
            return Err(error);
        }
        Ok(index)
    }

    /// Allocates frames for `run` and enters them. If there are none, purges first.
    pub fn enter_frames(&self, run: PageRange, options: &Options) -> Result<(), VmapError> {
        let parts = self.parts();
        let flags = options.flags.unwrap_or(self.flags);
        let flags = if options.no_wait { flags.no_reclaim() } else { flags };
        let own = OwnFrames::new(parts.host(), parts.mappings().frames(), parts.counters());
        let prefers_long_runs = parts.mappings().mapper().prefers_long_runs();
        self.addresses
            .with_purges(options.no_wait, || own.allocate(run, flags, prefers_long_runs))?;
        parts.mappings().frames().join_runs(run);
        Ok(())
    }
}
