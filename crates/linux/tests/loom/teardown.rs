//! Threads that drop pages while the last handle goes: the depot is unmapped once, after the last
//! of them, and nothing touches it afterwards.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};

use crate::depot::teardown::{self, Gates, Teardown, TeardownHost};
use crate::explore;
use crate::system::prim::{AtomicBool, AtomicU64, Ordering};

/// The steps that a model leaves out or changes.
#[derive(Clone, Copy, Default)]
struct Mutant {
    /// The closer forgets the pages in the front.
    front_is_forgotten: bool,
    /// Store frees go past the protocol.
    frees_are_not_admitted: bool,
    /// A free touches the depot after it has left.
    touches_afterwards: bool,
    /// Sequences cannot be fenced.
    is_unfenced: bool,
}

/// A depot of single pages with one CPU.
struct World {
    pages: u64,
    mutant: Mutant,
    teardown: Teardown,
    /// The front: whether its gate is open, and its pages. A lock stands for the sequence and the
    /// fence that excludes it.
    front: Mutex<(bool, u64)>,
    /// The front where sequences cannot be fenced.
    is_open: AtomicBool,
    unfenced: AtomicU64,
    /// Counted without ordering, as by the real store's per-CPU deltas.
    free: AtomicU64,
    /// Read by each access, written by the unmapping: loom reports them when they race.
    mapping: UnsafeCell<()>,
    unmapped: AtomicU64,
}

impl World {
    fn new(pages: u64, mutant: Mutant) -> Arc<Self> {
        Arc::new(World {
            pages,
            mutant,
            teardown: Teardown::new(),
            front: Mutex::new((true, 0)),
            is_open: AtomicBool::new(true),
            unfenced: AtomicU64::new(0),
            free: AtomicU64::new(0),
            mapping: UnsafeCell::new(()),
            unmapped: AtomicU64::new(0),
        })
    }

    /// Any access to the depot's memory.
    fn touch(&self) {
        self.mapping.with(|_| ());
    }

    /// Pushes a block like `Allocator::free_fast`: nothing is touched after the commit.
    fn push(&self) -> bool {
        self.touch();
        if self.mutant.is_unfenced {
            // The gate is read, then the sequence commits, whatever became of the gate.
            let is_open = self.is_open.load(Ordering::Acquire);
            self.touch();
            return is_open && {
                self.unfenced.fetch_add(1, Ordering::Release);
                true
            };
        }
        let mut front = self.front.lock().unwrap();
        front.1 += u64::from(front.0);
        front.0
    }

    /// Frees a page like its drop.
    fn drop_page(&self) {
        if self.push() {
            return;
        }
        let store_free = |world: &Self| {
            world.touch();
            world.free.fetch_add(1, Ordering::Relaxed);
            // The counters come after the page.
            world.touch();
        };
        if self.mutant.frees_are_not_admitted {
            store_free(self);
            return;
        }
        // SAFETY: the world outlives the model; the page is this caller's.
        unsafe { teardown::free(NonNull::from(self), 1, store_free) };
        if self.mutant.touches_afterwards {
            self.touch();
        }
    }

    /// Closes the depot like the drop of the last handle.
    fn close(&self) {
        // SAFETY: as above; called once.
        unsafe { teardown::close(NonNull::from(self)) };
    }

    fn unmapped(&self) -> u64 {
        self.unmapped.load(Ordering::SeqCst)
    }
}

impl TeardownHost for World {
    fn teardown(&self) -> &Teardown {
        &self.teardown
    }

    fn close_gates(&self) -> Gates {
        self.touch();
        if self.mutant.is_unfenced {
            self.is_open.store(false, Ordering::Release);
            return Gates::Unfenced;
        }
        let mut front = self.front.lock().unwrap();
        front.0 = false;
        if !self.mutant.front_is_forgotten {
            self.free.fetch_add(front.1, Ordering::Relaxed);
        }
        Gates::Fenced
    }

    fn absent_pages(&self) -> u64 {
        self.touch();
        self.pages - self.free.load(Ordering::Relaxed)
    }

