//! 1. A magazine that is pushed is popped or taken once, by any thread, and comes with what its
//!    owner wrote into it.
//! 2. A popper that sleeps while the magazine it looks at is taken, reused and pushed again does
//!    not put the old one below it back (the ABA problem).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as Plain};

use super::{Mutant, explore, explore_mutant};
use crate::front::{BlockArray, Magazine, MagazineIndex};
use crate::pcp::shelf::Shelf;
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;

const MAGAZINES: u32 = 3;

/// A shelf, its magazines, and who owns them.
struct Ground {
    shelf: Shelf,
    blocks: BlockArray,
    _magazines: Box<[Magazine]>,
    /// Owners by number: 1 for a magazine that a thread owns.
    owned: [AtomicU32; MAGAZINES as usize + 1],
}

// SAFETY: the magazines that `blocks` points to live as long, and are atomics.
unsafe impl Send for Ground {}
// SAFETY: as above.
unsafe impl Sync for Ground {}

impl Ground {
    /// Makes a shelf with `on_shelf` magazines; the others are the caller's.
    fn new(on_shelf: u32) -> Arc<Self> {
        let magazines: Box<[Magazine]> = (0..=MAGAZINES).map(|_| Magazine::new()).collect();
        // Magazine 0 stands for none, and lies at the base.
        let base = std::ptr::with_exposed_provenance_mut(magazines.as_ptr().expose_provenance());
        let blocks =
            BlockArray { base, gates_from: 0, blocks_at: 0, stride: 0, cpus: 0, context_stride: 0 };
        let owned = std::array::from_fn(|_| AtomicU32::new(1));
        let ground = Ground { shelf: Shelf::default(), blocks, _magazines: magazines, owned };
        (1..=on_shelf).for_each(|n| ground.push(MagazineIndex::new(n).unwrap()));
        Arc::new(ground)
    }

    fn push(&self, magazine: MagazineIndex) {
        assert_eq!(self.owned[magazine.get() as usize].swap(0, Plain::Relaxed), 1);
        self.blocks.magazine(magazine).slots[0].store(magazine.get(), Ordering::Relaxed);
        self.shelf.push(&self.blocks, magazine).unwrap();
    }

    fn own(&self, magazine: MagazineIndex) {
        assert_eq!(self.owned[magazine.get() as usize].swap(1, Plain::Relaxed), 0, "owned twice");
        let slot = &self.blocks.magazine(magazine).slots[0];
        // The thread that pushes it next wrote its number there; no other writes to what we own.
        assert_eq!(slot.swap(0, Ordering::Relaxed), magazine.get(), "contents were not seen");
    }

    fn pop(&self) -> Option<MagazineIndex> {
        let magazine = self.shelf.pop(&self.blocks)?;
        self.own(magazine);
        Some(magazine)
    }

    fn take_all(&self) -> Vec<MagazineIndex> {
        let mut taken = Vec::new();
        if let Some(chain) = self.shelf.take_all(&self.blocks) {
            let mut at = Some(chain.first);
            while let Some(magazine) = at {
                at = self.blocks.next(magazine);
                self.own(magazine);
                taken.push(magazine);
            }
            assert_eq!(taken.len() as u32, chain.count);
        }
        taken
    }

    /// All threads have stopped: each magazine is owned, or on the shelf.
    fn finish(&self) {
        let owned = self.owned[1..].iter().map(|owned| owned.load(Plain::Relaxed)).sum::<u32>();
        assert_eq!(owned + self.shelf.count(), MAGAZINES);
        self.take_all();
        assert!(
            self.owned.iter().all(|owned| owned.load(Plain::Relaxed) == 1),
            "a magazine is lost"
        );
    }
}

fn spawn(
    ground: &Arc<Ground>,
    body: impl FnOnce(&Ground) + 'static,
) -> loom::thread::JoinHandle<()> {
    let ground = ground.clone();
    loom::thread::spawn(move || body(&ground))
}

#[test]
fn owner_and_a_drainer() {
    explore(|| {
        let ground = Ground::new(2);
        let drainer = spawn(&ground, |ground| drop(ground.take_all()));
        let popped = ground.pop();
        ground.push(MagazineIndex::new(3).unwrap());
        popped.into_iter().for_each(|magazine| ground.push(magazine));
        drainer.join().unwrap();
        ground.finish();
    });
}

#[test]
fn two_drainers_and_an_owner() {
    explore(|| {
        let ground = Ground::new(2);
        let drainers = [(); 2].map(|()| spawn(&ground, |ground| drop(ground.take_all())));
        ground.push(MagazineIndex::new(3).unwrap());
        drainers.into_iter().for_each(|drainer| drainer.join().unwrap());
        ground.finish();
    });
}

fn slept_while_the_top_came_back() {
    let ground = Ground::new(2);
    let other = spawn(&ground, |ground| {
        // The top goes, the one below it goes for good, and the top comes back over another, so
        // that only the tag tells the head from what it was.
        let (top, _gone) = (ground.pop(), ground.pop());
        ground.push(MagazineIndex::new(3).unwrap());
        top.into_iter().for_each(|magazine| ground.push(magazine));
    });
    ground.pop();
    other.join().unwrap();
    ground.finish();
}

#[test]
fn popper_that_slept_while_the_top_came_back() {
    explore(slept_while_the_top_came_back);
}

#[test]
#[should_panic(expected = "owned twice")]
fn popper_that_slept_without_a_tag() {
    explore_mutant(Mutant::Untagged, slept_while_the_top_came_back);
}
