//! The parts that requests and purges work on. Each owns its state; this struct owns them.

use crate::lock::Waits;
use crate::map::Mappings;
use crate::metadata::area::{Area, AreaIndex, Areas};
use crate::metadata::directory::Directory;
use crate::node::Nodes;
use crate::node::counters::Counters;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::space::{LockedSpace, Space};
use crate::units::ManagedRange;

pub struct Parts<'m, M, H> {
    host: H,
    directory: Directory<'m>,
    nodes: Nodes<'m>,
    space: &'m Space,
    mappings: Mappings<'m, M>,
}

impl<'m, M: Mapper, H: Host> Parts<'m, M, H> {
    pub fn new(
        host: H,
        directory: Directory<'m>,
        nodes: Nodes<'m>,
        space: &'m Space,
        mappings: Mappings<'m, M>,
    ) -> Self {
        Parts { host, directory, nodes, space, mappings }
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
}
