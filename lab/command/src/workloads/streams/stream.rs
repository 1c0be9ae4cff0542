//! Streams over one allocator: senders that fill buffers, receivers on other CPUs that read what
//! was written and free the buffers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagedepot::{CpuId, Mobility, Order, Pfn};

use super::channel::{Channel, Words};
use super::reuse::{self, Use};
use pagedepot_cli::design::{self, Allocator};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::clock::ticks;
use pagedepot_cli::harness::{Contender, Seat, Subject, lock};

/// The order in which sockets take their buffers (the kernel's `SKB_FRAG_PAGE_ORDER`: 32 KiB).
pub const ORDER: Order = Order::new(3).expect("there is order 3");

/// Number and size of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub streams: u32,
    /// Buffers of a stream between its sender and its receiver, at most; a power of two.
    pub in_flight: u32,
    /// Bytes of a message: what is written into a buffer.
    pub bytes: u32,
}

impl Shape {
    /// The CPUs of the threads: a sender and a receiver for each stream, on neighbouring CPUs.
    /// Streams that find all CPUs taken share them, the other way round.
    pub fn seats(self, cpus: &[CpuId]) -> Vec<CpuId> {
        let at = |seat: usize| cpus[seat % cpus.len()];
        let pair = |stream: usize| {
            let (sender, receiver) = (at(2 * stream), at(2 * stream + 1));
            if (2 * stream / cpus.len()).is_multiple_of(2) {
                [sender, receiver]
            } else {
                [receiver, sender]
            }
        };
        (0..self.streams as usize).flat_map(pair).collect()
    }
}

/// Metrics of a window: buffers and MiB per second, over all streams.
pub const METRICS: usize = 2;

/// Messages of a unit of work: on a busy machine, where windows end up as short as can be, they are
/// still long enough for buffers to come back.
const BURST: u64 = 256;

/// Uses that a stream logs: its first.
const LOG_MAX: usize = 1 << 15;

/// The senders and receivers of a design's streams.
pub struct Streams<A: Allocator<Block = Pfn>, C> {
    allocator: A,
    shape: Shape,
    streams: Vec<Stream<C>>,
    /// The CPU that freed the buffer at a place in memory, plus 1; 0 for none.
    freed_by: Box<[AtomicU32]>,
}

struct Stream<C> {
    channel: C,
    /// The sender's.
    sent: Mutex<SendLog>,
}

#[derive(Default)]
struct SendLog {
    messages: u64,
    log: Vec<Use>,
    /// Buffers that were used before; those of them that another CPU had freed.
    reused: u64,
    crossed: u64,
}

impl<A: Allocator<Block = Pfn>, C: Channel> Streams<A, C> {
    /// The word that tells which CPU freed a buffer. Relaxed everywhere: the allocator orders a
    /// free before the next allocation of the same buffer.
    fn freed_by(&self, buffer: Pfn) -> &AtomicU32 {
        &self.freed_by[buffer.index() >> ORDER.get()]
    }

    fn alloc(&self) -> Pfn {
        let buffer = self.allocator.alloc_block(ORDER, Mobility::Unmovable);
        buffer.unwrap_or_else(|| panic!("{} ran out of buffers: it lost some", A::DESIGN))
    }

    fn send(&self, stream: &Stream<C>, here: CpuId, messages: u64) {
        let mut sent = lock(&stream.sent);
        stream.channel.send(messages, || {
            let buffer = self.alloc();
            sent.note(ticks(), buffer, self.freed_by(buffer).load(Ordering::Relaxed), here);
            let (number, words) = (sent.messages, self.words(buffer));
            self.write(words, buffer, number);
            (buffer, number, words)
        });
    }

    fn receive(&self, stream: &Stream<C>, here: CpuId, messages: u64) {
        // As a receiver's own memory, the same for all messages.
        let own = C::COPIES.then(|| self.alloc());
        let copies = own.map(|own| self.words(own));
        let nowhere = std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 0);
        stream.channel.receive(messages, copies.unwrap_or(nowhere), |buffer, number| {
            self.read(copies.unwrap_or_else(|| self.words(buffer)), buffer, number);
            self.freed_by(buffer).store(1 + here.get(), Ordering::Relaxed);
            self.allocator.free_block(buffer, ORDER);
        });
        own.inspect(|&own| self.allocator.free_block(own, ORDER));
    }

    fn words(&self, buffer: Pfn) -> Words {
        let start = self.allocator.address(buffer).cast::<u64>().as_ptr();
        std::ptr::slice_from_raw_parts_mut(start, self.shape.bytes as usize / size_of::<u64>())
    }

    fn write(&self, words: Words, buffer: Pfn, number: u64) {
        // SAFETY: the buffer is this sender's, at least as long, and any bytes are numbers.
        let words = unsafe { &mut *words };
        words.fill(number);
        words[0] = buffer.get().into();
        design::observe(words.as_ptr().addr());
    }

    fn read(&self, words: Words, buffer: Pfn, number: u64) {
        // SAFETY: the buffer is this receiver's since the channel handed it over, and written.
        let words = unsafe { &*words };
        let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        let numbers = number.wrapping_mul(words.len() as u64 - 1);
        assert!(
            sum == numbers.wrapping_add(buffer.get().into()),
            "{}: another holder wrote into {buffer}: it was handed out twice",
            A::DESIGN
        );
    }
}

