//! Pageblocks that were reported to what provides the memory, and are free there.
//!
//! # Vocabulary
//! * *reported*: a bit per pageblock. While it is set, all 512 frames are free, the
//!   [device](ReportingDevice) knows that, and may have taken their memory.
//! * *wake*: to clear that bit, and tell the device that the frames are needed again. What it
//!   [refuses](super::hints) stays reported.
//!
//! # Invariants
//! 1. A frame is free in one place: its bit in the words, or the [entire](super::entire) or the
//!    reported bit of its pageblock. The words of a reported pageblock are 0, and so are its hints.
//! 2. Only the owner of all 512 frames sets the bit, after the device has taken the report. That
//!    gives up the frames as `put` does.
//! 3. The read-modify-write that clears the bit confers all 512 frames. Its caller has the device's
//!    word that they can be used before it hands out one of them or puts one into the words.
//! 4. While a bit is set, the count of reported pageblocks is not 0: it rises before the bit is
//!    set, and falls after it was cleared.
//!
//! Searches for single frames look at words and hints alone, so they pass a reported pageblock by
//! without an instruction for it, and cannot get a frame of it by a stale hint or tag. The kernel's
//! `PageReported` is a flag on blocks that stay in the free lists: each removal from a list has to
//! look at it. What wakes pageblocks is the pass of a search after all whole pageblocks that are
//! not reported, and a claim of given frames. Both are announced as moves in flight, so a request
//! that looked into the words while the frames were on their way looks again.
//!
//! A frame of a reported pageblock that is freed has been freed before. The free finds the hint
//! `some` clear, looks at the bit, and takes what it has put out of the words again, as the owner
//! of the pageblock. If it came while the device was looking, the caller that reports the pageblock
//! does so. If it comes at the moment at which the bit is set, the frame may be free twice.
//!
//! [`ReportingDevice`]: super::backing::ReportingDevice

use core::mem::forget;

use super::bitmap::Bitmap;
use super::bits;
use super::misuse::DoubleFree;
use super::section::Section;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex};
use crate::frame::{FrameRange, Pfn};

/// A pageblock whose bit the caller has cleared; it is reported again when this is dropped.
struct ReportedPageblock<'s, 'm> {
    section: &'s Section<'m>,
    at: usize,
}

impl Drop for ReportedPageblock<'_, '_> {
    fn drop(&mut self) {
        self.section.put_reported(self.at);
    }
}

impl<'m> Bitmap<'m> {
    /// Whether a pageblock is reported now.
    pub fn is_reported(&self, pageblock: PageblockIndex) -> bool {
        self.section(pageblock.section())
            .is_some_and(|section| section.is_reported(pageblock.in_section()))
    }

    /// Whether a pageblock is reported, and the device has refused it of late.
    pub fn is_refused(&self, pageblock: PageblockIndex) -> bool {
        self.section(pageblock.section())
            .is_some_and(|section| section.refusals.has(pageblock.in_section()))
    }

    /// Gives all frames of a pageblock back that the caller owns, as reported; returns those that
    /// were free already.
    pub fn put_reported(&self, section: &Section<'_>, pageblock: PageblockIndex) -> DoubleFree {
        self.reports.count_report();
        self.end_avoidance(section, pageblock);
        section.put_reported(pageblock.in_section());
        self.strip(section, pageblock)
    }

    /// Takes all frames of a reported pageblock, and has them made usable. `false`: it is not
    /// reported, or the device refused, which is noted.
    #[cold]
    pub fn wake(&self, section: &Section<'_>, pageblock: PageblockIndex) -> bool {
        let at = pageblock.in_section();
        if !section.take_reported(at) {
            return false;
        }
        let awaited = ReportedPageblock { section, at };
        let is_here = self.reports.need(FrameRange::new(pageblock.first(), PAGEBLOCK_FRAMES));
        section.refusals.note(at, !is_here);
        match is_here {
            true => forget(awaited),
            false => self.reports.note_refusal(),
        }
        is_here
    }

    /// Notes that all refusals of the device are old: it is asked again.
    pub fn forget_refusals(&self) {
        if self.reports.take_refusals() {
            (0..self.sections_max())
                .filter_map(|number| self.section(number))
                .for_each(|section| section.refusals.forget());
        }
    }

    /// Wakes a pageblock, whose frames are then free in the words. `false`: as
    /// [`wake`](Self::wake).
    fn wake_to_words(&self, pageblock: PageblockIndex) -> bool {
        let section = self.section(pageblock.section());
        let is_woken = section.is_some_and(|section| self.wake(section, pageblock));
        if is_woken {
            self.put(pageblock.first(), PAGEBLOCK_FRAMES);
        }
        is_woken
    }

    /// Wakes the reported pageblocks of a range, if all frames of the range are free and none was
    /// refused. `true`: at least one was woken, so that a claim may succeed now.
    ///
    /// The last one first, up to the first that the device refuses: a search goes on behind that.
    #[cold]
    pub(super) fn wake_range(&self, start: Pfn, frames: u32) -> bool {
        if !self.reports.is_any() || !self.are_all(start, frames, true) {
            return false;
        }
        let (range, mut is_any_woken) = (FrameRange::new(start, frames), false);
        for pageblock in self.reported_in(range) {
            // Another caller may have been faster, and wake the rest, too.
            is_any_woken |= self.wake_to_words(pageblock);
            if self.is_refused(pageblock) {
                return false;
            }
        }
        is_any_woken && self.reported_in(range).next().is_none()
    }

    /// The reported pageblocks of a range, descending.
    pub(super) fn reported_in(&self, range: FrameRange) -> impl Iterator<Item = PageblockIndex> {
        range.pageblocks().rev().map(PageblockIndex).filter(|&at| self.is_reported(at))
    }

    /// Takes frames out of the words of a pageblock that is entire or reported: they were freed
    /// twice.
    ///
    /// As the owner of all its frames: the caller may have been slow, and its frame may have come
    /// to the pageblock's bit since by a caller that took all and put or reported them. Then the
    /// next may take it and put frames into the words at any moment, which were freed once.
    ///
    /// It is not announced, as a free of one block is not. A request of a zone without `min`, which
    /// needs this very pageblock, may fail if its search comes by meanwhile.
    #[cold]
    pub(super) fn strip(&self, section: &Section<'_>, pageblock: PageblockIndex) -> DoubleFree {
        let at = pageblock.in_section();
        let mut doubled = DoubleFree::NONE;
        if section.count_in_words(at) == 0 {
            return doubled;
        }
        // No frame is handed out, so the device need not know.
        // Not `then_some`: dropping the value would report a pageblock that was not.
        let reported = section.take_reported(at).then(|| ReportedPageblock { section, at });
        let is_ours = reported.is_some()
            || section.take_entire(at as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES);
        if !is_ours {
            return doubled;
        }
        let first = pageblock.first().get() / bits::WORD_FRAMES;
        section.strip(at, |word, mask| doubled.add(DoubleFree::in_word(first + word, mask)));
        if reported.is_none() {
            section.put_entire(at / 64, 1 << (at % 64));
        }
        doubled
    }
}
