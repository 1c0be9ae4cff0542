//! The movable blocks of a depot: which begins at a page, and where the block of a holder is.
//!
//! # Vocabulary
//! * *slot*: a [`Place`] that a holder has for the life of its block, by number. The block moves,
//!   the slot stays.
//! * *entry*: a word for each page. Of the first page of a movable block it names the block's slot
//!   and order; of all others it is 0.
//!
//! Both lie in mappings of which only touched parts take memory. No lock is taken and nothing is
//! allocated after the table was made: compaction runs in signal handlers too, for a request with
//! [`Flags::compact`](pagedepot::Flags::compact), whatever they interrupted.
//!
//! # Invariants
//! 1. Only the owner of a block writes the entry of its first page: the holder, or the compaction
//!    that copies the block, which excludes the holder meanwhile. So an entry is written by plain
//!    stores, each of which happens after the one before: through the place where the block passes
//!    between holder and compaction, through the allocator where it passes to the next holder.
//! 2. A block that can be copied has its entry. The holder of a new block writes the entry while an
//!    access is counted, which it then ends; a move writes the new entry before it sets the page.
//! 3. A block without an owner has no entry: the holder clears it before it frees the block, a move
//!    before compaction does.
//! 4. What a search finds by an entry is a guess: the block may be another one by then, and the
//!    slot another holder's. The place decides (its invariant 5): it names its block.
//! 5. A free slot has no holder, so no compaction takes it. Slots are kept in a list, last in first
//!    out. Its head carries a tag that each change raises, so a head that was read long ago is
//!    refused (ABA), and with it the link that was read from a slot which is no longer free.
//! 6. Each block of a holder has pages, so there are fewer slots in use than pages when a new
//!    holder, which has its pages, looks for one. In a segment that another process has damaged,
//!    two blocks may have the same pages: then there may be no slot left.
//! 7. A pin that was set during an access is seen: the pin comes before the end of the access,
//!    which the exchange that takes the place acquires; pins are looked for after that.
//!
//! Explored by `tests/loom/movable.rs`.

use rustix::io::Errno;

use crate::moving::place::{Extent, Place, PlaceState};
use crate::system::bits::Bits;
use crate::system::prim::{AtomicU64, ForkMark, Mutant, Ordering, Words, is_mutant};

/// The largest order.
pub(crate) const ORDER_MAX: u32 = if cfg!(loom) { 1 } else { 10 };
/// Words between the places of two slots: each has a line of the cache, as two threads may access
/// two blocks.
const STRIDE: usize = if cfg!(loom) { 1 } else { 8 };

const PRESENT: u64 = 1 << 63;
const ORDER_SHIFT: u32 = 32;

/// The slots of movable blocks, and an entry for each page.
pub(crate) struct Table {
    entries: Words,
    slots: Slots,
    pages: u32,
    fork_mark: ForkMark,
}

/// The content of an entry.
#[derive(Clone, Copy)]
struct Entry {
    slot: u32,
    order: u32,
}

impl Table {
    /// An empty table of so many pages.
    pub fn new(pages: u32, fork_mark: ForkMark) -> Result<Self, Errno> {
        let entries = Words::new(pages as usize)?;
        Ok(Table { entries, slots: Slots::new(pages)?, pages, fork_mark })
    }

    fn entry(&self, page: u32) -> Option<Entry> {
        // Relaxed: see invariant 4.
        let word = self.entries.get(page as usize).load(Ordering::Relaxed);
        let order = (word & !PRESENT) >> ORDER_SHIFT;
        (word & PRESENT != 0).then_some(Entry { slot: word as u32, order: order as u32 })
    }

    fn set_entry(&self, page: u32, entry: Option<Entry>) {
        let word = entry.map_or(0, |entry| {
            PRESENT | u64::from(entry.order) << ORDER_SHIFT | u64::from(entry.slot)
        });
        // Relaxed: see invariant 1.
        self.entries.get(page as usize).store(word, Ordering::Relaxed);
    }

    /// Enters a block, for its holder; returns the slot. `None`: the segment is damaged.
    pub fn insert(&self, extent: Extent) -> Option<u32> {
        let slot = self.slots.take()?;
        let place = self.slots.place(slot);
        place.open(extent);
        if is_mutant(Mutant::OpensEarly) {
            place.end_access();
        }
        self.set_entry(extent.first, Some(Entry { slot, order: extent.order }));
        if !is_mutant(Mutant::OpensEarly) {
            place.end_access();
        }
        Some(slot)
    }

