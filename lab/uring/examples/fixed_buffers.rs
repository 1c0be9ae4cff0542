//! A file read through io_uring into pages of a depot: by requests that name memory, and by
//! requests that name fixed buffers, which the kernel looked up once.
//!
//! `cargo run --release -p pagedepot-uring --example fixed_buffers`
//!
//! The calls into the kernel are `unsafe`, and all in the module `ring`.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use pagedepot_linux::{Depot, Order, Page};
use ring::{Requests, Ring};

/// 64 KiB: 16 pages of 4 KiB, which the kernel looks up and pins for each request that names
/// memory.
const BLOCK_BYTES: usize = 64 << 10;
const FILE_BLOCKS: usize = 512;
/// Requests that are under way together.
const DEPTH: usize = 32;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let depot = Depot::new(16 << 20)?;
    let mut ring = match Ring::new(DEPTH as u32, depot.clone()) {
        Ok(ring) => ring,
        Err(error) => {
            println!("skipped: the kernel makes no ring ({error}).");
            println!("See sysctl kernel.io_uring_disabled, and what seccomp filters here.");
            return Ok(());
        }
    };
    if let Err(error) = ring.register() {
        println!("skipped: the kernel registers no {} MiB ({error}).", depot.bytes() >> 20);
        println!("Raise `ulimit -l`.");
        return Ok(());
    }
    assert_eq!(depot.trim()?.bytes, 0, "trims leave registered memory alone");

    let path = std::env::temp_dir().join(format!("pagedepot-fixed-{}", std::process::id()));
    let read = file_of_numbers(&path).and_then(|(file, how)| read_by_turns(&mut ring, &file, how));
    std::fs::remove_file(&path)?;
    let [by_address, fixed] = read?;
    let per_read = |time: Duration| time.as_nanos() / FILE_BLOCKS as u128;
    for (name, time) in [("by address", by_address), ("fixed", fixed)] {
        println!("{name:>10}: {} ns a read of {} KiB", per_read(time), BLOCK_BYTES >> 10);
    }
    drop(ring); // also unregisters
    assert_eq!(depot.validate()?.held_pages(), 0);
    Ok(())
}

/// Reads the whole file by requests of each kind in turn. Returns the medians of what that took.
fn read_by_turns(ring: &mut Ring, file: &File, how: &str) -> io::Result<[Duration; 2]> {
    println!(
        "{} MiB of a file, {how}, {DEPTH} requests at a time; medians of {ROUNDS} turns",
        (FILE_BLOCKS * BLOCK_BYTES) >> 20
    );
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (times, requests) in times.iter_mut().zip([Requests::ByAddress, Requests::Fixed]) {
            let started = Instant::now();
            read_all(ring, file, requests)?;
            times.push(started.elapsed());
        }
    }
    Ok(times.map(|mut times| {
        times.sort_unstable();
        times[ROUNDS / 2]
    }))
}

/// Reads each block of the file into a page of its own, and checks it.
fn read_all(ring: &mut Ring, file: &File, requests: Requests) -> io::Result<()> {
    let order = Order::for_bytes(BLOCK_BYTES, ring.depot().page_size()).expect("at most 4 MiB");
    let (mut next, mut done) = (0, 0);
    while done < FILE_BLOCKS {
        while next < FILE_BLOCKS && ring.under_way() < DEPTH {
            let page: Page = ring.depot().page(order)?;
            ring.read(file, next as u64, page, (next * BLOCK_BYTES) as u64, requests)?;
            next += 1;
        }
        for (block, page) in ring.wait()? {
            let number = u64::from_ne_bytes(*page.first_chunk().expect("a block is longer"));
            assert_eq!(number, block, "a block holds its number");
            done += 1;
        }
    }
    Ok(())
}

/// A file whose blocks begin with their number, read past the system's cache where its file system
/// can do that, and how it is read.
fn file_of_numbers(path: &Path) -> io::Result<(File, &'static str)> {
    let mut file = File::create(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    for number in 0..FILE_BLOCKS as u64 {
        block[..8].copy_from_slice(&number.to_ne_bytes());
        file.write_all(&block)?;
    }
    file.sync_all()?;
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => Ok((file, "past the system's cache")),
        Err(_) => File::open(path).map(|file| (file, "from the system's cache")),
    }
}

