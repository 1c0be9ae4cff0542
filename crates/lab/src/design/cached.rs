//! The threads' designs, from `pagedepot-designs`.
//!
//! Threads act as the CPU that the harness pinned them to: that is where they are, as the designs
//! whose owners take no locks demand ([`Entry::OnCpu`]).

use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn};
use pagedepot_designs::{
    Bitmap, Buddy, Counts, Drained, Entry, Local, Magazine, NohzConditional, PageCache, Rcu, Scope,
    Setup, SetupError, Spin, ZoneLock,
};

use super::allocator::{Allocator, WithAllocator, nothing_held};
use super::pool::Pool;
use super::variant::Store;
use super::{Demand, Design, PAGE_BYTES, Subject, order};
use crate::failure::Failure;
use crate::harness::cpus;

/// A thread's design by its type.
pub trait Named: PageCache + Send {
    /// Which.
    const DESIGN: Design;
}

macro_rules! named {
    ($($cache:ty => $design:ident),* $(,)?) => {$(
        impl Named for $cache {
            const DESIGN: Design = Design::$design;
        }
    )*};
}

named! {
    ZoneLock<Buddy> => ZoneLock,
    Local<Buddy> => Local,
    NohzConditional<Buddy> => NohzConditional,
    Spin<Buddy> => Spin,
    Spin<Bitmap> => Spin,
    Rcu<Buddy> => Rcu,
    Magazine<Buddy> => Magazine,
}

/// A design and memory for its pages.
pub struct Cached<C> {
    cache: C,
    memory: Arc<Pool>,
}

/// Blocks of every order are aligned in memory, too.
const ALIGN_BYTES: usize = PAGE_BYTES << Order::MAX.get();

/// Makes `design` with so many pages, all of which can be had, and does `with` it what there is to
/// do.
///
/// # Errors
/// When its memory cannot be had.
pub fn make<W: WithAllocator>(
    design: Design,
    demand: &Demand,
    pages: u64,
    with: W,
) -> Result<W::Output, Failure> {
    let highest = demand.cpus.iter().map(|cpu| cpu.get()).max().unwrap_or(0);
    let setup = u32::try_from(pages).map(|pages| Setup::single(highest + 1, pages));
    let setup = setup.map_err(|_| Failure::Run(format!("{design}: {pages} pages are too many")))?;
    let memory = demand.memory.pool(pages as usize * PAGE_BYTES, ALIGN_BYTES)?;
    let failed = |e: SetupError| Failure::Run(format!("{design}: {e}"));
    let variant = &demand.variant;
    let policy = variant.policy(demand.cpus.first().copied().unwrap_or(CpuId::new(0)));
    let drain = variant.local_drain();
    if variant.store_of(design) == Store::Bitmap {
        let store = Bitmap::new(&setup).map_err(failed)?;
        return Ok(
            with.with(Cached { cache: Spin::new(store, variant.lock_mode(), policy), memory })
        );
    }
    let store = Buddy::new(&setup).map_err(failed)?;
    Ok(match design {
        Design::ZoneLock => with.with(Cached { cache: ZoneLock::new(store), memory }),
        Design::Local => {
            with.with(Cached { cache: Local::new(store, Entry::OnCpu, drain, policy), memory })
        }
        Design::NohzConditional => {
            let isolated = variant.is_isolated();
            let cache = NohzConditional::new(store, isolated, Entry::OnCpu, drain, policy);
            with.with(Cached { cache, memory })
        }
        Design::Spin => {
            with.with(Cached { cache: Spin::new(store, variant.lock_mode(), policy), memory })
        }
        Design::Rcu => {
            let cache = Rcu::new(store, Entry::OnCpu, variant.grace(), policy);
            with.with(Cached { cache, memory })
        }
        Design::Magazine => {
            let cache = Magazine::new(store, variant.magazine_options()).map_err(failed)?;
            with.with(Cached { cache, memory })
        }
        other => return Err(Failure::Usage(format!("design {other} is no thread's"))),
    })
}

#[inline]
fn here() -> Here {
    Here::task(cpus::pinned_to())
}

impl<C: Named> Subject for Cached<C> {
    const DESIGN: Design = C::DESIGN;
    type Block = Pfn;

    fn leave(&self) {
        self.cache.idle(here());
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Pfn> {
        self.cache.alloc(here(), const { order::<ORDER>() }, Mobility::Movable)
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Pfn) {
        self.cache.free(here(), block, const { order::<ORDER>() });
    }

    fn rest(&self) {
        self.cache.idle(here());
    }

    fn drain_all(&self) {
        self.cache.drain(Scope::ALL, Mode::Quiet);
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.cache.validate().map_err(|fault| fault.to_string())?;
        let elsewhere =
            census.free_pages + census.cached_pages + census.pending_pages + census.overhead_pages;
        nothing_held(census.managed_pages, elsewhere)
    }
}

impl<C: Named> Allocator for Cached<C> {
    const DRAINS_FULLY: bool = false;

    #[inline]
    fn alloc_block(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        self.cache.alloc(here(), order, mobility)
    }

    #[inline]
    fn free_block(&self, block: Pfn, order: Order) {
        self.cache.free(here(), block, order);
    }

    fn free_many(&self, blocks: &[(Pfn, Order)]) {
        self.cache.free_many(here(), blocks);
    }

    fn halve(&self, block: Pfn, order: Order) {
        self.cache.split(block, order);
    }

    fn zeroed(&self) -> Option<Pfn> {
        let page = self.alloc::<0>()?;
        // SAFETY: the page is inside the memory, and this caller's since a moment ago.
        unsafe { self.address(page).write_bytes(0, PAGE_BYTES) };
        Some(page)
    }

    #[inline]
    fn address(&self, block: Pfn) -> NonNull<u8> {
        self.memory.at(block.index() * PAGE_BYTES)
    }

    fn drain(&self, cpu: Option<CpuId>, mode: Mode) -> Drained {
        self.cache.drain(cpu.map_or(Scope::ALL, Scope::cpu), mode)
    }

    fn tick(&self) {
        self.cache.tick(here());
    }

    fn counts(&self) -> Counts {
        self.cache.counts()
    }
}
