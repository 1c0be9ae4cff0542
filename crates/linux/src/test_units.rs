//! Sizes for unit tests, in pages of the system that they run on.

use crate::builder::default_page_size;

/// Bytes of a page of a depot whose builder names no size.
pub fn page_bytes() -> usize {
    default_page_size().bytes()
}

/// Bytes of 256 pages: a MiB where a page has 4 KiB.
pub fn mib() -> usize {
    256 * page_bytes()
}
