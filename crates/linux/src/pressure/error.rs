//! Errors that keep a monitor from beginning.

use std::{fmt, io};

use super::policy::PolicyError;

/// The reason why there is no [`Monitor`](super::Monitor).
#[derive(Debug)]
#[non_exhaustive]
pub enum MonitorError {
    /// The policy contradicts itself.
    Policy(PolicyError),
    /// This process may run on isolated CPUs alone, which a thread of the monitor would disturb.
    OnlyIsolated,
    /// The system gave no thread, or nothing to wake it by.
    System(io::Error),
    /// The calling thread is setting a ceiling, which the monitor's thread would wait for: this
    /// call was made by a callback.
    Reentrant,
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MonitorError::Policy(error) => error.fmt(f),
            MonitorError::OnlyIsolated => f.write_str(
                "this process may run on isolated CPUs alone: give it one that is not, or call \
                 Watcher::look where it suits",
            ),
            MonitorError::System(error) => write!(
                f,
                "cannot start the monitor's thread ({error}): raise `ulimit -u` or `ulimit -n`, \
                 allow sched_setaffinity and eventfd, or call Watcher::look"
            ),
            MonitorError::Reentrant => f.write_str(
                "a callback that is called while its thread sets a ceiling starts no monitor: \
                 start it before or afterwards",
            ),
        }
    }
}

impl std::error::Error for MonitorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MonitorError::Policy(error) => Some(error),
            MonitorError::System(error) => Some(error),
            MonitorError::OnlyIsolated | MonitorError::Reentrant => None,
        }
    }
}

impl From<PolicyError> for MonitorError {
    fn from(error: PolicyError) -> Self {
        MonitorError::Policy(error)
    }
}

impl From<io::Error> for MonitorError {
    fn from(error: io::Error) -> Self {
        MonitorError::System(error)
    }
}

impl From<rustix::io::Errno> for MonitorError {
    fn from(errno: rustix::io::Errno) -> Self {
        MonitorError::System(errno.into())
    }
}
