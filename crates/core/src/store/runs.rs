//! Contiguous frames that are not a block: whole pageblocks, or, where those did not serve, runs of
//! free frames wherever they begin and end.
//!
//! The search for runs reads the words themselves, each once and in ascending order, and no hints:
//! it finds the lowest run there is, across pageblocks and sections, in O(frames of the zone / 64).
//! What it found is then claimed, all of it or nothing.
//!
//! And a single frame among given ones, for the allocator itself.

use core::ops::Range;

use super::bitmap::Bitmap;
use super::bits::{self, PAGEBLOCK_WORDS, WORD_FRAMES, WordBlocks};
use super::entire::entirely_free_or_wakeable;
use super::passes::SearchRequest;
use crate::frame::pageblock::{
    PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, SECTION_PAGEBLOCKS, Tag,
};
use crate::frame::{FrameRange, Kind, Order, Pfn, ZoneId};

impl Bitmap<'_> {
    /// Takes `frames` contiguous frames of one zone, the first a multiple of `align` (a power of
    /// two); `frames` is at least a pageblock. The pageblocks become ones of the wanted mobility.
    ///
    /// A pageblock and an aligned pair are searched for as blocks of that order are. Others
    /// O(zone): one load per 128 MiB in use, one per free pageblock that has a neighbour in
    /// use.
    pub fn take_contiguous(
        &self,
        wanted: &SearchRequest<'_>,
        frames: u32,
        align: u32,
    ) -> Option<Pfn> {
        assert!(frames >= PAGEBLOCK_FRAMES && align.is_power_of_two());
        let step = align.max(PAGEBLOCK_FRAMES) / PAGEBLOCK_FRAMES;
        let pageblocks = frames.div_ceil(PAGEBLOCK_FRAMES);
        match (pageblocks, step) {
            (1, 1) => return self.take_block(wanted, Order::PAGEBLOCK),
            (2, 2) => return self.take_block(wanted, Order::MAX),
            _ => {}
        }
        let sections = wanted.sections();
        let end = (sections.end * SECTION_PAGEBLOCKS) as u32;
        let mut first = (sections.start * SECTION_PAGEBLOCKS) as u32;
        loop {
            let whole = self.next_of(first..end, entirely_free_or_wakeable)?;
            let start = whole.0.checked_next_multiple_of(step)?;
            if u64::from(start) + u64::from(pageblocks) > u64::from(end) {
                return None;
            }
            let in_use =
                |&pageblock: &u32| !self.is_whole_of(PageblockIndex(pageblock), wanted.zone);
            first = match (start..start + pageblocks).rev().find(in_use) {
                None if self.claim(PageblockIndex(start).first(), frames) => {
                    self.retag(PageblockIndex(start), frames, wanted);
                    return Some(PageblockIndex(start).first());
                }
                None => start + step,
                Some(pageblock) => pageblock + 1,
            };
        }
    }

    fn is_whole_of(&self, pageblock: PageblockIndex, zone: ZoneId) -> bool {
        self.section(pageblock.section()).is_some_and(|section| {
            let at = pageblock.in_section();
            let tag = self.tags.of(pageblock);
            entirely_free_or_wakeable(section, at / 64) >> (at % 64) & 1 == 1 && tag.serves(zone)
        })
    }

    /// Takes the lowest `frames` contiguous free frames of the zone of which the first is a
    /// multiple of `align` (a power of two). Pageblocks taken whole become ones of the wanted
    /// mobility.
    ///
    /// When another caller was faster, the search goes on behind the place it lost; when the device
    /// refused a pageblock, behind that.
    pub fn take_run(&self, wanted: &SearchRequest<'_>, frames: u32, align: u32) -> Option<Pfn> {
        assert!(frames > 0 && align.is_power_of_two());
        let mut from =
            u64::from(wanted.span.0) * SECTION_PAGEBLOCKS as u64 * u64::from(PAGEBLOCK_FRAMES);
        loop {
            let start = self.find_run(wanted, from, frames, align)?;
            if self.claim(start, frames) {
                self.note_run(wanted.tag(), start, frames);
                return Some(start);
            }
            from = u64::from(start.get()) + 1;
        }
    }

    /// The lowest such run from frame `from` on.
    fn find_run(
        &self,
        wanted: &SearchRequest<'_>,
        from: u64,
        frames: u32,
        align: u32,
    ) -> Option<Pfn> {
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

    /// Gives the pageblocks that a claimed run covers whole the tag of the request, and notes where
    /// it mixes the others.
    pub fn note_run(&self, tag: Tag, start: Pfn, frames: u32) {
        let range = FrameRange::new(start, frames);
        for pageblock in range.pageblocks().map(PageblockIndex) {
            let whole = FrameRange::new(pageblock.first(), PAGEBLOCK_FRAMES);
            let is_whole = start <= whole.start && whole.end() <= range.end();
            match self.section(pageblock.section()) {
                _ if is_whole => self.retag_one(pageblock, tag),
                Some(section) => self.note_mixed(section, pageblock, tag.kind()),
                None => {}
            }
        }
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

/// The preference among frames for an unmovable one; lower is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The pageblock serves unmovable requests already, so it could not have become whole.
    Unmovable,
    /// Every frame of the pageblock is free.
    Whole,
    /// The pageblock serves movable blocks, among which an unmovable frame would be mixed. The
    /// fewer of its frames are in use, the more can follow.
    Mixed { in_use: u32 },
}

impl Bitmap<'_> {
    /// Takes an unmovable frame of the zone from the pageblocks that lie in `frames`. If no
    /// pageblock lies in `frames`, takes one from the pageblocks that contain `frames`, whose other
    /// frames may be taken, too. `None`: there is no such frame, or another caller took it first.
    ///
    /// O(frames / 512): one load per 64 pageblocks, and one line per pageblock with a free frame up
    /// to the first unmovable one.
    pub fn take_among(&self, zone: ZoneId, frames: &Range<u32>) -> Option<Pfn> {
        let mut best: Option<(Rank, PageblockIndex)> = None;
        let inner = frames.start.div_ceil(PAGEBLOCK_FRAMES)..frames.end / PAGEBLOCK_FRAMES;
        let outer = frames.start / PAGEBLOCK_FRAMES..frames.end.div_ceil(PAGEBLOCK_FRAMES);
        let Range { start, end } = if inner.is_empty() { outer } else { inner };
        for (word, in_range) in bits::masks(start, end) {
            self.rank_word(zone, word as u32, in_range, &mut best);
            if best.is_some_and(|(rank, _)| rank == Rank::Unmovable) {
                break;
            }
        }
        let (rank, pageblock) = best?;
        let section = self.section(pageblock.section())?;
        let base = pageblock.section() as u32 * SECTION_FRAMES;
        let mut found = None;
        let give = |one: WordBlocks| found = Some(Pfn::new(base + one.lowest()));
        if rank == Rank::Whole {
            section.break_up(pageblock.in_section() as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES);
        }
        section.take(pageblock.in_section(), Order::BASE, None, 1, give);
        if matches!(rank, Rank::Mixed { .. }) && found.is_some() {
            self.note_mixed(section, pageblock, Kind::UNMOVABLE);
        }
        found
    }

    /// Compares the pageblocks of a word of hints with the best so far.
    fn rank_word(
        &self,
        zone: ZoneId,
        word: u32,
        in_range: u64,
        best: &mut Option<(Rank, PageblockIndex)>,
    ) {
        let first = PageblockIndex(word * u64::BITS);
        let Some(section) = self.section(first.section()) else { return };
        let some = section.hints(first.in_section() / u64::BITS as usize).0;
        let whole = section.entirely_free(first.in_section() / u64::BITS as usize);
        for bit in bits::each((some | whole) & in_range) {
            let pageblock = PageblockIndex(first.0 + bit);
            let tag = self.tags.of(pageblock);
            if !tag.serves(zone) {
                continue;
            }
            let rank = match (whole >> bit & 1 == 1, tag == Tag::new(zone, Kind::UNMOVABLE)) {
                (true, _) => Rank::Whole,
                (false, true) => Rank::Unmovable,
                (false, false) => {
                    let free = section.count_in_words(pageblock.in_section());
                    Rank::Mixed { in_use: PAGEBLOCK_FRAMES - free }
                }
            };
            if best.is_none_or(|(least, _)| rank < least) {
                *best = Some((rank, pageblock));
            }
            if rank == Rank::Unmovable {
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "runs_tests.rs"]
mod tests;
