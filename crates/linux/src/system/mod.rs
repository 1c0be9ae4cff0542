//! What a process has of the system, and the primitives that all others are built of.

pub(crate) mod bits;
pub(crate) mod fork_mark;
pub(crate) mod limits;
pub(crate) mod mapping;
pub(crate) mod maps;
pub(crate) mod numa;
pub(crate) mod prim;
pub(crate) mod sync;
pub(crate) mod topology;
