//! Why a command ended early. Each message is one line that says what is wrong and what to do.

use std::io;

/// Exit code for bad input, as of most Unix tools.
pub const EXIT_USAGE: u8 = 2;
/// Exit code for what went wrong later.
pub const EXIT_FAILURE: u8 = 1;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The input is at fault.
    #[error("{0}")]
    Usage(String),
    /// The machine or a design is at fault.
    #[error("{0}")]
    Run(String),
    /// Writing results failed.
    #[error("cannot write results: {0}; is the disk full?")]
    Output(#[from] io::Error),
}

impl Failure {
    /// What the process exits with. Nobody reading any more is not a failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => EXIT_USAGE,
            Failure::Run(_) => EXIT_FAILURE,
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Output(_) => EXIT_FAILURE,
        }
    }

    /// Whether there is anybody to tell.
    pub fn is_silent(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
