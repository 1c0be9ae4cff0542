//! Pages and buffers as buffers of the runtime monoio, which submits reads and writes to io_uring
//! and gives the buffers back when they have ended (feature `monoio`).
//!
//! ```
//! use monoio::buf::{IoBuf, IoBufMut};
//! use pagedepot_linux::{Depot, Order, Page};
//!
//! fn takes_buffers(_: impl IoBuf + IoBufMut) {}
//! takes_buffers(Depot::new(1 << 20)?.page(Order::BASE)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! All of a page's bytes are initialised, so a write writes all of it: `slice` of monoio says how
//! much is meant. A read of fewer bytes leaves the rest as it was.

use monoio::buf::{IoBuf, IoBufMut};

use crate::page::{Page, Pages};
use crate::vmalloc::VmallocBuf;

macro_rules! io_buf {
    ($($type:ty),+) => {$(
        // SAFETY: its bytes stay where they are when the value is moved, mapped and initialised
        // until it is dropped; it has no borrows.
        unsafe impl IoBuf for $type {
            fn read_ptr(&self) -> *const u8 {
                self.as_ptr()
            }

            fn bytes_init(&self) -> usize {
                self.len()
            }
        }

        // SAFETY: as above; the value alone holds its bytes.
        unsafe impl IoBufMut for $type {
            fn write_ptr(&mut self) -> *mut u8 {
                self.as_mut_ptr()
            }

            fn bytes_total(&mut self) -> usize {
                self.len()
            }

            unsafe fn set_init(&mut self, _: usize) {
                // All are, always.
            }
        }
    )+};
}

io_buf!(Page, Pages, VmallocBuf);

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use monoio::fs::File;
    use monoio::{IoUringDriver, RuntimeBuilder};

    use super::*;
    use crate::{Depot, Flags, MemoryKind, Order, Vmalloc};

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
    #[cfg_attr(miri, ignore = "io_uring")]
    fn a_ring_reads_into_pages_and_writes_from_them() {
        let mut runtime = match RuntimeBuilder::<IoUringDriver>::new().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("SKIPPED: this kernel makes no rings ({error})");
                return;
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
}
