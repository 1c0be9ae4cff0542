//! The designs that the lab compares, by the names that `--design` and results give them.

use std::fmt;

/// The enum of designs, their order in tables and their names, from one list.
macro_rules! designs {
    ($($(#[$doc:meta])* $design:ident = $name:literal,)*) => {
        /// A design, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Design {
            $($(#[$doc])* $design,)*
        }

        impl Design {
            /// All designs, in the order of tables.
            pub const ALL: &'static [Design] = &[$(Design::$design),*];

            /// The name in `--design`, tables and results.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Design::$design => $name,)*
                }
            }
        }
    };
}

designs! {
    /// This project's.
    Depot = "depot",
    /// A thread-local vector.
    FloorTls = "floor-tls",
    /// A restartable sequence on a per-CPU array.
    FloorRseq = "floor-rseq",
    /// A per-CPU spinlock and a vector.
    FloorSpin = "floor-spin",
    /// No per-CPU layer: a buddy allocator behind a lock.
    ZoneLock = "zone-lock",
    /// Per-CPU lists that only their owners touch.
    Local = "local",
    /// `Local`, or locked lists for all CPUs.
    NohzConditional = "nohz-conditional",
    /// Per-CPU lists behind spinlocks.
    Spin = "spin",
    /// Per-CPU lists under local locks, or spinlocks on isolated CPUs.
    Qpw = "qpw",
    /// Per-CPU lists that split and merge the pageblocks that their CPU owns.
    PcpBuddy = "pcp-buddy",
    /// Per-CPU lists behind a pointer that drains switch, all at once, before a grace period.
    Rcu = "rcu",
    /// Magazines that CPUs share, behind spinlocks.
    Magazine = "magazine",
    /// The crate `frame-alloc`'s `DepotAllocator`.
    FrameAlloc = "frame-alloc",
    /// mimalloc, asked for aligned pages.
    Mimalloc = "mimalloc",
    /// The crate mimalloc-pprof with its owner gate, asked for aligned pages.
    MimallocPprof = "mimalloc-pprof",
    /// jemalloc, asked for aligned pages.
    Jemalloc = "jemalloc",
    /// snmalloc, asked for aligned pages.
    Snmalloc = "snmalloc",
    /// Google's TCMalloc, asked for aligned pages.
    Tcmalloc = "tcmalloc",
    /// The C library's `malloc`, asked for aligned pages.
    Glibc = "glibc",
    /// The kernel's own page faults.
    Kernel = "kernel",
    /// Kernel address space as it was before nodes.
    VmapGlobalLock = "vmap-global-lock",
    /// Kernel address space with nodes.
    VmapNodes = "vmap-nodes",
    /// The operating system's `mmap` and `munmap`.
    Mmap = "mmap",
    /// The standard library's `Vec`, over the system's `malloc`.
    Vec = "vec",
    /// The crate `range-alloc`.
    RangeAlloc = "range-alloc",
    /// The crate `offset-allocator`.
    OffsetAllocator = "offset-allocator",
    /// This project's, by pages that own their depot instead of page numbers.
    DepotOwned = "depot-owned",
    /// This project's, on CPUs that count as isolated: their fronts are behind locks.
    DepotIsolated = "depot-isolated",
    /// This project's, without per-CPU caches.
    DepotUncached = "depot-uncached",
    /// This project's, without pageblocks that evacuate.
    DepotStill = "depot-still",
    /// This project's, in a segment that processes share.
    DepotShared = "depot-shared",
    /// A free list in memory that processes share, behind a robust mutex of the C library.
    Mutex = "mutex",
    /// `Magazine`, with a magazine of its own for each process that allocates much.
    ProcessMagazine = "process-magazine",
}

/// Lists one behind the other, at compile time. `N` is the number of designs in all.
pub const fn joined<const N: usize>(lists: &[&[Design]]) -> [Design; N] {
    let mut all = [Design::Depot; N];
    let (mut list, mut nth) = (0, 0);
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            all[nth] = lists[list][at];
            (at, nth) = (at + 1, nth + 1);
        }
        list += 1;
    }
    assert!(nth == N, "the lists have another number of designs");
    all
}

