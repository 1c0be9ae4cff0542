//! Holes in the safe API that stay closed: each program here must not compile.
//!
//! All of them forbid unsafe code, so none can make the promise that the compiler asks for. Where a
//! hole cannot be closed by a type, a test that runs is named instead.
//!
//! # A backing hands one frame to two callers, or a frame that is no memory
//! `what_a_backing_may_not_hand_out_is_reported_and_not_handed_on` in `tests/backing.rs` is for what
//! an implementation that did promise does wrong.
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use pagedepot::{Backing, Mobility, Order, Pfn, ZoneId};
//!
//! struct Same;
//! impl Backing for Same {
//!     fn take(&self, _: ZoneId, _: Order, m: Mobility, out: &mut [(Pfn, Mobility)]) -> usize {
//!         out.fill((Pfn::new(0), m));
//!         out.len()
//!     }
//!     fn put(&self, _: ZoneId, _: &[(Pfn, Order)]) -> u32 { 0 }
//!     fn free_pages(&self, _: ZoneId) -> u64 { 4096 }
//!     fn is_free(&self, _: Pfn) -> bool { false }
//! }
//! ```
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use pagedepot::{BackingRanges, Mobility, Pfn, ZoneId};
//!
//! struct Same;
//! impl BackingRanges for Same {
//!     fn take_contiguous(&self, _: ZoneId, _: u32, _: u32, _: Mobility) -> Option<Pfn> {
//!         Some(Pfn::new(0))
//!     }
//!     fn claim(&self, _: ZoneId, _: Pfn, _: u32) -> bool { true }
//! }
//! ```
