//! Areas: descriptors of ranges of pages, and their states.
//!
//! # The word
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=2 | state | see below |
//! | 3..=5 | kind | which request allocated it: [`Kind`] |
//! | 6 | warm | its frames may stay mapped when it is freed |
//! | 7 | retiring | its purger returns it to the free address space, not to a pool |
//! | 8 | alias | another area owns the frames mapped in it: a move left it behind |
//! | 9 | reserved | it keeps its addresses when its memory shrinks, and grows into them |
//! | 16..=63 | generation | how often it was allocated, modulo 2^48 |
//!
//! # States
//! | state | owner of the descriptor | left by |
//! |---|---|---|
//! | vacant | a free range: the holder of the space's lock; a spare descriptor: the thread that took it from the spares, or is about to put it there | store -> held |
//! | held | the thread that stored this state: it builds, resizes or purges the area | store -> busy, pooled, lazy, vacant |
//! | busy | none; a user has the addresses | compare-and-swap -> pooled, lazy, held |
//! | lazy | its node's lazy list; before that the thread that freed it | taker of the list: store -> held |
//! | pooled | a pool; before that the thread that freed it | popper: store -> held |
//!
//! # Argument
//! *One owner.* An area leaves the busy state only by a compare-and-swap of the whole word,
//! generation included. So of all threads that free an area at once, one succeeds; it owns the
//! descriptor until a list has it. A list hands each descriptor to one taker. A second free finds
//! another state or another generation and fails. That holds also if the area was allocated again
//! in between: the generation then differs from the one read before the start was compared. With 20
//! million allocations of one area per second a generation recurs after 2^48 / 2*10^7 s = 162 days.
//!
//! *Readers.* A thread that looks at an area without owning it (`find`, `read_at`, listings) loads
//! the word, then the fields, then the word again. Fields change only while the area is held or
//! vacant, by Release stores after the store that left the old state. Readers load fields with
//! Acquire. So a reader that saw a new field sees a new word in its second load, and the two words
//! differ. The same holds for the frames in the table ([`FrameTable`]), for `caller` and for
//! `mapped`. The Acquire loads also keep the second load of the word behind them: a relaxed load
//! may move up only past loads that are relaxed. A descriptor is always a descriptor, so a stale
//! index reads a valid one, if not the one that was meant.
//!
//! [`FrameTable`]: crate::metadata::frames::FrameTable

use core::panic::Location;

use crate::kind::Kind;
use crate::metadata::caller::CallerCell;
use crate::model::{self, Mutant, leaves_out};
use crate::units::{PageRange, Protection, Vpn};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, Ordering};
use pagedepot::sync::stack::Links;

/// Number of an area's descriptor. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaIndex(core::num::NonZeroU32);

impl AreaIndex {
    /// Bits of an index: as many as the head of a pool has room for.
    pub const BITS: u32 = 24;

    #[inline]
    pub const fn new(index: u32) -> Option<Self> {
        match core::num::NonZeroU32::new(index) {
            Some(index) => Some(AreaIndex(index)),
            None => None,
        }
    }

    #[inline]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The number of `index`; 0 for `None`.
    #[inline]
    pub fn number(index: Option<AreaIndex>) -> u32 {
        index.map_or(0, AreaIndex::get)
    }
}

/// State of an area; see the module's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    Vacant = 0,
    Held = 1,
    Busy = 2,
    Lazy = 3,
    Pooled = 4,
}

const STATE: u64 = 0b111;
const KIND_SHIFT: u32 = 3;
const WARM: u64 = 1 << 6;
const RETIRING: u64 = 1 << 7;
const ALIAS: u64 = 1 << 8;
const RESERVED: u64 = 1 << 9;
const ONE_GENERATION: u64 = 1 << 16;

/// The value of an area's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(pub u64);

impl Word {
    #[inline]
    pub fn state(self) -> State {
        match self.0 & STATE {
            0 => State::Vacant,
            1 => State::Held,
            2 => State::Busy,
            3 => State::Lazy,
            _ => State::Pooled,
        }
    }

    #[inline]
    pub fn kind(self) -> Kind {
        Kind::from_bits(self.0 >> KIND_SHIFT & 0b111)
    }

