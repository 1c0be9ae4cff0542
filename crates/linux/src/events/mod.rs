//! What a depot tells of its slow paths, and a writer of traces.

#[cfg(feature = "usdt")]
pub(crate) mod probes;
pub mod trace;
#[cfg(feature = "tracing")]
pub(crate) mod tracing_events;
