//! Traits of other crates on pages and depots.

#[cfg(feature = "allocator-api2")]
pub mod collections;
#[cfg(feature = "bytes")]
pub mod frozen;
#[cfg(feature = "monoio")]
pub(crate) mod io_buf;
