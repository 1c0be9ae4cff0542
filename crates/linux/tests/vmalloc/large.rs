//! Large buffers: they stay mapped, and only what was written takes memory, or is zeroed.

use pagedepot_linux::{Depot, MemoryKind, Vmalloc};

use crate::all_back;
use crate::common::{Random, mib, page_bytes, seed};

fn space() -> Vmalloc {
    let depot = Depot::builder(64 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    // Mappings of its own, as other tests use some; and what one CPU frees another finds.
    Vmalloc::builder(&depot).nodes(1).mappings_max(1000).large_bytes(32 * mib()).build().unwrap()
}

/// Pages that lie in memory, of those that a buffer covers.
fn present_pages(buf: &[u8]) -> usize {
    let mut present = vec![0_u8; buf.len() / page_bytes()];
    // SAFETY: the vector has a byte for each page.
    let result =
        unsafe { libc::mincore(buf.as_ptr().cast_mut().cast(), buf.len(), present.as_mut_ptr()) };
    assert_eq!(result, 0);
    present.iter().filter(|&&page| page & 1 != 0).count()
}

#[test]
fn a_byte_written_costs_no_more_than_a_few_pages() {
    let space = space();
    let mut starts = Vec::new();
    for round in 0..20 {
        let before = space.stats().counts.zeroed_pages;
        let mut buf = space.buf(16 * mib()).unwrap();
        assert!(buf.iter().step_by(page_bytes() / 2).all(|&byte| byte == 0), "round {round}");
        assert_eq!(present_pages(&buf), 4096, "reading brings pages, too");
        drop(buf);
        space.shrink();
        space.depot().drain(pagedepot_linux::Scope::ALL, pagedepot_linux::Mode::Full);
        space.depot().trim().unwrap();
        buf = space.buf(16 * mib()).unwrap();
        assert!(present_pages(&buf) < 512, "round {round}");
        buf[round * 100 * page_bytes()] = 1;
        starts.push(buf.addr());
        drop(buf);
        let mut buf = space.buf(16 * mib()).unwrap();
        assert!(present_pages(&buf) < 512, "round {round}");
        assert_eq!(buf[round * 100 * page_bytes()], 0);
        buf[0] = 1;
        drop(buf);
        let zeroed = space.stats().counts.zeroed_pages - before;
        assert!(zeroed < 1024, "round {round}: {zeroed} pages zeroed");
        if round == 3 {
            break;
        }
    }
    assert!(space.stats().warm_pages >= 4096);
    all_back(space);
}

#[test]
fn large_buffers_are_zeroed_wherever_they_were_written() {
    let space = space();
    let mut random = Random::new(seed());
    for _ in 0..60 {
        let pages = 200 + random.below(2000) as usize;
        for _ in 0..3 {
            let mut buf = space.buf(pages * page_bytes()).unwrap();
            assert_eq!(buf.iter().position(|&byte| byte != 0), None);
            for _ in 0..random.below(20) {
                let (at, length) = (random.below(buf.len() as u64), random.below(3 << 16));
                let end = (at + length).min(buf.len() as u64);
                buf[at as usize..end as usize].fill(0xee);
            }
        }
        match random.below(4) {
            0 => drop(space.shrink()),
            1 => drop(space.depot().trim()),
            _ => {}
        }
    }
    all_back(space);
}

#[test]
fn a_large_buffer_of_its_size_is_mapped_once() {
    let space = space();
    let start = space.buf(10 * mib()).unwrap().addr();
    let (mappings, counts) = (space.mappings(), space.stats().counts);
    for _ in 0..10 {
        let mut buf = space.buf(10 * mib()).unwrap();
        assert_eq!(buf.addr(), start);
        buf.fill(1);
    }
    assert_eq!(space.mappings(), mappings);
    assert_eq!(space.stats().counts.unmapped_spans, counts.unmapped_spans);
    all_back(space);
}
