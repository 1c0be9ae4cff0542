//! Work on a block on its way to a caller, and checks on its way back.
//!
//! The kernel's `post_alloc_hook` and `free_pages_prepare`.
//!
//! # Exact checks
//! The option `checked` keeps a byte per frame that says which blocks are allocated.
//!
//! | byte | meaning |
//! |---|---|
//! | 0 | no allocated block begins here |
//! | 0x80 + order | a block of this order begins here |
//!
//! The byte of a block's first frame is exchanged atomically by `free`, before the block goes
//! anywhere: of two frees of one block exactly one succeeds. All accesses are Relaxed: what hands a
//! block from one holder to the next orders its bytes too, so each only has to be atomic.
//!
//! # Calls that end in a panic
//! A reclaim callback may panic, and so may the report of misuse. Blocks that were allocated and
//! never reached their caller then go back.
#![allow(unsafe_code, reason = "zeroes pages")]

use core::mem::take;

use super::error::FreeError;
use super::flags::{Classes, Flags};
use crate::cpus::{Cpus, Environment, Unusable};
use crate::frame::pageblock::{SECTION_FRAMES, Tag};
use crate::frame::{LinearMap, Order, PageSize, Pfn};
use crate::pcp::Caches;
use crate::store::section::Section;
use crate::sync::prim::{AtomicU8, Ordering};

/// Options of the configuration that apply at these moments.
pub(crate) struct Options {
    pub(super) is_checked: bool,
    pub linear_map: Option<LinearMap>,
    pub page_size: PageSize,
    pub classes: Classes,
}

/// The work on blocks and their checks.
pub(crate) struct Hooks<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub options: &'a Options,
}

crate::sync::copied!(Hooks<'_, '_, _>);

impl<C: Cpus> Hooks<'_, '_, C> {
    /// Blocks go to a caller.
    #[inline]
    pub fn on_alloc_many(
        &self,
        blocks: &[Pfn],
        order: Order,
        flags: Flags,
    ) -> Result<(), Unusable> {
        if self.options.is_checked || flags.is_zeroed() {
            blocks.iter().try_for_each(|&pfn| self.on_alloc(pfn, order, flags).map(drop))?;
        }
        Ok(())
    }

    /// A block goes to a caller.
    pub fn on_alloc(&self, pfn: Pfn, order: Order, flags: Flags) -> Result<Pfn, Unusable> {
        if self.options.is_checked {
            self.note_alloc(pfn, order);
        }
        self.prepare(pfn, order.frames(), flags)
    }

    /// A range goes to a caller.
    pub fn on_alloc_range(&self, start: Pfn, frames: u32, flags: Flags) -> Result<Pfn, Unusable> {
        self.note_range(start, frames);
        self.prepare(start, frames, flags)
    }

    /// A block comes back: its checks, which every block passes.
    #[inline]
    pub fn check_free(&self, pfn: Pfn, order: Order) -> Result<Tag, FreeError> {
        let tag = self.caches.store.tags.of_block(pfn, order).ok_or(FreeError::OutOfRange)?;
        if !pfn.is_aligned(order) {
            return Err(FreeError::Misaligned);
        }
        if are_carved(self.caches, pfn, order.frames()) {
            return Err(FreeError::NotAllocated);
        }
        if self.options.is_checked {
            self.caches.cpus.environment().check_usable()?;
            self.note_free(pfn, order)?;
        }
        Ok(tag)
    }

    /// Puts a block that was allocated and never reached its caller back into the store, without a
    /// report of misuse.
    #[cold]
    pub fn take_back(&self, pfn: Pfn, order: Order) {
        let Some(tag) = self.caches.store.tags.tag(pfn) else { return };
        // Fails where the panic came before `note_alloc`.
        let _ = self.note_free(pfn, order);
        self.caches.direct(self.caches.here(), tag.zone()).put(pfn, order);
    }

    /// Ends a call that is about to return `frames` frames: reports misuse found on the way. If
    /// that panics, the frames go back into the store.
    #[inline]
    pub fn end_call<E>(&self, frames: u32, found: Result<Pfn, E>) -> Result<Pfn, E> {
        self.caches.store.end_call(|| {
            if let Ok(pfn) = found {
                (0..frames).for_each(|i| self.take_back(pfn.add(i), Order::BASE));
            }
        });
        found
    }

