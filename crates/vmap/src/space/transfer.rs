//! Areas on their way out of the free address space, and back.
//!
//! A *strip* is a range of pages that is taken as one area and cut into several of one size. That,
//! and merging neighbours that come back, happens without the space's lock.

use crate::metadata::area::{Area, AreaIndex, Areas, State};
use crate::metadata::directory::Directory;
use crate::space::spares::Supply;
use crate::units::PageRange;

/// Strips of areas of one size, taken in one acquisition of the space's lock: held by the caller,
/// linked in ascending order, and not in the index yet.
#[derive(Clone, Copy)]
pub struct Strips {
    pub first: AreaIndex,
    pub last: AreaIndex,
    /// Number of areas that the strips have room for.
    pub areas: u32,
}

impl Strips {
    /// One area.
    pub fn one(area: AreaIndex) -> Self {
        Strips { first: area, last: area, areas: 1 }
    }

    /// Cuts the strips into areas of `pages` pages.
    #[must_use]
    pub fn cut(mut self, areas: Areas<'_>, pages: u32, supply: &mut Supply) -> Self {
        let mut rest = Some(self.first);
        while let Some(area) = rest {
            let strip = areas[area].run();
            rest = areas[area].next();
            let behind = if strip.pages() > pages { supply.pop(areas) } else { None };
            let Some(behind) = behind else { continue };
            make_area(&areas[behind], PageRange { start: strip.start.add(pages), end: strip.end });
            areas[area].place(PageRange::new(strip.start, pages));
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

/// Areas on their way back to the space: ascending ranges of which no two touch, and descriptors
/// left over from merging. The caller owns them until it has the lock.
#[derive(Default)]
pub struct ReturnList {
    first: Option<AreaIndex>,
    last: Option<AreaIndex>,
    spare: Supply,
}

impl ReturnList {
    /// The ranges, as a list, and the descriptors left over.
    pub fn into_parts(self) -> (Option<AreaIndex>, Supply) {
        (self.first, self.spare)
    }

    /// Whether no area was added.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds an area that the caller owns, with nothing mapped in it, behind those added before.
    pub fn add(&mut self, directory: &Directory<'_>, area: AreaIndex) {
        let areas = directory.areas();
        vacate(directory, &areas[area]);
        let run = areas[area].run();
        match self.last {
            Some(last) if areas[last].end() == run.start => {
                areas[last].place(PageRange { start: areas[last].start(), end: run.end });
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
fn vacate(directory: &Directory<'_>, area: &Area) {
    // The word first: see the argument on readers in `area.rs`.
    area.set_word(area.word().plain(State::Vacant));
    directory.index().clear(area.run());
}

/// Makes a descriptor that the caller owns an area.
pub fn make_area(area: &Area, run: PageRange) {
    // The word first: see the argument on readers in `area.rs`.
    area.set_word(area.word().plain(State::Held));
    area.place(run);
    area.set_mapped(0);
}
