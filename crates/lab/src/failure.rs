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
    /// The recorded command ended like this; its recording is whole.
    #[error("the command exited with {0}")]
    Command(u8),
    /// A signal asked this process to end before it had anything to show.
    #[error("ended by signal {0}; nothing was written")]
    Signal(i32),
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
            Failure::Command(code) => *code,
            // As shells tell of signals.
            Failure::Signal(signal) => {
                128_u8.saturating_add(u8::try_from(*signal).unwrap_or(u8::MAX))
            }
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Output(_) => EXIT_FAILURE,
        }
    }

    /// Whether there is nothing to say: the reader has gone, or saw what the command itself said.
    pub fn is_silent(&self) -> bool {
        match self {
            Failure::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Failure::Command(_) => true,
            _ => false,
        }
    }
}
