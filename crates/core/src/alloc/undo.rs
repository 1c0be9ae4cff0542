//! Calls that end in a panic: blocks that were allocated and never reached their caller go back.
//!
//! A reclaim callback may panic, and so may the report of misuse.

use core::mem::take;

use super::allocator::Allocator;
use crate::cpus::Cpus;
use crate::frame::{Order, Pfn};

impl<C: Cpus> Allocator<'_, C> {
    /// Ends a call that may have put frames into the store: reports misuse found on the way.
    #[inline]
    pub(super) fn end_call(&self) {
        self.store.end_call(|| ());
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
        self.caches().direct(self.here(), tag.zone()).put(pfn, order);
    }

    /// As [`end_call`](Self::end_call), of a call that is about to return a block.
    #[inline]
    pub(super) fn end_call_of<E>(&self, found: Result<Pfn, E>, order: Order) -> Result<Pfn, E> {
        self.store.end_call(|| {
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
