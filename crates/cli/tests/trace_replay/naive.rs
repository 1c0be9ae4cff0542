//! An allocator simple enough to be right: first fit over a list of frames, per-CPU stacks for
//! orders 0 to 3 with fixed batch and bound.

use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};

use pagedepot_cli::tested::{InitialBlock, ReplayCounts, ReplayTarget};
use pagedepot_designs::{Census, FreeMap};

const BATCH: usize = 8;
const HIGH: usize = 32;
const ORDERS_CACHED: usize = 4;

pub struct Naive {
    free: Vec<bool>,
    /// First frame of the search: all below is taken.
    first_free: usize,
    /// Blocks by CPU, then order and mobility.
    stacks: Vec<Vec<Vec<Pfn>>>,
    counts: ReplayCounts,
    /// Loses every n-th freed block; 0: none.
    pub leak_every: u64,
    frees: u64,
}

impl Naive {
    pub fn new(cpus: usize, frames: u64) -> Self {
        Naive {
            free: vec![true; frames as usize],
            first_free: 0,
            stacks: vec![vec![Vec::new(); ORDERS_CACHED * Mobility::COUNT]; cpus],
            counts: ReplayCounts::default(),
            leak_every: 0,
            frees: 0,
        }
    }

    fn take(&mut self, order: Order) -> Option<Pfn> {
        let frames = order.frames() as usize;
        let start = self.first_free.next_multiple_of(frames);
        let mut starts = (start..(self.free.len() + 1).saturating_sub(frames)).step_by(frames);
        let at = starts.find(|&at| self.free[at..at + frames].iter().all(|&free| free))?;
        self.free[at..at + frames].fill(false);
        if order == Order::BASE {
            self.first_free = at + 1;
        }
        Some(Pfn::new(at as u32))
    }

    fn give(&mut self, pfn: Pfn, order: Order) {
        for frame in &mut self.free[pfn.index()..][..order.frames() as usize] {
            assert!(!*frame, "{pfn:?} was free");
            *frame = true;
        }
        self.first_free = self.first_free.min(pfn.index());
    }

    /// The stack that serves a block, and the order and mobility it stands for.
    fn stack(order: Order, mobility: Mobility) -> Option<usize> {
        (order.index() < ORDERS_CACHED).then(|| order.index() * Mobility::COUNT + mobility.index())
    }

    fn order_of(stack: usize) -> Order {
        Order::new((stack / Mobility::COUNT) as u32).expect("a cached order")
    }

    fn cached(stacks: &[Vec<Pfn>]) -> u64 {
        stacks
            .iter()
            .enumerate()
            .map(|(i, stack)| stack.len() as u64 * u64::from(Self::order_of(i).frames()))
            .sum()
    }

    fn spill(&mut self, cpu: usize, stack: usize, keep: usize) {
        let order = Self::order_of(stack);
        for pfn in self.stacks[cpu][stack].split_off(keep) {
            self.give(pfn, order);
            self.counts.spilled.add(order);
        }
    }
}

impl ReplayTarget for Naive {
    fn hold(&mut self, blocks: &[InitialBlock]) -> Option<Vec<Pfn>> {
        blocks.iter().map(|known| self.take(known.order)).collect()
    }

    fn alloc(
        &mut self,
        cpu: CpuId,
        _zone: ZoneId,
        order: Order,
        mobility: Mobility,
    ) -> Option<Pfn> {
        let Some(stack) = Self::stack(order, mobility) else {
            let pfn = self.take(order)?;
            self.counts.direct_allocated.add(order);
            self.counts.refilled.add(order);
            return Some(pfn);
        };
        if let Some(pfn) = self.stacks[cpu.index()][stack].pop() {
            self.counts.hits += 1;
            return Some(pfn);
        }
        for _ in 0..BATCH {
            let Some(pfn) = self.take(order) else { break };
            self.counts.refilled.add(order);
            self.stacks[cpu.index()][stack].push(pfn);
        }
        self.stacks[cpu.index()][stack].pop()
    }

    fn free(&mut self, cpu: CpuId, pfn: Pfn, order: Order) {
        self.frees += 1;
        // The mobility of a block does not matter to this one.
        let Some(stack) = Self::stack(order, Mobility::Movable) else {
            self.counts.direct_freed.add(order);
            self.counts.spilled.add(order);
            return self.give(pfn, order);
        };
        self.counts.hits += 1;
        if self.leak_every > 0 && self.frees.is_multiple_of(self.leak_every) {
            // Its counters say that it spilled the block; the store never gets it.
            self.counts.spilled.add(order);
            return;
        }
        self.stacks[cpu.index()][stack].push(pfn);
        if self.stacks[cpu.index()][stack].len() > HIGH {
            self.spill(cpu.index(), stack, HIGH - BATCH);
        }
    }

    fn free_many(&mut self, cpu: CpuId, blocks: &[(Pfn, Order)]) {
        for &(pfn, order) in blocks {
            self.free(cpu, pfn, order);
        }
    }

    fn halve(&mut self, pfn: Pfn, order: Order) {
        assert!(order > Order::BASE && pfn.is_aligned(order));
    }

    fn counts(&self) -> ReplayCounts {
        let cached_pages = self.stacks.iter().map(|stacks| Self::cached(stacks)).collect();
        ReplayCounts { cached_pages, ..self.counts.clone() }
    }

    fn cached_pages_total(&self) -> u64 {
        self.stacks.iter().map(|stacks| Self::cached(stacks)).sum()
    }

    fn census(&mut self) -> Result<Census, String> {
        let mut census = Census::default();
        census.managed_pages = self.free.len() as u64;
        census.free_pages = self.free.iter().filter(|&&free| free).count() as u64;
        census.cached_pages = self.cached_pages_total();
        Ok(census)
    }

    fn free_map(&self) -> Result<FreeMap, String> {
        let is_free = |pfn: Pfn| self.free[pfn.index()];
        Ok(FreeMap::by_frame(0, self.free.len() as u64, is_free))
    }

    fn drain_all(&mut self) {
        for cpu in 0..self.stacks.len() {
            for stack in 0..self.stacks[cpu].len() {
                self.spill(cpu, stack, 0);
            }
        }
    }
}