    /// Whether the area is busy and of this kind.
    #[inline]
    pub fn is_busy(self, kind: Kind) -> bool {
        self.0 & (STATE | 0b111 << KIND_SHIFT) == State::Busy as u64 | (kind as u64) << KIND_SHIFT
    }

    #[inline]
    pub fn is_warm(self) -> bool {
        self.0 & WARM != 0
    }

    pub fn is_retiring(self) -> bool {
        self.0 & RETIRING != 0
    }

    pub fn is_alias(self) -> bool {
        self.0 & ALIAS != 0
    }

    /// Returns the word marked as an alias: another area owns the frames.
    #[must_use]
    pub fn aliased(self) -> Self {
        Word(self.0 | ALIAS)
    }

    pub fn is_reserved(self) -> bool {
        self.0 & RESERVED != 0
    }

    /// Returns the word marked as reserved if `is_reserved`.
    #[must_use]
    pub fn reserved(self, is_reserved: bool) -> Self {
        Word(self.0 | if is_reserved { RESERVED } else { 0 })
    }

    /// Number of times that the area was allocated, modulo 2^48.
    pub fn generation(self) -> u64 {
        self.0 / ONE_GENERATION
    }

    /// Returns the word in another state.
    #[inline]
    #[must_use]
    pub fn in_state(self, state: State) -> Self {
        Word(self.0 & !STATE | state as u64)
    }

    /// Held, and marked for return to the free address space.
    #[must_use]
    pub fn retiring(self) -> Self {
        Word(self.in_state(State::Held).0 | RETIRING)
    }

    /// Held, as an area of this kind.
    #[must_use]
    pub fn held(self, kind: Kind) -> Self {
        Word(self.plain(State::Held).0 | (kind as u64) << KIND_SHIFT)
    }

    /// Returns the word that a busy area has before, held, while its owner sets its fields. It
    /// costs one instruction, a mask three.
    #[inline]
    #[must_use]
    pub fn held_before(self) -> Self {
        debug_assert_eq!(self.state(), State::Busy);
        Word(self.0 - (State::Busy as u64 - State::Held as u64))
    }

    /// Returns a word of this generation in `state`, without kind and marks: nothing is mapped.
    #[must_use]
    pub fn plain(self, state: State) -> Self {
        Word(self.0 & !(ONE_GENERATION - 1) | state as u64)
    }

    /// Busy, with the next generation.
    #[inline]
    #[must_use]
    pub fn allocated(self, kind: Kind, warm: bool) -> Self {
        let generation = (self.0 & !(ONE_GENERATION - 1)).wrapping_add(ONE_GENERATION);
        let warm = if warm { WARM } else { 0 };
        Word(generation | State::Busy as u64 | (kind as u64) << KIND_SHIFT | warm)
    }
}

/// Properties that do not change while an area is busy.
///
/// | bits | field |
/// |---|---|
/// | 0..=7 | node that allocated it |
/// | 8..=15 | guard pages at its end |
/// | 16..=18 | protection |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits(u32);

impl Traits {
    #[inline]
    pub const fn new(node: u32, guard: u8, protection: Protection) -> Self {
        Traits(node & 0xff | (guard as u32) << 8 | (protection.bits() as u32) << 16)
    }

    #[inline]
    pub const fn node(self) -> usize {
        (self.0 & 0xff) as usize
    }

