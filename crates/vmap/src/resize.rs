//! Changing the size of memory.
//!
//! An area grows in place where the addresses behind it are free. Otherwise its frames are mapped
//! at a new address, not copied, and the old place becomes an *alias*: lazy, and without frames of
//! its own. `purge/retire.rs` says why its frames outlive it.

use core::panic::Location;

use crate::addresses::Addresses;
use crate::config::Options;
use crate::error::{MapError, VmapError};
use crate::kind::Kind;
use crate::map::own::OwnFrames;
use crate::memory::Memory;
use crate::metadata::area::{AreaIndex, State};
use crate::parts::Parts;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::units::{PageRange, VirtAddr, Vpn};
use pagedepot::sync::count;

/// The memory whose areas are resized.
pub struct Resize<'a, 'm, M, H> {
    memory: &'a Memory<'m, M, H>,
}

impl<'a, 'm, M: Mapper, H: Host> Resize<'a, 'm, M, H> {
    pub fn new(memory: &'a Memory<'m, M, H>) -> Self {
        Resize { memory }
    }

    fn addresses(&self) -> &'a Addresses<'m, M, H> {
        self.memory.addresses()
    }

    fn parts(&self) -> &'a Parts<'m, M, H> {
        self.addresses().purger().parts()
    }

    /// Resizes the memory at `start` to `pages` pages; returns its address.
    pub fn resize(
        &self,
        start: VirtAddr,
        pages: u32,
        options: Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        let parts = self.parts();
        parts.host().check_usable()?;
        let (index, word) =
            parts.directory().busy_at(start, Kind::Vmalloc).ok_or(VmapError::NotAllocated)?;
        let area = parts.area(index);
        if !area.leave_busy(word, word.in_state(State::Held)) {
            return Err(VmapError::NotAllocated);
        }
        let (old, traits) = (area.body().pages(), area.traits());
        let (guard, protection) = (traits.guard() as u8, traits.protection());
        let options = Options { guard, protection, ..options };
        let result = match pages {
            0 => Err(VmapError::BadSize),
            _ if pages < old => self.shrink(index, pages).map(|()| index),
            _ if pages == old => Ok(index),
            _ => self
                .addresses()
                .with_mappings(options.no_wait, || self.grow(index, pages, &options)),
        };
        if let Ok(moved) = result
            && moved != index
        {
            let (kind, warm) = (Kind::Vmalloc, word.is_warm());
            return Ok(self.addresses().publish(moved, kind, &options, warm, caller));
        }
        // A new generation: a reader must not take what it saw before for what is there now.
        count(&parts.counters().changed_areas, 1);
        // An area that has lost its guard on the way is not for the pool.
        let warm = word.is_warm() && area.traits().guard() == u32::from(guard);
        area.set_word(area.word().allocated(Kind::Vmalloc, warm));
        result.map(|_| start)
    }

    /// Returns the pages of a held area from `pages` on.
    fn shrink(&self, index: AreaIndex, pages: u32) -> Result<(), VmapError> {
        let (parts, area) = (self.parts(), self.parts().area(index));
        let at = area.start().add(pages);
        let own = OwnFrames::new(parts.host(), parts.mappings().frames(), parts.counters());
        if !own.split_at(at)? {
            // The block stays whole, and so does the area. The pages that its user no longer needs
            // are new memory when the area grows again.
            let rest = PageRange { start: at, end: area.body().end };
            return parts.mappings().zero(rest, area.traits().protection());
        }
        let rest = parts.lock_space().reserve_descriptor().ok_or(VmapError::NoAreas)?;
        self.cut(index, at, rest);
        Ok(())
    }

    /// Cuts a held area at `at`: unmaps and returns the pages behind, but for a guard. Uses the
    /// descriptor `rest`, which the caller has reserved, and cannot fail.
    fn cut(&self, index: AreaIndex, at: Vpn, rest: AreaIndex) {
        let parts = self.parts();
        let (area, behind) = (parts.area(index), parts.area(rest));
        let kept = at.since(area.start()).min(area.mapped());
        let guard = area.traits().guard();
        parts.lock_space().split(index, at, rest);
        behind.set_word(behind.word().held(Kind::Vmalloc));
        behind.set_mapped(area.mapped() - kept);
        area.set_mapped(kept);
        area.set_traits(area.traits().without_guard());
        parts.mappings().quarantine(parts.host(), behind);
        if self.addresses().purger().retire_now(rest) {
            let space = parts.lock_space();
            space.shift(index, rest, guard);
            space.give_back(rest);
            area.set_traits(area.traits().with_guard(guard));
        } else {
            // It could not be unmapped: the next purge tries again. Until then no request gets the
            // addresses behind, but they are no guard.
            parts.nodes().push_lazy(parts.areas(), rest);
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
        let (parts, area) = (self.parts(), self.parts().area(index));
        let old = area.body();
        let rest = {
            let space = parts.lock_space();
            // For undoing it, which must not fail for want of a descriptor.
            let rest = space.reserve_descriptor().ok_or(VmapError::NoAreas)?;
            if let Err(error) = space.extend(index, pages - old.pages()) {
                space.unreserve_descriptor(rest);
                return Err(error);
            }
            rest
        };
        let more = PageRange { start: old.end, end: area.body().end };
        let mapped = parts
            .mappings()
            .lost_in(PageRange { start: old.end, end: area.end() })
            .map_or(Ok(()), |_| Err(VmapError::Map(MapError::Lost)))
            .and_then(|()| self.memory.enter_frames(more, options))
            .and_then(|()| self.memory.map_entered(index, more, options))
            .and_then(|()| parts.mappings().prepare_new(more, options));
        match mapped {
            Ok(()) => parts.lock_space().unreserve_descriptor(rest),
            Err(_) => self.cut(index, old.end, rest),
        }
        mapped
    }

    /// Maps an area's frames, and more, at a new place, and leaves the old one to a purge.
    fn grow_elsewhere(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let (parts, frames) = (self.parts(), self.parts().mappings().frames());
        let old = parts.area(index).body();
        let new_index = self.addresses().obtain(pages, options)?;
        let (left, new) = (parts.area(index), parts.area(new_index));
        new.set_word(new.word().held(Kind::Vmalloc));
        // On the same node: see the argument on aliases in `purge/retire.rs`.
        new.set_traits(left.traits());
        let start = new.start();
        let more = PageRange { start: start.add(old.pages()), end: start.add(pages) };
        let mapped = self.memory.enter_frames(more, options).and_then(|()| {
            for (i, page) in (0..).zip(old.iter()) {
                if let Some(frame) = frames.get(page) {
                    frames.lend(start.add(i), frame);
                }
            }
            self.memory.map_entered(new_index, PageRange { start, end: more.end }, options)?;
            parts.mappings().prepare_new(more, options)
        });
        if let Err(error) = mapped {
            new.set_word(new.word().aliased());
            self.addresses().abandon(new_index, !options.no_wait);
            return Err(error);
        }
        // From here on the new area owns the frames, and the old one has borrowed them.
        frames.hand_over(old, start);
        left.set_word(left.word().held(Kind::Vmap).aliased());
        self.addresses().purger().make_lazy(index, !options.no_wait);
        Ok(new_index)
    }
}
