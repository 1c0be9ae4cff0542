//! Runs of free frames wherever they begin and end: what is left to try when blocks and whole
//! pageblocks did not serve a request for contiguous frames.
//!
//! The search reads the words themselves, each once and in ascending order, and no hints: it finds
//! the lowest run there is, across pageblocks and sections, in O(frames of the zone / 64). What it
//! found is then claimed, all of it or nothing.

use super::bitmap::Bitmap;
use super::bits::{self, PAGEBLOCK_WORDS, WORD_FRAMES};
use super::wanted::Wanted;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_PAGEBLOCKS};
use crate::frame::{Pfn, ZoneId};

impl Bitmap<'_> {
    /// Takes the lowest `frames` contiguous free frames of the zone of which the first is a
    /// multiple of `align` (a power of two). Pageblocks taken whole become ones of the wanted
    /// mobility.
    ///
    /// When another caller was faster, the search goes on behind the place it lost.
    pub fn take_run(&self, wanted: Wanted<'_>, frames: u32, align: u32) -> Option<Pfn> {
        let mut from =
            u64::from(wanted.span.0) * SECTION_PAGEBLOCKS as u64 * u64::from(PAGEBLOCK_FRAMES);
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
        let mut run = Run { start: from, frames: frames.into(), align: align.into() };
        let end = wanted.span.1 * SECTION_PAGEBLOCKS as u32;
        let pageblocks = (from / u64::from(PAGEBLOCK_FRAMES)) as u32..end;
        let found = pageblocks.map(PageblockIndex).find_map(|pageblock| {
            let words = self.words_of(pageblock, wanted.zone);
            let bases = (u64::from(pageblock.0) * u64::from(PAGEBLOCK_FRAMES)..)
                .step_by(WORD_FRAMES as usize);
            bases.zip(words).find_map(|(base, word)| {
                // Frames below `from` are out of the question.
                let below = bits::range_mask(
                    0,
                    from.saturating_sub(base).min(u64::from(WORD_FRAMES)) as u32,
                );
                run.meet(base, word & !below)
            })
        });
        found.map(|start| Pfn::new(start as u32))
    }

    /// The words of a pageblock; no frame of another zone is free for this one.
    fn words_of(&self, pageblock: PageblockIndex, zone: ZoneId) -> [u64; PAGEBLOCK_WORDS] {
        let tag = self.tags.of(pageblock);
        let section = self.section(pageblock.section()).filter(|_| tag.serves(zone));
        section.map_or([0; PAGEBLOCK_WORDS], |section| section.words_of(pageblock.in_section()))
    }

    /// Gives the pageblocks that a claimed run covers whole the mobility of the request.
    fn retag_whole(&self, wanted: Wanted<'_>, start: Pfn, frames: u32) {
        let end = u64::from(start.get()) + u64::from(frames);
        let whole =
            start.get().div_ceil(PAGEBLOCK_FRAMES)..(end / u64::from(PAGEBLOCK_FRAMES)) as u32;
        whole.map(PageblockIndex).for_each(|pageblock| self.retag_one(pageblock, wanted.tag()));
    }
}

/// A search on its way up: from `start` to the next word all frames are free.
struct Run {
    start: u64,
    frames: u64,
    align: u64,
}

impl Run {
    /// Goes on over the word of which `base` is the first frame; returns where frames enough begin.
    #[inline]
    fn meet(&mut self, base: u64, word: u64) -> Option<u64> {
        let start = self.start.next_multiple_of(self.align);
        if base + u64::from(word.trailing_ones()) >= start + self.frames {
            return Some(start);
        }
        if word == !0 {
            return None;
        }
        self.start = base + u64::from(WORD_FRAMES - word.leading_ones());
        if self.frames >= u64::from(WORD_FRAMES) {
            return None;
        }
        let inside = bits::runs(word, self.frames as u32) & bits::multiples(base, self.align);
        (inside != 0).then(|| base + u64::from(inside.trailing_zeros()))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "runs_tests.rs"]
mod tests;