    pub const fn guard(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    #[must_use]
    pub const fn with_guard(self, pages: u32) -> Self {
        Traits(self.0 & !0xff00 | (pages & 0xff) << 8)
    }

    #[must_use]
    pub const fn without_guard(self) -> Self {
        self.with_guard(0)
    }

    pub const fn protection(self) -> Protection {
        Protection::from_bits((self.0 >> 16 & 0b111) as u8)
    }
}

/// A descriptor: an area, a free range, or a spare.
#[repr(C, align(64))]
pub struct Area {
    word: AtomicU64,
    /// The call that allocated it last.
    caller: CallerCell,
    start: AtomicU32,
    /// Size with guard pages.
    pages: AtomicU32,
    /// The next area in the list that has this one.
    link: AtomicU32,
    traits: AtomicU32,
    /// Number of pages mapped, from the start unless the area was mapped in pieces.
    mapped: AtomicU32,
    /// Whether the purge under way could not unmap the area: then not 0. Protected by the purge
    /// lock.
    stuck: AtomicU32,
    /// Whether no mapped frame is known to hold zeroes, nor will be while it stays mapped: then not
    /// 0.
    written: AtomicU32,
    /// Links and sums of the tree of free ranges. Protected by the space's lock.
    pub tree: TreeLinks,
}

/// A free range's place in the tree.
pub struct TreeLinks {
    pub left: AtomicU32,
    pub right: AtomicU32,
    pub height: AtomicU32,
    /// Pages of the largest free range here and below.
    pub largest: AtomicU32,
}

const _: () = assert!(size_of::<Area>() == 64 || !model::ATOMICS_ARE_INTEGERS);

impl Area {
    /// A spare descriptor; all its bytes are zero.
    pub fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Area {
            word: AtomicU64::new(0),
            caller: CallerCell::new(),
            start: zero(),
            pages: zero(),
            link: zero(),
            traits: zero(),
            mapped: zero(),
            stuck: zero(),
            written: zero(),
            tree: TreeLinks { left: zero(), right: zero(), height: zero(), largest: zero() },
        }
    }

    /// Loads the word, and makes the fields stored before it visible.
    #[inline]
    pub fn word(&self) -> Word {
        // Acquire: pairs with the Release in `set_word` and `leave_busy`.
        Word(self.word.load(Ordering::Acquire))
    }

    /// Stores the word. For the owner.
    #[inline]
    pub fn set_word(&self, word: Word) {
        // Release: pairs with the Acquire in `word`; publishes the fields.
        self.word.store(word.0, Ordering::Release);
    }

