//! Tests of the allocator, a room each: one program, because each would compile all of it again.

mod age;
mod attempt;
mod backing;
mod batches;
mod carving;
mod classes;
#[path = "../common/mod.rs"]
mod common;
mod evacuation;
mod followed;
mod forked;
mod free_high;
mod gibibytes;
mod global;
mod handover;
mod hostile_config;
mod large_blocks;
mod magazines;
mod misuse;
mod nodes;
mod out_of_memory;
mod pressure;
mod ranges;
mod requesters;
mod residency;
mod rhythms;
mod smoke;
mod watermarks;
