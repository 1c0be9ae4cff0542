//! All free frames of all zones as bits, shared by all CPUs, without a lock.
//!
//! # Vocabulary
//! [`Section`] and its words, hints and tags are in [`section`](super::section); a *pageblock* is
//! 512 frames, named by its [`PageblockIndex`] across sections; a *span* is the range of sections a
//! zone may have frames in.
//!
//! Blocks are found by a [search](super::search).
#![allow(unsafe_code, reason = "finds sections by address")]

use super::device::Reports;
use super::passes::SearchRequest;
use super::section::Section;
use super::summary::{Marks, Summary};
use super::tags::Tags;
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag,
};
use crate::frame::{Mobility, Pfn, ZoneId};
use crate::sync::model::{IS_LOOM, Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, AtomicUsize, Ordering};

/// The table of sections; see the module. Without sections nothing is free.
pub struct Bitmap<'m> {
    /// Addresses of sections, by `pfn / SECTION_FRAMES`; 0 while there is none.
    table: &'m [AtomicUsize],
    pub(super) tags: Tags<'m>,
    pub(super) summary: Summary<'m>,
    /// Claims that were rolled back. A statistic, so Relaxed, and rare.
    failed_claims: &'m AtomicU64,
    pub(super) reports: &'m Reports<'m>,
    /// Whether pageblocks ever evacuate.
    pub(super) evacuates: bool,
}

impl<'m> Bitmap<'m> {
    /// A bitmap over an empty table.
    pub fn new(
        table: &'m [AtomicUsize],
        tags: Tags<'m>,
        summary: Summary<'m>,
        failed_claims: &'m AtomicU64,
        reports: &'m Reports<'m>,
        evacuates: bool,
    ) -> Self {
        debug_assert_eq!(tags.len(), table.len() * SECTION_PAGEBLOCKS);
        Bitmap { table, tags, summary, failed_claims, reports, evacuates }
    }

