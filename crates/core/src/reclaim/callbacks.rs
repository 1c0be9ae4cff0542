//! Reclaim callbacks: registration, the right to call one, and waiting for another caller's turn.
//!
//! # Vocabulary
//! * *place*: holds one callback, and the name of the caller that runs it (see
//!   [`Environment::caller`]).
//! * *turn*: one caller's run of one callback. [`Callbacks::turns`] counts those that have ended.
//!
//! # Theory
//! A place gets its callback once ([`LateInit`]). The right to run it is the place's `runner` word:
//! free (0), or the name of the one caller that runs it.
//!
//! | `runner` | meaning | transitions |
//! |---|---|---|
//! | 0 | free | -> a name, by that caller's compare-and-swap |
//! | a name | this caller runs it | -> 0 by that caller, which then adds to `turns` and wakes all |
//! | `usize::MAX` | a caller without a name runs it | as above |
//!
//! *Which caller runs which callback.* Each callback has a right of its own: a caller that is slow,
//! preempted or stopped in one callback keeps no other caller from the rest. Shared callbacks
//! ([`Reclaim::is_shared`]) have no right at all.
//!
//! *A request never waits for itself.* Code on top of a callback, called by it or in a signal
//! handler above it, has the name that stands in the place. The name is written by the same
//! operation that takes the right, so there is no moment in between. Such a request calls no
//! callbacks and waits for none. A caller without a name cannot tell its own turn from another's:
//! it waits for none.
//!
//! *No turn is missed.* A waiter reads `turns` (t), then finds the place taken, looks for pages,
//! and sleeps while `turns` is t. The runner frees the place first and adds to `turns` afterwards.
//! So the addition of the runner that the waiter found comes after t: had the waiter read that
//! addition, its Acquire would have shown it the place free of that runner. The waiter therefore
//! sees a change, or is woken by it.
//!
//! *No deadlock.* A caller in a callback waits for no turn, so no chain of waiters closes. A wait
//! is bounded all the same ([`last_resort`](super::last_resort)): a callback may wait for a lock
//! that a waiter holds.
use core::num::NonZeroUsize;

use crate::cpus::{Environment, elapsed_ms};
use crate::frame::ZoneId;
use crate::sync::late_init::LateInit;
use crate::sync::model::bound;
use crate::sync::prim::{AtomicU32, AtomicUsize, Ordering};

/// Callbacks an allocator can have.
const CALLBACKS_MAX: usize = bound(8, 2);

/// Calls of [`Environment::wait`] per wait, whatever the clock says.
const WAITS_MAX: u32 = bound(1 << 20, 1000);

/// The request of memory pressure to a reclaim callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The zone that runs short.
    pub zone: ZoneId,
    /// Pages that would end the shortage. Those of a contiguous range must lie side by side, which
    /// is why more may be asked for when as many have been freed.
    pub wanted_pages: u64,
    /// Whether a request is about to fail, rather than a watermark being passed.
    pub is_last_resort: bool,
}

/// Something that holds pages it can give up: a cache, a pool.
pub trait Reclaim: Sync {
    /// Frees pages back to the allocator; returns how many.
    ///
    /// Called from the slow path of a request that may reclaim, by one caller at a time unless
    /// [`is_shared`](Self::is_shared). Several callbacks may run at once, each for another caller.
    /// A callback may allocate, but its own requests call no callbacks.
    ///
    /// Other requests that run short meanwhile wait until the callback returns, up to a second. So
    /// it should not wait for a lock that callers hold while they allocate: it tries such a lock,
    /// and frees nothing if the lock is taken.
    ///
    /// If it panics, the panic goes through to the request that called it; the allocator stays
    /// sound and goes on.
    fn reclaim(&self, pressure: Pressure) -> u64;

    /// Whether several callers may be in [`reclaim`](Self::reclaim) at once. The answer never
    /// changes.
    ///
    /// For callbacks that only wait, for pages that are on their way back for example. Their own
    /// requests must be [`no_reclaim`](crate::Flags::no_reclaim): others would call them again.
    fn is_shared(&self) -> bool {
        false
    }
}

/// All places for callbacks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyCallbacks;

impl core::fmt::Display for TooManyCallbacks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{CALLBACKS_MAX} reclaim callbacks are registered already: combine some into one")
    }
}

impl core::error::Error for TooManyCallbacks {}

/// No caller runs the callback.
const FREE: usize = 0;
/// A caller that cannot be told from others.
const UNNAMED: usize = usize::MAX;

/// A place for a callback: at first without one.
#[derive(Default)]
struct Place<'m> {
    callback: LateInit<&'m dyn Reclaim>,
    /// The caller that runs it, see the module's table.
    runner: AtomicUsize,
}

