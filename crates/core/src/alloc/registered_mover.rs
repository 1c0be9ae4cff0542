//! The mover for requests with [`Flags::compact`](crate::Flags::compact): registered once, and run
//! by one request at a time.
//!
//! The mover may allocate, and a request of its own that compacted would enter it again: so a
//! request that finds another one compacting goes on without.
//!
//! Requests that would mix a pageblock ask for it again and again. Where it is in vain they are
//! *deferred*, as the kernel's compaction is (`mm/compaction.c`, `defer_compaction`): after each
//! failure twice as many of them go on without it, up to 64.

use core::fmt;

use super::mover::Mover;
use crate::sync::late_init::LateInit;
use crate::sync::prim::{AtomicBool, AtomicU32, Ordering};

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
    confining: Confining,
}

/// What requests that would mix pageblocks know of each other. Relaxed everywhere: policies.
pub(super) struct Confining {
    /// Such requests that go on without the mover.
    deferred: AtomicU32,
    /// Failures in a row, up to [`FAILURES_MAX`].
    failures: AtomicU32,
    /// By [`Source`]: the pageblock where the next look begins.
    from: [AtomicU32; 2],
}

/// After so many failures in a row, 2^6 requests are deferred.
const FAILURES_MAX: u32 = 6;

/// Which pageblocks are looked at.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Mixed,
    Sparse,
}

impl Confining {
    /// Where a look begins.
    pub fn from(&self, source: Source) -> u32 {
        self.from[source as usize].load(Ordering::Relaxed)
    }

    /// Where the next one does.
    pub fn go_on_at(&self, source: Source, pageblock: u32) {
        self.from[source as usize].store(pageblock, Ordering::Relaxed);
    }

    /// Whether a request goes on without the mover, which is counted.
    fn is_deferred(&self) -> bool {
        match self.deferred.load(Ordering::Relaxed) {
            0 => false,
            left => {
                self.deferred.store(left - 1, Ordering::Relaxed);
                true
            }
        }
    }

    /// Notes whether a request was served.
    pub fn note(&self, is_served: bool) {
        let failures = if is_served {
            0
        } else {
            (self.failures.load(Ordering::Relaxed) + 1).min(FAILURES_MAX)
        };
        self.failures.store(failures, Ordering::Relaxed);
        self.deferred.store(if is_served { 0 } else { 1 << failures }, Ordering::Relaxed);
    }
}

impl<'m> RegisteredMover<'m> {
    /// None yet.
    pub fn new() -> Self {
        let zero = || AtomicU32::new(0);
        RegisteredMover {
            mover: LateInit::new(),
            is_compacting: AtomicBool::new(false),
            confining: Confining { deferred: zero(), failures: zero(), from: [zero(), zero()] },
        }
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

    /// For a request that would mix pageblocks; `None`: there is no mover, or it is deferred.
    pub(super) fn confining(&self) -> Option<&Confining> {
        self.mover.get()?;
        (!self.confining.is_deferred()).then_some(&self.confining)
    }
}
