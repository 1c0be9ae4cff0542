//! A column of numbers that grows without copying: a `VmallocBuf` in a struct of the program's own.
//!
//! `cargo run --release -p pagedepot-linux --example growable_column [NUMBERS]`
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, Write as _};

use pagedepot_linux::{Depot, MemoryKind, Vmalloc, VmallocBuf};

/// Numbers in each column.
const NUMBERS_DEFAULT: u64 = 4_000_000;

/// Numbers at consecutive addresses. It owns its memory and needs no lifetime.
struct Column {
    bytes: VmallocBuf,
    length: usize,
}

impl Column {
    /// A column of no numbers, which takes no memory yet.
    fn new(space: &Vmalloc) -> Self {
        Column { bytes: space.empty(), length: 0 }
    }

    /// Appends a number. The buffer doubles when it is full.
    fn push(&mut self, number: u64) -> io::Result<()> {
        self.bytes.writer(8 * self.length).write_all(&number.to_ne_bytes())?;
        self.length += 1;
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        let (numbers, _) = self.bytes.as_chunks();
        numbers[..self.length].iter().copied().map(u64::from_ne_bytes)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = std::env::args().nth(1).map_or(Ok(NUMBERS_DEFAULT), |numbers| numbers.parse())?;
    let depot = Depot::builder(256 << 20).memory(MemoryKind::Memfd).build()?;
    let space = Vmalloc::new(&depot)?;
    println!("Two columns grow beside each other, so that each is in the other's way.");
    let mut columns = [Column::new(&space), Column::new(&space)];
    let (mut grown, mut moved) = (0, 0);
    for number in 0..numbers {
        for column in &mut columns {
            let before = (column.bytes.addr(), column.bytes.len());
            column.push(number)?;
            grown += u32::from(column.bytes.len() != before.1);
            moved += u32::from(column.bytes.addr() != before.0 && before.1 > 0);
        }
    }
    println!(
        "Each has {numbers} numbers in {} MiB. They grew {grown} times and moved {moved} times: \
         their pages were mapped elsewhere, and no number was copied.",
        columns[0].bytes.len() >> 20
    );
    let sums = columns.each_ref().map(|column| column.iter().sum::<u64>());
    assert_eq!(sums, [(0..numbers).sum::<u64>(); 2]);

    println!("\nThe areas of the address space, as /proc/vmallocinfo would show them:");
    print!("{}", space.vmallocinfo());
    println!("{} mappings, {} bytes of page tables", space.mappings(), space.page_table_bytes());

    let [first, second] = columns;
    drop(first);
    let purged = space.shrink();
    println!(
        "\nWithout the first column, {} pages and {} page tables go back to the depot and the \
         system.",
        purged.frames, purged.tables
    );
    drop((space, depot));
    println!(
        "The space and the depot have no name any more; the second column, in another thread, \
         still has its sum: {}.",
        std::thread::spawn(move || second.iter().sum::<u64>()).join().expect("it only adds")
    );
    Ok(())
}
