//! The designs for kernel address space, made over the mapper and the host that a workload brings.

use std::mem::MaybeUninit;

use pagedepot_lab_designs::vmap::{Depot, VmapSetup};
use pagedepot_vmap::{Host, Mapper, StaleData, Vmap, VmapConfig};

use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;

/// The demand of a workload on a design.
#[derive(Clone, Copy, Debug)]
pub struct VmapDemand {
    pub cpus: u32,
    /// Most areas at a time, free ranges among them.
    pub areas_max: u32,
    /// The treatment of stale data; the kernel's designs keep it.
    pub stale: StaleData,
    /// Most pages that a node may keep mapped; `None`: the default.
    pub warm_pages_max: Option<u64>,
    /// Freed pages at which a purge begins; `None`: as in the kernel.
    pub lazy_pages_max: Option<u64>,
}

impl VmapDemand {
    /// The part of it that the kernel's designs know.
    pub fn setup(&self) -> VmapSetup {
        VmapSetup { lazy_pages_max: self.lazy_pages_max, ..VmapSetup::new(self.cpus) }
    }

    /// The demand of so many areas, with stale data kept, as `vmalloc` does in the kernel.
    pub fn new(cpus: u32, areas_max: u32) -> Self {
        VmapDemand {
            cpus,
            areas_max,
            stale: StaleData::Keep,
            warm_pages_max: None,
            lazy_pages_max: None,
        }
    }
}

/// Makes this project's design.
///
/// # Errors
/// When the demand is too large.
///
/// # Safety
/// Requires what [`Vmap::new`] requires.
pub unsafe fn depot<M: Mapper, H: Host>(
    demand: &VmapDemand,
    mapper: M,
    host: H,
) -> Result<Depot<'static, M, H>, Failure> {
    let config = VmapConfig {
        stale: demand.stale,
        warm_pages_max: demand.warm_pages_max,
        lazy_pages_max: demand.lazy_pages_max,
        metadata_is_zero: true,
        ..VmapConfig::new(demand.cpus, demand.areas_max)
    };
    let failed = |error| Failure::Run(format!("{}: {error}", Design::Depot));
    let bytes = Vmap::<M, H>::metadata_bytes(&config, &mapper).map_err(failed)?;
    // Leaked: a command makes a handful of them, and ends.
    let metadata: &'static mut [MaybeUninit<u8>] = Box::leak(Box::<[u8]>::new_zeroed_slice(bytes));
    // SAFETY: the metadata is zeroed and leaked; the caller vouches for mapper and host.
    let vmap = unsafe { Vmap::new(&config, metadata, mapper, host) }.map_err(failed)?;
    Ok(Depot::new(vmap))
}
