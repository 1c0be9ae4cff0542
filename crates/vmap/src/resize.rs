//! Changing the size of memory.
//!
//! An area grows in place where it has reserved the addresses, or those behind it are free.
//! Otherwise its frames are mapped at a new address, not copied, and the old place becomes an
//! *alias*: lazy, and without frames of its own. `purge/retire.rs` says why its frames outlive it.
//!
//! A reserved area holds all its addresses, of which the first `mapped` are memory. It grows and
//! shrinks as others do, but its addresses stay: to grow within them takes no lock.

use core::panic::Location;

use crate::config::Options;
use crate::error::{MapError, VmapError};
use crate::kind::Kind;
use crate::lock::{LockGuard, Waits};
use crate::map::own::OwnFrames;
use crate::metadata::area::{AreaIndex, State};
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::space::boundary;
use crate::state::VmapState;
use crate::undo::Undo;
use crate::units::{PageRange, VirtAddr, Vpn};
use pagedepot::sync::count;

/// The requests that change sizes.
impl<M: Mapper, H: Host> VmapState<'_, M, H> {
    /// Resizes the memory at `start` to `pages` pages; returns its address.
    pub fn resize(
        &self,
        start: VirtAddr,
        pages: u32,
        options: Options,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, VmapError> {
        self.host().check_usable()?;
        let (index, word) =
            self.directory().busy_at(start, Kind::Vmalloc).ok_or(VmapError::NotAllocated)?;
        let area = self.area(index);
        if !area.leave_busy(word, word.in_state(State::Held)) {
            return Err(VmapError::NotAllocated);
        }
        let (old, traits) = (area.mapped(), area.traits());
        let (guard, protection) = (traits.guard() as u8, traits.protection());
        let options = Options { guard, protection, ..options };
        let restore = |is_plain| {
            // A new generation: a reader must not take what it saw before for what is there now.
            count(&self.counters().changed_areas, 1);
            // An area that has lost its guard on the way is not warm, either.
            let warm = word.is_warm() && is_plain && area.traits().guard() == u32::from(guard);
            let new = area.word().allocated(Kind::Vmalloc, warm);
            area.set_word(new.reserved(word.is_reserved()));
        };
        let undo = Undo(|| restore(true));
        let result = match pages {
            0 => Err(VmapError::BadSize),
            _ if !options.align.is_power_of_two() => Err(VmapError::BadAlign),
            _ if pages < old => self.shrink(index, pages, options.no_wait).map(|()| index),
            _ if pages == old => Ok(index),
            _ => self.with_mappings(options.no_wait, || self.grow(index, pages, &options)),
        };
        undo.forget();
        // What was allocated with flags of its own does not serve any request.
        let is_plain = options.flags.is_none() || result.is_err() || pages <= old;
        if let Ok(moved) = result
            && moved != index
        {
            let (kind, warm) = (Kind::Vmalloc, word.is_warm() && is_plain);
            let new = self.area(moved).word().allocated(kind, warm);
            let new = new.reserved(word.is_reserved());
            // Lazy before the new area is published: see the argument on aliases in
            // `purge/retire.rs`. A purge comes last, because it may panic.
            let may_be_due = self.make_lazy(index);
            let address = self.publish_as(moved, new, &options, caller);
            if may_be_due {
                self.purge_if_due(!options.no_wait);
            }
            return Ok(address);
        }
        restore(is_plain);
        result.map(|_| start)
    }

    /// Returns the pages of a held area from `pages` on.
    fn shrink(&self, index: AreaIndex, pages: u32, no_wait: bool) -> Result<(), VmapError> {
        let area = self.area(index);
        let (at, waits) = (area.start().add(pages), Waits::of(no_wait));
        let guard = area.traits().guard();
        let own = OwnFrames::new(self.host(), self.mappings().frames(), self.counters());
        if !own.split_at(at)? {
            // The block stays whole, and so does the area. The pages that its user no longer needs
            // are new memory when the area grows again.
            let rest = PageRange { start: at, end: area.mapped_hull().end };
            return self.mappings().zero(self.counters(), rest, area.traits().protection());
        }
        let rest = self.reserve_area(no_wait)?;
        // Before the cut: without it the guard would be lost, and the area is to stay as it is.
        let Some(purging) = self.begin(waits) else {
            self.space().spares().unreserve(self.areas(), rest);
            return Err(VmapError::WouldWait);
        };
        // A reserved area keeps its addresses, others a guard.
        let left = if area.word().is_reserved() { area.end().since(at) } else { guard };
        self.cut(index, (at, left), rest, (Some(purging), waits));
        Ok(())
    }

    /// A descriptor for a later cut, which covers nothing. If there is none, purges first.
    fn reserve_area(&self, no_wait: bool) -> Result<AreaIndex, VmapError> {
        let reserve = || self.space().spares().reserve(self.areas()).ok_or(VmapError::NoAreas);
        self.with_purges(no_wait, reserve)
    }

    /// Cuts the memory of a held area at `at`: unmaps and frees what is mapped behind, and returns
    /// the addresses, but for the first `left` pages. Uses the descriptor `rest`, which the caller
    /// has reserved, and the purge lock, if the caller could have that. Cannot fail.
    fn cut(
        &self,
        index: AreaIndex,
        (at, left): (Vpn, u32),
        rest: AreaIndex,
        (purging, waits): (Option<LockGuard<'_, H>>, Waits),
    ) {
        let (area, behind) = (self.area(index), self.area(rest));
        let kept = at.since(area.start()).min(area.mapped());
        let guard = area.traits().guard();
        boundary::split(self.directory(), index, at, rest);
        behind.set_word(behind.word().held(Kind::Vmalloc));
        behind.set_mapped(area.mapped() - kept);
        area.set_mapped(kept);
        area.set_traits(area.traits().without_guard());
        self.mappings().quarantine(self.host(), behind);
        let is_unmapped = behind.mapped() == 0
            || purging.is_some_and(|purging| self.retire_now(&purging, rest, waits));
        if is_unmapped && left == behind.pages() {
            boundary::join(self.directory(), index, rest);
            self.space().spares().unreserve(self.areas(), rest);
            area.set_traits(area.traits().with_guard(guard));
        } else if is_unmapped {
            boundary::shift(self.directory(), index, rest, left);
            behind.set_next(None);
            behind.set_traits(behind.traits().without_guard());
            behind.set_word(behind.word().plain(State::Held).retiring());
            self.give_back_all(Some(rest), waits);
            area.set_traits(area.traits().with_guard(guard));
        } else {
            // The next purge unmaps it. Until then no request gets the addresses behind, but they
            // are no guard.
            self.nodes().push_lazy(self.areas(), rest);
        }
    }

    fn grow(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        if !self.fits_in_place(index, pages, options) {
            return self.grow_elsewhere(index, pages, options);
        }
        match self.grow_in_place(index, pages, options) {
            Err(VmapError::Occupied | VmapError::NoAreas | VmapError::Map(MapError::Lost)) => {
                self.grow_elsewhere(index, pages, options)
            }
            result => result.map(|()| index),
        }
    }

    /// Whether an area of `pages` pages has the alignment and lies in the range, and in the window
    /// of `options`, where it is.
    fn fits_in_place(&self, index: AreaIndex, pages: u32, options: &Options) -> bool {
        let area = self.area(index);
        let total = u64::from(pages) + u64::from(options.guard);
        let range = self.range();
        let is_in_window = |(from, to): (VirtAddr, VirtAddr)| {
            // Inside the range: no overflow.
            let start = range.addr(area.start());
            from <= start && start.add((total as usize) << range.page_size.shift()) <= to
        };
        u64::from(area.start().0) + total <= u64::from(range.pages)
            && self.directory().is_aligned(area.start(), options.align)
            && options.window.is_none_or(is_in_window)
    }

    fn grow_in_place(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<(), VmapError> {
        let area = self.area(index);
        let (old, spares) = (area.mapped_hull(), self.space().spares());
        // For undoing it, which must not fail for want of a descriptor.
        let rest = self.reserve_area(options.no_wait)?;
        let waits = Waits::of(options.no_wait);
        let left = area.end().since(old.end);
        let missing = pages.saturating_sub(area.body_pages());
        let extended = match missing {
            0 => Ok(()),
            _ => match self.lock_space_as(waits) {
                Some(space) => space.extend(index, missing),
                // A pool may have other addresses.
                None => Err(VmapError::Occupied),
            },
        };
        if let Err(error) = extended {
            spares.unreserve(self.areas(), rest);
            return Err(error);
        }
        let more = PageRange { start: old.end, end: area.start().add(pages) };
        // The guard must not be lost, either.
        let used = PageRange { start: old.end, end: area.end() };
        let undo = Undo(|| {
            if missing == 0 && area.mapped() == old.pages() {
                // The addresses are the area's, reserved.
                spares.unreserve(self.areas(), rest);
            } else {
                let purging = self.begin(waits);
                self.cut(index, (old.end, left), rest, (purging, waits));
            }
        });
        if self.mappings().lost_in(used).is_some() {
            return Err(VmapError::Map(MapError::Lost));
        }
        self.enter_frames(more, options)?;
        self.map_entered(index, more, options)?;
        self.mappings().prepare_new(self.counters(), more, options)?;
        undo.forget();
        spares.unreserve(self.areas(), rest);
        Ok(())
    }

    /// Maps an area's frames, and more, at a new place, and makes the old one an alias.
    fn grow_elsewhere(
        &self,
        index: AreaIndex,
        pages: u32,
        options: &Options,
    ) -> Result<AreaIndex, VmapError> {
        let frames = self.mappings().frames();
        let old = self.area(index).mapped_hull();
        let new_index = self.obtain(pages, options)?;
        let (left, new) = (self.area(index), self.area(new_index));
        new.set_word(new.word().held(Kind::Vmalloc));
        // On the same node: see the argument on aliases in `purge/retire.rs`.
        new.set_traits(left.traits());
        let start = new.start();
        let more = PageRange { start: start.add(old.pages()), end: start.add(pages) };
        let undo = Undo(|| {
            new.set_word(new.word().aliased());
            self.abandon(new_index);
        });
        self.enter_frames(more, options)?;
        for (i, page) in (0..).zip(old.iter()) {
            if let Some(frame) = frames.get(page) {
                frames.lend(start.add(i), frame);
            }
        }
        self.map_entered(new_index, PageRange { start, end: more.end }, options)?;
        self.mappings().prepare_new(self.counters(), more, options)?;
        undo.forget();
        // From here on the new area owns the frames, and the old one has borrowed them.
        frames.hand_over(old, start);
        left.set_word(left.word().held(Kind::Vmap).aliased());
        Ok(new_index)
    }
}
