//! The seam between requests and what makes room for them by moving blocks of other callers.
//!
//! A request knows neither movers nor compaction. It asks the registered relief at two moments: on
//! its slow path, before it would take a block from a pageblock of another mobility, and before it
//! fails. [`Compactor`](crate::Compactor) is the one relief there is.

use core::fmt;

use super::flags::Flags;
use super::hooks::Hooks;
use super::walk::Request;
use crate::frame::{Order, Pfn};
use crate::sync::late_init::LateInit;

/// Makes room for requests. `None` from either call: the request goes on as without a relief.
///
/// Both are called on the thread of the request, above the locks that its caller holds, and may
/// allocate: they must end when a request of their own comes back to them.
pub(crate) trait Relief<C>: Sync {
    /// Finds a block for a request above the `low` watermark without mixing mobilities in a
    /// pageblock. Called for every request that its front does not serve, so the answer to a
    /// request that does not want relief costs a few instructions.
    fn before_mixing(&self, hooks: &Hooks<'_, '_, C>, order: Order, flags: Flags) -> Option<Pfn>;

    /// Finds the frames for a request for which the last resort has found none.
    fn before_failing(&self, hooks: &Hooks<'_, '_, C>, request: Request) -> Option<Pfn>;
}

/// An allocator has a mover for requests already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverRegistered;

impl fmt::Display for MoverRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mover is registered already: let one ask the others")
    }
}

impl core::error::Error for MoverRegistered {}

/// The relief of an allocator, once one is registered; it stays for the allocator's life.
pub(crate) struct ReliefSlot<'m, C>(LateInit<&'m dyn Relief<C>>);

impl<'m, C> ReliefSlot<'m, C> {
    pub fn new() -> Self {
        ReliefSlot(LateInit::new())
    }

    pub fn register(&self, relief: &'m dyn Relief<C>) -> Result<(), MoverRegistered> {
        let registered = self.0.init(|| Ok::<_, ()>(relief));
        registered.map(drop).map_err(|_| MoverRegistered)
    }

    pub fn get(&self) -> Option<&'m dyn Relief<C>> {
        self.0.get().copied()
    }
}
