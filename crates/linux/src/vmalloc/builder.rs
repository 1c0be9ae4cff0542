//! Options of an address space, and making one.

use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::{Flags, PageSize};
use pagedepot_vmap::{Mapper, PurgeBy, StaleData, Vmap, VmapConfig};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::LinuxVmap;
use super::error::{VmallocBuildError, no_memory};
use super::host::{DepotHost, PurgeWanted};
use super::mapper::{LinuxMapper, table_pages};
use super::space::{Space, Vmalloc};
use crate::depot::handle::Depot;
use crate::system::mapping::Mapping;
use crate::system::topology::Topology;

/// Default size of the range as a multiple of the depot's, and no less than [`RANGE_MIN`].
const RANGE_PER_DEPOT: usize = 8;
const RANGE_MIN: usize = 1 << 30;
/// The default number of areas is not larger.
const AREAS_MAX: u32 = 1 << 20;

/// Options of a [`Vmalloc`]. Made by [`Vmalloc::builder`]; each has a default that suits most
/// programs.
#[derive(Clone, Debug)]
#[must_use]
pub struct VmallocBuilder {
    depot: Depot,
    bytes: Option<usize>,
    areas_max: Option<u32>,
    nodes: Option<u32>,
    stale: StaleData,
    flags: Option<Flags>,
    warm_bytes: Option<usize>,
    pool_bytes: Option<usize>,
    lazy_bytes: Option<usize>,
    large_bytes: Option<usize>,
    mappings_max: Option<u32>,
    populate: bool,
    shrinker: bool,
    purge_wanted: Option<PurgeWanted>,
}

impl VmallocBuilder {
    pub(super) fn new(depot: &Depot) -> Self {
        VmallocBuilder {
            depot: depot.clone(),
            bytes: None,
            areas_max: None,
            nodes: None,
            stale: StaleData::default(),
            flags: None,
            warm_bytes: None,
            pool_bytes: None,
            lazy_bytes: None,
            large_bytes: None,
            mappings_max: None,
            populate: false,
            shrinker: true,
            purge_wanted: None,
        }
    }

    /// Size of the range in bytes, rounded up to whole page tables: 2 MiB where the system's pages
    /// have 4 KiB, 32 MiB with 16 KiB, 512 MiB with 64 KiB. A page that is used costs 9 bytes of
    /// metadata. Default: eight times the depot, at least 1 GiB, and fewer than 2^32 pages.
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// The most areas and free ranges at a time. Each that is used costs 64 bytes. Default: one for
    /// every two pages of the range, at most 2^20.
    pub fn areas_max(mut self, areas: u32) -> Self {
        self.areas_max = Some(areas);
        self
    }

    /// Number of nodes. Each has pools of its own; CPUs beyond that number share them. Default: one
    /// for each CPU that may ever come online, at most 256.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Sets the treatment of data in freed memory that stays mapped for the next request: it is
    /// zeroed before that request returns (the default), overwritten when freed, or kept.
    pub fn stale(mut self, stale: StaleData) -> Self {
        self.stale = stale;
        self
    }

