//! Counts the mappings that the kernel needs for a range: keeps which pages are mapped, and at
//! which pages a mapping begins.
//!
//! A mapping begins at the range's start, at each piece that was mapped by one call, and behind it.
//! (The kernel also joins neighbours that are adjacent in the file. So it may need fewer mappings
//! than are counted here, but never more.)
//!
//! # Argument
//! Many threads may map at once; only one unmaps (the purger). The bits of a page belong to its
//! owner. Two threads share only whether a mapping begins between their pages. A thread that maps
//! sets `mapped` for its last page, then the beginning behind that page. A thread that unmaps
//! clears the beginning, then reads `mapped` of the page before it, and sets the beginning again if
//! that page is mapped. Both change the same word of beginnings, by read-modify-writes that acquire
//! and release. If the setting comes before the clearing there, the clearing sees all that came
//! before it, so the read finds the page mapped. Else the setting comes after the clearing, and
//! stays. The thread that changes a bit counts the change. Explored by `tests/loom/mappings.rs`.

use std::ops::Range;

use rustix::io::Errno;

use crate::system::bits::Bits;
use crate::system::prim::{Mutant, is_mutant};

/// The mapped pieces of a range.
pub(crate) struct Pieces {
    pages: usize,
    mapped: Bits,
    /// Pages where a mapping begins, but for page 0, where one always does.
    begins: Bits,
}

impl Pieces {
    pub fn new(pages: usize) -> Result<Self, Errno> {
        Ok(Pieces { pages, mapped: Bits::new(pages)?, begins: Bits::new(pages)? })
    }

    /// Notes that pages were mapped as one piece. Returns how many mappings that adds, at most 2.
    pub fn map(&self, run: Range<usize>) -> u32 {
        self.mapped.set(run.clone());
        self.begin(run.start) + self.begin(run.end)
    }

    /// Notes that pages were unmapped. Returns how many mappings that removes. Cutting a hole into
    /// a piece leaves two, so the result may be negative.
    pub fn unmap(&self, run: Range<usize>) -> i64 {
        self.mapped.clear(run.clone());
        let cleared = self.begins.clear(run.start.max(1)..run.end.max(1));
        let mut begun = 0;
        if run.start > 0 && self.mapped.get(run.start - 1) {
            begun += self.begin(run.start);
        }
        if run.end < self.pages {
            let looked = is_mutant(Mutant::LooksFirst).then(|| self.mapped.get(run.end));
            let ended = self.begins.clear(run.end..run.end + 1);
            let is_mapped = looked.unwrap_or_else(|| self.mapped.get(run.end));
            let begun_behind = if is_mapped { self.begin(run.end) } else { 0 };
            return i64::from(cleared) + i64::from(ended)
                - i64::from(begun)
                - i64::from(begun_behind);
        }
        i64::from(cleared) - i64::from(begun)
    }

    fn begin(&self, page: usize) -> u32 {
        if (1..self.pages).contains(&page) { self.begins.set(page..page + 1) } else { 0 }
    }

    /// Whether a page is mapped.
    pub fn is_mapped(&self, page: usize) -> bool {
        self.mapped.get(page)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::rng::{self, Rng};

    const PAGES: usize = 200;

    /// Counts as the kernel would: 0 is not mapped, other numbers are pieces.
    fn count(pages: &[u32; PAGES]) -> i64 {
        1 + pages.windows(2).filter(|pair| pair[0] != pair[1]).count() as i64
    }

    #[test]
    fn the_first_page_alone() {
        let pieces = Pieces::new(PAGES).unwrap();
        assert_eq!(pieces.map(0..1), 1);
        assert_eq!(pieces.map(1..3), 1);
        assert_eq!(pieces.unmap(0..1), 0);
        assert_eq!(pieces.unmap(1..3), 2);
    }

    #[test]
    fn counts_what_the_kernel_would() {
        let mut random = Rng::new(rng::seed("pieces"));
        for _ in 0..if cfg!(miri) { 4 } else { 300 } {
            follows_a_model(&mut random);
        }
    }

    /// Up to 60 random runs, each of which is mapped or unmapped.
    fn follows_a_model(random: &mut Rng) {
        let pieces = Pieces::new(PAGES).unwrap();
        let mut model = [0; PAGES];
        let mut mappings = 1;
        for number in 1..1 + random.below(60) as u32 {
            let start = random.index(PAGES);
            let run = start..(start + 1 + random.index(99)).min(PAGES);
            let maps = random.one_in(2);
            if maps && model[run.clone()].iter().all(|&page| page == 0) {
                model[run.clone()].fill(number);
                mappings += i64::from(pieces.map(run));
            } else if !maps {
                model[run.clone()].fill(0);
                mappings -= pieces.unmap(run);
            }
            // A hole cut into a piece leaves two, which the model cannot tell apart otherwise.
            assert_eq!(mappings, count(&model));
            for (page, &piece) in model.iter().enumerate() {
                assert_eq!(pieces.is_mapped(page), piece != 0);
            }
        }
    }
}
