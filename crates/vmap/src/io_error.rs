//! Errors of address-space requests as [`std::io::Error`].

use std::io::{Error, ErrorKind};

use crate::error::{VfreeError, VmapError};

impl From<VmapError> for Error {
    fn from(error: VmapError) -> Self {
        let kind = match error {
            // Says itself what kind it is.
            VmapError::Frames(error) => Error::from(error).kind(),
            VmapError::NoSpace | VmapError::NoAreas | VmapError::Map(_) => ErrorKind::OutOfMemory,
            VmapError::Occupied => ErrorKind::ResourceBusy,
            VmapError::WouldWait => ErrorKind::WouldBlock,
            _ => ErrorKind::InvalidInput,
        };
        Error::new(kind, error)
    }
}

impl From<VfreeError> for Error {
    fn from(error: VfreeError) -> Self {
        let kind = match error {
            VfreeError::Forked => ErrorKind::Unsupported,
            _ => ErrorKind::InvalidInput,
        };
        Error::new(kind, error)
    }
}
