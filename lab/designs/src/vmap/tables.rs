//! Page tables of the lowest level, as the kernel keeps them: made when first needed, never freed.

use super::run::Run;
use pagedepot_designs::prim::{AtomicU64, HintU64, Ordering, count};

/// The page tables that exist.
pub struct Tables {
    /// A bit per table.
    words: Box<[AtomicU64]>,
    table_pages: u32,
    /// Pages of the first table that lie before the range.
    skew: u32,
    populated: HintU64,
}

impl Tables {
    /// Tables for `pages` pages from `first_page`, counted from address 0.
    pub fn new(first_page: u64, pages: u32, table_pages: u32) -> Self {
        let skew = (first_page % u64::from(table_pages)) as u32;
        let tables = (u64::from(skew) + u64::from(pages)).div_ceil(u64::from(table_pages));
        let words = (0..tables.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Tables { words, table_pages, skew, populated: HintU64::new(0) }
    }

    /// Marks the tables of pages that are about to be mapped.
    pub fn enter(&self, run: Run) {
        if run.is_empty() {
            return;
        }
        let of = |page: u32| (u64::from(page) + u64::from(self.skew)) / u64::from(self.table_pages);
        for table in of(run.start)..=of(run.end - 1) {
            let (word, bit) = (&self.words[(table / 64) as usize], 1 << (table % 64));
            // Relaxed: only a count depends on it.
            if word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                count(&self.populated, 1);
            }
        }
    }

    /// The number of tables that exist.
    pub fn populated(&self) -> u64 {
        self.populated.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_lie_at_multiples_of_their_size_from_address_0() {
        let tables = Tables::new(8 + 5, 100, 8);
        tables.enter(Run::new(0, 3));
        assert_eq!(tables.populated(), 1);
        tables.enter(Run::new(2, 2));
        assert_eq!(tables.populated(), 2);
        tables.enter(Run::new(3, 8));
        assert_eq!(tables.populated(), 2);
        // Pages 103 and 104.
        tables.enter(Run::new(98, 2));
        assert_eq!(tables.populated(), 4);
        tables.enter(Run::new(50, 0));
        assert_eq!(tables.populated(), 4);
    }
}
