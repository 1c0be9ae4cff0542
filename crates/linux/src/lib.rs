//! A page allocator for Linux programs that manage their own memory: buffer pools, packet buffers,
//! columnar stores, slots for sandboxes. A page costs a few nanoseconds on any CPU, and cached
//! pages can be taken back without interrupting the CPU that caches them.
//!
//! ```
//! use pagedepot_linux::{Depot, Mode, Order, Scope};
//!
//! let depot = Depot::new(64 << 20)?; // 64 MiB
//! let mut page = depot.page(Order::BASE)?; // 4 KiB
//! page[..5].copy_from_slice(b"hello");
//! drop(page); // back to this CPU's cache
//! let drained = depot.drain(Scope::ALL, Mode::Full); // caches back to the depot
//! let trimmed = depot.trim()?; // and to the system
//! println!("{} pages drained, {} bytes given back", drained.taken_pages, trimmed.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Depot`] is the type most programs use, [`Depot::builder`] its options. What lies underneath,
//! and the vocabulary, is in the crate [`pagedepot`].
//!
//! # What can be tuned
//! When it is made ([`Builder`]): where the memory comes from, which CPUs cache and which are never
//! interrupted, how misuse is found and who is told. While it is in use: how many pages each CPU
//! may cache ([`Depot::set_cache_limits`]), when pressure begins ([`Depot::set_watermarks`],
//! [`Depot::on_pressure`]), how much memory there is ([`Depot::grow`]), and whether a CPU caches at
//! all ([`Depot::retire_cpu`], [`Depot::disable_caches`]).
//!
//! [`Vmalloc`] maps scattered pages to contiguous addresses: large tables, growable columns, ring
//! buffers.
//!
//! # How a CPU reaches its caches
//! By restartable sequences, through the registration that glibc 2.35 and later make for every
//! thread: plain loads and stores that the kernel restarts when it takes the CPU away in between.
//! Where there are none, by a lock per CPU, for the whole depot: [`Depot::fronts`] says which and
//! why. Threads on CPUs beyond those configured, and threads without a registration of their own,
//! go to the store behind the caches.
//!
//! # When not to use it
//! * For objects smaller than a page: put a slab allocator or arena on top.
//! * For a handful of large buffers: `mmap` them.
//! * Where pages must not outlive a CPU's interest at all: build with
//!   [`caches(false)`](Builder::caches).
//!
//! # Shared objects
//! A thread goes on pointing to the descriptor of its last sequence, so the code must stay loaded.
//! A shared object that contains this crate pins itself when it builds a depot: `dlclose` then
//! leaves it mapped. A Rust dynamic library that uses a depot which another object built has
//! sequences inlined and pins nothing: link it with `-z nodelete`.
//!
//! # vfork
//! A child of `vfork`, or of a `clone` that shares memory and the thread pointer, must use nothing
//! of this crate before it executes a program: it would run its parent thread's sequences, which
//! the kernel does not restart for it. (Children of `fork` get errors: see [`Depot`].)
// A model checker takes in the modules it explores: see `prim`.
#![cfg(not(loom))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!(
    "pagedepot-linux supports 64-bit Linux: restartable sequences on x86-64, a lock per CPU on other \
     processors. On other systems use the crate `pagedepot` with `cpus::Locked` and memory of your own"
);

mod batch;
pub mod builder;
#[cfg(doctest)]
mod closed;
#[cfg(feature = "allocator-api2")]
pub mod collections;
mod cpus;
mod depot;
mod error;
#[cfg(feature = "bytes")]
pub mod frozen;
mod grow;
mod memory;
mod metadata;
mod numa;
mod page;
mod pins;
mod prim;
pub mod raw;
pub mod reclaim;
mod sequences;
pub mod stats;
mod sync;
mod teardown;
mod topology;
pub mod trace;
mod trim;
mod trim_state;
mod tune;
pub mod vmalloc;

pub use batch::PageBatch;
pub use builder::Builder;
pub use depot::{Depot, WeakDepot};
pub use error::BuildError;
pub use memory::MemoryKind;
pub use page::{Page, PageRef, Pages, Parts};
pub use raw::{FreeError, Pfn, RawDepot};
pub use vmalloc::{Vmalloc, VmallocBuf};

pub use pagedepot_rseq::RseqMissing;

pub use pagedepot::{
    AllocError, CpuId, Drained, Flags, Mobility, Mode, NodeId, Order, PageSize, Scope, ZoneId,
};

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
