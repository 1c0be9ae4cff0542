//! Memory: what there is at first, and what is added later.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

use super::{Allocator, layout};
use crate::alloc::config::ConfigError;
use crate::cpus::Cpus;
use crate::frame::FrameRange;
use crate::frame::pageblock::PageblockIndex;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, SECTION_FRAMES, Tag};
use crate::frame::{Mobility, ZoneId};
use crate::store::section::Section;
use crate::sync::model::{Mutant, is_mutant};

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Bytes that [`add_memory`](Self::add_memory) needs for this range.
    pub fn section_bytes(&self, range: FrameRange) -> usize {
        (range.sections().len() * self.layout.section_bytes).saturating_add(layout::ALIGN - 1)
    }

    /// Adds free frames to a zone while everybody goes on, with their metadata in `memory`. Over a
    /// [`Backing`](crate::Backing), which has them, they may be put there once this has returned,
    /// not before.
    ///
    /// # Errors
    /// The range must end in or below the section of `Config::pfn_limit` and lie in sections (2^18
    /// frames, 1 GiB of 4 KiB pages) that have no memory yet;
    /// [`ConfigError::TooLittleMetadata`]. Nothing is added then, and what was asked for can be
    /// asked for again. Of several callers that add the same section at the same moment one at
    /// most succeeds.
    pub fn add_memory(
        &self,
        zone: ZoneId,
        range: FrameRange,
        memory: &'m mut [MaybeUninit<u8>],
    ) -> Result<(), ConfigError> {
        if zone.index() >= self.zones.len() {
            return Err(ConfigError::NoSuchZone { zone: zone.get() });
        }
        let sections = range.sections();
        let taken = sections.clone().any(|number| self.store.section(number).is_some());
        if range.frames == 0
            || range.end() >= 1 << 32
            || sections.end > self.store.sections_max()
            || taken
        {
            return Err(ConfigError::NotAddable { range });
        }
        let base = layout::aligned(memory, sections.len() * self.layout.section_bytes)?;
        base.as_ptr().expose_provenance();
        if self.layout.section_bytes > 0 {
            // SAFETY: so many bytes of `memory`, which is this allocator's from now on.
            if !unsafe { self.install_sections(sections, base) } {
                return Err(ConfigError::NotAddable { range });
            }
        }
        // Without a bitmap the tags tell whether there was memory.
        if self.store.bitmap().is_none() && !self.store.claim_tags(pageblocks(range), new_tag(zone))
        {
            return Err(ConfigError::NotAddable { range });
        }
        self.open_range(zone, range);
        Ok(())
    }

    /// Makes metadata for new sections and installs them: all, or none. `false`: somebody added one
    /// of them at the same moment, and theirs stays.
    ///
    /// # Safety
    /// At `base` are `section_bytes` bytes for each, the allocator's alone, for 'm.
    unsafe fn install_sections(&self, sections: Range<usize>, base: NonNull<u8>) -> bool {
        let first = sections.start;
        let taken = sections.clone().find(|&number| {
            // SAFETY: in bounds of what the caller gave.
            let section = unsafe {
                let place = base.as_ptr().add((number - first) * self.layout.section_bytes);
                write_section(place, self.layout.section_bytes, |section| {
                    Section::init(section, self.store.marks(number));
                });
                &*place.cast::<Section<'m>>()
            };
            !self.store.install(number, section)
        });
        let Some(taken) = taken else { return true };
        if is_mutant(Mutant::LeavesSections) {
            return false;
        }
        // Ascending on both sides: of callers whose ranges overlap, the one that got furthest goes
        // on.
        (first..taken).for_each(|number| self.store.uninstall(number));
        false
    }

    /// Tags the pageblocks of a range, sets its bits and counts it. Whole sections that were made
    /// free are only counted.
    pub(super) fn open_range(&self, zone: ZoneId, range: FrameRange) {
        if range.frames == 0 {
            return;
        }
        let sections = range.sections();
        let zone_state = self.zone(zone);
        // Whoever searches now may have an older span, or find what is not counted yet.
        let _moving = (!is_mutant(Mutant::AddsUnannounced)).then(|| zone_state.in_flight.begin(1));
        pageblocks(range)
            .for_each(|pageblock| self.store.tags().set(PageblockIndex(pageblock), new_tag(zone)));
        for number in sections.clone() {
            let Some(section) = self.store.bitmap().and_then(|bitmap| bitmap.section(number))
            else {
                break;
            };
            let first =
                (number as u64 * u64::from(SECTION_FRAMES)).max(u64::from(range.start.get()));
            let end = ((number as u64 + 1) * u64::from(SECTION_FRAMES)).min(range.end());
            let (at, frames) = ((first % u64::from(SECTION_FRAMES)) as u32, (end - first) as u32);
            if !section.is_free(at) {
                section.put(at, frames);
            }
        }
        zone_state.add_managed(u64::from(range.frames), self.blocks.cpus);
        zone_state.cover(sections.start as u32, sections.end as u32);
    }
}