impl Place<'_> {
    fn runner(&self) -> usize {
        // Relaxed: a caller finds its own name because it wrote it itself; what another caller does
        // is ordered by `turns`.
        self.runner.load(Ordering::Relaxed)
    }
}

/// The result of calling all callbacks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CallOutcome {
    /// Each was called.
    Done,
    /// Some said that they had freed pages; others may have been left out for that.
    Claimed,
    /// Another caller runs one of them, which was left out.
    OneIsRunning,
    /// This caller runs one, and so called none.
    FromWithin,
    /// A caller without a name runs one, and this one has none either: it may be the same. None was
    /// called.
    Unknown,
}

/// Registered callbacks.
#[derive(Default)]
pub(crate) struct Callbacks<'m> {
    places: [Place<'m>; CALLBACKS_MAX],
    /// Turns that have ended; wraps around. Waiters sleep on it.
    turns: AtomicU32,
}

/// The right to run a callback; given up also when the callback unwinds.
struct Turn<'t, 'm, E: Environment> {
    place: &'t Place<'m>,
    turns: &'t AtomicU32,
    environment: &'t E,
}

impl<E: Environment> Drop for Turn<'_, '_, E> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next runner of this place.
        self.place.runner.store(FREE, Ordering::Release);
        // Release: pairs with the Acquire of waiters, which then find what the callback freed.
        self.turns.fetch_add(1, Ordering::Release);
        self.environment.wake_all(self.turns);
    }
}

impl<'m> Callbacks<'m> {
    pub fn register(&self, callback: &'m dyn Reclaim) -> Result<(), TooManyCallbacks> {
        // A place that another call fills at this moment is taken.
        let takes = |place: &Place<'m>| place.callback.init(|| Ok::<_, ()>(callback)).is_ok();
        self.places.iter().any(takes).then_some(()).ok_or(TooManyCallbacks)
    }

    /// Turns that have ended so far: to be read before a round looks for pages.
    pub fn turns(&self) -> u32 {
        // Acquire: pairs with the Release in `Turn::drop`.
        self.turns.load(Ordering::Acquire)
    }

    /// The name of the caller.
    ///
    /// # Errors
    /// The outcome of a call by one that runs a callback itself, or may.
    pub fn caller<E: Environment>(&self, environment: &E) -> Result<usize, CallOutcome> {
        let caller = environment.caller().map_or(UNNAMED, NonZeroUsize::get);
        match self.places.iter().any(|place| place.runner() == caller) {
            false => Ok(caller),
            true if caller == UNNAMED => Err(CallOutcome::Unknown),
            true => Err(CallOutcome::FromWithin),
        }
    }

    /// Calls callbacks until they have freed what is wanted, or all of them if `all`.
    pub fn call<E: Environment>(
        &self,
        environment: &E,
        pressure: Pressure,
        all: bool,
    ) -> CallOutcome {
        let caller = match self.caller(environment) {
            Ok(caller) => caller,
            Err(outcome) => return outcome,
        };
        let (mut called, mut wanted_pages) = (CallOutcome::Done, pressure.wanted_pages);
        for place in &self.places {
            let Some(callback) = place.callback.get() else { continue };
            if wanted_pages == 0 && !all {
                // Not called, but a request must know that more may come.
                if place.runner() != FREE {
                    called = CallOutcome::OneIsRunning;
                }
                continue;
            }
            let turn =
                if callback.is_shared() { None } else { self.begin(environment, place, caller) };
            if turn.is_none() && !callback.is_shared() {
                called = CallOutcome::OneIsRunning;
                continue;
            }
            let freed = callback.reclaim(Pressure { wanted_pages, ..pressure });
            drop(turn);
            called = called.max(if freed > 0 { CallOutcome::Claimed } else { called });
            wanted_pages = wanted_pages.saturating_sub(if all { 0 } else { freed });
        }
        called
    }

    fn begin<'t, E: Environment>(
        &'t self,
        environment: &'t E,
        place: &'t Place<'m>,
        caller: usize,
    ) -> Option<Turn<'t, 'm, E>> {
        // Acquire: pairs with the Release of the last runner.
        let taken =
            place.runner.compare_exchange(FREE, caller, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: dropping the right of a caller that never had it would end another's.
        taken.is_ok().then(|| Turn { place, turns: &self.turns, environment })
    }

    /// Sleeps until more turns than `seen` have ended, about `limit_ms` milliseconds at most;
    /// whether more have.
    pub fn wait_for_turn<E: Environment>(&self, environment: &E, seen: u32, limit_ms: u32) -> bool {
        let began_ms = environment.now_ms();
        for waits in 0..WAITS_MAX {
            if self.turns() != seen {
                return true;
            }
            let waited_ms = elapsed_ms(environment, began_ms, waits);
            if waited_ms >= limit_ms {
                return false;
            }
            environment.wait(&self.turns, seen, limit_ms - waited_ms);
        }
        false
    }
}
