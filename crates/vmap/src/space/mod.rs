//! The free address space: the pages that no area covers, under one lock.
//!
//! Only slow paths come here; warm allocations and frees do not. Free ranges and areas use the same
//! descriptors. So a free needs no new descriptor, and an allocation needs at most two more than it
//! frees: one for the area, one for the free pages on its far side.

pub mod boundary;
pub mod request;
pub mod spares;
pub mod transfer;
pub mod tree;

use crate::error::VmapError;
use crate::lock::{Lock, LockGuard, Waits};
use crate::metadata::area::{AreaIndex, Areas};
use crate::metadata::directory::Directory;
use crate::seams::host::Host;
use crate::space::request::AddressRequest;
use crate::space::spares::{Spares, Supply};
use crate::space::transfer::{ReturnList, Strips, make_area};
use crate::space::tree::Tree;
use crate::units::{PageRange, Vpn};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Largest number of strips taken in one acquisition of the lock.
const STRIPS_MAX: u32 = 16;

/// The free ranges and the spare descriptors.
pub struct Space {
    lock: Lock,
    spares: Spares,
    root: AtomicU32,
    free_pages: AtomicU64,
}

/// The space, locked.
pub struct LockedSpace<'l, 'm, H: Host + ?Sized> {
    space: &'l Space,
    directory: &'l Directory<'m>,
    _guard: LockGuard<'l, H>,
}

impl Space {
    pub fn new() -> Self {
        Space {
            lock: Lock::new(),
            spares: Spares::new(),
            root: AtomicU32::new(0),
            free_pages: AtomicU64::new(0),
        }
    }

    pub fn spares(&self) -> &Spares {
        &self.spares
    }

    /// Pages that no area covers.
    pub fn free_pages(&self) -> u64 {
        // Relaxed: a statistic; its writers hold the lock.
        self.free_pages.load(Ordering::Relaxed)
    }

    /// Locks the space. Waits until it is free.
    pub fn lock<'l, 'm, H: Host + ?Sized>(
        &'l self,
        directory: &'l Directory<'m>,
        host: &'l H,
    ) -> LockedSpace<'l, 'm, H> {
        LockedSpace { space: self, directory, _guard: self.lock.lock(host) }
    }

    /// Locks the space after a waiter that spins: [`Lock::lock_behind`].
    pub fn lock_behind<'l, 'm, H: Host + ?Sized>(
        &'l self,
        directory: &'l Directory<'m>,
        host: &'l H,
        waits: Waits,
    ) -> Option<LockedSpace<'l, 'm, H>> {
        Some(LockedSpace { space: self, directory, _guard: self.lock.lock_behind(host, waits)? })
    }

    /// Locks the space if it comes free while the caller `waits`.
    pub fn lock_as<'l, 'm, H: Host + ?Sized>(
        &'l self,
        directory: &'l Directory<'m>,
        host: &'l H,
        waits: Waits,
    ) -> Option<LockedSpace<'l, 'm, H>> {
        Some(LockedSpace { space: self, directory, _guard: self.lock.lock_as(host, waits)? })
    }
}

