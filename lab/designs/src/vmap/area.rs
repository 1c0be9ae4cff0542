//! Areas, and what both designs of the kernel share: frames, mapping, unmapping.

use std::collections::BTreeMap;

use pagedepot::{AllocError, Flags, FrameRange, Order, Pfn};
use pagedepot_vmap::{FlushSpans, Host, Mapper, Protection, Span, VfreeError, VirtAddr, VmapError};

use super::counts::VmapCounts;
use super::run::Run;
use super::tables::Tables;
use super::{FramesFreed, VmapSetup};
use pagedepot_designs::prim::{
    AtomicU64, HintU64, Mutex, MutexGuard, Ordering, Padded, count, lock_mutex, note_area,
    note_change, try_lock_mutex,
};

/// Single frames requested at a time.
const FRAME_BATCH: usize = 64;

/// A busy or lazy area: the kernel's `vmap_area` and `vm_struct` in one.
#[derive(Debug)]
pub struct Area {
    /// The area's addresses, guard included.
    pub run: Run,
    /// The node that allocated it.
    pub node: u32,
    /// Pages mapped, or about to be, from its start; also after they were unmapped, until a flush.
    mapped: u32,
    is_unmapped: bool,
    /// Blocks that the area owns. They are freed once nothing is mapped.
    blocks: Vec<(Pfn, Order)>,
}

impl Area {
    pub const fn new(run: Run, node: u32) -> Self {
        Area { run, node, mapped: 0, is_unmapped: false, blocks: Vec::new() }
    }

    fn body(&self) -> Run {
        Run::new(self.run.start, self.mapped)
    }
}

/// Puts an area into a tree by its first page.
#[inline]
pub fn insert_noted(tree: &mut BTreeMap<u32, Area>, area: Area) {
    note_change(tree, area.run.start);
    note_area(area.run.start);
    tree.insert(area.run.start, area);
}

/// Takes the area that begins at a page from a tree.
#[inline]
pub fn remove_noted(tree: &mut BTreeMap<u32, Area>, page: u32) -> Option<Area> {
    note_change(tree, page);
    note_area(page);
    tree.remove(&page)
}

/// A request's size and alignment.
#[derive(Clone, Copy)]
pub struct AreaRequest {
    /// Guard included.
    pub pages: u32,
    pub align_pages: u64,
}

/// The mapper and the host, the managed range, and the metadata of page tables and flushes.
pub struct Ground<M, H> {
    pub mapper: M,
    pub host: H,
    pub span: Span,
    /// The kernel's `vmap_lazy_nr`.
    pub lazy_pages: Padded<AtomicU64>,
    pub lazy_pages_max: u64,
    frames_freed: FramesFreed,
    tables: Tables,
    purges: HintU64,
    flushed_pages: HintU64,
    needed_pages: HintU64,
}

impl<M: Mapper, H: Host> Ground<M, H> {
    pub fn new(setup: &VmapSetup, mapper: M, host: H) -> Self {
        let span = mapper.span();
        let first_page = (span.start.get() >> mapper.page_size().shift()) as u64;
        let [purges, flushed_pages, needed_pages] = [0; 3].map(HintU64::new);
        let tables = Tables::new(first_page, span.pages, mapper.table_pages());
        let lazy_pages = Padded(AtomicU64::new(0));
        let lazy_pages_max = setup.lazy_pages_max(&mapper);
        Ground {
            mapper,
            host,
            span,
            lazy_pages,
            lazy_pages_max,
            frames_freed: setup.frames_freed,
            tables,
            purges,
            flushed_pages,
            needed_pages,
        }
    }

