//! A mapper that maps nothing, and takes the time that mapping takes.
#![allow(unsafe_code, reason = "the seam to page tables is unsafe to implement")]

use pagedepot::{FrameRange, PageSize, Pfn};
use pagedepot_sim_machine as machine;
use pagedepot_vmap::{FlushSpans, MapError, Mapper, Protection, Span, VirtAddr};

/// A mapper whose calls take simulated time.
pub struct CostlyMapper {
    span: Span,
    page_ps: u64,
}

impl CostlyMapper {
    /// Makes a mapper for `span`; mapping and clearing a page takes `page_ps`, unmapping it an
    /// eighth of that.
    pub fn new(span: Span, page_ps: u64) -> Self {
        CostlyMapper { span, page_ps }
    }
}

// SAFETY: no access through its addresses reaches a frame, ever.
unsafe impl Mapper for CostlyMapper {
    fn span(&self) -> Span {
        self.span
    }

    fn page_size(&self) -> PageSize {
        PageSize::default()
    }

    unsafe fn map(&self, _: VirtAddr, frames: FrameRange, _: Protection) -> Result<(), MapError> {
        machine::work(u64::from(frames.frames) * self.page_ps);
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        machine::work(u64::from(span.pages) * self.page_ps / 8);
        Ok(())
    }

    /// Every CPU is interrupted, as by `flush_tlb_kernel_range`.
    fn flush(&self, _: FlushSpans<'_>) {
        machine::fence_all();
    }

    unsafe fn release_tables(&self, _: Span) {}

    unsafe fn fill(&self, _: Span, _: u8) {}

    unsafe fn fill_frames(&self, _: FrameRange, _: u8) -> Result<(), MapError> {
        Ok(())
    }

    fn read(&self, _: Pfn, _: usize, _: &mut [u8]) -> bool {
        false
    }
}
