//! A packet ring: one thread receives packets into pages, as a driver does, and hands them to
//! workers, which free them on other CPUs. Pages are allocated and freed 64 at a time.
//!
//! `cargo run --release -p pagedepot-linux --example packet_ring`
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write as _;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Instant;

use pagedepot_linux::reclaim::Pressure;
use pagedepot_linux::{AllocError, Depot, Mode, Order, Page, Scope};

const PACKETS: u64 = 200_000;
const BATCH: usize = 64;
/// Packets that may wait in the ring.
const RING_PACKETS: usize = 1024;

/// A received packet. It owns its page, so it can wait in a queue and be freed by any thread.
struct Packet {
    page: Page,
    length: usize,
}

impl Packet {
    fn bytes(&self) -> &[u8] {
        &self.page[..self.length]
    }
}

/// Packets on their way from the receiver to the workers.
#[derive(Default)]
struct Ring {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    packets: VecDeque<Packet>,
    is_closed: bool,
}

impl Ring {
    /// Waits for room, then appends all.
    fn push(&self, packets: impl Iterator<Item = Packet>) {
        let state = self.state.lock().expect("no thread panics");
        let has_room = |state: &mut State| state.packets.len() >= RING_PACKETS;
        let mut state = self.changed.wait_while(state, has_room).expect("no thread panics");
        state.packets.extend(packets);
        self.changed.notify_all();
    }

    /// Waits for packets, then moves up to a batch of them behind `out`. `false`: no more come.
    fn pop(&self, out: &mut Vec<Packet>) -> bool {
        let state = self.state.lock().expect("no thread panics");
        let is_empty = |state: &mut State| state.packets.is_empty() && !state.is_closed;
        let mut state = self.changed.wait_while(state, is_empty).expect("no thread panics");
        let count = state.packets.len().min(BATCH);
        out.extend(state.packets.drain(..count));
        self.changed.notify_all();
        count > 0
    }

    fn close(&self) {
        self.state.lock().expect("no thread panics").is_closed = true;
        self.changed.notify_all();
    }
}

/// Receives all packets: fills pages, 64 per allocation.
fn receive(depot: &Depot, ring: &Ring) -> Result<u64, AllocError> {
    let (mut pages, mut batches, mut number) = (Vec::with_capacity(BATCH), 0, 0);
    while number < PACKETS {
        let wanted = BATCH.min((PACKETS - number) as usize);
        depot.alloc_pages_into(Order::BASE, wanted, &mut pages)?;
        batches += 1;
        ring.push(pages.drain(..).map(|mut page| {
            let mut writer = page.writer();
            write!(writer, "packet {number}").expect("a page has room for it");
            number += 1;
            let length = writer.position() as usize;
            Packet { page, length }
        }));
    }
    Ok(batches)
}

/// Handles packets until the ring is closed; returns the sum of their numbers.
fn work(depot: &Depot, ring: &Ring) -> u64 {
    let (mut packets, mut sum) = (Vec::with_capacity(BATCH), 0);
    while ring.pop(&mut packets) {
        for packet in &packets {
            let text = packet.bytes().strip_prefix(b"packet ").expect("it was sent so");
            sum += text.iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0'));
        }
        depot.free_pages(packets.drain(..).map(|packet| packet.page));
    }
    sum
}

fn main() -> Result<(), Box<dyn Error>> {
    let depot = Depot::new(16 << 20)?;
    // A driver has nothing to give up; this one tells the log when pages run short.
    depot.on_pressure(|pressure: Pressure| {
        eprintln!("{} pages are wanted", pressure.wanted_pages);
        0
    })?;
    let ring = Ring::default();
    println!("{PACKETS} packets go from one receiver through a ring to two workers.");
    let start = Instant::now();
    let (batches, sums) = thread::scope(|scope| {
        let workers = [(); 2].map(|()| scope.spawn(|| work(&depot, &ring)));
        let batches = receive(&depot, &ring);
        ring.close();
        (batches, workers.map(|worker| worker.join().expect("workers end")))
    });
    let elapsed = start.elapsed();
    assert_eq!(sums.iter().sum::<u64>(), (PACKETS - 1) * PACKETS / 2);
    println!(
        "Each was handled once, in {:.0} ns on average. {} calls allocated their pages.",
        elapsed.as_nanos() as f64 / PACKETS as f64,
        batches?
    );

    let drained = depot.drain(Scope::ALL, Mode::Quiet);
    println!(
        "The workers' CPUs had cached {} of them; a quiet drain took {} back and interrupted no \
         CPU. The other {} wait for their CPU or a full drain.",
        drained.taken_pages + drained.unreachable_pages,
        drained.taken_pages,
        drained.unreachable_pages
    );
    assert_eq!(depot.validate()?.held_pages(), 0);
    println!("No page is missing.");
    Ok(())
}