    /// The place of a slot's block.
    pub fn place(&self, slot: u32) -> Place<'_> {
        self.slots.place(slot)
    }

    /// Takes the holder's block out of compaction's reach, after waiting for a copy of it to end.
    /// Returns its first page. The slot is another holder's from then on.
    pub fn remove(&self, slot: u32) -> u32 {
        let page = self.place(slot).give_up(self.fork_mark);
        self.set_entry(page, None);
        self.slots.put(slot);
        page
    }

    /// The block that a page is in, as it was at some moment.
    pub fn find(&self, page: u32) -> Option<Extent> {
        if page >= self.pages {
            return None;
        }
        let mut last = None;
        (0..=ORDER_MAX).find_map(|order| {
            let first = page & !((1 << order) - 1);
            if last.replace(first) == Some(first) {
                return None;
            }
            let entry = self.entry(first)?;
            let has_it = page - first < 1 << entry.order;
            has_it.then_some(Extent { first, order: entry.order })
        })
    }

    /// Moves a block to page `to`, unless a page of it is pinned, if a holder has it with this
    /// order. The block of this order at `to` is the caller's, as the one at `from` is afterwards.
    /// `copy` does not wait and does not allocate.
    pub fn move_block(
        &self,
        from: Extent,
        to: u32,
        pinned: &Bits,
        copy: impl FnOnce(),
    ) -> PlaceState {
        let Some(entry) = self.entry(from.first) else { return PlaceState::Elsewhere };
        let pages = from.first as usize..(from.first as usize + (1 << from.order));
        let was_pinned = is_mutant(Mutant::LooksForPinsEarly).then(|| pinned.any(pages.clone()));
        let place = self.place(entry.slot);
        let found = place.begin_copy(from);
        if found != PlaceState::Ours {
            return found;
        }
        if was_pinned.unwrap_or_else(|| pinned.any(pages)) {
            place.end_copy(from);
            return PlaceState::Busy;
        }
        copy();
        let end = Extent { first: to, ..from };
        if is_mutant(Mutant::SetsPageEarly) {
            place.end_copy(end);
        }
        self.set_entry(to, Some(entry));
        self.set_entry(from.first, None);
        if !is_mutant(Mutant::SetsPageEarly) {
            place.end_copy(end);
        }
        PlaceState::Ours
    }
}

/// Places, and which of them are free.
///
/// | bits of the head | field |
/// |---|---|
/// | 0..=31 | the first free slot, and 1; 0: there is none in the list |
/// | 32..=63 | tag, one more after each change |
struct Slots {
    places: Words,
    head: AtomicU64,
    /// Slots that were ever in use, from the first on.
    used: AtomicU64,
    count: u64,
}

impl Slots {
    fn new(count: u32) -> Result<Self, Errno> {
        let places = Words::new(count as usize * STRIDE)?;
        let (head, used) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Slots { places, head, used, count: count.into() })
    }

    fn place(&self, slot: u32) -> Place<'_> {
        Place(self.places.get(slot as usize * STRIDE))
    }

    /// Takes a free slot. There is one by invariant 6, though another caller may be faster. `None`:
    /// the invariant does not hold. All slots have been used, and the list was empty before and
    /// after that was seen, without a change, which raises the tag: so all slots are in use. A
    /// holder puts its slot back before it frees its pages, so each of them has pages of its own.
    fn take(&self) -> Option<u32> {
        loop {
            // Acquire, here and in `pop`: pairs with the Release in `put`, for the link, and for
            // the place, which its last holder wrote.
            let head = self.head.load(Ordering::Acquire);
            if let Some(slot) = self.pop(head).or_else(|| self.first_use()) {
                return Some(slot);
            }
            // Relaxed: comes after the Acquire in `first_use`.
            if self.head.load(Ordering::Relaxed) == head {
                return None;
            }
        }
    }

    fn first_use(&self) -> Option<u32> {
        let next = |used| (used < self.count).then_some(used + 1);
        // Release, and Acquire where all are used: a caller that finds no slot sees each that was
        // put before the pages of these holders were free. The word of a slot that was never used
        // is 0 for all.
        let used = self.used.fetch_update(Ordering::Release, Ordering::Acquire, next);
        used.ok().map(|slot| slot as u32)
    }

    /// Takes the first slot of the list, whose head was this a moment ago.
    fn pop(&self, mut head: u64) -> Option<u32> {
        loop {
            let slot = (head as u32).checked_sub(1)?;
            let next = head_after(head, self.place(slot).link());
            match self.head.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(slot),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a slot, whose place the caller owns, into the list.
    fn put(&self, slot: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.place(slot).set_link(head as u32);
            // Release: pairs with the Acquire in `pop`.
            let next = head_after(head, slot + 1);
            match self.head.compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// The head with this first slot, and the next tag.
fn head_after(head: u64, first: u32) -> u64 {
    let tag = if is_mutant(Mutant::UntaggedSlots) { head >> 32 } else { (head >> 32) + 1 };
    tag << 32 | u64::from(first)
}
