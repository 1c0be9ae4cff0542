//! Zone and kind of every pageblock. `free` finds its front by them, over the bitmap and over a
//! backing.
#![allow(unsafe_code, reason = "leaves out a bounds check on the hot path")]

use crate::frame::pageblock::{PAGEBLOCK_FRAMES, PageblockIndex, Tag};
use crate::frame::{FrameRange, Kind, Order, Pfn, ZoneId};
use crate::sync::prim::{AtomicU32, Ordering};

/// Counters of a zone's avoided pageblocks. All accesses are Relaxed: only policies read them.
#[derive(Default)]
pub(super) struct OfZone {
    /// Pageblocks that are avoided.
    pub avoided: AtomicU32,
    /// Number of avoided pageblocks that became whole; wraps around.
    pub healed: AtomicU32,
    /// Whether blocks of several frames were searched for since a hand last ended its turn: then
    /// not 0.
    pub larger: AtomicU32,
}

/// Counters of avoided pageblocks, by zone.
#[derive(Default)]
pub struct AvoidCounts([OfZone; Tag::ZONES_MAX]);

impl AvoidCounts {
    pub(super) fn of(&self, zone: ZoneId) -> &OfZone {
        &self.0[zone.index()]
    }
}

/// The table; see the module.
#[derive(Clone, Copy)]
pub struct Tags<'m> {
    /// Tags of every pageblock below the limit, holes included. Written when a pageblock changes
    /// its kind.
    pub(super) tags: &'m [AtomicU32],
    /// Pageblocks for which `simple` answers: all or none.
    simple_pageblocks: usize,
    pub(super) avoid_counts: &'m AvoidCounts,
}

impl<'m> Tags<'m> {
    /// `simple`: see [`simple`](Self::simple).
    pub fn new(tags: &'m [AtomicU32], simple: bool, avoid_counts: &'m AvoidCounts) -> Self {
        Tags { tags, simple_pageblocks: if simple { tags.len() } else { 0 }, avoid_counts }
    }

    /// Number of tags.
    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// The tag of the pageblock that `pfn` lies in, if there is memory.
    #[inline]
    pub fn tag(&self, pfn: Pfn) -> Option<Tag> {
        // Relaxed: a holder of a frame got it by an acquiring operation that the tag's writer
        // released; searchers recheck nothing, a wrong kind is only a worse choice.
        let tag = Tag(self.tags.get(PageblockIndex::of(pfn).0 as usize)?.load(Ordering::Relaxed));
        tag.is_present().then_some(tag.of_the_rest())
    }

    /// Whether the tag of any pageblock of `start..start + frames` is such a one.
    #[inline]
    pub fn is_any_near(&self, start: Pfn, frames: u32, is: impl Fn(Tag) -> bool) -> bool {
        // Relaxed: as in `simple`. A caller that frees a carved frame before it has heard of the
        // carving may still find the old tag. Its free then counts as one from before the carving.
        let pageblocks = FrameRange::new(start, frames).pageblocks();
        pageblocks
            .filter_map(|pageblock| self.tags.get(pageblock as usize))
            .any(|tag| is(Tag(tag.load(Ordering::Relaxed))))
    }

    /// The tag of a frame like [`tag`](Self::tag), but also of pageblocks without memory, for
    /// callers that need not tell them from others yet, and of pageblocks with carved frames; and
    /// `None` for every frame when the store was made for an allocator whose options need more than
    /// the tag: one comparison decides about both.
    #[inline]
    pub fn simple(&self, pfn: Pfn) -> Option<Tag> {
        let pageblock = PageblockIndex::of(pfn).0 as usize;
        if pageblock >= self.simple_pageblocks {
            return None;
        }
        // SAFETY: `simple_pageblocks` is 0 or the length of the slice. Relaxed: the caller holds
        // the frame, and saw the tag's last change when it got it.
        Some(Tag(unsafe { self.tags.get_unchecked(pageblock) }.load(Ordering::Relaxed)))
    }

