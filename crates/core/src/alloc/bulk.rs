//! Many blocks at once.

use super::allocator::Allocator;
use super::blocks::Blocks;
use super::error::{AllocError, FreeError};
use super::flags::Flags;
use super::undo::Undo;
use crate::cpus::{Cpus, Environment};
use crate::frame::Class;
use crate::frame::pageblock::Tag;
use crate::frame::{Order, Pfn, ZoneId};
use crate::zone::Reserve;

/// Blocks taken from the store, or returned to it, between two looks at anything else.
const CHUNK_BLOCKS: usize = 64;

/// Some blocks of a batch were not freed; all others were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeManyError {
    /// The first bad block's place in the batch.
    pub first: usize,
    /// What was wrong with it.
    pub error: FreeError,
    /// How many were bad.
    pub failed: usize,
}

impl core::fmt::Display for FreeManyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} blocks were not freed, the first at place {}: {}",
            self.failed, self.first, self.error
        )
    }
}

impl core::error::Error for FreeManyError {}

/// Batches of blocks.
struct Bulk<'a, 'm, C> {
    blocks: Blocks<'a, 'm, C>,
}

impl<C: Cpus> Bulk<'_, '_, C> {
    fn alloc(&self, order: Order, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.blocks.caches.cpus.environment().check_usable()?;
        // A callback, and what is told of misuse, may panic.
        let hooks = self.blocks.hooks();
        let undo = Undo { hooks: &hooks, order };
        undo.keep_while(out, |out, got| self.fill(order, flags, out, got))
    }

    fn fill(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
        got: &mut usize,
    ) -> Result<usize, AllocError> {
        while *got < out.len() {
            let Some(frame) = self.blocks.pop(order, flags) else { break };
            out[*got] = Pfn::new(frame);
            *got += 1;
        }
        if out.len() - *got >= CHUNK_BLOCKS {
            while *got < out.len() {
                let chunk = (out.len() - *got).min(CHUNK_BLOCKS);
                match self.take_chunk(order, flags, &mut out[*got..*got + chunk]) {
                    0 => break,
                    more => *got += more,
                }
            }
        }
        let hooks = self.blocks.hooks();
        out[..*got].iter().for_each(|&pfn| hooks.on_alloc(pfn, order, flags));
        while *got < out.len() {
            match self.blocks.alloc(order, flags) {
                Ok(pfn) => out[*got] = pfn,
                Err(_) if *got > 0 => break,
                Err(error) => return Err(error),
            }
            *got += 1;
        }
        Ok(*got)
    }

    /// Takes blocks from the store of the first zone that may give as many, above its `low`.
    fn take_chunk(&self, order: Order, flags: Flags, out: &mut [Pfn]) -> usize {
        let caches = self.blocks.caches;
        let here = caches.here();
        // A closed gate leads here, too.
        if let Some(here) = here {
            caches.hand_over(here);
        }
        let walk = self.blocks.walk();
        let pages = u64::from(order.frames()) * out.len() as u64;
        let Some(zone) = walk
            .zones_for(caches.node_of(here), flags)
            .find(|&zone| caches.may_give(zone, pages, Reserve::AboveLow))
        else {
            return 0;
        };
        let got = caches.direct(here, zone).take_many(order, flags.mobility(), flags.manner(), out);
        // A word's blocks come in descending order; programs like them ascending.
        out[..got].reverse();
        got
    }

    fn free_chunk(&self, blocks: &[(Pfn, Order)], mut on_bad: impl FnMut(usize, FreeError)) {
        let hooks = self.blocks.hooks();
        let mut run: [Pfn; CHUNK_BLOCKS] = [Pfn::new(0); CHUNK_BLOCKS];
        let mut length = 0;
        let mut kind: Option<(Order, ZoneId)> = None;
        for (place, &(pfn, order)) in blocks.iter().enumerate() {
            if self.blocks.caches.push_simple(pfn, order) {
                continue;
            }
            let tag = match hooks.check_free(pfn, order) {
                Ok(tag) => tag,
                Err(error) => {
                    on_bad(place, error);
                    continue;
                }
            };
            if let Some(class) = Class::of(order)
                && (self.blocks.push_untried(pfn, class, tag)
                    || self.free_below_high(pfn, class, tag))
            {
                continue;
            }
            if kind != Some((order, tag.zone())) {
                self.put_run(kind, &run[..length]);
                length = 0;
                kind = Some((order, tag.zone()));
            }
            run[length] = pfn;
            length += 1;
        }
        self.put_run(kind, &run[..length]);
    }

    /// Frees a block by the slow path while the CPU caches less than `high`.
    fn free_below_high(&self, pfn: Pfn, class: Class, tag: Tag) -> bool {
        let caches = self.blocks.caches;
        let Some(here) = caches.here() else { return false };
        // A block that was free already is gone, too, and noted.
        !caches.share(here.cpu, tag.zone()).above_high()
            && matches!(
                self.blocks.free_slowly(pfn, class, tag),
                Ok(()) | Err(FreeError::NotAllocated)
            )
    }

    fn put_run(&self, kind: Option<(Order, ZoneId)>, run: &[Pfn]) {
        let Some((order, zone)) = kind else { return };
        let caches = self.blocks.caches;
        caches.direct(caches.here(), zone).put_many(order, run);
    }

    fn free(&self, batch: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let caches = self.blocks.caches;
        if let Err(why) = caches.cpus.environment().check_usable() {
            return Err(FreeManyError { first: 0, error: why.into(), failed: batch.len() });
        }
        let mut bad: Option<FreeManyError> = None;
        for (chunk, blocks) in batch.chunks(CHUNK_BLOCKS).enumerate() {
            self.free_chunk(blocks, |place, error| {
                let place = chunk * CHUNK_BLOCKS + place;
                let sum = bad.get_or_insert(FreeManyError { first: place, error, failed: 0 });
                sum.failed += 1;
            });
        }
        caches.store.end_call(|| ());
        bad.map_or(Ok(()), Err)
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// Allocates up to `out.len()` blocks of `order`; returns how many, at least 1 unless `out` is
    /// empty. `out` is filled from the front; the rest of it is left as it was.
    ///
    /// Empties this CPU's front first, then takes from the store in chunks of 64 blocks, past the
    /// caches.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), when not even one block was to be had.
    pub fn alloc_many(
        &self,
        order: Order,
        flags: Flags,
        out: &mut [Pfn],
    ) -> Result<usize, AllocError> {
        Bulk { blocks: self.blocks() }.alloc(order, flags, out)
    }

    /// Frees a batch of blocks of any orders, mobilities and zones, as when a process exits.
    ///
    /// Blocks go to this CPU's fronts and shelves until these reach `high`; the others go straight
    /// to the store in chunks of 64, neighbours of one order by one atomic operation, so a batch in
    /// ascending order costs least. O(batch).
    ///
    /// # Errors
    /// Bad blocks are skipped and counted; all others are freed.
    pub fn free_many(&self, batch: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        Bulk { blocks: self.blocks() }.free(batch)
    }
}
