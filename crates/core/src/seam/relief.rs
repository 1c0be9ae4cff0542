//! The relief that requests ask before they mix pageblocks, and before they fail.

use super::zone::ZoneAccess;
use crate::alloc::Allocator;
use crate::alloc::pressure::{PendingRequest, Relief};
use crate::cpus::Cpus;

/// Registers the relief of an allocator's requests, for the allocator's life. `false`: there is one
/// already, or another call registers one at this moment.
pub fn register_relief<'m, C: Cpus>(
    allocator: &Allocator<'m, C>,
    relief: &'m dyn Relief<C>,
) -> bool {
    allocator.globals.relief.register(relief)
}

impl<'a, 'm, C: Cpus> PendingRequest<'a, 'm, C> {
    /// The zones that may serve the request without going below the watermark that it heeds, the
    /// best first.
    pub fn zones(&self) -> impl Iterator<Item = ZoneAccess<'a, 'm, C>> {
        self.zone_ids().map(|id| ZoneAccess { hooks: self.hooks, id })
    }
}
