//! Errors of segments, with remedies.

use std::{fmt, io};

use rustix::io::Errno;

use crate::error::BuildError;

/// The reason why a segment could not be made, opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentError {
    /// The size is 0, or more than 2^30 pages.
    Size {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The file is no segment, or none yet: its maker is still at it, or died before it was one.
    NoSegment,
    /// The segment has another version of the form.
    Version {
        /// The version of the segment.
        found: u64,
        /// The version of this program.
        known: u64,
    },
    /// The file is shorter than its header says.
    Short {
        /// The length of the file.
        bytes: u64,
        /// The length that its header states.
        expected: u64,
    },
    /// The segment has contents that no process of this crate writes.
    Damaged {
        /// The part that has.
        what: &'static str,
    },
    /// No slot is free: processes use all 47, or have died and left pages to an heir or to
    /// claimers, which [`SharedOptions::orphans`](super::SharedOptions::orphans) takes back.
    Full,
    /// A process that is burying others holds the door, and no slot is free beside it.
    Busy,
    /// The system refused something.
    System {
        /// The operation.
        what: &'static str,
        /// The error of the operation.
        errno: Errno,
    },
    /// The depot over the segment could not be made.
    Build(BuildError),
}

impl SegmentError {
    pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| SegmentError::System { what, errno }
    }
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentError::Size { bytes } => {
                write!(f, "a segment of {bytes} bytes: ask for 1 to 2^30 pages")
            }
            SegmentError::NoSegment => f.write_str(
                "the file is no segment, or is not complete: try again if its maker is still at \
                 it, make another if that has died",
            ),
            SegmentError::Version { found, known } => write!(
                f,
                "the segment has version {found}, this program {known}: use one \
                 build for all processes"
            ),
            SegmentError::Short { bytes, expected } => {
                write!(f, "the segment's file has {bytes} bytes instead of {expected}: it was cut")
            }
            SegmentError::Damaged { what } => {
                write!(f, "{what} is damaged: the segment cannot be used any more")
            }
            SegmentError::Full => write!(
                f,
                "no slot is free: {} processes use the segment, or have left pages in it (see \
                 `orphans` of the options)",
                super::slots::SLOTS
            ),
            SegmentError::Busy => f.write_str("another process is joining the segment: try again"),
            SegmentError::System { what, errno } => write!(f, "{what}: {errno}"),
            SegmentError::Build(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SegmentError {}

impl From<BuildError> for SegmentError {
    fn from(error: BuildError) -> Self {
        SegmentError::Build(error)
    }
}

impl From<SegmentError> for io::Error {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::System { errno, .. } => {
                io::Error::new(io::Error::from(errno).kind(), error)
            }
            SegmentError::Build(error) => error.into(),
            SegmentError::Size { .. } => io::Error::new(io::ErrorKind::InvalidInput, error),
            SegmentError::Full | SegmentError::Busy => {
                io::Error::new(io::ErrorKind::ResourceBusy, error)
            }
            _ => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}
