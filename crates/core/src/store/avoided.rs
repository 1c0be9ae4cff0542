//! Pageblocks that searches and frees avoid.
//!
//! # Vocabulary
//! A pageblock is *avoided* while its tag says so: what is freed there goes to the store, and
//! searches pass it by. It is *settled* when that ends, and *healed* when it ends because the
//! pageblock is whole. Which pageblocks are avoided is decided by
//! [`evacuation`](crate::evacuation).
//!
//! # Theory
//! Any caller may make a pageblock avoided, or end that, while frames of it are held and
//! cached, by a compare-and-swap that leaves zone and mobility as they are. No caller relies on
//! either form. A free that has read the old tag pushes its frame to the other one of two fronts,
//! of the same zone, mobility and order. From the front that is popped the frame is handed out
//! again, as any frame is that was cached before the change; from the other it goes to the store,
//! as all there do. Each magazine holds frames of one zone and order, which is all that drains,
//! spills and pops rely on. A search that reads a stale form takes frames from a pageblock that it
//! could have passed by, or passes by one until its last passes, which ask for neither. A caller
//! that owns all 512 frames and changes the mobility ends that by the same
//! compare-and-swap; a late mark then fails, or marks what the tag says now.
//!
//! Each section has a copy of that bit of its pageblocks' tags, 64 to a word, which searches read.

use super::bitmap::Bitmap;
use super::misuse::DoubleFree;
use super::section::Section;
use super::tags::Tags;
use crate::frame::ZoneId;
use crate::frame::pageblock::{PageblockIndex, Tag};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::Ordering;

impl Tags<'_> {
    /// Ends that a pageblock is avoided. `false`: it was not.
    pub fn settle(&self, pageblock: PageblockIndex) -> bool {
        let new = |old: Tag| old.is_avoided().then(|| old.settled());
        // AcqRel: as in `Bitmap::avoid`.
        self.change(pageblock, Ordering::AcqRel, new).is_ok()
    }

    /// Pageblocks of a zone that are avoided.
    pub fn avoided(&self, zone: ZoneId) -> u32 {
        self.avoid_counts.of(zone).avoided.load(Ordering::Relaxed)
    }

    /// Pageblocks of a zone that have become whole while they were avoided; wraps around.
    pub fn healed(&self, zone: ZoneId) -> u32 {
        self.avoid_counts.of(zone).healed.load(Ordering::Relaxed)
    }

    /// Notes that blocks of several frames, below a pageblock, are searched for in a zone. A load,
    /// for all but the first since they were forgotten.
    #[inline]
    pub fn note_larger(&self, zone: ZoneId) {
        let noted = &self.avoid_counts.of(zone).larger;
        if noted.load(Ordering::Relaxed) == 0 {
            noted.store(1, Ordering::Relaxed);
        }
    }

    /// Whether any were, since [`forget_larger`](Self::forget_larger).
    pub fn has_larger(&self, zone: ZoneId) -> bool {
        self.avoid_counts.of(zone).larger.load(Ordering::Relaxed) != 0
    }

    /// Forgets, after a turn of a hand, the searches that [`note_larger`](Self::note_larger) noted.
    pub fn forget_larger(&self, zone: ZoneId) {
        self.avoid_counts.of(zone).larger.store(0, Ordering::Relaxed);
    }
}

impl Section<'_> {
    /// Mask of the pageblocks `64 * i ..` that searches pass by.
    #[inline]
    pub fn avoided(&self, i: usize) -> u64 {
        // Relaxed: a search that misses a change takes frames from the other pageblocks.
        self.avoided[i].load(Ordering::Relaxed)
    }

    /// Copies whether a pageblock is avoided from its tag, which `is_avoided` reads.
    ///
    /// Every caller that changes the tag calls this after. The last of them to look sees the last
    /// change, so that the copy agrees when all have returned.
    pub fn note_avoided(&self, pageblock: usize, is_avoided: impl Fn() -> bool) {
        let (cell, bit) = (&self.avoided[pageblock / 64], 1 << (pageblock % 64));
        let mut now = is_avoided();
        loop {
            // AcqRel: of two callers, the one whose change comes later here sees the tag that the
            // other one changed before its own, by the look below.
            match now {
                true => cell.fetch_or(bit, Ordering::AcqRel),
                false => cell.fetch_and(!bit, Ordering::AcqRel),
            };
            if is_mutant(Mutant::CopiesOnce) {
                return;
            }
            let then = is_avoided();
            if then == now {
                return;
            }
            now = then;
        }
    }
}

impl Bitmap<'_> {
    /// Makes a partly used pageblock of a zone avoided. `false`: it has no mobility there, or is
    /// avoided.
    ///
    /// The caller owns no frame of it. It changes one bit, as it were, and no caller relies on that
    /// bit: see the module.
    pub fn avoid(&self, section: &Section<'_>, pageblock: PageblockIndex, zone: ZoneId) -> bool {
        let new = |old: Tag| (old.is_settled() && old.zone() == zone).then(|| old.avoided());
        // AcqRel: before the bit of the section, see `Section::note_avoided`.
        let begun = self.tags.change(pageblock, Ordering::AcqRel, new).is_ok();
        self.note_tag(section, pageblock);
        begun
    }

    /// Ends that a pageblock is avoided.
    pub fn settle(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        if self.avoids && self.tags.settle(pageblock) {
            self.note_tag(section, pageblock);
        }
    }

    /// Ends that a pageblock is avoided that is whole, entire or reported now, after frames were
    /// put into it, and takes what is in its words and free as one out of the words again. Returns
    /// those frames, which so were free already.
    #[cold]
    pub fn heal(&self, section: &Section<'_>, pageblock: PageblockIndex) -> DoubleFree {
        self.end_avoidance(section, pageblock);
        match section.is_as_one(pageblock.in_section()) {
            true => self.strip(section, pageblock),
            false => DoubleFree::NONE,
        }
    }

    /// Ends that a pageblock is avoided that has become free.
    #[inline]
    pub(super) fn end_avoidance(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        if self.avoids && self.tags.raw(pageblock).is_avoided() && self.tags.settle(pageblock) {
            let zone = self.tags.raw(pageblock).zone();
            self.tags.avoid_counts.of(zone).healed.fetch_add(1, Ordering::Relaxed);
            self.note_tag(section, pageblock);
        }
    }

    /// Copies to the section whether the pageblock is avoided. Call after its tag was changed.
    pub fn note_tag(&self, section: &Section<'_>, pageblock: PageblockIndex) {
        section
            .note_avoided(pageblock.in_section(), || self.tags.with_carved(pageblock).is_avoided());
    }

    /// Copies to its section that a pageblock with this tag before is avoided no more, if it was.
    pub(super) fn note_change(&self, pageblock: PageblockIndex, before: Tag) {
        if before.is_avoided()
            && let Some(section) = self.section(pageblock.section())
        {
            self.note_tag(section, pageblock);
        }
    }
}
