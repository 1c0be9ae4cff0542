//! Probes on slow paths, and a writer of traces.

#[cfg(feature = "usdt")]
pub(crate) mod probes;
pub mod trace;
