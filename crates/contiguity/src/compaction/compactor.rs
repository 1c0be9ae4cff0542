//! The mover for requests with [`Flags::compact`](pagedepot::Flags::compact), which one request at
//! a time calls.
//!
//! The mover may allocate, and a request of its own that compacted would enter it again: so a
//! request that finds another one compacting goes on without.
//!
//! Requests that would mix a pageblock ask for it again and again. Where it is in vain they are
//! *deferred*, as the kernel's compaction is (`mm/compaction.c`, `defer_compaction`): after each
//! failure twice as many of them go on without it, up to 64.

use core::fmt;

use pagedepot::sync::prim::{AtomicBool, AtomicU32, Ordering};

use super::mover::Mover;

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

/// Compacts for an allocator's requests with [`Flags::compact`](pagedepot::Flags::compact), by the
/// embedder's mover: before a request fails, if it may reclaim, and before it would mix unmovable
/// or reclaimable blocks among movable ones. An allocator without one never moves blocks for a
/// request.
///
/// ```
/// use pagedepot::Pfn;
/// use pagedepot_contiguity::{Compactor, Move, Mover, Occupant};
///
/// /// Knows no block, so moves none.
/// struct Nothing;
///
/// impl Mover for Nothing {
///     fn occupant(&self, _frame: Pfn) -> Occupant {
///         Occupant::Unknown
///     }
///     fn move_blocks(&self, _moves: &mut [Move]) {}
/// }
///
/// let mover = Nothing;
/// let compactor = Compactor::new(&mover);
/// // For each allocator: compactor.register(&allocator)?;
/// ```
pub struct Compactor<'m> {
    mover: &'m (dyn Mover + Sync),
    /// Whether a request compacts by the mover.
    is_compacting: AtomicBool,
    confining: ConfineState,
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

/// State that requests which would mix pageblocks share. Relaxed everywhere: policies.
pub(super) struct ConfineState {
    /// Number of such requests that will still go on without the mover.
    deferred: AtomicU32,
    /// Failures in a row, up to [`FAILURES_MAX`].
    failures: AtomicU32,
    /// Pageblock at which the next look begins, by [`PageblockKind`].
    from: [AtomicU32; 2],
}

/// After so many failures in a row, 2^6 requests are deferred.
const FAILURES_MAX: u32 = 6;

/// The pageblocks that are looked at.
#[derive(Clone, Copy)]
pub(super) enum PageblockKind {
    Mixed,
    Sparse,
}

impl ConfineState {
    /// Pageblock at which a look begins.
    pub fn from(&self, kind: PageblockKind) -> u32 {
        self.from[kind as usize].load(Ordering::Relaxed)
    }

    /// Sets the pageblock at which the next look begins.
    pub fn go_on_at(&self, kind: PageblockKind, pageblock: u32) {
        self.from[kind as usize].store(pageblock, Ordering::Relaxed);
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

impl<'m> Compactor<'m> {
    /// Compacts by `mover`, once it is [registered](Self::register).
    pub fn new(mover: &'m (dyn Mover + Sync)) -> Self {
        let zero = || AtomicU32::new(0);
        Compactor {
            mover,
            is_compacting: AtomicBool::new(false),
            confining: ConfineState { deferred: zero(), failures: zero(), from: [zero(), zero()] },
        }
    }

    /// The mover, and the right to call it. `None`: another request has the right.
    pub(super) fn begin(&self) -> Option<(&dyn Mover, Turn<'_>)> {
        Some((self.mover, Turn::begin(&self.is_compacting)?))
    }

    /// The state of requests that would mix pageblocks. `None`: this one is deferred.
    pub(super) fn confining(&self) -> Option<&ConfineState> {
        (!self.confining.is_deferred()).then_some(&self.confining)
    }
}
