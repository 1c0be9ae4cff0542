//! Flags: the memory that a request may use, and its wishes.

use crate::frame::{Mobility, Order, ZoneId};
use crate::front::WordOffset;
use crate::store::SearchRules;
use crate::zone::Reserve;

/// Options of a request (Linux: GFP flags). The default: movable, any zone, may reclaim, not
/// zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flags(u32);

const MOBILITY: u32 = 0b11;
const ZEROED: u32 = 1 << 2;
const ATOMIC: u32 = 1 << 3;
const NO_RECLAIM: u32 = 1 << 4;
const THIS_NODE: u32 = 1 << 5;
const COMPACT: u32 = 1 << 6;
const UNMIXED: u32 = 1 << 7;
const LEVEL_SHIFT: u32 = 8;
const LEVEL_ANY: u32 = 15;
const BACKING_SHIFT: u32 = 16;

impl Flags {
    /// Flags for frames whose owner can move them.
    pub const MOVABLE: Flags = Flags::new(Mobility::Movable);
    /// Flags for frames that stay where they are.
    pub const UNMOVABLE: Flags = Flags::new(Mobility::Unmovable);
    /// Flags for frames whose owner can give them up.
    pub const RECLAIMABLE: Flags = Flags::new(Mobility::Reclaimable);

    /// Makes flags for frames of this mobility.
    pub const fn new(mobility: Mobility) -> Self {
        Flags(mobility as u32 | LEVEL_ANY << LEVEL_SHIFT)
    }

    /// The pages are zeroed. Needs a linear map; ignored without one.
    #[must_use]
    pub const fn zeroed(self) -> Self {
        Flags(self.0 | ZEROED)
    }

    /// The request may not wait, and may use the reserves below `min`: no callbacks, no fences.
    #[must_use]
    pub const fn atomic(self) -> Self {
        Flags(self.0 | ATOMIC)
    }

    /// The request fails rather than call callbacks or fence CPUs. It takes what other CPUs keep on
    /// their shelves, and leaves what is in fronts that only a fence or a wait could reach.
    #[must_use]
    pub const fn no_reclaim(self) -> Self {
        Flags(self.0 | NO_RECLAIM)
    }

    /// Only zones of the CPU's own node will do.
    #[must_use]
    pub const fn this_node(self) -> Self {
        Flags(self.0 | THIS_NODE)
    }

    /// Held blocks may be moved out of the request's way, by the registered
    /// `pagedepot_contiguity::Compactor`: before the request fails, if it is for more than one
    /// frame; and before a block that is not movable goes to a pageblock of movable ones, where it
    /// would keep that from ever being free as a whole (in [`alloc`](crate::Allocator::alloc)
    /// alone, above the `low` watermark, at most eight pageblocks a request, and less often where
    /// it is in vain). Of no effect without a mover, over a [`Backing`](crate::Backing), and on
    /// requests that may not reclaim.
    #[must_use]
    pub const fn compact(self) -> Self {
        Flags(self.0 | COMPACT)
    }

    /// Only zones of at most this level will do (Linux: DMA 0, DMA32 1, ...); at most 14.
    #[must_use]
    pub const fn at_most_level(self, level: u8) -> Self {
        let level = if (level as u32) < LEVEL_ANY { level as u32 } else { LEVEL_ANY };
        Flags(self.0 & !(LEVEL_ANY << LEVEL_SHIFT) | level << LEVEL_SHIFT)
    }

    /// Bits of the embedder's own, for its [`Backing`](crate::Backing) to read in
    /// [`BackingRequest::bits`](crate::BackingRequest::bits) and
    /// [`RangeRequest::bits`](crate::RangeRequest::bits) (Linux: `ALLOC_NOFRAGMENT`, `ALLOC_CMA`).
    /// They matter to requests that reach the backing: a block that a CPU has cached
    /// serves any. A refill brings more blocks than the request's own, all of them under its bits.
    #[must_use]
    pub const fn backing_bits(self, bits: u16) -> Self {
        Flags(self.0 & !(0xffff << BACKING_SHIFT) | (bits as u32) << BACKING_SHIFT)
    }

    /// The mobility.
    #[inline]
    pub const fn mobility(self) -> Mobility {
        match self.0 & MOBILITY {
            0 => Mobility::Unmovable,
            1 => Mobility::Movable,
            _ => Mobility::Reclaimable,
        }
    }

    #[inline]
    pub(crate) const fn is_zeroed(self) -> bool {
        self.0 & ZEROED != 0
    }

    /// Whether nothing is asked for that takes more than a pop from a zone of this level: no
    /// zeroing, and any node will do.
    #[inline]
    pub(crate) const fn is_simple(self, level: u8) -> bool {
        self.takes_level(level) && self.0 & (ZEROED | THIS_NODE) == 0
    }

    /// The front that a request pops from, if that is all that it does.
    #[inline(always)]
    pub(crate) fn simple_word(self, order: Order, level: u8) -> Option<WordOffset> {
        let order = order.cached().filter(|_| self.is_simple(level))?;
        Some(WordOffset::new(ZoneId::new(0), order, self.mobility()))
    }

