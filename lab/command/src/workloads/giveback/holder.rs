//! The calls of a program that rests to a design.

use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use pagedepot::{Flags, Mode, Order, Pfn, Scope};
use pagedepot_linux::pressure::{Monitor, Policy};
use pagedepot_linux::{Depot, MemoryKind};

use super::peak::{Cpus, Peak};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;

/// A design that holds a program's memory.
pub trait Holder: Sync {
    /// Allocates a block, aligned to a page.
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Frees a block of `alloc`, given back once and with its size.
    fn free(&self, block: NonNull<u8>, bytes: usize);

    /// Gives back what can be, as far as one call of a thread of the program can.
    fn purge(&self);

    /// Bytes that it keeps in files rather than in anonymous memory.
    fn file_bytes(&self) -> u64 {
        0
    }
}

/// This project's, with a monitor.
pub struct DepotHolder {
    depot: Depot,
    _monitor: Monitor,
}

fn failed(why: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {why}", Design::Depot))
}

impl DepotHolder {
    /// Makes a depot with twice the memory of the peak: fragments need some.
    pub fn new(kind: MemoryKind, peak: &Peak, cpus: &Cpus) -> Result<Self, Failure> {
        let mut builder = Depot::builder(2 * peak.bytes).memory(kind);
        if let Some(cpu) = cpus.isolated {
            builder = builder.isolated_cpus([cpu].into_iter().collect());
        }
        let depot = builder.build().map_err(failed)?;
        let policy =
            Policy { idle_ms: peak.idle_ms, look_ms: peak.idle_ms / 3, ..Policy::default() };
        let monitor = Monitor::builder(&depot).policy(policy).start().map_err(failed)?;
        Ok(DepotHolder { depot, _monitor: monitor })
    }

    fn pfn(&self, block: NonNull<u8>) -> Pfn {
        self.depot.pfn_of(block.as_ptr()).expect("it is a block of this depot")
    }
}

impl Holder for DepotHolder {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        let order = Order::for_bytes(bytes, self.depot.page_size())?;
        let raw = self.depot.raw();
        raw.alloc(order, Flags::default()).ok().map(|pfn| raw.address(pfn))
    }

    fn free(&self, block: NonNull<u8>, bytes: usize) {
        let order = Order::for_bytes(bytes, self.depot.page_size())
            .expect("it was allocated with this size");
        // SAFETY: a block of `alloc` with this size, which the workload frees once.
        let freed = unsafe { self.depot.raw().free(self.pfn(block), order) };
        freed.expect("it is a block of this depot");
    }

    fn purge(&self) {
        self.depot.drain(Scope::ALL, Mode::Full);
        // The monitor may be trimming.
        while self.depot.trim().expect("the depot is not pinned").cut_short {
            std::thread::yield_now();
        }
    }

    /// Blocks of the memory file, mapped at this moment or not.
    fn file_bytes(&self) -> u64 {
        // SAFETY: only asked for its size.
        let Some(file) = (unsafe { self.depot.raw().fd() }) else { return 0 };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let blocks =
            std::fs::metadata(path).map(|file| std::os::unix::fs::MetadataExt::blocks(&file));
        // Of 512 bytes, whatever the file system's are.
        blocks.map_or(0, |blocks| blocks * 512)
    }
}