    /// Takes a lock. Tells the host about a wait, because waiters park.
    pub fn lock<'l, T>(&self, mutex: &'l Mutex<T>) -> MutexGuard<'l, T> {
        try_lock_mutex(mutex).unwrap_or_else(|| {
            self.host.contention_begins();
            let guard = lock_mutex(mutex);
            self.host.contention_ends();
            guard
        })
    }

    /// The managed range, in pages.
    pub fn all(&self) -> Run {
        Run::new(0, self.span.pages)
    }

    /// The page before the range's first, counted from address 0.
    pub fn base_page(&self) -> u64 {
        (self.span.start.get() >> self.mapper.page_size().shift()) as u64
    }

    pub fn addr(&self, page: u32) -> VirtAddr {
        self.span.start.add((page as usize) << self.mapper.page_size().shift())
    }

    fn span_of(&self, run: Run) -> Span {
        Span::new(self.addr(run.start), run.pages())
    }

    /// The page that begins at an address.
    pub fn page_at(&self, addr: VirtAddr) -> Result<u32, VfreeError> {
        let offset = addr.get().wrapping_sub(self.span.start.get());
        let page = offset >> self.mapper.page_size().shift();
        if page >= self.span.pages as usize {
            return Err(VfreeError::OutOfRange);
        }
        if page << self.mapper.page_size().shift() != offset {
            return Err(VfreeError::NotAllocated);
        }
        Ok(page as u32)
    }

    /// A request of this many pages and a guard.
    pub fn wanted(&self, pages: u32, align: usize) -> Result<AreaRequest, VmapError> {
        let total = pages.checked_add(1).filter(|&total| total <= self.span.pages);
        let total = total.filter(|_| pages > 0).ok_or(VmapError::BadSize)?;
        if !align.is_power_of_two() {
            return Err(VmapError::BadAlign);
        }
        Ok(AreaRequest {
            pages: total,
            align_pages: (align as u64 >> self.mapper.page_size().shift()).max(1),
        })
    }

    /// Allocates frames for an area and maps them. Its guard stays unmapped.
    pub fn fill(&self, area: &mut Area) -> Result<(), VmapError> {
        let pages = area.run.pages() - 1;
        area.blocks = self.alloc_blocks(pages)?;
        self.map(area, pages)
    }

    /// Maps the caller's frames into an area.
    pub fn lend(&self, area: &mut Area, frames: &[Pfn]) -> Result<(), VmapError> {
        let frames = frames.iter().map(|&frame| (frame, Order::BASE));
        self.map_blocks(area, frames, area.run.pages() - 1)
    }

    fn map(&self, area: &mut Area, pages: u32) -> Result<(), VmapError> {
        let blocks = std::mem::take(&mut area.blocks);
        let mapped = self.map_blocks(area, blocks.iter().copied(), pages);
        area.blocks = blocks;
        mapped
    }

    /// Maps blocks one behind the other, neighbours by one call.
    fn map_blocks(
        &self,
        area: &mut Area,
        blocks: impl Iterator<Item = (Pfn, Order)>,
        pages: u32,
    ) -> Result<(), VmapError> {
        // From here on a purge unmaps the whole area, even if only a part of it was mapped.
        area.mapped = pages;
        self.tables.enter(area.body());
        let mut at = area.run.start;
        let mut run: Option<(Pfn, u32)> = None;
        for (frame, order) in blocks {
            run = match run {
                Some((first, frames)) if first.get() + frames == frame.get() => {
                    Some((first, frames + order.frames()))
                }
                Some((first, frames)) => {
                    self.map_run(&mut at, first, frames)?;
                    Some((frame, order.frames()))
                }
                None => Some((frame, order.frames())),
            };
        }
        run.map_or(Ok(()), |(first, frames)| self.map_run(&mut at, first, frames))
    }

    fn map_run(&self, at: &mut u32, first: Pfn, frames: u32) -> Result<(), VmapError> {
        let (addr, range) = (self.addr(*at), FrameRange::new(first, frames));
        // SAFETY: the pages are those of an area that is the caller's alone, nothing of it was
        // mapped, and it lies in the span; the frames are the area's or its caller's until they
        // are unmapped.
        unsafe { self.mapper.map(addr, range, Protection::READ_WRITE)? };
        *at += frames;
        Ok(())
    }

    /// Allocates frames for `pages` pages. As in all designs here, it takes the largest blocks that
    /// are available without reclaim first, so that the designs differ in nothing but the
    /// addresses.
    fn alloc_blocks(&self, pages: u32) -> Result<Vec<(Pfn, Order)>, AllocError> {
        let mut blocks = Vec::new();
        let (mut left, mut order_max) = (pages, Order::MAX.get());
        while left > 0 {
            let order = left.ilog2().min(order_max);
            let got = match order {
                0 => self.alloc_singles(left, &mut blocks),
                _ => self.alloc_block(order, &mut blocks),
            };
            match got {
                Ok(got) => left -= got,
                Err(_) if order > 0 => order_max = order - 1,
                Err(error) => {
                    // SAFETY: just allocated, and not used yet.
                    unsafe { self.free_blocks(&blocks) };
                    return Err(error);
                }
            }
        }
        Ok(blocks)
    }

    fn alloc_block(&self, order: u32, blocks: &mut Vec<(Pfn, Order)>) -> Result<u32, AllocError> {
        let order = Order::new(order).expect("at most the largest");
        let flags = if self.mapper.prefers_long_runs() {
            Flags::MOVABLE
        } else {
            Flags::MOVABLE.no_reclaim()
        };
        blocks.push((self.host.alloc_block(order, flags)?, order));
        Ok(order.frames())
    }

    fn alloc_singles(
        &self,
        wanted: u32,
        blocks: &mut Vec<(Pfn, Order)>,
    ) -> Result<u32, AllocError> {
        let mut frames = [Pfn::new(0); FRAME_BATCH];
        let wanted = frames.len().min(wanted as usize);
        let got = self.host.alloc_frames(Flags::MOVABLE, &mut frames[..wanted])?;
        blocks.extend(frames[..got].iter().map(|&frame| (frame, Order::BASE)));
        Ok(got as u32)
    }

    /// # Safety
    /// The blocks came from the host and are the caller's, which uses them no more.
    pub unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.host.free_blocks(blocks) } {
            panic!("the page allocator refused frames that it handed out: {error:?}");
        }
    }

    /// Adds an area's pages to those that are lazy. Returns their number.
    pub fn count_lazy(&self, area: &Area) -> u64 {
        let pages = u64::from(area.run.pages());
        // Relaxed: the number decides nothing but when to purge.
        self.lazy_pages.fetch_add(pages, Ordering::Relaxed) + pages
    }

    /// Subtracts pages that are lazy no more.
    pub fn count_settled(&self, pages: u64) {
        // Relaxed: see `count_lazy`.
        self.lazy_pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Unmaps a freed area where [`FramesFreed::AtFree`] lets the caller do so, and returns its
    /// blocks, for [`free_blocks`](Self::free_blocks).
    pub fn unmap_at_free(&self, area: &mut Area) -> Vec<(Pfn, Order)> {
        if self.frames_freed == FramesFreed::AtPurge || !self.unmap(area) {
            return Vec::new();
        }
        area.is_unmapped = true;
        std::mem::take(&mut area.blocks)
    }

    /// Retires areas: unmaps one after the other what is mapped, flushes their hull, frees their
    /// frames. Takes out, and returns, the areas that could not be unmapped, which keep their
    /// frames. One caller at a time.
    ///
    /// The kernel clears entries and frees frames when it frees an area, and only flushes here:
    /// [`FramesFreed::AtFree`].
    pub fn retire(&self, lists: &mut [Vec<Area>]) -> Vec<Area> {
        let all = || lists.iter().flatten();
        let starts = all().map(|area| area.run.start);
        let ends = all().map(|area| area.run.end);
        let (Some(start), Some(end)) = (starts.min(), ends.max()) else { return Vec::new() };
        let hull = Run { start, end };
        count(&self.purges, 1);
        let needed: u64 = all().map(|area| u64::from(area.mapped)).sum();
        let mut stuck = Vec::new();
        for list in &mut *lists {
            let is_stuck = |area: &mut Area| !area.is_unmapped && !self.unmap(area);
            stuck.extend(list.extract_if(.., is_stuck));
        }
        self.mapper.flush(FlushSpans::one(self.span_of(hull)));
        count(&self.flushed_pages, u64::from(hull.pages()));
        count(&self.needed_pages, needed);
        for area in lists.iter_mut().flatten() {
            // SAFETY: the area's own, unmapped and flushed.
            unsafe { self.free_blocks(&area.blocks) };
            *area = Area::new(area.run, area.node);
        }
        stuck
    }

    /// Unmaps an area in pieces none of which covers a table, because tables are kept: "page tables
    /// are never freed".
    fn unmap(&self, area: &Area) -> bool {
        let body = area.body();
        let half = (self.mapper.table_pages() / 2).max(1);
        let mut start = body.start;
        while start < body.end {
            let end = body.end.min(start + half);
            // SAFETY: the area was freed, so it has no user, and the caller has it for itself: the
            // purger, or the caller that freed it where `VmapSetup::frames_freed` allows that.
            if unsafe { self.mapper.unmap(self.span_of(Run { start, end })) }.is_err() {
                return false;
            }
            start = end;
        }
        true
    }

    /// Adds these counters to `counts`.
    pub fn add_counts(&self, counts: &mut VmapCounts) {
        // Relaxed: statistics.
        let read = |cell: &HintU64| cell.load(Ordering::Relaxed);
        counts.purges += read(&self.purges);
        counts.flushed_pages += read(&self.flushed_pages);
        counts.needed_pages += read(&self.needed_pages);
        counts.tables += self.tables.populated();
        counts.tables_max += self.tables.populated();
    }
}
