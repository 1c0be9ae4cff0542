//! A block's bits: which of its pages were returned, and which are purged.
//!
//! # A block's pages
//! | returned | purged | |
//! |---|---|---|
//! | 0 | 0 | not handed out yet, or mapped |
//! | 1 | 0 | unmapped by its user, or never handed out: waits for a purge |
//! | 1 | 1 | purged |

use super::area::AreaIndex;
use super::ram::BLOCK_PAGES;
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};

/// Words of a block's bits.
const WORDS: usize = BLOCK_PAGES.div_ceil(64) as usize;
/// A block that somebody is making.
const RESERVED: u32 = u32::MAX;

/// A block of addresses for short-lived mappings.
#[repr(align(64))]
pub struct RamBlock {
    /// Its area's number; 0: the block is free.
    area: AtomicU32,
    returned: [AtomicU64; WORDS],
    /// For the holder of the purge lock.
    purged: [AtomicU64; WORDS],
    /// What the purge under way takes.
    purging: [AtomicU64; WORDS],
}

/// The bits of `pages` pages from `offset` in word `word`.
fn mask(word: usize, offset: u32, pages: u32) -> u64 {
    let (first, end) = (word as u32 * 64, word as u32 * 64 + 64);
    let (from, to) = (offset.clamp(first, end) - first, (offset + pages).clamp(first, end) - first);
    let below = |bit: u32| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

/// All bits of a block in word `word`.
fn full(word: usize) -> u64 {
    mask(word, 0, BLOCK_PAGES)
}

impl RamBlock {
    pub fn new() -> Self {
        let zeroes = || core::array::from_fn(|_| AtomicU64::new(0));
        RamBlock {
            area: AtomicU32::new(0),
            returned: zeroes(),
            purged: zeroes(),
            purging: zeroes(),
        }
    }

    /// Its area, if it is in use.
    pub fn area(&self) -> Option<AreaIndex> {
        // Acquire: pairs with the Release in `open`.
        AreaIndex::new(self.area.load(Ordering::Acquire)).filter(|area| area.get() != RESERVED)
    }

    /// Takes a free block; its bits are zero.
    pub fn claim(&self) -> bool {
        // Acquire: pairs with the Release in `unclaim`.
        self.area.compare_exchange(0, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Opens a block that the caller has claimed.
    pub fn open(&self, area: AreaIndex) {
        // Release: pairs with the Acquire in `area`: the area is complete.
        self.area.store(area.get(), Ordering::Release);
    }

    /// Frees a block that the caller has claimed, or of which all pages are purged.
    pub fn unclaim(&self) {
        for word in 0..WORDS {
            self.returned[word].store(0, Ordering::Relaxed);
            self.purged[word].store(0, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of the next claim.
        self.area.store(0, Ordering::Release);
    }

    /// Whether any of the pages has been returned.
    pub fn is_returned(&self, offset: u32, pages: u32) -> bool {
        (0..WORDS).any(|word| {
            self.returned[word].load(Ordering::Relaxed) & mask(word, offset, pages) != 0
        })
    }

    /// Returns pages; `false`: some had been returned before.
    pub fn give_back(&self, offset: u32, pages: u32) -> bool {
        let mut all_new = true;
        for word in 0..WORDS {
            let bits = mask(word, offset, pages);
            if bits != 0 {
                // Release: pairs with the Acquire in `collect`: the user is done with the pages.
                all_new &= self.returned[word].fetch_or(bits, Ordering::Release) & bits == 0;
            }
        }
        all_new
    }

    /// For the purger: takes what was returned and not purged. How many pages.
    pub fn collect(&self, only_if_all: bool) -> u32 {
        let returned: [u64; WORDS] =
            core::array::from_fn(|word| self.returned[word].load(Ordering::Acquire));
        if only_if_all && (0..WORDS).any(|word| returned[word] != full(word)) {
            return 0;
        }
        let mut pages = 0;
        for (word, returned) in returned.into_iter().enumerate() {
            let due = returned & !self.purged[word].load(Ordering::Relaxed);
            self.purging[word].store(due, Ordering::Relaxed);
            pages += due.count_ones();
        }
        pages
    }

    /// Whether the purge under way takes the page.
    pub fn is_purging(&self, offset: u32) -> bool {
        self.purging[offset as usize / 64].load(Ordering::Relaxed) >> (offset % 64) & 1 != 0
    }

    /// For the purger: what it took is purged. Returns the pages, and whether that was the last.
    pub fn settle(&self, is_stuck: bool) -> (u32, bool) {
        let (mut pages, mut all) = (0, true);
        for word in 0..WORDS {
            let due = self.purging[word].swap(0, Ordering::Relaxed);
            let before = self.purged[word].load(Ordering::Relaxed);
            let after = if is_stuck { before } else { before | due };
            self.purged[word].store(after, Ordering::Relaxed);
            pages += (after ^ before).count_ones();
            all &= after == full(word);
        }
        (pages, all)
    }

    /// Pages returned but not purged, for checks.
    pub fn waiting_pages(&self) -> u32 {
        let waits = |word: usize| {
            self.returned[word].load(Ordering::Relaxed) & !self.purged[word].load(Ordering::Relaxed)
        };
        (0..WORDS).map(|word| waits(word).count_ones()).sum()
    }
}
