//! A simulated machine: up to 512 CPUs with caches, on one host thread.
//!
//! Code that takes its atomics, locks and spin loops from here runs as a *task* on a virtual CPU,
//! and each access costs simulated time as [`lines`] says. Outside of [`run`] the types behave as
//! those of the standard library do on one thread.
//!
//! | module | what |
//! |---|---|
//! | `costs` | what accesses cost, where CPUs are |
//! | [`lines`] | the model of cache lines |
//! | `schedule` | which task runs next: in simulated time, or by chance |
//! | `engine` | tasks, preemption, interrupts, sequences, waiting |
//! | [`atomic`], [`lock`] | atomics and a mutex for simulated code |
//! | [`mutant`] | steps that simulated code leaves out, so that a test sees what its checks find |
#![deny(unsafe_code)]

pub mod atomic;
mod costs;
mod engine;
pub mod lines;
pub mod lock;
pub mod mutant;
mod schedule;

pub use costs::{CPUS_MAX, Costs, STORES_MAX};
pub use engine::{
    Disturbances, Done, Search, Setup, access, barrier, begin_sequence, commit, costs, cpu,
    end_sequence, fence, fence_all, hand_over, now_ps, on_cpu, queue_for, read_clock, run, search,
    sleep_until, slow_step, spin, touch, touch_object, tree_step, wait_at, wait_begins, wait_ends,
    waited_ps, wake_all, wake_one, work, yield_now,
};
pub use lines::Access;
pub use schedule::Schedule;
