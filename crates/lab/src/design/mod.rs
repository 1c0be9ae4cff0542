//! The designs that the lab compares.
//!
//! # Vocabulary
//! * *design*: a way to hand out pages; its name is what `--design` and results call it.
//! * *subject*: a design, ready to be measured: a type of its own, so that the measured loops are
//!   compiled for each and contain no virtual call.
//! * *floor*: a subject that does the least its mechanism allows and has no store behind it: when
//!   it runs out of frame numbers it makes some up, when it has too many it forgets some. No
//!   allocator built on that mechanism can be faster.
//! * *thread's design*: one that a linux-mm thread proposes, from `pagedepot-designs`.
//! * *variant*: what options make of a design.
//! * *peer*: another allocator, compiled in by the feature `peers`.

pub mod allocator;
pub mod cached;
pub mod depot;
pub mod floor_rseq;
pub mod floor_spin;
pub mod floor_tls;
#[cfg(feature = "peers")]
pub mod frame_alloc;
#[cfg(feature = "peers")]
pub mod malloc;
pub mod pool;
pub mod variant;

use std::fmt;

use pagedepot::{CpuId, Order};
use pagedepot_rseq::RseqMissing;
use pagedepot_rseq::membarrier::Unfenced;

use self::allocator::{Allocator, WithAllocator};
use self::pool::SharedPool;
use self::variant::Variant;
use crate::failure::Failure;

/// Bytes of a page: the base page of the depots measured, and what others are asked for.
pub const PAGE_BYTES: usize = 4096;

/// A design, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Design {
    /// This project's.
    Depot,
    /// A thread-local vector.
    FloorTls,
    /// A restartable sequence on a per-CPU array.
    FloorRseq,
    /// A per-CPU spinlock and a vector.
    FloorSpin,
    /// No per-CPU layer: a buddy allocator behind a lock.
    ZoneLock,
    /// Per-CPU lists of their owners alone.
    Local,
    /// `Local`, or locked lists for all CPUs.
    NohzConditional,
    /// Per-CPU lists behind spinlocks.
    Spin,
    /// Per-CPU lists behind a pointer that drains switch.
    Rcu,
    /// Magazines that CPUs share, behind spinlocks.
    Magazine,
    /// The crate `frame-alloc`'s `DepotAllocator`.
    FrameAlloc,
    /// mimalloc, asked for aligned pages.
    Mimalloc,
    /// jemalloc, asked for aligned pages.
    Jemalloc,
    /// snmalloc, asked for aligned pages.
    Snmalloc,
    /// The kernel's own page faults.
    Kernel,
    /// Kernel address space as it was before nodes.
    VmapGlobalLock,
    /// Kernel address space with nodes.
    VmapNodes,
    /// The operating system's `mmap`, and `munmap`.
    Mmap,
    /// The crate `range-alloc`.
    RangeAlloc,
    /// The crate `offset-allocator`.
    OffsetAllocator,
    /// This project's, by pages that own their depot instead of page numbers.
    DepotOwned,
}

impl Design {
    /// All of them, in the order of tables.
    pub const ALL: [Design; 21] = [
        Design::Depot,
        Design::FloorTls,
        Design::FloorRseq,
        Design::FloorSpin,
        Design::ZoneLock,
        Design::Local,
        Design::NohzConditional,
        Design::Spin,
        Design::Rcu,
        Design::Magazine,
        Design::FrameAlloc,
        Design::Mimalloc,
        Design::Jemalloc,
        Design::Snmalloc,
        Design::Kernel,
        Design::VmapGlobalLock,
        Design::VmapNodes,
        Design::Mmap,
        Design::RangeAlloc,
        Design::OffsetAllocator,
        Design::DepotOwned,
    ];

    /// Those that hand out blocks.
    pub const ALLOCATORS: [Design; 14] = {
        let [allocators @ .., _kernel, _, _, _, _, _, _] = Self::ALL;
        allocators
    };

    /// Those that are all of an allocator, see [`Allocator`].
    pub const PAGED: [Design; 7] = [
        Design::Depot,
        Design::ZoneLock,
        Design::Local,
        Design::NohzConditional,
        Design::Spin,
        Design::Rcu,
        Design::Magazine,
    ];

    /// Those whose owners, or the floor, exclude each other by restartable sequences and nothing
    /// else.
    pub const WITH_RSEQ: [Design; 4] =
        [Design::FloorRseq, Design::Local, Design::NohzConditional, Design::Rcu];

