//! A page allocator for Linux programs that manage their own memory: buffer pools, packet buffers,
//! columnar stores, slots for sandboxes. A page costs a few nanoseconds on any CPU, and cached
//! pages can be taken back without interrupting the CPU that caches them.
//!
//! ```
//! use pagedepot_linux::{Depot, Mode, Order, Scope};
//!
//! let depot = Depot::new(64 << 20)?; // 64 MiB
//! let mut page = depot.page(Order::BASE)?; // 4 KiB, or the system's page
//! page[..5].copy_from_slice(b"hello");
//! drop(page); // back to this CPU's cache
//! let drained = depot.drain(Scope::ALL, Mode::Full); // caches back to the depot
//! let trimmed = depot.trim()?; // and to the system
//! println!("{} pages drained, {} bytes given back", drained.taken_pages, trimmed.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Depot`] is the type that most programs use. A [`Page`] owns what it needs of its depot: store
//! it in a struct, send it to a thread, return it from a function. What lies underneath, and the
//! vocabulary, is in the crate [`pagedepot`].
//!
//! # I want ...
//! | to | call | |
//! |---|---|---|
//! | make a depot | [`Depot::new`] | options: [`Builder`] |
//! | make one for the whole program | `static POOL: LazyLock<Depot>` | [how](Depot#a-depot-for-the-whole-program) |
//! | give threads, structs and callbacks a handle | [`Depot::clone`] | [`Depot::downgrade`] for callbacks |
//! | allocate and free a page | [`Depot::page`], `drop` | bytes by `Deref` |
//! | allocate a block for so many bytes | [`Order::for_bytes`] | up to 4 MiB of 4 KiB pages |
//! | allocate zeroed pages, or from a signal handler | [`Depot::page_with`] | [`Flags`] |
//! | allocate and free many pages at once | [`Depot::alloc_pages`], [`Depot::free_pages`] | `examples/packet_ring.rs` |
//! | fill the same vector again and again | [`Depot::alloc_pages_into`] | without the heap |
//! | allocate contiguous memory, up to 1 GiB | [`Depot::pages`] | [`Pages`] |
//! | allocate a buffer that grows without copying | [`Vmalloc::buf`] | `examples/growable_column.rs` |
//! | share a page's bytes without copying | `Page::freeze` | feature `bytes` |
//! | put a `Vec` or a hash table into pages | `allocator_api2` collections | feature `allocator-api2` |
//! | use pages as slices of numbers or records | `Page::values` | feature `bytemuck` |
//! | write text or records into a page | [`Page::writer`] | [`VmallocBuf::writer`](vmalloc::VmallocBuf::writer) grows |
//! | cut a block into pages | [`Page::split`] | |
//! | keep page numbers instead of pages | [`Page::into_raw`], [`Depot::raw`] | `unsafe` to free |
//! | read and write by io_uring's fixed buffers | [`Depot::registered_iovecs`] | `lab/uring/examples/fixed_buffers.rs` |
//! | use the memory with O_DIRECT, another process | [`MemoryKind::Memfd`], [`RawDepot::fd`] | [`Depot::pin_range`] |
//! | wait until a page is freed | [`Depot::page_timeout`], [`Depot::page_async`] | any runtime |
//! | free my caches when pages run short | [`Depot::on_pressure`] | `examples/buffer_pool.rs` |
//! | get 2 MiB or 1 GiB in a row after days of use | [`Depot::movable`], [`Depot::compact`] | `examples/healing_pool.rs` |
//! | have 2 MiB blocks become whole by themselves | [`Builder::evacuation`] | [`Depot::pageblock_stats`] |
//! | take pages back from CPUs' caches | [`Depot::drain`] | [`CpuCaches::decay`](pagedepot::CpuCaches::decay) once a second |
//! | take all of them without interrupting a CPU | [`Depot::drain_handover`] | [`CpuCaches::hand_over`](pagedepot::CpuCaches::hand_over) before a thread sleeps |
//! | give memory back to the system | [`Depot::trim`] | |
//! | have that done when memory is short, or the program rests | [`Monitor`](pressure::Monitor) | `examples/monitored.rs` |
//! | stay below the limit of a container | [`Monitor`](pressure::Monitor) | [what protects](pressure#what-protects-and-what-helps) |
//! | never use more than so many bytes | [`Builder::ceiling`] | [`Ceiling`](reclaim::Ceiling) |
//! | add memory while running | [`Depot::grow`] | [`Builder::grow_to`] |
//! | have pages of 16 or 64 KiB, for a pool of large frames | [`Builder::page_size`] | `examples/large_frames.rs` |
//! | bind memory to NUMA nodes, use huge pages | [`Builder::numa`], [`Builder::thp`], [`Builder::hugetlb`] | |
//! | find double frees | [`Builder::checked`] | [`Builder::on_misuse`] |
//! | know where the pages are | [`Depot::shortage`], [`Depot::zone_stats`] | module [`stats`] |
//! | change limits while running | [`Depot::settings`] | |
//! | stop a CPU from caching | [`Depot::cpu_caches`] | [`Builder::caches`] |
//! | return errors as `io::Result` | `?` | every error becomes a [`std::io::Error`] |
//! | print a depot as `/proc` does a kernel | [`views`] | zones, free blocks, caches, a map |
//! | know which lines of the program hold pages | [`allocinfo`] | feature `allocinfo` |
//! | watch a running program from outside | `publish::Publisher`, `pagedepot top` | feature `publish` |
//! | record page events and replay them | [`trace::TraceWriter`] | |
//!
//! # What each kind of page costs
//! | kind | allocated and freed in a CPU's cache | past the cache |
//! |---|---|---|
//! | page number ([`RawDepot::alloc`]) | two restartable sequences | a search of the bitmap, or 1/63 of one for each page |
//! | [`Page`], which needs no handle | the same, and some of the depot's fields are read anew; it has 16 bytes, a number 4 | two atomic operations more |
//! | [`VmallocBuf`] | three atomic operations, two of them on a count that all buffers of a space share | system calls |
//!
//! `pagedepot bench hot` measures the first and the second (`depot`, `depot-owned`).
//!
//! # Features
//! All are off by default.
//! * `allocator-api2`: [`Depot`] allocates for collections of `allocator-api2`, `hashbrown` and the
//!   like.
//! * `bytes`: `Page::freeze`, and the same of `Pages` and `VmallocBuf`.
//! * `bytemuck`: `Page::values` and `values_mut`, and the same of `Pages` and `VmallocBuf`.
//! * `monoio`: `Page`, `Pages` and `VmallocBuf` as buffers of the runtime monoio.
//! * `allocinfo`: the calling line of each block, see [`allocinfo`]; `pprof`: in pprof's format.
//! * `serde`: [`views`] and [`allocinfo`] as structures that serde writes and reads.
//! * `prometheus`: `views::prometheus`, for a registry of the crate `prometheus-client`.
//! * `publish`: the module of that name, statistics in shared memory.
//! * `usdt`: static probes `refill`, `spill`, `drain` and `fail`, for perf and bpftrace.
//!
//! # How a CPU reaches its caches
//! By restartable sequences, through the registration that glibc 2.35 and later make for every
//! thread: plain loads and stores that the kernel restarts when it takes the CPU away in between.
//! On isolated CPUs by a lock each, which drains take without an interrupt. Where there are no
//! sequences, or no fences, all CPUs have locks. [`Depot::fronts`] says which of them, and why;
//! [`Builder::locked_cpus`] chooses. Threads on CPUs beyond those configured, and threads without a
//! registration of their own, go to the store behind the caches.
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
//! of this crate before it executes a program. It would run its parent thread's sequences, and the
//! kernel does not restart these for it. (Children of `fork` get errors: see [`Depot`].)

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!(
    "pagedepot-linux supports 64-bit Linux: restartable sequences on x86-64 and AArch64, a lock \
     per CPU on other processors. On other systems use the crate `pagedepot` with \
     `cpus::LockedCpus` and memory of your own"
);

