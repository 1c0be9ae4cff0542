//! Pages that trims leave alone.
//!
//! A trim takes the memory of free pages away; the next touch of a page finds another one there.
//! That goes unnoticed by everything that reaches the page through its address or its place in the
//! memory file, and is wrong for what holds on to the page itself: a buffer registered with
//! io_uring, a DMA mapping of VFIO, a memory region of RDMA. Such a long-term pin keeps the old
//! page, which the depot maps no more, and device and program then see different bytes.
//!
//! # Theory
//! A trim has the lock from before it looks for free pages of a chunk until it has given the
//! chunk's memory back. So after a range was marked, no trim takes memory from it; before, nothing
//! is registered yet.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use pagedepot::Pfn;

use crate::error::BuildError;

/// How often each page is pinned.
#[derive(Default)]
pub(crate) struct Pins {
    /// From this page up to the next key: so often. Before the first key: never.
    counts: BTreeMap<u64, u32>,
}

impl Pins {
    /// Whether a page is pinned.
    pub fn contains(&self, page: Pfn) -> bool {
        self.count_at(u64::from(page.get())) > 0
    }

    fn count_at(&self, page: u64) -> u32 {
        self.counts.range(..=page).next_back().map_or(0, |(_, &count)| count)
    }

    /// Pins the pages once more, or, with an error, none of them.
    pub fn add(&mut self, pages: Range<u64>) -> Result<(), PinError> {
        self.change(pages, |count| count.checked_add(1).ok_or(PinError::TooMany))
    }

    /// Takes one pin of each page away, or, with an error, of none.
    pub fn remove(&mut self, pages: Range<u64>) -> Result<(), PinError> {
        self.change(pages, |count| count.checked_sub(1).ok_or(PinError::NotPinned))
    }

    fn change(
        &mut self,
        pages: Range<u64>,
        new: impl Fn(u32) -> Result<u32, PinError>,
    ) -> Result<(), PinError> {
        let inside = self.counts.range(pages.clone()).map(|(_, &count)| count);
        inside.chain([self.count_at(pages.start)]).try_for_each(|count| new(count).map(|_| ()))?;
        for end in [pages.start, pages.end] {
            let count = self.count_at(end);
            self.counts.entry(end).or_insert(count);
        }
        for (_, count) in self.counts.range_mut(pages.clone()) {
            *count = new(*count)?;
        }
        // Neighbours inside still differ; those at the ends may not.
        for end in [pages.start, pages.end] {
            let before = end.checked_sub(1).map_or(0, |page| self.count_at(page));
            if self.counts.get(&end) == Some(&before) {
                self.counts.remove(&end);
            }
        }
        Ok(())
    }
}

/// Why pages were not pinned or unpinned. Nothing is changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinError {
    /// No pages, or some that the depot does not have.
    BadRange {
        /// The first page.
        start: Pfn,
        /// How many pages.
        count: u32,
    },
    /// Some of the pages are not pinned.
    NotPinned,
    /// Some of the pages are pinned 2^32 - 1 times.
    TooMany,
    /// This is a child of the process that made the depot.
    Forked,
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::BadRange { start, count } => {
                write!(
                    f,
                    "{count} pages from {start:?} on: name at least one, and only pages of the depot"
                )
            }
            PinError::NotPinned => {
                f.write_str("not all of these pages are pinned: unpin what was pinned, once")
            }
            PinError::TooMany => {
                f.write_str("pinned 2^32 - 1 times: unpin what is no longer registered")
            }
            PinError::Forked => BuildError::Forked.fmt(f),
        }
    }
}

impl std::error::Error for PinError {}

impl From<PinError> for std::io::Error {
    fn from(error: PinError) -> Self {
        let kind = match error {
            PinError::BadRange { .. } | PinError::NotPinned => std::io::ErrorKind::InvalidInput,
            PinError::TooMany => std::io::ErrorKind::QuotaExceeded,
            PinError::Forked => std::io::ErrorKind::Unsupported,
        };
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    //! A naive model counts each page's pins.

    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 24;

    proptest! {
        #[test]
        fn agrees_with_a_model(steps in proptest::collection::vec((any::<bool>(), 0..PAGES, 1..PAGES), 0..60)) {
            let (mut pins, mut model) = (Pins::default(), [0u32; PAGES]);
            for (adds, start, pages) in steps {
                let run = start..(start + pages).min(PAGES);
                let pages = run.start as u64..run.end as u64;
                if adds {
                    prop_assert_eq!(pins.add(pages), Ok(()));
                    model[run].iter_mut().for_each(|count| *count += 1);
                } else if model[run.clone()].contains(&0) {
                    prop_assert_eq!(pins.remove(pages), Err(PinError::NotPinned));
                } else {
                    prop_assert_eq!(pins.remove(pages), Ok(()));
                    model[run].iter_mut().for_each(|count| *count -= 1);
                }
                for (page, &count) in model.iter().enumerate() {
                    prop_assert_eq!(pins.count_at(page as u64), count);
                    prop_assert_eq!(pins.contains(Pfn::new(page as u32)), count > 0);
                }
                let changes = model.iter().zip(&model[1..]).filter(|(a, b)| a != b).count();
                let ends = usize::from(model[0] > 0) + usize::from(model[PAGES - 1] > 0);
                prop_assert_eq!(pins.counts.len(), changes + ends, "no boundary without a change");
            }
        }
    }
}
