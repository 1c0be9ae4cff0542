//! A storage engine's buffer pool: blocks of a file, read past the system's cache into pages of a
//! memfd. Threads share it. CLOCK evicts blocks when pages run short; the pool gives its memory
//! back to the system when it is idle.
//!
//! `cargo run --release -p pagedepot-linux --example buffer_pool`
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pagedepot_linux::{Depot, MemoryKind, Mode, Order, Page, Scope};

/// 16 KiB: four pages of 4 KiB, aligned to their size, as direct I/O wants them; a part of one page
/// where pages are larger.
const BLOCK_BYTES: usize = 16 << 10;
const FILE_BLOCKS: u64 = 4096;
const THREADS: u64 = 4;
const READS_PER_THREAD: u64 = 10_000;
/// Evicted at a time at least, so that not every miss evicts.
const EVICTED_BLOCKS_MIN: usize = 32;

/// A block of the file in memory. While a reader has a reference, it is not evicted.
struct Block {
    page: Page,
    /// Whether it was read since the hand last passed.
    is_referenced: AtomicBool,
}

impl Block {
    /// The number that each block of the file begins with.
    fn number(&self) -> u64 {
        u64::from_ne_bytes(*self.page.first_chunk().expect("a block is longer"))
    }
}

/// The blocks in memory, and CLOCK's hand over them.
#[derive(Default)]
struct Clock {
    places: HashMap<u64, usize>,
    blocks: Vec<(u64, Arc<Block>)>,
    hand: usize,
}

impl Clock {
    fn get(&self, number: u64) -> Option<Arc<Block>> {
        let block = &self.blocks[*self.places.get(&number)?].1;
        // Relaxed: a hint to the hand.
        block.is_referenced.store(true, Ordering::Relaxed);
        Some(block.clone())
    }

    /// Adds a block that has just been read; if another thread was faster, its block stays.
    fn insert(&mut self, number: u64, block: Arc<Block>) -> Arc<Block> {
        if let Some(first) = self.get(number) {
            return first;
        }
        self.places.insert(number, self.blocks.len());
        self.blocks.push((number, block.clone()));
        block
    }

    /// Evicts up to `count` blocks that no reader has and that were not read since the hand last
    /// passed. After two turns it gives up.
    fn evict(&mut self, count: usize) -> usize {
        let (mut evicted, mut steps) = (0, 2 * self.blocks.len());
        while evicted < count && steps > 0 && !self.blocks.is_empty() {
            steps -= 1;
            self.hand %= self.blocks.len();
            let block = &self.blocks[self.hand].1;
            let is_kept =
                block.is_referenced.swap(false, Ordering::Relaxed) || Arc::strong_count(block) > 1;
            if is_kept {
                self.hand += 1;
                continue;
            }
            // Its page frees itself. The last block takes its place, and the hand looks at that
            // one.
            let (number, _) = self.blocks.swap_remove(self.hand);
            self.places.remove(&number);
            if let Some((moved, _)) = self.blocks.get(self.hand) {
                self.places.insert(*moved, self.hand);
            }
            evicted += 1;
        }
        evicted
    }
}

/// The pool: what threads share by reference.
struct Pool {
    depot: Depot,
    /// Order of the pages that hold a block.
    order: Order,
    file: File,
    clock: Arc<Mutex<Clock>>,
    evicted: Arc<AtomicU64>,
}

impl Pool {
    fn new(bytes: usize, file: File) -> Result<Self, Box<dyn Error>> {
        let depot = Depot::builder(bytes).memory(MemoryKind::Memfd).build()?;
        let order = Order::for_bytes(BLOCK_BYTES, depot.page_size()).expect("at most 4 MiB");
        let (clock, evicted) = (Arc::<Mutex<Clock>>::default(), Arc::<AtomicU64>::default());
        // The callback may own the pages: it is dropped with the last handle of the depot.
        let (given, counted) = (clock.clone(), evicted.clone());
        depot.on_pressure(move |pressure| {
            let frames = u64::from(order.frames());
            let wanted = pressure.wanted_pages.div_ceil(frames) as usize;
            let blocks = lock(&given).evict(wanted.max(EVICTED_BLOCKS_MIN)) as u64;
            counted.fetch_add(blocks, Ordering::Relaxed);
            blocks * frames
        })?;
        Ok(Pool { depot, order, file, clock, evicted })
    }

