//! The seam to page tables.

use crate::error::MapError;
use crate::seams::flush::FlushSpans;
use crate::units::{Protection, Span, VirtAddr};
use pagedepot::{FrameRange, PageSize, Pfn};

/// Makes and removes mappings in one range of addresses.
///
/// # Safety
/// [`span`](Mapper::span) never changes, and only the one [`Vmap`](crate::Vmap) of this mapper maps
/// anything in it. After `map` has returned `Ok`, the span reaches exactly those frames, in order,
/// until it is unmapped and flushed. After `unmap` and `flush` of a span no access through it
/// reaches a frame.
pub unsafe trait Mapper: Sync {
    /// The range of addresses to manage: whole pages, not from address 0.
    fn span(&self) -> Span;

    /// The size of a page and of a frame.
    fn page_size(&self) -> PageSize;

    /// Number of pages that a page table of the lowest level maps, which never changes: a power of
    /// two up to 2^15. A purge gives back such tables when they are empty.
    fn table_pages(&self) -> u32 {
        512
    }

    /// Maps `frames` to consecutive addresses from `at` on, present when it returns (no later
    /// faults). Frames that are [known to hold zeroes](Mapper::known_zero) may come at the first
    /// access, where the system can tell so whether they were written.
    ///
    /// Threads call it concurrently, for disjoint pages. It may allocate memory.
    ///
    /// # Errors
    /// The reason. Part of the pages may be mapped then; a purge unmaps them like others.
    ///
    /// # Safety
    /// The pages lie in [`span`](Mapper::span), belong to the caller alone and are not mapped. The
    /// frames may be reached through them until they are unmapped.
    unsafe fn map(
        &self,
        at: VirtAddr,
        frames: FrameRange,
        protection: Protection,
    ) -> Result<(), MapError>;

    /// Removes what is mapped in `span`. Any part of it may be unmapped already.
    ///
    /// A span that covers a table completely leaves it empty, and
    /// [`release_tables`](Mapper::release_tables) follows. One thread calls it at a time. It must
    /// not allocate from the page allocator that the vmap stands on.
    ///
    /// # Errors
    /// The reason. Any part may be unmapped then; a later purge repeats the call.
    ///
    /// # Safety
    /// No access through `span` happens any more, and no other thread maps anything there during
    /// the call.
    unsafe fn unmap(&self, span: Span) -> Result<(), MapError>;

    /// Waits until no CPU reaches a frame through spans that `unmap` has emptied: one call per
    /// purge. A mapper whose `unmap` flushes does nothing here.
    fn flush(&self, spans: FlushSpans<'_>);

    /// Frees the page tables of `span`, which covers whole tables with nothing mapped in them.
    /// Tables of higher levels that become empty may be freed too.
    ///
    /// # Safety
    /// Requires what [`unmap`](Mapper::unmap) requires; `span` was unmapped and flushed.
    unsafe fn release_tables(&self, span: Span);

    /// Writes `byte` to every byte of `span`.
    ///
    /// # Safety
    /// This mapper has mapped the span writable, and it belongs to the caller alone.
    unsafe fn fill(&self, span: Span, byte: u8);

    /// Writes `byte` to every byte of `frames` without a mapping in the span, for example through a
    /// linear map: memory that is mapped without write access is zeroed this way.
    ///
    /// # Errors
    /// The reason. The request that needs the memory fails with it.
    ///
    /// # Safety
    /// The frames belong to the caller alone, and are frames that this mapper maps.
    unsafe fn fill_frames(&self, frames: FrameRange, byte: u8) -> Result<(), MapError>;

    /// Number of frames at the start of `frames` that are known to hold zeroes: fresh from the
    /// system, or given back to it and not written since. Such memory is not zeroed once more.
    /// Asked for runs of 64 frames and more, which belong to the caller alone. By default nothing
    /// is known: 0.
    ///
    /// The answer may cost about what zeroing 16 frames does. A mapper that answers wrongly hands
    /// data of earlier users out.
    fn known_zero(&self, frames: FrameRange) -> u32 {
        let _ = frames;
        0
    }

    /// Copies from byte `offset` of a frame without a mapping in the span. `false`: the frame
    /// cannot be read that way, or `buf` reaches beyond it.
    ///
    /// The frame may be freed, allocated again or written during the copy, by plain stores of its
    /// holder. So the copy must not consist of loads that the compiler knows of: even a volatile or
    /// atomic load beside a plain store is a data race. Use an instruction in `asm!`, or let the
    /// operating system copy. The caller discards the bytes if the frame was freed in between.
    fn read(&self, frame: Pfn, offset: usize, buf: &mut [u8]) -> bool;

    /// Number of pages of the range that this mapper has lost: a failed call found another mapping
    /// there, and the mapper never touches them again. `map` fails there; `unmap` and
    /// [`release_tables`](Mapper::release_tables) leave them out. The number never falls.
    #[inline]
    fn lost_pages(&self) -> u32 {
        0
    }

    /// The first run of lost pages in `span`. Includes all that calls which have returned lost.
    fn lost_in(&self, span: Span) -> Option<Span> {
        let _ = span;
        None
    }

    /// Whether so many more runs of frames can be mapped, as far as the mapper can tell in advance.
    /// By default they can.
    ///
    /// # Errors
    /// [`MapError::TooScattered`].
    fn check_runs(&self, runs: u32) -> Result<(), MapError> {
        let _ = runs;
        Ok(())
    }

    /// Whether each run of frames takes a resource that is limited, as mappings are on Linux. Then
    /// requests try harder to get long runs.
    fn prefers_long_runs(&self) -> bool {
        false
    }

    /// Has others give up what they keep of a resource that this mapper shares with them. A request
    /// that may wait calls it once, under no lock of the vmap, when purges of its own did not help
    /// against [`MapError::TooManyMappings`] or [`MapError::TooScattered`]. Returns whether the
    /// request is to try once more. By default nothing is shared.
    fn shrink_others(&self, error: MapError) -> bool {
        let _ = error;
        false
    }
}
