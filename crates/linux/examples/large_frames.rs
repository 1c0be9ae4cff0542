//! A pool of frames of 64 KiB: as pages of that size, beside blocks of sixteen pages of 4 KiB. Says
//! what a frame costs, what the depot needs for itself, and in what steps a ceiling can be set.
//!
//! `cargo run --release -p pagedepot-linux --example large_frames`
#![forbid(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use pagedepot_linux::reclaim::Ceiling;
use pagedepot_linux::{AllocError, Depot, Order, Page, PageSize};

const MIB: usize = 1 << 20;
const FRAME_BYTES: usize = 64 << 10;
const POOL_BYTES: usize = 256 * MIB;
/// Frames that a query takes and gives back together.
const QUERY_FRAMES: usize = 64;
const ROUNDS: usize = 15;

/// Frames of one size, whatever the size of a page.
struct FramePool {
    depot: Depot,
    order: Order,
}

impl FramePool {
    fn new(page_size: PageSize, bytes: usize) -> Result<Self, Box<dyn Error>> {
        let depot = Depot::builder(bytes).page_size(page_size).build()?;
        let order = Order::for_bytes(FRAME_BYTES, page_size).ok_or("a frame is too large")?;
        Ok(FramePool { depot, order })
    }

    fn take(&self) -> Result<Page, AllocError> {
        self.depot.page(self.order)
    }

    /// Nanoseconds for a frame that is taken and given back, `together` at a time: the median.
    fn nanoseconds(&self, together: usize, pairs: usize) -> Result<f64, AllocError> {
        let mut held = Vec::with_capacity(together);
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..pairs / together {
                for _ in 0..together {
                    held.push(self.take()?);
                }
                black_box(&held);
                held.clear();
            }
            rounds.push(start.elapsed().as_nanos() as f64 / pairs as f64);
        }
        rounds.sort_by(f64::total_cmp);
        Ok(rounds[ROUNDS / 2])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let pairs = std::env::args().nth(1).map_or(Ok(1 << 18), |count| count.parse())?;
    println!("a frame of 64 KiB, taken and given back; a depot of {} MiB", POOL_BYTES / MIB);
    println!("pages    one by one  {QUERY_FRAMES} together  metadata  least ceiling");
    for page_size in [PageSize::Kib4, PageSize::Kib64] {
        let pool = match FramePool::new(page_size, POOL_BYTES) {
            Ok(pool) => pool,
            // A system with pages of 64 KiB has no smaller ones.
            Err(error) => {
                println!("{:>3} KiB  {error}", page_size.bytes() >> 10);
                continue;
            }
        };
        let one = pool.nanoseconds(1, pairs)?;
        let many = pool.nanoseconds(QUERY_FRAMES, pairs)?;
        // A ceiling is set in whole pageblocks: 512 pages.
        let least = 512 * page_size.bytes();
        println!(
            "{:>3} KiB  {one:>7.1} ns  {many:>8.1} ns  {:>4} KiB  {:>7} MiB",
            page_size.bytes() >> 10,
            pool.depot.metadata_use().total() >> 10,
            Ceiling::of(&pool.depot).set(least)? / MIB,
        );
        // All frames below the ceiling can be had, each whole and aligned to its size.
        let mut frames: Vec<Page> = std::iter::from_fn(|| pool.take().ok()).collect();
        assert_eq!(frames.len(), least / FRAME_BYTES);
        for frame in &mut frames {
            assert_eq!((frame.len(), frame.as_ptr().addr() % FRAME_BYTES), (FRAME_BYTES, 0));
            frame[0] = 1;
        }
    }
    Ok(())
}
