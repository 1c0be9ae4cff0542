//! The seams below a [`Vmap`](crate::Vmap): a [`Mapper`](crate::Mapper) for page tables, a
//! [`Host`](crate::Host) for frames, the current CPU and waiting.
//!
//! These modules have unsafe code: the two traits are unsafe to implement, as a vmap writes to
//! memory on their word.
#![allow(unsafe_code)]

pub mod flush;
pub mod host;
pub mod mapper;
pub mod null;
pub mod written;