    fn front_pages(&self) -> u64 {
        self.touch();
        self.unfenced.load(Ordering::Acquire)
    }

    unsafe fn unmap(this: NonNull<Self>) {
        // SAFETY: the world outlives the model.
        let world = unsafe { this.as_ref() };
        world.mapping.with_mut(|_| ());
        world.unmapped.fetch_add(1, Ordering::SeqCst);
    }
}

fn spawn(world: &Arc<World>, act: impl Fn(&World) + 'static) -> loom::thread::JoinHandle<()> {
    let world = world.clone();
    loom::thread::spawn(move || act(&world))
}

/// One page is freed beside the closer, by another thread.
fn one_page_beside_the_closer(mutant: Mutant, unmapped: u64) {
    explore(move || {
        let world = World::new(1, mutant);
        let page = spawn(&world, World::drop_page);
        world.close();
        page.join().unwrap();
        assert_eq!(world.unmapped(), unmapped, "times it was unmapped");
    });
}

#[test]
fn the_last_of_a_page_and_the_closer_unmaps() {
    one_page_beside_the_closer(Mutant::default(), 1);
}

#[test]
fn the_last_of_two_pages_and_the_closer_unmaps() {
    explore(|| {
        let world = World::new(2, Mutant::default());
        let pages = [0, 1].map(|_| spawn(&world, World::drop_page));
        world.close();
        pages.into_iter().for_each(|page| page.join().unwrap());
        assert_eq!(world.unmapped(), 1);
    });
}

/// The gate is closed from the start, as by `CpuCaches::disable`: every free is a store free.
#[test]
fn store_frees_alone() {
    explore(|| {
        let world = World::new(2, Mutant::default());
        world.front.lock().unwrap().0 = false;
        let pages = [0, 1].map(|_| spawn(&world, World::drop_page));
        world.close();
        pages.into_iter().for_each(|page| page.join().unwrap());
        assert_eq!(world.unmapped(), 1);
    });
}

/// Two threads with pages that were held when the depot was closed.
#[test]
fn the_last_of_two_late_frees_unmaps() {
    explore(|| {
        let world = World::new(2, Mutant::default());
        world.close();
        assert_eq!(world.unmapped(), 0);
        let page = spawn(&world, World::drop_page);
        world.drop_page();
        page.join().unwrap();
        assert_eq!(world.unmapped(), 1);
    });
}

/// A page that is never freed keeps it mapped.
#[test]
fn a_forgotten_page_keeps_it_mapped() {
    explore(|| {
        let world = World::new(2, Mutant::default());
        let page = spawn(&world, World::drop_page);
        world.close();
        page.join().unwrap();
        assert_eq!(world.unmapped(), 0);
    });
}

/// Without fences it may stay mapped, when the last page of all is pushed after the closer looked;
/// but it is not unmapped twice, nor below a sequence.
#[test]
fn without_fences_it_is_unmapped_at_most_once() {
    explore(|| {
        let world = World::new(2, Mutant { is_unfenced: true, ..Mutant::default() });
        let pages = [0, 1].map(|_| spawn(&world, World::drop_page));
        world.close();
        pages.into_iter().for_each(|page| page.join().unwrap());
        assert!(world.unmapped() <= 1);
    });
}

#[test]
#[should_panic(expected = "times it was unmapped")]
fn pages_in_fronts_must_be_taken_back() {
    one_page_beside_the_closer(Mutant { front_is_forgotten: true, ..Mutant::default() }, 1);
}

/// Checks that frees to the store must be admitted: whether or not the closer sees the pages there,
/// it unmaps below the rest of the free.
#[test]
#[should_panic(expected = "Causality violation")]
fn store_frees_must_be_admitted() {
    explore(|| {
        let mutant = Mutant { frees_are_not_admitted: true, ..Mutant::default() };
        let world = World::new(1, mutant);
        let page = spawn(&world, World::drop_page);
        world.close();
        page.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn nothing_is_touched_after_leaving() {
    one_page_beside_the_closer(Mutant { touches_afterwards: true, ..Mutant::default() }, 1);
}
