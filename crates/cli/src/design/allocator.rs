//! The trait of every measured design.

use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::{CpuId, Mobility, Mode, Order, Pfn};
use pagedepot_contiguity::Mover;
use pagedepot_designs::{Counts, DrainResult, FreeMap};

use super::block::Block;
use super::demand::Demand;
use crate::failure::Failure;
use crate::harness::Subject;
use crate::names::Design;

/// A design, ready to be measured.
///
/// Every design allocates and frees blocks whose order is known when the loop is compiled. What
/// else one offers depends on what it is; the methods that it does not override say so:
///
/// | designs | also offer |
/// |---|---|
/// | [`Design::PAGED`], with [`Pfn`]s for blocks | everything |
/// | peers | memory: `zeroed`, `address`; `frame-alloc` also drains |
/// | floors | `floor-spin` drains |
pub trait Allocator: Send + Sync + Sized + 'static {
    /// The design's name.
    const DESIGN: Design;
    /// The drains there are. A design with one kind of drain offers [`Mode::Quiet`].
    const DRAINS: &'static [Mode] = &[];

    /// Whether it can allocate ranges of more than its largest block.
    const RANGES: bool = false;

    /// Whether it can move blocks that callers hold.
    const COMPACTS: bool = false;

    /// The name of a block.
    type Block: Block;

    /// Makes the allocator.
    ///
    /// # Errors
    /// When its memory cannot be had, or the machine lacks what it needs.
    fn new(demand: &Demand) -> Result<Self, Failure>;

    /// Called by each thread before its first operation.
    fn enter(&self) {}

    /// Called by each thread after its last.
    fn leave(&self) {}

    /// Allocates a block of 2^ORDER frames; `None` when there is none.
    fn alloc<const ORDER: u32>(&self) -> Option<Self::Block>;

    /// Frees a block of 2^ORDER frames that `alloc` returned, once.
    fn free<const ORDER: u32>(&self, block: Self::Block);

    /// Called by a thread before it sleeps.
    fn rest(&self) {}

    /// Does the work that a kernel does on each CPU about once a second: caches that idle shrink.
    /// Nothing where that rides on slow paths.
    fn tick(&self) {}

    /// A zeroed page of memory; `None` when memory is used up, or the design has none.
    fn zeroed(&self) -> Option<Self::Block> {
        None
    }

    /// Address of a block's memory. The memory is the holder's until it frees the block.
    fn address(&self, _block: Self::Block) -> NonNull<u8> {
        lacks(Self::DESIGN, "memory")
    }

    /// Frees pages, many by one call if the design can.
    fn free_pages(&self, pages: &mut Vec<Self::Block>) {
        pages.drain(..).for_each(|page| self.free::<0>(page));
    }

    /// Allocates a page for each slot, many by one call if the design can. `false`: there are not
    /// as many.
    fn alloc_batch(&self, pages: &mut [Self::Block]) -> bool {
        let alloc = |slot: &mut Self::Block| self.alloc::<0>().map(|page| *slot = page).is_some();
        pages.iter_mut().all(alloc)
    }

    /// Frees the pages of a batch, many by one call if the design can.
    fn free_batch(&self, pages: &[Self::Block]) {
        pages.iter().for_each(|&page| self.free::<0>(page));
    }

    /// Allocates a block of an order that the compiler does not know; `None` when there is none.
    fn alloc_block(&self, _order: Order, _mobility: Mobility) -> Option<Self::Block> {
        lacks(Self::DESIGN, "blocks of an order unknown to the compiler")
    }

    /// Frees a block that was allocated with this order, once.
    fn free_block(&self, _block: Self::Block, _order: Order) {
        lacks(Self::DESIGN, "blocks of an order unknown to the compiler")
    }

    /// Frees blocks by one call.
    fn free_many(&self, _blocks: &[(Self::Block, Order)]) {
        lacks(Self::DESIGN, "batches")
    }

    /// Makes two blocks of `order - 1` of an allocated one.
    fn halve(&self, _block: Self::Block, _order: Order) {
        lacks(Self::DESIGN, "a way to split blocks")
    }

    /// Takes back what a CPU caches, or with `None` what all CPUs cache. Returns what the drain
    /// did; `None` from designs that do not tell.
    fn drain(&self, _cpu: Option<CpuId>, _mode: Mode) -> Option<DrainResult> {
        None
    }

    /// The number of a block's first frame, counted from the start of the design's memory.
    fn frame(&self, _block: Self::Block) -> u64 {
        lacks(Self::DESIGN, "frames with numbers")
    }

    /// Allocates 2^18 frames (1 GiB) that begin at a multiple of as many; `None` when there is no
    /// such range, or the design has no [`RANGES`](Self::RANGES).
    fn alloc_gib(&self) -> Option<Self::Block> {
        None
    }

    /// Allocates like [`alloc_gib`](Self::alloc_gib), after moving held blocks by `mover` where
    /// there is no such range; also returns how many pages it moved. Call it when all other threads
    /// have stopped.
    fn alloc_gib_by_moves(&self, _mover: &dyn Mover) -> (Option<Self::Block>, u64) {
        lacks(Self::DESIGN, "moves")
    }

    /// Lets blocks that are not movable be allocated from now on with leave to have this mover move
    /// others away, before they are mixed. Call it once.
    fn register_mover(&mut self, _mover: Arc<dyn Mover + Send + Sync>) {
        lacks(Self::DESIGN, "moves")
    }

    /// Frees what [`alloc_gib`](Self::alloc_gib) returned, once.
    fn free_gib(&self, _range: Self::Block) {
        lacks(Self::DESIGN, "ranges of 1 GiB")
    }

    /// The frames that are free in the store, where those in caches are not; `None` from designs
    /// that do not tell. Call it when all other threads have stopped.
    ///
    /// # Errors
    /// What is wrong with the store's metadata.
    fn free_map(&self) -> Result<Option<FreeMap>, String> {
        Ok(None)
    }

    /// Counters of the design so far; `None` from designs that do not count.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Checks the design's metadata, if it has any, after everything was freed: is each frame in
    /// exactly one place?
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

