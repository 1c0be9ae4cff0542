//! Fronts: the magazines that a CPU works with, and where their words and gates lie. What
//! implementations of [`Cpus`](crate::cpus::Cpus) need of this room is in
//! [`cpus::implement`](crate::cpus::implement).
//!
//! | module | what |
//! |---|---|
//! | [`word`] | the front word |
//! | `block` | magazines, and where they, words and gates lie |
//! | `gate` | the way to a CPU's fronts |
//!
//! Which fronts there are, and how large magazines are: [`Order`](crate::frame::Order), in
//! `frame/units.rs`.

mod block;
pub mod gate;
pub mod word;

pub(crate) use block::CPUS_FOLLOWED_MAX;
#[cfg(target_arch = "x86_64")]
pub(crate) use block::opaque;
pub use block::{
    BlockArray, Context, GATES_ALL, GATES_AT, Here, Magazine, MagazineIndex, REFUSALS_AT, SLOTS,
    WordOffset, is_open,
};
