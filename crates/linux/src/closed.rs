//! Holes in the safe API that stay closed: each program here must not compile. The core has a list
//! of its own (`crates/core/tests/closed.md`), which says more.
//!
//! # A depot over a store without an unsafe implementation
//! Two pages would have the same bytes, or bytes beyond the depot's memory.
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use pagedepot_linux::builder::{Backing, BackingRequest, Block, Doubled};
//! use pagedepot_linux::{Depot, Pfn, ZoneId};
//!
//! struct Same;
//! impl Backing for Same {
//!     fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
//!         out.fill(Block::new(Pfn::new(0), request.order, request.mobility));
//!         out.len()
//!     }
//!     fn put(&self, _: ZoneId, _: &[Block]) -> Doubled { Doubled::NONE }
//!     fn free_pages(&self, _: ZoneId) -> u64 { 4096 }
//!     fn is_free(&self, _: Pfn) -> bool { false }
//! }
//! let depot = Depot::builder(16 << 20).build_over(|_| std::sync::Arc::new(Same));
//! ```
//!
//! # A page whose block is split or freed by its number
//! ```compile_fail,E0133
//! use pagedepot_linux::{Depot, Order};
//!
//! fn split(depot: &Depot, page: &pagedepot_linux::Page) {
//!     depot.raw().split(page.pfn(), page.order(), Order::BASE);
//! }
//! ```
//! ```compile_fail,E0133
//! fn free(depot: &pagedepot_linux::Depot, page: &pagedepot_linux::Page) {
//!     depot.raw().free(page.pfn(), page.order());
//! }
//! ```
//! ```compile_fail,E0382
//! #![forbid(unsafe_code)]
//! fn split_and_use(page: pagedepot_linux::Page) -> u8 {
//!     let parts = page.split(pagedepot_linux::Order::BASE);
//!     page[0]
//! }
//! ```
//!
//! # A depot's allocator, which frees by number, and zeroes what it hands out
//! ```compile_fail,E0133
//! fn free(depot: &pagedepot_linux::Depot, page: &pagedepot_linux::Page) {
//!     depot.raw().allocator().free(page.pfn(), page.order());
//! }
//! ```
//!
//! # A depot that is unmapped below its pages
//! ```compile_fail,E0133
//! fn unmap(depot: pagedepot_linux::Depot) {
//!     depot.unmap();
//! }
//! ```
