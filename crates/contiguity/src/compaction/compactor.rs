//! The mover for requests with [`Flags::compact`](pagedepot::Flags::compact), which one request at
//! a time calls.
//!
//! The mover may allocate, and a request of its own that compacted would enter it again: so a
//! request goes on without while a compaction by the mover runs, of another request or of a caller.
//! Compactions are counted. A thread in the mover has counted its own, which no other thread takes
//! off, so its requests read at least one. Callers wait neither for requests nor for each other.
//!
//! Requests that would mix a pageblock ask for it again and again. Where it is in vain they are
//! *deferred*, as the kernel's compaction is (`mm/compaction.c`, `defer_compaction`): after each
//! failure twice as many of them go on without it, up to 64.

use core::fmt;

use pagedepot::sync::prim::{AtomicU32, Ordering};

use super::mover::Mover;

/// A compaction by the mover, of those that are counted; its end is noted also when the mover
/// panics.
pub(super) struct Turn<'t>(&'t AtomicU32);

impl<'t> Turn<'t> {
    /// Begins a compaction for a request, unless one runs.
    fn begin(running: &'t AtomicU32) -> Option<Self> {
        // Acquire: pairs with the Release in `drop`; the mover sees what its last call wrote.
        let begun = running.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: dropping the turn of a caller that never had it would end another's.
        begun.is_ok().then(|| Turn(running))
    }

    /// Begins a compaction for a caller, beside others.
    fn join(running: &'t AtomicU32) -> Self {
        // Acquire: as in `begin`.
        running.fetch_add(1, Ordering::Acquire);
        Turn(running)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `begin`.
        self.0.fetch_sub(1, Ordering::Release);
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
    /// Compactions by the mover that run now: of one request at most, and of callers.
    running: AtomicU32,
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
            running: zero(),
            confining: ConfineState { deferred: zero(), failures: zero(), from: [zero(), zero()] },
        }
    }

    /// The mover, for a request. `None`: a compaction by it runs.
    pub(super) fn begin(&self) -> Option<(&dyn Mover, Turn<'_>)> {
        Some((self.mover, Turn::begin(&self.running)?))
    }

    /// The mover, for a caller.
    pub(super) fn join(&self) -> (&dyn Mover, Turn<'_>) {
        (self.mover, Turn::join(&self.running))
    }

    /// The state of requests that would mix pageblocks. `None`: this one is deferred.
    pub(super) fn confining(&self) -> Option<&ConfineState> {
        (!self.confining.is_deferred()).then_some(&self.confining)
    }
}
