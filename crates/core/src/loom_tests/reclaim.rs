//! 1. A caller that finds another one in a callback sleeps until that turn ends, and then sees what
//!    the callback did: no wake-up is lost, whether the callback returns or unwinds. Without the
//!    wake-up that is not so.
//! 2. A callback is run by one caller at a time, also while it is being registered; a shared one by
//!    many.
//! 3. Two requests whose pages are in a cache are both served, whichever runs the callback.
//!
//! Sleeping has no time-out here: a waiter that nothing wakes is a deadlock, which loom reports.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

use super::depot::{Depot, Setup};
use super::{explore, explore_large};
use crate::cpus::{Change, Cpus, Environment, FenceError, Here};
use crate::front::{BlockArray, WordOffset};
use crate::reclaim::callbacks::{CallOutcome, Callbacks};
use crate::sync::prim::{AtomicBool, AtomicU32, Ordering};
use crate::{CpuId, Pfn, Pressure, Reclaim, ZoneId};

const ONE: Pressure = Pressure { zone: ZoneId::new(0), wanted_pages: 1, is_last_resort: true };

loom::thread_local! {
    static NAME: Cell<usize> = Cell::new(1);
}

/// Threads that are on no CPU of the allocator, have names, and sleep.
struct Sleepers {
    bed: Mutex<()>,
    woken: Condvar,
    is_mute: bool,
}

impl Sleepers {
    fn new(is_mute: bool) -> Self {
        Sleepers { bed: Mutex::new(()), woken: Condvar::new(), is_mute }
    }
}

// SAFETY: no sequence commits.
unsafe impl Cpus for Sleepers {
    type Environment = Self;

    fn environment(&self) -> &Self {
        self
    }

    fn here(&self) -> Option<Here> {
        None
    }

    fn pop(&self, _blocks: &BlockArray, _word: WordOffset) -> Option<u32> {
        None
    }

    fn push(&self, _blocks: &BlockArray, _word: WordOffset, _rounds_max: u32, _frame: u32) -> bool {
        false
    }

    fn commit(&self, _: &BlockArray, _: Here, _: Change<'_>) -> bool {
        false
    }

    fn fence(&self, _blocks: &BlockArray, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

impl Environment for Sleepers {
    fn caller(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(NAME.with(Cell::get))
    }

    fn wait(&self, word: &AtomicU32, seen: u32, _limit_ms: u32) {
        let bed = self.bed.lock().unwrap();
        // As a futex: nothing comes between this look and the sleep.
        if word.load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(bed).unwrap());
        }
    }

    fn wake_all(&self, _word: &AtomicU32) {
        if !self.is_mute {
            let _bed = self.bed.lock().unwrap();
            self.woken.notify_all();
        }
    }
}

/// Notes that it ran, and that it ran alone.
struct Alone {
    inside: AtomicU32,
    has_run: AtomicBool,
    is_shared: bool,
    unwinds: bool,
}

impl Alone {
    fn new(is_shared: bool, unwinds: bool) -> &'static Self {
        let inside = AtomicU32::new(0);
        Box::leak(Box::new(Alone { inside, has_run: AtomicBool::new(false), is_shared, unwinds }))
    }
}

