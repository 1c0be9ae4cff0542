//! Bursts of 1 to 64 packets, at random, from a thread that receives to one that reads and frees:
//! pages one by one, a call for each burst, and a vector of buffers behind a lock beside them.
//!
//! `cargo run --release -p pagedepot-linux --example packet_path [BURSTS]`
//!
//! The vector is faster while two threads share it. It has no ceiling, gives nothing back when the
//! traffic ends, and makes every further thread wait for one lock.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use pagedepot_linux::{AllocError, Depot, Mode, Order, Page, Scope};

const BURSTS_DEFAULT: u64 = 200_000;
const BURST_MAX: u64 = 64;
/// Bursts that wait for the reader at most.
const UNDER_WAY: usize = 64;

/// Memory for packets: a burst is allocated by one thread and freed by another.
trait Buffers: Sync {
    type Buffer: AsMut<[u8]> + Send;

    fn alloc(&self, count: usize, into: &mut Vec<Self::Buffer>) -> Result<(), AllocError>;

    fn free(&self, burst: &mut Vec<Self::Buffer>);
}

struct OneByOne<'d>(&'d Depot);

impl Buffers for OneByOne<'_> {
    type Buffer = Page;

    fn alloc(&self, count: usize, into: &mut Vec<Page>) -> Result<(), AllocError> {
        for _ in 0..count {
            into.push(self.0.page(Order::BASE)?);
        }
        Ok(())
    }

    fn free(&self, burst: &mut Vec<Page>) {
        burst.clear();
    }
}

struct ACallABurst<'d>(&'d Depot);

impl Buffers for ACallABurst<'_> {
    type Buffer = Page;

    fn alloc(&self, count: usize, into: &mut Vec<Page>) -> Result<(), AllocError> {
        self.0.alloc_pages_into(Order::BASE, count, into).map(|_| ())
    }

    fn free(&self, burst: &mut Vec<Page>) {
        self.0.free_pages(burst.drain(..));
    }
}

/// Buffers that no thread holds.
struct LockedVector(Mutex<Vec<Box<[u8]>>>);

impl Buffers for LockedVector {
    type Buffer = Box<[u8]>;

    fn alloc(&self, count: usize, into: &mut Vec<Self::Buffer>) -> Result<(), AllocError> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = free.len().checked_sub(count).ok_or(AllocError::Exhausted)?;
        into.extend(free.drain(first..));
        Ok(())
    }

    fn free(&self, burst: &mut Vec<Self::Buffer>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(burst);
    }
}

/// The sizes of bursts, the same in each run.
fn sizes(bursts: u64) -> impl Iterator<Item = u64> {
    let mut random = 42u64;
    (0..bursts).map(move |_| {
        // Marsaglia's xorshift.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        1 + random % BURST_MAX
    })
}

/// Sends all bursts from this thread to another, which checks them; returns nanoseconds a packet.
fn run<B: Buffers>(buffers: &B, bursts: u64) -> Result<f64, AllocError> {
    type Ends<B> = (SyncSender<Vec<B>>, Receiver<Vec<B>>);
    let (send, receive): Ends<B::Buffer> = sync_channel(UNDER_WAY);
    let (send_empty, receive_empty): Ends<B::Buffer> = sync_channel(2 * UNDER_WAY);
    let (begin, mut number) = (Instant::now(), 0u64);
    let read = thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut read = 0u64;
            for mut burst in receive {
                for packet in &mut burst {
                    let bytes = packet.as_mut().first_chunk().expect("a page is longer");
                    assert_eq!(u64::from_ne_bytes(*bytes), read, "packets keep their order");
                    read += 1;
                }
                buffers.free(&mut burst);
                // The last ones find no receiver.
                let _ = send_empty.try_send(burst);
            }
            read
        });
        // The ends go with this closure: the reader ends when nothing more comes.
        let (send, receive_empty) = (send, receive_empty);
        for size in sizes(bursts) {
            let mut burst = receive_empty.try_recv().unwrap_or_default();
            buffers.alloc(size as usize, &mut burst)?;
            for packet in &mut burst {
                packet.as_mut()[..8].copy_from_slice(&number.to_ne_bytes());
                number += 1;
            }
            send.send(burst).expect("it ends after this thread");
        }
        drop(send);
        Ok::<u64, AllocError>(reader.join().expect("packets keep their order"))
    })?;
    assert_eq!((read, number), (number, sizes(bursts).sum()));
    Ok(begin.elapsed().as_secs_f64() * 1e9 / number as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let bursts = std::env::args().nth(1).map_or(Ok(BURSTS_DEFAULT), |bursts| bursts.parse())?;
    // A CPU caches an eighth of a depot at most: here 8192 pages, more than are under way.
    let depot = Depot::new(256 << 20)?;
    let page_bytes = depot.page_size().bytes();
    let buffers = (0..16 << 20 >> page_bytes.trailing_zeros()).map(|_| vec![0; page_bytes].into());
    let vector = LockedVector(Mutex::new(buffers.collect()));
    println!("{bursts} bursts of 1 to {BURST_MAX} packets, from thread to thread, ns a packet:");
    for _ in 0..3 {
        let one_by_one = run(&OneByOne(&depot), bursts)?;
        let burst = run(&ACallABurst(&depot), bursts)?;
        let locked = run(&vector, bursts)?;
        println!("one by one {one_by_one:.1}, a call {burst:.1}, a locked vector {locked:.1}");
    }
    let drained = depot.drain(Scope::ALL, Mode::Full);
    let trimmed = depot.trim()?;
    println!(
        "The traffic has ended: {} pages drained, {} MiB given back. The vector keeps its {} MiB.",
        drained.taken_pages,
        trimmed.bytes >> 20,
        16
    );
    assert_eq!(depot.validate()?.held_pages(), 0);
    Ok(())
}