impl SendLog {
    #[inline]
    fn note(&mut self, ticks: u64, buffer: Pfn, freed_by: u32, here: CpuId) {
        self.messages += 1;
        if self.log.len() < LOG_MAX {
            self.log.push(Use { ticks, buffer: buffer.get() });
        }
        self.reused += u64::from(freed_by != 0);
        self.crossed += u64::from(freed_by != 0 && freed_by != 1 + here.get());
    }
}

/// The reuse of a design's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reuse {
    /// Reuse distances, in bytes written: median, and the 90th percentile.
    pub median_bytes: f64,
    pub p90_bytes: f64,
    /// Percent of the buffers used again that another CPU had freed.
    pub crossed_percent: f64,
}

/// A contender whose reuse can be asked for when its windows are over.
pub trait HasReuse {
    fn reuse(&self) -> Reuse;

    /// The subject that it measured.
    ///
    /// # Panics
    /// When the contender still exists.
    fn subject(&mut self) -> &mut dyn Subject;
}

impl<A: Allocator<Block = Pfn>, C: Channel> HasReuse for Arc<Streams<A, C>> {
    fn reuse(&self) -> Reuse {
        let (mut uses, mut reused, mut crossed) = (Vec::new(), 0, 0);
        for stream in &self.streams {
            let sent = lock(&stream.sent);
            uses.extend_from_slice(&sent.log);
            reused += sent.reused;
            crossed += sent.crossed;
        }
        let distances = reuse::distances(uses);
        let bytes = |share| {
            let distance = reuse::quantile(&distances, share);
            distance.map_or(f64::NAN, |distance| distance as f64 * f64::from(self.shape.bytes))
        };
        Reuse {
            median_bytes: bytes(0.5),
            p90_bytes: bytes(0.9),
            crossed_percent: crossed as f64 * 100.0 / reused as f64,
        }
    }

    fn subject(&mut self) -> &mut dyn Subject {
        &mut Arc::get_mut(self).expect("the contender is gone").allocator
    }
}

/// The streams as a contender. Seats are a sender and a receiver for each stream.
struct SharedStreams<A: Allocator<Block = Pfn>, C>(Arc<Streams<A, C>>);

impl<A: Allocator<Block = Pfn>, C: Channel> Contender<METRICS> for SharedStreams<A, C> {
    fn subject(&self) -> &dyn Subject {
        &self.0.allocator
    }

    fn window(&self, seat: Seat, units: u64) -> [f64; METRICS] {
        let (stream, messages) = (&self.0.streams[seat.index / 2], units * BURST);
        let start = Instant::now();
        if seat.index.is_multiple_of(2) {
            self.0.send(stream, seat.cpu, messages);
        } else {
            self.0.receive(stream, seat.cpu, messages);
        }
        let per_s = messages as f64 / start.elapsed().as_secs_f64();
        [per_s, per_s * f64::from(self.0.shape.bytes) / f64::from(1 << 20)]
    }

    /// A stream is as fast as its slower side; streams add up.
    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        let streams = || seats.chunks(2);
        std::array::from_fn(|metric| {
            streams().map(|pair| pair[0][metric].min(pair[1][metric])).sum()
        })
    }
}

/// Two owners of the same streams: one for their windows, one for the counts afterwards.
pub type Made = (Box<dyn Contender<METRICS>>, Box<dyn HasReuse>);

/// Makes streams of a shape over an allocator with so many pages, through a channel each.
///
/// # Errors
/// When a channel cannot be had.
pub fn streams<A: Allocator<Block = Pfn>, C: Channel>(
    allocator: A,
    shape: Shape,
    pages: u64,
    channel: impl Fn() -> Result<C, Failure>,
) -> Result<Made, Failure> {
    let stream = |_| Ok(Stream { channel: channel()?, sent: Mutex::default() });
    let streams = (0..shape.streams).map(stream).collect::<Result<_, Failure>>()?;
    let places = (pages >> ORDER.get()) as usize + 1;
    let freed_by = (0..places).map(|_| AtomicU32::new(0)).collect();
    let streams = Arc::new(Streams { allocator, shape, streams, freed_by });
    Ok((Box::new(SharedStreams(Arc::clone(&streams))), Box::new(streams)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_sit_on_neighbours_and_then_share_them_the_other_way_round() {
        let cpus: Vec<CpuId> = [4, 5].map(CpuId::new).into();
        let seats = |streams| -> Vec<u32> {
            let shape = Shape { streams, in_flight: 1, bytes: 8 };
            shape.seats(&cpus).iter().map(|cpu| cpu.get()).collect()
        };
        assert_eq!(seats(1), [4, 5]);
        assert_eq!(seats(3), [4, 5, 5, 4, 4, 5]);
    }

    #[test]
    fn crossings_are_reuses_of_what_another_cpu_freed() {
        let mut sent = SendLog::default();
        let here = CpuId::new(3);
        for freed_by in [0, 4, 5, 5] {
            sent.note(0, Pfn::new(8), freed_by, here);
        }
        assert_eq!((sent.messages, sent.reused, sent.crossed, sent.log.len()), (4, 3, 2, 4));
    }
}
