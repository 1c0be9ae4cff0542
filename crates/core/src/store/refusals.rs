//! The reported pageblocks that the device has refused of late.
//!
//! A *refused* pageblock stays reported, and free. Searches and claims pass it by: a device that
//! has no memory would else be asked for each pageblock by each search of a request, of which there
//! are up to fourteen.
//!
//! A request that has found nothing so far *forgets* all refusals before its last resort, or before
//! it fails where it has none. So it asks for each pageblock twice at most, and one that it passes
//! by when it fails was refused while it ran.
//!
//! All accesses are Relaxed. Only the caller that has taken all frames of a pageblock notes a
//! refusal of it. A refusal that is forgotten too early or too late by a caller beside it counts as
//! that caller's.

use super::bits::HINT_WORDS;
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};

/// A bit per pageblock of a section; see the module.
pub(super) struct Refusals([AtomicU64; HINT_WORDS]);

impl Refusals {
    /// Makes the refusals of a section of which no pageblock is refused.
    pub fn new() -> Self {
        Refusals(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Mask of the pageblocks `64 * i ..` that are refused.
    #[inline]
    pub fn of(&self, i: usize) -> u64 {
        self.0[i].load(Ordering::Relaxed)
    }

    /// Whether a pageblock is.
    pub fn has(&self, pageblock: usize) -> bool {
        self.of(pageblock / 64) >> (pageblock % 64) & 1 == 1
    }

    /// Notes whether the device has refused a pageblock whose reported bit the caller has cleared.
    pub fn note(&self, pageblock: usize, is_refused: bool) {
        if self.has(pageblock) == is_refused || is_mutant(Mutant::ForgetsRefusals) {
            return;
        }
        let (cell, bit) = (&self.0[pageblock / 64], 1 << (pageblock % 64));
        match is_refused {
            true => cell.fetch_or(bit, Ordering::Relaxed),
            false => cell.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Notes that all of them are old.
    pub fn forget(&self) {
        self.0.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}
