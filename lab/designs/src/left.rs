//! Pieces of work that a thread leaves to others: the lists of a purge that is late.
//!
//! A piece is at its place, or with the one thread that took it from there under the place's lock.
//! `has_work` is only a hint that a piece is there. It is stored after the piece, so a thread that
//! takes the piece in between may leave a hint behind that there is one; the next look finds none
//! and clears it. `undone` counts pieces from before they are left until they are done.

use pagedepot_designs::prim::{AtomicU32, Mutex, Ordering, Padded, lock_mutex, yield_now};

/// Places for a piece of work each; see the module.
pub struct WorkPlaces<T> {
    places: Box<[Place<T>]>,
    undone: Padded<AtomicU32>,
}

struct Place<T> {
    work: Padded<Mutex<Option<T>>>,
    has_work: Padded<AtomicU32>,
}

impl<T> WorkPlaces<T> {
    /// Makes so many places with nothing there.
    pub fn new(places: usize) -> Self {
        let place =
            || Place { work: Padded(Mutex::new(None)), has_work: Padded(AtomicU32::new(0)) };
        WorkPlaces {
            places: (0..places).map(|_| place()).collect(),
            undone: Padded(AtomicU32::new(0)),
        }
    }

    /// Leaves a piece of work at a place where there is none. One thread at a time.
    pub fn leave(&self, place: usize, work: T) {
        let place = &self.places[place];
        // Relaxed: the place's lock orders it before the subtraction.
        self.undone.fetch_add(1, Ordering::Relaxed);
        let before = lock_mutex(&place.work).replace(work);
        debug_assert!(before.is_none(), "what was left before was waited for");
        // Relaxed: a hint.
        place.has_work.store(1, Ordering::Relaxed);
    }

    /// Does what was left at a place, unless another thread has begun.
    #[inline]
    pub fn do_at(&self, place: usize, work: impl FnOnce(T)) {
        let place = &self.places[place];
        // Relaxed: a hint.
        if place.has_work.load(Ordering::Relaxed) == 0 {
            return;
        }
        let taken = {
            let mut there = lock_mutex(&place.work);
            place.has_work.store(0, Ordering::Relaxed);
            there.take()
        };
        if let Some(taken) = taken {
            work(taken);
            // Release: pairs with the Acquire in `wait`, publishes what was done.
            self.undone.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until all that was left is done. The thread that left it has looked at every place
    /// again, so that others are at it.
    pub fn wait(&self) {
        // Acquire: pairs with the Release of each thread that did a piece.
        while self.undone.load(Ordering::Acquire) > 0 {
            yield_now();
        }
    }
}
