//! The free address space: what no area covers, under one lock.
//!
//! Everything here is the slow path: warm allocations and frees never come here. Free ranges and
//! areas are made of the same descriptors, so freeing needs none, and an allocation needs at most
//! two more than it frees: one for the area, one for what is left on its far side. A row of areas
//! is taken as one, and cut up by its owner without the lock.

use super::area::{Area, AreaIndex, Areas, State};
use super::error::VmapError;
use super::index::SegmentIndex;
use super::lock::{Guard, Lock};
use super::seams::Host;
use super::spares::{Spares, Supply};
use super::tree::{Tree, Wanted};
use super::units::{Run, Vpn};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// The free ranges and the spare descriptors.
pub struct Space {
    pub lock: Lock,
    pub spares: Spares,
    root: AtomicU32,
    free_pages: AtomicU64,
}

/// Most free ranges that are searched for in one turn of the lock.
const ROWS_MAX: u32 = 16;

/// Rows of areas of one size, taken from the space in one turn of its lock: held by the caller,
/// linked in ascending order, and not in the index yet.
#[derive(Clone, Copy)]
pub struct Carved {
    pub first: AreaIndex,
    pub last: AreaIndex,
    /// Of that size, in all rows.
    pub areas: u32,
}

impl Carved {
    /// The one area `area`.
    pub fn one(area: AreaIndex) -> Self {
        Carved { first: area, last: area, areas: 1 }
    }

    /// Cuts the rows into areas of `pages` pages.
    #[must_use]
    pub fn cut(mut self, areas: Areas<'_>, pages: u32, supply: &mut Supply) -> Self {
        let mut rest = Some(self.first);
        while let Some(area) = rest {
            let run = areas[area].run();
            rest = areas[area].next();
            let behind = if run.pages() > pages { supply.pop(areas) } else { None };
            let Some(behind) = behind else { continue };
            make_area(&areas[behind], Run { start: run.start.add(pages), end: run.end });
            areas[area].place(Run::new(run.start, pages));
            areas[behind].set_next(rest);
            areas[area].set_next(Some(behind));
            if area == self.last {
                self.last = behind;
            }
            rest = Some(behind);
        }
        self
    }
}

/// Areas on their way back to the space: ascending ranges that touch no other of them, and
/// descriptors left over. The caller's until it has the lock.
#[derive(Default)]
pub struct Returned {
    first: Option<AreaIndex>,
    last: Option<AreaIndex>,
    spare: Supply,
}

impl Returned {
    /// Descriptors left over once the space has taken the ranges.
    pub fn into_spare(self) -> Supply {
        self.spare
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds an area that the caller owns, with nothing mapped in it, behind those added before.
    pub fn add(&mut self, areas: Areas<'_>, index: SegmentIndex<'_>, area: AreaIndex) {
        vacate(areas, index, area);
        let run = areas[area].run();
        match self.last {
            Some(last) if areas[last].end() == run.start => {
                areas[last].place(Run { start: areas[last].start(), end: run.end });
                self.spare.push(areas, area);
                return;
            }
            Some(last) => areas[last].set_next(Some(area)),
            None => self.first = Some(area),
        }
        areas[area].set_next(None);
        self.last = Some(area);
    }
}

/// Makes an area a free range that is not in the tree yet.
fn vacate(areas: Areas<'_>, index: SegmentIndex<'_>, area: AreaIndex) {
    // The word first: see the argument on readers in `area.rs`.
    areas[area].set_word(areas[area].word().plain(State::Vacant));
    index.clear(areas[area].run());
}

/// Makes a descriptor the caller owns an area.
fn make_area(area: &Area, run: Run) {
    // The word first: see the argument on readers in `area.rs`.
    area.set_word(area.word().plain(State::Held));
    area.place(run);
    area.set_mapped(0);
}

/// The space, locked.
pub struct Locked<'l, 'm, H: Host + ?Sized> {
    space: &'l Space,
    areas: Areas<'m>,
    index: SegmentIndex<'m>,
    _guard: Guard<'l, H>,
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