    /// Whether [`simple`](Self::simple) returns this tag for each of some frames. No branch asks
    /// for one frame.
    pub fn are_simple(&self, frames: &[Pfn], tag: Tag) -> bool {
        let last = frames.iter().fold(0, |last, pfn| pfn.get().max(last));
        if PageblockIndex::of(Pfn::new(last)).0 as usize >= self.simple_pageblocks {
            return false;
        }
        let of = |pfn: &Pfn| {
            // SAFETY: no frame lies behind the last one. Relaxed: as in `simple`.
            unsafe { self.tags.get_unchecked(PageblockIndex::of(*pfn).0 as usize) }
                .load(Ordering::Relaxed)
        };
        frames.iter().fold(0, |others, pfn| others | (of(pfn) ^ tag.0)) == 0
    }

    /// The tag of a block, if all of it lies in pageblocks of one zone: that of its last frame, if
    /// its pageblock is isolated.
    pub fn of_block(&self, pfn: Pfn, order: Order) -> Option<Tag> {
        let mut last = None;
        if order > Order::PAGEBLOCK {
            self.zone_of_range(pfn, order.frames())?;
            last = self.tag(pfn.add(order.frames() - 1)).filter(|last| last.is_isolated());
        }
        last.or(self.tag(pfn))
    }

    /// Whether all pageblocks of `start..start + frames` have memory of one zone; which.
    pub fn zone_of_range(&self, start: Pfn, frames: u32) -> Option<ZoneId> {
        let last = start.get().checked_add(frames.checked_sub(1)?)?;
        let zone = self.tag(start)?.zone();
        (start.get() / PAGEBLOCK_FRAMES + 1..=last / PAGEBLOCK_FRAMES)
            .all(|pageblock| {
                self.tag(PageblockIndex(pageblock).first()).is_some_and(|tag| tag.zone() == zone)
            })
            .then_some(zone)
    }

    /// The tag of a pageblock below the limit, or of its frames that are not carved.
    pub fn of(&self, pageblock: PageblockIndex) -> Tag {
        self.with_carved(pageblock).of_the_rest()
    }

    /// The tag of a pageblock below the limit as it is.
    pub fn with_carved(&self, pageblock: PageblockIndex) -> Tag {
        // Acquire: pairs with the Release in `set`; a search that passes a pageblock by for its new
        // tag knows what the tag's writer had done before.
        Tag(self.tags[pageblock.0 as usize].load(Ordering::Acquire))
    }

    /// Changes the tag of a pageblock before any caller can have a frame of it: its zone, or that
    /// it has memory.
    pub fn set(&self, pageblock: PageblockIndex, tag: Tag) {
        // Release: pairs with the Acquire in `of`. To holders of frames it is published by whatever
        // hands those on.
        self.tags[pageblock.0 as usize].store(tag.0, Ordering::Release);
    }

    /// Sets a tag like [`set`](Self::set), for a caller that owns only some frames of the
    /// pageblock: unless others of it are carved, which stays noted.
    pub fn set_for_some(&self, pageblock: PageblockIndex, tag: Tag) {
        let new = |old: Tag| (!old.is_carved() && !old.is_isolated()).then_some(tag);
        // Release: as in `set`. An error is a pageblock with carved frames, or isolated.
        let _ = self.change(pageblock, Ordering::Release, new);
    }

    /// Sets a tag like [`set`](Self::set), for the owner of all frames of a pageblock that may be
    /// isolated at the same time: it stays so. Returns the tag before.
    ///
    /// # Errors
    /// The tag of an isolated pageblock.
    pub fn retag(&self, pageblock: PageblockIndex, tag: Tag) -> Result<Tag, Tag> {
        let new = |old: Tag| (!old.is_isolated()).then_some(tag);
        // Release: as in `set`.
        self.change(pageblock, Ordering::Release, new)
    }

