//! Page tables: which are populated, and which thread may give one back.
//!
//! # The word of a table
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=15 | mapped | pages mapped through it, or about to be |
//! | 30 | populated | it exists: a page was mapped since it was last given back |
//! | 31 | locked | its purger is giving it back |
//!
//! Each transition is one atomic operation:
//!
//! | transition | word |
//! |---|---|
//! | enter | `n -> n + k, populated`, unless locked |
//! | leave | `n -> n - k` |
//! | lock | `0, populated -> 0, populated, locked` |
//! | release | `locked -> 0` |
//! | relock, after an unmap failed | `locked -> k, populated` |
//!
//! # Argument
//! A thread that maps enters first, and does not map while the table is locked. A purger locks only
//! a table with no page entered. So while a table is locked nothing is mapped through it, and no
//! thread is about to: the purger may unmap it whole, holes included, and free it. Only the holder
//! of the purge lock leaves, locks and releases.

use crate::model::{Mutant, leaves_out};
use crate::seams::host::Host;
use crate::units::{ManagedRange, PageRange, Vpn};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

const MAPPED: u32 = 0xffff;
const POPULATED: u32 = 1 << 30;
const LOCKED: u32 = 1 << 31;

/// All page tables of the lowest level in the range.
pub struct Tables<'m> {
    words: &'m [AtomicU32],
    /// Pages per table, a power of two.
    table_pages: u32,
    /// Number of pages between the start of the first table and that of the range. Tables begin at
    /// multiples of their size counted from address 0; the range need not.
    skew: u32,
    range_pages: u32,
    populated: AtomicU64,
    populated_max: AtomicU64,
    released: AtomicU64,
}

/// Numbers of page tables, for reports.
#[derive(Clone, Copy)]
pub struct TableCounts {
    /// Tables that exist.
    pub populated: u64,
    /// The highest value of `populated`.
    pub populated_max: u64,
    /// Tables given back so far.
    pub released: u64,
}

/// Number of a table, counted from the start of the range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TableIndex(pub u32);

impl<'m> Tables<'m> {
    /// Tables of `table_pages` pages each for a range, none populated: as many `words` as
    /// [`count`](Self::count) says.
    pub fn new(words: &'m [AtomicU32], range: &ManagedRange, table_pages: u32) -> Self {
        Tables {
            words,
            table_pages,
            skew: (range.base_page() % u64::from(table_pages)) as u32,
            range_pages: range.pages,
            populated: AtomicU64::new(0),
            populated_max: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }
    }

    /// Number of tables of a range.
    pub fn count(range: &ManagedRange, table_pages: u32) -> usize {
        let skew = range.base_page() % u64::from(table_pages);
        (skew + u64::from(range.pages)).div_ceil(u64::from(table_pages)) as usize
    }

    /// All tables.
    pub fn all(&self) -> impl Iterator<Item = TableIndex> + use<> {
        (0..self.words.len() as u32).map(TableIndex)
    }

    /// Numbers of tables.
    pub fn counts(&self) -> TableCounts {
        // Relaxed, all: statistics.
        TableCounts {
            populated: self.populated.load(Ordering::Relaxed),
            populated_max: self.populated_max.load(Ordering::Relaxed),
            released: self.released.load(Ordering::Relaxed),
        }
    }

