//! A depot's movable pages, and their mover: see [`movable`](crate::pages::movable). What it does
//! not know it asks the program's own mover about.

use std::ops::{ControlFlow, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use pagedepot::{AllocError, Order, PageSize, Pfn};
use pagedepot_contiguity::{CompactResult, Move, Mover, Occupant};

use crate::moving::place::{Extent, PlaceState};
use crate::moving::table::{ORDER_MAX, Table};
use crate::sites::table::SiteTable;
use crate::system::bits::Bits;
use crate::system::prim::{AtomicU64, ForkMark, Ordering};
use crate::system::sync::OnceValue;

const _: () = assert!(ORDER_MAX == Order::MAX.get());

/// The program's own mover.
pub(crate) type OtherMover = Arc<dyn Mover + Send + Sync>;

/// Movable pages of a depot. See [`Table`] for why nothing here takes a lock.
pub(crate) struct Movables {
    /// Made with the first movable page.
    table: OnceValue<Table>,
    /// Pages that the depot may come to have.
    pages: u32,
    fork_mark: ForkMark,
    /// The first byte of the depot's memory.
    base: NonNull<u8>,
    page_size: PageSize,
    /// Whether a forked child shares the memory.
    is_shared: bool,
    /// Pages that are pinned: see `pins`.
    pinned: Arc<Bits>,
    sites: SiteTable,
    other: OnceValue<OtherMover>,
    /// Blocks that were moved, and calls of the program's mover.
    moves: AtomicU64,
}

// SAFETY: only `move_page` accesses the memory behind `base`, and it says why it may. All else may
// be shared.
unsafe impl Send for Movables {}
// SAFETY: as above.
unsafe impl Sync for Movables {}

/// Facts about a depot that its movable pages need.
pub(crate) struct Surroundings {
    pub pages: u32,
    pub fork_mark: ForkMark,
    pub base: NonNull<u8>,
    pub page_size: PageSize,
    pub is_shared: bool,
    pub pinned: Arc<Bits>,
    pub sites: SiteTable,
}

impl Movables {
    /// Makes an empty list.
    pub fn new(depot: Surroundings) -> Self {
        let Surroundings { pages, fork_mark, base, page_size, is_shared, pinned, sites } = depot;
        let (table, other, moves) = (OnceValue::new(), OnceValue::new(), AtomicU64::new(0));
        Movables {
            table,
            pages,
            fork_mark,
            base,
            page_size,
            is_shared,
            pinned,
            sites,
            other,
            moves,
        }
    }

    /// Registers the program's mover. `false`: there is one.
    pub fn register(&self, mover: OtherMover) -> bool {
        self.other.set(mover).is_ok()
    }

    /// Takes the program's mover out.
    ///
    /// # Safety
    /// Nothing is compacted, now or later.
    pub unsafe fn take_other(&self) -> Option<OtherMover> {
        // SAFETY: the caller's promise; only compaction uses it.
        unsafe { self.other.take() }
    }

    /// The table. The system may have no addresses for it: 72 bytes for each page of the depot.
    pub fn table(&self) -> Result<&Table, AllocError> {
        let make = || Table::new(self.pages, self.fork_mark);
        self.table.get_or_try_make(make).map_err(|_| AllocError::Exhausted)
    }

    /// Whether this process is not a forked child.
    pub fn fork_mark(&self) -> ForkMark {
        self.fork_mark
    }

    /// A count that a thread finds changed when it has moved blocks since it looked before.
    pub fn moves(&self) -> u64 {
        // Relaxed: a thread sees what it counted itself.
        self.moves.load(Ordering::Relaxed)
    }

    fn count_move(&self) {
        // Relaxed: as above.
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn find(&self, page: Pfn) -> Option<Extent> {
        self.table.get()?.find(page.get())
    }

    fn is_pinned(&self, block: Extent) -> bool {
        let first = block.first as usize;
        self.pinned.any(first..first + (1 << block.order))
    }

    fn move_page(&self, from: Pfn, to: Pfn, order: Order) -> PlaceState {
        let Some(table) = self.table.get() else { return PlaceState::Elsewhere };
        let block = Extent { first: from.get(), order: order.get() };
        table.move_block(block, to.get(), &self.pinned, || {
            let bytes = self.page_size.bytes() << order.get();
            let offset = |pfn: Pfn| pfn.index() << self.page_size.shift();
            // SAFETY: both are blocks of the depot of this order. No thread accesses `from` while
            // its place is copied (`Place`, invariants 2 and 5), and `to` was allocated for this
            // move.
            let copy = |part: Range<usize>| unsafe {
                let source = self.base.add(offset(from) + part.start);
                self.base.add(offset(to) + part.start).copy_from_nonoverlapping(source, part.len());
            };
            // A forked child has copies of private memory, and needs both blocks whole.
            match self.is_shared {
                true => self.fork_mark.by_page(bytes, self.page_size, copy),
                false => copy(0..bytes),
            }
            self.sites.move_to(from, to);
        })
    }
}

impl Mover for Movables {
    fn occupant(&self, frame: Pfn) -> Occupant {
        match self.find(frame) {
            Some(block) if !self.is_pinned(block) => {
                let order = Order::new(block.order).expect("entries have orders of blocks");
                Occupant::Movable { first: Pfn::new(block.first), order }
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
                PlaceState::Ours => {
                    this.moved();
                    self.count_move();
                }
                PlaceState::Busy => this.pinned(),
                PlaceState::Elsewhere if other.is_none() => this.gone(),
                PlaceState::Elsewhere => {
                    moves.swap(others, at);
                    others += 1;
                }
            }
        }
        if let Some(other) = other.filter(|_| others > 0) {
            // Before the call, which may panic when it has moved some.
            self.count_move();
            other.move_blocks(&mut moves[..others]);
        }
    }

    fn progress(&self, so_far: &CompactResult) -> ControlFlow<()> {
        self.other.get().map_or(ControlFlow::Continue(()), |other| other.progress(so_far))
    }
}
