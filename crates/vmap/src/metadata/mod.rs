//! Metadata: descriptors of areas, the way from an address to its area, the frame at each page.
//!
//! All of it lies in memory that the caller of `Vmap::new` supplies.

pub mod area;
pub mod arena;
pub mod batch;
pub mod caller;
pub mod directory;
pub mod frames;
pub mod index;
