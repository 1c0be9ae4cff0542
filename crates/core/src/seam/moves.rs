//! Frames and blocks that a crate above the core takes from the store, past the caches, and gives
//! back.

use super::zone::ZoneAccess;
use crate::alloc::flags::Flags;
use crate::cpus::Cpus;
use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, SECTION_FRAMES, Tag};
use crate::frame::{FrameRange, Mobility, Order, Pfn};
use crate::pcp::PastCaches;
use crate::store::{DoubleFree, SearchRequest, SearchRules};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::Ordering;

impl<'a, 'm, C: Cpus> ZoneAccess<'a, 'm, C> {
    pub(super) fn past_caches(&self) -> PastCaches<'a, 'm> {
        self.caches().direct(self.caches().here(), self.id)
    }

    /// Takes all frames of a range from the store, or none. O(frames / 64).
    pub fn claim(&self, range: FrameRange) -> bool {
        let mut done = 0;
        while done < range.frames {
            let start = range.start.add(done);
            let to_next_section = SECTION_FRAMES - start.get() % SECTION_FRAMES;
            let frames = to_next_section.min(range.frames - done);
            if !self.caches().store.claim(self.id, start, frames) {
                let done = if is_mutant(Mutant::KeepsClaims) { 0 } else { done };
                self.put(FrameRange::new(range.start, done));
                return false;
            }
            self.past_caches().add_free(-i64::from(frames));
            done += frames;
        }
        true
    }

    /// Gives frames back that were [claimed](Self::claim).
    pub fn put(&self, range: FrameRange) {
        if range.frames > 0 {
            let doubled = self.caches().store.put(range.start, range.frames);
            let freed = i64::from(range.frames) - i64::from(doubled.frames);
            self.past_caches().add_free(freed);
            self.caches().store.note_doubled(doubled);
        }
    }

    /// Makes a range of whole pageblocks, which was [claimed](Self::claim) and whose isolation has
    /// ended, the range that a request gets: its first `frames` frames are counted as allocated,
    /// the others go back.
    pub fn hand_out(&self, claimed: FrameRange, frames: u32, mobility: Mobility) -> Pfn {
        let tag = Tag::new(self.id, mobility);
        self.caches().store.note_run(tag, claimed.start, claimed.frames);
        self.put(FrameRange::new(claimed.start.add(frames), claimed.frames - frames));
        self.past_caches().count_allocs(0, u64::from(frames));
        claimed.start
    }

    /// Allocates a movable block wherever a search of the zone finds one, past the watermarks;
    /// `is_unmixed`: in movable pageblocks alone.
    pub fn take(&self, order: Order, is_unmixed: bool) -> Option<Pfn> {
        let any = SearchRules::any(Mobility::Movable);
        let rules = if is_unmixed { any.unmixed() } else { any };
        let found = self
            .past_caches()
            .search(order, rules, |wanted| self.caches().store.take_block(wanted, order))?;
        self.count_taken(found, order);
        Some(found)
    }

    /// Allocates a movable block, smaller than a pageblock, from a pageblock of the zone, past the
    /// watermarks; `None` also where that is isolated.
    ///
    /// # Panics
    /// If the order is higher.
    pub fn take_from(&self, pageblock: PageblockIndex, order: Order) -> Option<Pfn> {
        let found = self.bitmap()?.take_from(pageblock, self.id, order)?;
        self.count_taken(found, order);
        Some(found)
    }

    fn count_taken(&self, pfn: Pfn, order: Order) {
        self.past_caches().count_taken(order);
        self.hooks.on_alloc(pfn, order, Flags::MOVABLE);
    }

    /// Frees a block past the caches. One that has been freed already, as far as can be told, is
    /// left alone, and noted as misuse.
    pub fn free(&self, pfn: Pfn, order: Order) {
        let range = FrameRange::new(pfn, order.frames());
        let is_ours = self.are_held(range) && self.hooks.note_free(pfn, order).is_ok();
        match self.caches().store.tags().of_block(pfn, order) {
            Some(tag) if is_ours => {
                self.caches().direct(self.caches().here(), tag.zone()).put(pfn, order);
            }
            _ => self
                .caches()
                .store
                .note_doubled(DoubleFree { first: Some(pfn), frames: order.frames() }),
        }
    }

    /// Makes the next search of this CPU for single frames of this mobility begin at a pageblock.
    pub fn lead_to(&self, pageblock: PageblockIndex, mobility: Mobility) {
        let lead = |wanted: &SearchRequest<'_>| wanted.hint.store(pageblock.0, Ordering::Relaxed);
        self.past_caches().search(Order::BASE, SearchRules::any(mobility), lead);
    }

    /// Takes all frames of a pageblock that is whole, and not reported. `false`: it is not, or is
    /// isolated or carved.
    pub fn take_whole(&self, pageblock: PageblockIndex) -> bool {
        let Some(bitmap) = self.bitmap() else { return false };
        let Some(section) = bitmap.section(pageblock.section()) else { return false };
        let tag = bitmap.tags().raw(pageblock);
        let is_ours = tag.serves(self.id)
            && !tag.is_carved()
            && section.claim(pageblock.in_section() as u32 * PAGEBLOCK_FRAMES, PAGEBLOCK_FRAMES);
        if is_ours {
            self.past_caches().add_free(-i64::from(PAGEBLOCK_FRAMES));
        }
        is_ours
    }

    /// Gives all frames of a pageblock back that were [taken](Self::take_whole): as reported to the
    /// device, or as free as they were.
    pub fn put_whole(&self, pageblock: PageblockIndex, is_reported: bool) {
        let Some(bitmap) = self.bitmap() else { return };
        let doubled = match bitmap.section(pageblock.section()) {
            Some(section) if is_reported => {
                bitmap.put_reported(section, pageblock);
                DoubleFree::NONE
            }
            _ => bitmap.put(pageblock.first(), PAGEBLOCK_FRAMES),
        };
        self.past_caches().add_free(i64::from(PAGEBLOCK_FRAMES) - i64::from(doubled.frames));
        self.caches().store.note_doubled(doubled);
    }
}
