//! Making an address space.

use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::Flags;
use pagedepot_vmap::{PurgeBy, Stale, Vmap, VmapConfig};
use rustix::mm::Advice;

use super::LinuxVmap;
use super::error::VmallocBuildError;
use super::host::{DepotHost, PurgeWanted};
use super::mapper::LinuxMapper;
use super::space::{Space, Vmalloc};
use crate::depot::Depot;
use crate::memory::Mapping;
use crate::topology::Topology;

/// The default range: this many times the depot, and no less than [`RANGE_MIN`].
const RANGE_PER_DEPOT: usize = 8;
const RANGE_MIN: usize = 1 << 30;
/// The default number of areas, at most.
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
    stale: Stale,
    flags: Option<Flags>,
    warm_bytes: Option<usize>,
    pool_bytes: Option<usize>,
    lazy_bytes: Option<usize>,
    mappings_max: Option<u32>,
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
            stale: Stale::default(),
            flags: None,
            warm_bytes: None,
            pool_bytes: None,
            lazy_bytes: None,
            mappings_max: None,
            shrinker: true,
            purge_wanted: None,
        }
    }

    /// Bytes of addresses, rounded up to 512 pages. They cost 9 bytes of metadata per page where
    /// they are used. Default: eight times the depot, at least 1 GiB.
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Most areas and free ranges at a time, 64 bytes each where used. Default: one for every two
    /// pages of the range, at most 2^20.
    pub fn areas_max(mut self, areas: u32) -> Self {
        self.areas_max = Some(areas);
        self
    }

    /// Nodes, each with pools of its own; CPUs beyond share. Default: one for each CPU that may
    /// ever come online, at most 128.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// What becomes of data in freed memory that stays mapped for the next caller: zeroed before
    /// that one gets it (the default), overwritten when freed, or kept.
    pub fn stale(mut self, stale: Stale) -> Self {
        self.stale = stale;
        self
    }

    /// How to ask the depot for frames when a request does not say. Default: movable.
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags = Some(flags);
        self
    }

    /// Most freed memory that each node keeps mapped, so that the next request for that size needs
    /// no system call. Default: 32 MiB. 0: none.
    pub fn warm_bytes(mut self, bytes: usize) -> Self {
        self.warm_bytes = Some(bytes);
        self
    }

    /// Most addresses that each node's pools keep. Default: an eighth of the range, shared by all
    /// nodes, at most 2^18 pages each.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = Some(bytes);
        self
    }

    /// How much may be freed but still mapped before a purge. Default: 32 MiB for each bit of the
    /// number of CPUs, as in the kernel.
    pub fn lazy_bytes(mut self, bytes: usize) -> Self {
        self.lazy_bytes = Some(bytes);
        self
    }

    /// Most mappings (lines in `/proc/self/maps`) that the range may be divided into; a few of
    /// them are kept for purges. Requests prefer longer runs of frames when three quarters are in
    /// use. Default: no limit of its own. In any case all ranges of this process together stay
    /// within what `vm.max_map_count` leaves when the first is made, but for an eighth.
    pub fn mappings_max(mut self, mappings: u32) -> Self {
        self.mappings_max = Some(mappings);
        self
    }

    /// Whether pools give up their pages when the depot runs short. Default: yes. A signal handler
    /// may allocate pages all the same: if its thread was purging, it does without these pages.
    /// For purges of other threads it waits a second at most.
    pub fn shrinker(mut self, yes: bool) -> Self {
        self.shrinker = yes;
        self
    }

    /// Leaves purges to a thread of the program. `wake` tells it when there is enough to purge; it
    /// then calls [`Vmalloc::purge`] with [`PurgeDepth::Decay`](super::PurgeDepth::Decay). A thread
    /// that frees more than twice what may be lazy helps all the same. Default: the thread whose
    /// free passes the threshold purges.
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
        let bytes = self
            .bytes
            .unwrap_or_else(|| self.depot.bytes().saturating_mul(RANGE_PER_DEPOT).max(RANGE_MIN));
        let mapper = LinuxMapper::new(&self.depot, bytes, self.mappings_max)?;
        let config = self.config(&mapper);
        let metadata_bytes = LinuxVmap::metadata_bytes(&config, &mapper)?;
        let failed = |errno| VmallocBuildError::Memory { bytes: metadata_bytes, errno };
        let metadata = Mapping::anonymous(metadata_bytes).map_err(failed)?;
        // A child finds empty pools and no areas, and then asks the depot why.
        metadata
            .advise(Advice::LinuxWipeOnFork)
            .map_err(|errno| VmallocBuildError::NoWipeOnFork { errno })?;
        // SAFETY: the mapping's only reference; it says `'static`, but the address space drops
        // what has it before the mapping.
        let memory = unsafe {
            std::slice::from_raw_parts_mut(metadata.start().as_ptr().cast(), metadata_bytes)
        };
        let host = DepotHost::with(&self.depot, self.purge_wanted);
        // SAFETY: zeroes fresh from the system. The mapper and the host are over one depot and this
        // address space's alone; to free or access pages of a depot that one does not hold is
        // unsafe.
        let vmap = unsafe { Vmap::new(&config, memory, mapper, host) }?;
        let vmap = NonNull::from(Box::leak(Box::new(vmap)));
        let shrinkers = if self.shrinker { Some(self.depot.shared().shrinkers()) } else { None };
        // From here on dropping it cleans up.
        let mut space = Space::new(vmap, metadata);
        if let Some(shrinkers) = shrinkers {
            space.shrink_with(shrinkers?).map_err(|_| VmallocBuildError::Forked)?;
        }
        Ok(Vmalloc::from_space(space))
    }

    fn config(&self, mapper: &LinuxMapper) -> VmapConfig {
        use pagedepot_vmap::Mapper;
        let pages =
            |bytes: Option<usize>| bytes.map(|bytes| (bytes >> mapper.page_size().shift()) as u64);
        let nodes = self.nodes.unwrap_or_else(|| Topology::read().cpu_count());
        let areas_max = self.areas_max.unwrap_or_else(|| (mapper.span().pages / 2).min(AREAS_MAX));
        let plain = VmapConfig::new(nodes, areas_max);
        VmapConfig {
            lazy_pages_max: pages(self.lazy_bytes),
            pool_pages_max: pages(self.pool_bytes),
            warm_pages_max: pages(self.warm_bytes),
            stale: self.stale,
            flags: self.flags.unwrap_or(plain.flags),
            purge_by: if self.purge_wanted.is_some() { PurgeBy::Helper } else { PurgeBy::Caller },
            // Anonymous memory.
            metadata_is_zero: true,
            ..plain
        }
    }
}

impl Vmalloc {
    /// An address space over a depot's pages with the defaults of [`VmallocBuilder`]. The depot's
    /// memory must be a file ([`MemoryKind::Memfd`](crate::MemoryKind::Memfd)).
    ///
    /// # Errors
    /// [`VmallocBuildError`]; its `Display` says what to do.
    pub fn new(depot: &Depot) -> Result<Self, VmallocBuildError> {
        Self::builder(depot).build()
    }

    /// An address space with options.
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
