//! Misuse found late: frames that came back to the store and were free there.
//!
//! Whoever brings them may be in the middle of something: a drain with more magazines to empty, an
//! allocation that holds a block. What is told of them may panic, and a panic there would lose what
//! is on its way. So it is noted where it is found, and told by the calls of callers, as the last
//! thing they do. What such a call was about to return goes back to the store if telling panics.
//!
//! The note is one for all callers: of two that end at the same moment, one tells for both.

use core::mem::{forget, take};

use super::Allocator;
use crate::cpus::Cpus;
use crate::frame::{Order, Pfn};
use crate::store::Doubled;
use crate::store::Misuse;
use crate::sync::prim::{AtomicU64, Ordering};

/// The note.
///
/// | bits | field |
/// |---|---|
/// | 0..=31 | the first frame that was met |
/// | 32..=63 | how many, at most 2^32 - 1; 0: none, and nothing else in the word |
pub struct Noted(AtomicU64);

impl Noted {
    pub fn new() -> Self {
        Noted(AtomicU64::new(0))
    }
}

fn pack(doubled: Doubled) -> u64 {
    let first = doubled.first.map_or(0, |pfn| u64::from(pfn.get()));
    if doubled.frames == 0 { 0 } else { u64::from(doubled.frames) << 32 | first }
}

fn unpack(word: u64) -> Doubled {
    let frames = (word >> 32) as u32;
    Doubled { first: (frames > 0).then(|| Pfn::new(word as u32)), frames }
}

/// Calls what it has when it is dropped: by a panic, unless it is forgotten before.
struct OnUnwind<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// Notes frames that were put into the store and free there.
    #[inline]
    pub(super) fn note_doubled(&self, doubled: Doubled) {
        if doubled.frames > 0 {
            self.note_some_doubled(doubled);
        }
    }

    #[cold]
    fn note_some_doubled(&self, doubled: Doubled) {
        let add = |word| {
            let mut noted = unpack(word);
            noted.add(doubled);
            Some(pack(noted))
        };
        // Relaxed: the numbers are all there is to it.
        let _ = self.globals.noted.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if cfg!(loom) {
            // In a model every double free is a fault, and the look at the end of each call would
            // be two executions.
            self.tell_noted(|| ());
        }
    }

    /// Ends a call that may have put frames into the store.
    #[inline]
    pub(super) fn end_call(&self) {
        self.end_call_with(|| ());
    }

    /// As [`end_call`](Self::end_call); `undo` takes back what the call has for its caller.
    #[inline]
    pub(super) fn end_call_with(&self, undo: impl FnMut()) {
        if !cfg!(loom) && self.globals.noted.0.load(Ordering::Relaxed) != 0 {
            self.tell_noted(undo);
        }
    }

    #[cold]
    fn tell_noted(&self, undo: impl FnMut()) {
        let Doubled { first, frames } = unpack(self.globals.noted.0.swap(0, Ordering::Relaxed));
        let Some(first) = first else { return };
        let undo = OnUnwind(undo);
        self.store.report(Misuse::DoubleFree { first, frames });
        forget(undo);
    }

    /// Puts a block that was allocated and never reached its caller back into the store, and tells
    /// nothing.
    #[cold]
    fn take_back(&self, pfn: Pfn, order: Order) {
        let Some(tag) = self.store.tags().tag(pfn) else { return };
        if self.tracks_frames {
            // Not noted yet, where the panic came first.
            let _ = self.note_free(pfn, order);
        }
        self.put_direct(pfn, order, tag.zone());
    }

    /// As [`end_call`](Self::end_call), of a call that is about to return a block.
    #[inline]
    pub(super) fn end_call_of<E>(&self, found: Result<Pfn, E>, order: Order) -> Result<Pfn, E> {
        self.end_call_with(|| {
            if let Ok(pfn) = found {
                self.take_back(pfn, order);
            }
        });
        found
    }

    /// Calls `fill` with room for blocks and a place for how many there are; if it panics, these go
    /// back into the store.
    pub(super) fn keep_while<R>(
        &self,
        order: Order,
        out: &mut [Pfn],
        fill: impl FnOnce(&mut [Pfn], &mut usize) -> R,
    ) -> R {
        struct Kept<'k, T: FnMut(Pfn)> {
            out: &'k mut [Pfn],
            got: usize,
            take_back: T,
        }
        impl<T: FnMut(Pfn)> Drop for Kept<'_, T> {
            fn drop(&mut self) {
                self.out[..self.got].iter().for_each(|&pfn| (self.take_back)(pfn));
            }
        }
        let mut kept = Kept { out, got: 0, take_back: |pfn| self.take_back(pfn, order) };
        let result = fill(kept.out, &mut kept.got);
        take(&mut kept.got);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back() {
        for first in [0, 1, u32::MAX] {
            for frames in [1, 2, u32::MAX] {
                let doubled = Doubled { first: Some(Pfn::new(first)), frames };
                assert_eq!(unpack(pack(doubled)), doubled);
            }
        }
        assert_eq!((pack(Doubled::NONE), unpack(0)), (0, Doubled::NONE));
    }
}
