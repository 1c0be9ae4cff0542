//! Spans of addresses that purged areas have flushed.

#![cfg(not(any(loom, shuttle)))]

use pagedepot::PageSize;

use super::*;
use crate::kind::Kind;
use crate::metadata::area::{Area, AreaIndex, Areas};
use crate::metadata::frames::FrameTable;
use crate::units::{VirtAddr, Vpn};

/// A tenfold of the pages between two areas exceeds 32 bits.
#[test]
fn areas_far_apart_are_flushed_one_by_one() {
    let areas: [Area; 3] = core::array::from_fn(|_| Area::new());
    for (area, start) in areas[1..].iter().zip([0, 1 << 29]) {
        area.set_word(area.word().held(Kind::Vmalloc));
        area.place(PageRange::new(Vpn(start), 2));
        area.set_mapped(2);
    }
    areas[1].set_next(AreaIndex::new(2));
    let frames = FrameTable { frames: &[], orders: &[] };
    let runs = MappedRuns::new(Areas(&areas), frames, AreaIndex::new(1));
    let (base, page_size) = (VirtAddr::new(1 << 30), PageSize::Kib4);
    let range = ManagedRange { base, pages: 1 << 30, page_size };
    let spans = [0, 1 << 29].map(|start| Span::new(range.addr(Vpn(start)), 2));
    assert!(FlushSpans::new(runs, &range).eq(spans));
}
