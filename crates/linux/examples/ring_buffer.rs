//! A ring buffer whose end is followed by its beginning: the same pages mapped twice in a row, so
//! that a record is always one slice, wherever it lies.
//!
//! `cargo run --release -p pagedepot-linux --example ring_buffer`

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use pagedepot_linux::vmalloc::{Options, PurgeDepth, Vmalloc};
use pagedepot_linux::{Depot, Flags, MemoryKind, Order, Pfn};

/// Bytes between `head` and `tail`, which run on and on.
struct Ring<'v> {
    space: &'v Vmalloc,
    frames: Vec<Pfn>,
    start: NonNull<u8>,
    bytes: usize,
    head: usize,
    tail: usize,
}

impl<'v> Ring<'v> {
    fn new(space: &'v Vmalloc, pages: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let depot = space.depot();
        let mut frames = vec![Pfn::new(0); pages];
        let got = depot.raw().alloc_many(Order::BASE, Flags::default(), &mut frames)?;
        frames.truncate(got);
        let twice = [&frames[..], &frames[..]].concat();
        let start = space.vmap(&twice, Options::DEFAULT)?;
        let bytes = got * depot.page_size().bytes();
        Ok(Ring { space, frames, start, bytes, head: 0, tail: 0 })
    }

    /// Appends a record, if there is room.
    fn push(&mut self, record: &[u8]) -> bool {
        if self.tail - self.head + record.len() > self.bytes {
            return false;
        }
        // SAFETY: from any place of the first mapping, `bytes` bytes are mapped, and no slice of
        // them is lent out: this is `&mut self`.
        let room = unsafe {
            slice::from_raw_parts_mut(self.start.as_ptr().add(self.tail % self.bytes), record.len())
        };
        room.copy_from_slice(record);
        self.tail += record.len();
        true
    }

    /// All that is in it, as one slice.
    fn as_slice(&self) -> &[u8] {
        // SAFETY: as above; nobody writes while this is lent out.
        unsafe {
            slice::from_raw_parts(
                self.start.as_ptr().add(self.head % self.bytes),
                self.tail - self.head,
            )
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.head += bytes.min(self.tail - self.head);
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mapping any more.
        unsafe { self.space.vunmap(self.start) }.expect("mapped by `new`");
        // The frames are ours alone once no mapping reaches them.
        self.space.purge(PurgeDepth::Lazy);
        for &frame in &self.frames {
            // SAFETY: allocated by `new`, freed once.
            unsafe { self.space.depot().raw().free(frame, Order::BASE) }
                .expect("allocated by `new`");
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let depot = Arc::new(Depot::builder(64 << 20).memory(MemoryKind::Memfd).build()?);
    let space = Vmalloc::new(&depot)?;
    let mut ring = Ring::new(&space, 4)?;
    let mut wrapped = 0;
    for n in 0..10_000 {
        let record = format!("record {n:>9};");
        while !ring.push(record.as_bytes()) {
            ring.consume(record.len());
        }
        wrapped += usize::from(ring.head % ring.bytes > ring.tail % ring.bytes);
        assert!(ring.as_slice().ends_with(record.as_bytes()));
        assert!(ring.as_slice().chunks(record.len()).all(|record| record.starts_with(b"record ")));
    }
    println!(
        "{} bytes went through {} pages; its contents lay across the end {wrapped} times",
        ring.tail,
        ring.frames.len()
    );
    println!("{}", space.vmallocinfo());
    Ok(())
}
