//! Page tables go back to the system, by the kernel's count. The test has a process of its own.

#[path = "../../core/tests/common/skip.rs"]
mod skip;

use std::sync::Arc;

use pagedepot_linux::builder::default_page_size;
use pagedepot_linux::{Depot, MemoryKind, Vmalloc};

const MIB: usize = 1 << 20;

/// Bytes of page tables of this process.
fn page_table_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmPTE:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_purge_gives_page_tables_back() {
    if default_page_size().bytes() > 4096 {
        return skip::skip("a table covers more than 2 MiB: thousand need too many addresses");
    }
    let depot = Arc::new(
        Depot::builder(64 * MIB).memory(MemoryKind::Memfd).populate(true).build().unwrap(),
    );
    let space = Vmalloc::builder(&depot).bytes(4 << 30).build().unwrap();
    // The first round touches the metadata.
    let round = || {
        // One frame in every 2 MiB: a table each.
        let bufs: Vec<_> = (0..1000)
            .map(|_| {
                space
                    .buf_with(4096, pagedepot_linux::vmalloc::Options::DEFAULT.align(2 * MIB))
                    .unwrap()
            })
            .collect();
        let peak = (page_table_bytes(), space.page_table_bytes());
        drop(bufs);
        space.shrink();
        (peak, (page_table_bytes(), space.page_table_bytes()))
    };
    let (_, (start, own_start)) = round();
    let ((peak, own_peak), (end, own_end)) = round();
    println!("kernel: {start} {peak} {end}, own metadata: {own_start} {own_peak} {own_end}");
    assert_eq!((own_start, own_peak, own_end), (0, 1000 * 4096, 0));
    assert!(peak >= start + 900 * 4096, "the kernel made tables");
    assert!(end <= start + (peak - start) / 20, "{start} {peak} {end}");
}
