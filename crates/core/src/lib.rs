//! A page allocator whose per-CPU caches can be taken back without interrupting the CPU.
#![no_std]

pub mod cache;
pub mod cpus;
mod frame;
mod prim;

pub use frame::{CpuId, Mobility, NodeId, Order, Pfn, ZoneId};
