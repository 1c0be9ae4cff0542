//! A storage engine's buffer pool that writes back: pages of a file in an arena, updated in memory.
//! The shape is that of Turso's (`core/storage/buffer_pool.rs` there): one arena for all pages, and
//! dirty pages written in runs of consecutive numbers, each run by one call. Reads come in runs,
//! too: sixteen pages into one block of the depot, which is evicted as a whole, so that the arena
//! does not crumble.
//!
//! Blocks are evicted when the arena is full, and when the container runs short of memory: the
//! monitor asks for it. The example plays the container, by files in the format of cgroup v2.
//!
//! `cargo run --release -p pagedepot-linux --example write_back`
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pagedepot_linux::builder::default_page_size;
use pagedepot_linux::pressure::{Monitor, Policy, Sources, Step};
use pagedepot_linux::{Depot, Order, Page};

const MIB: usize = 1 << 20;
/// Bytes of a page of the file.
const PAGE: u64 = 4096;
const FILE_PAGES: u64 = 8192;
const ARENA_BYTES: usize = 8 * MIB;
/// Pages of the file that are read together: a block.
const BLOCK_PAGES: u64 = 16;
const BLOCK_BYTES: u64 = BLOCK_PAGES * PAGE;
/// Most pages that are written by one call.
const WRITE_RUN: u64 = 64;
/// Evicted at a time at least, so that not every miss evicts.
const EVICTED_BLOCKS_MIN: usize = 8;
const THREADS: u64 = 3;
const TRANSACTIONS: u64 = 4000;
/// Pages in a row that a transaction updates.
const UPDATED_PAGES: u64 = 8;

/// Order of a block in the depot, whose pages may be larger than the file's.
fn block_order() -> Order {
    let pages = BLOCK_BYTES.div_ceil(default_page_size().bytes() as u64).next_power_of_two();
    Order::new(pages.ilog2()).expect("orders go up to 10")
}

/// A block of the file in memory.
struct Block {
    bytes: Page,
    /// A bit for each of its pages.
    dirty: u16,
    /// Whether it was used since the hand last passed.
    is_referenced: bool,
}

impl Block {
    fn page(&self, number: u64) -> &[u8] {
        &self.bytes[Self::place(number)]
    }

    fn place(number: u64) -> Range<usize> {
        let start = (number % BLOCK_PAGES * PAGE) as usize;
        start..start + PAGE as usize
    }

    fn bit(number: u64) -> u16 {
        1 << (number % BLOCK_PAGES)
    }
}

/// The blocks by number, and CLOCK's hand over them.
#[derive(Default)]
struct Blocks {
    all: BTreeMap<u64, Block>,
    hand: u64,
}

impl Blocks {
    fn of_page(&self, number: u64) -> Option<&Block> {
        self.all.get(&(number / BLOCK_PAGES))
    }

    fn is_dirty(&self, number: u64) -> bool {
        self.of_page(number).is_some_and(|block| block.dirty & Block::bit(number) != 0)
    }

    /// The next block that was not used since the hand last passed.
    fn next_victim(&mut self) -> Option<u64> {
        for _ in 0..=2 * self.all.len() {
            let Some((&number, block)) = self.all.range_mut(self.hand..).next() else {
                self.hand = 0;
                continue;
            };
            self.hand = number + 1;
            if !std::mem::replace(&mut block.is_referenced, false) {
                return Some(number);
            }
        }
        None
    }

    /// The dirty pages around a dirty one, without a gap.
    fn dirty_run(&self, number: u64) -> Range<u64> {
        let is_dirty = |&at: &u64| self.is_dirty(at);
        let before = (0..number).rev().take_while(is_dirty).take(WRITE_RUN as usize / 2);
        let start = number - before.count() as u64;
        let after = (number..start + WRITE_RUN).take_while(is_dirty).count() as u64;
        start..number + after
    }
}

