//! The seam to the CPUs on Linux, and the sequences that threads run there.

pub(crate) mod linux;
pub(crate) mod mixed;
pub(crate) mod sequences;
