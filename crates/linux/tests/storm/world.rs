//! The state that all threads of a storm share besides the depot.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagedepot_linux::{Order, Pfn};

use crate::common::marks::Marks;
use crate::common::meetings::{LastUses, Meetings, Set};
use crate::common::usage::Usage;
use crate::common::{order, page_bytes};

pub struct World {
    pub marks: Marks,
    pub meetings: Meetings,
    pub usage: Usage,
    pub stop: AtomicBool,
    /// Held while a ceiling is set, and its pages are counted.
    pub ceilings: Mutex<()>,
    /// Movable blocks that were found elsewhere than they were allocated, by order.
    pub moved: [AtomicU64; 11],
    last: LastUses,
    serials: AtomicU64,
}

impl World {
    pub fn new(pages: u32) -> Self {
        World {
            marks: Marks::new(0, pages),
            meetings: Meetings::new(),
            usage: Usage::new(0),
            stop: AtomicBool::new(false),
            ceilings: Mutex::new(()),
            moved: [const { AtomicU64::new(0) }; 11],
            last: LastUses::new(0, pages),
            serials: AtomicU64::new(1),
        }
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Pages that stay where they are have got a holder.
    pub fn take(&self, start: Pfn, pages: u32, owner: u32, via: Set) {
        self.marks.take(start, pages, owner);
        self.note_via(start, pages, via);
    }

    /// The least order of which no block has been moved.
    pub fn unmoved(&self) -> Option<Order> {
        let is_unmoved = |order: &Order| self.moved[order.index()].load(Ordering::Relaxed) == 0;
        (0..=10).map(order).find(is_unmoved)
    }

    /// A movable block is about to be freed, or to stay where it is.
    pub fn note_place(&self, order: Order, has_moved: bool) {
        self.moved[order.index()].fetch_add(has_moved.into(), Ordering::Relaxed);
    }

    pub fn note_via(&self, start: Pfn, pages: u32, via: Set) {
        self.last.note(&self.meetings, start.get(), pages, via);
    }
}

fn value(serial: u64, page: usize) -> [u8; 8] {
    (serial << 20 | page as u64).to_ne_bytes()
}

/// Writes into the ends of each page.
pub fn write(bytes: &mut [u8], serial: u64) {
    for (number, page) in bytes.chunks_exact_mut(page_bytes()).enumerate() {
        page[..8].copy_from_slice(&value(serial, number));
        page[page_bytes() - 8..].copy_from_slice(&value(serial, number));
    }
}

/// Fails unless the pages are as [`write`] left them.
pub fn check(bytes: &[u8], serial: u64) {
    check_from(bytes, serial, 0);
}

/// Checks pages that begin at a later one of those written.
pub fn check_from(bytes: &[u8], serial: u64, first: usize) {
    for (number, page) in bytes.chunks_exact(page_bytes()).enumerate() {
        let expected = value(serial, first + number);
        assert!(
            page[..8] == expected && page[page_bytes() - 8..] == expected,
            "page {number} from {first} on of {serial}: other code wrote {:x?}",
            (&page[..8], &page[page_bytes() - 8..])
        );
    }
}
