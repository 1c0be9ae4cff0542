//! The seam between the allocator and the system that runs it: on which CPU code runs, and how it
//! reaches that CPU's fronts without other code of the CPU in between.
//!
//! # Vocabulary
//! * *sequence*: load gate, load word, touch one slot, store word. It either commits by its one
//!   last store or has no effect on the word. Nothing else that runs on the same CPU and context
//!   may come between its loads and its store.
//! * *fence a CPU*: after [`Cpus::fence`] returns, a sequence that began on that CPU before the
//!   call has either committed, and its stores are visible to the caller, or never commits.
//! * *context*: [`Context::Task`] or [`Context::Interrupt`]. Each has fronts of its own, so that an
//!   interrupt handler that lands between a sequence's load and store finds other magazines.
//!
//! # Implementations
//! | type | exclusion | fence |
//! |---|---|---|
//! | that of `pagedepot-linux` | by CPU: the kernel restarts the sequence, or a lock | `membarrier`, or that lock |
//! | [`PinnedCpus`] | an embedding kernel's guard: no preemption, one context | the kernel's own |
//! | [`LockedCpus`] | a lock per CPU | taking that lock |

mod environment;
pub mod implement;
mod locked;
pub(crate) mod sequence;

pub use crate::front::{Context, Here};
pub(crate) use environment::elapsed_ms;
pub use environment::{Change, Cpus, Environment, Event, FenceError, Transfer, Unusable};
pub use locked::{CpuLock, LockedCpus, WhichCpu};
pub use sequence::{Guard, PinnedCpus, Processor};
