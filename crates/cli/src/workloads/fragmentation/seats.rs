//! One design doing the workload, a seat per thread.
//!
//! The warm-up window fills the memory and frees a share of it; each window after it is a round.
//! In every window the seats wait for each other twice: when all have stopped, seat 0 looks at the
//! design, and the others wait until it has. What is held is freed when the seats leave, so that a
//! run that the user stops loses nothing either.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagedepot::Mode;

use super::frames::{Contiguity, Frames};
use crate::harness::barrier::SpinBarrier;
use crate::harness::{Contender, Seat, Subject, lock};
use crate::workloads::shape::Shape;

/// `realloc_ns`, `whole_share`, `gib_ranges`, `tainted_share`.
pub const METRICS: usize = 4;

/// Percent of the free frames that a round reallocates.
const REALLOCATED_PERCENT: u64 = 10;

/// Frames that are copied out of what is held before the first of them is freed. What is held does
/// not fit a CPU's second cache, nor its pages a CPU's first table of translations: a free would
/// wait for the place of its frame longer than for the design.
const COPIED: usize = 128;

/// Times that a request is repeated, after a drain, before the workload ends.
const RETRIES: u32 = 100;

/// The results of a run besides its rounds.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Contiguity before the first round.
    pub first: Option<Contiguity>,
    /// Contiguity after the last round and a drain of all caches.
    pub drained: Option<Contiguity>,
    /// The fault in the design's metadata.
    pub fault: Option<String>,
}

/// An [`End`] that the run writes and its starter reads.
pub type Ends = Mutex<End>;

/// The blocks that a seat holds. Locked by its seat during a window, and by seat 0 when all have
/// stopped.
struct SeatBlocks<B> {
    blocks: Vec<B>,
    /// Windows so far.
    windows: u32,
    random: fastrand::Rng,
    /// The places of the frames that a round reallocates, in order.
    places: Vec<u32>,
}

impl<B> SeatBlocks<B> {
    /// Draws `count` places at random: different ones among those that are copied together.
    fn draw_places(&mut self, count: usize) {
        let at_once = self.at_once();
        self.places.clear();
        while self.places.len() < count {
            let place = self.random.u32(..self.blocks.len() as u32);
            let first = self.places.len() / at_once * at_once;
            if !self.places[first..].contains(&place) {
                self.places.push(place);
            }
        }
    }

    /// Frames that are copied together.
    fn at_once(&self) -> usize {
        COPIED.min(self.blocks.len())
    }
}

/// One design doing the workload, a seat per thread.
pub struct Seats<F: Frames> {
    frames: F,
    shape: Shape,
    held: Vec<Mutex<SeatBlocks<F::Block>>>,
    barrier: SpinBarrier,
    ends: Arc<Ends>,
}

impl<F: Frames> Seats<F> {
    /// A run over these frames, with a seat per thread of the shape.
    pub fn new(frames: F, shape: Shape) -> Self {
        let held = (0..shape.threads as u64).map(|seat| {
            Mutex::new(SeatBlocks {
                blocks: Vec::with_capacity((shape.pages / shape.threads as u64 + 1) as usize),
                windows: 0,
                // Seats draw from streams of their own, the same for every design.
                random: fastrand::Rng::with_seed(shape.seed.wrapping_add(seat << 32)),
                places: Vec::new(),
            })
        });
        Seats {
            frames,
            shape,
            held: held.collect(),
            barrier: SpinBarrier::new(shape.threads),
            ends: Arc::default(),
        }
    }

    /// The results of the run besides its rounds.
    pub fn ends(&self) -> Arc<Ends> {
        self.ends.clone()
    }

    /// Fills the memory, deals the frames out to the seats, and frees what is not to be held.
    fn fill(&self, seat: usize) {
        let share = (self.shape.pages / self.shape.threads as u64) as usize;
        {
            let mut held = lock(&self.held[seat]);
            // Memory that the design took for its metadata, and what other CPUs cache, is missing.
            held.blocks.extend((0..share).map_while(|_| self.frames.alloc()));
        }
        self.in_turn(seat, || {
            self.frames.filled();
            self.deal();
        });
        let mut held = lock(&self.held[seat]);
        let kept = self.kept(seat);
        held.blocks.drain(kept..).for_each(|block| self.frames.free(block));
    }

    /// Frames that a seat holds between windows.
    fn kept(&self, seat: usize) -> usize {
        let (held, seats) = (self.shape.held_pages() as usize, self.shape.threads);
        held / seats + usize::from(seat < held % seats)
    }

    /// Shuffles all frames, and gives each seat as many as the others.
    ///
    /// # Panics
    /// When the design gave fewer frames than are to be held in the end.
    fn deal(&self) {
        let mut seats: Vec<_> = self.held.iter().map(lock).collect();
        let mut all: Vec<_> = seats.iter_mut().flat_map(|seat| seat.blocks.drain(..)).collect();
        assert!(
            all.len() as u64 >= self.shape.held_pages(),
            "{} gave {} of {} frames: give --free-percent more, or --memory-mib",
            self.frames.design(),
            all.len(),
            self.shape.pages
        );
        seats[0].random.shuffle(&mut all);
        let (each, more) = (all.len() / seats.len(), all.len() % seats.len());
        for (nth, seat) in seats.iter_mut().enumerate() {
            let rest = all.len() - each - usize::from(nth < more);
            seat.blocks.extend(all.drain(rest..));
        }
    }

