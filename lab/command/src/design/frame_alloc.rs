//! The crate `frame-alloc`'s `DepotAllocator` over its `SummaryBuddyAllocator`, with its default
//! capacities: a magazine of 128 frames per CPU and a shared depot of 512, each behind a spinlock.

use std::num::NonZeroUsize;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use frame_alloc::{
    CpuId, DepotAllocator, PageSize, PhysicalAllocator, Provenance, RegionInit,
    SummaryBuddyAllocator,
};

use pagedepot::Mode;
use pagedepot_designs::DrainResult;

use pagedepot_cli::design::allocator::Allocator;
use pagedepot_cli::design::demand::{Demand, PAGE_BYTES};
use pagedepot_cli::design::pool::Pool;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;

const BASE: PageSize = PageSize::from_log2(PAGE_BYTES.ilog2() as u8);
/// Orders 0..=10, as the depot has.
const ORDERS: usize = 11;
/// Magazines; it takes CPU numbers modulo this.
const SLOTS: usize = 64;

/// Frames are where their address says.
struct Mapped;

// SAFETY: the pool is one live mapping whose provenance `Pool::address` exposed.
unsafe impl Provenance for Mapped {
    unsafe fn create(address: usize) -> NonNull<u8> {
        NonNull::new(with_exposed_provenance_mut(address)).expect("the kernel never maps address 0")
    }

    unsafe fn destroy<T>(pointer: NonNull<T>) -> usize {
        pointer.addr().get()
    }
}

struct CurrentCpu;

impl CpuId for CurrentCpu {
    #[inline]
    fn current_cpu() -> usize {
        pagedepot_rseq::current_cpu().index()
    }
}

type Frames = DepotAllocator<SummaryBuddyAllocator<ORDERS, Mapped>, CurrentCpu, SLOTS>;

/// The crate `frame-alloc` as an allocator to measure.
pub struct FrameAlloc {
    allocator: Box<Frames>,
    /// Outlives the allocator, which has its metadata in it.
    pool: Pool,
}

const fn frames<const ORDER: u32>() -> NonZeroUsize {
    NonZeroUsize::new(1 << ORDER).expect("a power of two is not 0")
}

impl Allocator for FrameAlloc {
    const DESIGN: Design = Design::FrameAlloc;
    const DRAINS: &'static [Mode] = &[Mode::Quiet];
    type Block = usize;

    /// Makes an allocator with memory for `demand`, and as much again for fragments and metadata,
    /// unless the workload fills it.
    fn new(demand: &Demand) -> Result<Self, Failure> {
        let spacious = (demand.frames() * 2).max(1 << 14);
        let frames = if demand.fills_memory { demand.pages() } else { spacious };
        let frames = frames.next_multiple_of(1 << (ORDERS - 1));
        let pool = Pool::new(frames as usize * PAGE_BYTES, PAGE_BYTES << (ORDERS - 1))?;
        let allocator = Box::new(Frames::new(BASE, SummaryBuddyAllocator::new(BASE)));
        // SAFETY: the pool is mapped and this function's alone, and the allocator is new.
        unsafe { allocator.try_init_region(pool.address(), pool.bytes()) }
            .map_err(|e| Failure::Run(format!("{}: {e}", Design::FrameAlloc)))?;
        Ok(FrameAlloc { allocator, pool })
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<usize> {
        self.allocator.allocate_physical(BASE, const { frames::<ORDER>() }).ok()
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: usize) {
        // SAFETY: `block` came from `alloc` with the same order, and is freed once.
        unsafe { self.allocator.deallocate_physical(BASE, const { frames::<ORDER>() }, block) };
    }

    fn frame(&self, block: usize) -> u64 {
        ((block - self.pool.address()) / PAGE_BYTES) as u64
    }

    fn zeroed(&self) -> Option<usize> {
        let block = self.alloc::<0>()?;
        // SAFETY: the frame is a page of the pool, and now this caller's.
        unsafe { self.address(block).write_bytes(0, PAGE_BYTES) };
        Some(block)
    }

    fn address(&self, block: usize) -> NonNull<u8> {
        NonNull::new(with_exposed_provenance_mut(block)).expect("a frame's address is not 0")
    }

    /// All CPUs' magazines and the shared depot, by their locks.
    fn drain(&self, _cpu: Option<pagedepot::CpuId>, _mode: Mode) -> Option<DrainResult> {
        self.allocator.flush();
        None
    }
}
