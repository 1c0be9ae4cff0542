//! Requests that wait: for pages that others free, and for the answer of a monitor.

pub(crate) mod answers;
pub(crate) mod closed_cpus;
pub(crate) mod waiters;
