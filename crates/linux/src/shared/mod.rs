//! A depot in a segment that several processes share, and that survives any of them.
//!
//! ```
//! use pagedepot_linux::Order;
//! use pagedepot_linux::shared::{SharedDepot, SharedOptions};
//!
//! let depot = SharedDepot::create_memfd("pool", &SharedOptions::new(64 << 20))?;
//! // Another process does this with a descriptor that it was sent, or `open`s a file.
//! let other = SharedDepot::adopt(depot.file(), &SharedOptions::join())?;
//! let mine = depot.page(Order::BASE)?;
//! let theirs = other.page(Order::BASE)?;
//! assert_ne!(mine.pfn(), theirs.pfn());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is shared
//! | what | where | reached by |
//! |---|---|---|
//! | pages | the segment, by number and offset | all |
//! | the store: a byte for each page, which says whose it is | the segment | all, by compare-and-swap |
//! | slots: a process each | the segment | all |
//! | fronts, shelves, gates, counts: an allocator | each process's own memory | its own threads, by restartable sequences |
//!
//! The fast paths are those of a [`Depot`](crate::Depot), and touch nothing that is shared.
//!
//! # What happens when a process dies
//! The pages of a process are those whose byte has its slot, whatever it did with them: any
//! survivor frees them ([`SharedDepot::recover`]), which a request does before it fails, and a
//! process that opens the segment. No daemon is needed, and no step has to be finished for the
//! dead: each is one atomic operation. `owners.rs` and `slots.rs` have the argument.
//!
//! A process can name an heir ([`SharedDepot::set_heir`]): then its pages go to the process that
//! [inherits](SharedDepot::inherit) them, with their contents, at once or when the file is opened
//! again.
//!
//! # What is promised of a file
//! After all processes have ended, whatever way, the file is a segment that can be opened: contents
//! of pages are in it, and all that was held is free. After the machine was reset this holds where
//! the file system had written all pages of the segment's head in the state of one moment. No file
//! system promises that without `msync`, which this crate does not call: then the head may be torn.
//! A torn table is still a table, in which pages are free, or of processes that are dead. So
//! opening such a file succeeds, or fails by an error; the contents of its pages may be of any
//! moment.
//!
//! A file can be cut by any process that may write to it. Opening it fails then, but processes that
//! have it open end by a SIGBUS when they come behind its end, as with any file that is mapped. A
//! memory file is sealed against that.
//!
//! # Trust
//! A process that can write to the segment can write to all its pages, and can take any of them.
//! It cannot make another's code leave the segment: no number that is read from it is an address or
//! an index, lengths come from the file, and a memory file is sealed. A `&[u8]` of a page is valid
//! as long as no other process writes to it: processes that do not keep to the protocol break what
//! Rust promises of contents.

mod awaited;
mod depot;
mod error;
mod heirs;
mod layout;
mod members;
mod messages;
mod owners;
mod process;
mod segment;
mod sent;
mod shortage;
mod slots;
mod store;

pub use depot::{GlobalDrain, ProcessStats, SegmentStats, SharedDepot, SharedOptions};
pub use error::SegmentError;
pub use heirs::Inheritance;
pub use members::{Orphans, Recovery};
pub use messages::SentPage;
pub use sent::ClaimError;
