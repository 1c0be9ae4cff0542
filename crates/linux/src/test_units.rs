//! Sizes for unit tests, in pages of the system that they run on, and words that stay.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use crate::builder::default_page_size;

/// Bytes of a page of a depot whose builder names no size.
pub fn page_bytes() -> usize {
    default_page_size().bytes()
}

/// Bytes of 256 pages: a MiB where a page has 4 KiB.
pub fn mib() -> usize {
    256 * page_bytes()
}

/// Words that are zero, for the rest of the program. Miri sees that they are not lost.
pub fn zeroed_words(count: usize) -> &'static [AtomicU64] {
    static KEPT: Mutex<Vec<&[AtomicU64]>> = Mutex::new(Vec::new());
    let words: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let words: &[AtomicU64] = words.leak();
    KEPT.lock().unwrap().push(words);
    words
}
