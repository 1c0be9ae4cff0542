//! The source of the tests' pages: the depot, or a design to compare it with.

use core::sync::atomic::{AtomicBool, Ordering};

use pagedepot::{AllocError, CpuId, DrainResult, Flags, Mode, Order, Pfn, Scope};

use super::local;
use crate::cpu;
use crate::memory::depot;

/// A way to keep CPUs off the shared store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// Fronts and shelves.
    Depot,
    /// Lists that only their CPU touches.
    Local,
}

static IS_LOCAL: AtomicBool = AtomicBool::new(false);

impl Design {
    /// The design of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Design::Depot, Design::Local].into_iter().find(|design| design.name() == name)
    }

    /// The design's name.
    pub fn name(self) -> &'static str {
        match self {
            Design::Depot => "depot",
            Design::Local => "local",
        }
    }

    /// Makes this the design that the tests use. Call it before anything is allocated.
    pub fn choose(self) {
        IS_LOCAL.store(self == Design::Local, Ordering::Relaxed);
    }

    /// The design in use.
    pub fn chosen() -> Self {
        if IS_LOCAL.load(Ordering::Relaxed) { Design::Local } else { Design::Depot }
    }
}

/// Allocates a block.
///
/// # Errors
/// As the allocator's.
pub fn alloc(order: Order, flags: Flags) -> Result<Pfn, AllocError> {
    match Design::chosen() {
        Design::Depot => depot().alloc(order, flags),
        Design::Local => local::alloc(order, flags),
    }
}

/// Frees a block.
///
/// # Panics
/// When [`alloc`] did not return the block.
pub fn free(pfn: Pfn, order: Order) {
    let freed = match Design::chosen() {
        Design::Depot => depot().free(pfn, order),
        Design::Local => local::free(pfn, order),
    };
    if let Err(error) = freed {
        panic!("{pfn:?} of {order:?}: {error}");
    }
}

/// Takes back what a CPU caches.
pub fn drain(cpu: CpuId, mode: Mode) -> DrainResult {
    match Design::chosen() {
        Design::Depot => depot().drain(Scope::cpu(cpu), mode),
        Design::Local => local::drain(cpu),
    }
}

/// Takes the caches of a CPU that has stopped. The CPU has no caches until [`restore`].
pub fn retire(cpu: CpuId) -> DrainResult {
    match Design::chosen() {
        Design::Depot => depot().cpu_caches().retire(cpu),
        Design::Local => local::take_offline(cpu),
    }
}

/// Lets a CPU cache again.
pub fn restore(cpu: CpuId) {
    if Design::chosen() == Design::Depot {
        assert!(depot().cpu_caches().restore(cpu), "{cpu:?} was not retired");
    }
}

/// Pages that a CPU caches.
pub fn cached_pages(cpu: CpuId) -> u64 {
    match Design::chosen() {
        Design::Depot => {
            let (fronts, shelves) = crate::memory::cached_pages(cpu);
            fronts + shelves
        }
        Design::Local => local::cached_pages(cpu),
    }
}

/// Takes back what all CPUs cache.
pub fn drain_all() {
    cpu::all().for_each(|cpu| {
        drain(cpu.id(), Mode::Full);
    });
}
