//! Measures what it costs to know which lines hold the memory: a page allocated and freed again and
//! again, in nanoseconds a pair. Run it with the feature and without.
//!
//! `cargo run --release -p pagedepot-linux --example call_sites --features allocinfo [PAIRS]`
//! `cargo run --release -p pagedepot-linux --example call_sites [PAIRS]`

use std::hint::black_box;
use std::time::Instant;

use pagedepot_linux::{Depot, Flags, Order, Page};

const PAIRS_DEFAULT: u32 = 2_000_000;
/// Number of windows, of which the median is printed.
const WINDOWS: usize = 31;

/// The median of some windows, in nanoseconds a pair.
fn measure(pairs: u32, mut pair: impl FnMut()) -> f64 {
    let window = |_| {
        let begin = Instant::now();
        (0..pairs).for_each(|_| pair());
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(pairs)
    };
    let mut windows: Vec<f64> = (0..WINDOWS).map(window).collect();
    windows.sort_by(f64::total_cmp);
    windows[WINDOWS / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs = std::env::args().nth(1).map_or(Ok(PAIRS_DEFAULT), |pairs| pairs.parse())?;
    let pairs = (pairs / WINDOWS as u32).max(1);
    let depot = Depot::new(64 << 20)?;
    let owned = measure(pairs, || drop(black_box(depot.page(Order::BASE).expect("it is empty"))));
    let raw = depot.raw();
    let numbers = measure(pairs, || {
        let pfn = raw.alloc(Order::BASE, Flags::default()).expect("it is empty");
        // SAFETY: allocated above with this order, and not used.
        unsafe { raw.free(black_box(pfn), Order::BASE) }.expect("it is held");
    });
    let index: Vec<Page> = depot.alloc_pages(Order::BASE, 100)?.collect();
    let cache = [depot.page(Order::PAGEBLOCK)?, depot.page(Order::PAGEBLOCK)?];
    println!("a page that frees itself: {owned:.2} ns a pair; a page number: {numbers:.2}");
    #[cfg(feature = "allocinfo")]
    print!("{}", pagedepot_linux::allocinfo::AllocInfo::of(&depot));
    drop((index, cache));
    Ok(())
}
