//! The programs in the repository's documents, as tests.

/// The README's program.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
