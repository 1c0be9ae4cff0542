//! Areas: descriptors of ranges of pages, and their states.
//!
//! # The word
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=2 | state | see below |
//! | 3..=5 | kind | what it is for: [`Kind`] |
//! | 6 | warm | its frames may stay mapped when it is freed |
//! | 7 | retiring | its purger returns it to the free address space, not to a pool |
//! | 8 | alias | its frames are mapped, and owned, elsewhere too: left behind by a move |
//! | 16..=63 | generation | times it was allocated, modulo 2^48 |
//!
//! # States
//! | state | who may touch it | left by |
//! |---|---|---|
//! | vacant | the holder of the space's lock, if it is a free range; a spare descriptor: who took it from those, or is about to put it there | store -> held |
//! | held | the one who made it so: being built, resized, purged | store -> busy, pooled, lazy, vacant |
//! | busy | nobody; its user uses the addresses | compare-and-swap -> pooled, lazy, held |
//! | lazy | linked into its node's lazy list, or about to be, by the one who freed it | taker of the list: store -> held |
//! | pooled | linked into a pool, or about to be | its popper: store -> busy, held |
//!
//! # Argument
//! *One owner.* Every way out of busy is a compare-and-swap of the whole word, generation
//! included, so of all who try to free an area at once one succeeds; that one owns the descriptor
//! until a list has it. Lists hand each descriptor to one taker. A second free finds another state
//! or another generation and is refused, also when the area was allocated again meanwhile: then the
//! generation differs from the one read before the start was compared. With 20 million allocations
//! of one area per second a generation comes back after 2^48 / 2*10^7 per second = 162 days.
//!
//! *Readers.* Whoever finds an area without owning it (`find`, `read_at`, listings) reads the word,
//! then the fields, then the word again. Fields change only while the area is held or vacant,
//! by Release stores after the store that left the old state; readers load them with Acquire; so a
//! reader that saw a new field sees a new word, and the two words differ. The same holds of the
//! frames in the table (`FrameTable`), of `caller` and of `mapped`. Acquire also keeps the second
//! load of the word behind them: a load may be relaxed if nothing before it is. Descriptors are
//! never anything else: a stale index reads a descriptor, if not the one that was meant.

use core::panic::Location;

use super::error::Kind;
use super::units::{Protection, Run, Vpn};
use super::{Broken, broken};
use pagedepot::sync::prim::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// An area's number; 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaIndex(core::num::NonZeroU32);

impl AreaIndex {
    /// Bits an index has: what a pool's head holds.
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

    /// The number of `index`, 0 for none.
    #[inline]
    pub fn number(index: Option<AreaIndex>) -> u32 {
        index.map_or(0, AreaIndex::get)
    }
}

/// Where an area is in its life.
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

    /// Whether it is busy and of this kind.
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

    /// The same, with frames that another area owns.
    #[must_use]
    pub fn aliased(self) -> Self {
        Word(self.0 | ALIAS)
    }

    /// How often it was allocated.
    pub fn generation(self) -> u64 {
        self.0 / ONE_GENERATION
    }

    /// The same in another state.
    #[inline]
    #[must_use]
    pub fn in_state(self, state: State) -> Self {
        Word(self.0 & !STATE | state as u64)
    }

    /// Held, on the way to the free address space.
    #[must_use]
    pub fn retiring(self) -> Self {
        Word(self.in_state(State::Held).0 | RETIRING)
    }

    /// Held, as an area of this kind.
    #[must_use]
    pub fn held(self, kind: Kind) -> Self {
        Word(self.plain(State::Held).0 | (kind as u64) << KIND_SHIFT)
    }

    /// The same generation with nothing mapped.
    #[must_use]
    pub fn plain(self, state: State) -> Self {
        Word(self.0 & !(ONE_GENERATION - 1) | state as u64)
    }

    /// Busy, allocated once more.
    #[inline]
    #[must_use]
    pub fn allocated(self, kind: Kind, warm: bool) -> Self {
        let generation = (self.0 & !(ONE_GENERATION - 1)).wrapping_add(ONE_GENERATION);
        let warm = if warm { WARM } else { 0 };
        Word(generation | State::Busy as u64 | (kind as u64) << KIND_SHIFT | warm)
    }
}

/// What does not change while an area is busy.
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
    /// Who allocated it: the address of a `Location<'static>`, or 0.
    caller: AtomicUsize,
    start: AtomicU32,
    /// Guard pages included.
    pages: AtomicU32,
    /// The next in whatever list has it.
    pub link: AtomicU32,
    traits: AtomicU32,
    /// Pages mapped, from the start unless the area was mapped in pieces.
    pub mapped: AtomicU32,
    /// Set by a purger that could not unmap it; under the purge lock.
    pub stuck: AtomicU32,
    /// Links and sums of the tree of free ranges; under the space's lock.
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