    /// Calls `fill` with room for blocks and a place for how many there are, `got` at first; if it
    /// panics, these go back into the store.
    pub fn keep_while<R>(
        &self,
        order: Order,
        out: &mut [Pfn],
        got: usize,
        fill: impl FnOnce(&mut [Pfn], &mut usize) -> R,
    ) -> R {
        struct TakeBack<'k, T: FnMut(Pfn)> {
            out: &'k mut [Pfn],
            got: usize,
            take_back: T,
        }
        impl<T: FnMut(Pfn)> Drop for TakeBack<'_, T> {
            fn drop(&mut self) {
                self.out[..self.got].iter().for_each(|&pfn| (self.take_back)(pfn));
            }
        }
        let take_back = |pfn| self.take_back(pfn, order);
        let mut kept = TakeBack { out, got, take_back };
        let result = fill(kept.out, &mut kept.got);
        take(&mut kept.got);
        result
    }

    /// Makes blocks of order `to` of an allocated block.
    pub fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        if to > from || !pfn.is_aligned(from) {
            return Err(FreeError::Misaligned);
        }
        self.caches.cpus.environment().check_usable()?;
        self.caches.store.tags.of_block(pfn, from).ok_or(FreeError::OutOfRange)?;
        if are_carved(self.caches, pfn, from.frames()) {
            return Err(FreeError::NotAllocated);
        }
        self.note_split(pfn, from, to)
    }

    /// Zeroes frames that the allocator can reach, if the flags say so.
    ///
    /// A handler above this may fork, and its child go on here while the parent's caller writes to
    /// the frames, which the two may share. So a look comes before each: a child that is forked
    /// right after it zeroes one page.
    fn prepare(&self, start: Pfn, frames: u32, flags: Flags) -> Result<Pfn, Unusable> {
        let page_size = self.options.page_size;
        if let Some(map) = self.options.linear_map.filter(|_| flags.is_zeroed()) {
            // A frame that was freed twice may be in a cache while it holds magazines.
            let is_own = are_carved(self.caches, start, frames);
            assert!(!is_own, "{start} is the allocator's own: it was freed twice");
            for frame in (0..frames).map(|i| start.add(i)) {
                self.caches.cpus.environment().check_usable()?;
                let first =
                    core::ptr::with_exposed_provenance_mut::<u8>(map.address(frame, page_size));
                // SAFETY: mapped there, and the caller's alone, by the promise of `LinearMap::new`:
                // each frame is freed by its holder, once. Magazines are not among them.
                unsafe { first.write_bytes(0, page_size.bytes()) };
            }
        }
        Ok(start)
    }
}

/// Whether any of these frames, which are memory, holds the allocator's own magazines.
pub(crate) fn are_carved<C>(caches: &Caches<'_, C>, start: Pfn, frames: u32) -> bool {
    caches.store.tags.is_any_near(start, frames, Tag::is_carved)
        && caches.pcps.state.carved.any(start, frames)
}

const ALLOCATED: u8 = 0x80;

/// The bytes of all frames. Without the option there are none, and every method returns at once.
impl<C: Cpus> Hooks<'_, '_, C> {
    fn state(&self, pfn: Pfn) -> Option<&AtomicU8> {
        if !self.options.is_checked {
            return None;
        }
        let section = self.caches.store.bitmap.section((pfn.get() / SECTION_FRAMES) as usize)?;
        let bytes = (&raw const *section).addr() + size_of::<Section<'_>>();
        let at = (pfn.get() % SECTION_FRAMES) as usize;
        // SAFETY: with `checked`, `layout::section_bytes` puts SECTION_FRAMES bytes behind each
        // section, zeroed by `build`; their provenance was exposed there.
        Some(unsafe { &*core::ptr::with_exposed_provenance::<AtomicU8>(bytes + at) })
    }

    #[inline(never)]
    pub fn note_alloc(&self, pfn: Pfn, order: Order) {
        if let Some(state) = self.state(pfn) {
            // Relaxed: the block itself was acquired; this only has to be atomic.
            let before = state.swap(ALLOCATED | order.get() as u8, Ordering::Relaxed);
            assert!(before == 0, "{pfn} was handed out while allocated");
        }
    }

    /// Notes that a block has come back.
    #[inline(never)]
    pub fn note_free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let Some(state) = self.state(pfn) else { return Ok(()) };
        let allocated = ALLOCATED | order.get() as u8;
        state
            .compare_exchange(allocated, 0, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| FreeError::NotAllocated)
    }

    /// Splits an allocated block into blocks of order `to`. O(parts), or O(1) without the option.
    fn note_split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        let Some(state) = self.state(pfn) else { return Ok(()) };
        let (old, new) = (ALLOCATED | from.get() as u8, ALLOCATED | to.get() as u8);
        state
            .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| FreeError::NotAllocated)?;
        for part in (to.frames()..from.frames()).step_by(to.frames() as usize) {
            if let Some(state) = self.state(pfn.add(part)) {
                state.store(new, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Marks frames as allocated one by one: ranges may be freed whole or frame by frame.
    pub fn note_range(&self, start: Pfn, frames: u32) {
        if self.options.is_checked {
            (0..frames).for_each(|i| self.note_alloc(start.add(i), Order::BASE));
        }
    }

    /// Notes frames like [`note_range`](Self::note_range) that were allocated as one block.
    pub fn note_block_as_range(&self, start: Pfn, frames: u32) {
        if let Some(state) = self.state(start) {
            // Relaxed: the caller holds the block.
            state.store(ALLOCATED, Ordering::Relaxed);
        }
        self.note_range(start.add(1), frames - 1);
    }

    /// The opposite; on an error nothing has changed.
    pub fn note_range_free(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        if !self.options.is_checked {
            return Ok(());
        }
        for i in 0..frames {
            if let Err(error) = self.note_free(start.add(i), Order::BASE) {
                for undo in 0..i {
                    if let Some(state) = self.state(start.add(undo)) {
                        state.store(ALLOCATED, Ordering::Relaxed);
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