    /// A block, and whether it was in memory.
    fn read(&self, number: u64) -> io::Result<(Arc<Block>, bool)> {
        if let Some(block) = lock(&self.clock).get(number) {
            return Ok((block, true));
        }
        // Not under the lock: when pages run short, the callback takes it.
        let mut page = self.depot.page(self.order)?;
        self.file.read_exact_at(&mut page[..BLOCK_BYTES], number * BLOCK_BYTES as u64)?;
        let block = Arc::new(Block { page, is_referenced: AtomicBool::new(true) });
        Ok((lock(&self.clock).insert(number, block), false))
    }
}

fn lock(clock: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("pagedepot-buffer-pool-{}", std::process::id()));
    let run = file_of_numbers(&path).map_err(Into::into).and_then(run);
    std::fs::remove_file(&path)?;
    run
}

fn run(file: File) -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(16 << 20, file)?;
    println!(
        "{THREADS} threads read blocks of a file of {} MiB through a pool of 16 MiB; eight of ten \
         reads go to a tenth of the file.",
        (FILE_BLOCKS * BLOCK_BYTES as u64) >> 20
    );
    let hits = thread::scope(|scope| -> io::Result<u64> {
        let pool = &pool;
        let readers: Vec<_> =
            (1..=THREADS).map(|seed| scope.spawn(move || read_all(pool, seed))).collect();
        readers.into_iter().map(|reader| reader.join().expect("readers end")).sum()
    })?;
    println!(
        "{hits} of {} reads found their block in memory; CLOCK evicted {} blocks when pages ran \
         short.",
        THREADS * READS_PER_THREAD,
        pool.evicted.load(Ordering::Relaxed)
    );

    println!("\nThe pool is idle now: everything goes back.");
    let mut evicted = 0;
    while let blocks @ 1.. = lock(&pool.clock).evict(usize::MAX) {
        evicted += blocks;
    }
    let drained = pool.depot.drain(Scope::ALL, Mode::Full);
    let (mut bytes, mut calls) = (0, 0);
    loop {
        let trimmed = pool.depot.trim()?;
        (bytes, calls) = (bytes + trimmed.bytes, calls + trimmed.calls);
        if !trimmed.cut_short {
            break;
        }
        // Pages ran short a moment ago.
        thread::sleep(Duration::from_millis(20));
    }
    println!(
        "{evicted} blocks evicted, {} pages taken out of CPUs' caches, {} MiB given back by \
         {calls} system calls.",
        drained.taken_pages,
        bytes >> 20,
    );
    assert_eq!(pool.depot.validate()?.held_pages(), 0);
    Ok(())
}

/// One thread's reads; returns how many found their block in memory.
fn read_all(pool: &Pool, seed: u64) -> io::Result<u64> {
    let (mut random, mut hits) = (seed, 0);
    for _ in 0..READS_PER_THREAD {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let among = if random >> 60 < 13 { FILE_BLOCKS / 10 } else { FILE_BLOCKS };
        let number = (random >> 32) % among;
        let (block, is_hit) = pool.read(number)?;
        assert_eq!(block.number(), number, "a block holds its number");
        hits += u64::from(is_hit);
    }
    Ok(hits)
}

/// A file whose blocks begin with their number, read by direct I/O where its file system has that.
fn file_of_numbers(path: &Path) -> io::Result<File> {
    let mut file = File::create(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    for number in 0..FILE_BLOCKS {
        block[..8].copy_from_slice(&number.to_ne_bytes());
        file.write_all(&block)?;
    }
    file.sync_all()?;
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .or_else(|_| File::open(path))
}
