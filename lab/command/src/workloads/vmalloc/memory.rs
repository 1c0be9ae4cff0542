//! Memory that the operating system maps: for the designs, and by its own `mmap`.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use pagedepot_linux::vmalloc::{DepotHost, LinuxMapper};
use pagedepot_linux::{Depot, MemoryKind};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::host::CountingHost;
use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, Seat, Subject};
use pagedepot_cli::names::Design;

/// Addresses, and a depot's frames to map there.
pub type Ends = (LinuxMapper, CountingHost<DepotHost>);

/// A range of addresses, and a depot of `pages` pages. With `populate` the pages have memory from
/// the start, as in a depot that has been used before.
///
/// # Errors
/// When the memory or the addresses cannot be had.
pub fn ends(pages: u32, range_pages: u32, populate: bool) -> Result<Ends, Failure> {
    let bytes = |pages: u32| pages as usize * PAGE_BYTES;
    let depot = Depot::builder(bytes(pages)).memory(MemoryKind::Memfd).populate(populate).build();
    let depot = Arc::new(depot.map_err(|e| Failure::Run(format!("memory to map: {e}")))?);
    let mapper = LinuxMapper::new(&depot, bytes(range_pages), None);
    let mapper = mapper.map_err(|e| Failure::Run(format!("addresses to map it at: {e}")))?;
    Ok((mapper, CountingHost(DepotHost::new(&depot))))
}

/// Writes to each page.
///
/// # Safety
/// So many pages are mapped there, writable, and the caller's.
pub unsafe fn touch(memory: *mut u8, pages: u32) {
    for page in 0..pages as usize {
        // SAFETY: the caller's promise.
        unsafe { memory.add(page * PAGE_BYTES).write_volatile(1) };
    }
}

/// The operating system's own way: a new mapping, touched, and unmapped.
pub struct Mmap {
    /// Pages of a mapping.
    pub pages: u32,
}

impl Contender<1> for Mmap {
    fn subject(&self) -> &dyn Subject {
        &Design::Mmap
    }

    fn window(&self, _seat: Seat, units: u64) -> [f64; 1] {
        let bytes = self.pages as usize * PAGE_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = Instant::now();
        for _ in 0..units {
            // SAFETY: a new mapping, wherever there is room.
            let memory =
                unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
            let memory: *mut c_void = memory.expect("there is memory");
            // SAFETY: the mapping just made.
            unsafe { touch(memory.cast(), self.pages) };
            // SAFETY: as above; nothing of it is kept.
            unsafe { munmap(memory, bytes) }.expect("it was mapped");
        }
        [start.elapsed().as_nanos() as f64 / units as f64]
    }
}
