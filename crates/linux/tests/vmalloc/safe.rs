//! Code without `unsafe` can do no harm with an address space.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use pagedepot_linux::vmalloc::{LinuxMapper, Options};
use pagedepot_linux::{Order, Pfn, Vmalloc};
use pagedepot_vmap::Mapper;

use crate::common::{mib, page_bytes};
use crate::depot;

/// A page is mapped and read while its holder writes it: each byte read is one that was written.
#[test]
fn a_page_is_read_while_its_holder_writes() {
    let depot = depot(16 * mib());
    let space = Vmalloc::new(&depot).unwrap();
    let mut page = depot.page(Order::BASE).unwrap();
    page.fill(1);
    let at = space.vmap(&[page.pfn()], Options::DEFAULT).unwrap().as_ptr().addr();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) || reads == 0 {
                let mut bytes = [0; 64];
                assert_eq!(space.read_at(std::ptr::without_provenance(at), &mut bytes), 64);
                assert!(bytes.iter().all(|byte| (1..=3).contains(byte)), "{bytes:?}");
                reads += 1;
            }
        });
        for byte in (1..=3).cycle().take(300_000) {
            page[..64].fill(byte);
            std::hint::black_box(&mut page[..64]);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

/// Reads at frames and offsets of any size copy from inside the depot, or are refused.
#[test]
fn reading_frames_stays_inside_the_depot() {
    let depot = depot(16 * mib());
    let mapper = LinuxMapper::new(&depot, 1 << 24, None).unwrap();
    let mut bytes = [1; 16];
    assert!(mapper.read(Pfn::new(4095), 4080, &mut bytes));
    for frame in [4096, 1 << 20, u32::MAX - 1, u32::MAX] {
        assert!(!mapper.read(Pfn::new(frame), 0, &mut bytes), "{frame}");
    }
    for offset in [page_bytes() - 15, page_bytes(), 1 << 30, usize::MAX - 15, usize::MAX] {
        assert!(!mapper.read(Pfn::new(0), offset, &mut bytes), "{offset}");
    }
}
