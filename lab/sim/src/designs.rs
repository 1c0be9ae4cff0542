//! The designs, made for virtual CPUs.

use std::mem::MaybeUninit;

use pagedepot::cpus::Here;
use pagedepot::{
    Allocator, CacheLimits, Config, CpuId, FrameRange, HighPolicy, NodeId, PageSize, Pfn,
    Watermarks, ZoneConfig,
};
use pagedepot_designs::{
    Buddy, Depot, FreeHighLimit, FreeHighPolicy, LockMode, PageCache, Policy, Real, Setup,
    SetupError, Spin, ZoneLock,
};
use pagedepot_lab_designs::vmap::{self, FramesFreed, VmapDesign, VmapSetup};
use pagedepot_lab_designs::{
    Entry, Grace, Local, LocalDrain, Magazine, MagazineOptions, NohzConditional, PcpBuddy, Qpw, Rcu,
};
use pagedepot_vmap::{Span, StaleData, VirtAddr, Vmap, VmapConfig};

use crate::cpus::{VirtualCpus, VmapHost};
use crate::mapper::CostlyMapper;
use crate::topology::{Topology, ps};
use crate::vmalloc::AreaStock;

/// Names of the designs that hand out blocks.
pub const PAGED: [&str; 9] = [
    "depot",
    "zone-lock",
    "local",
    "nohz-conditional",
    "spin",
    "qpw",
    "pcp-buddy",
    "rcu",
    "magazine",
];

/// Names of the designs for address space.
pub const VMAPS: [&str; 3] = ["depot", "vmap-global-lock", "vmap-nodes"];

/// Pages of memory per CPU: 1 GiB. Large machines have at least as much.
pub const PAGES_PER_CPU: u32 = 1 << 18;

/// The limits of a CPU in one zone of all memory where `high` adapts, as it does by default.
fn adaptive_limits(cpus: u32, frames: u32) -> CacheLimits {
    let (frames, page_size) = (u64::from(frames), PageSize::default());
    let low = Watermarks::without_reserve(frames, page_size).low;
    CacheLimits::new(frames, low, u64::from(cpus), page_size, HighPolicy::Auto)
}

/// The policy to make the allocator with: magazines for `high_max`. No memory lies behind its
/// frames here, so it cannot carve more of them.
const fn magazines_for_all(limits: CacheLimits) -> HighPolicy {
    HighPolicy::Fixed(limits.high_max)
}

/// Lets `high` adapt in an allocator that was made with [`magazines_for_all`].
fn adapt(allocator: &Allocator<'_, VirtualCpus>, limits: CacheLimits) {
    let settings = allocator.zone_ids().filter_map(|zone| allocator.settings(zone));
    for settings in settings {
        // `high` begins at its minimum.
        settings.set_cache_limits(CacheLimits { high_max: limits.high_min, ..limits });
        settings.set_cache_limits(limits);
    }
}

/// Makes a design that hands out blocks, for CPUs `0..cpus` with `pages_per_cpu` pages for each.
///
/// # Errors
/// What the design says of the setup.
///
/// # Panics
/// When [`PAGED`] does not have the name.
pub fn paged(
    name: &str,
    cpus: u32,
    pages_per_cpu: u32,
    free_high: Option<FreeHighLimit>,
) -> Result<Box<dyn PageCache>, SetupError> {
    let frames = cpus.max(4) * pages_per_cpu;
    let setup = Setup::single(cpus, frames);
    let limit = free_high.unwrap_or_default();
    let policy = Policy {
        free_high: FreeHighPolicy { limit, ..FreeHighPolicy::default() },
        ..Policy::default()
    };
    let buddy = || Buddy::new(&setup);
    Ok(match name {
        "depot" => {
            let limits = adaptive_limits(cpus, frames);
            let setup = Setup { high: magazines_for_all(limits), ..setup };
            let depot = Depot::owned(&setup, VirtualCpus, Real, limit.into())?;
            adapt(depot.allocator(), limits);
            Box::new(depot)
        }
        "zone-lock" => Box::new(ZoneLock::new(buddy()?)),
        "local" => Box::new(Local::new(buddy()?, Entry::OnCpu, LocalDrain::Helper, policy)),
        "nohz-conditional" => {
            let (entry, drain) = (Entry::OnCpu, LocalDrain::Helper);
            Box::new(NohzConditional::new(buddy()?, true, entry, drain, policy))
        }
        // Every CPU has a spinlock (`qpw=1`).
        "qpw" => {
            let (entry, drain) = (Entry::OnCpu, LocalDrain::Helper);
            Box::new(Qpw::new(buddy()?, |_| true, entry, drain, policy))
        }
        "pcp-buddy" => Box::new(PcpBuddy::new(buddy()?, policy)),
        "spin" => Box::new(Spin::new(buddy()?, LockMode::TryLock, policy)),
        "rcu" => Box::new(Rcu::new(buddy()?, Entry::OnCpu, Grace::Blocking, policy)),
        "magazine" => Box::new(Magazine::new(buddy()?, MagazineOptions::default())?),
        other => unreachable!("{other} hands out no blocks"),
    })
}

