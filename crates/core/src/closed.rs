//! Holes in the safe API that stay closed: each program here must not compile.
//!
//! All of them forbid unsafe code, so none can make the promise that the compiler asks for. Where a
//! hole cannot be closed by a type, a test that runs is named instead.
//!
//! # A backing hands one frame to two callers, or a frame that is no memory
//! `what_a_backing_may_not_hand_out_is_reported_and_not_handed_on` in `tests/allocator/backing.rs`
//! is for what an implementation that did promise does wrong.
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use pagedepot::{Backing, BackingRequest, Block, Doubled, Pfn, ZoneId};
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
//! ```
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use pagedepot::{BackingRanges, Pfn, RangeRequest, ZoneId};
//!
//! struct Same;
//! impl BackingRanges for Same {
//!     fn take_contiguous(&self, _: RangeRequest) -> Option<Pfn> { Some(Pfn::new(0)) }
//!     fn claim(&self, _: ZoneId, _: Pfn, _: u32) -> bool { true }
//! }
//! ```
//!
//! # A program reaches fronts without a sequence
//! ```compile_fail,E0451
//! #![forbid(unsafe_code)]
//! use pagedepot::cpus::implement::BlockArray;
//!
//! let base = std::ptr::without_provenance_mut(0x1000);
//! let blocks =
//!     BlockArray { base, gates_from: 0, blocks_at: 0, stride: 8, cpus: 1, context_stride: 0 };
//! ```
//! ```compile_fail,E0624
//! #![forbid(unsafe_code)]
//! use pagedepot::CpuId;
//! use pagedepot::cpus::implement::BlockArray;
//!
//! fn open(blocks: &BlockArray) {
//!     blocks.gate(CpuId::new(0));
//! }
//! ```
//! ```compile_fail,E0624
//! #![forbid(unsafe_code)]
//! use pagedepot::cpus::implement::{BlockArray, MagazineIndex};
//!
//! fn read(blocks: &BlockArray) {
//!     blocks.magazine(MagazineIndex::new(12345).unwrap());
//! }
//! ```
//! ```compile_fail,E0133
//! use pagedepot::CpuId;
//! use pagedepot::cpus::implement::{self, BlockArray};
//!
//! fn open(blocks: &BlockArray) {
//!     implement::gate(blocks, CpuId::new(0));
//! }
//! ```
//! ```compile_fail,E0624
//! #![forbid(unsafe_code)]
//! use pagedepot::cpus::implement::WordOffset;
//! use pagedepot::{Mobility, Order, ZoneId};
//!
//! let beyond = WordOffset::new(ZoneId::new(1 << 20), Order::BASE, Mobility::Movable);
//! ```
//! ```compile_fail,E0133
//! use pagedepot::cpus::implement;
//! use pagedepot::{Mobility, Order, ZoneId};
//!
//! let beyond = implement::word_offset(ZoneId::new(1 << 20), Order::BASE, Mobility::Movable);
//! ```
//!
//! # Sequences follow gates that are not zeroed
//! `gates_of_numbers_without_a_cpu_are_zeroed` in `tests/allocator/followed.rs` gives memory full
//! of ones to the safe constructor; the other one is unsafe:
//! ```compile_fail,E0133
//! use pagedepot::{Allocator, Config, cpus::{LockedCpus, WhichCpu}};
//!
//! fn make<W: WhichCpu>(config: &Config, cpus: LockedCpus<W>) {
//!     let mut memory = [std::mem::MaybeUninit::new(0xff); 4096];
//!     Allocator::builder(config).build_zeroed(&mut memory, cpus);
//! }
//! ```
//!
//! # A program frees what holds the allocator's magazines
//! A number is all that `free` takes, so no type can tell:
//! `carved_pages_are_never_handed_out_nor_taken_back` and its neighbours in
//! `tests/allocator/carving.rs` free, split and allocate at such frames. Who makes a linear map
//! vouches for all other frees:
//! ```compile_fail,E0133
//! let map = pagedepot::LinearMap::new(0x1000);
//! ```
