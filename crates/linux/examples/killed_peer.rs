//! Three processes over one pool of pages: a producer, a consumer, and one that is killed while it
//! holds half of the pool. The two others never stop, and in the end every page is free.
//!
//! The consumer can be a program in C, which is given two descriptors, the segment's and the
//! socket's, as its arguments:
//! ```sh
//! cc crates/capi/examples/shared/consumer.c $(pkg-config --cflags --libs pagedepot) -o consumer
//! cargo run --release -p pagedepot-linux --example killed_peer 100000 ./consumer
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use pagedepot_linux::shared::{Orphans, SentPage, SharedDepot, SharedOptions};
use pagedepot_linux::{Mode, Order, Scope};

const BYTES: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["consume", segment, socket] => consume(segment.parse()?, socket.parse()?),
        ["hold", segment] => hold(segment.parse()?),
        [] => produce(20_000, None),
        [messages] => produce(messages.parse()?, None),
        [messages, consumer, ..] => produce(messages.parse()?, Some(consumer)),
    }
}

/// Makes the segment and both other processes, and sends pages.
fn produce(messages: u32, consumer: Option<&str>) -> Result<(), Box<dyn Error>> {
    let depot = SharedDepot::create_memfd("killed-peer", &SharedOptions::new(BYTES))?;
    let (mut socket, theirs) = UnixStream::pair()?;
    let this = std::env::current_exe()?;
    let segment = inherited(depot.file())?.to_string();
    let socket_number = inherited(theirs.as_fd())?.to_string();
    let mut consumer = match consumer {
        Some(program) => Command::new(program).args([&segment, &socket_number]).spawn()?,
        None => Command::new(&this).args(["consume", &segment, &socket_number]).spawn()?,
    };
    drop(theirs);
    let mut holder = Command::new(&this).args(["hold", &segment]).stdout(Stdio::piped()).spawn()?;
    for message in 0..messages {
        if message == messages / 2 {
            kill(&mut holder)?;
        }
        let mut page = depot.page_timeout(Order::BASE, std::time::Duration::from_secs(10))?;
        page[..4].copy_from_slice(&message.to_le_bytes());
        let sent = page.into_shared(&depot).expect("a page of this depot");
        socket.write_all(&sent.to_bits().to_le_bytes())?;
    }
    drop(socket);
    assert!(consumer.wait()?.success(), "the consumer has seen all messages");
    let recovered = depot.recover(Orphans::GoBack);
    depot.drain(Scope::ALL, Mode::Full);
    let stats = depot.segment_stats();
    println!("{messages} pages from one process to another; then {recovered:?}");
    println!(
        "{} of {} pages are free, {} lost",
        stats.free_pages, stats.pages_max, stats.lost_pages
    );
    assert_eq!(stats.free_pages, stats.pages_max);
    Ok(())
}

/// Claims pages until the socket is closed.
fn consume(segment: i32, socket: i32) -> Result<(), Box<dyn Error>> {
    // SAFETY: descriptors that the producer has left open for this process.
    let (segment, socket) =
        unsafe { (OwnedFd::from_raw_fd(segment), OwnedFd::from_raw_fd(socket)) };
    let depot = SharedDepot::adopt(&segment, &SharedOptions::join())?;
    let (mut socket, mut bits, mut expected) = (UnixStream::from(socket), [0; 16], 0u32);
    while socket.read_exact(&mut bits).is_ok() {
        let page = depot.claim(SentPage::from_bits(u128::from_le_bytes(bits)))?;
        assert_eq!(page[..4], expected.to_le_bytes(), "pages come in order");
        expected += 1;
    }
    println!("the consumer has claimed {expected} pages");
    Ok(())
}

/// Takes half of the pool, and waits to be killed.
fn hold(segment: i32) -> Result<(), Box<dyn Error>> {
    // SAFETY: a descriptor that the producer has left open for this process.
    let segment = unsafe { BorrowedFd::borrow_raw(segment) };
    let depot = SharedDepot::adopt(segment, &SharedOptions::join())?;
    let order = Order::new(5).expect("an order");
    let blocks = BYTES / 2 / (4096 << 5);
    let held: Vec<_> = (0..blocks).map_while(|_| depot.page(order).ok()).collect();
    println!("holds {} blocks of order 5", held.len());
    loop {
        std::thread::park();
    }
}

/// Kills the process when it has what it takes.
fn kill(holder: &mut Child) -> Result<(), Box<dyn Error>> {
    let mut line = [0; 5];
    holder.stdout.as_mut().expect("it is piped").read_exact(&mut line)?;
    holder.kill()?;
    holder.wait()?;
    Ok(())
}

/// Lets processes that this one makes inherit a descriptor. Returns its number.
fn inherited(fd: BorrowedFd<'_>) -> Result<i32, Box<dyn Error>> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    Ok(fd.as_raw_fd())
}
