//! Primitives for the crates that are built on this one: atomics that a model checker sees,
//! counters, spinning.
//!
//! **Exempt from semantic versioning**: names and signatures here change with any version. Crates
//! of this repository depend on exactly this version; embedders take atomics from `core`.

pub use crate::cache::pcp::count;
pub use crate::cpus::spin_while;

/// The atomics and spinning that `--cfg loom` and `--cfg shuttle` replace.
pub mod prim {
    pub use crate::prim::*;
}