impl<A: Allocator> Subject for A {
    fn design(&self) -> Design {
        A::DESIGN
    }

    fn enter(&self) {
        Allocator::enter(self);
    }

    fn leave(&self) {
        Allocator::leave(self);
    }

    fn drain_all(&self) {
        self.drain(None, Mode::Quiet);
    }

    fn check(&mut self) -> Result<(), String> {
        Allocator::check(self)
    }
}

/// An allocator that contenders shared.
///
/// # Panics
/// When it is checked while a contender still uses it.
impl<A: Allocator> Subject for Arc<A> {
    fn design(&self) -> Design {
        A::DESIGN
    }

    fn check(&mut self) -> Result<(), String> {
        Arc::get_mut(self).expect("all contenders are gone").check()
    }
}

/// A workload called what the designs that it offers all have, and `design` has not: the list of
/// designs it offers is wrong.
#[cold]
#[inline(never)]
fn lacks(design: Design, what: &str) -> ! {
    panic!("design {design} has no {what}: the workload must not offer it")
}

/// Allocates where running out would be the workload's fault.
#[inline]
pub fn alloc<A: Allocator, const ORDER: u32>(allocator: &A) -> A::Block {
    match allocator.alloc::<ORDER>() {
        Some(block) => block,
        None => out_of_pages(A::DESIGN, ORDER),
    }
}

#[cold]
#[inline(never)]
fn out_of_pages(design: Design, order: u32) -> ! {
    panic!(
        "{design} ran out of blocks of order {order}: the bench gave it too little memory, or it \
         lost some"
    );
}

/// The order that a workload names at compile time.
pub const fn order<const ORDER: u32>() -> Order {
    Order::new(ORDER).expect("workloads name orders that exist")
}

/// Judges a census of `managed` pages, `elsewhere` of which were found, taken when no caller holds
/// any.
///
/// # Errors
/// How many pages are lost, or found twice.
pub fn nothing_held(managed: u64, elsewhere: u64) -> Result<(), String> {
    match managed.cmp(&elsewhere) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => {
            Err(format!("{} of {managed} pages are lost", managed - elsewhere))
        }
        std::cmp::Ordering::Less => Err(format!("{} pages are there twice", elsewhere - managed)),
    }
}

/// Pages that a kernel gathers before it frees them by one call (`struct mmu_gather`).
const GATHERED_PAGES: usize = 512;

/// Frees pages by [`Allocator::free_many`], as many at a time as a kernel gathers.
pub fn free_gathered<A: Allocator<Block = Pfn>>(allocator: &A, pages: &mut Vec<Pfn>) {
    let mut batch = [(Pfn::new(0), Order::BASE); GATHERED_PAGES];
    for gathered in pages.chunks(GATHERED_PAGES) {
        for (slot, &page) in batch.iter_mut().zip(gathered) {
            slot.0 = page;
        }
        allocator.free_many(&batch[..gathered.len()]);
    }
    pages.clear();
}