    /// The tags of pageblocks.
    #[inline]
    pub fn tags(&self) -> &Tags<'m> {
        &self.tags
    }

    /// The marks of the section with this number, which is in range.
    pub fn marks(&self, number: usize) -> Marks<'m> {
        self.summary.marks(number)
    }

    /// The largest number of sections.
    pub fn sections_max(&self) -> usize {
        self.table.len()
    }

    /// The section with this number.
    #[inline]
    pub fn section(&self, number: usize) -> Option<&'m Section<'m>> {
        // Acquire: pairs with the Release in `install`, publishes the section's first contents.
        match self.table.get(number)?.load(Ordering::Acquire) {
            0 => None,
            address => {
                let section = core::ptr::with_exposed_provenance::<Section<'m>>(address);
                // SAFETY: only `install` stores addresses, of sections that live for 'm.
                Some(unsafe { &*section })
            }
        }
    }

    /// Makes a section known. `false`: there is one already, or the number is out of range.
    pub fn install(&self, number: usize, section: &'m Section<'m>) -> bool {
        let address = (&raw const *section).expose_provenance();
        // Release: pairs with the Acquire in `section`.
        self.table.get(number).is_some_and(|cell| {
            cell.compare_exchange(0, address, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }

    /// Whether `pfn` is free now.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.section((pfn.get() / SECTION_FRAMES) as usize)
            .is_some_and(|section| section.is_free(pfn.get() % SECTION_FRAMES))
    }

    /// Notes that a pageblock is mixed from which blocks of this mobility were taken, if they are
    /// not akin to its own.
    pub(super) fn note_mixed(
        &self,
        section: &Section<'_>,
        pageblock: PageblockIndex,
        mobility: Mobility,
    ) {
        let tag = self.tags.of(pageblock);
        // A search that read the tag before isolation takes frames all the same.
        let tag = tag.of_isolated().unwrap_or(tag);
        if !IS_LOOM && !tag.mobility().is_akin(mobility) {
            section.note_mixed(pageblock.in_section());
        }
    }

    /// Notes that a pageblock is mixed no more.
    pub fn note_unmixed(&self, pageblock: PageblockIndex) {
        if let Some(section) = self.section(pageblock.section()) {
            section.note_unmixed(pageblock.in_section());
        }
    }

    /// Gives a pageblock that the caller owns another tag, unless it is isolated.
    #[inline]
    pub(super) fn retag_one(&self, pageblock: PageblockIndex, tag: Tag) {
        // One that has the tag needs no write. What begins to evacuate now does so after this.
        if self.tags.raw(pageblock) != tag {
            self.change_tag(pageblock, tag);
        }
    }

    #[cold]
    fn change_tag(&self, pageblock: PageblockIndex, tag: Tag) {
        if let Ok(before) = self.tags.retag(pageblock, tag) {
            self.note_change(pageblock, before);
            self.note_mobility(pageblock, before, tag);
        }
    }

    /// Asks for the line of the bitmap where a search would begin.
    #[inline]
    pub fn prefetch(&self, wanted: &SearchRequest<'_>) {
        let pageblock = PageblockIndex(wanted.hint.load(Ordering::Relaxed));
        if let Some(section) = self.section(pageblock.section()) {
            section.prefetch(pageblock.in_section());
        }
    }

    #[inline]
    pub(super) fn retag(&self, start: PageblockIndex, frames: u32, wanted: &SearchRequest<'_>) {
        (start.0..start.0 + frames / PAGEBLOCK_FRAMES)
            .for_each(|pageblock| self.retag_one(PageblockIndex(pageblock), wanted.tag()));
    }

    /// Takes exactly `start..start + frames`, or nothing. Wakes what is reported of it, if that is
    /// all that is missing.
    pub fn claim(&self, start: Pfn, frames: u32) -> bool {
        while !self.claim_in_words(start, frames) {
            if !self.wake_range(start, frames) {
                return false;
            }
        }
        true
    }

    fn claim_in_words(&self, start: Pfn, frames: u32) -> bool {
        let mut done = 0;
        for (section, at, count) in self.by_section(start, frames) {
            if !section.is_some_and(|section| section.claim(at, count)) {
                let done = if is_mutant(Mutant::KeepsPart) { 0 } else { done };
                self.put(start, done);
                self.failed_claims.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            done += count;
        }
        true
    }

    /// Claims that found a frame missing and rolled back.
    pub fn failed_claims(&self) -> u64 {
        self.failed_claims.load(Ordering::Relaxed)
    }

    /// The parts of a range by section: the section, the first frame in it, how many.
    pub(super) fn by_section(
        &self,
        start: Pfn,
        frames: u32,
    ) -> impl Iterator<Item = (Option<&'m Section<'m>>, u32, u32)> {
        let end = u64::from(start.get()) + u64::from(frames);
        let mut at = u64::from(start.get());
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let number = at / u64::from(SECTION_FRAMES);
            let stop = end.min((number + 1) * u64::from(SECTION_FRAMES));
            let part = (
                self.section(number as usize),
                (at % u64::from(SECTION_FRAMES)) as u32,
                (stop - at) as u32,
            );
            at = stop;
            Some(part)
        })
    }

    /// Frames of `zone` that are free now: reads every word of its span.
    pub fn count_free(&self, zone: ZoneId, span: (u32, u32)) -> u64 {
        let pageblocks = SECTION_PAGEBLOCKS as u32;
        (span.0 * pageblocks..span.1 * pageblocks)
            .map(PageblockIndex)
            .filter(|&pageblock| {
                self.tags.of(pageblock).is_present() && self.tags.of(pageblock).zone() == zone
            })
            .filter_map(|pageblock| {
                Some(u64::from(
                    self.section(pageblock.section())?.count_free(pageblock.in_section()),
                ))
            })
            .sum()
    }
}
