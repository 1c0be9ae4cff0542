//! Requests that wait for pages, beside threads that free some, requests that give up, and a
//! ceiling, under whose lock no waker runs. A waiter that sleeps while there is a page for it
//! sleeps for good, which loom reports.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::system::prim::{AtomicU32, ForkMark, Mutant, Ordering, thread_id, wait, wake_all};
use crate::waiting::teller::Teller;
use crate::{MUTANT, SKIPS_FENCES, explore, explore_within};

/// A depot of pages that are all alike, and the state beside it. While the caches are open, a free
/// may leave its page in a cache, which closing takes back. A free into a pool always leaves it
/// there, and a look that finds none in the store takes all back.
struct World {
    free: AtomicU32,
    cached: AtomicU32,
    pooled: AtomicU32,
    is_open: AtomicU32,
    /// The thread that has the lock of a ceiling, which wakers may take; 0: none. Not a word of
    /// loom's: threads that have no part in it do not see it.
    ceiling_holder: std::sync::atomic::AtomicU32,
    teller: Teller<()>,
}

/// Bits of `cached`: whether the caches are closed, and whether they have a page.
const CLOSED: u32 = 2;
const PAGE: u32 = 1;

impl World {
    fn new() -> Arc<Self> {
        Arc::new(World {
            free: AtomicU32::new(0),
            cached: AtomicU32::new(0),
            pooled: AtomicU32::new(0),
            is_open: AtomicU32::new(1),
            ceiling_holder: Default::default(),
            teller: Teller::new(ForkMark),
        })
    }

    /// Takes a page from the store, after a purge of the pool if it has to.
    fn look(&self) -> bool {
        self.take() || (self.purge() > 0 && self.take())
    }

    /// Takes the pages of the pool back; returns their number. A pool that it finds empty it leaves
    /// alone.
    fn purge(&self) -> u32 {
        // Acquire: as a pool's own claims.
        let Ok(pages) = self
            .pooled
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |pages| (pages > 0).then_some(0))
        else {
            return 0;
        };
        self.free.fetch_add(pages, Ordering::Release);
        // Under locks that wakers may take: the mark is answered when they are free.
        if self.teller.waiters.are_there() {
            self.teller.waiters.mark();
        }
        if self.teller.waiters.are_marked() {
            self.teller.answer();
        }
        pages
    }

    /// Frees a page into the pool, as `Vmalloc::vfree`.
    fn free_pooled(&self) {
        self.pooled.fetch_add(1, Ordering::Release);
        if self.teller.waiters.are_there() {
            self.teller.tell();
        }
    }

    fn take(&self) -> bool {
        // The store's own claims acquire what frees release.
        self.free
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(1))
            .is_ok()
    }

    /// Frees a page, as a thread that may find the caches open.
    fn free(&self) {
        // A sequence and the closing of its gate: one comes first.
        let pushed = self.cached.compare_exchange(0, PAGE, Ordering::AcqRel, Ordering::Relaxed);
        if pushed.is_err() {
            self.free.fetch_add(1, Ordering::Release);
            if self.teller.waiters.are_there() {
                self.teller.tell();
            }
        }
    }

    /// Sets a ceiling, as `Ceiling::set`: its request calls a callback, which frees into the pool,
    /// and purges it. Requests are told when the lock is free.
    fn set_ceiling(&self) {
        self.ceiling_holder.store(thread_id(), Ordering::Relaxed);
        let marking = self.teller.leaving_marks();
        self.free_pooled();
        self.purge();
        drop(marking);
        self.ceiling_holder.store(0, Ordering::Relaxed);
        if self.teller.waiters.are_there() {
            self.teller.tell();
        }
    }

    fn close(&self) {
        self.is_open.store(0, Ordering::Relaxed);
        let pages = self.cached.swap(CLOSED, Ordering::AcqRel) & PAGE;
        self.free.fetch_add(pages, Ordering::Release);
    }

    fn open(&self) {
        self.is_open.store(1, Ordering::Relaxed);
        self.cached.store(0, Ordering::Release);
    }

    /// Waits for a page, as `PageFuture` does; gives up after so many looks. Whether it got one.
    fn request(self: &Arc<Self>, order: u32, looks_max: u32) -> bool {
        let rings = AtomicU32::new(0);
        let bell = Arc::new(Bell { rings, world: self.clone() });
        let waker = Waker::from(bell.clone());
        let entered = self.teller.waiters.enter(order, |()| self.close(), |()| self.open());
        let ticket = entered.expect("the model does not fork");
        let mut has_page = false;
        for _ in 0..looks_max {
            let seen = bell.rings();
            let was_told = self.teller.waiters.arm(ticket, &waker);
            if self.look() {
                has_page = true;
                break;
            }
            if was_told {
                self.teller.waiters.pass_on(ticket);
            }
            if looks_max == u32::MAX {
                bell.wait(seen);
            }
        }
        self.teller.waiters.leave(ticket, |()| self.open());
        has_page
    }
}

