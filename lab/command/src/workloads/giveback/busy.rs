//! Peers as programs at work have them: with their own threads that give memory back.

use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::workloads::giveback::holder::{Holder, HolderDemand};
use pagedepot_cli::workloads::giveback::make;

/// The designs of `giveback --busy`.
pub const DESIGNS: &[Design] = &[
    Design::Depot,
    Design::Glibc,
    Design::Jemalloc,
    Design::Mimalloc,
    Design::MimallocPprof,
    Design::Tcmalloc,
];

/// Makes a design.
pub fn make_any(design: Design, demand: &HolderDemand) -> Result<Box<dyn Holder>, Failure> {
    match design {
        #[cfg(feature = "peers")]
        Design::Jemalloc => Ok(Box::new(Asked(super::peers::Jemalloc::with_background_thread()?))),
        #[cfg(feature = "peers")]
        Design::Mimalloc => Ok(Box::new(Asked(super::peers::Mimalloc))),
        #[cfg(feature = "peers")]
        Design::MimallocPprof => Ok(Box::new(crate::design::mimalloc_pprof::Held::new()?)),
        #[cfg(feature = "tcmalloc")]
        Design::Tcmalloc => Ok(Box::new(crate::design::tcmalloc::Held::new())),
        other => make(other, demand),
    }
}

/// A design of the program at rest, in the program at work.
#[cfg(feature = "peers")]
struct Asked<H>(H);

#[cfg(feature = "peers")]
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
