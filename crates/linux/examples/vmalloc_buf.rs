//! A column that grows without copying, and what the address space tells about it.
//!
//! `cargo run --release -p pagedepot-linux --example vmalloc_buf`

use std::sync::Arc;

use pagedepot_linux::vmalloc::Vmalloc;
use pagedepot_linux::{Depot, MemoryKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let depot = Arc::new(Depot::builder(256 << 20).memory(MemoryKind::Memfd).build()?);
    let space = Vmalloc::new(&depot)?;

    let mut column = space.buf(64 << 10)?;
    let neighbour = space.buf(64 << 10)?;
    let mut moves = 0;
    for value in 0..4_000_000_u64 {
        let at = value as usize * 8;
        if at == column.len() {
            let before = column.addr();
            column.grow(2 * column.len())?;
            moves += usize::from(column.addr() != before);
        }
        column[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    let sum: u64 = column.as_chunks().0[..4_000_000].iter().copied().map(u64::from_ne_bytes).sum();
    assert_eq!(sum, 3_999_999 * 4_000_000 / 2);
    println!("{} MiB, moved {moves} times, never copied", column.len() >> 20);
    print!("{}", space.vmallocinfo());
    println!("{} mappings, {} bytes of page tables", space.mappings(), space.page_table_bytes());

    drop((column, neighbour));
    let purged = space.shrink();
    println!("{} pages and {} page tables given back", purged.frames, purged.tables);
    Ok(())
}
