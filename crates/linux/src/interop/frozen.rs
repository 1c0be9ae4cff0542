//! Pages as [`Bytes`], without a copy (feature `bytes`).
//!
//! ```
//! use bytes::Bytes;
//! use pagedepot_linux::{Depot, Order};
//!
//! let mut page = Depot::new(1 << 20)?.page(Order::BASE)?;
//! page[..5].copy_from_slice(b"hello");
//! let frozen: Bytes = page.freeze();
//! let (head, tail) = (frozen.slice(..5), frozen.slice(5..)); // shares of the same page
//! drop(frozen);
//! assert_eq!((&head[..], tail.len()), (&b"hello"[..], 4091));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! The page is freed when the last share of it is dropped. Making the first share costs a small
//! allocation from the heap, and each further one an atomic operation.

use bytes::Bytes;

use crate::pages::page::{Page, Pages};
use crate::vmalloc::VmallocBuf;

macro_rules! freeze {
    ($($type:ty),+) => {$(
        impl $type {
            /// Turns the page into its bytes, to be shared and no longer written, without a copy.
            pub fn freeze(self) -> Bytes {
                Bytes::from_owner(self)
            }
        }

        impl From<$type> for Bytes {
            fn from(pages: $type) -> Bytes {
                pages.freeze()
            }
        }
    )+};
}

freeze!(Page, Pages, VmallocBuf);
