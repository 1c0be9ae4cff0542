//! A trim that takes the last pages, beside requests that then find no page.

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use crate::giving_back::trim_state::{TrimState, Trimming};
use crate::system::prim::{AtomicU32, Ordering};
use crate::{WAKES_NONE, explore};

/// A store of pages, a bit each, and the state beside it.
struct World {
    free: AtomicU32,
    state: TrimState,
    /// Written by each trim: loom reports two at once.
    trims: UnsafeCell<()>,
}

impl World {
    fn new(pages: u32) -> Arc<Self> {
        Arc::new(World {
            free: AtomicU32::new((1 << pages) - 1),
            state: TrimState::default(),
            trims: UnsafeCell::new(()),
        })
    }

    /// Takes one page as a request does, by a search that acquires; `None`: none is free.
    fn pop(&self) -> Option<u32> {
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let page = free & free.wrapping_neg();
            if page == 0 {
                return None;
            }
            match self.free.compare_exchange(
                free,
                free & !page,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(page),
                Err(now) => free = now,
            }
        }
    }

    /// A request that must be served: the requests need no more pages than there are.
    fn request(&self) -> u32 {
        self.pop().unwrap_or_else(|| {
            self.state.wait_for_pages();
            self.pop().expect("a request failed beside a trim")
        })
    }

    /// A trim of all free pages, in one chunk. Returns false if another trim was running.
    fn trim(&self) -> bool {
        let Some(trimming) = self.state.begin() else { return false };
        self.trims.with_mut(|_| ());
        if !trimming.is_unwelcome() {
            self.trim_chunk(&trimming, |trimming, claim| trimming.take(1, claim));
        }
        true
    }

    fn trim_chunk(
        &self,
        trimming: &Trimming<'_>,
        take: impl Fn(&Trimming<'_>, &dyn Fn() -> bool) -> bool,
    ) {
        let mut taken = 0;
        for page in [1, 2] {
            let claim = || self.free.fetch_and(!page, Ordering::AcqRel) & page != 0;
            if take(trimming, &claim) {
                taken |= page;
            }
        }
        self.free.fetch_or(taken, Ordering::AcqRel);
        trimming.returned();
    }
}

fn spawn(world: &Arc<World>, act: impl Fn(&World) + 'static) -> loom::thread::JoinHandle<()> {
    let world = world.clone();
    loom::thread::spawn(move || act(&world))
}

fn one_request_beside_a_trim() {
    explore(|| {
        let world = World::new(1);
        let trim = spawn(&world, |world| assert!(world.trim()));
        assert_eq!(world.request(), 1);
        trim.join().unwrap();
        assert_eq!(world.free.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_request_waits_for_what_a_trim_took() {
    one_request_beside_a_trim();
}

#[test]
fn two_requests_wait_for_one_chunk() {
    explore(|| {
        let world = World::new(2);
        let trim = spawn(&world, |world| assert!(world.trim()));
        let other = spawn(&world, |world| assert!(world.request() > 0));
        world.request();
        trim.join().unwrap();
        other.join().unwrap();
        assert_eq!(world.free.load(Ordering::Relaxed), 0);
    });
}

/// One of two trims at once returns, or begins when the other has ended.
#[test]
fn one_caller_trims_at_a_time() {
    explore(|| {
        let world = World::new(1);
        let other = spawn(&world, |world| _ = world.trim());
        world.trim();
        other.join().unwrap();
    });
}

/// The mutant: a waiter that is never woken sleeps for good, which loom reports.
#[test]
#[should_panic(expected = "deadlock")]
fn waiters_must_be_woken() {
    WAKES_NONE.set(true);
    one_request_beside_a_trim();
}

/// The mutant: a trimmer that raises `taken_pages` after its claim.
#[test]
#[should_panic(expected = "a request failed beside a trim")]
fn what_is_taken_must_be_said_first() {
    explore(|| {
        let world = World::new(1);
        let trim = spawn(&world, |world| {
            let trimming = world.state.begin().unwrap();
            world.trim_chunk(&trimming, |trimming, claim| claim() && trimming.take(1, || true));
        });
        world.request();
        trim.join().unwrap();
    });
}
