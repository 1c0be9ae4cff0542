//! `/proc/self/maps` agrees with the library's own view.

use pagedepot_linux::vmalloc::{LinuxVmap, Options, VirtAddr, Vmalloc};

use crate::common::{Random, mib, page_bytes, seed};
use crate::{all_back, depot, scatter};

/// A line of `/proc/self/maps`.
struct Mapping {
    start: usize,
    end: usize,
    access: String,
    offset: usize,
    is_file: bool,
}

fn mappings() -> Vec<Mapping> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some(Mapping {
            start: number(start)?,
            end: number(end)?,
            access: words.next()?.to_owned(),
            offset: number(words.next()?)?,
            is_file: line.contains("memfd:pagedepot"),
        })
    };
    text.lines().map(|line| parse(line).unwrap()).collect()
}

/// Checks that every page of the range is mapped as `space` says. Returns the number of mappings.
fn check(space: &Vmalloc) -> usize {
    let (start, bytes) = space.range();
    let (start, end) = (start.addr().get(), start.addr().get() + bytes);
    // SAFETY: used for looking only.
    let vmap: &LinuxVmap = unsafe { space.inner() };
    let mut covered = start;
    let mut count = 0;
    for mapping in mappings().iter().filter(|mapping| mapping.start < end && start < mapping.end) {
        // The kernel may join the reservation with a neighbour of its kind.
        assert!(mapping.start.max(start) == covered, "there is a hole at {covered:#x}");
        covered = mapping.end.min(end);
        count += 1;
        for at in (mapping.start.max(start)..covered).step_by(page_bytes()) {
            assert_eq!(mapping.is_file, vmap.mapper().is_mapped(VirtAddr::new(at)), "{at:#x}");
            let access = if mapping.is_file { "rw-s" } else { "---p" };
            assert_eq!(mapping.access, access, "{at:#x}");
            let frame = space.pfn_of(std::ptr::without_provenance(at));
            if let Some(frame) = frame {
                assert!(mapping.is_file, "{at:#x} has {frame} and is not mapped");
                assert_eq!(
                    space.depot().raw().offset(frame),
                    mapping.offset + at - mapping.start,
                    "{at:#x}"
                );
            }
        }
    }
    assert_eq!(covered, end, "the range is not whole");
    count
}

#[test]
fn maps_agree_with_the_metadata() {
    let mut random = Random::new(seed());
    let depot = depot(16 * mib());
    let held = scatter(&depot);
    let space = Vmalloc::builder(&depot)
        .bytes(64 * mib())
        .warm_bytes(mib())
        .lazy_bytes(2 * mib())
        .mappings_max(60_000)
        .build()
        .unwrap();
    let mut bufs = Vec::new();
    for step in 0..1500 {
        match random.below(10) {
            0..5 => {
                let pages = 1 + random.below(40) as usize;
                let guard = random.below(3) as u8;
                // The space is exhausted now and then, which other tests check.
                bufs.extend(
                    space.buf_with(pages * page_bytes(), Options::DEFAULT.guard_pages(guard)),
                );
            }
            5 if !bufs.is_empty() => {
                let at = random.below(bufs.len() as u64) as usize;
                let _ = bufs[at].resize((1 + random.below(60) as usize) * page_bytes());
            }
            _ if !bufs.is_empty() => {
                bufs.swap_remove(random.below(bufs.len() as u64) as usize);
            }
            _ => {}
        }
        if step % 100 == 0 {
            let count = check(&space);
            // Neighbours without a guard may be neighbours in the file, too: then there are fewer
            // mappings.
            assert!(
                count <= space.mappings() as usize && count * 20 > space.mappings() as usize * 19
            );
        }
    }
    drop(bufs);
    space.shrink();
    assert_eq!((check(&space), space.mappings()), (1, 1));
    drop(held);
    drop(depot);
    all_back(space);
}

#[test]
fn nothing_stays_mapped_when_a_space_is_dropped() {
    let space = Vmalloc::new(&depot(16 * mib())).unwrap();
    let _ = space.vmalloc(77, Options::DEFAULT).unwrap();
    let (start, bytes) = space.range();
    let start = start.addr().get();
    let is_ours = |mapping: &&Mapping| {
        mapping.is_file && start <= mapping.start && mapping.end <= start + bytes
    };
    assert!(mappings().iter().filter(is_ours).count() > 0);
    drop(space);
    assert_eq!(mappings().iter().filter(is_ours).count(), 0);
}
