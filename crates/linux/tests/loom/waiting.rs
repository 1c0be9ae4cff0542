//! Requests that wait for pages, beside threads that free some, requests that give up, and a
//! ceiling, under whose lock no waker runs. A waiter that sleeps while there is a page for it
//! sleeps for good, which loom reports.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::system::prim::{AtomicU32, ForkMark, Mutant, Ordering, thread_id, wait, wake_all};
use crate::waiting::waiters::{Ticket, Waiters};
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
    /// 1: the request for which another one waits in vain has its page.
    is_served: AtomicU32,
    waiters: Waiters<()>,
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
            is_served: AtomicU32::new(0),
            waiters: Waiters::new(ForkMark, ()),
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
        if self.waiters.are_there() {
            self.waiters.mark();
        }
        if self.waiters.are_marked() {
            self.waiters.answer();
        }
        pages
    }

    /// Frees a page into the pool, as `Vmalloc::vfree`.
    fn free_pooled(&self) {
        self.pooled.fetch_add(1, Ordering::Release);
        if self.waiters.are_there() {
            self.waiters.tell();
        }
    }

    /// Frees into the pool and purges it, as a callback.
    fn purge_what_it_frees(&self) {
        self.free_pooled();
        self.purge();
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
            if self.waiters.are_there() {
                self.waiters.tell();
            }
        }
    }

    /// Sets a ceiling, as `Ceiling::set`: its request calls a callback. Requests are told when the
    /// lock is free.
    fn set_ceiling(&self, callback: impl FnOnce()) {
        self.ceiling_holder.store(thread_id(), Ordering::Relaxed);
        let marking = self.waiters.leaving_marks();
        callback();
        drop(marking);
        self.ceiling_holder.store(0, Ordering::Relaxed);
        if self.waiters.are_there() {
            self.waiters.tell();
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

    /// A request for a block of this order.
    fn ask(self: &Arc<Self>, order: u32) -> Request {
        let bell = Arc::new(Bell { rings: AtomicU32::new(0), world: self.clone() });
        Request { order, ticket: None, bell }
    }

    /// Begins to wait for a block of this order.
    fn enter(self: &Arc<Self>, order: u32) -> Request {
        let mut request = self.ask(order);
        request.enter();
        request
    }

    /// Waits for a page, and gives up after so many looks. Whether it got one.
    fn request(self: &Arc<Self>, looks_max: u32) -> bool {
        let mut request = self.enter(0);
        let mut has_page = false;
        for _ in 0..looks_max {
            let seen = request.bell.rings();
            has_page = request.poll();
            if has_page {
                break;
            }
            if looks_max == u32::MAX {
                request.bell.wait(seen);
            }
        }
        request.leave();
        has_page
    }
}

/// A request that waits, as a `PageFuture`.
struct Request {
    order: u32,
    ticket: Option<Ticket>,
    bell: Arc<Bell>,
}

impl Request {
    /// Adds the request to the queue unless it is there; returns its place.
    fn enter(&mut self) -> Ticket {
        let world = &self.bell.world;
        *self.ticket.get_or_insert_with(|| {
            let entered = world.waiters.enter(self.order, |()| world.close(), |()| world.open());
            entered.expect("the model does not fork")
        })
    }

    /// Looks once, under a ceiling outside the queue. Whether it has a page: all pages are too
    /// small for one of a higher order.
    fn poll(&mut self) -> bool {
        let world = self.bell.world.clone();
        if world.waiters.leaves_marks() {
            self.leave();
            return self.order == 0 && world.look();
        }
        let ticket = self.enter();
        let was_told = world.waiters.arm(ticket, &Waker::from(self.bell.clone()));
        if self.order == 0 && world.look() {
            return true;
        }
        if was_told {
            world.waiters.pass_on(ticket);
        }
        false
    }

    /// Looks in vain until another request has its page.
    fn wait_in_vain(&mut self) {
        while self.bell.world.is_served.load(Ordering::Acquire) == 0 {
            let seen = self.bell.rings();
            assert!(!self.poll());
            match self.ticket {
                Some(_) => self.bell.wait(seen),
                None => loom::thread::yield_now(),
            }
        }
    }

    fn leave(&mut self) {
        let world = &self.bell.world;
        if let Some(ticket) = self.ticket.take() {
            world.waiters.leave(ticket, |()| world.open());
        }
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
        assert!(world.request(u32::MAX));
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
        assert!(world.request(u32::MAX));
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
        let sets = spawn(&world, |world| world.set_ceiling(|| world.purge_what_it_frees()));
        assert!(world.request(u32::MAX));
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

fn one_waiter_beside_one_that_goes_under_a_ceiling() {
    explore(|| {
        let world = World::new();
        let sets = spawn(&world, |world| {
            let mut goes = world.enter(0);
            world.set_ceiling(|| {
                world.free_pooled();
                if goes.poll() {
                    world.free_pooled();
                }
                goes.leave();
            });
        });
        assert!(world.request(u32::MAX));
        sets.join().unwrap();
    });
}

/// A callback for a ceiling frees pages, looks for a request of its own, and gives that up.
#[test]
fn a_waiter_that_goes_under_a_ceiling_keeps_no_page_from_others() {
    one_waiter_beside_one_that_goes_under_a_ceiling();
}

/// The mutant: the thread that sets the ceiling runs a waker.
#[test]
#[should_panic(expected = "under the lock of a ceiling")]
fn a_waiter_that_goes_under_a_ceiling_runs_no_waker() {
    MUTANT.set(Some(Mutant::WakesUnderLocks));
    one_waiter_beside_one_that_goes_under_a_ceiling();
}

fn one_waiter_behind_a_large_one_under_a_ceiling() {
    explore(|| {
        let world = World::new();
        let mut large = world.enter(1);
        let other = spawn(&world, |world| assert!(world.request(u32::MAX)));
        // Tells the large one, which is the first.
        world.free();
        world.set_ceiling(|| assert!(!large.poll()));
        // It waits again, behind the other.
        assert!(!large.poll());
        other.join().unwrap();
        large.leave();
    });
}

/// A callback for a ceiling looks for a request that was told and wants a larger block.
#[test]
fn a_told_waiter_leaves_the_queue_under_a_ceiling() {
    one_waiter_behind_a_large_one_under_a_ceiling();
}

/// The mutant: the thread that sets the ceiling runs a waker.
#[test]
#[should_panic(expected = "under the lock of a ceiling")]
fn a_told_waiter_under_a_ceiling_runs_no_waker() {
    MUTANT.set(Some(Mutant::WakesUnderLocks));
    one_waiter_behind_a_large_one_under_a_ceiling();
}

/// A callback for a ceiling waits for a larger block until another request has the page that is
/// freed: it must not be told of that page.
#[test]
fn a_waiter_under_a_ceiling_keeps_no_page_from_others() {
    explore_within(2, || {
        let world = World::new();
        let sets = spawn(&world, |world| {
            let mut large = world.ask(1);
            world.set_ceiling(|| large.wait_in_vain());
            large.leave();
        });
        let frees = spawn(&world, |world| world.free());
        assert!(world.request(u32::MAX));
        world.is_served.store(1, Ordering::Release);
        sets.join().unwrap();
        frees.join().unwrap();
    });
}

/// A page that comes under a ceiling, and one that another thread frees meanwhile, which may find
/// the mark of the first.
#[test]
fn two_waiters_share_a_ceiling_and_a_free() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| assert!(world.request(u32::MAX)));
        let sets = spawn(&world, |world| {
            world.set_ceiling(|| world.purge_what_it_frees());
            world.free();
        });
        assert!(world.request(u32::MAX));
        other.join().unwrap();
        sets.join().unwrap();
    });
}

/// A page that is freed, and one that goes into a pool.
#[test]
fn two_waiters_share_a_free_and_a_pool() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| assert!(world.request(u32::MAX)));
        let frees = spawn(&world, |world| {
            world.free_pooled();
            world.free();
        });
        assert!(world.request(u32::MAX));
        other.join().unwrap();
        frees.join().unwrap();
    });
}

#[test]
fn two_waiters_share_two_frees() {
    explore_within(2, || {
        let world = World::new();
        let other = spawn(&world, |world| assert!(world.request(u32::MAX)));
        let frees = spawn(&world, |world| (0..2).for_each(|_| world.free()));
        assert!(world.request(u32::MAX));
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
            assert!(world.request(u32::MAX));
            world.free();
        });
        world.free();
        assert!(world.request(u32::MAX));
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
            if world.request(1) {
                world.free();
            }
        });
        assert!(world.request(u32::MAX));
        frees.join().unwrap();
        other.join().unwrap();
    });
}
