//! The free address space: what no area covers, under one lock.
//!
//! Everything here is the slow path: warm allocations and frees never come here. Free ranges and
//! areas are made of the same descriptors, so freeing needs none, and an allocation needs at most
//! two more than it frees: one for the area, one for what is left on its far side.

use super::area::{AreaIndex, Areas, State, Word};
use super::error::VmapError;
use super::index::SegmentIndex;
use super::lock::{Guard, Lock};
use super::seams::Host;
use super::tree::{Tree, Wanted};
use super::units::{Run, Vpn};
use crate::prim::{AtomicU32, AtomicU64, Ordering};

/// The free ranges and the spare descriptors.
pub struct Space {
    pub lock: Lock,
    root: AtomicU32,
    /// Descriptors that were used before, linked.
    spare: AtomicU32,
    /// The lowest descriptor that was never used: an unused one need not be touched to be had.
    fresh: AtomicU32,
    free_pages: AtomicU64,
    /// Descriptors that are areas or free ranges.
    used: AtomicU32,
}

/// Of the unused descriptors, one in so many may be taken in advance.
const SPARED: u32 = 8;
/// Most free ranges that are searched for in one turn of the lock.
const ROWS_MAX: u32 = 16;

/// Areas of one size, taken from the space in one turn of its lock: held by the caller, linked
/// in ascending order, and not in the index yet.
#[derive(Clone, Copy)]
pub struct Carved {
    pub first: AreaIndex,
    pub last: AreaIndex,
    pub areas: u32,
}

/// Areas on their way back to the space: ascending ranges that touch no other of them, and
/// descriptors left over. The caller's until it has the lock.
#[derive(Default)]
pub struct Returned {
    first: Option<AreaIndex>,
    last: Option<AreaIndex>,
    spare: Option<AreaIndex>,
}

impl Returned {
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
                areas[area].set_next(self.spare);
                self.spare = Some(area);
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
            root: AtomicU32::new(0),
            spare: AtomicU32::new(0),
            fresh: AtomicU32::new(1),
            free_pages: AtomicU64::new(0),
            used: AtomicU32::new(0),
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

    /// Descriptors that were ever used: those behind were never touched.
    pub fn touched(&self) -> usize {
        self.fresh.load(Ordering::Relaxed) as usize
    }

    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }
}

