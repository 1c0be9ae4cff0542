//! A lock whose waiters may sleep, for the parts that are not worth being lock-free: the free
//! address space and the purge.
//!
//! | word | meaning | transitions |
//! |---|---|---|
//! | 0 | free | -> 1 by compare-and-swap, -> 2 by a waiter's exchange |
//! | 1 | held | -> 0 by its holder, -> 2 by a waiter's exchange |
//! | 2 | held, and somebody may sleep | -> 0 by its holder, who then wakes one |
//!
//! After Drepper, "Futexes Are Tricky" (2011), mutex 2. How to sleep is the [`Host`]'s.
//!
//! # Waiting in bounds
//! Reclaim under memory pressure may run in a signal handler above a holder of its own thread, and
//! beside a holder that was stopped. It takes locks by [`Lock::lock_within`]: not at all if this
//! thread holds the lock ([`Host::caller`]), and for a second at most otherwise. The holder's name
//! is written after the lock was taken and wiped before it is given up, so a handler in between
//! finds no name: it waits that second. A waiter that gives up leaves the lock at 2 and always
//! looks once more after it slept: a wake-up that it got is either used, or passed on by the holder
//! it saw.

use super::seams::Host;
use pagedepot::sync::prim::{AtomicU32, AtomicUsize, Ordering, spin_hint};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// Looks at a taken lock before its waiter sleeps: about as long as going to sleep takes (Karlin et
/// al., "Empirical Studies of Competitive Spinning", 1991).
const SPINS: u32 = if cfg!(loom) { 0 } else { 40 };

/// How often a waiter in bounds sleeps.
pub(super) const NAPS: u32 = if cfg!(loom) { 1 } else { 100 };
/// For how long at most each time, in milliseconds.
const NAP_MS: u32 = 10;

/// A lock, on cache lines of its own.
#[repr(align(128))]
pub struct Lock {
    word: AtomicU32,
    /// The holder's name, while it is known; 0 otherwise.
    holder: AtomicUsize,
    /// Those who look on at this moment, ready to take it.
    watchers: AtomicU32,
}

/// Proof that a [`Lock`] is held; dropping it unlocks.
pub struct Guard<'l, H: Host + ?Sized> {
    lock: &'l Lock,
    host: &'l H,
}

impl Lock {
    /// A free lock.
    #[allow(clippy::new_without_default, reason = "a lock is made with what it protects")]
    pub fn new() -> Self {
        Lock {
            word: AtomicU32::new(FREE),
            holder: AtomicUsize::new(0),
            watchers: AtomicU32::new(0),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Option<Guard<'l, H>> {
        self.take_free().then(|| self.taken(host))
    }

    /// The guard of a lock that the caller has just taken.
    #[inline]
    fn taken<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Guard<'l, H> {
        if let Some(name) = host.caller() {
            // Relaxed: for code on top of this thread.
            self.holder.store(name.get(), Ordering::Relaxed);
        }
        Guard { lock: self, host }
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn lock<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Guard<'l, H> {
        if !self.take_free() {
            self.wait_for(host);
        }
        self.taken(host)
    }

    /// Takes the lock, waiting for it for about a second at most; `None` also if this thread holds
    /// it: see the module's head.
    pub fn lock_within<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Option<Guard<'l, H>> {
        if self.take_free() {
            return Some(self.taken(host));
        }
        // Relaxed: this thread's own store, or another's, which is not equal.
        let holder = self.holder.load(Ordering::Relaxed);
        if host.caller().is_some_and(|name| name.get() == holder) {
            return None;
        }
        host.contention_begins();
        let mut naps = 0;
        // As in `wait_for`; the last exchange comes after the last nap.
        let mut is_taken = self.word.swap(AWAITED, Ordering::Acquire) == FREE;
        while !is_taken && naps < NAPS {
            host.wait_at_most(&self.word, AWAITED, NAP_MS);
            is_taken = self.word.swap(AWAITED, Ordering::Acquire) == FREE;
            naps += 1;
        }
        host.contention_ends();
        is_taken.then(|| self.taken(host))
    }

    /// Takes the lock after one of those who look on now, if any do.
    ///
    /// For those with so much to do that they do it in turns: one who unlocks and locks again at
    /// once leaves others no moment in which they could see it free, and those would sleep and wake
    /// again and again.
    pub fn lock_behind<'l, H: Host + ?Sized>(&'l self, host: &'l H) -> Guard<'l, H> {
        if self.is_watched() {
            host.contention_begins();
            let passed = |_| {
                spin_hint();
                // Relaxed: only when to stop looking; `lock` does the ordering.
                self.word.load(Ordering::Relaxed) != FREE || !self.is_watched()
            };
            (0..SPINS).any(passed);
            host.contention_ends();
        }
        self.lock(host)
    }

    fn is_watched(&self) -> bool {
        // Relaxed: a hint, as in `watch`.
        self.watchers.load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn take_free(&self) -> bool {
        // Acquire: pairs with the Release in `Guard::drop`; what the last holder wrote is seen.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait_for<H: Host + ?Sized>(&self, host: &H) {
        host.contention_begins();
        if !(self.watch() && self.take_free()) {
            // The exchange says that somebody sleeps, and takes the lock if it was free; whoever
            // takes it so cannot know that nobody else sleeps, and leaves it at 2.
            while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
                host.wait(&self.word, AWAITED);
                self.watch();
            }
        }
        host.contention_ends();
    }

    /// Looks on for a while; whether it saw the lock free.
    fn watch(&self) -> bool {
        // Relaxed, both: a hint to holders.
        self.watchers.fetch_add(1, Ordering::Relaxed);
        let is_free = (0..SPINS).any(|_| {
            spin_hint();
            self.word.load(Ordering::Relaxed) == FREE
        });
        self.watchers.fetch_sub(1, Ordering::Relaxed);
        is_free
    }
}

impl<H: Host + ?Sized> Drop for Guard<'_, H> {
    fn drop(&mut self) {
        if self.host.caller().is_some() {
            // Relaxed: before the Release below, so the next holder's name is not wiped.
            self.lock.holder.store(0, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of the next holder.
        if self.lock.word.swap(FREE, Ordering::Release) == AWAITED {
            self.host.wake_one(&self.lock.word);
        }
    }
}
