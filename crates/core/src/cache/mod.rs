//! The per-CPU layers: fronts and shelves.

mod block;
pub(crate) mod magazine;
pub mod word;

pub use block::{BlockArray, GATE_OPEN, WordOffset};
pub use magazine::MagazineIndex;
