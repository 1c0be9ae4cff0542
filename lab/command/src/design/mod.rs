//! The designs that the product has not, ready to be measured: those that linux-mm threads propose
//! ([`threads`]), other projects' allocators (the feature `peers`), and address space ([`vmap`]).
//!
//! # A new design
//! Name it in the product's `names`, implement [`Allocator`](pagedepot_cli::design::Allocator) in a
//! file here, and add its type to [`dispatch`].

pub mod dispatch;
#[cfg(feature = "peers")]
pub mod frame_alloc;
pub mod lineup;
#[cfg(feature = "peers")]
pub mod malloc;
#[cfg(feature = "peers")]
pub mod mimalloc_pprof;
#[cfg(feature = "tcmalloc")]
pub mod tcmalloc;
pub mod threads;
pub mod vmap;

pub use dispatch::Lab;
pub use lineup::unavailable;
