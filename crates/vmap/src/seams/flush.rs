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

#[cfg(test)]
mod tests;
