//! Errors of requests as [`std::io::Error`], for programs whose functions return that. The original
//! is the inner error: [`Error::downcast`] gives it back.

use std::io::{Error, ErrorKind};

use crate::alloc::FreeManyError;
use crate::alloc::error::{AllocError, FreeError};

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        let kind = match error {
            AllocError::Exhausted => ErrorKind::OutOfMemory,
            AllocError::NotAvailable => ErrorKind::ResourceBusy,
            AllocError::NoZone | AllocError::BadSize | AllocError::BadAlignment => {
                ErrorKind::InvalidInput
            }
            AllocError::Unsupported | AllocError::NotInitialized | AllocError::Forked => {
                ErrorKind::Unsupported
            }
        };
        Error::new(kind, error)
    }
}

impl From<FreeError> for Error {
    fn from(error: FreeError) -> Self {
        Error::new(kind_of(error), error)
    }
}

impl From<FreeManyError> for Error {
    fn from(error: FreeManyError) -> Self {
        Error::new(kind_of(error.error), error)
    }
}

fn kind_of(error: FreeError) -> ErrorKind {
    match error {
        FreeError::OutOfRange | FreeError::Misaligned | FreeError::NotAllocated => {
            ErrorKind::InvalidInput
        }
        FreeError::NotInitialized | FreeError::Forked => ErrorKind::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_comes_back() {
        let error = Error::from(AllocError::Exhausted);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.downcast::<AllocError>().ok(), Some(AllocError::Exhausted));
        let error = FreeManyError { first: 3, error: FreeError::Forked, failed: 1 };
        assert_eq!(Error::from(error).kind(), ErrorKind::Unsupported);
    }
}
