//! Pageblocks: their numbers, and the tag that says which zone and mobility each serves.

use super::units::{Kind, Order, Pfn, ZoneId};
use crate::sync::model::bound;

/// Frames per pageblock.
pub const PAGEBLOCK_FRAMES: u32 = Order::PAGEBLOCK.frames();
/// Pageblocks per section, the unit in which memory gets its metadata.
pub const SECTION_PAGEBLOCKS: usize = bound(512, 2);
/// Frames per section: 1 GiB with 4 KiB frames.
pub const SECTION_FRAMES: u32 = SECTION_PAGEBLOCKS as u32 * PAGEBLOCK_FRAMES;

/// Whether a run of frames consists of pageblocks.
pub fn fills_pageblocks(start: u32, frames: u32) -> bool {
    start.is_multiple_of(PAGEBLOCK_FRAMES) && frames.is_multiple_of(PAGEBLOCK_FRAMES)
}

/// Bytes of a front word.
pub const WORD_BYTES: usize = size_of::<u64>();
/// Bytes of the front words of one zone and kind.
const FRONTS_BYTES: usize = WORD_BYTES * Order::CACHED;
/// Rows of front words that may have magazines: for each kind one that is pushed to and popped
/// from, and one that is only pushed to.
pub const ROWS: usize = Kind::COUNT * 2;
/// Front words per zone and context that may have magazines.
pub const FRONTS: usize = Order::CACHED * ROWS;
/// Front words per zone and context. Besides those of [`FRONTS`] there is a row whose words never
/// have a magazine, for frames without memory. More words follow, so that further offsets lead only
/// to such words, whatever the order: see the table at [`Tag`].
pub const WORDS_PER_ZONE: usize = Order::CACHED * (ROWS + 1) + 2 + Kind::COUNT;
/// Bytes of all front words of one zone and context.
const ZONE_BYTES: usize = WORD_BYTES * WORDS_PER_ZONE;

/// The number of a pageblock across all sections: its first frame divided by 512.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageblockIndex(pub u32);

impl PageblockIndex {
    /// The pageblock that a frame lies in.
    pub fn of(pfn: Pfn) -> Self {
        PageblockIndex(pfn.get() / PAGEBLOCK_FRAMES)
    }

    /// The first frame of the pageblock.
    pub fn first(self) -> Pfn {
        Pfn::new(self.0 * PAGEBLOCK_FRAMES)
    }

    pub(crate) fn in_section(self) -> usize {
        self.0 as usize % SECTION_PAGEBLOCKS
    }

    pub(crate) fn section(self) -> usize {
        self.0 as usize / SECTION_PAGEBLOCKS
    }
}

/// Zone and [kind](Kind) of a pageblock, as the bytes from the start of a CPU's block to the row of
/// fronts that its frames are cached in.
///
/// A pageblock that is *avoided* has a row of its own for its kind. Frames are pushed there and
/// never popped: what is freed leaves circulation, and goes to the store by magazines
/// (`store/avoided.rs`).
///
/// The other values lead to words that never have a magazine. So a free of such a frame takes the
/// slow path, which reads the tag again:
///
/// | value | meaning |
/// |---|---|
/// | rows 0 to 3 of a zone | unmovable, movable, reclaimable, movable and kept apart |
/// | rows 4 to 7 | the same, avoided |
/// | row 8 of zone 0 | no memory here |
/// | row 8 of a zone, plus one word | some of its frames are carved: the allocator's own magazines. The others are free, cached or held as in any pageblock; they count as unmovable |
/// | plus two words | no memory any more: it was removed from this zone |
/// | plus three to six words | isolated: a caller is adding, removing or emptying the pageblock, which is of the kind of row 0 to 3 |
///
/// | transition | by |
/// |---|---|
/// | no memory, or removed from this zone -> isolated, and from there movable | the caller that adds memory |
/// | a kind -> another one | the owner of all 512 frames |
/// | a kind -> the same, avoided, and back | any caller, by one compare-and-swap |
/// | a kind -> carved | the owner of a frame that is cut into magazines, for good |
/// | a kind -> isolated, and back | the caller that removes memory or compacts, before it owns a frame of it |
/// | isolated -> removed | the same, as the owner of all 512 frames |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u32);

impl Tag {
    /// A pageblock without memory.
    pub const ABSENT: Tag = Tag(REFUSING);
    /// Most zones: a zone has a place in arrays and reports.
    pub const ZONES_MAX: usize = bound(31, 2);

    pub const fn new(zone: ZoneId, kind: Kind) -> Self {
        Tag(zone.get() * ZONE_BYTES as u32 + (kind.index() * FRONTS_BYTES) as u32)
    }

