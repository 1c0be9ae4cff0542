//! Exact checks: a byte per frame that says which blocks are allocated, and two for the CPU that
//! allocated them.
//!
//! | byte | meaning |
//! |---|---|
//! | 0 | no allocated block begins here |
//! | 0x80 + order | a block of this order begins here |
//!
//! The byte of a block's first frame is exchanged atomically by `free`, before the block goes
//! anywhere: of two frees of one block exactly one succeeds. All accesses are Relaxed: what hands a
//! block from one holder to the next orders its bytes too, so each only has to be atomic.
#![allow(unsafe_code, reason = "finds the bytes behind a section by address")]

use super::config::Checks;
use super::error::FreeError;
use crate::cpus::Cpus;
use crate::frame::pageblock::SECTION_FRAMES;
use crate::frame::{Order, Pfn};
use crate::pcp::Caches;
use crate::store::section::Section;
use crate::sync::count;
use crate::sync::prim::{AtomicU8, Ordering};

const ALLOCATED: u8 = 0x80;

/// Bytes per frame of the record of which CPU got it.
pub const OWNER_BYTES: usize = 2;

/// The bytes of all frames. Without the options there are none, and every method returns at once.
pub(super) struct FrameBytes<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub checks: Checks,
}

impl<C: Cpus> FrameBytes<'_, '_, C> {
    /// Address of the byte arrays of the section of `pfn`, and the frame's place in them.
    fn extra(&self, pfn: Pfn) -> Option<(usize, usize)> {
        let section = self.caches.store.section((pfn.get() / SECTION_FRAMES) as usize)?;
        let address = (&raw const *section).addr() + size_of::<Section<'_>>();
        Some((address, (pfn.get() % SECTION_FRAMES) as usize))
    }

    fn state(&self, pfn: Pfn) -> Option<&AtomicU8> {
        let (bytes, at) = self.checks.checked.then(|| self.extra(pfn)).flatten()?;
        // SAFETY: with `checked`, `layout::section_bytes` puts SECTION_FRAMES bytes behind each
        // section, zeroed by `build`; their provenance was exposed there.
        Some(unsafe { &*core::ptr::with_exposed_provenance::<AtomicU8>(bytes + at) })
    }

    /// The two bytes that say which CPU got the frame.
    fn owner(&self, pfn: Pfn) -> Option<[&AtomicU8; OWNER_BYTES]> {
        let (bytes, at) = self.checks.track_owner.then(|| self.extra(pfn)).flatten()?;
        let first =
            bytes + usize::from(self.checks.checked) * SECTION_FRAMES as usize + at * OWNER_BYTES;
        // SAFETY: as in `state`: with `track_owner` 2 * SECTION_FRAMES more bytes follow.
        Some([0, 1].map(|i| unsafe { &*core::ptr::with_exposed_provenance::<AtomicU8>(first + i) }))
    }

    #[inline(never)]
    pub fn note_alloc(&self, pfn: Pfn, order: Order) {
        if let Some(state) = self.state(pfn) {
            // Relaxed: the block itself was acquired; this only has to be atomic.
            let before = state.swap(ALLOCATED | order.get() as u8, Ordering::Relaxed);
            assert!(before == 0, "{pfn} was handed out while allocated");
        }
        if let (Some(owner), Some(here)) = (self.owner(pfn), self.caches.cpus.here()) {
            for (byte, value) in owner.iter().zip((here.cpu.get() as u16).to_le_bytes()) {
                byte.store(value, Ordering::Relaxed);
            }
        }
    }

    #[inline(never)]
    pub fn note_free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.end_state(pfn, order)?;
        self.note_remote(pfn, order.frames());
        Ok(())
    }

    fn end_state(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let Some(state) = self.state(pfn) else { return Ok(()) };
        let allocated = ALLOCATED | order.get() as u8;
        state
            .compare_exchange(allocated, 0, Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| FreeError::NotAllocated)
    }

    /// Counts the frames of a block if another CPU got it.
    fn note_remote(&self, pfn: Pfn, frames: u32) {
        if let (Some(owner), Some(here)) = (self.owner(pfn), self.caches.here()) {
            let got = u16::from_le_bytes(owner.map(|byte| byte.load(Ordering::Relaxed)));
            if got != here.cpu.get() as u16
                && let Some(tag) = self.caches.store.tags().tag(pfn)
            {
                count(
                    &self.caches.pcps.pcp(here.cpu, tag.zone()).counters.remote_freed_pages,
                    frames.into(),
                );
            }
        }
    }

    /// Splits an allocated block into blocks of order `to`. O(parts), or O(1) without options.
    pub fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        if !self.checks.any() {
            return Ok(());
        }
        if let Some(state) = self.state(pfn) {
            let (old, new) = (ALLOCATED | from.get() as u8, ALLOCATED | to.get() as u8);
            state
                .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
                .map_err(|_| FreeError::NotAllocated)?;
        }
        for part in (to.frames()..from.frames()).step_by(to.frames() as usize) {
            self.note_part(pfn, pfn.add(part), to);
        }
        Ok(())
    }

    fn note_part(&self, whole: Pfn, part: Pfn, order: Order) {
        if let Some(state) = self.state(part) {
            state.store(ALLOCATED | order.get() as u8, Ordering::Relaxed);
        }
        if let (Some(from), Some(to)) = (self.owner(whole), self.owner(part)) {
            for (from, to) in from.iter().zip(to) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Marks frames as allocated one by one: ranges may be freed whole or frame by frame.
    pub fn note_range(&self, start: Pfn, frames: u32) {
        if self.checks.any() {
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
        if !self.checks.any() {
            return Ok(());
        }
        for i in 0..frames {
            if let Err(error) = self.end_state(start.add(i), Order::BASE) {
                for undo in 0..i {
                    if let Some(state) = self.state(start.add(undo)) {
                        state.store(ALLOCATED, Ordering::Relaxed);
                    }
                }
                return Err(error);
            }
        }
        (0..frames).for_each(|i| self.note_remote(start.add(i), 1));
        Ok(())
    }
}
