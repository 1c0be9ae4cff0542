//! `mmap` that fails at the nth call: typed errors, nothing leaked, metadata balanced.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{mib, page_bytes};
use pagedepot::{FrameRange, PageSize};
use pagedepot_linux::vmalloc::{
    DepotHost, LinuxMapper, MapError, Options, Protection, PurgeDepth, Span, VirtAddr, VmapError,
};
use pagedepot_linux::{Depot, Pfn};
use pagedepot_vmap::{FlushSpans, Mapper, Vmap, VmapConfig};

use crate::{common, depot, scatter};

/// The Linux mapper, except that one call fails.
struct Failing {
    mapper: LinuxMapper,
    calls_left: AtomicU64,
}

impl Failing {
    fn fails(&self) -> bool {
        self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0
    }

    fn has_failed(&self) -> bool {
        self.calls_left.load(Ordering::Relaxed) > u64::MAX / 2
    }
}

// SAFETY: as for the Linux mapper; a call that fails does nothing.
unsafe impl Mapper for Failing {
    fn span(&self) -> Span {
        self.mapper.span()
    }

    fn page_size(&self) -> PageSize {
        self.mapper.page_size()
    }

    fn table_pages(&self) -> u32 {
        self.mapper.table_pages()
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        how: Protection,
    ) -> Result<(), MapError> {
        if self.fails() {
            return Err(MapError::NoTables);
        }
        // SAFETY: the caller's promise.
        unsafe { self.mapper.map(at, frames, how) }
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        if self.fails() {
            return Err(MapError::Refused(12));
        }
        // SAFETY: the caller's promise.
        unsafe { self.mapper.unmap(span) }
    }

    fn flush(&self, spans: FlushSpans<'_>) {
        self.mapper.flush(spans);
    }

    unsafe fn release_tables(&self, span: Span) {
        // SAFETY: the caller's promise.
        unsafe { self.mapper.release_tables(span) };
    }

    unsafe fn fill(&self, span: Span, byte: u8) {
        // SAFETY: the caller's promise.
        unsafe { self.mapper.fill(span, byte) };
    }

    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        unsafe { self.mapper.fill_frames(frames, byte) }
    }

    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool {
        self.mapper.read(frame, offset, buf)
    }
}

type Tested<'m> = Vmap<'m, Failing, DepotHost>;

fn word(at: VirtAddr, page: usize) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(at.get() + page * page_bytes())
}

/// Allocates, writes, resizes, frees and purges. Contents stay, whatever call fails.
fn session(vmap: &Tested<'_>) -> Result<(), VmapError> {
    let mut at = vmap.vmalloc(8, Options::DEFAULT)?;
    // SAFETY: just allocated.
    (0..8).for_each(|page| unsafe { word(at, page).write(100 + page as u64) });
    let wall = vmap.vmalloc(2, Options::DEFAULT);
    let mut result = wall.map(|_| ());
    for pages in [30, 12, 40] {
        match vmap.vrealloc(at, pages, Options::DEFAULT) {
            Ok(moved) => at = moved,
            Err(error) => result = result.and(Err(error)),
        }
        // SAFETY: at least the first 8 pages are there.
        (0..8).for_each(|page| assert_eq!(unsafe { word(at, page).read() }, 100 + page as u64));
        if pages == 30 {
            vmap.purge(PurgeDepth::Lazy);
        }
    }
    vmap.vfree(at).unwrap();
    if let Ok(wall) = wall {
        vmap.vfree(wall).unwrap();
    }
    vmap.purge(PurgeDepth::Everything).error.map_or(result, |error| Err(error.into()))
}

/// Runs a session in which the nth call fails. Returns whether it failed, and the session's result.
fn with_call_failing(depot: &Arc<Depot>, n: u64) -> (bool, Result<(), VmapError>) {
    let mapper = LinuxMapper::new(depot, 8 * mib(), Some(1000)).unwrap();
    let mapper = Failing { mapper, calls_left: AtomicU64::new(n) };
    let config = VmapConfig::new(1, 300);
    let mut metadata =
        vec![MaybeUninit::uninit(); Tested::metadata_bytes(&config, &mapper).unwrap()];
    // SAFETY: mapper and host are over one depot, and this vmap alone uses them.
    let mut vmap =
        unsafe { Tested::new(&config, &mut metadata, mapper, DepotHost::new(depot)) }.unwrap();
    let result = session(&vmap);
    let has_failed = vmap.mapper().has_failed();
    vmap.validate().unwrap();
    vmap.purge(PurgeDepth::Everything);
    let census = vmap.validate().unwrap();
    assert_eq!((census.busy_areas, census.lazy_areas, census.own_frames), (0, 0, 0), "{census:?}");
    assert_eq!((vmap.stats().tables, vmap.mapper().mapper.mappings()), (0, 1));
    (has_failed, result)
}

#[test]
fn every_call_may_fail() {
    let depot = depot(16 * mib());
    let held = scatter(&depot);
    let mut failures = 0;
    for n in 0.. {
        let (has_failed, result) = with_call_failing(&depot, n);
        match result {
            Ok(()) if !has_failed => break,
            Ok(()) => {}
            Err(error) => {
                assert!(has_failed, "{error}");
                let expected = [MapError::NoTables, MapError::Refused(12)].map(VmapError::Map);
                assert!(expected.contains(&error), "{error}");
                failures += 1;
            }
        }
        assert!(n < 1000, "it never succeeds");
    }
    assert!(failures > 50, "{failures}");
    drop(held);
    common::all_back(&depot);
}