/// A thread's waker, which could take the lock of the ceiling.
struct Bell {
    rings: AtomicU32,
    world: Arc<World>,
}

impl Bell {
    fn rings(&self) -> u32 {
        self.rings.load(Ordering::Acquire)
    }

    /// Sleeps until it has rung again.
    fn wait(&self, seen: u32) {
        while self.rings() == seen {
            wait(&self.rings, seen, u32::MAX);
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let holder = self.world.ceiling_holder.load(Ordering::Relaxed);
        assert_ne!(holder, thread_id(), "a waker runs under the lock of a ceiling");
        self.rings.fetch_add(1, Ordering::Release);
        wake_all(&self.rings);
    }
}

fn spawn(world: &Arc<World>, act: impl Fn(&Arc<World>) + 'static) -> loom::thread::JoinHandle<()> {
    let world = world.clone();
    loom::thread::spawn(move || act(&world))
}

fn one_waiter_beside_a_free() {
    explore(|| {
        let world = World::new();
        let frees = spawn(&world, |world| world.free());
        assert!(world.request(0, u32::MAX));
        frees.join().unwrap();
        assert_eq!(world.is_open.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_waiter_gets_what_is_freed() {
    one_waiter_beside_a_free();
}

/// The mutant: neither side has a fence between what it writes and what it reads.
#[test]
#[should_panic(expected = "deadlock")]
fn waiters_and_bringers_need_fences() {
    SKIPS_FENCES.set(true);
    one_waiter_beside_a_free();
}

fn one_waiter_beside_a_pool() {
    explore(|| {
        let world = World::new();
        let frees = spawn(&world, |world| world.free_pooled());
        assert!(world.request(0, u32::MAX));
        frees.join().unwrap();
    });
}

#[test]
fn a_waiter_gets_what_is_freed_into_a_pool() {
    one_waiter_beside_a_pool();
}

/// The mutant: neither side has a fence between what it writes and what it reads.
#[test]
#[should_panic(expected = "deadlock")]
fn waiters_and_pools_need_fences() {
    SKIPS_FENCES.set(true);
    one_waiter_beside_a_pool();
}

fn one_waiter_beside_a_ceiling() {
    explore(|| {
        let world = World::new();
        let sets = spawn(&world, |world| world.set_ceiling());
        assert!(world.request(0, u32::MAX));
        sets.join().unwrap();
    });
}

#[test]
fn a_waiter_gets_what_a_callback_frees_under_a_ceiling() {
    one_waiter_beside_a_ceiling();
}

/// The mutant: the thread that sets the ceiling runs a waker.
#[test]
#[should_panic(expected = "under the lock of a ceiling")]
fn no_waker_runs_under_a_ceiling() {
    MUTANT.set(Some(Mutant::WakesUnderLocks));
    one_waiter_beside_a_ceiling();
}

/// A page that comes under a ceiling, and one that another thread frees meanwhile, which may find
/// the mark of the first.
#[test]
fn two_waiters_share_a_ceiling_and_a_free() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| assert!(world.request(0, u32::MAX)));
        let sets = spawn(&world, |world| {
            world.set_ceiling();
            world.free();
        });
        assert!(world.request(0, u32::MAX));
        other.join().unwrap();
        sets.join().unwrap();
    });
}

/// A page that is freed, and one that goes into a pool.
#[test]
fn two_waiters_share_a_free_and_a_pool() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| assert!(world.request(0, u32::MAX)));
        let frees = spawn(&world, |world| {
            world.free_pooled();
            world.free();
        });
        assert!(world.request(0, u32::MAX));
        other.join().unwrap();
        frees.join().unwrap();
    });
}

#[test]
fn two_waiters_share_two_frees() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| assert!(world.request(0, u32::MAX)));
        let frees = spawn(&world, |world| (0..2).for_each(|_| world.free()));
        assert!(world.request(0, u32::MAX));
        other.join().unwrap();
        frees.join().unwrap();
    });
}

/// One page, and two that want it in turn.
#[test]
fn a_waiter_frees_for_the_next() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| {
            assert!(world.request(0, u32::MAX));
            world.free();
        });
        world.free();
        assert!(world.request(0, u32::MAX));
        world.free();
        other.join().unwrap();
    });
}

/// A waiter that gives up, perhaps just when it is told.
#[test]
fn a_waiter_that_gives_up_keeps_no_page_from_others() {
    explore_within(2, || {
        let world = World::new();
        let frees = spawn(&world, |world| world.free());
        let other = spawn(&world, |world| {
            if world.request(0, 1) {
                world.free();
            }
        });
        assert!(world.request(0, u32::MAX));
        frees.join().unwrap();
        other.join().unwrap();
    });
}
