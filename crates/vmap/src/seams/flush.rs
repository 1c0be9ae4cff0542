//! The spans that a flush needs.

use crate::metadata::batch::MappedRuns;
use crate::units::{ManagedRange, PageRange, Span};

/// The spans that a flush needs, in ascending order: what was mapped. Neighbours are joined where
/// that adds at most a tenth of their pages.
#[derive(Clone)]
pub struct FlushSpans<'a>(Spans<'a>);

#[derive(Clone)]
enum Spans<'a> {
    Batch { runs: MappedRuns<'a>, range: &'a ManagedRange, next: Option<PageRange> },
    One(Option<Span>),
}

impl<'a> FlushSpans<'a> {
    /// The spans of these runs.
    pub(crate) fn new(mut runs: MappedRuns<'a>, range: &'a ManagedRange) -> Self {
        let next = runs.next().map(|(_, run)| run);
        FlushSpans(Spans::Batch { runs, range, next })
    }

    /// One span: for using a [`Mapper`](crate::Mapper) without a [`Vmap`](crate::Vmap).
    pub const fn one(span: Span) -> Self {
        FlushSpans(Spans::One(Some(span)))
    }
}

impl Iterator for FlushSpans<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let (runs, range, next) = match &mut self.0 {
            Spans::Batch { runs, range, next } => (runs, range, next),
            Spans::One(span) => return span.take(),
        };
        let mut joined = (*next)?;
        let mut needed_pages = joined.pages();
        loop {
            *next = runs.next().map(|(_, run)| run);
            let Some(next) = *next else { break };
            let (all, needed) = (next.end.since(joined.start), needed_pages + next.pages());
            if u64::from(all - needed) * 10 > u64::from(needed) {
                break;
            }
            (joined.end, needed_pages) = (next.end, needed);
        }
        Some(range.span(joined))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
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
}
