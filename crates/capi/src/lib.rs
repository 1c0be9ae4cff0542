//! pagedepot for C and C++: what `include/pagedepot.h` declares.
//!
//! Each function is a thin call of [`pagedepot_linux`]. Handles are opaque, errors are told by
//! `errno`, and no panic crosses the border: it ends the process with its message, since a caller
//! in C could not clean up. The header is generated from this crate and committed; a test compares
//! the two.
//!
//! | file | what |
//! |---|---|
//! | `handle` | making a depot and taking it away |
//! | `blocks` | allocating and freeing |
//! | `reclaim` | drains, trims, ceilings, pins, pressure, statistics |
//! | `monitor` | a thread that reacts to the pressure on memory |
//! | `shared` | depots in a segment that processes share |
//! | `space` | `vmalloc` |
//! | `sites` | which lines of the program hold pages |
//! | `publish` | statistics for `pagedepot top` |
//! | `error` | `errno`, and the text of the last error |
//! | `poison` | the feature `poison`: free pages for AddressSanitizer and valgrind |
#![warn(missing_docs)]

mod blocks;
mod error;
mod handle;
mod monitor;
mod poison;
mod publish;
mod reclaim;
mod shared;
mod sites;
mod space;

pub use blocks::*;
pub use error::pagedepot_last_error;
pub use handle::*;
pub use monitor::*;
pub use publish::*;
pub use reclaim::*;
pub use shared::*;
pub use sites::*;
pub use space::*;
