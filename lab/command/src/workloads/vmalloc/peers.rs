//! Crates that allocate ranges of numbers: they know no threads, so where several share one it is
//! behind a lock; alone it is taken once per window.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use range_alloc::RangeAllocator;

use pagedepot_cli::harness::{Contender, Seat, Subject, lock};
use pagedepot_cli::names::Design;

/// A crate's way to do a pair.
trait Ranges: Send {
    fn pair(&mut self, pages: u32);
}

impl Ranges for RangeAllocator<u32> {
    fn pair(&mut self, pages: u32) {
        let range = self.allocate_range(black_box(pages)).expect("one range fits");
        self.free_range(black_box(range));
    }
}

impl Ranges for offset_allocator::Allocator {
    fn pair(&mut self, pages: u32) {
        let allocation = self.allocate(black_box(pages)).expect("one range fits");
        self.free(black_box(allocation));
    }
}

struct Peer<R> {
    design: Design,
    ranges: Mutex<R>,
    pages: u32,
    is_shared: bool,
}

impl<R: Ranges> Contender<1> for Peer<R> {
    fn subject(&self) -> &dyn Subject {
        &self.design
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let lock = || lock(&self.ranges);
        let start = Instant::now();
        if self.is_shared {
            (0..units).for_each(|_| lock().pair(self.pages));
        } else {
            let mut ranges = lock();
            (0..units).for_each(|_| ranges.pair(self.pages));
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}

/// The contender for a peer's address part.
pub fn addresses(
    design: Design,
    pages: u32,
    range_pages: u32,
    is_shared: bool,
) -> Option<Box<dyn Contender<1>>> {
    match design {
        Design::RangeAlloc => {
            let ranges = Mutex::new(RangeAllocator::new(0..range_pages));
            Some(Box::new(Peer { design, ranges, pages, is_shared }))
        }
        Design::OffsetAllocator => {
            let ranges = Mutex::new(offset_allocator::Allocator::new(range_pages));
            Some(Box::new(Peer { design, ranges, pages, is_shared }))
        }
        _ => None,
    }
}
