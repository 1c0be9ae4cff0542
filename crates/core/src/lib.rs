//! A page allocator whose per-CPU caches can be taken back without interrupting the CPU.
//!
//! See [`Allocator`].
#![cfg_attr(not(test), no_std)]

mod alloc;
pub mod cache;
mod config;
pub mod cpus;
mod error;
mod flags;
mod frame;
mod prim;
mod store;
mod zone;

pub use alloc::{
    Allocator, Census, CpuStats, Drained, Fault, FreeManyError, MetadataUse, Mode, Pressure, Reclaim, Scope,
    Shortage, TooManyCallbacks, ZoneShortage, ZoneStats,
};
pub use cache::Counts;
pub use config::{Config, ConfigError, FrameRange, HighPolicy, LinearMap, Misuse, PageSize, ZoneConfig};
pub use error::{AllocError, FreeError};
pub use flags::Flags;
pub use frame::{CpuId, Mobility, NodeId, Order, Pfn, ZoneId};
pub use zone::{CacheLimits, Watermarks, ZoneName};