    /// Makes this thread the owner of a busy area if its word is still `from`.
    #[inline]
    pub fn leave_busy(&self, from: Word, to: Word) -> bool {
        debug_assert_eq!(from.state(), State::Busy);
        // Acquire: the new owner sees what the area's user wrote to its memory before a free on
        // another CPU. Release: pairs with the Acquire in `word`.
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the word is still `seen`, after all loads of the fields. For readers that do not own
    /// the area.
    #[inline]
    pub fn still(&self, seen: Word) -> bool {
        // Relaxed: the loads of the fields and frames come first because they are Acquire. They
        // pair with Release stores that follow the word's; see the module's argument.
        self.word.load(Ordering::Relaxed) == seen.0 || leaves_out(Mutant::SecondLook)
    }

    /// Checks that the word is still `seen`, like [`still`](Self::still), after reads of memory
    /// that are not atomic.
    pub fn still_after_reads(&self, seen: Word) -> bool {
        // AcqRel: the Release half keeps the reads before this operation. A fence would do the
        // same; a load would not.
        self.word.compare_exchange(seen.0, seen.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub fn start(&self) -> Vpn {
        // Acquire, and Release in `place`: see the module's argument on readers.
        Vpn(self.start.load(Ordering::Acquire))
    }

    #[inline]
    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Acquire)
    }

    /// The area's pages with the guard.
    #[inline]
    pub fn run(&self) -> PageRange {
        self.first_pages(self.pages())
    }

    /// The range of `pages` pages that begins with the area.
    #[inline]
    fn first_pages(&self, pages: u32) -> PageRange {
        let start = self.start();
        // Saturating: a reader that does not own the area may see the start of one moment and the
        // size of another.
        PageRange { start, end: Vpn(start.0.saturating_add(pages)) }
    }

    /// The page behind its last page.
    #[inline]
    pub fn end(&self) -> Vpn {
        self.start().add(self.pages())
    }

    /// The area's pages without the guard.
    #[inline]
    pub fn body(&self) -> PageRange {
        self.first_pages(self.body_pages())
    }

    /// Number of the area's pages without the guard.
    #[inline]
    pub fn body_pages(&self) -> u32 {
        // Saturating: a reader that does not own the area may see the size of one moment and the
        // guard of another.
        self.pages().saturating_sub(self.traits().guard())
    }

    /// The pages in which all mapped ones lie: the first `mapped` ones, unless the caller of
    /// [`Vmap::map_frames`](crate::Vmap::map_frames) has mapped its own, anywhere.
    pub fn mapped_hull(&self) -> PageRange {
        let word = self.word();
        if word.kind() == Kind::Vmalloc || word.is_alias() {
            PageRange::new(self.start(), self.mapped())
        } else {
            self.body()
        }
    }

    /// Moves or resizes it. For the owner.
    pub fn place(&self, run: PageRange) {
        self.start.store(run.start.0, Ordering::Release);
        self.pages.store(run.pages(), Ordering::Release);
    }

    #[inline]
    pub fn traits(&self) -> Traits {
        Traits(self.traits.load(Ordering::Acquire))
    }

    #[inline]
    pub fn set_traits(&self, traits: Traits) {
        self.traits.store(traits.0, Ordering::Release);
    }

    #[inline]
    pub fn set_caller(&self, caller: &'static Location<'static>) {
        self.caller.set(caller);
    }

    /// The call that allocated it last.
    pub fn caller(&self) -> Option<&'static Location<'static>> {
        self.caller.get()
    }

    /// Whether the purge under way could not unmap it. For the holder of the purge lock.
    pub fn is_stuck(&self) -> bool {
        // Relaxed: the purge lock orders.
        self.stuck.load(Ordering::Relaxed) != 0
    }

    /// Sets whether it could be unmapped. For the holder of the purge lock.
    pub fn set_stuck(&self, is_stuck: bool) {
        // Relaxed: the purge lock orders.
        self.stuck.store(u32::from(is_stuck), Ordering::Relaxed);
    }

    /// Whether all frames mapped count as written. For the owner.
    pub fn is_written(&self) -> bool {
        // Relaxed: the owner's; lists pass it on with the area.
        self.written.load(Ordering::Relaxed) != 0
    }

    /// Sets whether all frames mapped count as written. For the owner.
    pub fn set_written(&self, is_written: bool) {
        // Relaxed: as in `is_written`.
        self.written.store(u32::from(is_written), Ordering::Relaxed);
    }

    #[inline]
    pub fn mapped(&self) -> u32 {
        // Acquire: pairs with the Release in `set_mapped`.
        self.mapped.load(Ordering::Acquire)
    }

    /// Sets the number of mapped pages. For the owner.
    pub fn set_mapped(&self, pages: u32) {
        // Release: pairs with the Acquire in `mapped`, see the module's argument on readers.
        self.mapped.store(pages, Ordering::Release);
    }

    /// The next area in its list. For the list's owner, or a popper whose compare-and-swap verifies
    /// it.
    #[inline]
    pub fn next(&self) -> Option<AreaIndex> {
        AreaIndex::new(self.link.load(Ordering::Relaxed))
    }

    /// Links it to `next`. For the owner.
    #[inline]
    pub fn set_next(&self, next: Option<AreaIndex>) {
        // Relaxed: the operation that publishes the list publishes the link.
        self.link.store(AreaIndex::number(next), Ordering::Relaxed);
    }
}

/// All descriptors. Descriptor 0 is never used.
#[derive(Clone, Copy)]
pub struct Areas<'m>(pub &'m [Area]);

impl<'m> core::ops::Index<AreaIndex> for Areas<'m> {
    type Output = Area;

    #[inline]
    fn index(&self, index: AreaIndex) -> &Area {
        &self.0[index.get() as usize]
    }
}

impl Links for Areas<'_> {
    type Index = AreaIndex;

    fn number(index: AreaIndex) -> u32 {
        index.get()
    }

    fn index(number: u32) -> Option<AreaIndex> {
        AreaIndex::new(number)
    }

    fn link(&self, index: AreaIndex) -> &AtomicU32 {
        &self[index].link
    }
}

impl<'m> Areas<'m> {
    #[inline]
    pub fn get(self, index: AreaIndex) -> &'m Area {
        &self.0[index.get() as usize]
    }

    /// The areas of a list whose links the caller owns.
    pub fn list(
        self,
        first: Option<AreaIndex>,
    ) -> impl Iterator<Item = AreaIndex> + Clone + use<'m> {
        core::iter::successors(first, move |&at| self[at].next())
    }
}

#[cfg(test)]
mod tests;