/// The pageblocks that a range touches.
fn pageblocks(range: FrameRange) -> Range<u32> {
    range.start.get() / PAGEBLOCK_FRAMES..range.end().div_ceil(u64::from(PAGEBLOCK_FRAMES)) as u32
}

/// What memory serves at first.
fn new_tag(zone: ZoneId) -> Tag {
    Tag::new(zone, Mobility::Movable)
}

/// Writes a section by `init`, and zeroes the bytes that options put behind it.
///
/// # Safety
/// `bytes` bytes at `place` are the caller's alone, aligned for a section.
pub(super) unsafe fn write_section<'m>(
    place: *mut u8,
    bytes: usize,
    init: impl FnOnce(*mut Section<'m>),
) {
    init(place.cast());
    // SAFETY: what follows the section belongs to it.
    unsafe { place.add(size_of::<Section<'_>>()).write_bytes(0, bytes - size_of::<Section<'_>>()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::alloc::config::{Config, ZoneConfig};
    use crate::cpus::{CpuLock, Locked, WhichCpu};
    use crate::frame::{CpuId, NodeId, Pfn};

    struct First;

    impl WhichCpu for First {
        fn cpu(&self) -> Option<CpuId> {
            Some(CpuId::new(0))
        }
    }

    fn sections(numbers: Range<u32>) -> FrameRange {
        FrameRange::new(
            Pfn::new(numbers.start * SECTION_FRAMES),
            numbers.len() as u32 * SECTION_FRAMES,
        )
    }

    /// The race of two that add the same section, in slow motion: the other one came between the
    /// look at what is there and the installation.
    #[test]
    fn of_several_sections_none_stays_when_one_is_taken() {
        let zones = [ZoneConfig {
            name: "a",
            node: NodeId::new(0),
            level: 0,
            ranges: &[],
            watermarks: None,
        }];
        let config =
            Config { pfn_limit: Some(Pfn::new(5 * SECTION_FRAMES - 1)), ..Config::new(1, &zones) };
        let locks = [CpuLock::new()];
        let mut metadata = vec![
            MaybeUninit::uninit();
            Allocator::<Locked<'_, First>>::metadata_bytes(&config).unwrap()
        ];
        let mut more = [(); 3].map(|()| vec![MaybeUninit::uninit(); 1 << 18]);
        let [theirs, lost, ours] = &mut more;
        let mut allocator =
            Allocator::new(&config, &mut metadata, Locked::new(&locks, First)).unwrap();
        allocator.add_memory(ZoneId::new(0), sections(3..4), theirs).unwrap();

        let base = layout::aligned(lost, 4 * allocator.layout.section_bytes).unwrap();
        // SAFETY: so many bytes there, for good.
        assert!(!unsafe { allocator.install_sections(1..5, base) });
        for number in [0, 1, 2, 4] {
            assert!(allocator.store.section(number).is_none(), "{number}");
        }
        assert_eq!(allocator.validate().unwrap().free_pages, u64::from(SECTION_FRAMES));
        allocator.add_memory(ZoneId::new(0), sections(0..3), ours).unwrap();
        assert_eq!(allocator.validate().unwrap().free_pages, 4 * u64::from(SECTION_FRAMES));
    }
}
