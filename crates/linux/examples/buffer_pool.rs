//! A storage engine's buffer pool: blocks of a file, read past the system's cache into pages of a
//! memfd, evicted when pages run short, and given back to the system when the pool is idle. (One
//! thread reads here; an engine would count the users of a block, and mark blocks being read.)
//!
//! `cargo run --release -p pagedepot-linux --example buffer_pool`

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{slice, thread};

use pagedepot_linux::{Depot, Flags, MemoryKind, Mode, Order, Pfn, Scope};

/// 16 KiB: four pages, aligned to their size, as direct I/O wants them.
const BLOCK: Order = Order::new(2).expect("orders go up to 10");
const BLOCK_BYTES: usize = 4096 << BLOCK.get();
const FILE_BLOCKS: u64 = 8192;

struct Pool {
    depot: Depot,
    cached: Mutex<Cached>,
}

/// The blocks of the file that are in memory, and in which order they came.
#[derive(Default)]
struct Cached {
    places: HashMap<u64, Pfn>,
    order: VecDeque<u64>,
}

impl Pool {
    fn new(bytes: usize) -> Result<Arc<Self>, Box<dyn std::error::Error>> {
        let depot = Depot::builder(bytes).memory(MemoryKind::Memfd).build()?;
        let pool = Arc::new(Pool { depot, cached: Mutex::default() });
        // Weak: the depot is the pool's, and the callback the depot's.
        let this: Weak<Pool> = Arc::downgrade(&pool);
        pool.depot.on_pressure(move |pressure| {
            this.upgrade().map_or(0, |pool| pool.evict(pressure.wanted_pages.max(256)))
        })?;
        Ok(pool)
    }

    fn cached(&self) -> MutexGuard<'_, Cached> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees the oldest blocks, so many pages or all; returns how many pages.
    fn evict(&self, pages: u64) -> u64 {
        let mut cached = self.cached();
        let blocks = (pages.div_ceil(BLOCK.frames().into()) as usize).min(cached.order.len());
        let old: Vec<u64> = cached.order.drain(..blocks).collect();
        let old: Vec<_> =
            old.iter().filter_map(|number| Some((cached.places.remove(number)?, BLOCK))).collect();
        // SAFETY: allocated with this order by `read`; in nobody's hands, now that they are not
        // listed.
        unsafe { self.depot.raw().free_mixed(&old) }.expect("blocks of this depot");
        old.len() as u64 * u64::from(BLOCK.frames())
    }

    /// The number that a block begins with, and whether it was in memory.
    fn read(&self, file: &File, block: u64) -> Result<(u64, bool), Box<dyn std::error::Error>> {
        if let Some(&pfn) = self.cached().places.get(&block) {
            return Ok((self.number_in(pfn), true));
        }
        // Not under the lock: when pages run short, this calls `evict`.
        let pfn = self.depot.raw().alloc(BLOCK, Flags::default())?;
        let place = self.depot.raw().address(pfn).as_ptr();
        // SAFETY: the block is this caller's alone until it is listed.
        let bytes = unsafe { slice::from_raw_parts_mut(place, BLOCK_BYTES) };
        file.read_exact_at(bytes, block * BLOCK_BYTES as u64)?;
        let mut cached = self.cached();
        cached.order.push_back(block);
        cached.places.insert(block, pfn);
        Ok((self.number_in(pfn), false))
    }

    fn number_in(&self, pfn: Pfn) -> u64 {
        // SAFETY: a listed block, and nobody evicts while the only reader is here.
        unsafe { self.depot.raw().address(pfn).cast::<u64>().read() }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("pagedepot-buffer-pool-{}", std::process::id()));
    let file = file_of_numbers(&path)?;
    let read = run(&file);
    std::fs::remove_file(&path)?;
    read
}

fn run(file: &File) -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::new(32 << 20)?;
    let (mut hits, mut reads) = (0, 0);
    // Eight out of ten reads go to a tenth of the file.
    let mut random = 1_u64;
    for _ in 0..20_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let among = if random >> 60 < 13 { FILE_BLOCKS / 10 } else { FILE_BLOCKS };
        let block = (random >> 32) % among;
        let (number, hit) = pool.read(file, block)?;
        assert_eq!(number, block, "a block holds its number");
        hits += u64::from(hit);
        reads += 1;
    }
    println!("{hits} of {reads} reads from 32 MiB of a file of 128 MiB");

    // Idle: everything goes back.
    let evicted = pool.evict(u64::MAX);
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
        "{evicted} pages evicted, {} drained from CPUs' caches, {} MiB given back by {calls} system calls",
        drained.taken_pages,
        bytes >> 20,
    );
    Ok(())
}

/// A file whose blocks begin with their number, read by direct I/O where its file system has that.
fn file_of_numbers(path: &std::path::Path) -> io::Result<File> {
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
