//! A pool of buffers that heals: after a long life of many small buffers, a table of half the
//! pool in a row is wanted, and had.
//!
//! The buffers are [`Movable`]: while no reader or writer has one, compaction may copy it
//! elsewhere.
//!
//! `cargo run --release --example healing_pool`

use std::collections::HashMap;
use std::error::Error;

use pagedepot_linux::builder::default_page_size;
use pagedepot_linux::reclaim::Compaction;
use pagedepot_linux::{AllocError, Depot, Flags, Mode, Movable, Order, Scope};

/// Pages of the pool: 64 MiB where a page has 4 KiB.
const POOL_PAGES: usize = 32 * 512;
const TABLE_PAGES: u32 = POOL_PAGES as u32 / 2;
const BUFFERS: u64 = 4000;
const STEPS: u64 = 200_000;

/// Buffers of one page, by number.
struct Pool {
    depot: Depot,
    buffers: HashMap<u64, Movable>,
}

impl Pool {
    fn put(&mut self, number: u64) -> Result<(), AllocError> {
        let mut buffer = self.depot.movable(Order::BASE, Flags::default())?;
        buffer.write()[..8].copy_from_slice(&number.to_ne_bytes());
        self.buffers.insert(number, buffer);
        Ok(())
    }

    fn holds_its_number(&self, number: u64) -> bool {
        self.buffers[&number].read()[..8] == number.to_ne_bytes()
    }

    /// Free runs of 512 pages.
    fn whole_pageblocks(&self) -> Result<u64, Box<dyn Error>> {
        self.depot.drain(Scope::ALL, Mode::Full);
        Ok(self.depot.compact(Compaction::pageblocks(0))?.whole_pageblocks)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let page_bytes = default_page_size().bytes();
    let mut pool = Pool { depot: Depot::new(POOL_PAGES * page_bytes)?, buffers: HashMap::new() };
    // Filled once, so that its buffers lie everywhere; then most go, in no order, and others come.
    let all = POOL_PAGES as u64;
    let mut next = 0;
    while next < all && pool.put(next).is_ok() {
        next += 1;
    }
    let mut random = 1u64;
    for _ in 0..STEPS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        pool.buffers.remove(&((random >> 33) % next));
        if pool.buffers.len() < BUFFERS as usize {
            pool.put(next)?;
            next += 1;
        }
    }
    let free = POOL_PAGES - pool.buffers.len();
    println!(
        "{} buffers are in use, {} of {} MiB are free, {} of 32 pageblocks of {} MiB are whole.",
        pool.buffers.len(),
        (free * page_bytes) >> 20,
        (POOL_PAGES * page_bytes) >> 20,
        pool.whole_pageblocks()?,
        (512 * page_bytes) >> 20
    );

    let refused = pool.depot.pages(TABLE_PAGES, Flags::default());
    println!(
        "a table of {} MiB: {}",
        (TABLE_PAGES as usize * page_bytes) >> 20,
        refused.err().map_or("had".into(), |error| error.to_string())
    );
    let table = pool.depot.pages(TABLE_PAGES, Flags::default().compact())?;
    println!("the same, if buffers may be moved: {} MiB", table.len() >> 20);
    drop(table);

    let done = pool.depot.compact(Compaction::all())?;
    println!(
        "compacted: {} buffers moved, {} of 32 pageblocks whole.",
        done.moved_blocks, done.whole_pageblocks
    );
    assert!(pool.buffers.keys().all(|&number| pool.holds_its_number(number)));
    drop(pool.buffers);
    assert_eq!(pool.depot.validate()?.held_pages(), 0);
    Ok(())
}
