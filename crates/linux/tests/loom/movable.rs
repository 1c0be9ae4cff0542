//! 1. While a page is accessed it is not copied, and what an access wrote is in the copy.
//! 2. Its holder and compaction never both free one page, and none is lost.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use crate::movable_place::{Found, Place};

/// A page's place, and two pages. Loom reports accesses to a page's cell that race.
struct Scene {
    place: Place,
    pages: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Send for Scene {}
// SAFETY: as above.
unsafe impl Sync for Scene {}

impl Scene {
    fn new() -> Arc<Self> {
        Arc::new(Scene { place: Place::new(0), pages: [0, 0].map(UnsafeCell::new) })
    }

    fn set(&self, page: u32, value: u32) {
        // SAFETY: see `Scene`.
        self.pages[page as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn get(&self, page: u32) -> u32 {
        // SAFETY: see `Scene`.
        self.pages[page as usize].with(|cell| unsafe { *cell })
    }

    /// Compaction moves page 0 to page 1; whether it did, and so frees page 0.
    fn compact(&self) -> bool {
        let is_ours = self.place.begin_copy(0) == Found::Ours;
        if is_ours {
            self.set(1, self.get(0));
            self.place.end_copy(1);
        }
        is_ours
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn accesses_and_a_copy() {
    explore(|| {
        let scene = Scene::new();
        let other = scene.clone();
        let compaction = loom::thread::spawn(move || other.compact());
        for value in 1..=2 {
            let page = scene.place.begin_access();
            assert_eq!(scene.get(page), value - 1);
            scene.set(page, value);
            scene.place.end_access();
        }
        compaction.join().unwrap();
        let page = scene.place.give_up();
        assert_eq!(scene.get(page), 2);
    });
}

#[test]
fn given_up_or_moved() {
    explore(|| {
        let scene = Scene::new();
        let other = scene.clone();
        let compaction = loom::thread::spawn(move || {
            let is_moved = other.compact();
            if is_moved {
                // Freed: its next holder writes to it.
                other.set(0, 7);
            }
            is_moved
        });
        let page = scene.place.give_up();
        scene.set(page, 9);
        let is_moved = compaction.join().unwrap();
        assert_eq!(page, u32::from(is_moved), "one of the two frees page 0, the other page 1");
    });
}

/// A holder that frees its page without giving the place up: the model must see it.
#[test]
#[should_panic]
fn freed_without_giving_up() {
    explore(|| {
        let scene = Scene::new();
        let other = scene.clone();
        let compaction = loom::thread::spawn(move || other.compact());
        let page = scene.place.page();
        scene.set(page, 9);
        compaction.join().unwrap();
    });
}