    /// The space under its lock, which `guard` proves is held.
    pub fn under<'l, 'm, H: Host + ?Sized>(
        &'l self,
        areas: Areas<'m>,
        index: SegmentIndex<'m>,
        guard: Guard<'l, H>,
    ) -> Locked<'l, 'm, H> {
        Locked { space: self, areas, index, _guard: guard }
    }

    pub fn free_pages(&self) -> u64 {
        self.free_pages.load(Ordering::Relaxed)
    }
}

impl<'m, H: Host + ?Sized> Locked<'_, 'm, H> {
    pub fn tree(&self) -> Tree<'_, 'm> {
        Tree { areas: self.areas, root: &self.space.root }
    }

    fn add_free(&self, pages: i64) {
        let free = &self.space.free_pages;
        free.store(free.load(Ordering::Relaxed).wrapping_add(pages as u64), Ordering::Relaxed);
    }

    /// Puts back a descriptor that is neither area nor free range.
    fn put_descriptor(&self, spare: AreaIndex) {
        let mut supply = Supply::default();
        supply.push(self.areas, spare);
        self.space.spares.put(self.areas, supply);
    }

    /// A descriptor for later, held by the caller and covering nothing.
    pub fn reserve_descriptor(&self) -> Option<AreaIndex> {
        let spare = self.space.spares.take_one(self.areas)?;
        self.areas[spare].set_word(self.areas[spare].word().plain(State::Held));
        Some(spare)
    }

    /// Gives back what [`reserve_descriptor`](Self::reserve_descriptor) gave.
    pub fn unreserve_descriptor(&self, spare: AreaIndex) {
        self.areas[spare].set_word(self.areas[spare].word().plain(State::Vacant));
        self.put_descriptor(spare);
    }

    /// Takes an area out of the free space, and up to `more` like it: always the lowest that fit.
    pub fn carve(&self, wanted: Wanted, more: u32) -> Result<Carved, VmapError> {
        let count = 1 + more;
        let mut carved = self.carve_row(wanted, count)?;
        for _ in 1..ROWS_MAX {
            if carved.areas == count {
                break;
            }
            let Ok(row) = self.carve_row(wanted, count - carved.areas) else { break };
            self.areas[carved.last].set_next(Some(row.first));
            (carved.last, carved.areas) = (row.last, carved.areas + row.areas);
        }
        Ok(carved)
    }

    /// Takes up to `count` areas, one behind the other, from the lowest range where one fits.
    fn carve_row(&self, wanted: Wanted, count: u32) -> Result<Carved, VmapError> {
        let (free, start) = self.tree().find(wanted).ok_or(VmapError::NoSpace)?;
        let room = self.areas[free].end().since(start) / wanted.pages;
        let areas = count.min(room);
        let row = self.carve_from(free, Run::new(start, areas * wanted.pages))?;
        self.areas[row].set_next(None);
        Ok(Carved { first: row, last: row, areas })
    }

    /// Takes exactly `run`, held by the caller and not in the index yet.
    pub fn carve_at(&self, run: Run) -> Result<AreaIndex, VmapError> {
        let free = self.tree().containing(run.start).ok_or(VmapError::Occupied)?;
        if self.areas[free].end() < run.end {
            return Err(VmapError::Occupied);
        }
        self.carve_from(free, run)
    }

    fn carve_from(&self, free: AreaIndex, run: Run) -> Result<AreaIndex, VmapError> {
        let whole = self.areas[free].run();
        let (before, after) = (run.start.since(whole.start), whole.end.since(run.end));
        let needed = u32::from(before > 0) + u32::from(after > 0);
        let mut supply = self.space.spares.take(self.areas, needed);
        if supply.count() < needed {
            self.space.spares.put(self.areas, supply);
            return Err(VmapError::NoAreas);
        }
        let mut area = Some(free);
        if needed == 0 {
            self.tree().remove(free);
        } else {
            // The free range's descriptor keeps one side; the other side gets a new one.
            let rest =
                if before > 0 { Run::new(whole.start, before) } else { Run::new(run.end, after) };
            self.tree().replace(free, rest);
            if needed == 2 {
                self.insert_free(supply.pop(self.areas), Run::new(run.end, after));
            }
            area = supply.pop(self.areas);
        }
        // There was enough in the supply.
        let area = area.ok_or(VmapError::NoAreas)?;
        self.add_free(-i64::from(run.pages()));
        make_area(&self.areas[area], run);
        Ok(area)
    }

