//! The designs, made for virtual CPUs.

use std::mem::MaybeUninit;

use pagedepot::cpus::Here;
use pagedepot::{
    Allocator, Config, CpuId, FrameRange, HighPolicy, NodeId, Pfn, Watermarks, ZoneConfig,
};
use pagedepot_designs::vmap::{self, VmapDesign, VmapSetup};
use pagedepot_designs::{
    Buddy, Depot, Entry, FreeHighLimit, FreeHighPolicy, Grace, Local, LocalDrain, LockMode,
    Magazine, MagazineOptions, NohzConditional, PageCache, PcpBuddy, Policy, Qpw, Rcu, Real, Setup,
    SetupError, Spin, ZoneLock,
};
use pagedepot_vmap::{Span, Stale, VirtAddr, Vmap, VmapConfig};

use crate::cpus::{VirtualCpus, VmapHost};
use crate::mapper::CostlyMapper;
use crate::topology::{Topology, ps};

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

/// Pages that a CPU may cache, for every design, as `percpu_pagelist_high_fraction` sets it. The
/// allocator has no memory behind its frames here, so it cannot carve magazines, and needs to know
/// their number when it is made.
const HIGH_PAGES: u64 = 1024;

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
    let high = HighPolicy::Fixed(HIGH_PAGES);
    let setup = Setup { high, ..Setup::single(cpus, cpus.max(4) * pages_per_cpu) };
    let limit = free_high.unwrap_or_default();
    let policy = Policy {
        free_high: FreeHighPolicy { limit, ..FreeHighPolicy::default() },
        ..Policy::default()
    };
    let buddy = || Buddy::new(&setup);
    Ok(match name {
        "depot" => Box::new(Depot::owned(&setup, VirtualCpus, Real, limit.into())?),
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

/// Makes a design for address space over its own page allocator, for CPUs `0..cpus`. Each CPU holds
/// at most `areas_per_cpu` areas.
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
    areas: u32,
    topology: &Topology,
) -> Result<Box<dyn VmapDesign>, String> {
    let frames = cpus.max(4) * PAGES_PER_CPU;
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
    let config = Config { high: HighPolicy::Fixed(HIGH_PAGES), ..Config::new(cpus, &zones) };
    let bytes = Allocator::<VirtualCpus>::metadata_bytes(&config).map_err(|e| text(&e))?;
    let frames = Allocator::new(&config, leaked(bytes), VirtualCpus).map_err(|e| text(&e))?;
    let host = VmapHost(frames);
    // Several times the pages that may be lazy, which are 32 MiB for each bit of the number of
    // CPUs.
    let span = Span::new(VirtAddr::new(1 << 32), 1 << 22);
    let mapper = CostlyMapper::new(span, ps(topology.vmalloc_page_ns));
    let lazy_pages_max = None;
    // SAFETY, all three: the mapper maps nothing, so no frame is reached through it. The host and
    // the mapper belong to this design alone.
    Ok(match name {
        "depot" => {
            let config = VmapConfig {
                // As the kernel's `vmalloc` and the other two designs do.
                stale: Stale::Keep,
                lazy_pages_max,
                metadata_is_zero: true,
                ..VmapConfig::new(cpus, cpus * areas + 1000)
            };
            let bytes = Vmap::<CostlyMapper, VmapHost>::metadata_bytes(&config, &mapper)
                .map_err(|e| text(&e))?;
            // SAFETY: as above, and the metadata is zeroed.
            let vmap = unsafe { Vmap::new(&config, leaked(bytes), mapper, host) };
            Box::new(vmap::Depot::new(vmap.map_err(|e| text(&e))?))
        }
        "vmap-global-lock" => {
            // SAFETY: as above.
            Box::new(unsafe {
                vmap::GlobalLock::new(
                    VmapSetup { lazy_pages_max, ..VmapSetup::new(cpus) },
                    mapper,
                    host,
                )
            })
        }
        "vmap-nodes" => {
            // SAFETY: as above.
            Box::new(unsafe {
                vmap::Nodes::new(VmapSetup { lazy_pages_max, ..VmapSetup::new(cpus) }, mapper, host)
            })
        }
        other => unreachable!("{other} has no address space"),
    })
}