    /// Changes a tag to what `new` makes of it, and counts what begins or ends to be avoided: each
    /// change has one caller that wins the compare-and-swap.
    ///
    /// # Errors
    /// The tag that `new` refused.
    pub(super) fn change(
        &self,
        pageblock: PageblockIndex,
        order: Ordering,
        new: impl Fn(Tag) -> Option<Tag>,
    ) -> Result<Tag, Tag> {
        let cell = &self.tags[pageblock.0 as usize];
        let old = cell
            .fetch_update(order, Ordering::Relaxed, |old| new(Tag(old)).map(|tag| tag.0))
            .map(Tag)
            .map_err(Tag)?;
        let is_avoided = new(old).is_some_and(Tag::is_avoided);
        if old.is_avoided() != is_avoided {
            let count = &self.avoid_counts.of(old.zone()).avoided;
            match is_avoided {
                true => count.fetch_add(1, Ordering::Relaxed),
                false => count.fetch_sub(1, Ordering::Relaxed),
            };
        }
        Ok(old)
    }

    /// Isolates a pageblock that has no memory, or none any more of `zone`, for memory to be added.
    /// The isolated tag is of unmovable kind if the pageblock had no memory, of reclaimable kind if
    /// its memory was removed.
    ///
    /// # Errors
    /// The tag that it has.
    pub fn claim(&self, pageblock: PageblockIndex, zone: ZoneId) -> Result<(), Tag> {
        let new = |old| match Tag(old) {
            Tag::ABSENT => Some(Tag::new(zone, Kind::UNMOVABLE).isolated().0),
            tag if tag == Tag::removed(zone) => {
                Some(Tag::new(zone, Kind::RECLAIMABLE).isolated().0)
            }
            _ => None,
        };
        // Acquire: pairs with the Release in `set` by the caller that removed the memory: the
        // frames are put where it took them away. Holders get the tag from what hands the frames
        // on.
        self.tags[pageblock.0 as usize]
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, new)
            .map(drop)
            .map_err(Tag)
    }

    /// Undoes a [`claim`](Self::claim) by the caller that made it.
    pub fn unclaim(&self, pageblock: PageblockIndex, zone: ZoneId) {
        let was_absent = self.raw(pageblock) == Tag::new(zone, Kind::UNMOVABLE).isolated();
        self.set(pageblock, if was_absent { Tag::ABSENT } else { Tag::removed(zone) });
    }

    /// Isolates a pageblock of `zone`: searches pass it by, and frees of its frames go past the
    /// caches. Returns the tag before.
    ///
    /// # Errors
    /// The tag of a pageblock that is not of the zone, carved, or isolated already.
    pub fn isolate(&self, pageblock: PageblockIndex, zone: ZoneId) -> Result<Tag, Tag> {
        let new = |tag: Tag| (tag.serves(zone) && !tag.is_carved()).then(|| tag.isolated());
        // Relaxed: holds searches off sooner or later, and is no proof that none goes on. What is
        // removed is claimed frame by frame.
        self.change(pageblock, Ordering::Relaxed, new)
    }

    /// Ends the isolation of a pageblock by the caller that isolated it.
    pub fn end_isolation(&self, pageblock: PageblockIndex) {
        let new = |old| Tag(old).of_isolated().map(|tag| tag.0);
        // Release: as in `set`. Only the caller that isolated the pageblock changes its tag.
        let _ =
            self.tags[pageblock.0 as usize].fetch_update(Ordering::Release, Ordering::Relaxed, new);
    }

    /// The tag of a pageblock as it is: carved, removed or absent ones too. Beyond the limit all
    /// are absent. Relaxed: as in [`simple`](Self::simple), or for a look that a claim confirms.
    pub fn raw(&self, pageblock: PageblockIndex) -> Tag {
        let tag = self.tags.get(pageblock.0 as usize);
        tag.map_or(Tag::ABSENT, |tag| Tag(tag.load(Ordering::Relaxed)))
    }
}