    fn insert_free(&self, descriptor: Option<AreaIndex>, run: Run) {
        let Some(descriptor) = descriptor else { return };
        self.areas[descriptor].place(run);
        self.tree().insert(descriptor);
    }

    /// Returns an area the caller owns, with nothing mapped in it, to the free space.
    pub fn give_back(&self, area: AreaIndex) {
        let mut returned = Returned::default();
        returned.add(self.areas, self.index, area);
        self.take_back(&mut returned);
        self.space.spares.put(self.areas, returned.spare);
    }

    /// Takes ranges into the free space; what is left of `returned` are descriptors.
    pub fn take_back(&self, returned: &mut Returned) {
        let mut rest = returned.first.take();
        while let Some(range) = rest {
            // It is linked elsewhere soon.
            rest = self.areas[range].next();
            self.insert_merged(range, &mut returned.spare);
        }
    }

    /// Puts a free range into the tree, as one with its neighbours, whose descriptors become spare.
    fn insert_merged(&self, range: AreaIndex, spare: &mut Supply) {
        let run = self.areas[range].run();
        let tree = self.tree();
        self.add_free(i64::from(run.pages()));
        match tree.touching(run) {
            (None, None) => return tree.insert(range),
            (Some(before), None) => {
                tree.replace(before, Run { start: self.areas[before].start(), end: run.end });
            }
            (None, Some(after)) => {
                tree.replace(after, Run { start: run.start, end: self.areas[after].end() });
            }
            (Some(before), Some(after)) => {
                let end = self.areas[after].end();
                tree.remove(after);
                tree.replace(before, Run { start: self.areas[before].start(), end });
                spare.push(self.areas, after);
            }
        }
        spare.push(self.areas, range);
    }

    /// Makes an area the caller owns larger by the free `pages` behind it.
    pub fn extend(&self, area: AreaIndex, pages: u32) -> Result<(), VmapError> {
        let end = self.areas[area].end();
        let free = self.tree().containing(end).ok_or(VmapError::Occupied)?;
        let whole = self.areas[free].run();
        // Compared as a distance: `end` and so many pages may be more than a page number holds.
        if whole.end.since(end) < pages {
            return Err(VmapError::Occupied);
        }
        let more = Run::new(end, pages);
        if whole.end == more.end {
            self.tree().remove(free);
            self.put_descriptor(free);
        } else {
            self.tree().replace(free, Run { start: more.end, end: whole.end });
        }
        self.add_free(-i64::from(pages));
        let run = Run { start: self.areas[area].start(), end: more.end };
        self.areas[area].place(run);
        self.index.set(run, area);
        Ok(())
    }

    /// Cuts an area the caller owns at `at`; what is behind becomes the area `rest`, which must
    /// come from [`reserve_descriptor`](Self::reserve_descriptor) and is the caller's too.
    pub fn split(&self, area: AreaIndex, at: Vpn, rest: AreaIndex) {
        let run = self.areas[area].run();
        let behind = Run { start: at, end: run.end };
        self.areas[area].place(Run { start: run.start, end: at });
        make_area(&self.areas[rest], behind);
        self.index.set(behind, rest);
        self.areas[rest].set_traits(self.areas[area].traits());
    }

    /// Moves the boundary between two neighbours, both the caller's: `pages` of `behind`, but not
    /// all of them, become the end of `area`.
    pub fn shift(&self, area: AreaIndex, behind: AreaIndex, pages: u32) {
        let (front, back) = (self.areas[area].run(), self.areas[behind].run());
        debug_assert!(front.end == back.start && pages < back.pages());
        let boundary = back.start.add(pages);
        self.index.clear(back);
        for (index, run) in [
            (area, Run { start: front.start, end: boundary }),
            (behind, Run { start: boundary, end: back.end }),
        ] {
            self.areas[index].place(run);
            self.index.set(run, index);
        }
    }

    /// Opens the range: everything is free.
    pub fn open(&self, pages: u32) {
        self.add_free(i64::from(pages));
        self.insert_free(self.space.spares.take_one(self.areas), Run::new(Vpn(0), pages));
    }
}
