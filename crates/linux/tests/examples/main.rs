//! The crate's examples: each runs, some under valgrind, and a shared object is closed.

#[path = "../common/examples.rs"]
mod files;
mod run;
#[path = "../../../core/tests/common/skip.rs"]
mod skip;
mod unload;
mod valgrind;
