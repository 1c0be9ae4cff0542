//! Errors that end a command early. Each message is one line that says what is wrong and what to
//! do.

use std::io;

/// Exit code for bad input, the same as in most Unix tools.
pub const EXIT_USAGE: u8 = 2;
/// Exit code for failures after the input was accepted.
pub const EXIT_FAILURE: u8 = 1;

/// Exit code of `compare --fail-above` when a figure is worse.
pub const EXIT_WORSE: u8 = 3;

/// The reason why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments or a file are wrong; says what to give instead.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks something, or a design failed.
    #[error("{0}")]
    Run(String),
    /// The recorded command ended with this exit code; its recording is complete.
    #[error("the command exited with {0}")]
    Command(u8),
    /// This signal ended the process before there were results.
    #[error("ended by signal {0}; nothing was written")]
    Signal(i32),
    /// This signal ended measuring early; so many figures were written.
    #[error("stopped by signal {0}: figures that were measured until then, and written: {1}")]
    Stopped(i32, usize),
    /// Figures are worse than `--fail-above` allows.
    #[error("{0}")]
    Worse(String),
    /// Writing results failed.
    #[error("cannot write results: {0}{advice}", advice = advice(.0))]
    Output(#[from] io::Error),
}

impl Failure {
    /// The process's exit code. A closed stdout is no failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => EXIT_USAGE,
            Failure::Run(_) => EXIT_FAILURE,
            Failure::Worse(_) => EXIT_WORSE,
            Failure::Command(code) => *code,
            // 128 plus the signal, as in shells.
            Failure::Signal(signal) | Failure::Stopped(signal, _) => {
                128_u8.saturating_add(u8::try_from(*signal).unwrap_or(u8::MAX))
            }
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Failure::Output(_) => EXIT_FAILURE,
        }
    }

    /// Whether to print no message: stdout is closed, or the recorded command has printed its own.
    pub fn is_silent(&self) -> bool {
        match self {
            Failure::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Failure::Command(_) => true,
            _ => false,
        }
    }
}

/// The question to add to an error of writing.
pub fn advice(error: &io::Error) -> &'static str {
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    if is_full { "; is the disk full?" } else { "" }
}
