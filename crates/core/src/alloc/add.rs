//! Memory: what there is at first, and what is added later.
//!
//! A caller that adds memory first claims the pageblocks of its range, each by one compare-and-swap
//! of its tag: a pageblock is given once, however many callers add at the same moment. It then
//! installs the sections that are missing, and opens the range: tags, bits, counts. Until then the
//! pageblocks are isolated, which keeps searches and removals away. Sections are never uninstalled,
//! so that another caller may use one as soon as it sees it.
#![allow(unsafe_code, reason = "writes sections to memory that callers give")]

use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::allocator::Allocator;
use super::config::ConfigError;
use super::layout;
use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, Tag};
use crate::frame::{FrameRange, Kind, ZoneId};
use crate::store::section::Section;
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};

/// Memory was not added, and nothing has changed.
pub struct AddError<'m> {
    /// The reason.
    pub why: ConfigError,
    /// The memory that the caller gave for metadata, which is the caller's again.
    pub memory: &'m mut [MaybeUninit<u8>],
}

impl fmt::Debug for AddError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = format_args!("{} bytes", self.memory.len());
        f.debug_struct("AddError").field("why", &self.why).field("memory", &memory).finish()
    }
}

impl fmt::Display for AddError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl core::error::Error for AddError<'_> {}

impl From<AddError<'_>> for ConfigError {
    fn from(error: AddError<'_>) -> Self {
        error.why
    }
}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Bytes of metadata that [`add_memory`](Self::add_memory) and
    /// [`add_memory_held`](Self::add_memory_held) need for this range now: 0 where the allocator
    /// has all of it, else 34,048 per section (2^18 frames) that has none yet, and 255 to align
    /// them. [`Config::checked`](crate::Config::checked) adds 256 KiB per section. A section's
    /// metadata serves all ranges in it, and is kept when memory is removed. Never more later than
    /// now.
    pub fn section_bytes(&self, range: FrameRange) -> usize {
        MemoryAdder(self).bytes(range)
    }

    /// Adds free frames to a zone, at any time and beside all other calls. They count as movable.
    /// New metadata goes to `memory`, of [`section_bytes`](Self::section_bytes) bytes; an empty
    /// slice where that is 0.
    ///
    /// A zone takes any number of ranges, wherever they begin and end, but each aligned run of 512
    /// frames (a pageblock) can be given once: to give a pageblock in pieces, add all of it by
    /// [`add_memory_held`](Self::add_memory_held) and free the pieces. Watermarks and cache limits
    /// stay as they are: see [`settings`](Self::settings).
    ///
    /// Over a [`Backing`](crate::Backing) this makes the frames known: put them into the backing
    /// once this has returned, not before.
    ///
    /// O(frames / 512), and O(frames / 64) to set the bits.
    ///
    /// # Errors
    /// [`AddError`] with one of these. Nothing is added then, `memory` comes back with the error,
    /// and what was asked for can be asked for again.
    /// - [`ConfigError::NoSuchZone`];
    /// - [`ConfigError::NotAddable`]: no frames, or frames beyond the section of
    ///   `Config::pfn_limit`;
    /// - [`ConfigError::HasMemory`]: a pageblock of the range was given before. Of several callers
    ///   that add the same pageblock at the same moment at most one succeeds;
    /// - [`ConfigError::WasRemoved`]: memory there was removed from another zone;
    /// - [`ConfigError::TooLittleMetadata`];
    /// - [`ConfigError::Forked`].
    pub fn add_memory(
        &self,
        zone: ZoneId,
        range: FrameRange,
        memory: &'m mut [MaybeUninit<u8>],
    ) -> Result<(), AddError<'m>> {
        MemoryAdder(self).add(zone, range, memory, FrameOrigin::Free)
    }

    /// Adds memory like [`add_memory`](Self::add_memory), but with every frame allocated: the
    /// caller holds them, and frees them whole by [`free_contiguous`](Self::free_contiguous), in
    /// any parts by the same, or as blocks by [`free`](Self::free) (with
    /// [`Config::checked`](crate::Config::checked) only blocks of order 0). What is never freed
    /// stays out of use: a kernel that learns of memory before it knows which parts are free adds
    /// all of it so, and frees what turns out to be. Counted as one allocation of so many pages.
    ///
    /// # Errors
    /// Fails like [`add_memory`](Self::add_memory).
    pub fn add_memory_held(
        &self,
        zone: ZoneId,
        range: FrameRange,
        memory: &'m mut [MaybeUninit<u8>],
    ) -> Result<(), AddError<'m>> {
        MemoryAdder(self).add(zone, range, memory, FrameOrigin::Held)
    }
}