    /// Of these, designs whose drains fence other CPUs' sequences. Elsewhere their owners would
    /// take locks, and cost something else.
    pub const WITH_FENCES: [Design; 3] = [Design::Local, Design::NohzConditional, Design::Rcu];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Design::Depot => "depot",
            Design::FloorTls => "floor-tls",
            Design::FloorRseq => "floor-rseq",
            Design::FloorSpin => "floor-spin",
            Design::ZoneLock => "zone-lock",
            Design::Local => "local",
            Design::NohzConditional => "nohz-conditional",
            Design::Spin => "spin",
            Design::Rcu => "rcu",
            Design::Magazine => "magazine",
            Design::FrameAlloc => "frame-alloc",
            Design::Mimalloc => "mimalloc",
            Design::Jemalloc => "jemalloc",
            Design::Snmalloc => "snmalloc",
            Design::Kernel => "kernel",
            Design::VmapGlobalLock => "vmap-global-lock",
            Design::VmapNodes => "vmap-nodes",
            Design::Mmap => "mmap",
            Design::RangeAlloc => "range-alloc",
            Design::OffsetAllocator => "offset-allocator",
            Design::DepotOwned => "depot-owned",
        }
    }

    /// The design called `name`.
    ///
    /// # Errors
    /// Lists the names there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|design| design.name() == name)
            .ok_or_else(|| format!("no such design; there are {}", list(&Self::ALL)))
    }

    /// Whether it writes into freed pages, so that it comes to own real memory for all it hands
    /// out.
    pub const fn touches_pages(self) -> bool {
        matches!(self, Design::Mimalloc | Design::Jemalloc | Design::Snmalloc)
    }

    /// Whether a linux-mm thread proposes it.
    pub const fn is_of_a_thread(self) -> bool {
        use Design::{Local, Magazine, NohzConditional, Rcu, Spin, ZoneLock};
        matches!(self, ZoneLock | Local | NohzConditional | Spin | Rcu | Magazine)
    }

    const fn is_peer(self) -> bool {
        matches!(self, Design::FrameAlloc | Design::Mimalloc | Design::Jemalloc | Design::Snmalloc)
            || matches!(self, Design::RangeAlloc | Design::OffsetAllocator)
    }

    /// Why it cannot run here, and what to do about it.
    pub fn unavailable(self) -> Option<String> {
        if self.is_peer() && !cfg!(feature = "peers") {
            return Some(format!(
                "design {self} is not compiled in: build with `cargo run --release --features peers -- ...`"
            ));
        }
        if Self::WITH_RSEQ.contains(&self)
            && let Some(why) = RseqMissing::find()
        {
            return Some(format!(
                "design {self} needs restartable sequences, but {why}; or leave it out"
            ));
        }
        if Self::WITH_FENCES.contains(&self) {
            return Unfenced::find().map(|why| {
                format!("design {self} needs to fence sequences, but {why}; or leave it out")
            });
        }
        None
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Names, separated by commas.
pub fn list(designs: &[Design]) -> String {
    designs.iter().map(|design| design.name()).collect::<Vec<_>>().join(", ")
}

/// What a workload will ask of a subject.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Most blocks held at once by one CPU.
    pub blocks_per_cpu: u32,
    /// Frames per block.
    pub frames_per_block: u32,
    /// The CPUs in use.
    pub cpus: Vec<CpuId>,
    /// Which variants of designs.
    pub variant: Variant,
    /// For the threads' designs.
    pub memory: SharedPool,
}

impl Demand {
    /// Frames held at once, at most.
    pub fn frames(&self) -> u64 {
        u64::from(self.blocks_per_cpu) * u64::from(self.frames_per_block) * self.cpus.len() as u64
    }

    /// Pages for an allocator that is to fill half of its memory at most; at least 4 GiB, because
    /// how much CPUs may cache depends on it. Addresses, of which only what is touched becomes
    /// memory.
    pub fn pages(&self) -> u64 {
        (2 * self.frames()).max(1 << 20)
    }
}

/// What stands for a block: a frame number or an address.
pub trait Block: Copy + Send {
    /// As a number, in a register.
    fn bits(self) -> usize;
}

impl Block for pagedepot::Pfn {
    fn bits(self) -> usize {
        self.index()
    }
}

impl Block for u32 {
    fn bits(self) -> usize {
        self as usize
    }
}

impl Block for usize {
    fn bits(self) -> usize {
        self
    }
}

