//! Calls that end in a panic: blocks that were allocated and never reached their caller go back.
//!
//! A reclaim callback may panic, and so may the report of misuse.

use core::mem::take;

use super::hooks::Hooks;
use crate::cpus::Cpus;
use crate::frame::{Order, Pfn};

/// Puts blocks of this order back if the call that allocated them panics.
pub(crate) struct Undo<'h, 'a, 'm, C> {
    pub hooks: &'h Hooks<'a, 'm, C>,
    pub order: Order,
}

impl<C: Cpus> Undo<'_, '_, '_, C> {
    /// Ends a call that is about to return a block: reports misuse found on the way.
    #[inline]
    pub fn end_call<E>(&self, found: Result<Pfn, E>) -> Result<Pfn, E> {
        self.hooks.caches.store.end_call(|| {
            if let Ok(pfn) = found {
                self.hooks.take_back(pfn, self.order);
            }
        });
        found
    }

    /// Calls `fill` with room for blocks and a place for how many there are, `got` at first; if it
    /// panics, these go back into the store.
    pub fn keep_while<R>(
        &self,
        out: &mut [Pfn],
        got: usize,
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
        let take_back = |pfn| self.hooks.take_back(pfn, self.order);
        let mut kept = Kept { out, got, take_back };
        let result = fill(kept.out, &mut kept.got);
        take(&mut kept.got);
        result
    }
}
