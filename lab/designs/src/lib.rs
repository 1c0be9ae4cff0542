//! The designs that linux-mm threads propose for keeping CPUs off the zone lock, beside those of
//! [`pagedepot_designs`]: real implementations behind its trait
//! [`PageCache`](pagedepot_designs::PageCache), made of its parts. Its page has the vocabulary.
//!
//! # Designs
//! | type | caches | a drain |
//! |---|---|---|
//! | [`Local`] | a pcp that only its owner touches | is work that the owner does, or that a helper does on the owner's CPU |
//! | [`NohzConditional`] | one switch for the whole machine: as `Local`, or as `Spin` | as theirs |
//! | [`Qpw`] | for each CPU as `Local`, or as `Spin` whose owner waits | as theirs |
//! | [`PcpBuddy`] | a pcp behind a spinlock, which splits and merges the pageblocks that its CPU owns; frees go to the owner's | takes the locks |
//! | [`Rcu`] | a pcp behind a pointer | switches the pointers of all CPUs, waits for a grace period, and drains; or collects later |
//! | [`Magazine`] | magazines that CPUs share, each behind a spinlock | takes the locks |
//!
//! `Local`, `NohzConditional`, `Qpw` and `Rcu` use the same lists and the same policy
//! (mainline's, [`Policy`](pagedepot_designs::Policy)) as `Spin`. So a comparison shows only which
//! code may touch the lists, and how they are drained. `PcpBuddy` has the policy, and lists of its
//! own. `Magazine` has the lists and the policy of the 2013 prototype. Module [`vmap`] has what the
//! kernel manages address space with.
//!
//! # Acting as a CPU
//! Designs whose owners take no lock ([`Local`], [`Rcu`]) must know what excludes other owners: see
//! [`Entry`].

#[cfg(any(not(loom), test))]
mod left;
#[cfg(all(test, loom))]
mod loom_tests;
mod owned_lists;
mod owners;
#[cfg(not(loom))]
#[cfg_attr(feature = "simulated", path = "simulated/rseq.rs")]
mod rseq;

mod local;
mod magazine;
mod nohz;
mod pcp_buddy;
mod qpw;
mod rcu;

#[cfg(not(loom))]
pub mod vmap;

pub use local::{Local, LocalDrain};
pub use magazine::{Magazine, MagazineOptions, ProcessMagazine};
pub use nohz::NohzConditional;
pub use owners::Entry;
pub use pcp_buddy::PcpBuddy;
pub use qpw::Qpw;
pub use rcu::{Grace, Rcu};

/// The README's program, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