impl<'m, H: Host + ?Sized> LockedSpace<'_, 'm, H> {
    pub fn tree(&self) -> Tree<'_, 'm> {
        Tree::new(self.areas(), &self.space.root)
    }

    fn areas(&self) -> Areas<'m> {
        self.directory.areas()
    }

    fn add_free(&self, pages: i64) {
        let free = &self.space.free_pages;
        // Relaxed, both: under the lock.
        free.store(free.load(Ordering::Relaxed).wrapping_add(pages as u64), Ordering::Relaxed);
    }

    /// Takes an area out of the free space, and up to `more` of the same size: the lowest that fit.
    pub fn carve(&self, request: AddressRequest, more: u32) -> Result<Strips, VmapError> {
        let count = 1 + more;
        let mut carved = self.carve_strip(request, count)?;
        for _ in 1..STRIPS_MAX {
            if carved.areas == count {
                break;
            }
            let Ok(strip) = self.carve_strip(request, count - carved.areas) else { break };
            self.directory.area(carved.last).set_next(Some(strip.first));
            (carved.last, carved.areas) = (strip.last, carved.areas + strip.areas);
        }
        Ok(carved)
    }

    /// Takes up to `count` adjacent areas from the lowest range in which one fits.
    fn carve_strip(&self, request: AddressRequest, count: u32) -> Result<Strips, VmapError> {
        let (free, start) = self.tree().find(request).ok_or(VmapError::NoSpace)?;
        let room = self.directory.area(free).end().since(start) / request.pages;
        let areas = count.min(room);
        let strip = self.carve_from(free, PageRange::new(start, areas * request.pages))?;
        self.directory.area(strip).set_next(None);
        Ok(Strips { first: strip, last: strip, areas })
    }

    /// Takes exactly `run`, held by the caller and not in the index yet.
    pub fn carve_at(&self, run: PageRange) -> Result<AreaIndex, VmapError> {
        let free = self.tree().containing(run.start).ok_or(VmapError::Occupied)?;
        if self.directory.area(free).end() < run.end {
            return Err(VmapError::Occupied);
        }
        self.carve_from(free, run)
    }

    fn carve_from(&self, free: AreaIndex, run: PageRange) -> Result<AreaIndex, VmapError> {
        let areas = self.areas();
        let whole = areas[free].run();
        let (before, after) = (run.start.since(whole.start), whole.end.since(run.end));
        let needed = u32::from(before > 0) + u32::from(after > 0);
        let mut supply = self.space.spares.take(areas, needed);
        if supply.count() < needed {
            self.space.spares.put(areas, supply);
            return Err(VmapError::NoAreas);
        }
        let mut area = Some(free);
        if needed == 0 {
            self.tree().remove(free);
        } else {
            // The free range's descriptor keeps one side; the other side gets a new one.
            let rest = if before > 0 {
                PageRange::new(whole.start, before)
            } else {
                PageRange::new(run.end, after)
            };
            self.tree().replace(free, rest);
            if needed == 2 {
                self.insert_free(supply.pop(areas), PageRange::new(run.end, after));
            }
            area = supply.pop(areas);
        }
        // The supply had enough for all of it.
        let area = area.ok_or(VmapError::NoAreas)?;
        self.add_free(-i64::from(run.pages()));
        make_area(&areas[area], run);
        Ok(area)
    }

    fn insert_free(&self, descriptor: Option<AreaIndex>, run: PageRange) {
        let Some(descriptor) = descriptor else { return };
        self.directory.area(descriptor).place(run);
        self.tree().insert(descriptor);
    }

    /// Returns an area that the caller owns, with nothing mapped in it, to the free space.
    pub fn give_back(&self, area: AreaIndex) {
        let mut returned = ReturnList::default();
        returned.add(self.directory, area);
        let spare = self.take_back(returned);
        self.space.spares.put(self.areas(), spare);
    }

    /// Takes ranges into the free space; returns the descriptors left over. The caller puts them
    /// back once it has unlocked the space.
    #[must_use]
    pub fn take_back(&self, returned: ReturnList) -> Supply {
        let (mut rest, mut spare) = returned.into_parts();
        while let Some(range) = rest {
            // Before the link changes.
            rest = self.directory.area(range).next();
            self.insert_merged(range, &mut spare);
        }
        spare
    }

    /// Puts a free range into the tree, merged with its neighbours, whose descriptors become spare.
    fn insert_merged(&self, range: AreaIndex, spare: &mut Supply) {
        let areas = self.areas();
        let run = areas[range].run();
        let tree = self.tree();
        self.add_free(i64::from(run.pages()));
        match tree.touching(run) {
            (None, None) => return tree.insert(range),
            (Some(before), None) => {
                tree.replace(before, PageRange { start: areas[before].start(), end: run.end });
            }
            (None, Some(after)) => {
                tree.replace(after, PageRange { start: run.start, end: areas[after].end() });
            }
            (Some(before), Some(after)) => {
                let end = areas[after].end();
                tree.remove(after);
                tree.replace(before, PageRange { start: areas[before].start(), end });
                spare.push(areas, after);
            }
        }
        spare.push(areas, range);
    }

    /// Extends an area that the caller owns by the `pages` free pages behind it.
    pub fn extend(&self, area: AreaIndex, pages: u32) -> Result<(), VmapError> {
        let (areas, end) = (self.areas(), self.directory.area(area).end());
        let free = self.tree().containing(end).ok_or(VmapError::Occupied)?;
        let whole = areas[free].run();
        // Compared as a distance: `end` plus `pages` may exceed the numbers of pages.
        if whole.end.since(end) < pages {
            return Err(VmapError::Occupied);
        }
        let more = PageRange::new(end, pages);
        if whole.end == more.end {
            self.tree().remove(free);
            self.space.spares.put_one(areas, free);
        } else {
            self.tree().replace(free, PageRange { start: more.end, end: whole.end });
        }
        self.add_free(-i64::from(pages));
        let run = PageRange { start: areas[area].start(), end: more.end };
        areas[area].place(run);
        self.directory.index().set(run, area);
        Ok(())
    }

    /// Makes all `pages` pages of the range free. Called once, on a new space.
    pub fn open(&self, pages: u32) {
        self.add_free(i64::from(pages));
        let descriptor = self.space.spares.take_one(self.areas());
        self.insert_free(descriptor, PageRange::new(Vpn(0), pages));
    }
}
