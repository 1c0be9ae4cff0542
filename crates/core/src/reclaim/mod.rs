//! Memory pressure: callbacks that give pages up, and what a request tries before it fails.
//!
//! | module | what |
//! |---|---|
//! | [`callbacks`] | which caller runs which callback, and waiting for its end |
//! | `last_resort` | the rounds before a request fails |

pub mod callbacks;
mod last_resort;

pub use callbacks::{Pressure, Reclaim, TooManyCallbacks};
pub use last_resort::{DrainRest, LastResort, Movement, NothingFound, Search};
