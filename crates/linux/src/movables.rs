//! The table of a depot's movable pages, and their mover: see [`movable`](crate::movable). What it
//! does not know it asks the program's own mover about.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, Weak};

use pagedepot::{Compacted, Move, Mover, Occupant, Order, PageSize, Pfn};

use crate::cpus::ForkMark;
use crate::movable_place::{Found, Place};
use crate::pins::Pins;
use crate::sites::SiteTable;
use crate::sync::ForkLock;

/// Number of parts, each with a lock.
const PARTS: usize = 64;
/// Pages of a pageblock.
const PAGEBLOCK: u32 = Order::PAGEBLOCK.frames();

/// Movable pages of a depot, by the number of their first page.
pub(crate) struct Movables {
    parts: Vec<ForkLock<BTreeMap<u32, Entry>>>,
    /// The first byte of the depot's memory.
    base: NonNull<u8>,
    page_size: PageSize,
    pins: Arc<ForkLock<Pins>>,
    sites: SiteTable,
    /// The program's.
    other: OnceLock<Arc<dyn Mover + Send + Sync>>,
}

// SAFETY: only `move_page` accesses the memory behind `base`, and it says why it may. All else is
// locked.
unsafe impl Send for Movables {}
// SAFETY: as above.
unsafe impl Sync for Movables {}

struct Entry {
    order: Order,
    place: Weak<Place>,
}

impl Movables {
    /// An empty table, of a depot whose memory begins at `base`.
    pub fn new(
        fork_mark: ForkMark<'static>,
        base: NonNull<u8>,
        page_size: PageSize,
        pins: Arc<ForkLock<Pins>>,
        sites: SiteTable,
    ) -> Self {
        let part = |_| ForkLock::new(fork_mark, BTreeMap::new());
        let (parts, other) = ((0..PARTS).map(part).collect(), OnceLock::new());
        Movables { parts, base, page_size, pins, sites, other }
    }

    /// Registers the program's mover. `false`: there is one.
    pub fn register(&self, mover: Arc<dyn Mover + Send + Sync>) -> bool {
        self.other.set(mover).is_ok()
    }

    fn part(&self, page: u32) -> &ForkLock<BTreeMap<u32, Entry>> {
        &self.parts[(page / PAGEBLOCK) as usize % PARTS]
    }

    pub fn insert(&self, page: u32, order: Order, place: &Arc<Place>) {
        // In a forked child nothing is moved.
        if let Ok(mut part) = self.part(page).lock() {
            part.insert(page, Entry { order, place: Arc::downgrade(place) });
        }
    }

    pub fn remove(&self, page: u32) {
        if let Ok(mut part) = self.part(page).lock() {
            part.remove(&page);
        }
    }

    /// The block that contains a page, and its place.
    fn find(&self, page: u32) -> Option<(u32, Order, Arc<Place>)> {
        // A block of two pageblocks may begin in the previous one.
        [page, page & !(Order::MAX.frames() - 1)].into_iter().find_map(|from| {
            let part = self.part(from).lock().ok()?;
            let (&first, entry) = part.range(..=page).next_back()?;
            let is_in = page - first < entry.order.frames();
            is_in.then(|| Some((first, entry.order, entry.place.upgrade()?)))?
        })
    }

    /// Whether a page of the block is pinned, see `pins`.
    fn is_pinned(&self, first: u32, order: Order) -> bool {
        let Ok(pins) = self.pins.lock() else { return true };
        (first..first + order.frames()).any(|page| pins.contains(Pfn::new(page)))
    }

    fn move_page(&self, from: Pfn, to: Pfn, order: Order) -> Found {
        let Some((first, _, place)) = self.find(from.get()) else { return Found::Elsewhere };
        if first != from.get() {
            return Found::Elsewhere;
        }
        let found = place.begin_copy(first);
        if found == Found::Ours {
            let bytes = self.page_size.bytes() << order.get();
            let offset = |pfn: Pfn| pfn.index() << self.page_size.shift();
            // SAFETY: both are blocks of the depot of this order. No thread accesses `from` while
            // its place is copied (`Place`, invariant 2), and `to` was allocated for this move.
            unsafe {
                let source = self.base.add(offset(from));
                self.base.add(offset(to)).copy_from_nonoverlapping(source, bytes);
            }
            self.sites.move_to(from, to);
            // Before `end_copy`: after it, the holder may take the entry of `to` out.
            self.insert(to.get(), order, &place);
            self.remove(from.get());
            place.end_copy(to.get());
        }
        found
    }
}

impl Mover for Movables {
    fn occupant(&self, frame: Pfn) -> Occupant {
        match self.find(frame.get()) {
            Some((first, order, _)) if !self.is_pinned(first, order) => {
                Occupant::Movable { first: Pfn::new(first), order }
            }
            Some(_) => Occupant::Pinned,
            None => self.other.get().map_or(Occupant::Unknown, |other| other.occupant(frame)),
        }
    }

    fn move_blocks(&self, moves: &mut [Move]) {
        // Those that are not ours come to lie in front.
        let (mut others, other) = (0, self.other.get());
        for at in 0..moves.len() {
            let this = &mut moves[at];
            match self.move_page(this.from(), this.to(), this.order()) {
                Found::Ours => this.moved(),
                Found::Busy => this.pinned(),
                Found::Elsewhere if other.is_none() => this.gone(),
                Found::Elsewhere => {
                    moves.swap(others, at);
                    others += 1;
                }
            }
        }
        if let Some(other) = other.filter(|_| others > 0) {
            other.move_blocks(&mut moves[..others]);
        }
    }

    fn progress(&self, so_far: &Compacted) -> ControlFlow<()> {
        self.other.get().map_or(ControlFlow::Continue(()), |other| other.progress(so_far))
    }
}