/// A ring that owns the pages which its requests read into.
mod ring {
    use std::collections::HashMap;
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd as _;

    use io_uring::{IoUring, opcode, types};
    use pagedepot_linux::reclaim::RegisteredIovecs;
    use pagedepot_linux::{Depot, Page};

    /// The name by which requests reach memory.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Requests {
        ByAddress,
        Fixed,
    }

    /// A ring and its pages. Fields are dropped in this order: the kernel is done with a ring that
    /// has been closed only when its requests have ended, which `Drop` waits for.
    pub struct Ring {
        ring: IoUring,
        /// Pages that requests read into, by the number of the request.
        pages: HashMap<u64, Page>,
        registered: Option<RegisteredIovecs>,
        depot: Depot,
    }

    impl Ring {
        pub fn new(entries: u32, depot: Depot) -> io::Result<Self> {
            let ring = IoUring::new(entries)?;
            Ok(Ring { ring, pages: HashMap::new(), registered: None, depot })
        }

        pub fn depot(&self) -> &Depot {
            &self.depot
        }

        pub fn under_way(&self) -> usize {
            self.pages.len()
        }

        /// Registers all of the depot's memory as fixed buffers.
        pub fn register(&mut self) -> io::Result<()> {
            let registered = self.depot.registered_iovecs()?;
            // SAFETY: mapped while `registered` is kept, which is longer than the ring is; requests
            // write only to pages that this ring holds until they have ended.
            unsafe { self.ring.submitter().register_buffers(&registered.iovecs()) }?;
            self.registered = Some(registered);
            Ok(())
        }

        /// Begins to read a page's length from an offset of the file. The page comes back from
        /// [`wait`](Self::wait).
        pub fn read(
            &mut self,
            file: &File,
            number: u64,
            mut page: Page,
            offset: u64,
            requests: Requests,
        ) -> io::Result<()> {
            let fd = types::Fd(file.as_raw_fd());
            let (start, bytes) = (page.as_mut_ptr(), page.len() as u32);
            let piece = self.registered.as_ref().and_then(|all| all.piece_of(page.pfn()));
            let entry = match (requests, piece) {
                (Requests::ByAddress, _) => {
                    opcode::Read::new(fd, start, bytes).offset(offset).build()
                }
                (Requests::Fixed, Some(piece)) => {
                    opcode::ReadFixed::new(fd, start, bytes, piece).offset(offset).build()
                }
                (Requests::Fixed, None) => return Err(io::ErrorKind::InvalidInput.into()),
            };
            // SAFETY: the page is kept until the request has ended. A closed file ends it early.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(number)) };
            pushed.map_err(|_| io::ErrorKind::WouldBlock)?;
            self.pages.insert(number, page);
            Ok(())
        }

        /// Waits for a request to end, and returns the pages of all that have, with their numbers.
        pub fn wait(&mut self) -> io::Result<Vec<(u64, Page)>> {
            self.ring.submit_and_wait(1)?;
            let mut done = Vec::new();
            for entry in self.ring.completion() {
                let page = self.pages.remove(&entry.user_data()).expect("each ends once");
                match usize::try_from(entry.result()) {
                    Ok(bytes) if bytes == page.len() => done.push((entry.user_data(), page)),
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(_) => return Err(io::Error::from_raw_os_error(-entry.result())),
                }
            }
            Ok(done)
        }
    }

    impl Drop for Ring {
        /// Waits for what is under way: the kernel writes to those pages.
        fn drop(&mut self) {
            while !self.pages.is_empty() {
                if self.ring.submit_and_wait(1).is_err() {
                    // Their memory must not be used again.
                    self.pages.drain().for_each(|(_, page)| std::mem::forget(page));
                }
                for entry in self.ring.completion() {
                    self.pages.remove(&entry.user_data());
                }
            }
        }
    }
}
