//! Giving the memory of free pages back to the system, and keeping pages from the allocator.

pub(crate) mod balloon;
pub(crate) mod bell;
pub(crate) mod callbacks;
pub(crate) mod ceiling;
pub(crate) mod discard;
pub(crate) mod gaps;
pub(crate) mod reporting;
pub(crate) mod request;
pub(crate) mod returnable;
pub(crate) mod shrinkers;
pub(crate) mod system;
pub(crate) mod trim;
pub(crate) mod trim_state;
