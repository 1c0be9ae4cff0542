//! The threads' designs as allocators, with memory for their pages.
//!
//! A thread acts as the CPU that the harness pinned it to: that is where it runs, as the designs
//! whose owners take no locks demand (`Entry::OnCpu`).

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::cpus::Here;
use pagedepot::{CpuId, Mobility, Mode, Order, Pfn};
use pagedepot_designs::{Counts, DrainResult, FreeMap, Scope, Setup, SetupError};

use super::allocator::{Allocator, free_gathered, nothing_held, order};
use super::demand::{Demand, PAGE_BYTES};
use super::pool::Pool;
use super::threads::{FromSetup, ThreadDesign};
use super::variant::Acting;
use crate::failure::Failure;
use crate::harness::cpus;
use crate::names::Design;

/// A design and memory for its pages.
pub struct ProposalAllocator<C, L> {
    cache: C,
    memory: Arc<Pool>,
    lineup: PhantomData<fn() -> L>,
}

/// Blocks of every order are aligned in memory, too.
const ALIGN_BYTES: usize = PAGE_BYTES << Order::MAX.get();

#[inline]
fn here() -> Here {
    Here::task(cpus::pinned_to())
}

impl<C: ThreadDesign<L, Store: FromSetup>, L: 'static> Allocator for ProposalAllocator<C, L> {
    const DESIGN: Design = C::DESIGN;
    const DRAINS: &'static [Mode] = &[Mode::Quiet];
    type Block = Pfn;

    fn new(demand: &Demand) -> Result<Self, Failure> {
        let failed = |e: SetupError| Failure::Run(format!("{}: {e}", C::DESIGN));
        let pages = demand.pages();
        let highest = demand.cpus.iter().map(|cpu| cpu.get()).max().unwrap_or(0);
        let setup = u32::try_from(pages).map(|pages| Setup::single(highest + 1, pages));
        let setup = setup
            .map_err(|_| Failure::Run(format!("{}: {pages} pages are too many", C::DESIGN)))?;
        let memory = demand.memory.pool(pages as usize * PAGE_BYTES, ALIGN_BYTES)?;
        let cpu = demand.cpus.first().copied().unwrap_or(CpuId::new(0));
        let store = C::Store::from_setup(&setup).map_err(failed)?;
        Ok(ProposalAllocator {
            cache: C::over(store, &demand.variant, Acting::OnCpus(cpu)).map_err(failed)?,
            memory,
            lineup: PhantomData,
        })
    }

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

    fn free_pages(&self, pages: &mut Vec<Pfn>) {
        free_gathered(self, pages);
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

    fn drain(&self, cpu: Option<CpuId>, mode: Mode) -> Option<DrainResult> {
        Some(self.cache.drain(cpu.map_or(Scope::ALL, Scope::cpu), mode))
    }

    fn frame(&self, block: Pfn) -> u64 {
        block.get().into()
    }

    fn free_map(&self) -> Result<Option<FreeMap>, String> {
        self.cache.free_map().map(Some).map_err(|fault| fault.to_string())
    }

    fn tick(&self) {
        self.cache.tick(here());
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.cache.counts())
    }

    fn check(&mut self) -> Result<(), String> {
        let census = self.cache.validate().map_err(|fault| fault.to_string())?;
        let elsewhere =
            census.free_pages + census.cached_pages + census.pending_pages + census.overhead_pages;
        nothing_held(census.managed_pages, elsewhere)
    }
}
