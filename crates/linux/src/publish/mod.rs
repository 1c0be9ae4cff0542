//! Showing a running program's depot to other programs of its user: `pagedepot top` (feature
//! `publish`).
//!
//! ```
//! use std::time::Duration;
//! use pagedepot_linux::Depot;
//! use pagedepot_linux::publish::{Publisher, Reader};
//!
//! let depot = Depot::new(64 << 20)?;
//! # let directory = std::env::temp_dir();
//! # let publisher = Publisher::new(&depot).directory(&directory);
//! # #[cfg(any())]
//! let publisher = Publisher::new(&depot);
//! let published = publisher.start()?; // until it is dropped
//!
//! // In another program, or by `pagedepot top`:
//! let mut reader = Reader::open(published.path())?;
//! let seen = reader.refresh(Duration::from_secs(5))?;
//! assert_eq!(seen.bytes, 64 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The file
//! Statistics lie in a file in shared memory: in `$XDG_RUNTIME_DIR`, or in `/dev/shm` where there
//! is none. Its owner alone may open it (mode 0600), and its name is `pagedepot-PID-N.stats`. N is
//! 0 if that is free, and a random number if the first few are taken.
//!
//! | bytes | written by | what |
//! |---|---|---|
//! | 0..32 | the program, once | magic, version, process id, the time that the process began |
//! | 32..40 | the program | sequence number, odd while a snapshot is taken and written |
//! | 40..56 | the program | bytes of the snapshot; the last request that was answered |
//! | 64..88 | a reader | a request: its number, kind and CPU |
//! | 4096.. | the program | a [`Snapshot`] in JSON |
//!
//! # What it costs the program
//! A thread, which sleeps in the kernel (inotify) until a reader *opens* the file. It then writes
//! one snapshot and sleeps again: a reader opens the file anew for each look. Without a reader
//! nothing runs.
//!
//! # What a reader can do
//! A process that may open the file runs as the same user (or as root), and could as well stop or
//! trace the program. The file still gives little away to mistakes: neither side maps it, so no
//! truncation ends in `SIGBUS`; the program reads nothing of it but a request, whose only kinds are
//! drains; and what a reader finds is checked ([`ReadError`]).

mod board;
mod error;
mod files;
mod header;
mod process;
mod publisher;
mod reader;
mod snapshot;
#[cfg(test)]
mod tests;

pub use error::{Defect, PublishError, ReadError};
pub use header::Request;
pub use publisher::{Publication, Publisher};
pub use reader::{PublishedFile, Reader, find};
pub use snapshot::{DrainAnswer, Snapshot};
