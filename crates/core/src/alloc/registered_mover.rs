//! The mover for requests with [`Flags::compact`](crate::Flags::compact): registered once, and run
//! by one request at a time.
//!
//! The mover may allocate, and a request of its own that compacted would enter it again: so a
//! request that finds another one compacting goes on without.

use core::fmt;

use super::mover::Mover;
use crate::sync::late_init::LateInit;
use crate::sync::prim::{AtomicBool, Ordering};

/// There is a mover already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoverRegistered;

impl fmt::Display for MoverRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mover is registered already: let one ask the others")
    }
}

impl core::error::Error for MoverRegistered {}

/// The right to compact for a request; given up also when the mover panics.
pub(super) struct Turn<'t>(&'t AtomicBool);

impl<'t> Turn<'t> {
    fn begin(is_compacting: &'t AtomicBool) -> Option<Self> {
        // Acquire: pairs with the Release in `drop`; the mover sees what its last call wrote.
        // Not `then_some`: dropping the right of a caller that never had it would end another's.
        (!is_compacting.swap(true, Ordering::Acquire)).then(|| Turn(is_compacting))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `begin`.
        self.0.store(false, Ordering::Release);
    }
}

/// The mover for requests, once the embedder has registered one.
pub(crate) struct RegisteredMover<'m> {
    mover: LateInit<&'m (dyn Mover + Sync)>,
    /// Whether a request compacts by it.
    is_compacting: AtomicBool,
}

impl<'m> RegisteredMover<'m> {
    /// None yet.
    pub fn new() -> Self {
        RegisteredMover { mover: LateInit::new(), is_compacting: AtomicBool::new(false) }
    }

    /// Registers it, for good.
    pub fn register(&self, mover: &'m (dyn Mover + Sync)) -> Result<(), MoverRegistered> {
        let registered = self.mover.init(|| Ok::<_, ()>(mover));
        registered.map(drop).map_err(|_| MoverRegistered)
    }

    /// The mover, and the right to call it. `None`: there is none, or another request has the
    /// right.
    pub(super) fn begin(&self) -> Option<(&dyn Mover, Turn<'_>)> {
        let mover: &dyn Mover = *self.mover.get()?;
        Some((mover, Turn::begin(&self.is_compacting)?))
    }
}
