//! Short-lived mappings of the caller's frames (Linux: `vm_map_ram`), in two manners.
//!
//! *Pools*: an area for each, like [`vmap`](Vmap::vmap).
//!
//! *Blocks*: each node has a current block of address space, two megabytes with 4 KiB pages, and
//! hands it out from its start to its end; what is unmapped is not handed out again until all of
//! the block was unmapped and purged. So mapping takes one compare-and-swap and no descriptor,
//! but one mapping that lives long keeps a whole block. There are no guard pages inside.
//!
//! # The current block of a node
//! | bits | field |
//! |---|---|
//! | 0..=15 | pages handed out: the next one to hand out |
//! | 16..=39 | the block's number plus 1; 0: none |
//! | 40..=63 | tag: changes so far |
//!
//! # Argument
//! A page is handed out by one compare-and-swap, which moves the offset past it for the block's
//! life. Its user returns it by setting its bit, and finds out if it was set. The purger alone sets
//! `purged`, for pages it has seen returned. So a page that is not returned keeps its block: a
//! block is free only when all its pages are purged, and a node's word that still names it then
//! stands at the block's end, where nothing is handed out. A stale word fails by its tag. The tag
//! wraps after 2^24 changes, a second or so of nothing else, which is harmless: unlike the head of
//! a stack the word holds everything that a change of it is computed from, so a word that comes
//! back means what it says.

use core::panic::Location;

use super::Vmap;
use super::area::{Area, AreaIndex, State};
use super::config::Options;
use super::error::{Kind, MapError, VfreeError, VmapError};
use super::metadata::Metadata;
use super::node::Node;
use super::purge::{Batch, PurgeDepth, Purged};
use super::ram_block::RamBlock;
use super::seams::{Host, Mapper};
use super::units::{Run, VirtAddr, Vpn};
use pagedepot::Pfn;
use pagedepot::sync::prim::Ordering;

/// Pages of a block.
pub const BLOCK_PAGES: u32 = if cfg!(loom) { 4 } else { 512 };
/// Most pages that one mapping takes from a block (`VMAP_MAX_ALLOC`); more come from the pools.
pub const RAM_PAGES_MAX: u32 = if cfg!(loom) { 2 } else { 64 };
/// Where a short-lived mapping gets its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// An area of its own, from the node's pools.
    #[default]
    Pools,
    /// The node's current block; the pools where there is none to be had.
    Blocks,
}

impl Metadata<'_> {
    /// The block that an area is.
    pub fn block_of(&self, area: &Area) -> Option<&RamBlock> {
        self.blocks.get((area.block.load(Ordering::Relaxed) as usize).wrapping_sub(1))
    }

    /// The frame that its user has mapped at a page of a busy area.
    pub fn frame_at(&self, area: &Area, page: Vpn) -> Option<Pfn> {
        let is_gone = area.word().kind() == Kind::RamBlock
            && self
                .block_of(area)
                .is_none_or(|block| block.is_returned(page.since(area.start()), 1));
        if is_gone { None } else { self.frames.get(page) }
    }
}

/// The value of a node's word.
#[derive(Clone, Copy)]
struct Current(u64);

impl Current {
    /// The current block's place in the table.
    fn block(self) -> Option<usize> {
        ((self.0 >> 16 & 0xff_ffff) as usize).checked_sub(1)
    }

    fn offset(self) -> u32 {
        (self.0 & 0xffff) as u32
    }

    fn next(self, block: Option<usize>, offset: u32) -> u64 {
        let tag = (self.0 >> 40).wrapping_add(1);
        tag << 40 | (block.map_or(0, |block| block as u64 + 1)) << 16 | u64::from(offset)
    }
}

