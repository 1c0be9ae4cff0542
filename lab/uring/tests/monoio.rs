//! The runtime monoio reads into pages and buffers of a depot, and writes from them.

#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;

use std::io::Write as _;

use monoio::buf::{IoBuf, IoBufMut};
use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder};
use pagedepot_linux::{Depot, Flags, MemoryKind, Order, Vmalloc};

const PAGE: usize = 4096;

/// Reads the file into a buffer at an offset, and writes a part of the buffer back elsewhere.
async fn copies<B: IoBuf + IoBufMut + AsRef<[u8]>>(file: &File, buffer: B, bytes: &[u8]) {
    let (read, buffer) = file.read_exact_at(buffer, 100).await;
    read.unwrap();
    let length = buffer.as_ref().len();
    assert!(*buffer.as_ref() == bytes[100..100 + length]);
    let (written, _) = file.write_all_at(buffer.slice(8..100), 0).await;
    written.unwrap();
}

#[test]
fn a_ring_reads_into_pages_and_writes_from_them() {
    let mut runtime = match RuntimeBuilder::<IoUringDriver>::new().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return skip::skip(format_args!("this kernel makes no rings ({error})"));
        }
    };
    let path = std::env::temp_dir().join(format!("pagedepot-io-buf-{}", std::process::id()));
    let bytes: Vec<u8> = (0..40 * PAGE).map(|at| (at * 7 / 3) as u8).collect();
    std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    let depot = Depot::builder(16 << 20).memory(MemoryKind::Memfd).build().unwrap();
    let space = Vmalloc::new(&depot).unwrap();
    let (page, pages) = (depot.page(Order::BASE), depot.pages(9, Flags::default()));
    let (page, pages, buffer) = (page.unwrap(), pages.unwrap(), space.buf(9 * PAGE).unwrap());
    runtime.block_on(async {
        let mut options = monoio::fs::OpenOptions::new();
        let file = options.read(true).write(true).open(&path).await.unwrap();
        copies(&file, page, &bytes).await;
        copies(&file, pages, &bytes).await;
        copies(&file, buffer, &bytes).await;
    });
    let now = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(now[..92] == bytes[108..200] && now[92..] == bytes[92..]);
    drop(space);
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}
