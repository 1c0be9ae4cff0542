//! Errors that end a replay without a result.

use pagedepot_designs::SetupError;

use super::depot::DepotError;
use super::outcome::ReplayError;
use pagedepot_trace::TraceError;

/// An error that ends a replay without a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Depot(#[from] DepotError),
    #[error(
        "cannot make the recorded machine: zone {0} ends beyond frame 2^32; is a number of the \
         zoneinfo damaged?"
    )]
    TooLarge(usize),
    #[error("cannot make the recorded machine: {0}")]
    Setup(SetupError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl From<SetupError> for Error {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::RangeTooHigh { zone } => Error::TooLarge(zone),
            error => Error::Setup(error),
        }
    }
}

impl Error {
    /// Whether the input is at fault, not the allocator.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Error::Replay(error) if !error.is_of_the_machine())
    }
}
