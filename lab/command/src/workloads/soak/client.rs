//! A client of a soak, on a CPU of its own: takes memory until none is left, and gives it back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagedepot::{CpuId, Mobility, Order, Pfn};

use pagedepot_cli::design::{Allocator, PAGE_BYTES};
use pagedepot_cli::harness::{cpus, lock, stop};

/// A block and the number written into its pages.
#[derive(Clone, Copy, Debug)]
pub struct StampedBlock {
    pub pfn: Pfn,
    pub order: Order,
    pub number: u64,
}

/// One in so many blocks has an order above 0.
const HIGH_ORDER_EVERY: u32 = 16;
/// One in so many blocks is freed by the next client, on its CPU.
const SENT_EVERY: u32 = 4;
/// Blocks freed by one call.
const BATCH: usize = 512;
/// Time between two ticks, as in the kernel.
const TICK: Duration = Duration::from_secs(1);

/// State that the clients of a design share.
#[derive(Default)]
pub struct Common {
    /// Blocks that others allocated and that the client must free, by client.
    pub mailboxes: Vec<Mutex<Vec<StampedBlock>>>,
    /// The last number written.
    numbers: AtomicU64,
    /// Pages touched, and times that memory was used up.
    pub pages: AtomicU64,
    pub used_up: AtomicU64,
}

impl Common {
    /// Makes the common state of so many clients.
    pub fn new(clients: usize) -> Self {
        Common { mailboxes: (0..clients).map(|_| Mutex::default()).collect(), ..Common::default() }
    }
}

/// A client at work.
pub struct SoakClient<'c, A> {
    pub allocator: &'c A,
    pub common: &'c Common,
    pub index: usize,
    pub random: fastrand::Rng,
}

impl<A: Allocator<Block = Pfn>> SoakClient<'_, A> {
    /// Works on `cpu` until `end`, at least one round, and then holds no block.
    ///
    /// # Errors
    /// When a page was handed out twice.
    pub fn run(mut self, cpu: CpuId, end: Instant) -> Result<(), String> {
        cpus::pin(cpu);
        self.allocator.enter();
        let (mut held, mut tick) = (Vec::new(), Instant::now() + TICK);
        loop {
            self.fill(&mut held);
            self.send(&mut held);
            self.give_back(&mut held)?;
            let now = Instant::now();
            if now >= end || stop::is_asked() {
                break;
            }
            if now >= tick {
                self.allocator.tick();
                tick += TICK;
            }
        }
        self.allocator.leave();
        Ok(())
    }

    /// Takes blocks until there are none, and writes a number of its own into each of their pages.
    fn fill(&mut self, held: &mut Vec<StampedBlock>) {
        let first = held.len();
        while let Some((pfn, order)) = self.alloc() {
            // Relaxed: a number, different from all others.
            let block = StampedBlock {
                pfn,
                order,
                number: self.common.numbers.fetch_add(1, Ordering::Relaxed),
            };
            for word in words(self.allocator, block) {
                // SAFETY: the page is this client's.
                unsafe { word.write_volatile(block.number) };
            }
            held.push(block);
        }
        let pages = held[first..].iter().map(|block| u64::from(block.order.frames())).sum();
        self.common.pages.fetch_add(pages, Ordering::Relaxed);
        self.common.used_up.fetch_add(1, Ordering::Relaxed);
    }

    fn alloc(&mut self) -> Option<(Pfn, Order)> {
        if self.random.u32(0..HIGH_ORDER_EVERY) == 0 {
            let order = Order::new(self.random.u32(1..=3)).expect("there are these orders");
            let mobility = [Mobility::Unmovable, Mobility::Movable][self.random.usize(0..2)];
            if let Some(pfn) = self.allocator.alloc_block(order, mobility) {
                return Some((pfn, order));
            }
        }
        Some((self.allocator.zeroed()?, Order::BASE))
    }

    fn mailbox(&self, index: usize) -> std::sync::MutexGuard<'_, Vec<StampedBlock>> {
        let mailboxes = &self.common.mailboxes;
        lock(&mailboxes[index % mailboxes.len()])
    }

    fn send(&mut self, held: &mut Vec<StampedBlock>) {
        let random = &mut self.random;
        let (sent, kept) = held.drain(..).partition(|_| random.u32(0..SENT_EVERY) == 0);
        *held = kept;
        let sent: Vec<StampedBlock> = sent;
        self.mailbox(self.index + 1).extend(sent);
    }

    /// Frees everything: some one by one in random order, the others in batches.
    fn give_back(&mut self, held: &mut Vec<StampedBlock>) -> Result<(), String> {
        held.append(&mut self.mailbox(self.index));
        self.random.shuffle(held);
        held.iter().try_for_each(|&block| check(self.allocator, block))?;
        let alone = held.len() / 2;
        held.drain(..alone).for_each(|block| self.allocator.free_block(block.pfn, block.order));
        for blocks in held.chunks(BATCH) {
            let batch: Vec<_> = blocks.iter().map(|block| (block.pfn, block.order)).collect();
            self.allocator.free_many(&batch);
        }
        held.clear();
        Ok(())
    }
}

/// The first word of each page of a block.
fn words<A: Allocator<Block = Pfn>>(
    allocator: &A,
    block: StampedBlock,
) -> impl Iterator<Item = *mut u64> {
    let start = allocator.address(block.pfn).cast::<u64>().as_ptr();
    let words_per_page = PAGE_BYTES / size_of::<u64>();
    (0..block.order.frames() as usize).map(move |page| start.wrapping_add(page * words_per_page))
}

/// Whether a block still holds its number.
pub fn check<A: Allocator<Block = Pfn>>(allocator: &A, block: StampedBlock) -> Result<(), String> {
    for word in words(allocator, block) {
        // SAFETY: the page is the caller's, and its allocating client wrote to it.
        let found = unsafe { word.read_volatile() };
        if found != block.number {
            return Err(format!("a page of {} was handed out twice", block.pfn));
        }
    }
    Ok(())
}