    /// The avoided form of a pageblock that has a zone and kind.
    pub const fn avoided(self) -> Self {
        Tag(self.settled().0 + AVOIDED)
    }

    /// The form that is not avoided; other tags stay as they are.
    #[inline]
    pub const fn settled(self) -> Self {
        if self.is_avoided() { Tag(self.0 - AVOIDED) } else { self }
    }

    /// Whether the pageblock is avoided.
    #[inline]
    pub const fn is_avoided(self) -> bool {
        let offset = self.0 % ZONE_BYTES as u32;
        offset >= AVOIDED && offset < REFUSING
    }

    /// Whether the pageblock has a zone and kind, and no further state.
    #[inline]
    pub const fn is_settled(self) -> bool {
        self.0 % (ZONE_BYTES as u32) < AVOIDED
    }

    /// Whether the tag leads to fronts that take blocks.
    #[inline]
    pub const fn has_fronts(self) -> bool {
        self.0 % (ZONE_BYTES as u32) < REFUSING
    }

    /// A pageblock of this zone with carved frames.
    pub const fn carved(zone: ZoneId) -> Self {
        Tag(zone.get() * ZONE_BYTES as u32 + CARVED)
    }

    /// A pageblock whose memory was removed from this zone.
    pub const fn removed(zone: ZoneId) -> Self {
        Tag(zone.get() * ZONE_BYTES as u32 + REMOVED)
    }

    /// The isolated form of a pageblock that has a zone and kind.
    pub const fn isolated(self) -> Self {
        let word = ISOLATED as usize + self.kind().index() * WORD_BYTES;
        Tag(self.zone().get() * ZONE_BYTES as u32 + word as u32)
    }

    /// The tag from before the pageblock was isolated. `None`: it is not isolated.
    pub const fn of_isolated(self) -> Option<Self> {
        let offset = self.0 % ZONE_BYTES as u32;
        if offset < ISOLATED {
            return None;
        }
        let kind = (offset - ISOLATED) / WORD_BYTES as u32;
        Some(Tag(self.0 - offset + kind * FRONTS_BYTES as u32))
    }

    /// Bytes from the start of a CPU's block to the row of fronts.
    #[inline]
    pub const fn fronts_at(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 != Self::ABSENT.0 && !self.is_removed()
    }

    /// Whether the pageblock had memory that was removed from its zone.
    #[inline]
    pub const fn is_removed(self) -> bool {
        self.0 % ZONE_BYTES as u32 == REMOVED
    }

    /// Whether a caller is adding or removing the pageblock.
    #[inline]
    pub const fn is_isolated(self) -> bool {
        self.0 % ZONE_BYTES as u32 >= ISOLATED
    }

    /// Whether searches for frames of this zone may take some of the pageblock.
    #[inline]
    pub fn serves(self, zone: ZoneId) -> bool {
        self.is_present() && !self.is_isolated() && self.zone() == zone
    }

    /// Whether some frames of the pageblock are carved.
    #[inline]
    pub const fn is_carved(self) -> bool {
        self.0 % ZONE_BYTES as u32 == CARVED
    }

    /// The tag of the pageblock's frames that are not carved.
    #[inline]
    pub const fn of_the_rest(self) -> Self {
        if self.is_carved() { Self::new(self.zone(), Kind::UNMOVABLE) } else { self }
    }

    #[inline]
    pub const fn zone(self) -> ZoneId {
        ZoneId::new(self.0 / ZONE_BYTES as u32)
    }

    /// Kind of the pageblock, and whether it is avoided.
    #[inline]
    pub const fn row(self) -> (Kind, bool) {
        (self.kind(), self.is_avoided())
    }

    /// The tag must be of a pageblock with memory, not isolated and without carved frames.
    #[inline]
    pub const fn kind(self) -> Kind {
        debug_assert!(self.0 % (ZONE_BYTES as u32) < REFUSING, "a tag without a kind");
        Kind::from_bits(self.settled().0 % ZONE_BYTES as u32 / FRONTS_BYTES as u32)
    }
}

/// Bytes from a zone's first word to the rows that are only pushed to.
const AVOIDED: u32 = (Kind::COUNT * FRONTS_BYTES) as u32;
/// Bytes from a zone's first word to the row that no front has.
const REFUSING: u32 = (ROWS * FRONTS_BYTES) as u32;
/// One word further, two words, and three.
const CARVED: u32 = REFUSING + WORD_BYTES as u32;
const REMOVED: u32 = CARVED + WORD_BYTES as u32;
const ISOLATED: u32 = REMOVED + WORD_BYTES as u32;
const _: () =
    assert!(ISOLATED as usize + (Kind::COUNT - 1) * WORD_BYTES + FRONTS_BYTES == ZONE_BYTES);
