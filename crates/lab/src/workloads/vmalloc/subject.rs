//! The designs, ready to run.

use std::mem::MaybeUninit;

use pagedepot_designs::vmap::{Depot, GlobalLock, Nodes, VmapDesign, VmapSetup};
use pagedepot_vmap::{Host, Mapper, Stale, Vmap, VmapConfig};

use crate::design::Design;
use crate::failure::Failure;

/// Designs that manage addresses and map.
pub const DESIGNS: [Design; 3] = [Design::Depot, Design::VmapGlobalLock, Design::VmapNodes];

/// What the designs are made for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub cpus: u32,
    /// Most areas at a time, free ranges among them.
    pub areas_max: u32,
    /// What becomes of stale data; the kernel's designs keep it.
    pub stale: Stale,
    /// Pages that a node may keep mapped; `None`: as many as it likes to.
    pub warm_pages_max: Option<u64>,
    /// Freed pages at which a purge begins; `None`: as in the kernel.
    pub lazy_pages_max: Option<u64>,
}

impl Demand {
    /// For so many areas, with stale data kept, as `vmalloc` does in the kernel.
    pub fn new(cpus: u32, areas_max: u32) -> Self {
        Demand { cpus, areas_max, stale: Stale::Keep, warm_pages_max: None, lazy_pages_max: None }
    }
}

/// Our own.
///
/// # Errors
/// When the demand cannot be served.
///
/// # Safety
/// As for [`Vmap::new`].
pub unsafe fn depot<M: Mapper, H: Host>(
    demand: &Demand,
    mapper: M,
    host: H,
) -> Result<Depot<'static, M, H>, Failure> {
    let config = VmapConfig {
        stale: demand.stale,
        warm_pages_max: demand.warm_pages_max,
        lazy_pages_max: demand.lazy_pages_max,
        ..VmapConfig::new(demand.cpus, demand.areas_max)
    };
    let failed = |error| Failure::Run(format!("{}: {error}", Design::Depot));
    let bytes = Vmap::<M, H>::metadata_bytes(&config, &mapper).map_err(failed)?;
    // Never given back: a command makes a handful of them, and ends.
    let metadata: &'static mut [MaybeUninit<u8>] = Box::leak(Box::<[u8]>::new_zeroed_slice(bytes));
    // SAFETY: zeroed, and never given back; of mapper and host, the caller's promise.
    let vmap = unsafe { Vmap::new_zeroed(&config, metadata, mapper, host) }.map_err(failed)?;
    Ok(Depot::new(vmap))
}

/// What to do with a design, whichever type it has.
pub trait WithVmap<'d> {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<D: VmapDesign + 'd>(self, design: D) -> Self::Output;
}

/// Makes a design and does `with` it what there is to do.
///
/// # Errors
/// When the demand cannot be served.
///
/// # Safety
/// As for [`Vmap::new`].
pub unsafe fn make<'d, M: Mapper + 'd, H: Host + 'd, W: WithVmap<'d>>(
    design: Design,
    demand: &Demand,
    (mapper, host): (M, H),
    with: W,
) -> Result<W::Output, Failure> {
    let setup = VmapSetup { cpus: demand.cpus, lazy_pages_max: demand.lazy_pages_max };
    // SAFETY: the caller's promise, for the one design that is made.
    unsafe {
        match design {
            Design::VmapGlobalLock => Ok(with.with(GlobalLock::new(setup, mapper, host))),
            Design::VmapNodes => Ok(with.with(Nodes::new(setup, mapper, host))),
            _ => Ok(with.with(depot(demand, mapper, host)?)),
        }
    }
}
