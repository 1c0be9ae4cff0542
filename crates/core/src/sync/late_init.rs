//! A value that is made later than the place that holds it. Any number of callers may try to make
//! it; one does, and none waits.
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `EMPTY` | no value | `BUSY`, by the caller that is going to make it |
//! | `BUSY` | a caller is making it | `READY`; `EMPTY` if that failed or panicked |
//! | `READY` | the value is there for good | none |
//!
//! # Argument
//! 1. The compare-and-swap from `EMPTY` to `BUSY` elects one maker. Only the maker writes the
//!    value, and only in `BUSY`.
//! 2. Readers touch the value in `READY` alone. The maker's store of `READY` releases what it
//!    wrote, and the reader's load acquires it.
//! 3. No transition leaves `READY`, so a reference stays valid while the place lives.
//! 4. A caller that finds `BUSY` gets an error at once. It may be an interrupt handler that
//!    interrupted the maker, so waiting would never end.
#![allow(unsafe_code, reason = "reads a value that an atomic state says is made")]

use core::mem::MaybeUninit;

use super::model::{Mutant, is_mutant};
use super::prim::{AtomicU32, Ordering, UnsafeCell};

const EMPTY: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// The reason why a call made no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMade<E> {
    /// The value has been made already.
    Ready,
    /// Another caller is making one.
    Busy,
    /// Making it failed.
    Failed(E),
}

/// A place for a value that is made later; see the module.
pub struct LateInit<T> {
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value moves in from the maker's thread (`Send`) and is then shared (`Sync`).
unsafe impl<T: Send + Sync> Sync for LateInit<T> {}
// SAFETY: owns the value.
unsafe impl<T: Send> Send for LateInit<T> {}

impl<T> LateInit<T> {
    /// A place without a value.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        LateInit { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Makes an empty place, not `const`: loom's atomics cannot be made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        LateInit { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The value, once there is one: a load and a branch that is always predicted.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release in `init`, publishes the value.
        if self.state.load(Ordering::Acquire) != READY {
            core::hint::cold_path();
            return None;
        }
        // SAFETY: written before READY, and never again (see the argument).
        Some(self.value.with(|value| unsafe { (*value).assume_init_ref() }))
    }

    /// Makes the value, unless there is one or another caller is making it.
    ///
    /// # Errors
    /// Why this call made no value. `make` is called only by the caller that is elected.
    pub fn init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, NotMade<E>> {
        // Acquire: pairs with the Release of a maker that failed. Relaxed on failure: nothing is
        // read.
        let elected =
            self.state.compare_exchange(EMPTY, BUSY, Ordering::Acquire, Ordering::Relaxed);
        match elected {
            Ok(_) => {}
            Err(READY) => return Err(NotMade::Ready),
            Err(_) => return Err(NotMade::Busy),
        }
        let mut turn = Turn { state: &self.state, after: EMPTY };
        let made = make().map_err(NotMade::Failed)?;
        // SAFETY: the one maker, and no reader before READY.
        let value = self.value.with_mut(|value| unsafe { (*value).write(made) as *const T });
        turn.after = READY;
        drop(turn);
        // SAFETY: written above, and never again.
        Ok(unsafe { &*value })
    }
}

impl<T> Default for LateInit<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for LateInit<T> {
    fn drop(&mut self) {
        // Relaxed: `&mut self` excludes all others.
        if self.state.load(Ordering::Relaxed) == READY {
            // SAFETY: written, and dropped once.
            self.value.with_mut(|value| unsafe { (*value).assume_init_drop() });
        }
    }
}

/// The right to make the value. Dropping it ends the turn, also when `make` panics.
struct Turn<'s> {
    state: &'s AtomicU32,
    after: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if is_mutant(Mutant::PublishesRelaxed) {
            self.state.store(self.after, Ordering::Relaxed);
            return;
        }
        // Release: pairs with the Acquire in `get`, and in `init` of the next maker.
        self.state.store(self.after, Ordering::Release);
    }
}
