//! The designs on 1 to 256 virtual CPUs: what `pagedepot-lab simulate` runs.
//!
//! The sources of `pagedepot`, `pagedepot-vmap` and `pagedepot-designs` are compiled a second time
//! (packages `core`, `vmap` and `designs` beside this one), with atomics, locks and spinning of
//! `pagedepot-sim-machine`. So the code is the same, the lab's own is no slower for it, and both
//! are in one command.
//!
//! | module | what |
//! |---|---|
//! | [`topology`] | machines to simulate, from files |
//! | `cpus` | virtual CPUs as the allocator sees them: simulated restartable sequences |
//! | `mapper` | page tables that only take time |
//! | [`designs`] | the designs, made for virtual CPUs |
//! | `ring`, `meeting` | a ring between two CPUs; where tasks wait for each other |
//! | [`workloads`], `purging`, `vmalloc` | what CPUs do |
//! | [`simulate`] | one simulation, and what it found |
//! | [`explore`] | random schedules at many CPUs, with every page checked |
#![deny(unsafe_code)]

mod cpus;
pub mod designs;
pub mod explore;
mod mapper;
mod meeting;
mod purging;
mod ring;
pub mod simulate;
pub mod topology;
mod vmalloc;
pub mod workloads;

pub use pagedepot::Mode;
pub use pagedepot_designs::FreeHighLimit;
pub use pagedepot_sim_machine::{Disturbances, Schedule};
