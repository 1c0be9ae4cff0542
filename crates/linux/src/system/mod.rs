//! The system as a process sees it, and the primitives that all other folders are built of.

pub(crate) mod bits;
pub(crate) mod first_panic;
pub(crate) mod fork_mark;
pub(crate) mod limits;
pub(crate) mod mapping;
pub(crate) mod maps;
pub(crate) mod numa;
pub(crate) mod prim;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod topology;
