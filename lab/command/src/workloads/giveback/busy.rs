//! Peers as programs at work have them: with their own threads that give memory back.

use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::workloads::giveback::holder::{Holder, HolderDemand};
use pagedepot_cli::workloads::giveback::make;

/// The designs of `giveback --busy`.
pub const DESIGNS: &[Design] =
    &[Design::Depot, Design::Glibc, Design::Jemalloc, Design::Mimalloc, Design::Tcmalloc];

/// Makes a design.
pub fn make_any(design: Design, demand: &HolderDemand) -> Result<Box<dyn Holder>, Failure> {
    match design {
        #[cfg(feature = "peers")]
        Design::Jemalloc => Ok(Box::new(Asked(super::peers::Jemalloc::with_background_thread()?))),
        #[cfg(feature = "peers")]
        Design::Mimalloc => Ok(Box::new(Asked(super::peers::Mimalloc))),
        #[cfg(feature = "tcmalloc")]
        Design::Tcmalloc => Ok(Box::new(Asked(crate::design::tcmalloc::Held::new()))),
        other => make(other, demand),
    }
}

/// A design of the program at rest, in the program at work.
#[cfg(any(feature = "peers", feature = "tcmalloc"))]
struct Asked<H>(H);

#[cfg(any(feature = "peers", feature = "tcmalloc"))]
impl<H: super::holder::Holder> Holder for Asked<H> {
    fn alloc(&self, bytes: usize) -> Option<std::ptr::NonNull<u8>> {
        self.0.alloc(bytes)
    }

    fn free(&self, block: std::ptr::NonNull<u8>, bytes: usize) {
        self.0.free(block, bytes);
    }

    fn ask(&self) {
        self.0.purge();
    }
}

#[cfg(feature = "tcmalloc")]
impl super::holder::Holder for crate::design::tcmalloc::Held {
    fn alloc(&self, bytes: usize) -> Option<std::ptr::NonNull<u8>> {
        Self::alloc(self, bytes)
    }

    fn free(&self, block: std::ptr::NonNull<u8>, bytes: usize) {
        // SAFETY: got by `alloc` with this size; the workload frees it once.
        unsafe { Self::free(self, block, bytes) };
    }

    fn purge(&self) {
        Self::purge(self);
    }
}
