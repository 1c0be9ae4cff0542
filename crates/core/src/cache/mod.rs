//! The per-CPU layers: fronts and shelves. What implementations of [`Cpus`](crate::cpus::Cpus) need
//! of it is in [`cpus::implement`](crate::cpus::implement).
//!
//! | module | what |
//! |---|---|
//! | [`word`] | the front word |
//! | `magazine` | arrays of frames |
//! | `block` | where the words lie |
//! | `gate` | the way to a CPU's fronts |
//! | `shelf` | stacks of magazines |
//! | `pcp` | a CPU's accounts in a zone |

mod block;
pub(crate) mod gate;
pub(crate) mod listed;
pub(crate) mod magazine;
pub(crate) mod pcp;
pub(crate) mod shelf;
pub mod word;

pub(crate) use block::CPUS_FOLLOWED_MAX;
pub use block::{BlockArray, GATES_ALL, GATES_AT, REFUSALS_AT, WORD_BYTES, WordOffset, is_open};
pub(crate) use block::{ROW_BYTES, ZONE_BYTES};
pub use magazine::{Class, Magazine, MagazineIndex};
pub use pcp::Counts;
