//! Flags: the memory that a request may use, and its wishes; and the classes of memory, with the
//! policy that says which of them are kept apart (decision 0020).

use crate::frame::{Kind, Mobility, Order, ZoneId};
use crate::front::WordOffset;
use crate::store::SearchRules;
use crate::zone::Reserve;

/// Options of a request (Linux: GFP flags). The default: movable, any zone, may reclaim, not
/// zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flags(u32);

const KIND: u32 = 0b11;
const ZEROED: u32 = 1 << 2;
const ATOMIC: u32 = 1 << 3;
const NO_RECLAIM: u32 = 1 << 4;
const THIS_NODE: u32 = 1 << 5;
const COMPACT: u32 = 1 << 6;
const UNMIXED: u32 = 1 << 7;
const LEVEL_SHIFT: u32 = 8;
const LEVEL_ANY: u32 = 15;
const CLASS_SHIFT: u32 = 12;
const CLASS: u32 = 15 << CLASS_SHIFT;
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

    /// The request fails rather than call callbacks or fence CPUs. It takes what its own CPU caches
    /// and other CPUs keep on their shelves, and leaves what is in fronts that only a fence or a
    /// wait could reach: those of other CPUs, and of another context of its own.
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

    /// The class of the block. It matters where [`Config::classes`](crate::Config::classes) keeps
    /// blocks of this class apart from others of the mobility, and costs a few instructions there.
    #[must_use]
    pub const fn class(self, class: Class) -> Self {
        Flags(self.0 & !CLASS | (class.0 as u32) << CLASS_SHIFT)
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
        self.kind().mobility()
    }

    /// The kind of pageblocks that the request takes from first, once its class was looked up.
    #[inline]
    pub(crate) const fn kind(self) -> Kind {
        Kind::from_bits(self.0 & KIND)
    }

    #[inline]
    pub(crate) const fn is_zeroed(self) -> bool {
        self.0 & ZEROED != 0
    }

    /// Whether nothing is asked for that takes more than a pop from a zone of this level: no
    /// zeroing, any node will do, and there is no class to be looked up.
    #[inline]
    pub(crate) const fn is_simple(self, level: u8) -> bool {
        self.takes_level(level) && self.0 & (ZEROED | THIS_NODE | CLASS) == 0
    }

    /// The front that a request pops from, if that is all that it does.
    #[inline(always)]
    pub(crate) fn simple_word(self, order: Order, level: u8) -> Option<WordOffset> {
        let order = order.cached().filter(|_| self.is_simple(level))?;
        Some(WordOffset::new(ZoneId::new(0), order, self.kind()))
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
            kind: self.kind(),
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
        if self.0 & CLASS != 0 {
            write!(f, "|class={}", (self.0 & CLASS) >> CLASS_SHIFT)?;
        }
        match self.bits_for_backing() {
            0 => Ok(()),
            bits => write!(f, "|backing={bits:#x}"),
        }
    }
}

/// A caller's knowledge of a block beside its mobility: how long it will live, what it is for, or
/// whose it is. The names are a convention; only the [policy](Classes) gives them a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class(u8);

impl Class {
    /// Nothing is known. Blocks of this class are never kept apart.
    pub const UNKNOWN: Class = Class(0);
    /// Freed again soon, such as buffers of a network.
    pub const SHORT_LIVED: Class = Class(1);
    /// Held for as long as a device or a program is there.
    pub const LONG_LIVED: Class = Class(2);
    /// Pages of files, which outlive the programs that read them.
    pub const PAGE_CACHE: Class = Class(3);

    /// Blocks of a tenant, such as a virtual machine or a container. There are twelve classes for
    /// them: tenant 12 has that of tenant 0.
    pub const fn tenant(number: u8) -> Self {
        Class(4 + number % 12)
    }
}

/// The policy for [classes](Class), as data: blocks that are kept apart fill pageblocks of their
/// own, so that those of others become whole when others are freed.
///
/// There are two kinds of pageblocks for movable blocks and two for blocks that stay: one for
/// unmovable and one for reclaimable ones. Blocks that are kept apart fill those of the other kind
/// of the two. A CPU caches the kinds apart, too.
///
/// ```
/// use pagedepot::{Class, Classes, Flags, Mobility};
///
/// const POLICY: Classes = Classes::ALIKE
///     .apart(Mobility::Movable, Class::PAGE_CACHE)
///     .apart(Mobility::Unmovable, Class::SHORT_LIVED); // among reclaimable blocks
/// // In `Config::classes`, it matters to requests such as this one:
/// let flags = Flags::MOVABLE.class(Class::PAGE_CACHE);
/// # assert_eq!(flags.mobility(), Mobility::Movable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes {
    /// Bits of the classes that are kept apart, by mobility.
    apart: [u16; Mobility::COUNT],
}

impl Classes {
    /// The mobility alone decides which pageblocks a block comes from.
    pub const ALIKE: Classes = Classes { apart: [0; Mobility::COUNT] };

    /// Keeps blocks of this mobility and class apart from others that are as movable.
    #[must_use]
    pub const fn apart(mut self, mobility: Mobility, class: Class) -> Self {
        self.apart[mobility.index()] |= 1 << class.0 & !1;
        self
    }

    /// Number of kinds that requests can have. Only movable ones that are kept apart have the last.
    pub(crate) const fn kinds(self) -> usize {
        if self.apart[Mobility::Movable.index()] == 0 { Kind::APART.index() } else { Kind::COUNT }
    }

    /// The flags with the kind of pageblocks that their class has, and without the class.
    pub(crate) const fn of(self, flags: Flags) -> Flags {
        let class = (flags.0 & CLASS) >> CLASS_SHIFT;
        let is_apart = self.apart[flags.mobility().index()] >> class & 1;
        Flags((flags.0 ^ (is_apart as u32) << 1) & !CLASS)
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
