//! Memory pressure: callbacks that give pages up.

pub mod callbacks;

pub use callbacks::{Pressure, Reclaim, TooManyCallbacks};