/// The caller that adds memory to an allocator, at work.
pub(super) struct MemoryAdder<'a, 'm, C>(pub &'a Allocator<'m, C>);

impl<'m, C: Cpus> MemoryAdder<'_, 'm, C> {
    fn bytes(&self, range: FrameRange) -> usize {
        match self.missing_sections(range).count() * self.0.layout.section_bytes {
            0 => 0,
            bytes => bytes.saturating_add(layout::ALIGN - 1),
        }
    }

    /// Sections of the range that have no metadata yet.
    fn missing_sections(&self, range: FrameRange) -> impl Iterator<Item = usize> {
        range.sections().filter(|&number| self.0.caches.store.bitmap.section(number).is_none())
    }

    fn add(
        &self,
        zone: ZoneId,
        range: FrameRange,
        memory: &'m mut [MaybeUninit<u8>],
        given: FrameOrigin,
    ) -> Result<(), AddError<'m>> {
        let base = match self.claim(zone, range, memory) {
            Ok(base) => base,
            Err(why) => return Err(AddError { why, memory }),
        };
        if self.0.layout.section_bytes > 0 {
            // SAFETY: room in `memory` for every section that was missing, and none is missing that
            // was not; it is this allocator's from now on.
            unsafe { self.install_sections(range, base) };
        }
        self.open(zone, range, given);
        Ok(())
    }

    /// Claims the pageblocks of a range that may be given to a zone. Returns where in `memory` the
    /// sections begin that are missing, for which there is room.
    fn claim(
        &self,
        zone: ZoneId,
        range: FrameRange,
        memory: &mut [MaybeUninit<u8>],
    ) -> Result<NonNull<u8>, ConfigError> {
        self.0.slow().check_usable().map_err(|_| ConfigError::Forked)?;
        if zone.index() >= self.0.caches.zones.all().len() {
            return Err(ConfigError::NoSuchZone { zone: zone.get() });
        }
        let is_reachable = range.end() < 1 << 32
            && range.sections().end <= self.0.caches.store.bitmap.sections_max();
        if range.frames == 0 || !is_reachable {
            return Err(ConfigError::NotAddable { range });
        }
        self.check_new(zone, range)?;
        let missing = self.missing_sections(range).count();
        let base = match missing * self.0.layout.section_bytes {
            0 => NonNull::dangling(),
            bytes => layout::aligned(memory, bytes, layout::ALIGN)?,
        };
        base.as_ptr().expose_provenance();
        let claimed = self.0.caches.store.claim_tags(range.pageblocks(), zone);
        claimed.map_err(|(pageblock, tag)| not_new(pageblock, tag))?;
        Ok(base)
    }

    /// Whether the pageblocks of a range may be given to a zone.
    fn check_new(&self, zone: ZoneId, range: FrameRange) -> Result<(), ConfigError> {
        range.pageblocks().map(PageblockIndex).try_for_each(|pageblock| {
            match self.0.caches.store.tags.raw(pageblock) {
                Tag::ABSENT => Ok(()),
                tag if tag == Tag::removed(zone) => Ok(()),
                tag => Err(not_new(pageblock, tag)),
            }
        })
    }

    /// Makes metadata for the sections of a range that have none, and installs them. A section that
    /// another caller installs at the same moment serves both; one without memory does no harm.
    ///
    /// # Safety
    /// At `base` are `section_bytes` bytes for each section that is missing, the allocator's alone,
    /// for 'm.
    unsafe fn install_sections(&self, range: FrameRange, base: NonNull<u8>) {
        let mut used = 0;
        for number in self.missing_sections(range) {
            // SAFETY: in bounds of what the caller gave: `used` counts sections that were missing.
            let is_new = unsafe {
                let place = base.as_ptr().add(used * self.0.layout.section_bytes);
                self.install_section(number, place, false)
            };
            // A place that lost the race is written again for the next section.
            used += usize::from(is_new);
        }
    }

    /// Writes the metadata of a section, with every frame free or none, and zeroes the bytes that
    /// options put behind it; installs it. `false`: there is one already.
    ///
    /// # Safety
    /// `section_bytes` bytes at `place`, aligned for a section, are the allocator's alone, for 'm.
    pub unsafe fn install_section(&self, number: usize, place: *mut u8, is_free: bool) -> bool {
        let bitmap = &self.0.caches.store.bitmap;
        let (section, length) = (place.cast::<Section<'m>>(), size_of::<Section<'m>>());
        // SAFETY: the caller's promise; what follows the section belongs to it.
        unsafe {
            Section::init(section, bitmap.summary.marks(number), is_free);
            place.add(length).write_bytes(0, self.0.layout.section_bytes - length);
            bitmap.install(number, &*section)
        }
    }

    /// Tags the pageblocks of a range, sets its bits and counts it. Whole sections that were made
    /// free are only counted; frames that the caller holds are tagged and counted as allocated.
    pub fn open(&self, zone: ZoneId, range: FrameRange, given: FrameOrigin) {
        if range.frames == 0 {
            return;
        }
        let sections = range.sections();
        let caches = &self.0.caches;
        let zone_state = caches.zones.get(zone);
        let pages = u64::from(range.frames);
        // Requests that search now may have an older span, or find what is not counted yet.
        let _moving = (!is_mutant(Mutant::AddsUnannounced))
            .then(|| zone_state.in_flight.begin(1, caches.caller()));
        zone_state.add_managed(pages);
        if given == FrameOrigin::Held {
            self.0.hooks().note_range(range.start, range.frames);
            caches.direct(None, zone).count_allocs(0, pages);
        }
        range.pageblocks().for_each(|pageblock| {
            caches.store.tags.set(PageblockIndex(pageblock), Tag::new(zone, Kind::MOVABLE))
        });
        zone_state.cover(sections.start as u32, sections.end as u32);
        if given == FrameOrigin::Held {
            return;
        }
        let bitmap = caches.store.bitmap();
        for (_, section, at, frames) in
            bitmap.into_iter().flat_map(|bitmap| bitmap.by_section(range.start, range.frames))
        {
            // A section that was made free has no bits to set.
            if let Some(section) = section
                && (given == FrameOrigin::Free || !section.is_free(at))
            {
                section.put_new(at, frames);
            }
        }
        zone_state.add_free(pages as i64);
        if !IS_LOOM {
            // In a model a zone begins as if no hand had seen it, so that its first turn does.
            let whole = range.end() / u64::from(PAGEBLOCK_FRAMES);
            let first = u64::from(range.start.get().div_ceil(PAGEBLOCK_FRAMES));
            if let Some(policy) = caches.pcps.policy(zone) {
                policy.note_given(pages, whole.saturating_sub(first) as u32);
            }
        }
    }
}

