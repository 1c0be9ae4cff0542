//! One design doing the workload, a seat per thread.
//!
//! The warm-up window fills the memory and makes rounds without a look; each window after it is a
//! round of so many pages allocated and freed. Then the seats wait for each other, seat 0 looks at
//! what is free, and the others wait until it has. What is held is freed when the seats leave.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pagedepot::{Mobility, Order, Pfn};
use pagedepot_designs::FreeMap;

use pagedepot_cli::design::Allocator;
use pagedepot_cli::harness::barrier::SpinBarrier;
use pagedepot_cli::harness::{Contender, Seat, Subject, lock};
use pagedepot_cli::workloads::shape::Shape;

/// A round moves this part of a seat's share of the memory. It is no fraction of what a level
/// takes, so looks come at all moments between one level and the next.
const ROUND_PERCENT: u64 = 37;

/// Rounds before the first look: what LLFree's program does of 4 GiB in its first second, by two
/// threads that share two CPUs with others.
const ROUNDS_UNSEEN: u32 = 16;

/// The blocks that a seat holds, and the way to its next level.
struct Held<B> {
    blocks: Vec<(B, Order)>,
    pages: u64,
    /// Pages that the seat is about to hold.
    level: u64,
    random: fastrand::Rng,
    windows: u32,
}

impl<B> Held<B> {
    /// Draws the next level, and the order in which blocks are freed on the way there.
    fn draw_level(&mut self, share: u64) {
        self.level = self.random.u64(..share);
        self.random.shuffle(&mut self.blocks);
    }
}

/// One design doing the workload, a seat per thread.
pub struct Seats<A: Allocator> {
    allocator: A,
    shape: Shape,
    order_max: Order,
    held: Vec<Mutex<Held<A::Block>>>,
    barrier: SpinBarrier,
}

impl<A: Allocator> Seats<A> {
    /// A run over this allocator, with blocks of orders up to `order_max`.
    pub fn new(allocator: A, shape: Shape, order_max: Order) -> Self {
        let held = (0..shape.threads as u64).map(|seat| {
            Mutex::new(Held {
                blocks: Vec::new(),
                pages: 0,
                level: u64::MAX,
                // Seats draw from streams of their own, the same for every design.
                random: fastrand::Rng::with_seed(shape.seed.wrapping_add(seat << 32)),
                windows: 0,
            })
        });
        let (held, barrier) = (held.collect(), SpinBarrier::new(shape.threads));
        Seats { allocator, shape, order_max, held, barrier }
    }

    /// Pages of a seat's part of the memory.
    fn share(&self) -> u64 {
        self.shape.pages / self.shape.threads as u64
    }

    /// Allocates blocks until the seat has its part, or there are no more.
    fn fill(&self, held: &mut Held<A::Block>) {
        while held.pages < self.share() && self.grow(held) {}
        held.draw_level(self.share());
    }

    /// Allocates a block. `false`: there is none.
    fn grow(&self, held: &mut Held<A::Block>) -> bool {
        let order = held.random.u32(..=self.order_max.get());
        let order = Order::new(order).expect("not above the highest order");
        let Some(block) = self.allocator.alloc_block(order, Mobility::Movable) else {
            return false;
        };
        held.blocks.push((block, order));
        held.pages += u64::from(order.frames());
        true
    }

    /// Frees the block that comes next. `false`: there is none.
    fn shrink(&self, held: &mut Held<A::Block>) -> bool {
        let Some((block, order)) = held.blocks.pop() else { return false };
        self.allocator.free_block(block, order);
        held.pages -= u64::from(order.frames());
        true
    }

    /// Allocates and frees as many pages as a round has; nanoseconds per operation. The time does
    /// not contain the draws of levels, each of which shuffles all blocks that the seat holds.
    fn round(&self, held: &mut Held<A::Block>) -> f64 {
        let (mut left, mut operations) = (self.share() * ROUND_PERCENT / 100, 0_u64);
        let mut grows = held.pages < held.level;
        let (mut elapsed, mut start) = (Duration::ZERO, Instant::now());
        while left > 0 {
            let before = held.pages;
            let is_done = match grows {
                true => held.pages >= held.level || !self.grow(held),
                false => held.pages <= held.level || !self.shrink(held),
            };
            if is_done {
                elapsed += start.elapsed();
                held.draw_level(self.share());
                start = Instant::now();
                grows = held.pages < held.level;
                // Memory that is full, and a level above what is held, draw again and again.
                left -= 1;
                continue;
            }
            operations += 1;
            left = left.saturating_sub(held.pages.abs_diff(before));
        }
        elapsed += start.elapsed();
        elapsed.as_nanos() as f64 / operations.max(1) as f64
    }

    /// The shares of free memory that whole pageblocks are: by the store, and by what is held.
    fn look(&self) -> [f64; 2] {
        let seats: Vec<MutexGuard<'_, _>> = self.held.iter().map(lock).collect();
        let mut by_held = FreeMap::by_frame(0, self.shape.pages, |_| true);
        for &(block, order) in seats.iter().flat_map(|held| &held.blocks) {
            by_held.remove(Pfn::new(self.allocator.frame(block) as u32), order);
        }
        let in_store = match self.allocator.free_map() {
            Ok(map) => map.expect("the workload offers designs that tell"),
            Err(fault) => panic!("{}: {fault}: please report it", A::DESIGN),
        };
        let free = by_held.free_pages() as f64;
        [in_store, by_held].map(|map| {
            (map.whole_pageblocks() * u64::from(Order::PAGEBLOCK.frames())) as f64 / free
        })
    }
}

impl<A: Allocator> Contender<3> for Seats<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn leave(&self) {
        for held in &self.held {
            while self.shrink(&mut lock(held)) {}
        }
        self.allocator.leave();
    }

    fn window(&self, Seat { index: seat, .. }: Seat, _units: u64) -> [f64; 3] {
        let _guard = self.barrier.guard();
        let mut held = lock(&self.held[seat]);
        held.windows += 1;
        let op_ns = match held.windows {
            1 => {
                self.fill(&mut held);
                (0..ROUNDS_UNSEEN).for_each(|_| _ = self.round(&mut held));
                f64::NAN
            }
            _ => self.round(&mut held),
        };
        drop(held);
        self.barrier.wait();
        let shares = if seat == 0 { self.look() } else { [f64::NAN; 2] };
        self.barrier.wait();
        [shares[0], shares[1], op_ns]
    }

    /// The mean time of all seats, and what seat 0 saw.
    fn combine(&self, seats: &[[f64; 3]]) -> [f64; 3] {
        let op_ns = seats.iter().map(|seat| seat[2]).sum::<f64>() / seats.len() as f64;
        [seats[0][0], seats[0][1], op_ns]
    }
}
