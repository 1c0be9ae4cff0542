//! Pages that trims leave alone.
//!
//! A trim drops the memory of free pages, and the next touch of a page finds another page there.
//! Code that reaches the page through its address or its place in the memory file does not notice.
//! But a long-term pin keeps the old page: a buffer registered with io_uring, a DMA mapping of
//! VFIO, a memory region of RDMA. The depot no longer maps that page, so the device and the program
//! see different bytes.
//!
//! # Argument
//! A trim holds the lock from before it looks for free pages of a chunk until it has dropped the
//! chunk's memory. So no trim takes memory from a range after the range was pinned. Before that, no
//! device has the range.
//!
//! Compaction takes no lock: it may run in a signal handler above a thread that has this one. It
//! reads a bit for each page, which says whether the page has pins, once it has taken the place of
//! a movable block (`movable_table`, invariant 7).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pagedepot::{FrameRange, Pfn};

use crate::error::BuildError;
use crate::system::bits::Bits;
use crate::system::sync::LockError;

/// Number of pins of each page.
pub(crate) struct Pins {
    /// Each key begins a run of pages with this many pins, which ends at the next key. Pages before
    /// the first key have none.
    counts: BTreeMap<u64, u32>,
    /// Whether each page has any.
    pinned: Arc<Bits>,
}

impl Pins {
    /// Makes the pins of no page; each page's bit in `pinned` follows its pins.
    pub fn new(pinned: Arc<Bits>) -> Self {
        Pins { counts: BTreeMap::new(), pinned }
    }

    /// Whether a page is pinned.
    pub fn contains(&self, page: Pfn) -> bool {
        // Mostly there are none, and a trim asks about each page.
        !self.counts.is_empty() && self.count_at(u64::from(page.get())) > 0
    }

    /// Whether some page of a run is pinned.
    pub fn has_any(&self, run: FrameRange) -> bool {
        let start = u64::from(run.start.get());
        let mut inside = self.counts.range(start..run.end()).map(|(_, &count)| count);
        self.count_at(start) > 0 || inside.any(|count| count > 0)
    }

    /// Number of pinned pages.
    pub fn pages(&self) -> u64 {
        self.runs().map(|run| run.end - run.start).sum()
    }

    /// Runs of pinned pages in ascending order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let runs = self.counts.iter().zip(self.counts.keys().skip(1));
        runs.filter(|((_, count), _)| **count > 0).map(|((&start, _), &end)| start..end)
    }

    fn count_at(&self, page: u64) -> u32 {
        self.counts.range(..=page).next_back().map_or(0, |(_, &count)| count)
    }

    /// Pins the pages once more. On an error no page is pinned.
    pub fn add(&mut self, pages: Range<u64>) -> Result<(), PinError> {
        self.change(pages.clone(), |count| count.checked_add(1).ok_or(PinError::TooMany))?;
        self.pinned.set(pages.start as usize..pages.end as usize);
        Ok(())
    }

    /// Removes one pin from each page. On an error none is removed.
    pub fn remove(&mut self, pages: Range<u64>) -> Result<(), PinError> {
        self.change(pages.clone(), |count| count.checked_sub(1).ok_or(PinError::NotPinned))?;
        let mut start = pages.start;
        while start < pages.end {
            let behind = self.counts.range(start + 1..pages.end).next();
            let end = behind.map_or(pages.end, |(&next, _)| next);
            if self.count_at(start) == 0 {
                self.pinned.clear(start as usize..end as usize);
            }
            start = end;
        }
        Ok(())
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
        // Inside the range, neighbouring runs still differ. Those at its ends may have become
        // equal.
        for end in [pages.start, pages.end] {
            let before = end.checked_sub(1).map_or(0, |page| self.count_at(page));
            if self.counts.get(&end) == Some(&before) {
                self.counts.remove(&end);
            }
        }
        Ok(())
    }
}

/// The reason why pages were not pinned or unpinned. After an error nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinError {
    /// The range is empty, or contains pages that the depot does not have.
    BadRange {
        /// The first page.
        start: Pfn,
        /// Number of pages.
        count: u32,
    },
    /// A page of the range is not pinned.
    NotPinned,
    /// A page of the range is pinned 2^32 - 1 times.
    TooMany,
    /// This process is a forked child of the one that made the depot.
    Forked,
    /// The calling thread is pinning or giving back memory: this call was made by a signal handler.
    Reentrant,
}

impl From<LockError> for PinError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Forked => PinError::Forked,
            LockError::Reentrant => PinError::Reentrant,
        }
    }
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::BadRange { start, count } => {
                write!(
                    f,
                    "{count} pages from {start:?} on: name at least one, and only pages of the \
                     depot"
                )
            }
            PinError::NotPinned => {
                f.write_str("not all of these pages are pinned: unpin what was pinned, once")
            }
            PinError::TooMany => {
                f.write_str("pinned 2^32 - 1 times: unpin what is no longer registered")
            }
            PinError::Forked => BuildError::Forked.fmt(f),
            PinError::Reentrant => BuildError::Reentrant.fmt(f),
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
            PinError::Reentrant => std::io::ErrorKind::Deadlock,
        };
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    //! A naive model counts each page's pins.

    use super::*;
    use crate::rng::{self, Rng};

    const PAGES: usize = 24;

    #[test]
    fn agrees_with_a_model() {
        let mut random = Rng::new(rng::seed("pins"));
        for _ in 0..if cfg!(miri) { 4 } else { 300 } {
            follows_a_model(&mut random);
        }
    }

    /// Up to 60 pins and unpins of random runs of pages.
    fn follows_a_model(random: &mut Rng) {
        let pinned = Arc::new(Bits::new(PAGES).unwrap());
        let (mut pins, mut model) = (Pins::new(pinned.clone()), [0u32; PAGES]);
        for _ in 0..random.below(60) {
            let start = random.index(PAGES);
            let run = start..(start + 1 + random.index(PAGES - 1)).min(PAGES);
            let pages = run.start as u64..run.end as u64;
            let frames = FrameRange::new(Pfn::new(run.start as u32), run.len() as u32);
            assert_eq!(pins.has_any(frames), model[run.clone()].iter().any(|&count| count > 0));
            if random.one_in(2) {
                assert_eq!(pins.add(pages), Ok(()));
                model[run].iter_mut().for_each(|count| *count += 1);
            } else if model[run.clone()].contains(&0) {
                assert_eq!(pins.remove(pages), Err(PinError::NotPinned));
            } else {
                assert_eq!(pins.remove(pages), Ok(()));
                model[run].iter_mut().for_each(|count| *count -= 1);
            }
            for (page, &count) in model.iter().enumerate() {
                assert_eq!(pins.count_at(page as u64), count);
                assert_eq!(pins.contains(Pfn::new(page as u32)), count > 0);
                assert_eq!(pinned.get(page), count > 0);
            }
            let pinned = model.iter().filter(|&&count| count > 0).count();
            assert_eq!(pins.pages(), pinned as u64);
            let changes = model.iter().zip(&model[1..]).filter(|(a, b)| a != b).count();
            let ends = usize::from(model[0] > 0) + usize::from(model[PAGES - 1] > 0);
            assert_eq!(pins.counts.len(), changes + ends, "no boundary without a change");
        }
    }
}