#[cfg(not(loom))]
const _: () = assert!(size_of::<Area>() == 64);

impl Area {
    /// A spare descriptor; all its bytes are zero.
    pub fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Area {
            word: AtomicU64::new(0),
            caller: AtomicUsize::new(0),
            start: zero(),
            pages: zero(),
            link: zero(),
            traits: zero(),
            mapped: zero(),
            stuck: zero(),
            tree: TreeLinks { left: zero(), right: zero(), height: zero(), largest: zero() },
        }
    }

    /// The word, and what was written before it.
    #[inline]
    pub fn word(&self) -> Word {
        // Acquire: pairs with the Release in `set_word` and `leave_busy`.
        Word(self.word.load(Ordering::Acquire))
    }

    /// For the owner: changes the word.
    #[inline]
    pub fn set_word(&self, word: Word) {
        // Release: pairs with the Acquire in `word`; publishes the fields.
        self.word.store(word.0, Ordering::Release);
    }

    /// Makes the caller the owner of a busy area, if its word is still `from`.
    #[inline]
    pub fn leave_busy(&self, from: Word, to: Word) -> bool {
        debug_assert_eq!(from.state(), State::Busy);
        // Acquire: what the area's user wrote to its fields' memory (frames) is seen by the owner
        // when the user's free happened elsewhere; Release: pairs with `word`.
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// For readers that do not own it: whether the word is still `seen`, after all they loaded.
    #[inline]
    pub fn still(&self, seen: Word) -> bool {
        // Relaxed: ordered after the loads of the fields, frames included, because these are all
        // Acquire, and pair with Release stores after the word's; see the module's argument.
        self.word.load(Ordering::Relaxed) == seen.0 || broken(Broken::SecondLook)
    }

    /// As [`still`](Self::still), after reads of memory that are no atomics.
    pub fn still_after_reads(&self, seen: Word) -> bool {
        // A read-modify-write with Release keeps the reads before it before it; a fence would do
        // the same, but a load would not.
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

    /// All its pages, guard included.
    #[inline]
    pub fn run(&self) -> Run {
        Run::new(self.start(), self.pages())
    }

    /// One past its last page.
    #[inline]
    pub fn end(&self) -> Vpn {
        self.start().add(self.pages())
    }

    /// Its pages without the guard.
    #[inline]
    pub fn body(&self) -> Run {
        Run::new(self.start(), self.pages() - self.traits().guard())
    }

    /// For the owner: moves or resizes it.
    pub fn place(&self, run: Run) {
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
        // Release: pairs with the Acquire in `caller`, see the module's argument on readers; what
        // it points to is constant.
        self.caller
            .store((caller as *const Location<'static>).expose_provenance(), Ordering::Release);
    }

    /// Who allocated it last.
    pub fn caller(&self) -> Option<&'static Location<'static>> {
        // Acquire: pairs with the Release in `set_caller`.
        let address = self.caller.load(Ordering::Acquire);
        let location = core::ptr::with_exposed_provenance::<Location<'static>>(address);
        // SAFETY: 0, or what `set_caller` stored: a reference that lives for ever.
        unsafe { location.as_ref() }
    }

    #[inline]
    pub fn mapped(&self) -> u32 {
        // Acquire: pairs with the Release in `set_mapped`.
        self.mapped.load(Ordering::Acquire)
    }

    /// For the owner.
    pub fn set_mapped(&self, pages: u32) {
        // Release: pairs with the Acquire in `mapped`, see the module's argument on readers.
        self.mapped.store(pages, Ordering::Release);
    }

    /// The next in its list. For the list's owner, or a popper that will verify.
    #[inline]
    pub fn next(&self) -> Option<AreaIndex> {
        AreaIndex::new(self.link.load(Ordering::Relaxed))
    }

    /// For the owner.
    #[inline]
    pub fn set_next(&self, next: Option<AreaIndex>) {
        // Relaxed: published by the operation that publishes the list.
        self.link.store(AreaIndex::number(next), Ordering::Relaxed);
    }
}

/// All descriptors. Number 0 is never used.
#[derive(Clone, Copy)]
pub struct Areas<'m>(pub &'m [Area]);

impl<'m> core::ops::Index<AreaIndex> for Areas<'m> {
    type Output = Area;

    #[inline]
    fn index(&self, index: AreaIndex) -> &Area {
        &self.0[index.get() as usize]
    }
}

impl<'m> Areas<'m> {
    /// The descriptors of a list, its links being the caller's.
    pub fn list(
        self,
        first: Option<AreaIndex>,
    ) -> impl Iterator<Item = AreaIndex> + Clone + use<'m> {
        core::iter::successors(first, move |&at| self[at].next())
    }
}