/// The CPU and context in which a CPU's code runs.
pub fn here(cpu: usize) -> Here {
    Here::task(CpuId::new(cpu as u32))
}

/// Memory for metadata, leaked: a command makes only a few designs.
fn leaked(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    Box::leak(Box::<[u8]>::new_zeroed_slice(bytes))
}

/// Makes a design for address space over its own page allocator, for CPUs `0..cpus`, which hold
/// these areas.
///
/// # Errors
/// What the design says of the setup.
///
/// # Panics
/// When [`VMAPS`] does not have the name.
#[allow(unsafe_code, reason = "one mapper and one host for each design")]
pub fn vmap(
    name: &str,
    cpus: u32,
    held: AreaStock,
    topology: &Topology,
) -> Result<Box<dyn VmapDesign>, String> {
    let frames = cpus.max(4) * PAGES_PER_CPU;
    let limits = adaptive_limits(cpus, frames);
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let ranges = [FrameRange::new(Pfn::new(0), frames)];
    let watermarks = Watermarks::without_reserve(u64::from(frames), Default::default());
    let zones = [ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 0,
        ranges: &ranges,
        watermarks: Some(watermarks),
    }];
    let config = Config { high: magazines_for_all(limits), ..Config::new(cpus, &zones) };
    let bytes = Allocator::<VirtualCpus>::metadata_bytes(&config).map_err(|e| text(&e))?;
    let frames = Allocator::new(&config, leaked(bytes), VirtualCpus).map_err(|e| text(&e))?;
    adapt(&frames, limits);
    let host = VmapHost(frames);
    let span = Span::new(VirtAddr::new(1 << 32), held.span_pages());
    let mapper = CostlyMapper::new(span, ps(topology.vmalloc_page_ns));
    // As in the kernel. The mapper can do it: it maps nothing, and one thread runs all CPUs.
    let setup = VmapSetup { frames_freed: FramesFreed::AtFree, ..VmapSetup::new(cpus) };
    // SAFETY, all three: the mapper maps nothing, so no frame is reached through it. The host and
    // the mapper belong to this design alone.
    Ok(match name {
        "depot" => {
            let config = VmapConfig {
                // As the kernel's `vmalloc` and the other two designs do.
                stale: StaleData::Keep,
                metadata_is_zero: true,
                ..VmapConfig::new(cpus, held.areas_max())
            };
            let bytes = Vmap::<CostlyMapper, VmapHost>::metadata_bytes(&config, &mapper)
                .map_err(|e| text(&e))?;
            // SAFETY: as above, and the metadata is zeroed.
            let vmap = unsafe { Vmap::new(&config, leaked(bytes), mapper, host) };
            Box::new(vmap::Depot::new(vmap.map_err(|e| text(&e))?))
        }
        "vmap-global-lock" => {
            // SAFETY: as above.
            Box::new(unsafe { vmap::GlobalLock::new(setup, mapper, host) })
        }
        "vmap-nodes" => {
            // SAFETY: as above.
            Box::new(unsafe { vmap::Nodes::new(setup, mapper, host) })
        }
        other => unreachable!("{other} has no address space"),
    })
}

#[cfg(test)]
mod tests {
    use pagedepot::{Mobility, Order};

    use super::*;

    /// Checks that `high` follows a CPU's demand, as on machines.
    #[test]
    fn what_a_cpu_asks_for_lets_it_cache_more() {
        let pages = 8192;
        for name in PAGED.into_iter().filter(|name| !["zone-lock", "magazine"].contains(name)) {
            let mut design = paged(name, 2, PAGES_PER_CPU, None).unwrap();
            let get = |_| design.alloc(here(0), Order::BASE, Mobility::Movable).unwrap();
            let got: Vec<Pfn> = (0..pages).map(get).collect();
            got.into_iter().for_each(|page| design.free(here(0), page, Order::BASE));
            let cached = design.cached_pages(CpuId::new(0));
            assert!(cached > pages / 2, "{name} caches {cached} of {pages}");
            // What a CPU only frees is no demand.
            let limits = adaptive_limits(2, 4 * PAGES_PER_CPU);
            let got: Vec<Pfn> = (0..4 * pages)
                .map(|_| design.alloc(here(0), Order::BASE, Mobility::Movable).unwrap())
                .collect();
            got.into_iter().for_each(|page| design.free(here(1), page, Order::BASE));
            let cached = design.cached_pages(CpuId::new(1));
            assert!(cached < limits.high_max / 2, "{name} caches {cached}");
            design.validate().unwrap();
        }
    }
}
