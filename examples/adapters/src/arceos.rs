//! `ax-allocator`'s `PageAllocator`: ArceOS and its relatives.

use ax_allocator::{AllocError, AllocResult, BaseAllocator, PageAllocator};
use pagedepot::cpus::Cpus;
use pagedepot::{AllocError as DepotError, Allocator, Flags, FrameRange, ZoneId};

use crate::{pages, pfn_at};

/// Pages of a depot.
pub struct Pages<'d, 'm, C> {
    depot: &'d Allocator<'m, C>,
    flags: Flags,
}

impl<'d, 'm, C: Cpus> Pages<'d, 'm, C> {
    /// Pages of `depot`, which has been made before, and is shared by all values.
    pub fn new(depot: &'d Allocator<'m, C>) -> Self {
        Pages { depot, flags: Flags::UNMOVABLE }
    }
}

impl<C: Cpus> BaseAllocator for Pages<'_, '_, C> {
    /// Does nothing: the depot was made with its memory.
    fn init(&mut self, _start: usize, _size: usize) {}

    /// Adds memory where the depot has metadata for it already (a gibibyte that has some), because
    /// this interface brings none. Otherwise call [`Allocator::add_memory`].
    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult {
        let pfn = pfn_at(start, Self::PAGE_SIZE).ok_or(AllocError::InvalidParam)?;
        if !size.is_multiple_of(Self::PAGE_SIZE) {
            return Err(AllocError::InvalidParam);
        }
        let frames = count(size / Self::PAGE_SIZE)?;
        let range = FrameRange::new(pfn, frames);
        self.depot.add_memory(ZoneId::new(0), range, &mut []).map_err(|error| match error.why {
            pagedepot::ConfigError::HasMemory { .. } => AllocError::MemoryOverlap,
            pagedepot::ConfigError::TooLittleMetadata { .. } => AllocError::NoMemory,
            _ => AllocError::InvalidParam,
        })
    }
}

impl<C: Cpus> PageAllocator for Pages<'_, '_, C> {
    const PAGE_SIZE: usize = 4096;

    fn alloc_pages(&mut self, num_pages: usize, align: usize) -> AllocResult<usize> {
        if !align.is_power_of_two() {
            return Err(AllocError::InvalidParam);
        }
        let (frames, align) = (count(num_pages)?, count(align / Self::PAGE_SIZE)?.max(1));
        let pfn = self.depot.alloc_contiguous(frames, align, self.flags).map_err(as_theirs)?;
        Ok(pfn.index() * Self::PAGE_SIZE)
    }

    /// # Panics
    /// When the pages are not allocated, or of other memory.
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize) {
        let start = pfn_at(pos, Self::PAGE_SIZE).expect("the address of a page");
        let frames = u32::try_from(num_pages).expect("at most 2^18 pages");
        self.depot
            .free_contiguous(start, frames)
            .unwrap_or_else(|error| panic!("{pos:#x}: {error}"));
    }

    fn alloc_pages_at(
        &mut self,
        base: usize,
        num_pages: usize,
        align: usize,
    ) -> AllocResult<usize> {
        let start = pfn_at(base, Self::PAGE_SIZE).ok_or(AllocError::InvalidParam)?;
        if !align.is_power_of_two() || base & (align - 1) != 0 {
            return Err(AllocError::InvalidParam);
        }
        self.depot.alloc_at(start, count(num_pages)?, self.flags).map_err(as_theirs)?;
        Ok(base)
    }

    fn total_pages(&self) -> usize {
        pages(self.depot).1
    }

    fn used_pages(&self) -> usize {
        let (free, all) = pages(self.depot);
        all.saturating_sub(free)
    }

    fn available_pages(&self) -> usize {
        pages(self.depot).0
    }
}

fn count(pages: usize) -> AllocResult<u32> {
    u32::try_from(pages).map_err(|_| AllocError::InvalidParam)
}

fn as_theirs(error: DepotError) -> AllocError {
    match error {
        DepotError::BadSize | DepotError::BadAlignment => AllocError::InvalidParam,
        _ => AllocError::NoMemory,
    }
}
