//! Contiguous addresses over scattered frames: the allocator's `vmap` on this kernel's page tables.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use pagedepot::{AllocError, CpuId, Flags, FrameRange, FreeManyError, Order, PageSize, Pfn};
use pagedepot_vmap::{
    FlushSpans, Host, MapError, Mapper, Protection, Span, VirtAddr, Vmap, VmapConfig,
};

use crate::arch;
use crate::call;
use crate::cpu::Cpu;
use crate::memory::{self, Place};
use crate::paging::{self, Access, Leaf, PAGE_BYTES, REGION_BYTES, REGIONS, WINDOW};

/// The kernel's vmalloc.
pub type Vmalloc = Vmap<'static, Window, Frames>;

/// The first address: vmalloc has the upper half of the window.
const BASE: usize = WINDOW + REGIONS / 2 * REGION_BYTES;
/// Addresses for each page of memory, in pages; a descriptor for every second page of memory.
const PAGES_PER_PAGE: u64 = 16;
/// Spans that are flushed one by one; for more, all translations are flushed.
const SPANS_MAX: usize = 32;

static VMALLOC: Place<Vmalloc> = Place::new();

/// Makes the kernel's vmalloc, with its metadata in memory of the allocator. When memory runs
/// short, it gives back what it keeps.
pub fn init(cpus: u32) {
    let memory_pages: u64 = memory::managed_pages().iter().sum();
    let window = Window { pages: (memory_pages * PAGES_PER_PAGE) as u32 };
    let config = VmapConfig::new(cpus, (memory_pages / 2) as u32);
    let bytes = Vmalloc::metadata_bytes(&config, &window).expect("a configuration that fits");
    let frames = bytes.div_ceil(PAGE_BYTES) as u32;
    let metadata = memory::depot()
        .alloc_contiguous(frames, 1, Flags::UNMOVABLE)
        .expect("memory for vmalloc's metadata");
    let metadata =
        core::ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(memory::address(metadata));
    // SAFETY: the frames are this function's, mapped, and never freed.
    let metadata = unsafe { core::slice::from_raw_parts_mut(metadata, bytes) };
    // SAFETY: the window maps RAM by the allocator's numbers, for this vmalloc alone; this kernel
    // frees and writes frames that it was given.
    let made = unsafe { Vmalloc::new(&config, metadata, window, Frames) };
    VMALLOC.set(made.expect("metadata of the size asked for"));
    memory::depot().register_reclaim(vmalloc()).expect("the first callback");
}

/// The kernel's vmalloc.
pub fn vmalloc() -> &'static Vmalloc {
    VMALLOC.get()
}

/// The host: frames come from the allocator, and CPUs wait as this kernel does.
pub struct Frames;

// SAFETY: the allocator hands a free block to one caller; the kernel does not fork.
unsafe impl Host for Frames {
    fn cpu(&self) -> Option<CpuId> {
        Some(Cpu::here().id())
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        memory::depot().alloc(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        memory::depot().alloc_many(Order::BASE, flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        memory::depot().free_many(blocks)
    }

    unsafe fn split_block(&self, frame: Pfn, order: Order) -> bool {
        memory::depot().split(frame, order, Order::BASE).is_ok()
    }

    fn add_quarantined(&self, frame: Pfn, pages: i64) {
        memory::depot().note_quarantined(frame, pages);
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        call::wait_until(|| word.load(Ordering::Relaxed) != seen);
    }
}

/// The mapper: vmalloc's part of the window.
pub struct Window {
    pages: u32,
}

fn span_of(span: Span) -> paging::Span {
    paging::Span { start: span.start.get(), bytes: span.bytes(PageSize::Kib4) }
}

fn access_of(protection: Protection) -> Access {
    Access {
        may_write: protection.may_write(),
        may_execute: protection.may_execute(),
        is_user: false,
    }
}

// SAFETY: the upper half of the window is this mapper's alone (page faults have areas in the lower
// half), and there is one `Vmap` on it. `map` and `unmap` change entries for exactly the pages
// named; `flush` returns when no CPU has an old translation.
unsafe impl Mapper for Window {
    fn span(&self) -> Span {
        Span::new(VirtAddr::new(BASE), self.pages)
    }

    fn page_size(&self) -> PageSize {
        PageSize::Kib4
    }

    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        protection: Protection,
    ) -> Result<(), MapError> {
        let mut done = 0;
        while done < frames.frames {
            let (address, pfn) = (at.get() + done as usize * PAGE_BYTES, frames.start.add(done));
            let huge = Leaf::Huge.order();
            let fits = address.is_multiple_of(Leaf::Huge.bytes()) && pfn.is_aligned(huge);
            let is_huge =
                fits && frames.frames - done >= huge.frames() && !paging::has_table(address);
            let leaf = if is_huge { Leaf::Huge } else { Leaf::Page };
            match paging::map(address, pfn, leaf, access_of(protection)) {
                Ok(()) => done += leaf.order().frames(),
                Err(paging::MapError::NoTable) => return Err(MapError::NoTables),
                Err(paging::MapError::Occupied) => unreachable!("{address:#x} is mapped already"),
            }
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), MapError> {
        paging::unmap(span_of(span), |_, _| {}).map_err(|_| MapError::NoTables)
    }

    fn flush(&self, spans: FlushSpans<'_>) {
        let mut list = [paging::Span { start: BASE, bytes: 0 }; SPANS_MAX];
        let mut count = 0;
        for span in spans {
            // Too many spans: name one that is large enough to drop everything.
            match list.get_mut(count) {
                Some(place) => *place = span_of(span),
                None => list[0] = span_of(self.span()),
            }
            count = (count + 1).min(SPANS_MAX);
        }
        paging::flush_and_free_tables(&list[..count]);
    }

    unsafe fn release_tables(&self, _span: Span) {
        // `unmap` took the tables out when they became empty, and `flush` has freed them, unless an
        // isolated CPU rested. If they were taken out only here, a CPU might have walked into them
        // again after the flush.
    }

    unsafe fn fill(&self, span: Span, byte: u8) {
        let start = core::ptr::with_exposed_provenance_mut::<u8>(span.start.get());
        // SAFETY: the caller's promise: mapped, writable, and its own.
        unsafe { start.write_bytes(byte, span.bytes(PageSize::Kib4)) };
    }

    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError> {
        let start = core::ptr::with_exposed_provenance_mut::<u8>(memory::address(frames.start));
        // SAFETY: all RAM is mapped, writable; the frames are the caller's alone.
        unsafe { start.write_bytes(byte, frames.frames as usize * PAGE_BYTES) };
        Ok(())
    }

    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool {
        if offset > PAGE_BYTES || buf.len() > PAGE_BYTES - offset {
            return false;
        }
        let from = memory::address(frame) + offset;
        // SAFETY: reads inside a page of RAM, all of which is mapped, and writes to `buf` alone.
        unsafe { arch::copy(from, buf.as_mut_ptr(), buf.len()) };
        true
    }
}

/// Checks the metadata.
///
/// # Safety
/// No other code uses vmalloc meanwhile, or allocates.
pub unsafe fn validate() {
    // SAFETY: the caller's promise.
    if let Err(fault) = unsafe { VMALLOC.exclusive() }.validate() {
        panic!("{fault}");
    }
}
