//! Frames that areas own: from the page allocator into the frame table, and back.
//!
//! This module has unsafe code: it frees and splits the host's blocks.
#![allow(unsafe_code)]

use core::cell::Cell;

use crate::error::VmapError;
use crate::metadata::frames::FrameTable;
use crate::node::counters::Counters;
use crate::seams::host::Host;
use crate::undo::Undo;
use crate::units::{PageRange, Vpn};
use pagedepot::sync::count;
use pagedepot::{Flags, Order, Pfn};

/// Blocks returned to the page allocator at a time.
const FREE_BATCH: usize = 64;
/// Single frames requested at a time.
const FRAME_BATCH: usize = 64;

/// The frame table, and the host that the frames come from.
pub struct OwnFrames<'a, 'm, H> {
    host: &'a H,
    frames: &'a FrameTable<'m>,
    counters: &'a Counters,
}

impl<'a, 'm, H: Host> OwnFrames<'a, 'm, H> {
    pub fn new(host: &'a H, frames: &'a FrameTable<'m>, counters: &'a Counters) -> Self {
        OwnFrames { host, frames, counters }
    }

    /// Allocates frames for `run`, pages of an area that the caller holds, and enters them: in the
    /// largest blocks that the page allocator has at hand, single frames otherwise. On an error, or
    /// a panic of the host, all of them are freed again.
    ///
    /// A block takes reclaim only if `prefers_long_runs`.
    pub fn allocate(
        &self,
        run: PageRange,
        flags: Flags,
        prefers_long_runs: bool,
    ) -> Result<(), VmapError> {
        let block_flags = if prefers_long_runs { flags } else { flags.no_reclaim() };
        let at = Cell::new(run.start);
        let undo = Undo(|| self.take_out(PageRange { start: run.start, end: at.get() }));
        let mut order_max = Order::MAX.get();
        while at.get() < run.end {
            let left = run.end.since(at.get());
            let order = left.ilog2().min(order_max);
            let entered = match order {
                0 => self.enter_singles(at.get(), left, flags),
                _ => self.enter_block(at.get(), order, block_flags).ok_or(VmapError::BadFrame),
            };
            match entered {
                Ok(pages) => at.set(at.get().add(pages)),
                // No such block at hand: smaller ones from here on.
                Err(_) if order > 0 => order_max = order - 1,
                Err(error) => return Err(error),
            }
        }
        undo.forget();
        Ok(())
    }

    /// Frees the blocks that an area owns in `run`, which are not mapped, and clears the entries.
    pub fn take_out(&self, run: PageRange) {
        let undo = Undo(|| {
            self.free(run);
            self.frames.clear(run);
        });
        self.free(run);
        undo.forget();
        self.frames.clear(run);
    }

    /// Allocates and enters a block of `order`; returns its pages.
    fn enter_block(&self, at: Vpn, order: u32, flags: Flags) -> Option<u32> {
        let order = Order::new(order)?;
        let frame = self.host.alloc_block(order, flags).ok()?;
        self.enter(at, frame, order)
    }

    /// Allocates and enters up to `left` single frames; returns their number.
    fn enter_singles(&self, at: Vpn, left: u32, flags: Flags) -> Result<u32, VmapError> {
        let mut frames = [Pfn::new(0); FRAME_BATCH];
        let wanted = frames.len().min(left as usize);
        let got = self.host.alloc_frames(flags, &mut frames[..wanted])?;
        let mut entered = 0;
        for &frame in &frames[..got] {
            entered += self.enter(at.add(entered), frame, Order::BASE).unwrap_or(0);
        }
        if entered == 0 { Err(VmapError::BadFrame) } else { Ok(entered) }
    }

    /// Enters a block that was just allocated. If the table cannot hold its numbers, frees it.
    fn enter(&self, at: Vpn, frame: Pfn, order: Order) -> Option<u32> {
        if u64::from(frame.get()) + u64::from(order.frames()) > u64::from(u32::MAX) {
            // SAFETY: the caller has just allocated the block, and not used it.
            let _ = unsafe { self.host.free_blocks(&[(frame, order)]) };
            return None;
        }
        self.frames.put_block(at, frame, order);
        Some(order.frames())
    }

    /// Makes the block that covers `at`, in an area that the caller holds, single frames, so that
    /// it can be freed in part. `false`: the host keeps it whole.
    pub fn split_at(&self, at: Vpn) -> Result<bool, VmapError> {
        let block_at = self.frames.block_start(at);
        if block_at == at {
            return Ok(true);
        }
        let (frame, order) = self.frames.block_at(block_at).ok_or(VmapError::BadFrame)?;
        // SAFETY: a block of the area, which the caller holds.
        if !unsafe { self.host.split_block(frame, order) } {
            return Ok(false);
        }
        self.frames.split_block(block_at, order);
        Ok(true)
    }

    /// Frees the blocks that an area owns in `run`, which are not mapped. The caller owns the area.
    /// Returns the number of frames. If the host panics, the area does not own the blocks any more
    /// that the host got.
    pub fn free(&self, run: PageRange) -> u64 {
        let mut batch = [(Pfn::new(0), Order::BASE); FREE_BATCH];
        let (mut filled, mut frames) = (0, 0);
        let free = |blocks: &[(Pfn, Order)], end: Vpn| {
            let undo = Undo(|| self.frames.disown(PageRange { start: run.start, end }));
            // SAFETY: the area's own blocks. They are not mapped, so they are not used.
            if let Err(error) = unsafe { self.host.free_blocks(blocks) } {
                count(&self.counters.misfreed_frames, error.failed as u64);
            }
            undo.forget();
        };
        for (page, block) in self.frames.own_blocks(run) {
            frames += u64::from(block.1.frames());
            batch[filled] = block;
            filled += 1;
            if filled == FREE_BATCH {
                free(&batch, page.add(block.1.frames()));
                filled = 0;
            }
        }
        free(&batch[..filled], run.end);
        frames
    }
}
