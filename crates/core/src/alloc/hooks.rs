//! Work on a block on its way to a caller, and checks on its way back.
//!
//! The kernel's `post_alloc_hook` and `free_pages_prepare`.
#![allow(unsafe_code, reason = "zeroes pages")]

use super::checked::FrameBytes;
use super::config::Checks;
use super::error::FreeError;
use super::flags::Flags;
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::Tag;
use crate::frame::{LinearMap, Order, PageSize, Pfn};
use crate::pcp::Caches;

/// Options of the configuration that apply at these moments.
pub(crate) struct Options {
    pub(super) checks: Checks,
    pub linear_map: Option<LinearMap>,
    pub page_size: PageSize,
}

/// The work on blocks and their checks.
pub(crate) struct Hooks<'a, 'm, C> {
    pub caches: &'a Caches<'m, C>,
    pub options: &'a Options,
}

impl<'a, 'm, C: Cpus> Hooks<'a, 'm, C> {
    /// The bytes of frames that the options `checked` and `track_owner` keep.
    pub(super) fn frame_bytes(&self) -> FrameBytes<'a, 'm, C> {
        FrameBytes { caches: self.caches, checks: self.options.checks }
    }

    /// Blocks go to a caller.
    #[inline]
    pub fn on_alloc_many(&self, blocks: &[Pfn], order: Order, flags: Flags) {
        if self.options.checks.any() || flags.is_zeroed() {
            blocks.iter().for_each(|&pfn| self.on_alloc(pfn, order, flags));
        }
    }

    /// A block goes to a caller.
    pub fn on_alloc(&self, pfn: Pfn, order: Order, flags: Flags) {
        if self.options.checks.any() {
            self.frame_bytes().note_alloc(pfn, order);
        }
        if flags.is_zeroed() {
            self.zero(pfn, order);
        }
    }

    /// A range goes to a caller.
    pub fn on_alloc_range(&self, start: Pfn, frames: u32, flags: Flags) {
        self.frame_bytes().note_range(start, frames);
        if flags.is_zeroed() {
            (0..frames).for_each(|i| self.zero(start.add(i), Order::BASE));
        }
    }

    /// A block comes back: its checks, which every block passes.
    #[inline]
    pub fn check_free(&self, pfn: Pfn, order: Order) -> Result<Tag, FreeError> {
        let tag = self.caches.store.tags().of_block(pfn, order).ok_or(FreeError::OutOfRange)?;
        if !pfn.is_aligned(order) {
            return Err(FreeError::Misaligned);
        }
        if are_carved(self.caches, pfn, order.frames()) {
            return Err(FreeError::NotAllocated);
        }
        if self.options.checks.any() {
            self.caches.cpus.environment().check_usable()?;
            self.frame_bytes().note_free(pfn, order)?;
        }
        Ok(tag)
    }

    /// Notes in the frames' bytes, if there are any, that a block has come back.
    pub fn note_free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        if self.options.checks.any() { self.frame_bytes().note_free(pfn, order) } else { Ok(()) }
    }

    /// Puts a block that was allocated and never reached its caller back into the store, without a
    /// report of misuse.
    #[cold]
    pub fn take_back(&self, pfn: Pfn, order: Order) {
        let Some(tag) = self.caches.store.tags().tag(pfn) else { return };
        // Fails where the panic came before `note_alloc`.
        let _ = self.note_free(pfn, order);
        self.caches.direct(self.caches.here(), tag.zone()).put(pfn, order);
    }

    /// Makes blocks of order `to` of an allocated block.
    pub fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        if to > from || !pfn.is_aligned(from) {
            return Err(FreeError::Misaligned);
        }
        self.caches.cpus.environment().check_usable()?;
        self.caches.store.tags().of_block(pfn, from).ok_or(FreeError::OutOfRange)?;
        if are_carved(self.caches, pfn, from.frames()) {
            return Err(FreeError::NotAllocated);
        }
        self.frame_bytes().split(pfn, from, to)
    }

    /// Zeroes a block, if the allocator can reach it.
    fn zero(&self, pfn: Pfn, order: Order) {
        let page_size = self.options.page_size;
        if let Some(map) = self.options.linear_map {
            // A frame that was freed twice may be in a cache while it holds magazines.
            assert!(
                !are_carved(self.caches, pfn, order.frames()),
                "{pfn} is the allocator's own: it was freed twice"
            );
            let bytes = page_size.bytes() << order.get();
            let start = core::ptr::with_exposed_provenance_mut::<u8>(map.address(pfn, page_size));
            // SAFETY: mapped there, and the caller's alone, by the promise of `LinearMap::new`:
            // each frame is freed by its holder, once. Magazines are not among them.
            unsafe { start.write_bytes(0, bytes) };
        }
    }
}

/// Whether any of these frames, which are memory, holds the allocator's own magazines.
pub(crate) fn are_carved<C>(caches: &Caches<'_, C>, start: Pfn, frames: u32) -> bool {
    caches.store.tags().are_carved_near(start, frames) && caches.pcps.carved().any(start, frames)
}
