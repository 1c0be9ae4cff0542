//! The count of mappings while threads map and one unmaps, explored by loom on the real module.

use std::ops::Range;
use std::sync::Arc;

use crate::system::prim::Mutant;
use crate::vmalloc::pieces::Pieces;
use crate::{MUTANT, explore};

const PAGES: usize = 8;

/// Maps each of `maps` by a thread of its own, while the range `unmap`, one of `before`, is
/// unmapped. Then the count must be that of a kernel.
fn maps_beside_an_unmap(
    before: &'static [Range<usize>],
    maps: &'static [Range<usize>],
    unmap: Range<usize>,
) {
    explore(move || {
        let pieces = Arc::new(Pieces::new(PAGES).unwrap());
        let mut mappings: i64 =
            1 + before.iter().map(|run| i64::from(pieces.map(run.clone()))).sum::<i64>();
        let threads: Vec<_> = maps
            .iter()
            .map(|run| {
                let pieces = pieces.clone();
                loom::thread::spawn(move || i64::from(pieces.map(run.clone())))
            })
            .collect();
        mappings -= pieces.unmap(unmap.clone());
        mappings += threads.into_iter().map(|thread| thread.join().unwrap()).sum::<i64>();
        // The content of each page: the number of a piece, or the reservation.
        let mut pages = [0; PAGES];
        for (number, run) in (1..).zip(before.iter().chain(maps).filter(|&run| *run != unmap)) {
            pages[run.clone()].fill(number);
        }
        let expected = 1 + pages.windows(2).filter(|two| two[0] != two[1]).count() as i64;
        assert_eq!(mappings, expected, "mappings are miscounted");
        assert!((0..PAGES).all(|page| pieces.is_mapped(page) == (pages[page] != 0)));
    });
}

#[test]
fn one_maps_in_front_of_what_is_unmapped() {
    maps_beside_an_unmap(&[0..2, 4..6], &[2..4], 4..6);
}

#[test]
fn one_maps_behind_what_is_unmapped() {
    maps_beside_an_unmap(&[0..2, 6..8], &[2..5], 0..2);
}

#[test]
fn two_map_around_what_is_unmapped() {
    maps_beside_an_unmap(&[3..5], &[1..3, 5..7], 3..5);
}

#[test]
fn two_map_side_by_side() {
    maps_beside_an_unmap(&[6..7], &[0..2, 2..4], 6..7);
}

#[test]
#[should_panic(expected = "mappings are miscounted")]
fn one_who_looks_before_clearing_is_noticed() {
    MUTANT.set(Some(Mutant::LooksFirst));
    maps_beside_an_unmap(&[3..5], &[5..7], 3..5);
}