impl Design {
    /// The designs of the command `pagedepot`; the others are the lab's. `depot-...` are variants.
    pub const OF_PRODUCT: &'static [Design] = &[
        Design::Depot,
        Design::FloorTls,
        Design::FloorRseq,
        Design::FloorSpin,
        Design::ZoneLock,
        Design::Spin,
        Design::Kernel,
        Design::DepotOwned,
        Design::DepotIsolated,
        Design::DepotUncached,
        Design::DepotStill,
        Design::Glibc,
        Design::DepotShared,
        Design::Mutex,
    ];

    /// Page allocators that linux-mm threads propose.
    pub const PROPOSALS: &'static [Design] = &[
        Design::ZoneLock,
        Design::Local,
        Design::NohzConditional,
        Design::Spin,
        Design::Qpw,
        Design::PcpBuddy,
        Design::Rcu,
        Design::Magazine,
    ];

    /// Allocators of processes, asked for aligned pages.
    pub const MALLOCS: &'static [Design] = &[Design::Mimalloc, Design::Jemalloc, Design::Snmalloc];

    /// Designs that hand out blocks.
    pub const BLOCKS: &'static [Design] = &joined::<17>(&[
        &[Design::Depot, Design::FloorTls, Design::FloorRseq, Design::FloorSpin],
        Design::PROPOSALS,
        &[Design::FrameAlloc],
        Design::MALLOCS,
        &[Design::Tcmalloc],
    ]);

    /// Whole page allocators: they hand out frame numbers, with memory behind them, for blocks of
    /// any order, split blocks, drain caches and check their metadata.
    pub const PAGED: &'static [Design] = &joined::<9>(&[&[Design::Depot], Design::PROPOSALS]);

    /// Designs whose owners exclude each other by restartable sequences and nothing else.
    pub const WITH_RSEQ: &'static [Design] =
        &[Design::FloorRseq, Design::Local, Design::NohzConditional, Design::Qpw, Design::Rcu];

    /// Designs of `WITH_RSEQ` whose drains fence other CPUs' sequences. Without the fence their
    /// owners would have to take locks, which costs something else.
    pub const WITH_FENCES: &'static [Design] =
        &[Design::Local, Design::NohzConditional, Design::Qpw, Design::Rcu];

    /// Designs that manage address space and map pages there.
    pub const VMAPS: &'static [Design] =
        &[Design::Depot, Design::VmapGlobalLock, Design::VmapNodes];

    /// The design called `name`.
    ///
    /// # Errors
    /// Lists the names there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|design| design.name() == name);
        found.copied().ok_or_else(|| {
            let (here, lab): (Vec<_>, Vec<_>) =
                Self::ALL.iter().partition(|design| Self::OF_PRODUCT.contains(design));
            let (here, lab) = (list(&here), list(&lab));
            format!("no such design; there are {here}; and in pagedepot-lab {lab}")
        })
    }

    /// Whether the design writes into freed pages, and so comes to own memory for every page that
    /// it ever handed out.
    pub fn touches_pages(self) -> bool {
        matches!(self, Design::MimallocPprof | Design::Tcmalloc) || Self::MALLOCS.contains(&self)
    }

    /// Whether it is this project's, by whatever variant: none is a rival of another.
    pub const fn is_depot(self) -> bool {
        matches!(
            self,
            Design::Depot
                | Design::DepotOwned
                | Design::DepotIsolated
                | Design::DepotUncached
                | Design::DepotStill
                | Design::DepotShared
        )
    }

    /// Whether the design is no allocator, but what a per-CPU list must cost at least: it has no
    /// store, no limits, and no frees by other CPUs.
    pub const fn is_bound(self) -> bool {
        matches!(self, Design::FloorTls | Design::FloorRseq | Design::FloorSpin)
    }

    /// Whether a linux-mm thread proposes the design.
    pub fn is_of_a_thread(self) -> bool {
        Self::PROPOSALS.contains(&self)
    }

    /// Whether the design is another project's crate or library, compiled in by the feature
    /// `peers`.
    pub fn is_peer(self) -> bool {
        matches!(self, Design::FrameAlloc | Design::RangeAlloc | Design::OffsetAllocator)
            || self.touches_pages()
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The designs' names, separated by commas.
pub fn list(designs: &[Design]) -> String {
    designs.iter().map(|design| design.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for &design in Design::ALL {
            assert_eq!(Design::parse(design.name()), Ok(design));
        }
        let error = Design::parse("slab").unwrap_err();
        assert!(error.contains("depot, floor-tls") && error.contains(", kernel"), "{error}");
        assert!(error.contains("; and in pagedepot-lab local, "), "{error}");
    }
}