    /// Sets the highest number of populated tables to the present number.
    pub fn reset_max(&self) {
        // Relaxed, both: statistics.
        self.populated_max.store(self.populated.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The table that maps a page.
    pub fn of(&self, page: Vpn) -> TableIndex {
        TableIndex(
            ((u64::from(page.0) + u64::from(self.skew)) / u64::from(self.table_pages)) as u32,
        )
    }

    /// The pages of a table that lie in the range.
    pub fn run(&self, table: TableIndex) -> PageRange {
        let start = u64::from(table.0) * u64::from(self.table_pages);
        let end = start + u64::from(self.table_pages);
        let from = |page: u64| {
            page.saturating_sub(u64::from(self.skew)).min(u64::from(self.range_pages)) as u32
        };
        PageRange { start: Vpn(from(start)), end: Vpn(from(end)) }
    }

    /// The tables that map `runs`, which ascend, each with the number of their pages in it.
    pub fn parts_of_all(
        &self,
        runs: impl Iterator<Item = PageRange>,
    ) -> impl Iterator<Item = (TableIndex, u32)> {
        let mut parts = runs.flat_map(|run| self.parts(run)).peekable();
        core::iter::from_fn(move || {
            let (table, mut pages) = parts.next()?;
            while let Some((_, more)) = parts.next_if(|next| next.0 == table) {
                pages += more;
            }
            Some((table, pages))
        })
    }

    /// The tables that map `run`, each with the number of pages of `run` in it. None for no pages.
    pub fn parts(&self, run: PageRange) -> impl Iterator<Item = (TableIndex, u32)> {
        let first = self.of(run.start).0;
        let end = if run.pages() == 0 { first } else { self.of(Vpn(run.end.0 - 1)).0 + 1 };
        (first..end).map(TableIndex).map(move |table| {
            let whole = self.run(table);
            (table, whole.end.min(run.end).since(whole.start.max(run.start)))
        })
    }

    /// Announces that `run` is about to be mapped. Waits for tables that a purge is giving back.
    /// `false`: a wait was needed and not allowed; nothing is entered then.
    pub fn enter<H: Host + ?Sized>(&self, host: &H, run: PageRange, may_wait: bool) -> bool {
        for (table, pages) in self.parts(run) {
            if !self.enter_one(host, table, pages, may_wait) {
                let entered = self.parts(run).take_while(|&(entered, _)| entered < table);
                self.leave_all(entered);
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
            if now & LOCKED != 0 && !leaves_out(Mutant::TableLock) {
                if !may_wait {
                    return false;
                }
                now = Self::wait_while_locked(host, word);
                continue;
            }
            let new = (now + pages) | POPULATED;
            // Acquire: pairs with the Release in `release`. What this thread maps from here on is
            // mapped after the table was unmapped and given back.
            match word.compare_exchange_weak(now, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        if now & POPULATED == 0 {
            // Relaxed, both: statistics.
            let populated = self.populated.fetch_add(1, Ordering::Relaxed) + 1;
            self.populated_max.fetch_max(populated, Ordering::Relaxed);
        }
        true
    }

    /// Waits for the purger that has locked a table; returns the table's word.
    #[cold]
    fn wait_while_locked<H: Host + ?Sized>(host: &H, word: &AtomicU32) -> u32 {
        host.contention_begins();
        // Relaxed: the compare-and-swap in `enter_one` orders.
        let mut now = word.load(Ordering::Relaxed);
        while now & LOCKED != 0 {
            host.wait(word, now);
            now = word.load(Ordering::Relaxed);
        }
        host.contention_ends();
        now
    }

    /// Takes back the announcement of pages that were not mapped.
    pub fn abandon(&self, run: PageRange) {
        self.leave_all(self.parts(run));
    }

    fn leave_all(&self, parts: impl Iterator<Item = (TableIndex, u32)>) {
        parts.for_each(|(table, pages)| self.leave_one(table, pages));
    }

    fn leave_one(&self, table: TableIndex, pages: u32) {
        // Relaxed: the purge lock, and the lock bit, order what depends on it.
        self.words[table.0 as usize].fetch_sub(pages, Ordering::Relaxed);
    }

    /// Announces that `runs`, which ascend, are about to be unmapped: one operation on each table,
    /// however many of them it maps. Locks tables through which nothing else is mapped; returns
    /// their number. For the purger.
    pub fn leave(&self, runs: impl Iterator<Item = PageRange>) -> u64 {
        let mut locked = 0;
        for (table, pages) in self.parts_of_all(runs) {
            self.leave_one(table, pages);
            locked += u64::from(self.try_lock_empty(table));
        }
        locked
    }

    /// Locks a populated table through which nothing is mapped, if the range covers all of it. For
    /// the purger.
    pub fn try_lock_empty(&self, table: TableIndex) -> bool {
        let word = &self.words[table.0 as usize];
        // Relaxed: a thread that enters either sees the table locked, or makes this fail. The
        // mappings that left are this purger's own.
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

    /// Whether all pages of a table lie in the range. Otherwise mappings outside share the table.
    fn is_whole(&self, table: TableIndex) -> bool {
        self.run(table).pages() == self.table_pages
    }

    /// Takes back a `leave` of `run`, which could not be unmapped. For the purger.
    pub fn reenter<H: Host + ?Sized>(&self, host: &H, run: PageRange) {
        for (table, pages) in self.parts(run) {
            let word = &self.words[table.0 as usize];
            if word.load(Ordering::Relaxed) & LOCKED == 0 {
                word.fetch_add(pages, Ordering::Relaxed);
            } else {
                // Only the purger changes a locked word. Release: as in `release`.
                word.store(POPULATED | pages, Ordering::Release);
                host.wake_all(word);
            }
        }
    }

    pub fn is_locked(&self, table: TableIndex) -> bool {
        self.words[table.0 as usize].load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Marks a locked table as given back. For the purger.
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