impl Reclaim for Alone {
    fn reclaim(&self, _: Pressure) -> u64 {
        let others = self.inside.fetch_add(1, Ordering::Relaxed);
        assert!(others == 0 || self.is_shared, "two callers run one callback");
        // Relaxed: what orders it for a waiter is the turn.
        self.has_run.store(true, Ordering::Relaxed);
        self.inside.fetch_sub(1, Ordering::Relaxed);
        if self.unwinds {
            std::panic::resume_unwind(Box::new(()));
        }
        0
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}

struct Stage {
    callbacks: Callbacks<'static>,
    cpus: Sleepers,
}

// SAFETY: as the allocator that has the callbacks otherwise: places are written before they are
// ready.
unsafe impl Sync for Stage {}
// SAFETY: as above.
unsafe impl Send for Stage {}

/// Two callers beside each other; the one that finds the other in the callback waits for its turn.
fn two_callers(is_mute: bool, unwinds: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let stage =
            Arc::new(Stage { callbacks: Callbacks::default(), cpus: Sleepers::new(is_mute) });
        let callback = Alone::new(false, unwinds);
        stage.callbacks.register(callback).unwrap();
        let call = move |stage: &Stage| {
            let seen = stage.callbacks.turns();
            let called =
                catch_unwind(AssertUnwindSafe(|| stage.callbacks.call(&stage.cpus, ONE, true)));
            match called {
                Ok(CallOutcome::Done) | Err(_) => {}
                Ok(CallOutcome::OneIsRunning) => {
                    assert!(stage.callbacks.wait_for_turn(&stage.cpus, seen, u32::MAX));
                    assert!(
                        callback.has_run.load(Ordering::Relaxed),
                        "a turn that did nothing ended"
                    );
                }
                Ok(other) => panic!("{other:?}"),
            }
        };
        let other = stage.clone();
        let handle = loom::thread::spawn(move || {
            NAME.with(|name| name.set(2));
            call(&other);
        });
        call(&stage);
        handle.join().unwrap();
        // The right is free again.
        if !unwinds {
            assert_eq!(stage.callbacks.call(&stage.cpus, ONE, true), CallOutcome::Done);
        }
    }
}

#[test]
fn no_turn_is_missed() {
    explore(two_callers(false, false));
}

#[test]
fn no_turn_is_missed_that_unwinds() {
    explore(two_callers(false, true));
}

#[test]
#[should_panic = "deadlock"]
fn no_turn_is_missed_without_waking() {
    explore(two_callers(true, false));
}

/// A callback is being registered while others call.
#[test]
fn registered_while_called() {
    explore(|| {
        let stage = Arc::new(Stage { callbacks: Callbacks::default(), cpus: Sleepers::new(false) });
        let (alone, shared) = (Alone::new(false, false), Alone::new(true, false));
        let other = stage.clone();
        let handle = loom::thread::spawn(move || {
            NAME.with(|name| name.set(2));
            other.callbacks.register(alone).unwrap();
            other.callbacks.register(shared).unwrap();
            let called = other.callbacks.call(&other.cpus, ONE, true);
            assert!(shared.has_run.load(Ordering::Relaxed));
            assert!(called == CallOutcome::OneIsRunning || alone.has_run.load(Ordering::Relaxed));
        });
        let called = stage.callbacks.call(&stage.cpus, ONE, true);
        assert!(matches!(called, CallOutcome::Done | CallOutcome::OneIsRunning));
        handle.join().unwrap();
    });
}

/// Gives up one frame per call.
struct Cache {
    depot: Arc<Depot<Sleepers>>,
    frames: Mutex<Vec<Pfn>>,
}

impl Reclaim for Cache {
    fn reclaim(&self, _: Pressure) -> u64 {
        let Some(frame) = self.frames.lock().unwrap().pop() else { return 0 };
        self.depot.free(frame);
        1
    }
}

#[test]
fn two_requests_and_a_cache() {
    explore_large(|| {
        let depot =
            Depot::new(&Setup { cpus: 1, frames: 2, ..Setup::default() }, Sleepers::new(false));
        let frames = [0; 2].map(|_| depot.alloc().unwrap()).to_vec();
        let cache = Cache { depot: depot.clone(), frames: Mutex::new(frames) };
        let cache: *mut Cache = Box::into_raw(Box::new(cache));
        // SAFETY: freed below, after the last request.
        depot.allocator.register_reclaim(unsafe { &*cache }).unwrap();
        let other = depot.clone();
        let handle = loom::thread::spawn(move || {
            NAME.with(|name| name.set(2));
            other.alloc().expect("the cache has two");
        });
        depot.alloc().expect("the cache has two");
        handle.join().unwrap();
        // SAFETY: from `into_raw`; no request follows.
        drop(unsafe { Box::from_raw(cache) });
        depot.finish();
    });
}
