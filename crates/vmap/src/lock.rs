//! A lock whose waiters may sleep. It protects the parts that are rarely used: the free address
//! space and the purge.
//!
//! | word | meaning | transitions |
//! |---|---|---|
//! | 0 | free | -> 1 by compare-and-swap, -> 2 by a waiter's exchange |
//! | 1 | held | -> 0 by its holder, -> 2 by a waiter's exchange |
//! | 2 | held, and a waiter may sleep | -> 0 by its holder, who then wakes one |
//!
//! After Drepper, "Futexes Are Tricky" (2011), mutex 2. The [`Host`] says how to sleep.
//!
//! # Waiting in bounds
//! Reclaim under memory pressure, and a free, may run in a signal handler above a holder of its own
//! thread, or beside a holder that was stopped. They take locks by [`Lock::lock_within`]: not at
//! all if this thread holds the lock ([`Host::caller`]), and otherwise after a second of waiting at
//! most. The holder writes its name after it took the lock and wipes it before it unlocks. A
//! handler that runs in between finds no name, and waits that second. A waiter that gives up leaves
//! the lock at 2 and always looks once more after it slept: it either uses the wake-up that it got,
//! or the holder it saw passes one on.

use crate::model;
use crate::seams::host::Host;
use pagedepot::sync::prim::{AtomicU32, AtomicUsize, Ordering, spin_hint};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// Loads of a taken lock's word before its waiter sleeps: they take about as long as going to sleep
/// (Karlin et al., "Empirical Studies of Competitive Spinning", 1991).
const SPINS: u32 = model::scaled(40, 0);

/// Number of times that a waiter in bounds sleeps.
pub const NAPS: u32 = model::scaled(100, 1);
/// Longest sleep of a waiter in bounds.
const NAP_MS: u32 = 10;

/// The patience of a caller for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// The caller waits until the lock is free.
    Long,
    /// The caller waits for about a second, and not at all if its own thread holds the lock:
    /// [`Lock::lock_within`].
    InBounds,
    /// The caller does not wait.
    Never,
}

impl Waits {
    /// The way of a request that may wait, or may not.
    pub fn of(no_wait: bool) -> Self {
        if no_wait { Waits::Never } else { Waits::Long }
    }
}

/// A lock, on its own cache lines.
#[repr(align(128))]
pub struct Lock {
    word: AtomicU32,
    /// The holder's name from [`Host::caller`]; 0 if it has none, or the lock is free.
    holder: AtomicUsize,
    /// Number of waiters that spin at this moment.
    watchers: AtomicU32,
}

/// Proof that a [`Lock`] is held. Dropping it unlocks.
pub struct LockGuard<'l, H: Host + ?Sized> {
    lock: &'l Lock,
    host: &'l H,
}

impl Lock {
    /// A free lock.
    #[allow(clippy::new_without_default, reason = "a lock comes with what it protects")]
    pub fn new() -> Self {
        Lock {
            word: AtomicU32::new(FREE),
            holder: AtomicUsize::new(0),
            watchers: AtomicU32::new(0),
        }
    }

    /// Takes the lock if it is free; never waits.
    #[inline]
    pub fn try_lock<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Option<LockGuard<'l, H>> {
        self.take_free().then(|| self.taken(host))
    }

    /// The guard of a lock that this thread has just taken.
    #[inline]
    fn taken<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> LockGuard<'l, H> {
        if let Some(name) = host.caller() {
            // Relaxed: read by signal handlers of this thread.
            self.holder.store(name.get(), Ordering::Relaxed);
        }
        LockGuard { lock: self, host }
    }

    /// Takes the lock. Waits until it is free.
    #[inline]
    pub fn lock<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> LockGuard<'l, H> {
        if !self.take_free() {
            self.wait_for(host);
        }
        self.taken(host)
    }

    /// Takes the lock, after a second of waiting at most. `None`: it was not free in that time, or
    /// this thread holds it; see the head of the module.
    pub fn lock_within<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Option<LockGuard<'l, H>> {
        if self.take_free() {
            return Some(self.taken(host));
        }
        // Relaxed: this thread's own store, or that of another thread, which differs.
        let holder = self.holder.load(Ordering::Relaxed);
        if host.caller().is_some_and(|name| name.get() == holder) {
            return None;
        }
        host.contention_begins();
        let mut naps = 0;
        // As in `wait_for`; the last exchange comes after the last nap.
        let mut is_taken =
            self.watch() && self.take_free() || self.word.swap(AWAITED, Ordering::Acquire) == FREE;
        while !is_taken && naps < NAPS {
            host.wait_at_most(&self.word, AWAITED, NAP_MS);
            is_taken = self.word.swap(AWAITED, Ordering::Acquire) == FREE;
            naps += 1;
        }
        host.contention_ends();
        is_taken.then(|| self.taken(host))
    }

    /// Takes the lock if it comes free while the caller `waits`.
    pub fn lock_as<'l, H: Host + ?Sized>(
        &'l self,
        host: &'l H,
        waits: Waits,
    ) -> Option<LockGuard<'l, H>> {
        match waits {
            Waits::Long => Some(self.lock(host)),
            Waits::InBounds => self.lock_within(host),
            Waits::Never => self.try_lock(host),
        }
    }

    /// Takes the lock if it comes free while the caller `waits`; if another waiter spins, lets it
    /// go first.
    ///
    /// For long work that is divided into several critical sections. A thread that unlocks and
    /// locks again at once leaves waiters no moment in which they could see the lock free: they
    /// would sleep and wake again and again.
    pub fn lock_behind<'l, H: Host + ?Sized>(
        &'l self,
        host: &'l H,
        waits: Waits,
    ) -> Option<LockGuard<'l, H>> {
        if waits != Waits::Never && self.is_watched() {
            host.contention_begins();
            let passed = |_| {
                spin_hint();
                // Relaxed: decides only when to stop spinning; `lock` orders.
                self.word.load(Ordering::Relaxed) != FREE || !self.is_watched()
            };
            (0..SPINS).any(passed);
            host.contention_ends();
        }
        self.lock_as(host, waits)
    }

    fn is_watched(&self) -> bool {
        // Relaxed: a hint, as in `watch`.
        self.watchers.load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn take_free(&self) -> bool {
        // Acquire: pairs with the Release in `LockGuard::drop`, so this thread sees what the last
        // holder wrote.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait_for<H: Host + ?Sized>(&self, host: &H) {
        host.contention_begins();
        if !(self.watch() && self.take_free()) {
            // The exchange announces a sleeper, and takes the lock if it was free. A thread that
            // takes it this way does not know whether others sleep, and leaves the word at 2.
            while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
                host.wait(&self.word, AWAITED);
                self.watch();
            }
        }
        host.contention_ends();
    }

    /// Spins for a while; returns whether it saw the lock free.
    fn watch(&self) -> bool {
        // Relaxed, all: a hint to holders.
        self.watchers.fetch_add(1, Ordering::Relaxed);
        let is_free = (0..SPINS).any(|_| {
            spin_hint();
            self.word.load(Ordering::Relaxed) == FREE
        });
        self.watchers.fetch_sub(1, Ordering::Relaxed);
        is_free
    }
}

impl<H: Host + ?Sized> Drop for LockGuard<'_, H> {
    fn drop(&mut self) {
        if self.host.caller().is_some() {
            // Relaxed: the Release below comes after it, so this cannot wipe the next holder's
            // name.
            self.lock.holder.store(0, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of the next holder.
        if self.lock.word.swap(FREE, Ordering::Release) == AWAITED {
            self.host.wake_one(&self.lock.word);
        }
    }
}
