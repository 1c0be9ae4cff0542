//! A frame among given ones.

use core::ops::Range;

use super::bitmap::Bitmap;
use super::found::WordBlocks;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, Tag};
use crate::frame::{Mobility, Order, Pfn, ZoneId};

/// The preference among frames for an unmovable one; lower is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The pageblock serves unmovable requests already, so it could not have become whole.
    Unmovable,
    /// Every frame of the pageblock is free.
    Whole,
    /// The pageblock serves movable blocks, among which an unmovable frame would be mixed.
    Mixed,
}

impl Bitmap<'_> {
    /// Takes an unmovable frame of the zone from the pageblocks that lie in `frames`. If no
    /// pageblock lies in `frames`, takes one from the pageblocks that contain `frames`, whose other
    /// frames may be taken, too. `None`: there is no such frame, or another caller took it first.
    ///
    /// O(frames / 512): one load per 64 pageblocks, and one per pageblock with a free frame up to
    /// the first unmovable one.
    pub fn take_among(&self, zone: ZoneId, frames: &Range<u32>) -> Option<Pfn> {
        let mut best: Option<(Rank, PageblockIndex)> = None;
        let inner = frames.start.div_ceil(PAGEBLOCK_FRAMES)..frames.end / PAGEBLOCK_FRAMES;
        let outer = frames.start / PAGEBLOCK_FRAMES..frames.end.div_ceil(PAGEBLOCK_FRAMES);
        let Range { start: mut next, end } = if inner.is_empty() { outer } else { inner };
        while next < end && best.is_none_or(|(rank, _)| rank != Rank::Unmovable) {
            let (word, at) = (next / u64::BITS, next % u64::BITS);
            let stop = end.min((word + 1) * u64::BITS);
            let in_range = !0 << at & !0 >> ((word + 1) * u64::BITS - stop);
            self.rank_word(zone, word, in_range, &mut best);
            next = stop;
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
        if rank == Rank::Mixed && found.is_some() {
            self.note_mixed(section, pageblock, Mobility::Unmovable);
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
        let mut candidates = (some | whole) & in_range;
        while candidates != 0 {
            let bit = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let pageblock = PageblockIndex(first.0 + bit);
            let tag = self.tags.of(pageblock);
            if !tag.serves(zone) {
                continue;
            }
            let rank = match (whole >> bit & 1 == 1, tag == Tag::new(zone, Mobility::Unmovable)) {
                (true, _) => Rank::Whole,
                (false, true) => Rank::Unmovable,
                (false, false) => Rank::Mixed,
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
