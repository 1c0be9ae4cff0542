//! Errors of requests. Small, so that the fast path returns them in a register; where the pages
//! are is a question to [`Allocator::shortage`](crate::Allocator::shortage).
//!
//! With the feature `std` they become [`std::io::Error`], for programs whose functions return that.
//! The original is the inner error: `downcast` gives it back.

use core::fmt;
#[cfg(feature = "std")]
use std::io;

use crate::cpus::Unusable;

/// The reason why no pages were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// No zone that the request may use has such a block, and none could be had by the means the
    /// request allows. `Allocator::shortage` lists where the pages are.
    Exhausted,
    /// The request's flags exclude every zone.
    NoZone,
    /// The range asked for is not entirely free, or not entirely of one zone's memory.
    NotAvailable,
    /// The [`Backing`](crate::Backing) under this allocator cannot find frames at given addresses,
    /// or more contiguous ones than its largest block has.
    Unsupported,
    /// A size of zero, or above 1 GiB of frames (2^18).
    BadSize,
    /// An alignment that is no power of two, or above 2^18 frames.
    BadAlignment,
    /// A [`Global`](crate::Global) whose allocator has not been made yet.
    NotInitialized,
    /// This process is a fork of the one that made the allocator.
    Forked,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AllocError::Exhausted => {
                "out of pages: free some, begin with more memory or a higher ceiling, or register \
                 a reclaim callback (`shortage` lists where they are)"
            }
            AllocError::NoZone => "the flags exclude every zone: raise the level or drop this_node",
            AllocError::NotAvailable => "the range is not entirely free memory of one zone",
            AllocError::Unsupported => {
                "the backing has no ranges: implement Backing::ranges, or ask for at most 1024 \
                 frames anywhere"
            }
            AllocError::BadSize => "sizes go from 1 to 2^18 frames",
            AllocError::BadAlignment => "alignments are powers of two of at most 2^18 frames",
            AllocError::NotInitialized => NOT_INITIALIZED,
            AllocError::Forked => {
                "this process is a fork of the one that made the allocator, whose pages it does \
                 not own: make a new one after fork"
            }
        })
    }
}

impl core::error::Error for AllocError {}

impl From<Unusable> for AllocError {
    fn from(Unusable::Forked: Unusable) -> Self {
        AllocError::Forked
    }
}

/// The reason why [`Allocator::look`](crate::Allocator::look) found no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error that [`Allocator::alloc`](crate::Allocator::alloc) would return.
    pub error: AllocError,
    /// Whether at some moment of the look callers held all blocks that would have served it, the
    /// blocks in CPUs' fronts aside. `false`: other callers kept moving pages, or held some between
    /// two places; look again. Or memory is free that the
    /// [`ReportingDevice`](crate::seam::ReportingDevice) may refuse, as it has refused some; look
    /// again after a while.
    pub is_proven: bool,
}

/// The reason why pages were not freed. Nothing was changed, but for a
/// [`NotAllocated`](Self::NotAllocated) that the store has found: frames of the block that were not
/// free yet are free now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FreeError {
    /// No memory of this allocator there.
    OutOfRange,
    /// The frame is not a multiple of the block's size.
    Misaligned,
    /// The block is not allocated, or not with this order (found by `checked`), or was freed
    /// already (found always, if the first free has reached the store; without `checked`
    /// [`Config::on_misuse`](crate::Config::on_misuse) is called first, which panics by default).
    NotAllocated,
    /// A [`Global`](crate::Global) whose allocator has not been made yet.
    NotInitialized,
    /// This process is a fork of the one that made the allocator.
    Forked,
}

const NOT_INITIALIZED: &str =
    "the allocator has not been made yet: call Global::init before the first request";

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FreeError::OutOfRange => {
                "this allocator has no memory there: was the frame got from another one?"
            }
            FreeError::Misaligned => {
                "the frame is not a multiple of the block's size: was the order another one?"
            }
            FreeError::NotAllocated => {
                "no block of this order is allocated there: was it freed before, or split?"
            }
            FreeError::NotInitialized => NOT_INITIALIZED,
            FreeError::Forked => {
                "this process is a fork of the one that made the allocator, whose pages it does \
                 not own"
            }
        })
    }
}

impl core::error::Error for FreeError {}

impl From<Unusable> for FreeError {
    fn from(Unusable::Forked: Unusable) -> Self {
        FreeError::Forked
    }
}

/// Some blocks of a batch were not freed; all others were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeManyError {
    /// The first bad block's place in the batch.
    pub first: usize,
    /// The error of the first bad block.
    pub error: FreeError,
    /// Number of bad blocks.
    pub failed: usize,
}

impl fmt::Display for FreeManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} blocks were not freed, the first at place {}: {}",
            self.failed, self.first, self.error
        )
    }
}

impl core::error::Error for FreeManyError {}

#[cfg(feature = "std")]
impl From<AllocError> for io::Error {
    fn from(error: AllocError) -> Self {
        let kind = match error {
            AllocError::Exhausted => io::ErrorKind::OutOfMemory,
            AllocError::NotAvailable => io::ErrorKind::ResourceBusy,
            AllocError::NoZone | AllocError::BadSize | AllocError::BadAlignment => {
                io::ErrorKind::InvalidInput
            }
            AllocError::Unsupported | AllocError::NotInitialized | AllocError::Forked => {
                io::ErrorKind::Unsupported
            }
        };
        io::Error::new(kind, error)
    }
}

#[cfg(feature = "std")]
impl From<FreeError> for io::Error {
    fn from(error: FreeError) -> Self {
        let kind = match error {
            FreeError::OutOfRange | FreeError::Misaligned | FreeError::NotAllocated => {
                io::ErrorKind::InvalidInput
            }
            FreeError::NotInitialized | FreeError::Forked => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(feature = "std")]
impl From<FreeManyError> for io::Error {
    fn from(error: FreeManyError) -> Self {
        io::Error::new(io::Error::from(error.error).kind(), error)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn the_original_comes_back() {
        let error = io::Error::from(AllocError::Exhausted);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.downcast::<AllocError>().ok(), Some(AllocError::Exhausted));
        let error = FreeManyError { first: 3, error: FreeError::Forked, failed: 1 };
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Unsupported);
    }
}
