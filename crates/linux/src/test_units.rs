//! Sizes for unit tests, in pages of the system that they run on, words that stay, and children.
#![allow(unsafe_code, reason = "forks")]

use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// Calls `child` in a forked child of one thread, and fails where it does.
pub fn in_child(child: impl FnOnce()) {
    // SAFETY: glibc lets a forked child of a program with threads allocate; the child ends here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let has_failed = catch_unwind(AssertUnwindSafe(child)).is_err();
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(has_failed)) };
    }
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed");
}
