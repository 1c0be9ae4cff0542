//! Boundaries between neighbouring areas that one thread owns.
//!
//! No page enters or leaves the free address space here, so these need no lock.

use crate::metadata::area::{AreaIndex, State};
use crate::metadata::directory::Directory;
use crate::space::transfer::make_area;
use crate::units::{PageRange, Vpn};

/// Cuts an area that the caller owns at `at`. The part behind becomes the area `rest`, a descriptor
/// of [`Spares::reserve`](crate::space::spares::Spares::reserve), which the caller owns, too.
pub fn split(directory: &Directory<'_>, area: AreaIndex, at: Vpn, rest: AreaIndex) {
    let (front, rest_area) = (directory.area(area), directory.area(rest));
    let run = front.run();
    let behind = PageRange { start: at, end: run.end };
    front.place(PageRange { start: run.start, end: at });
    make_area(rest_area, behind);
    directory.index().set(behind, rest);
    rest_area.set_traits(front.traits());
}

/// Makes two neighbours that the caller owns one again: the pages of `behind` become the end of
/// `area`. The caller then owns the descriptor `behind`, which covers nothing.
pub fn join(directory: &Directory<'_>, area: AreaIndex, behind: AreaIndex) {
    let (front, back) = (directory.area(area).run(), directory.area(behind).run());
    debug_assert!(front.end == back.start);
    let run = PageRange { start: front.start, end: back.end };
    directory.index().clear(back);
    directory.area(area).place(run);
    directory.index().set(run, area);
}

/// Moves the boundary between two neighbours that the caller owns: the first `pages` pages of
/// `behind`, which has more, become the end of `area`. The caller then sets the word of `behind`,
/// which is vacant.
pub fn shift(directory: &Directory<'_>, area: AreaIndex, behind: AreaIndex, pages: u32) {
    let (front, back) = (directory.area(area).run(), directory.area(behind).run());
    debug_assert!(front.end == back.start && pages < back.pages());
    let boundary = back.start.add(pages);
    // No reader may take a start and a size that do not belong together.
    let word = directory.area(behind).word();
    directory.area(behind).set_word(word.plain(State::Vacant));
    directory.index().clear(back);
    for (index, run) in [
        (area, PageRange { start: front.start, end: boundary }),
        (behind, PageRange { start: boundary, end: back.end }),
    ] {
        directory.area(index).place(run);
        directory.index().set(run, index);
    }
}
