//! One design doing the workload, a seat per thread.
//!
//! The warm-up window fills the memory; each window after it is a round. After the last one the
//! seats shrink page cache, wait for each other, and seat 0 looks at what is left. What is held is
//! freed when the seats leave, so that a run that the user stops loses nothing either.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagedepot::{Mobility, Mode, Order};

use super::ends::{Ends, examine};
use super::holdings::{Handle, Holdings};
use super::kinds::{BlockOrder, Stock, Stocks};
use super::params::{CACHE, Dies, FULL_PERCENT, KINDS};
use pagedepot_cli::design::Allocator;
use pagedepot_cli::harness::barrier::SpinBarrier;
use pagedepot_cli::harness::{Contender, Seat, Subject, lock};
use pagedepot_cli::workloads::shape::Shape;

/// Blocks of bursts that wait for their reader at most. The sender frees what is more.
const UNREAD_MAX: usize = 256;
/// Blocks that a reader frees by one call at most.
const READ_TOGETHER_MAX: usize = 8;
/// Blocks of page cache that give way at once when a single frame cannot be had.
const RECLAIMED_BLOCKS: u32 = 32;
/// Times that they do, before the workload ends.
const RETRIES: u32 = 1000;

/// Blocks of a network burst, with their orders.
type Burst<A> = Vec<(<A as Allocator>::Block, Order)>;

/// One design doing the workload, a seat per thread.
pub struct Churn<A: Allocator> {
    allocator: A,
    shape: Shape,
    holdings: Arc<Holdings>,
    held: Vec<Mutex<Stocks>>,
    /// Blocks of bursts that each seat is to read and free.
    unread: Vec<Mutex<Burst<A>>>,
    barrier: SpinBarrier,
    ends: Arc<Ends>,
}

impl<A: Allocator> Churn<A> {
    /// A run over this allocator, with a seat per thread of the shape.
    pub fn new(mut allocator: A, shape: Shape) -> Self {
        let threads = shape.threads as u64;
        let handles = shape.pages / threads;
        let held = (0..threads).map(|seat| {
            let seed = shape.seed.wrapping_add(seat << 32);
            let handles = (seat * handles..(seat + 1) * handles).map(|handle| handle as Handle);
            let pages = shape.held_pages() / threads;
            Mutex::new(Stocks {
                seat: seat as usize,
                ..Stocks::new(pages, shape.surges_percent, seed, handles.collect())
            })
        });
        let holdings = Arc::new(Holdings::new(shape.pages));
        if A::COMPACTS && shape.moves {
            allocator.register_mover(holdings.clone());
        }
        Churn {
            allocator,
            shape,
            holdings,
            held: held.collect(),
            unread: (0..threads).map(|_| Mutex::default()).collect(),
            barrier: SpinBarrier::new(shape.threads),
            ends: Arc::default(),
        }
    }

    /// The results of the run at its end.
    pub fn ends(&self) -> Arc<Ends> {
        self.ends.clone()
    }

    /// Pages that a seat holds at most.
    fn full_pages(&self) -> u64 {
        self.shape.pages / self.shape.threads as u64 * FULL_PERCENT / 100
    }

    /// Allocates every kind up to its target, and page cache until memory is full.
    fn fill(&self, held: &mut Stocks) {
        for kind in 0..KINDS.len() {
            let target = if kind == CACHE { u64::MAX } else { held.stocks[kind].target_pages };
            while held.stocks[kind].pages < target && held.pages() < self.full_pages() {
                self.grow(held, kind);
            }
        }
    }

    /// Replaces a share of every kind. Kinds that surge grow in the first half, and shrink again in
    /// the second.
    fn round(&self, held: &mut Stocks) {
        self.replace(held, |stock| stock.target_pages + stock.surge_pages);
        self.replace(held, |stock| stock.target_pages);
    }

    /// Half a round, towards these pages of each kind: in steps, each of a kind drawn by what is
    /// left to replace.
    fn replace(&self, held: &mut Stocks, goal: fn(&Stock) -> u64) {
        let pages_of = |stock: &Stock| stock.replaced_pages() / 2 + stock.surge_pages;
        let mut left: Vec<u64> = held.stocks.iter().map(pages_of).collect();
        while left.iter().any(|&pages| pages > 0) {
            let sum: u64 = left.iter().sum();
            let mut drawn = held.random.u64(..sum);
            let kind = left.iter().position(|&pages| {
                let found = drawn < pages;
                drawn = drawn.saturating_sub(pages);
                found
            });
            let kind = kind.expect("drawn from their sum");
            let pages = self.replace_one(held, kind, goal(&held.stocks[kind]));
            left[kind] = left[kind].saturating_sub(pages.max(1));
        }
    }

    /// Replaces a group or a block of a kind, or only allocates or frees one where that leads to
    /// the goal. Returns pages.
    fn replace_one(&self, held: &mut Stocks, kind: usize, goal: u64) -> u64 {
        self.read(held);
        let before = held.stocks[kind].pages;
        if before >= goal {
            self.shrink(held, kind);
        }
        let left = held.stocks[kind].pages;
        let shrinks = left >= goal && held.stocks[kind].surge_pages > 0;
        if shrinks { before - left } else { self.grow(held, kind) }
    }

    /// Allocates a group; the pages allocated.
    fn grow(&self, held: &mut Stocks, kind: usize) -> u64 {
        let mut left = held.stocks[kind].draw_group(&mut held.random);
        let mut group = Vec::new();
        let mut taken = 0;
        while left > 0 {
            let order = held.stocks[kind].draw_order(&mut held.random, left.max(8));
            let pages = u64::from(order.frames());
            while held.pages() + taken + pages > self.full_pages() && self.shrink(held, CACHE) {}
            self.allocate(held, kind, order, &mut group);
            taken += pages;
            left = left.saturating_sub(pages);
        }
        held.stocks[kind].add(group);
        taken
    }

