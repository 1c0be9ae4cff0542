//! The calls that allocated the blocks in use.

#[cfg(feature = "allocinfo")]
pub(crate) mod foreign;
pub(crate) mod table;
