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

use crate::pages::page::{Page, Pages};
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