/// Adds to a number that the lock protects.
fn add(cell: &AtomicU32, n: u32) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl<'m, H: Host + ?Sized> Locked<'_, 'm, H> {
    pub fn tree(&self) -> Tree<'_, 'm> {
        Tree { areas: self.areas, root: &self.space.root }
    }

    fn add_free(&self, pages: i64) {
        let free = &self.space.free_pages;
        free.store(free.load(Ordering::Relaxed).wrapping_add(pages as u64), Ordering::Relaxed);
    }

    /// Whether `count` more descriptors are to be had.
    fn has_descriptors(&self, count: u32) -> bool {
        self.unused_descriptors() >= count
    }

    fn unused_descriptors(&self) -> u32 {
        // Number 0 is nobody.
        self.areas.0.len() as u32 - 1 - self.space.used()
    }

    fn take_descriptor(&self) -> Option<AreaIndex> {
        let found = match AreaIndex::new(self.space.spare.load(Ordering::Relaxed)) {
            Some(spare) => {
                self.space.spare.store(AreaIndex::number(self.areas[spare].next()), Ordering::Relaxed);
                spare
            }
            None => {
                let fresh = self.space.fresh.load(Ordering::Relaxed);
                if fresh as usize >= self.areas.0.len() {
                    return None;
                }
                add(&self.space.fresh, 1);
                AreaIndex::new(fresh)?
            }
        };
        add(&self.space.used, 1);
        Some(found)
    }

    /// Gives back a descriptor that is neither area nor free range.
    fn put_descriptor(&self, spare: AreaIndex) {
        self.areas[spare].set_next(AreaIndex::new(self.space.spare.load(Ordering::Relaxed)));
        self.space.spare.store(spare.get(), Ordering::Relaxed);
        add(&self.space.used, u32::MAX);
    }

    /// A descriptor for later, held by the caller and covering nothing.
    pub fn reserve_descriptor(&self) -> Option<AreaIndex> {
        let spare = self.take_descriptor()?;
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
        // What is taken in advance must not be what others lack.
        let count = 1 + more.min(self.unused_descriptors() / SPARED);
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
        let areas = count.min(room).min(self.unused_descriptors().saturating_sub(1)).max(1);
        let first = self.carve_from(free, Run::new(start, areas * wanted.pages))?;
        let mut carved = Carved { first, last: first, areas: 1 };
        self.areas[first].set_next(None);
        for nth in 1..areas {
            let Some(next) = self.take_descriptor() else { break };
            let run = Run::new(start.add(nth * wanted.pages), wanted.pages);
            self.make_area(next, run, self.areas[next].word());
            self.areas[next].set_next(None);
            self.areas[carved.last].set_next(Some(next));
            (carved.last, carved.areas) = (next, nth + 1);
        }
        if areas > 1 {
            self.areas[first].place(Run::new(start, wanted.pages));
        }
        Ok(carved)
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
        if !self.has_descriptors(u32::from(before > 0) + u32::from(after > 0)) {
            return Err(VmapError::NoAreas);
        }
        let mut area = Some(free);
        if before == 0 && after == 0 {
            self.tree().remove(free);
        } else {
            // The free range's descriptor keeps one side; the other side gets a new one.
            let rest = if before > 0 { Run::new(whole.start, before) } else { Run::new(run.end, after) };
            self.tree().replace(free, rest);
            if before > 0 && after > 0 {
                self.insert_free(self.take_descriptor(), Run::new(run.end, after));
            }
            area = self.take_descriptor();
        }
        // Checked by `has_descriptors` above.
        let area = area.ok_or(VmapError::NoAreas)?;
        self.add_free(-i64::from(run.pages()));
        self.make_area(area, run, self.areas[area].word());
        Ok(area)
    }

    fn insert_free(&self, descriptor: Option<AreaIndex>, run: Run) {
        let Some(descriptor) = descriptor else { return };
        self.areas[descriptor].place(run);
        self.tree().insert(descriptor);
    }

    fn make_area(&self, area: AreaIndex, run: Run, was: Word) {
        let descriptor = &self.areas[area];
        // The word first: see the argument on readers in `area.rs`.
        descriptor.set_word(was.plain(State::Held));
        descriptor.place(run);
        descriptor.set_mapped(0);
        descriptor.block.store(0, Ordering::Relaxed);
    }

    /// Returns an area the caller owns, with nothing mapped in it, to the free space.
    pub fn give_back(&self, area: AreaIndex) {
        vacate(self.areas, self.index, area);
        self.insert_merged(area);
    }

    /// As [`give_back`](Self::give_back) for many.
    pub fn take_back(&self, returned: Returned) {
        // Each is linked elsewhere before the next is asked for.
        let links = |first| {
            let mut rest = first;
            core::iter::from_fn(move || {
                let at = rest?;
                rest = self.areas[at].next();
                Some(at)
            })
        };
        links(returned.first).for_each(|range| self.insert_merged(range));
        links(returned.spare).for_each(|spare| self.put_descriptor(spare));
    }

    /// Puts a free range into the tree, as one with its neighbours.
    fn insert_merged(&self, range: AreaIndex) {
        let run = self.areas[range].run();
        let tree = self.tree();
        self.add_free(i64::from(run.pages()));
        match tree.touching(run) {
            (None, None) => tree.insert(range),
            (Some(before), None) => {
                tree.replace(before, Run { start: self.areas[before].start(), end: run.end });
                self.put_descriptor(range);
            }
            (None, Some(after)) => {
                tree.replace(after, Run { start: run.start, end: self.areas[after].end() });
                self.put_descriptor(range);
            }
            (Some(before), Some(after)) => {
                let end = self.areas[after].end();
                tree.remove(after);
                tree.replace(before, Run { start: self.areas[before].start(), end });
                self.put_descriptor(range);
                self.put_descriptor(after);
            }
        }
    }

    /// Makes an area the caller owns larger by the free `pages` behind it.
    pub fn extend(&self, area: AreaIndex, pages: u32) -> Result<(), VmapError> {
        let end = self.areas[area].end();
        let more = Run::new(end, pages);
        let free = self.tree().containing(end).ok_or(VmapError::Occupied)?;
        let whole = self.areas[free].run();
        if whole.end < more.end {
            return Err(VmapError::Occupied);
        }
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
        self.make_area(rest, behind, self.areas[rest].word());
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
        self.insert_free(self.take_descriptor(), Run::new(Vpn(0), pages));
    }
}
