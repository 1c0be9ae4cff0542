//! Primitives for state that several CPUs share: atomics, stacks, counters, pages in flight.
//!
//! **Exempt from semantic versioning**: names and signatures here change with any version. Crates
//! of this repository depend on exactly this version; embedders take atomics from `core`.
//!
//! | module | what |
//! |---|---|
//! | [`prim`] | the primitives: production's, or a model checker's |
//! | [`model`] | what models change: sizes, and steps that they leave out |
//! | [`total`] | accesses whose sequential consistency an argument needs |
//! | [`stack`] | stacks that any thread may push to and take whole |
//! | `in_flight` | pages on their way between layers, and callers, as words name them |
//! | `late_init` | how a value that is made later is published |
//! | `processor` | values on cache lines of their own, hints to fetch lines, counters, waiting without sleep |

mod in_flight;
pub(crate) mod late_init;
pub mod model;
pub mod prim;
mod processor;
pub mod stack;
pub mod total;

pub use in_flight::{Caller, InFlight, InFlightGuard};
pub use processor::{CachePadded, count, prefetch_write, spin_while};