/// The state that threads and callbacks share. It owns pages and no handle of the depot.
struct Pool {
    file: File,
    blocks: Mutex<Blocks>,
    written_pages: AtomicU64,
    write_calls: AtomicU64,
    read_calls: AtomicU64,
}

impl Pool {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates a page in memory.
    fn update(&self, depot: &Depot, number: u64, update: impl FnOnce(&mut [u8])) -> io::Result<()> {
        loop {
            if let Some(block) = self.blocks().all.get_mut(&(number / BLOCK_PAGES)) {
                update(&mut block.bytes[Block::place(number)]);
                block.dirty |= Block::bit(number);
                block.is_referenced = true;
                return Ok(());
            }
            self.read(depot, number / BLOCK_PAGES)?;
        }
    }

    /// Reads a block, unless another thread was faster.
    fn read(&self, depot: &Depot, number: u64) -> io::Result<()> {
        // Not under the lock, which the callback takes when pages run short. It waits, because
        // another thread may take the block that the callback has evicted.
        let mut bytes = depot.page_timeout(block_order(), Duration::from_secs(10))?;
        let mut blocks = self.blocks();
        if let Entry::Vacant(place) = blocks.all.entry(number) {
            // Under the lock: no block is written meanwhile.
            self.file.read_exact_at(&mut bytes[..BLOCK_BYTES as usize], number * BLOCK_BYTES)?;
            self.read_calls.fetch_add(1, Ordering::Relaxed);
            place.insert(Block { bytes, dirty: 0, is_referenced: true });
        }
        Ok(())
    }

    /// Evicts up to `count` blocks, and returns how many. What is dirty is written before.
    fn evict(&self, count: usize) -> io::Result<usize> {
        let mut blocks = self.blocks();
        for evicted in 0..count {
            let Some(number) = blocks.next_victim() else { return Ok(evicted) };
            self.clean(&mut blocks, number)?;
            blocks.all.remove(&number);
        }
        Ok(count)
    }

    /// Writes a block's dirty pages, with those around them in other blocks.
    fn clean(&self, blocks: &mut Blocks, number: u64) -> io::Result<()> {
        for page in number * BLOCK_PAGES..(number + 1) * BLOCK_PAGES {
            if blocks.is_dirty(page) {
                self.write(blocks, blocks.dirty_run(page))?;
            }
        }
        Ok(())
    }

    fn write(&self, blocks: &mut Blocks, run: Range<u64>) -> io::Result<()> {
        let pages = run.clone().filter_map(|number| Some(blocks.of_page(number)?.page(number)));
        let slices: Vec<_> = pages.map(IoSlice::new).collect();
        let bytes = rustix::io::pwritev(&self.file, &slices, run.start * PAGE)?;
        if bytes as u64 != (run.end - run.start) * PAGE {
            return Err(io::ErrorKind::WriteZero.into());
        }
        for number in run.clone() {
            let block = blocks.all.get_mut(&(number / BLOCK_PAGES)).expect("it was dirty");
            block.dirty &= !Block::bit(number);
        }
        self.written_pages.fetch_add(run.end - run.start, Ordering::Relaxed);
        self.write_calls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes all dirty pages.
    fn flush(&self) -> io::Result<()> {
        let mut blocks = self.blocks();
        let numbers: Vec<u64> = blocks.all.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.clean(&mut blocks, number))
    }
}

/// Files in the format of cgroup v2.
struct Container(PathBuf);

impl Container {
    const LIMIT: usize = 32 * MIB;

    fn new(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        fs::write(path.join("memory.max"), Self::LIMIT.to_string())?;
        fs::write(path.join("memory.high"), "max")?;
        fs::write(path.join("memory.stat"), "inactive_file 0")?;
        let container = Container(path.into());
        container.uses(10)?;
        Ok(container)
    }

