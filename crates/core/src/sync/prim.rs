//! The one seam for atomics and spinning.
//!
//! | build | atomics |
//! |---|---|
//! | production | `core`'s |
//! | `--cfg loom` | `loom`'s |
//! | `--cfg shuttle` | `core`'s, with a scheduling point before each access |
//! | the package `pagedepot-sim-core`, by its feature `simulated` | the simulated machine's |
//!
//! No other module of this crate names `core::sync::atomic` or `core::hint::spin_loop`, so that a
//! model checker and the simulator see every shared access. Code uses relaxed atomics where another
//! language would use plain loads and stores: they compile to the same instructions, and a race on
//! them is defined.
//!
//! | | interleavings | orderings | constants and layout |
//! |---|---|---|---|
//! | loom | all, with a few preemptions | C11's | shrunken |
//! | shuttle | random and PCT schedules | sequentially consistent | production's |
//! | simulated | one per seed: by simulated time, random or PCT | sequentially consistent | production's |

#[cfg(not(any(loom, shuttle, feature = "simulated")))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

#[cfg(feature = "simulated")]
pub use pagedepot_sim_machine::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

#[cfg(shuttle)]
pub use scheduled::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

/// A cell whose accesses loom checks for races, with the same interface elsewhere.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to read through.
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to read and write through.
    #[inline]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Tells the processor that this is a spin loop; under a model checker, lets another thread run.
#[inline]
pub fn spin_hint() {
    #[cfg(not(any(loom, shuttle, feature = "simulated")))]
    core::hint::spin_loop();
    #[cfg(feature = "simulated")]
    pagedepot_sim_machine::spin();
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

#[cfg(shuttle)]
#[path = "../shuttle_tests/scheduled.rs"]
mod scheduled;