pub mod allocinfo;
#[cfg(doctest)]
mod closed;
mod cpus;
mod depot;
mod error;
mod events;
mod giving_back;
mod interop;
mod memory;
mod moving;
mod pages;
pub mod pressure;
#[cfg(feature = "publish")]
pub mod publish;
pub mod reclaim;
#[cfg(test)]
mod reentrancy_tests;
#[cfg(test)]
#[allow(dead_code)] // Tests of other crates use more of it.
#[path = "../../core/tests/common/rng.rs"]
mod rng;
pub mod shared;
mod sites;
#[cfg(test)]
#[path = "../../core/tests/common/skip.rs"]
mod skip;
mod system;
#[cfg(test)]
#[allow(dead_code)] // Each feature uses its part.
mod test_units;
pub mod views;
pub mod vmalloc;
mod waiting;

pub use depot::builder::Builder;
pub use depot::handle::{Depot, WeakDepot};
pub use depot::raw::{FreeError, Pfn, RawDepot};
pub use depot::{builder, raw, stats, tune};
pub use error::BuildError;
pub use events::trace;
#[cfg(feature = "allocator-api2")]
pub use interop::collections;
#[cfg(feature = "bytes")]
pub use interop::frozen;
pub use memory::region::MemoryKind;
pub use pages::batch::PageBatch;
pub use pages::future::PageFuture;
pub use pages::movable::{Bytes, BytesMut, Movable};
pub use pages::page::{Page, Pages, Parts};
pub use vmalloc::{Vmalloc, VmallocBuf};

pub use pagedepot_rseq::RseqMissing;

/// A drain that asked CPUs for their fronts; see [`Depot::drain_handover`].
pub type Handover<'d> = pagedepot::Handover<'d, 'static, cpus::linux::LinuxCpus<'static>>;

pub use pagedepot::{
    AllocError, Class, Classes, CpuId, DrainResult, Flags, HandoverCounts, Mobility, Mode, NodeId,
    Order, PageSize, Scope, ZoneId,
};

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// The programs of the book, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorial.md")]
pub struct Tutorial;

/// The book's page on memory that shrinks, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to-shrink.md")]
pub struct ShrinkPage;

/// The book's page on waiting, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to-wait.md")]
pub struct WaitPage;

/// The book's page on containers, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to-container.md")]
pub struct ContainerPage;

/// The book's page on pools that processes share, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to-share.md")]
pub struct SharePage;

/// The book's page on I/O, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to-io.md")]
pub struct IoPage;

/// The book's page on views, as tests; it shows features, too.
#[cfg(all(doctest, feature = "publish"))]
#[doc = include_str!("../../../docs/views.md")]
pub struct ViewsPage;
