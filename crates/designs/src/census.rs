//! The result of a validation: the place of all frames, or the first fault.

use std::fmt;

use pagedepot::Pfn;

/// The number of pages in each place. Callers hold the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Pages given to the design.
    pub managed_pages: u64,
    /// Pages free in the store.
    pub free_pages: u64,
    /// Pages in caches.
    pub cached_pages: u64,
    /// Pages in lists that were switched away and wait for a grace period.
    pub pending_pages: u64,
    /// Pages that the design took for its own metadata.
    pub overhead_pages: u64,
}

impl Census {
    /// Pages that callers must be holding.
    pub fn held_pages(&self) -> u64 {
        self.managed_pages
            - self.free_pages
            - self.cached_pages
            - self.pending_pages
            - self.overhead_pages
    }
}

/// A fault in a design's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A frame is in two places.
    Doubled {
        /// The frame.
        pfn: Pfn,
    },
    /// A frame is in a list of another zone or order than its own.
    Misplaced {
        /// The frame.
        pfn: Pfn,
    },
    /// Two free buddies were not merged.
    Unmerged {
        /// The first frame of the lower buddy.
        pfn: Pfn,
    },
    /// A counter disagrees with what it counts.
    Count {
        /// The thing that is counted.
        what: &'static str,
        /// The counter's value.
        counted: u64,
        /// The number that a walk found.
        found: u64,
    },
    /// A fault of the bitmap store, or of pagedepot's allocator.
    Allocator(pagedepot::Fault),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Allocator(fault) => fault.fmt(f),
            fault => write!(f, "the design's metadata is inconsistent: {fault:?}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<pagedepot::Fault> for Fault {
    fn from(fault: pagedepot::Fault) -> Self {
        Fault::Allocator(fault)
    }
}

/// Compares a counter with what a walk found.
pub fn agree(what: &'static str, counted: u64, found: u64) -> Result<(), Fault> {
    if counted == found { Ok(()) } else { Err(Fault::Count { what, counted, found }) }
}