    fn uses(&self, percent: usize) -> io::Result<()> {
        fs::write(self.0.join("memory.current"), (Self::LIMIT / 100 * percent).to_string())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let place = std::env::temp_dir().join(format!("pagedepot-write-back-{}", std::process::id()));
    let container = Container::new(&place)?;
    let result = run(&place.join("file"), &container);
    fs::remove_dir_all(&place)?;
    result
}

fn run(path: &Path, container: &Container) -> Result<(), Box<dyn Error>> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(FILE_PAGES * PAGE)?;
    let [written_pages, write_calls, read_calls] = [const { AtomicU64::new(0) }; 3];
    let blocks = Mutex::default();
    let pool = Arc::new(Pool { file, blocks, written_pages, write_calls, read_calls });

    let depot = Depot::new(ARENA_BYTES)?;
    let full = pool.clone();
    depot.on_pressure(move |pressure| {
        let block_pages = 1 << block_order().get();
        let wanted = pressure.wanted_pages.div_ceil(block_pages) as usize;
        full.evict(wanted.max(EVICTED_BLOCKS_MIN)).unwrap_or(0) as u64 * block_pages
    })?;
    let short = pool.clone();
    let monitor = Monitor::builder(&depot)
        .sources(Sources::none().and_cgroup_v2(&container.0))
        // Shorter than usual, so that this example ends soon. Without a ceiling, which would give
        // back by itself what the callbacks and trims are to show.
        .policy(Policy { look_ms: 20, round_ms: 20, margin_percent: None, ..Policy::default() })
        .on_pressure(0, move |bytes| {
            let wanted = bytes.div_ceil(BLOCK_BYTES) as usize;
            short.evict(wanted).unwrap_or(0) as u64 * BLOCK_BYTES
        })
        .start()?;

    thread::scope(|scope| -> io::Result<()> {
        let workers: Vec<_> = (1..=THREADS)
            .map(|seed| {
                scope.spawn({
                    let (pool, depot) = (&pool, &depot);
                    move || work(pool, depot, seed)
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers end"))
    })?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} updates of a file of {} MiB through an arena of {} MiB: \
         {} blocks of 16 pages read, {} pages written by {} calls",
        THREADS * TRANSACTIONS * UPDATED_PAGES,
        (FILE_PAGES * PAGE) >> 20,
        ARENA_BYTES / MIB,
        count(&pool.read_calls),
        count(&pool.written_pages),
        count(&pool.write_calls),
    );
    assert!(count(&pool.written_pages) > 2 * count(&pool.write_calls), "writes are coalesced");

    let before = pool.blocks().all.len();
    container.uses(98)?;
    for _ in 0..500 {
        let counts = monitor.counts();
        if counts.step(Step::Callbacks).bytes.min(counts.given_back_bytes) > 2 << 20 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    container.uses(10)?;
    let (after, counts) = (pool.blocks().all.len(), monitor.counts());
    println!(
        "the container ran short: {before} blocks in memory, then {after}; {} MiB given back",
        counts.given_back_bytes >> 20
    );
    assert!(after < before && counts.given_back_bytes > 2 << 20, "{counts:?}");

    pool.flush()?;
    let sum = sum_of_versions(&pool.file)?;
    assert_eq!(sum, THREADS * TRANSACTIONS * UPDATED_PAGES, "each update is in the file, once");
    Ok(())
}

/// Transactions of one thread, each of which updates some pages in a row.
fn work(pool: &Pool, depot: &Depot, seed: u64) -> io::Result<()> {
    let mut random = seed;
    for _ in 0..TRANSACTIONS {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first = (random >> 32) % (FILE_PAGES - UPDATED_PAGES);
        for number in first..first + UPDATED_PAGES {
            pool.update(depot, number, |bytes| {
                let version = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                bytes[..8].copy_from_slice(&(version + 1).to_le_bytes());
            })?;
        }
    }
    Ok(())
}

/// Number of updates of the file's pages.
fn sum_of_versions(file: &File) -> io::Result<u64> {
    let mut version = [0; 8];
    (0..FILE_PAGES).try_fold(0, |sum, number| {
        file.read_exact_at(&mut version, number * PAGE)?;
        Ok(sum + u64::from_le_bytes(version))
    })
}