    /// Allocates a block, or as many single frames.
    fn allocate(&self, held: &mut Stocks, kind: usize, order: Order, to: &mut Vec<BlockOrder>) {
        let mobility = KINDS[kind].mobility;
        held.operations += 1;
        if let Some(block) = self.allocator.alloc_block(order, mobility) {
            to.push(self.hold(held, block, order, mobility));
            return;
        }
        held.fallbacks += u64::from(order > Order::BASE);
        for _ in 0..order.frames() {
            let block = (0..RETRIES).find_map(|_| {
                held.operations += 1;
                let block = self.allocator.alloc_block(Order::BASE, mobility);
                if block.is_none() {
                    self.read(held);
                    (0..RECLAIMED_BLOCKS).for_each(|_| _ = self.shrink(held, CACHE));
                }
                block
            });
            let Some(block) = block else {
                panic!(
                    "{} ran out of frames with {} pages held: give --memory-mib more",
                    A::DESIGN,
                    held.pages()
                )
            };
            to.push(self.hold(held, block, Order::BASE, mobility));
        }
    }

    fn hold(
        &self,
        held: &mut Stocks,
        block: A::Block,
        order: Order,
        mobility: Mobility,
    ) -> BlockOrder {
        let handle = held.handles.pop().expect("there are as many handles as pages");
        self.holdings.hold(handle, (block, self.allocator.frame(block)), order, mobility);
        (handle, order)
    }

    /// Frees what dies next of a kind. `false`: there is nothing.
    fn shrink(&self, held: &mut Stocks, kind: usize) -> bool {
        let dead = held.stocks[kind].take(&mut held.random);
        self.free(held, &dead, KINDS[kind].dies);
        !dead.is_empty()
    }

    fn free(&self, held: &mut Stocks, dead: &[BlockOrder], dies: Dies) {
        held.handles.extend(dead.iter().map(|dead| dead.0));
        let mut blocks = dead.iter().map(|&(handle, order)| (self.holdings.release(handle), order));
        if dies == Dies::InOrder && self.unread.len() > 1 {
            let mut unread = lock(&self.unread[(held.seat + 1) % self.unread.len()]);
            let room = UNREAD_MAX.saturating_sub(unread.len());
            unread.extend(blocks.by_ref().take(room));
        }
        if dies == Dies::Together {
            let blocks: Vec<_> = blocks.collect();
            held.operations += blocks.len() as u64;
            self.allocator.free_many(&blocks);
        } else {
            blocks.for_each(|(block, order)| {
                held.operations += 1;
                self.allocator.free_block(block, order);
            });
        }
    }

    /// Frees what another seat has sent to this one: single blocks, and a few by one call.
    fn read(&self, held: &mut Stocks) {
        let sent = std::mem::take(&mut *lock(&self.unread[held.seat]));
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (now, later) =
                rest.split_at(held.random.usize(1..=READ_TOGETHER_MAX.min(rest.len())));
            held.operations += now.len() as u64;
            match *now {
                [(block, order)] => self.allocator.free_block(block, order),
                _ => self.allocator.free_many(now),
            }
            rest = later;
        }
    }

    /// Frees page cache until the share asked for is free.
    fn shrink_cache(&self, held: &mut Stocks) {
        let goal = self.shape.held_pages() / self.shape.threads as u64;
        while held.pages() > goal && self.shrink(held, CACHE) {}
    }

    /// Looks at what is left after the last round, once every seat has shrunk its page cache.
    fn finish(&self, seat: usize) {
        self.shrink_cache(&mut lock(&self.held[seat]));
        self.barrier.wait();
        if seat == 0 {
            self.held.iter().for_each(|held| self.read(&mut lock(held)));
            let drain = if A::DRAINS.contains(&Mode::Full) { Mode::Full } else { Mode::Quiet };
            self.allocator.drain(None, drain);
            let seats: Vec<_> = self.held.iter().map(lock).collect();
            let held: Vec<_> = seats.iter().map(|held| &**held).collect();
            let end = examine(&self.allocator, self.shape.pages, &self.holdings, &held);
            *lock(&self.ends) = Some(end);
        }
    }

    /// Frees everything that is held.
    fn free_all(&self) {
        for held in &self.held {
            let mut held = lock(held);
            self.read(&mut held);
            for kind in 0..KINDS.len() {
                let rest = held.stocks[kind].take_all();
                self.free(&mut held, &rest, Dies::Alone);
            }
        }
    }
}

impl<A: Allocator> Contender<1> for Churn<A> {
    fn subject(&self) -> &dyn Subject {
        &self.allocator
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        Some(&mut self.allocator)
    }

    fn leave(&self) {
        self.free_all();
        self.allocator.leave();
    }

    fn window(&self, Seat { index: seat, .. }: Seat, _units: u64) -> [f64; 1] {
        let _guard = self.barrier.guard();
        let mut held = lock(&self.held[seat]);
        held.windows += 1;
        let (window, before, start) = (held.windows - 1, held.operations, Instant::now());
        if window == 0 {
            self.fill(&mut held);
        } else {
            self.round(&mut held);
        }
        let operations = (held.operations - before).max(1);
        let op_ns = start.elapsed().as_nanos() as f64 / operations as f64;
        drop(held);
        if window == self.shape.rounds {
            self.finish(seat);
        }
        [op_ns]
    }
}
