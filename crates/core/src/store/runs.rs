//! Runs of free frames wherever they begin and end: what is left to try when blocks and whole huges
//! did not serve a request for contiguous frames.
//!
//! The search reads the words themselves, each once and in ascending order, and no hints: it finds
//! the lowest run there is, across huges and sections, in O(frames of the zone / 64). What it found
//! is then claimed, all of it or nothing.

use super::bitmap::Bitmap;
use super::bits::WORD_FRAMES;
use super::section::{HUGE_FRAMES, SECTION_FRAMES};
use super::{HugeIndex, Wanted};
use crate::frame::{Pfn, ZoneId};

impl Bitmap<'_> {
    /// Takes the lowest `frames` contiguous free frames of the zone of which the first is a multiple
    /// of `align` (a power of two). Huges taken whole become ones of the wanted mobility.
    ///
    /// When another caller was faster, the search goes on behind the place it lost.
    pub fn take_run(&self, wanted: Wanted<'_>, frames: u32, align: u32) -> Option<Pfn> {
        let mut from = 0;
        loop {
            let start = self.find_run(wanted, from, frames, align)?;
            if self.claim(start, frames) {
                self.retag_whole(wanted, start, frames);
                return Some(start);
            }
            from = u64::from(start.get()) + 1;
        }
    }

    /// The lowest such run from frame `from` on.
    fn find_run(&self, wanted: Wanted<'_>, from: u64, frames: u32, align: u32) -> Option<Pfn> {
        let [first, end] = [wanted.span.0, wanted.span.1].map(|at| u64::from(at) * u64::from(SECTION_FRAMES));
        let (frames, align) = (u64::from(frames), u64::from(align));
        let mut start = from.max(first).next_multiple_of(align);
        // All of `start..at` is free.
        let mut at = start;
        while start + frames <= end {
            let (free, used) = self.free_then_used(wanted.zone, at as u32);
            at += u64::from(free);
            if at >= start + frames {
                return Some(Pfn::new(start as u32));
            }
            if used > 0 {
                start = (at + u64::from(used)).next_multiple_of(align);
                at = start;
            }
        }
        None
    }

    /// How many frames from `at` on are free, and how many behind those are not; up to the end of
    /// the word, or of the huge if the zone has no memory there.
    fn free_then_used(&self, zone: ZoneId, at: u32) -> (u32, u32) {
        let huge = HugeIndex(at / HUGE_FRAMES);
        let tag = self.tags.of(huge);
        let section = self.section(huge.section()).filter(|_| tag.is_present() && tag.zone() == zone);
        let Some(section) = section else { return (0, HUGE_FRAMES - at % HUGE_FRAMES) };
        let left = WORD_FRAMES - at % WORD_FRAMES;
        let word = section.word_of(at % SECTION_FRAMES) >> (at % WORD_FRAMES);
        let free = word.trailing_ones();
        let used = word.checked_shr(free).unwrap_or(0).trailing_zeros().min(left - free);
        (free, used)
    }

    /// The tags of huges of which not a frame is anybody else's.
    fn retag_whole(&self, wanted: Wanted<'_>, start: Pfn, frames: u32) {
        let end = u64::from(start.get()) + u64::from(frames);
        let whole = start.get().div_ceil(HUGE_FRAMES)..(end / u64::from(HUGE_FRAMES)) as u32;
        whole.map(HugeIndex).for_each(|huge| self.tags.set(huge, wanted.tag()));
    }
}

#[cfg(all(test, not(loom)))]
#[path = "runs_tests.rs"]
mod tests;
