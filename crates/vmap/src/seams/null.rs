//! A mapper that maps nothing, and a host that has no frames.

use crate::error::MapError;
use crate::seams::flush::FlushSpans;
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::units::{Protection, Span, VirtAddr};
use pagedepot::cpus::WhichCpu;
use pagedepot::sync::count;
use pagedepot::sync::prim::{AtomicU64, Ordering};
use pagedepot::{
    AllocError, CpuId, Flags, FrameRange, FreeError, FreeManyError, Order, PageSize, Pfn,
};

/// A host without frames: for address space alone, and for mappings of the caller's frames.
pub struct NoFrames<W>(pub W);

// SAFETY: it never returns a frame.
unsafe impl<W: WhichCpu> Host for NoFrames<W> {
    #[inline]
    fn cpu(&self) -> Option<CpuId> {
        self.0.cpu()
    }

    fn alloc_block(&self, _order: Order, _flags: Flags) -> Result<Pfn, AllocError> {
        Err(AllocError::NoZone)
    }

    fn alloc_frames(&self, _flags: Flags, _out: &mut [Pfn]) -> Result<usize, AllocError> {
        Err(AllocError::NoZone)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        let error = FreeError::OutOfRange;
        if blocks.is_empty() {
            Ok(())
        } else {
            Err(FreeManyError { first: 0, error, failed: blocks.len() })
        }
    }
}

/// A mapper that maps nothing and counts calls: for measuring all but the mapping, and for tests.
/// No memory is reached through its addresses.
#[derive(Default)]
pub struct NullMapper {
    base: usize,
    pages: u32,
    page_size: PageSize,
    calls: [AtomicU64; 4],
}

/// Calls that a [`NullMapper`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapperCalls {
    /// Runs mapped.
    pub maps: u64,
    /// Spans unmapped.
    pub unmaps: u64,
    /// Batches flushed.
    pub flushes: u64,
    /// Spans of page tables given back.
    pub releases: u64,
}

impl NullMapper {
    /// A mapper for `span`, which it never touches.
    pub fn new(span: Span, page_size: PageSize) -> Self {
        NullMapper {
            base: span.start.get(),
            pages: span.pages,
            page_size,
            calls: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The calls so far.
    pub fn calls(&self) -> MapperCalls {
        let [maps, unmaps, flushes, releases] =
            [0, 1, 2, 3].map(|i| self.calls[i].load(Ordering::Relaxed));
        MapperCalls { maps, unmaps, flushes, releases }
    }

    fn count(&self, what: usize) {
        count(&self.calls[what], 1);
    }
}

// SAFETY: no access through its addresses reaches a frame, ever.
unsafe impl Mapper for NullMapper {
    fn span(&self) -> Span {
        Span::new(VirtAddr::new(self.base), self.pages)
    }

    fn page_size(&self) -> PageSize {
        self.page_size
    }

    unsafe fn map(
        &self,
        _at: VirtAddr,
        _frames: FrameRange,
        _how: Protection,
    ) -> Result<(), MapError> {
        self.count(0);
        Ok(())
    }

    unsafe fn unmap(&self, _span: Span) -> Result<(), MapError> {
        self.count(1);
        Ok(())
    }

    fn flush(&self, _spans: FlushSpans<'_>) {
        self.count(2);
    }

    unsafe fn release_tables(&self, _span: Span) {
        self.count(3);
    }

    unsafe fn fill(&self, _span: Span, _byte: u8) {}

    unsafe fn fill_frames(&self, _frames: FrameRange, _byte: u8) -> Result<(), MapError> {
        Ok(())
    }

    fn read(&self, _frame: Pfn, _offset: usize, _buf: &mut [u8]) -> bool {
        false
    }
}
