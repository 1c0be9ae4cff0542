//! Hermit's physical memory: the methods of `free_list::FreeList` that its kernel calls.
#![allow(unsafe_code, reason = "keeps the signature of `FreeList::deallocate`")]

use core::fmt;

use free_list::{PageLayout, PageRange};
use pagedepot::cpus::Cpus;
use pagedepot::{Allocator, Flags, FrameRange};

use crate::{pages, pfn_at};

const PAGE_BYTES: usize = 4096;

/// Physical pages in place of a locked `FreeList`.
///
/// A `FreeList` merges ranges that are freed; so does the depot's bitmap, and it frees parts of
/// ranges, and neighbours at once, as well.
pub struct PhysicalPages<'d, 'm, C> {
    depot: &'d Allocator<'m, C>,
}

/// No free range will do. `FreeList`'s own error cannot be made outside of its crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocError;

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no free range of physical memory will do: ask for less, or free some")
    }
}

impl core::error::Error for AllocError {}

/// Pages that cannot be freed: no part of this memory. (Pages that are free already are misuse,
/// which the depot reports by `Config::on_misuse`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub PageRange);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not allocated: free what `allocate` returned, once", self.0)
    }
}

impl core::error::Error for Refused {}

impl<'d, 'm, C: Cpus> PhysicalPages<'d, 'm, C> {
    /// Pages of `depot`, which is shared by all values.
    pub fn new(depot: &'d Allocator<'m, C>) -> Self {
        PhysicalPages { depot }
    }

    /// Allocates a range as `FreeList::allocate` does.
    ///
    /// # Errors
    /// When no free range is long enough, or the layout is of more than 1 GiB.
    pub fn allocate(&self, layout: PageLayout) -> Result<PageRange, AllocError> {
        let frames = |bytes: usize| u32::try_from(bytes / PAGE_BYTES).map_err(|_| AllocError);
        let (size, align) = (frames(layout.size())?, frames(layout.align())?);
        let start =
            self.depot.alloc_contiguous(size, align, Flags::UNMOVABLE).map_err(|_| AllocError)?;
        let range = PageRange::from_start_len(start.index() * PAGE_BYTES, layout.size());
        range.map_err(|_| AllocError)
    }

    /// Allocates a given range as `FreeList::allocate_at` does.
    ///
    /// # Errors
    /// When part of the range is in use or no memory of the depot.
    pub fn allocate_at(&self, range: PageRange) -> Result<(), AllocError> {
        let range = frames_of(range).ok_or(AllocError)?;
        self.depot.alloc_at(range.start, range.frames, Flags::UNMOVABLE).map_err(|_| AllocError)
    }

    /// Frees a range as `FreeList::deallocate` does.
    ///
    /// # Errors
    /// [`Refused`], where `FreeList` has an error for overlaps alone.
    ///
    /// # Safety
    /// Nothing uses the pages.
    pub unsafe fn deallocate(&self, range: PageRange) -> Result<(), Refused> {
        let frames = frames_of(range).ok_or(Refused(range))?;
        self.depot.free_contiguous(frames.start, frames.frames).map_err(|_| Refused(range))
    }

    /// Bytes that are free or cached.
    pub fn free_space(&self) -> usize {
        pages(self.depot).0 * PAGE_BYTES
    }
}

fn frames_of(range: PageRange) -> Option<FrameRange> {
    let frames = u32::try_from(range.len().get() / PAGE_BYTES).ok()?;
    Some(FrameRange::new(pfn_at(range.start(), PAGE_BYTES)?, frames))
}
