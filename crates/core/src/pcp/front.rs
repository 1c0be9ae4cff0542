//! Fronts as the slow paths see them, [`refill`](super::refill) and [`spill`](super::spill).
//!
//! # Theory
//! A slow path reads the front word outside any sequence, prepares a magazine that it alone owns,
//! and installs it by one compare-and-store, which fails if the word, the CPU or the gate has
//! changed. Before the install it touches nothing of the front's magazines. Magazines that the
//! install pushes out of the word belong to the slow path from then on. So does the front's second
//! empty magazine, which a refill takes out of the word by a compare-and-store of its own, to fill
//! it. The word may change and change back between the read and the install. It then means the same
//! again (the magazines named in it are the front's, with so many rounds), and the slow path has
//! read nothing else. Therefore a full previous magazine is swapped in and popped from in two
//! steps: before the install its slots may not be read, and after it any code of this CPU may pop
//! them.
//!
//! Worst case of one call, besides the search of the store: one magazine filled, two emptied, one
//! shelved; or, of orders 4 to 8, four filled, of which three are shelved, two emptied: at most 3 *
//! 63 frames touched (`ROOM_STEPS_MAX` more magazines when caches are above `high`, and `batch <<
//! 5` pages in blocks of orders 1 to 3 by a CPU that only frees them).

use crate::frame::pageblock::{ROWS, Tag};
use crate::frame::{Class, Mobility, Pfn, ZoneId};
use crate::front::word::Word;
use crate::front::{Here, WordOffset};

/// Attempts at the front before a request goes to the store: enough for every step of a refill and
/// some lost races; a CPU whose sequences never commit must not hang.
pub const ATTEMPTS_MAX: u32 = 16;

/// Names a front: the blocks that it caches, and its CPU, context and zone.
#[derive(Clone, Copy)]
pub struct Front {
    pub here: Here,
    pub zone: ZoneId,
    pub class: Class,
    pub mobility: Mobility,
    /// Whether it takes what pageblocks give that evacuate. It has one magazine at most, no shelf,
    /// and is never popped from: see [`evacuate`](super::evacuate).
    pub evacuates: bool,
}

impl Front {
    pub fn offset(self) -> WordOffset {
        let tag = Tag::new(self.zone, self.mobility);
        WordOffset::of_tag(if self.evacuates { tag.evacuating() } else { tag }, self.class)
    }

    /// The place of its word among all of its context and zone, as they lie in memory.
    pub fn place(self) -> usize {
        let row = self.mobility.index() + if self.evacuates { Mobility::COUNT } else { 0 };
        row * Class::COUNT + self.class as usize
    }

    /// Number of fronts of a context of a CPU in a zone: those that are popped from come first.
    pub fn places(evacuates: bool) -> usize {
        Class::COUNT * if evacuates { ROWS } else { Mobility::COUNT }
    }

    /// The front with this [`place`](Self::place).
    pub fn at_place(here: Here, zone: ZoneId, place: usize) -> Front {
        let row = place / Class::COUNT;
        Front {
            here,
            zone,
            class: Class::ALL[place % Class::COUNT],
            mobility: Mobility::ALL[row % Mobility::COUNT],
            evacuates: row >= Mobility::COUNT,
        }
    }

    /// Whether it can never have a magazine of `more` pages beside those in its word, because the
    /// CPU may not cache as much. So it is with blocks that are large for the memory of a CPU: they
    /// go past the caches before anything else is looked at.
    #[inline]
    pub fn never_fits(self, word: Word, more: u64, high_max: u64) -> bool {
        u64::from(word.magazines() * self.class.magazine_frames()) + more > high_max
    }

    /// Pages of the magazine that a refill adds: none, if there are two.
    pub fn missing_pages(self, word: Word) -> u64 {
        if word.magazines() < 2 { self.class.magazine_frames().into() } else { 0 }
    }

    /// Magazines that it may have.
    pub fn magazines_max(self) -> u32 {
        if self.evacuates { 1 } else { 2 }
    }
}

/// The result of an attempt at a front.
pub enum Step {
    /// A block.
    Got(Pfn),
    /// The front has changed: try again.
    Again,
    /// The front cannot serve the request: use the store.
    Store,
    /// The zone has none, or may not give any.
    Nothing,
}