    /// Flags for requests that do not state any. Default: movable.
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = Some(flags);
        self
    }

    /// The most freed memory that each node keeps mapped, in bytes, in areas of up to 255 pages. A
    /// request that finds such memory of its size makes no system call. 0 keeps none. Default: 32
    /// MiB.
    pub fn warm_bytes(mut self, bytes: usize) -> Self {
        self.warm_bytes = Some(bytes);
        self
    }

    /// The most freed memory that each node keeps mapped in areas of 256 to 4096 pages, in bytes,
    /// of 16 sizes at most. A request of such a size asks the kernel which pages were written, and
    /// zeroes these. Default: as much as [`warm_bytes`](Self::warm_bytes).
    pub fn large_bytes(mut self, bytes: usize) -> Self {
        self.large_bytes = Some(bytes);
        self
    }

    /// Whether every page is present when memory is returned. Default: no. Then pages that the
    /// depot has never touched, or has given back to the system, come at the first access, as with
    /// `mmap`; pages that the depot has are present. A depot that is built with
    /// [`populate`](crate::Builder::populate) has them all.
    pub fn populate(mut self, yes: bool) -> Self {
        self.populate = yes;
        self
    }

    /// The most addresses that each node's pools keep, in bytes. Default: an eighth of the range
    /// divided by the number of nodes, at most 2^18 pages each.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = Some(bytes);
        self
    }

    /// Bytes of freed memory that may stay mapped until a purge begins. Default: 32 MiB for each
    /// bit of the number of CPUs, as in the kernel.
    pub fn lazy_bytes(mut self, bytes: usize) -> Self {
        self.lazy_bytes = Some(bytes);
        self
    }

    /// The most mappings (lines in `/proc/self/maps`) that the range may consist of. A few of them
    /// are kept for purges. When three quarters are in use, requests prefer longer runs of frames.
    /// Default: no limit for this range alone. In any case all ranges of this process together use
    /// at most `vm.max_map_count`, less an eighth of it, and less the mappings that the process had
    /// when the first range was made.
    pub fn mappings_max(mut self, mappings: u32) -> Self {
        self.mappings_max = Some(mappings);
        self
    }

    /// Whether pools give up their pages when the depot runs short. Default: yes. A signal handler
    /// may still allocate pages: if it interrupted a purge of its own thread, its request gets no
    /// pages from the pools. For purges of other threads the request waits at most a second.
    pub fn shrinker(mut self, yes: bool) -> Self {
        self.shrinker = yes;
        self
    }

    /// Leaves purges to a thread of the program. `wake` is called when there is enough to purge.
    /// The thread then calls [`Vmalloc::purge`] with
    /// [`PurgeDepth::Decay`](super::PurgeDepth::Decay). A free purges by itself when more than
    /// twice the lazy limit is waiting. Default: the thread whose free passes the limit purges. If
    /// signal handlers free memory, they call `wake`, too.
    pub fn on_purge_wanted(mut self, wake: impl Fn() + Send + Sync + 'static) -> Self {
        self.purge_wanted = Some(PurgeWanted(Arc::new(wake)));
        self
    }

    /// Makes the address space.
    ///
    /// # Errors
    /// [`VmallocBuildError`]; its `Display` says what to do.
    pub fn build(self) -> Result<Vmalloc, VmallocBuildError> {
        self.depot.shared().check_parent().map_err(|_| VmallocBuildError::Forked)?;
        let default = || default_range(self.depot.bytes(), self.depot.page_size());
        let bytes = self.bytes.unwrap_or_else(default);
        let mapper =
            LinuxMapper::new(&self.depot, bytes, self.mappings_max)?.populate(self.populate);
        let config = self.config(&mapper);
        let metadata_bytes = LinuxVmap::metadata_bytes(&config, &mapper)?;
        let metadata = Mapping::anonymous(metadata_bytes).map_err(no_memory(metadata_bytes))?;
        // A child finds empty pools and no areas. It then asks the depot for the reason.
        metadata.advise(Advice::LinuxWipeOnFork).map_err(|errno| match errno {
            // The kernel can wipe memory, but has no mapping left to divide this one.
            Errno::AGAIN | Errno::NOMEM => no_memory(metadata_bytes)(Errno::NOMEM),
            errno => VmallocBuildError::NoWipeOnFork { errno },
        })?;
        // SAFETY: the mapping's only reference. The lifetime says `'static`, but the address space
        // is dropped before the mapping.
        let memory = unsafe {
            std::slice::from_raw_parts_mut(metadata.start().as_ptr().cast(), metadata_bytes)
        };
        let host = DepotHost::with(&self.depot, self.purge_wanted);
        // SAFETY: the memory is zeroed by the system. The mapper and the host are over one depot,
        // and no other address space uses them. A page of a depot can be freed or accessed without
        // holding it only by unsafe code.
        let vmap = unsafe { Vmap::new(&config, memory, mapper, host) }?;
        let vmap = NonNull::from(Box::leak(Box::new(vmap)));
        let shared = self.depot.shared();
        let shrinkers = self.shrinker.then(|| shared.callbacks().shrinkers(shared));
        // From here on, dropping `space` cleans up.
        let mut space = Space::new(vmap, metadata);
        if let Some(shrinkers) = shrinkers {
            space.shrink_with(shrinkers?)?;
        }
        space.purge_for_others()?;
        Ok(Vmalloc::from_space(space))
    }

    fn config(&self, mapper: &LinuxMapper) -> VmapConfig {
        let pages =
            |bytes: Option<usize>| bytes.map(|bytes| (bytes >> mapper.page_size().shift()) as u64);
        let nodes = self.nodes.unwrap_or_else(|| Topology::read().cpu_count());
        let areas_max = self.areas_max.unwrap_or_else(|| (mapper.span().pages / 2).min(AREAS_MAX));
        let plain = VmapConfig::new(nodes, areas_max);
        VmapConfig {
            lazy_pages_max: pages(self.lazy_bytes),
            pool_pages_max: pages(self.pool_bytes),
            warm_pages_max: pages(self.warm_bytes),
            large_pages_max: pages(self.large_bytes),
            stale: self.stale,
            flags: self.flags.unwrap_or(plain.flags),
            purge_by: if self.purge_wanted.is_some() { PurgeBy::Helper } else { PurgeBy::Caller },
            // Anonymous memory is zeroed.
            metadata_is_zero: true,
            ..plain
        }
    }
}

/// Default size of the range in bytes, for a depot of so many. Pages are counted in 32 bits.
fn default_range(depot_bytes: usize, page_size: PageSize) -> usize {
    let table_pages = table_pages(page_size);
    let bytes_max = ((u32::MAX / table_pages * table_pages) as usize) << page_size.shift();
    depot_bytes.saturating_mul(RANGE_PER_DEPOT).clamp(RANGE_MIN, bytes_max)
}

impl Vmalloc {
    /// Makes an address space over a depot's pages, with the defaults of [`VmallocBuilder`]. The
    /// depot's memory must be a file ([`MemoryKind::Memfd`](crate::MemoryKind::Memfd)).
    ///
    /// # Errors
    /// [`VmallocBuildError`]; its `Display` says what to do.
    pub fn new(depot: &Depot) -> Result<Self, VmallocBuildError> {
        Self::builder(depot).build()
    }

    /// Options for an address space over a depot's pages.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, MemoryKind, Vmalloc};
    ///
    /// let depot = Depot::builder(16 << 20).memory(MemoryKind::Memfd).build()?;
    /// let space = Vmalloc::builder(&depot).bytes(1 << 30).warm_bytes(1 << 20).build()?;
    /// assert_eq!(space.range().1, 1 << 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(depot: &Depot) -> VmallocBuilder {
        VmallocBuilder::new(depot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A depot of any size has a range that can be made.
    #[test]
    fn default_ranges_are_of_pages_that_can_be_counted() {
        for page_size in [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64] {
            let shift = page_size.shift();
            let range = |pages: usize| default_range(pages << shift, page_size) >> shift;
            assert_eq!(range(1), RANGE_MIN >> shift);
            assert_eq!(range(1 << 20), 1 << 23);
            for pages in [1 << 29, 1 << 31, u32::MAX as usize] {
                let range = range(pages);
                assert!(range <= u32::MAX as usize && range > 7 * (1 << 29), "{range}");
                assert!(range.is_multiple_of(table_pages(page_size) as usize), "{range}");
            }
        }
    }
}
