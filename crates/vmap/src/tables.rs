//! Page tables: which are populated, and who may give one back.
//!
//! # The word of a table
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=15 | mapped | pages mapped through it, or about to be |
//! | 30 | populated | it exists: something was mapped since it was last given back |
//! | 31 | locked | its purger is giving it back |
//!
//! Transitions, each one atomic operation: enter `n -> n + k, populated` unless locked; leave
//! `n -> n - k`; lock `0, populated -> 0, populated, locked`; release `locked -> 0`; relock (an
//! unmap failed) `locked -> k, populated`.
//!
//! # Argument
//! Whoever maps enters first, and does not map while the table is locked. A purger locks only a
//! table with no page entered. So while it is locked nothing is mapped through it, and nothing is
//! going to be: the purger may unmap it whole, holes and all, and free it. Only the holder of the
//! purge lock leaves, locks and releases.

use super::seams::Host;
use super::units::{Run, Vpn};
use super::{Broken, broken};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

const MAPPED: u32 = 0xffff;
const POPULATED: u32 = 1 << 30;
const LOCKED: u32 = 1 << 31;

/// Words of all tables of the range.
pub struct Tables<'m> {
    pub words: &'m [AtomicU32],
    /// Pages per table, a power of two.
    pub table_pages: u32,
    /// Page number, in units of the range, of the first table's first page: tables lie at
    /// multiples of their size from address 0, which the range's start need not be.
    pub skew: u32,
    pub range_pages: u32,
    pub populated: AtomicU64,
    pub populated_max: AtomicU64,
    pub released: AtomicU64,
}

/// A table, by its number from the range's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TableIndex(pub u32);

impl Tables<'_> {
    /// How many tables a range needs.
    pub fn count(base_page: u64, pages: u32, table_pages: u32) -> usize {
        let skew = base_page % u64::from(table_pages);
        (skew + u64::from(pages)).div_ceil(u64::from(table_pages)) as usize
    }

    pub fn of(&self, page: Vpn) -> TableIndex {
        TableIndex(
            ((u64::from(page.0) + u64::from(self.skew)) / u64::from(self.table_pages)) as u32,
        )
    }

    /// The pages of a table that lie in the range.
    pub fn run(&self, table: TableIndex) -> Run {
        let start = u64::from(table.0) * u64::from(self.table_pages);
        let end = start + u64::from(self.table_pages);
        let from = |page: u64| {
            page.saturating_sub(u64::from(self.skew)).min(u64::from(self.range_pages)) as u32
        };
        Run { start: Vpn(from(start)), end: Vpn(from(end)) }
    }

    /// The tables of `run`, each with the pages of `run` in it.
    pub fn parts(&self, run: Run) -> impl Iterator<Item = (TableIndex, u32)> {
        let (first, last) = (self.of(run.start), self.of(Vpn(run.end.0 - 1)));
        (first.0..=last.0).map(TableIndex).map(move |table| {
            let whole = self.run(table);
            (table, whole.end.min(run.end).since(whole.start.max(run.start)))
        })
    }

    /// Announces that `run` is about to be mapped. Waits for tables that are being given back;
    /// `false` if `may_wait` does not allow it, and nothing is entered then.
    pub fn enter<H: Host + ?Sized>(&self, host: &H, run: Run, may_wait: bool) -> bool {
        for (table, pages) in self.parts(run) {
            if !self.enter_one(host, table, pages, may_wait) {
                self.parts(run)
                    .take_while(|&(entered, _)| entered < table)
                    .for_each(|(entered, pages)| self.leave_one(entered, pages));
                return false;
            }
        }
        true
    }

    fn enter_one<H: Host + ?Sized>(
        &self,
        host: &H,
        table: TableIndex,
        pages: u32,
        may_wait: bool,
    ) -> bool {
        let word = &self.words[table.0 as usize];
        let mut now = word.load(Ordering::Relaxed);
        loop {
            if now & LOCKED != 0 && !broken(Broken::TableLock) {
                if !may_wait {
                    return false;
                }
                now = Self::wait_while_locked(host, word);
                continue;
            }
            let new = (now + pages) | POPULATED;
            // Acquire: pairs with the Release in `release`: what is mapped now is mapped after
            // the table was unmapped and given back.
            match word.compare_exchange_weak(now, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        if now & POPULATED == 0 {
            let populated = self.populated.fetch_add(1, Ordering::Relaxed) + 1;
            self.populated_max.fetch_max(populated, Ordering::Relaxed);
        }
        true
    }

    /// Waits for the purger that holds a table; returns its word.
    #[cold]
    fn wait_while_locked<H: Host + ?Sized>(host: &H, word: &AtomicU32) -> u32 {
        host.contention_begins();
        // Relaxed: `enter_one` orders.
        let mut now = word.load(Ordering::Relaxed);
        while now & LOCKED != 0 {
            host.wait(word, now);
            now = word.load(Ordering::Relaxed);
        }
        host.contention_ends();
        now
    }

    fn leave_one(&self, table: TableIndex, pages: u32) {
        self.words[table.0 as usize].fetch_sub(pages, Ordering::Relaxed);
    }

    /// For the purger: `run` is about to be unmapped. Locks tables that are left with nothing.
    pub fn leave(&self, run: Run) {
        for (table, pages) in self.parts(run) {
            self.leave_one(table, pages);
            self.try_lock_empty(table);
        }
    }

    /// For the purger: locks a table through which nothing is mapped, if all of it is ours.
    pub fn try_lock_empty(&self, table: TableIndex) -> bool {
        let word = &self.words[table.0 as usize];
        // Relaxed: one who enters sees the table locked or is seen by this; the mappings that
        // left are this purger's own.
        self.is_whole(table)
            && word
                .compare_exchange(
                    POPULATED,
                    POPULATED | LOCKED,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Whether all pages of a table lie in the range; others share the table otherwise.
    fn is_whole(&self, table: TableIndex) -> bool {
        self.run(table).pages() == self.table_pages
    }

    /// For the purger: `run` could not be unmapped after all.
    pub fn reenter<H: Host + ?Sized>(&self, host: &H, run: Run) {
        for (table, pages) in self.parts(run) {
            let word = &self.words[table.0 as usize];
            if word.load(Ordering::Relaxed) & LOCKED == 0 {
                word.fetch_add(pages, Ordering::Relaxed);
            } else {
                // Nobody else changes a locked word.
                word.store(POPULATED | pages, Ordering::Release);
                host.wake_all(word);
            }
        }
    }

    pub fn is_locked(&self, table: TableIndex) -> bool {
        self.words[table.0 as usize].load(Ordering::Relaxed) & LOCKED != 0
    }

    /// For the purger: a locked table exists no more.
    pub fn release<H: Host + ?Sized>(&self, host: &H, table: TableIndex) {
        let word = &self.words[table.0 as usize];
        debug_assert_eq!(word.load(Ordering::Relaxed), POPULATED | LOCKED);
        self.populated.fetch_sub(1, Ordering::Relaxed);
        self.released.fetch_add(1, Ordering::Relaxed);
        // Release: pairs with the Acquire in `enter_one`.
        word.store(0, Ordering::Release);
        host.wake_all(word);
    }

    /// Pages entered, and whether the table is populated.
    pub fn read(&self, table: TableIndex) -> (u32, bool) {
        let word = self.words[table.0 as usize].load(Ordering::Relaxed);
        (word & MAPPED, word & POPULATED != 0)
    }
}
