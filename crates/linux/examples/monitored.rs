//! A cache in a container: it never uses more than its share, gives pages up when the container
//! runs short of memory, and gives back what a peak leaves behind.
//!
//! `cargo run --release -p pagedepot-linux --example monitored`
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pagedepot_linux::pressure::{Monitor, Policy, Sources};
use pagedepot_linux::reclaim::{Ceiling, Pressure};
use pagedepot_linux::{Depot, Order, Page};

const MIB: usize = 1 << 20;

/// Pages that could be read again, the oldest first.
#[derive(Clone, Default)]
struct Cache(Arc<Mutex<VecDeque<Page>>>);

impl Cache {
    fn pages(&self) -> MutexGuard<'_, VecDeque<Page>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees up to `count` of the oldest pages; returns how many.
    fn evict(&self, count: usize) -> usize {
        let mut pages = self.pages();
        let count = count.min(pages.len());
        pages.drain(..count);
        count
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Addresses for 256 MiB, and 16 MiB of memory until the container says otherwise.
    let depot = Depot::builder(256 * MIB).ceiling(16 * MIB).build()?;
    let cache = Cache::default();
    let page_bytes = depot.page_size().bytes();

    // A request finds no page below the ceiling.
    let evicted = cache.clone();
    depot.on_pressure(move |pressure: Pressure| {
        evicted.evict(pressure.wanted_pages.max(64) as usize) as u64
    })?;
    // The container, or the system, runs short of memory.
    let evicted = cache.clone();
    let sources = Sources::find();
    println!("{sources:?}");
    let monitor = Monitor::builder(&depot)
        .sources(sources)
        // Shorter than usual, so that this example ends soon.
        .policy(Policy { idle_ms: 200, look_ms: 50, ..Policy::default() })
        .on_pressure(0, move |bytes| {
            (evicted.evict((bytes as usize).div_ceil(page_bytes)) * page_bytes) as u64
        })
        .start()?;

    // A peak: four times as much as the ceiling allows.
    for number in 0..64 * MIB / page_bytes {
        let mut page = depot.page(Order::BASE)?;
        page[0] = number as u8;
        cache.pages().push_back(page);
    }
    let cached = cache.pages().len() * page_bytes;
    println!("{} of {} MiB are cached", cached / MIB, Ceiling::of(&depot).bytes() / MIB);
    assert!(cached <= 16 * MIB);

    // The program needs a tenth of that, and rests.
    let cached_pages = cache.pages().len();
    cache.evict(cached_pages / 10 * 9);
    for _ in 0..100 {
        if monitor.counts().given_back_bytes > 8 << 20 {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let counts = monitor.counts();
    println!("{} MiB were given back at rest", counts.given_back_bytes >> 20);
    assert!(counts.given_back_bytes > 8 << 20, "{counts:?}");
    Ok(())
}
