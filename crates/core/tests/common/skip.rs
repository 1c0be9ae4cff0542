//! The word of a test that cannot check something here.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

/// Says what is not tested, past the harness, which keeps what the print macros say in a test that
/// passes.
///
/// # Panics
/// Where `PAGEDEPOT_NO_SKIPS` is set.
pub fn skip(why: impl Display) {
    assert!(std::env::var_os("PAGEDEPOT_NO_SKIPS").is_none(), "not tested: {why}");
    let thread = std::thread::current();
    // A thread has its test's name, unless one runs after the other.
    let test = thread.name().filter(|&name| name != "main");
    let test = test.map(|name| format!("{name}: ")).unwrap_or_default();
    let line = format!("\nSKIPPED: {test}{why}\n");
    // Without the lock of `Stderr`, which another thread may have had when a child was forked.
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    _ = stderr.and_then(|stderr| File::from(stderr).write_all(line.as_bytes()));
}