impl<M: Mapper, H: Host> Vmap<'_, M, H> {
    /// Maps the caller's frames for a short while. In [`Manner::Blocks`], up to 64 pages come from
    /// this CPU's block, without a guard and whatever the options say about place.
    ///
    /// # Errors
    /// [`VmapError`]; nothing stays mapped but until the next purge.
    #[track_caller]
    pub fn vm_map_ram(
        &self,
        frames: &[Pfn],
        manner: Manner,
        options: Options,
    ) -> Result<VirtAddr, VmapError> {
        let caller = Location::caller();
        if frames.is_empty() {
            return Err(VmapError::BadSize);
        }
        if manner == Manner::Blocks
            && frames.len() <= RAM_PAGES_MAX as usize
            && let Some((block, run)) = self.take_pages(frames.len() as u32, &options, caller)
        {
            match self.map_in_block(block, run, frames, &options) {
                // Pages that were lost since the block was made are not handed out again.
                Err(VmapError::Map(MapError::Lost)) => {}
                result => return result,
            }
        }
        let area = self.obtain_mapped(frames, Kind::Ram, &options)?;
        Ok(self.publish(area, Kind::Ram, &options, false, caller))
    }

    fn map_in_block(
        &self,
        block: &RamBlock,
        run: Run,
        frames: &[Pfn],
        options: &Options,
    ) -> Result<VirtAddr, VmapError> {
        let Some(area) = block.area().map(|index| &self.metadata.areas[index]) else {
            return Err(VmapError::NotAllocated);
        };
        let mapped = self
            .lend(run.start, frames)
            .and_then(|()| self.map_run(area, run, options.protection, !options.no_wait));
        if let Err(error) = mapped {
            self.return_pages(block, area, run);
            return Err(error);
        }
        Ok(self.range.addr(run.start))
    }

    /// Unmaps what [`vm_map_ram`](Self::vm_map_ram) mapped; `pages` is how many frames that were.
    /// As with [`vunmap`](Self::vunmap), the mapping goes with the next purge.
    ///
    /// # Errors
    /// [`VfreeError`]; nothing is changed then.
    pub fn vm_unmap_ram(&self, start: VirtAddr, pages: u32) -> Result<(), VfreeError> {
        let page = self.range.page_at(start).ok_or(VfreeError::OutOfRange)?;
        let index = self.metadata.index.candidate(page).ok_or_else(|| self.why_not_freed(start))?;
        let area = &self.metadata.areas[index];
        if area.word().is_busy(Kind::RamBlock) && page < area.end() {
            return self.unmap_in_block(area, page, pages);
        }
        if self.busy_at(start, Kind::Ram).is_some() && area.body().pages() != pages {
            return Err(VfreeError::NotAllocated);
        }
        self.release(start, Kind::Ram, true)
    }

    fn unmap_in_block(&self, area: &Area, page: Vpn, pages: u32) -> Result<(), VfreeError> {
        let block = self.metadata.block_of(area).ok_or(VfreeError::NotAllocated)?;
        let offset = page.since(area.start());
        if pages == 0 || pages > BLOCK_PAGES - offset {
            return Err(VfreeError::NotAllocated);
        }
        let run = Run::new(page, pages);
        let mapped = run.iter().all(|page| self.metadata.frames.is_mapped(page));
        if !mapped || block.is_returned(offset, pages) || !self.return_pages(block, area, run) {
            return Err(VfreeError::NotAllocated);
        }
        Ok(())
    }

    /// Leaves pages of a block to the next purge.
    fn return_pages(&self, block: &RamBlock, area: &Area, run: Run) -> bool {
        let node = &self.metadata.nodes[area.traits().node()];
        let (start, pages) = (area.start(), run.pages());
        node.lazy.add_pages(i64::from(pages));
        // From here on a purge may take the block away.
        let returned = block.give_back(run.start.since(start), pages);
        self.after_lazy(node.lazy.pages(), pages, true);
        returned
    }

    /// Pages of this node's current block, or of a new one.
    fn take_pages(
        &self,
        pages: u32,
        options: &Options,
        caller: &'static Location<'static>,
    ) -> Option<(&RamBlock, Run)> {
        let node = self.node_here().1;
        // Acquire: pairs with the Release below: the block is complete.
        let mut word = node.ram_block.load(Ordering::Acquire);
        loop {
            let now = Current(word);
            let current = now.block().filter(|_| now.offset() + pages <= BLOCK_PAGES);
            let (block, offset) = match current {
                Some(block) => (block, now.offset()),
                None => (self.new_block(options, caller)?, 0),
            };
            let next = now.next(Some(block), offset + pages);
            match node.ram_block.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if let (None, Some(old)) = (current, now.block()) {
                        self.close_block(old, now.offset());
                    }
                    let block = &self.metadata.blocks[block];
                    let start = self.metadata.areas[block.area()?].start();
                    return Some((block, Run::new(start.add(offset), pages)));
                }
                Err(other) => {
                    if current.is_none() {
                        // Somebody else has made one: the whole of this goes with the next purge.
                        self.close_block(block, 0);
                    }
                    word = other;
                }
            }
        }
    }

    /// A block of one's own, nothing handed out.
    #[cold]
    fn new_block(&self, options: &Options, caller: &'static Location<'static>) -> Option<usize> {
        let number = self.metadata.blocks.iter().position(RamBlock::claim)?;
        let block = &self.metadata.blocks[number];
        let whole = Options::DEFAULT
            .align((BLOCK_PAGES as usize) << self.range.page_size.shift())
            .guard_pages(0);
        let whole = Options { no_wait: options.no_wait, ..whole };
        let Ok(index) = self.obtain(BLOCK_PAGES, &whole) else {
            block.unclaim();
            return None;
        };
        self.metadata.areas[index].block.store(number as u32 + 1, Ordering::Relaxed);
        self.publish(index, Kind::RamBlock, &whole, false, caller);
        block.open(index);
        Some(number)
    }

    /// No more is handed out of a block: from `offset` on it is as returned.
    fn close_block(&self, number: usize, offset: u32) {
        let block = &self.metadata.blocks[number];
        let rest = BLOCK_PAGES - offset;
        // At its end a word may name a block that is somebody else's by now.
        if let Some(index) = block.area().filter(|_| rest > 0) {
            let node = &self.metadata.nodes[self.metadata.areas[index].traits().node()];
            node.lazy.add_pages(i64::from(rest));
            block.give_back(offset, rest);
        }
    }

    /// Adds the blocks that have something to purge to a batch.
    pub(super) fn collect_blocks(&self, depth: PurgeDepth, batch: &mut Batch) {
        let regular = depth == PurgeDepth::Decay;
        if !regular {
            self.metadata.nodes.iter().for_each(|node| self.close_current(node));
        }
        for block in self.metadata.blocks {
            let Some(index) = block.area() else { continue };
            if block.collect(regular) > 0 {
                batch.push(self.metadata.areas, index);
            }
        }
    }

    fn close_current(&self, node: &Node) {
        let mut word = node.ram_block.load(Ordering::Acquire);
        while Current(word).block().is_some() {
            let next = Current(word).next(None, 0);
            match node.ram_block.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if let Some(block) = Current(word).block() {
                        self.close_block(block, Current(word).offset());
                    }
                    return;
                }
                Err(other) => word = other,
            }
        }
    }

    /// What a purge took of a block is purged; `true`: that was the last of it, and its area is
    /// the purger's.
    pub(super) fn settle_block(&self, index: AreaIndex, purged: &mut Purged) -> bool {
        let area = &self.metadata.areas[index];
        let Some(block) = self.metadata.block_of(area) else { return false };
        let stuck = area.stuck.load(Ordering::Relaxed) != 0;
        purged.stuck_areas += u64::from(stuck);
        let (pages, all) = block.settle(stuck);
        self.metadata.nodes[area.traits().node()].lazy.add_pages(-i64::from(pages));
        if !all {
            return false;
        }
        area.set_word(area.word().plain(State::Held));
        area.set_mapped(0);
        block.unclaim();
        true
    }
}
