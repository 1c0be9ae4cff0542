//! Fronts: the magazines that a CPU works with, and where their words and gates lie. What
//! implementations of [`Cpus`](crate::cpus::Cpus) need of this room is in
//! [`cpus::implement`](crate::cpus::implement).
//!
//! | module | what |
//! |---|---|
//! | [`word`] | the front word |
//! | `magazine` | arrays of frames |
//! | `here` | the CPU and context that code runs on |
//! | `block` | where words, gates and magazines lie |
//! | `gate` | the way to a CPU's fronts |
//!
//! Which fronts there are: [`Class`](crate::frame::Class), in `frame/front_class.rs`.

mod block;
pub mod gate;
mod here;
mod magazine;
pub mod word;

pub(crate) use block::CPUS_FOLLOWED_MAX;
#[cfg(target_arch = "x86_64")]
pub(crate) use block::opaque;
pub use block::{BlockArray, GATES_ALL, GATES_AT, REFUSALS_AT, WordOffset, is_open};
pub use here::{Context, Here};
pub use magazine::{Magazine, MagazineIndex, SLOTS};