    pub(crate) const fn is_atomic(self) -> bool {
        self.0 & ATOMIC != 0
    }

    pub(crate) const fn may_reclaim(self) -> bool {
        self.0 & (ATOMIC | NO_RECLAIM) == 0
    }

    pub(crate) const fn may_compact(self) -> bool {
        self.0 & COMPACT != 0 && self.may_reclaim()
    }

    /// Restricts the request to pageblocks that serve requests akin to it.
    pub(crate) const fn unmixed(self) -> Self {
        Flags(self.0 | UNMIXED)
    }

    const fn bits_for_backing(self) -> u16 {
        (self.0 >> BACKING_SHIFT) as u16
    }

    /// The rules of a search that leaves the zone with this watermark.
    pub(crate) const fn rules(self, reserve: Reserve) -> SearchRules {
        SearchRules {
            mobility: self.mobility(),
            reserve,
            bits: self.bits_for_backing(),
            may_mix: self.0 & UNMIXED == 0,
        }
    }

    pub(crate) const fn is_this_node(self) -> bool {
        self.0 & THIS_NODE != 0
    }

    /// The level stated; 15: any.
    #[inline]
    pub(crate) const fn level(self) -> usize {
        (self.0 >> LEVEL_SHIFT & LEVEL_ANY) as usize
    }

    /// Whether a zone of this level will do.
    #[inline]
    pub(crate) const fn takes_level(self, level: u8) -> bool {
        level as usize <= self.level()
    }
}

impl Default for Flags {
    fn default() -> Self {
        Flags::MOVABLE
    }
}

impl core::fmt::Debug for Flags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.mobility())?;
        for (bit, name) in [
            (ZEROED, "zeroed"),
            (ATOMIC, "atomic"),
            (NO_RECLAIM, "no_reclaim"),
            (THIS_NODE, "this_node"),
            (COMPACT, "compact"),
        ] {
            if self.0 & bit != 0 {
                write!(f, "|{name}")?;
            }
        }
        match self.0 >> LEVEL_SHIFT & LEVEL_ANY {
            LEVEL_ANY => {}
            level => write!(f, "|level<={level}")?,
        }
        match self.bits_for_backing() {
            0 => Ok(()),
            bits => write!(f, "|backing={bits:#x}"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_combination_says_what_it_was_made_from() {
        for bits in 0..32 {
            for mobility in Mobility::ALL {
                for level in (0..=14).map(Some).chain([None]) {
                    let mut flags = Flags::new(mobility);
                    let [zeroed, atomic, no_reclaim, this_node, compact] =
                        [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
                    flags = if zeroed { flags.zeroed() } else { flags };
                    flags = if atomic { flags.atomic() } else { flags };
                    flags = level.map_or(flags, |level| flags.at_most_level(level));
                    flags = if no_reclaim { flags.no_reclaim() } else { flags };
                    flags = if this_node { flags.this_node() } else { flags };
                    flags = if compact { flags.compact() } else { flags };
                    assert_eq!(flags.mobility(), mobility);
                    assert_eq!((flags.is_zeroed(), flags.is_atomic()), (zeroed, atomic));
                    assert_eq!(flags.may_reclaim(), !atomic && !no_reclaim);
                    assert_eq!(flags.may_compact(), compact && !atomic && !no_reclaim);
                    assert_eq!(flags.is_this_node(), this_node);
                    for of_zone in 0..=14 {
                        let takes = level.is_none_or(|level| of_zone <= level);
                        assert_eq!(flags.takes_level(of_zone), takes);
                        assert_eq!(flags.is_simple(of_zone), takes && !zeroed && !this_node);
                    }
                    // More than any zone has: where several zones need a closer look.
                    assert!(!flags.takes_level(u8::MAX));
                }
            }
        }
    }

    #[test]
    fn they_print_as_they_are_written() {
        assert_eq!(format!("{:?}", Flags::default()), "Movable");
        let all = Flags::UNMOVABLE.zeroed().atomic().no_reclaim().this_node().at_most_level(3);
        assert_eq!(format!("{all:?}"), "Unmovable|zeroed|atomic|no_reclaim|this_node|level<=3");
        assert_eq!(format!("{:?}", Flags::MOVABLE.compact()), "Movable|compact");
        let marked = Flags::MOVABLE.at_most_level(2).backing_bits(0xffff).backing_bits(0x41);
        assert_eq!(format!("{marked:?}"), "Movable|level<=2|backing=0x41");
        assert_eq!((marked.mobility(), marked.bits_for_backing()), (Mobility::Movable, 0x41));
        assert_eq!(marked.backing_bits(0), Flags::MOVABLE.at_most_level(2));
        assert_eq!(Flags::RECLAIMABLE.at_most_level(15), Flags::RECLAIMABLE);
        assert_eq!(Flags::RECLAIMABLE.at_most_level(200), Flags::RECLAIMABLE);
    }
}