    /// Runs `work` on seat 0 while the others have stopped.
    fn in_turn(&self, seat: usize, work: impl FnOnce()) {
        self.barrier.wait();
        if seat == 0 {
            work();
        }
        self.barrier.wait();
    }

    /// Frees and allocates frames at random; nanoseconds for each pair.
    fn reallocate(&self, seat: usize) -> f64 {
        let mut held = lock(&self.held[seat]);
        let free = self.shape.pages - self.shape.held_pages();
        let count = (free * REALLOCATED_PERCENT / 100).div_ceil(self.shape.threads as u64) as usize;
        held.draw_places(count);
        let at_once = held.at_once();
        let SeatBlocks { blocks, places, .. } = &mut *held;
        // Between rounds other designs, and the look at this one, took the CPU's cache.
        blocks.iter().for_each(|&block| _ = std::hint::black_box(block));
        self.barrier.wait();
        let (mut copied, mut spent) = (Vec::with_capacity(at_once), Duration::ZERO);
        for places in places.chunks(at_once) {
            copied.extend(places.iter().map(|&place| blocks[place as usize]));
            let start = Instant::now();
            exchange(&self.frames, &mut copied, &|| self.alloc_drained());
            spent += start.elapsed();
            for (&place, block) in places.iter().zip(copied.drain(..)) {
                blocks[place as usize] = block;
            }
        }
        spent.as_nanos() as f64 / count as f64
    }

    /// A frame, where all that are free are in other CPUs' caches.
    #[cold]
    fn alloc_drained(&self) -> F::Block {
        let again = || {
            self.frames.drain(Mode::Quiet);
            self.frames.alloc()
        };
        (0..RETRIES).find_map(|_| again()).unwrap_or_else(|| {
            panic!(
                "{} ran out of frames with {} % of them free: give --memory-mib more",
                self.frames.design(),
                self.shape.free_percent
            )
        })
    }

    fn look(&self) -> Option<Contiguity> {
        let seats: Vec<_> = self.held.iter().map(lock).collect();
        let held: Vec<_> = seats.iter().map(|seat| &seat.blocks[..]).collect();
        match self.frames.contiguity(self.shape.pages, &held) {
            Ok(contiguity) => Some(contiguity),
            Err(fault) => {
                lock(&self.ends).fault.get_or_insert(fault);
                None
            }
        }
    }

    /// Drains all caches, and looks for the last time.
    fn finish(&self, seat: usize) {
        self.in_turn(seat, || {
            self.frames.drain(Mode::Full);
            let drained = self.look();
            lock(&self.ends).drained = drained;
        });
    }

    /// Frees everything that is held.
    fn free_all(&self) {
        for held in &self.held {
            lock(held).blocks.drain(..).for_each(|block| self.frames.free(block));
        }
    }
}

/// Frees each of `blocks` and allocates another, by `alloc_drained` where there is none.
///
/// A function of its own: the compiler knows that nothing changes what its first argument points
/// to, and keeps what it reads there in registers, as in the loop of a program that has a depot.
#[inline(never)]
fn exchange<F: Frames>(frames: &F, blocks: &mut [F::Block], alloc_drained: &dyn Fn() -> F::Block) {
    for block in blocks {
        frames.free(*block);
        *block = match frames.alloc() {
            Some(block) => block,
            None => alloc_drained(),
        };
    }
}

impl<F: Frames> Contender<METRICS> for Seats<F> {
    fn subject(&self) -> &dyn Subject {
        &self.frames
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.frames)
    }

    fn leave(&self) {
        self.free_all();
        self.frames.leave();
    }

    fn window(&self, Seat { index: seat, .. }: Seat, _units: u64) -> [f64; METRICS] {
        let _guard = self.barrier.guard();
        let window = {
            let mut held = lock(&self.held[seat]);
            held.windows += 1;
            held.windows - 1
        };
        let realloc_ns = if window == 0 {
            self.fill(seat);
            f64::NAN
        } else {
            self.reallocate(seat)
        };
        let mut found = None;
        self.in_turn(seat, || found = self.look());
        if seat == 0 && window == 0 {
            lock(&self.ends).first = found;
        }
        if window == self.shape.rounds {
            self.finish(seat);
        }
        let Contiguity { whole_share, gib_ranges, tainted_share } =
            found.unwrap_or(Contiguity::UNKNOWN);
        [realloc_ns, whole_share, gib_ranges, tainted_share]
    }

    /// The mean time of all seats, and what seat 0 saw.
    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        let mut combined = seats[0];
        combined[0] = seats.iter().map(|seat| seat[0]).sum::<f64>() / seats.len() as f64;
        combined
    }
}