/// The state in which frames come to the allocator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameOrigin {
    /// Free, with the allocator; sections that they fill were made so.
    AtFirst,
    /// Free, later.
    Free,
    /// Allocated, later: the caller holds them.
    Held,
}

/// The error for a pageblock with this tag, which cannot be given.
fn not_new(pageblock: PageblockIndex, tag: Tag) -> ConfigError {
    let first = pageblock.first();
    match tag.is_removed() {
        true => ConfigError::WasRemoved { first, zone: tag.zone().get() },
        false => ConfigError::HasMemory { first },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::alloc::config::Config;
    use crate::alloc::tests::{On, sections, zone};
    use crate::cpus::{CpuLock, LockedCpus};
    use crate::frame::Pfn;
    use crate::frame::pageblock::SECTION_FRAMES;

    /// The race of two that add to one section, in slow motion: the other caller installed the
    /// section between the look at what is missing and the installation.
    #[test]
    fn a_section_that_another_caller_installed_serves_both() {
        let zones = [zone(&[])];
        let config =
            Config { pfn_limit: Some(Pfn::new(5 * SECTION_FRAMES - 1)), ..Config::new(1, &zones) };
        let locks = [CpuLock::new()];
        let mut metadata = vec![
            MaybeUninit::uninit();
            Allocator::<LockedCpus<'_, On>>::metadata_bytes(&config).unwrap()
        ];
        let mut more = [(); 2].map(|()| vec![MaybeUninit::uninit(); 1 << 18]);
        let [theirs, ours] = &mut more;
        let mut allocator =
            Allocator::new(&config, &mut metadata, LockedCpus::new(&locks, On(0))).unwrap();
        let middle = sections(3..4);
        allocator.add_memory(ZoneId::new(0), middle, theirs).unwrap();
        let installed = allocator.caches.store.bitmap.section(3).map(std::ptr::from_ref);

        let base =
            layout::aligned(ours, 4 * allocator.layout.section_bytes, layout::ALIGN).unwrap();
        // SAFETY: so many bytes there, for good.
        unsafe { MemoryAdder(&allocator).install_sections(sections(1..5), base) };
        assert_eq!(allocator.caches.store.bitmap.section(3).map(std::ptr::from_ref), installed);
        assert_eq!(allocator.validate().unwrap().free_pages, u64::from(SECTION_FRAMES));
        for range in [sections(1..3), sections(4..5)] {
            assert_eq!(allocator.section_bytes(range), 0);
            allocator.add_memory(ZoneId::new(0), range, &mut []).unwrap();
        }
        assert_eq!(allocator.validate().unwrap().free_pages, 4 * u64::from(SECTION_FRAMES));
    }
}