/// Lets the compiler think that `block` is used, so that no pair of operations cancels out.
///
/// `black_box` would do, but sends the value through memory: on our test machine that adds 0.4 ns
/// to pairs that take 1.4, the same for all, and so makes every ratio look better than it is.
#[inline(always)]
pub fn observe(block: impl Block) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instructions. Not `nomem`: memory may be looked at, too.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) block.bits(), options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(block.bits());
}

/// A design, ready to be measured.
pub trait Subject: Send + Sync {
    /// Which.
    const DESIGN: Design;

    /// What stands for a block.
    type Block: Block;

    /// Called by each thread before its first operation.
    fn enter(&self) {}

    /// Called by each thread after its last.
    fn leave(&self) {}

    /// Allocates a block of 2^ORDER frames; `None` when there is none.
    fn alloc<const ORDER: u32>(&self) -> Option<Self::Block>;

    /// Frees a block of 2^ORDER frames that `alloc` returned, once.
    fn free<const ORDER: u32>(&self, block: Self::Block);

    /// Called by a thread before it sleeps.
    fn rest(&self) {}

    /// Takes back what all CPUs cache, interrupting nobody if the design has a choice.
    fn drain_all(&self) {}

    /// Checks the subject's metadata, if it has any, after everything was freed: is each frame in
    /// exactly one place?
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// The order that a bench names.
pub const fn order<const ORDER: u32>() -> Order {
    Order::new(ORDER).expect("benches know the orders there are")
}

/// Allocates where running out would be the bench's fault.
#[inline]
pub fn alloc<S: Subject, const ORDER: u32>(subject: &S) -> S::Block {
    match subject.alloc::<ORDER>() {
        Some(block) => block,
        None => out_of_pages(S::DESIGN, ORDER),
    }
}

#[cold]
#[inline(never)]
fn out_of_pages(design: Design, order: u32) -> ! {
    panic!(
        "{design} ran out of blocks of order {order}: the bench gave it too little memory, or it lost some"
    );
}

/// What to do with a subject, whichever type it has.
pub trait WithSubject {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<S: Subject + 'static>(self, subject: S) -> Self::Output;
}

/// Makes the subject for `design`, and does `with` it what there is to do.
///
/// # Errors
/// When the design cannot run here, or its memory cannot be had.
pub fn make<W: WithSubject>(
    design: Design,
    demand: &Demand,
    with: W,
) -> Result<W::Output, Failure> {
    if let Some(why) = design.unavailable() {
        return Err(Failure::Usage(why));
    }
    match design {
        paged if Design::PAGED.contains(&paged) => {
            make_allocator(design, demand, demand.pages(), AnySubject(with))
        }
        Design::FloorTls => Ok(with.with(floor_tls::FloorTls::new(demand))),
        Design::FloorRseq => Ok(with.with(floor_rseq::FloorRseq::new(demand)?)),
        Design::FloorSpin => Ok(with.with(floor_spin::FloorSpin::new(demand))),
        #[cfg(feature = "peers")]
        Design::FrameAlloc => Ok(with.with(frame_alloc::FrameAlloc::new(demand)?)),
        #[cfg(feature = "peers")]
        Design::Mimalloc => Ok(with.with(malloc::Mimalloc::new())),
        #[cfg(feature = "peers")]
        Design::Jemalloc => Ok(with.with(malloc::Jemalloc::new())),
        #[cfg(feature = "peers")]
        Design::Snmalloc => Ok(with.with(malloc::Snmalloc::new())),
        other => Err(Failure::Usage(format!("design {other} does not allocate blocks"))),
    }
}

/// What can be done with any subject can be done with an allocator.
struct AnySubject<W>(W);

impl<W: WithSubject> WithAllocator for AnySubject<W> {
    type Output = W::Output;

    fn with<A: Allocator + 'static>(self, allocator: A) -> W::Output {
        self.0.with(allocator)
    }
}

/// Makes the allocator `design` with `pages` pages, and does `with` it what there is to do.
///
/// # Errors
/// When the design cannot run here, or its memory cannot be had.
pub fn make_allocator<W: WithAllocator>(
    design: Design,
    demand: &Demand,
    pages: u64,
    with: W,
) -> Result<W::Output, Failure> {
    if let Some(why) = design.unavailable().or_else(|| demand.variant.refuses(design)) {
        return Err(Failure::Usage(why));
    }
    match design {
        Design::Depot => depot::make(demand, pages, with),
        _ => cached::make(design, demand, pages, with),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for design in Design::ALL {
            assert_eq!(Design::parse(design.name()), Ok(design));
        }
        let error = Design::parse("slab").unwrap_err();
        assert!(error.contains("depot, floor-tls") && error.contains(", kernel"), "{error}");
    }
}
