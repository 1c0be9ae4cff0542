//! The state of a vmap. Each part owns its own state; this struct owns the parts.
//!
//! Requests and purges are methods of this struct, in the modules `purge`, `addresses`, `memory`
//! and `resize`. Each of these calls only those before it.

use crate::config::{PurgeBy, VmapConfig};
use crate::lock::{Lock, Waits};
use crate::map::Mappings;
use crate::metadata::area::{Area, AreaIndex, Areas};
use crate::metadata::directory::Directory;
use crate::node::Nodes;
use crate::node::counters::Counters;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::space::{LockedSpace, Space};
use crate::units::ManagedRange;
use pagedepot::Flags;

pub struct VmapState<'m, M, H> {
    host: H,
    directory: Directory<'m>,
    nodes: Nodes<'m>,
    space: &'m Space,
    mappings: Mappings<'m, M>,
    /// The lock that a purge holds.
    purge_lock: &'m Lock,
    /// Number of lazy pages at which a purge is due.
    lazy_pages_max: u64,
    /// The threads that run a purge which is due.
    purge_by: PurgeBy,
    /// Flags of frames, unless the request has its own.
    flags: Flags,
}

/// The parts of a vmap in the caller's memory.
pub struct PlacedParts<'m> {
    pub directory: Directory<'m>,
    pub nodes: Nodes<'m>,
    pub space: &'m Space,
    pub purge_lock: &'m Lock,
}

impl<'m, M: Mapper, H: Host> VmapState<'m, M, H> {
    /// The state of a vmap with this configuration, which has no free addresses yet.
    pub fn new(
        config: &VmapConfig,
        host: H,
        mappings: Mappings<'m, M>,
        placed: PlacedParts<'m>,
    ) -> Self {
        let PlacedParts { directory, nodes, space, purge_lock } = placed;
        let lazy_pages_max = config.lazy_pages_max(directory.range().page_size);
        let (purge_by, flags) = (config.purge_by, config.flags);
        VmapState {
            host,
            directory,
            nodes,
            space,
            mappings,
            purge_lock,
            lazy_pages_max,
            purge_by,
            flags,
        }
    }

    #[inline]
    pub fn host(&self) -> &H {
        &self.host
    }

    #[inline]
    pub fn directory(&self) -> &Directory<'m> {
        &self.directory
    }

    #[inline]
    pub fn range(&self) -> &ManagedRange {
        self.directory.range()
    }

    #[inline]
    pub fn areas(&self) -> Areas<'m> {
        self.directory.areas()
    }

    #[inline]
    pub fn area(&self, index: AreaIndex) -> &'m Area {
        self.directory.area(index)
    }

    #[inline]
    pub fn nodes(&self) -> &Nodes<'m> {
        &self.nodes
    }

    #[inline]
    pub fn mappings(&self) -> &Mappings<'m, M> {
        &self.mappings
    }

    pub fn space(&self) -> &'m Space {
        self.space
    }

    /// The space, locked; see [`Space::lock`].
    pub fn lock_space(&self) -> LockedSpace<'_, 'm, H> {
        self.space.lock(&self.directory, &self.host)
    }

    /// The space, locked if that is possible while the caller `waits`.
    pub fn lock_space_as(&self, waits: Waits) -> Option<LockedSpace<'_, 'm, H>> {
        self.space.lock_as(&self.directory, &self.host, waits)
    }

    /// The counters of this CPU's node.
    pub fn counters(&self) -> &'m Counters {
        self.nodes.of_cpu(self.host.cpu()).1.counters()
    }

    /// The lock that a purge holds.
    pub fn purge_lock(&self) -> &'m Lock {
        self.purge_lock
    }

    /// Number of lazy pages at which a purge is due.
    pub fn lazy_pages_max(&self) -> u64 {
        self.lazy_pages_max
    }

    /// The threads that run a purge which is due.
    pub fn purge_by(&self) -> PurgeBy {
        self.purge_by
    }

    /// Flags of frames, unless the request has its own.
    pub fn flags(&self) -> Flags {
        self.flags
    }
}
