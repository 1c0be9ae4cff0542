//! The system's own limit on mappings. The test has a process of its own: other tests would find no
//! mappings left.

#[path = "../../core/tests/common/skip.rs"]
mod skip;

use std::ptr;
use std::sync::Arc;

use pagedepot_linux::vmalloc::{MapError, Options, Vmalloc, VmapError};
use pagedepot_linux::{Depot, MemoryKind, Order};
use rustix::param::page_size;

/// Requests fail before the limit is reached, so that purges still work.
#[test]
fn a_space_stays_below_the_systems_limit() {
    let depot = Arc::new(
        Depot::builder((1 << 14) * page_size()).memory(MemoryKind::Memfd).build().unwrap(),
    );
    // All that is freed stays mapped.
    let builder = Vmalloc::builder(&depot).lazy_bytes(1 << 40).areas_max(200_000);
    let mut space = builder.bytes((1 << 18) * page_size()).build().unwrap();
    let limit: u32 =
        std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if limit > 100_000 {
        return skip::skip(format_args!("vm.max_map_count is {limit}, too many to reach"));
    }
    assert!(space.mappings_max() <= limit - limit / 8);
    let frame = depot.raw().alloc(Order::BASE, Default::default()).unwrap();
    let mut starts = Vec::new();
    let error = loop {
        match space.vmap(&[frame], Options::DEFAULT) {
            Ok(start) => starts.push(start),
            Err(error) => break error,
        }
    };
    assert_eq!(error, VmapError::Map(MapError::TooManyMappings { limit: space.mappings_max() }));
    assert!(starts.len() as u32 > limit / 4, "{}", starts.len());
    for start in starts {
        // SAFETY: never used.
        unsafe { space.vunmap(start) }.unwrap();
    }
    // Another space has these mappings, once no area of this one is in use.
    assert!(space.mappings() > limit / 4, "{} mappings", space.mappings());
    let other = Vmalloc::new(&depot).unwrap();
    // SAFETY: never used.
    unsafe { other.vunmap(other.vmap(&[frame], Options::DEFAULT).unwrap()) }.unwrap();
    drop(other);
    assert_eq!(space.mappings(), 1);
    let purged = space.shrink();
    assert_eq!((purged.stuck_areas, purged.error), (0, None));
    // SAFETY: the frame is not mapped any more.
    unsafe { depot.raw().free(frame, Order::BASE) }.unwrap();
    assert_eq!((space.mappings(), space.validate().unwrap().mapped_pages), (1, 0));

    // Other code does not stop before the limit: requests then return an error, and areas stay
    // lazy.
    let mut kept = space.buf(page_size()).unwrap();
    kept[0] = 1;
    drop(space.buf(2 * page_size()).unwrap());
    let hog = Hog::new();
    // The freed area makes room for one request, but not for many. Each that fails reads all
    // mappings several times, which takes a second.
    let mut more = vec![space.buf(10 * page_size()).unwrap()];
    let error = loop {
        match space.buf(10 * page_size()) {
            Ok(buf) if more.len() < 10 => more.push(buf),
            Ok(_) => panic!("{} requests, and none failed", more.len() + 1),
            Err(error) => break error,
        }
    };
    assert_eq!(error, VmapError::Map(MapError::TooManyMappings { limit }));
    drop(more);
    assert_eq!(kept[0], 1);
    drop(kept);
    let purged = space.shrink();
    println!("with no mappings left: {purged:?}");
    assert_eq!(purged.error.is_some(), purged.stuck_areas > 0);
    drop(hog);
    assert_eq!(space.shrink().stuck_areas, 0);
    assert_eq!((space.mappings(), space.validate().unwrap().mapped_pages), (1, 0));
}

/// Takes all mappings that the system allows.
struct Hog(*mut libc::c_void, usize);

impl Hog {
    fn new() -> Self {
        let (bytes, flags) =
            (200_000 * page_size(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping; every second page gets another protection than its neighbours.
        unsafe {
            let start = libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let protect = |page: usize| {
                libc::mprotect(start.add(page * page_size()), page_size(), libc::PROT_READ) == 0
            };
            assert!((0..100_000).any(|n| !protect(2 * n + 1)), "there is no limit");
            Hog(start, bytes)
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no code uses it.
        assert_eq!(unsafe { libc::munmap(self.0, self.1) }, 0);
    }
}
