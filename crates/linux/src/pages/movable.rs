//! Pages that compaction may move between accesses, so that memory heals.
//!
//! A [`Page`] lends its memory for as long as it lives, so it stays where it is. A [`Movable`]
//! lends it for each access: between accesses, compaction may copy the page elsewhere and free the
//! old one.
//!
//! # Theory
//! Each block has a [`Place`], which its holder and compaction agree upon, and an entry in the
//! depot's [`Table`](crate::moving::table::Table) of movable blocks, by the number of its first
//! page. Compaction finds the place by the table, makes it copied, copies, changes the table, and
//! sets the new page. The holder gives the place up before it takes its entry out and frees the
//! block, so compaction never frees what the holder frees. Neither takes a lock.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::slice;

use pagedepot::{AllocError, Flags, Order, Pfn};
use pagedepot_contiguity::{CompactError, CompactResult, Compaction, Contiguity};

use crate::depot::handle::Depot;
use crate::depot::state::DepotState;
use crate::moving::place::{Extent, Place};
use crate::pages::page::Page;
use crate::system::prim::AtomicU64;

impl Depot {
    /// Allocates a block of 2^order pages that [`compact`](Self::compact) may move while no access
    /// to it is in progress.
    ///
    /// # Errors
    /// Fails like [`page`](Self::page). [`AllocError::Exhausted`] also if the system has no
    /// addresses for the table of movable pages (`RLIMIT_AS`): 72 bytes for each page of the depot,
    /// with the first movable one; and if there are more movable pages than pages, in a segment
    /// that another process has damaged.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn movable(&self, order: Order, flags: Flags) -> Result<Movable, AllocError> {
        Movable::new(self, order, flags)
    }

    /// Moves [`Movable`] pages together until the target is reached: whole pageblocks of 2 MiB, or
    /// a contiguous range, wholly free. Compacts one zone after the other. [`Movable`] has an
    /// example. A request with [`Flags::compact`], as in [`pages`](Self::pages), compacts before it
    /// fails.
    ///
    /// Other kinds of pages stay where they are, so a pageblock with one of them cannot be emptied.
    /// Keep the two kinds apart: allocate the others with [`Flags::UNMOVABLE`]. With a target of
    /// whole pageblocks, each zone is compacted until it has that many.
    ///
    /// Returns the sum over the zones, and how compaction of the last one ended. For a range, the
    /// last zone is the one that has it.
    ///
    /// # Errors
    /// [`CompactError`](crate::reclaim::CompactError), of a target that no zone could reach.
    pub fn compact(&self, rules: Compaction) -> Result<CompactResult, CompactError> {
        compact(self.shared(), rules)
    }
}

/// Implements [`Depot::compact`].
pub(crate) fn compact(
    depot: &DepotState,
    rules: Compaction,
) -> Result<CompactResult, CompactError> {
    depot.check_parent().map_err(|_| CompactError::Forked)?;
    let _bringing = depot.bringing();
    let (mut sum, mut error) = (None::<CompactResult>, None);
    for zone in depot.frames().zone_ids() {
        match depot.frames().compact(zone, rules, depot.movables()) {
            Ok(done) => {
                let sum = sum.get_or_insert_default();
                *sum += done;
                if done.range.is_some() {
                    break;
                }
            }
            Err(why) => error = error.or(Some(why)),
        }
    }
    sum.ok_or(error.unwrap_or(CompactError::NoSuchZone { zone: 0 }))
}

/// A block of 2^order pages that compaction may move while no access is in progress. Freed when
/// dropped. As a [`Page`], it needs no handle to its depot.
///
/// ```
/// use pagedepot_linux::reclaim::Compaction;
/// use pagedepot_linux::{Depot, Flags, Order};
///
/// let depot = Depot::new(16 << 20)?;
/// // Every page, and then every fourth: no 2 MiB are free in a row.
/// let next = || depot.movable(Order::BASE, Flags::default()).ok();
/// let mut all: Vec<_> = std::iter::from_fn(next).collect();
/// let mut number = 0;
/// all.retain(|_| { number += 1; number % 4 == 0 });
/// for (i, page) in all.iter_mut().enumerate() {
///     page.write()[0] = i as u8;
/// }
/// let done = depot.compact(Compaction::all())?;
/// assert!(done.whole_pageblocks >= 5, "{done:?}");
/// assert!(all.iter().enumerate().all(|(i, page)| page.read()[0] == i as u8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # When it stays where it is
/// While [`read`](Self::read)'s or [`write`](Self::write)'s value lives, and while it is pinned by
/// [`Depot::pin_range`]. Its page number and its place in a memory file change with a move, so pin
/// a page that a device or another process uses, while such a value lives: a pin that is made of a
/// [page number](Self::pfn) alone may come too late.
/// ```
/// # use pagedepot_linux::{Depot, Flags, Order};
/// # let depot = Depot::new(1 << 20)?;
/// let page = depot.movable(Order::BASE, Flags::default())?;
/// let bytes = page.read(); // it stays where it is
/// let pinned = depot.pin_range(page.pfn(), page.order().frames())?;
/// drop(bytes); // and still does, until `pinned` is dropped
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// Not for signal handlers: one that wants a page that its own thread is copying would wait for
/// ever. (A handler may ask for pages that compaction makes room for.)
///
/// # After fork
/// A child reads and drops its parent's pages without waiting. It sees what was there at the fork;
/// of a memory file, whatever its parent has there now.
///
/// # Cost
/// An access costs two atomic operations on a word of this page's own. Making and dropping one
/// costs five atomic operations beside those of a [`Page`], two of them on a word that all threads
/// share, and 72 bytes.
pub struct Movable {
    depot: NonNull<DepotState>,
    /// The word of the slot, in the depot's table.
    word: NonNull<AtomicU64>,
    slot: u32,
    order: Order,
}

// SAFETY: it owns its bytes, as a boxed slice does, and threads share the depot.
unsafe impl Send for Movable {}
// SAFETY: as above; by shared reference its bytes are only read.
unsafe impl Sync for Movable {}
// A panic leaves bytes half-written at worst, as in a vector.
impl UnwindSafe for Movable {}
impl RefUnwindSafe for Movable {}

impl Movable {
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub(crate) fn new(depot: &Depot, order: Order, flags: Flags) -> Result<Self, AllocError> {
        let table = depot.shared().movables().table()?;
        let page = depot.page_with(order, flags)?;
        let extent = Extent { first: page.pfn().get(), order: order.get() };
        // Without a slot the page is freed.
        let slot = table.insert(extent).ok_or(AllocError::Exhausted)?;
        let _ = page.into_raw();
        let word = NonNull::from(table.place(slot).0);
        Ok(Movable { depot: depot.pointer(), word, slot, order })
    }

    fn shared(&self) -> &DepotState {
        // SAFETY: mapped while this page is outstanding (`teardown`, invariant 1).
        unsafe { self.depot.as_ref() }
    }

    fn place(&self) -> Place<'_> {
        // SAFETY: the table is unmapped with the depot, which this page keeps mapped.
        Place(unsafe { self.word.as_ref() })
    }

    /// The block has 2^order pages of the base size.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Page frame number of the first page at this moment. It may change whenever no access is in
    /// progress.
    pub fn pfn(&self) -> Pfn {
        Pfn::new(self.place().page())
    }

    fn begin(&self) -> (NonNull<u8>, usize) {
        let shared = self.shared();
        let page = Pfn::new(self.place().begin_access(shared.movables().fork_mark()));
        (shared.address(page), shared.page_size().bytes() << self.order.get())
    }

    /// Gives access to the page's bytes, to read. While the returned value lives, the page stays
    /// where it is. Waits for a copy of the page that compaction is just making.
    pub fn read(&self) -> Bytes<'_> {
        let (start, bytes) = self.begin();
        Bytes { start, bytes, page: self }
    }

    /// Gives access to the page's bytes like [`read`](Self::read), to write.
    pub fn write(&mut self) -> BytesMut<'_> {
        BytesMut(self.read())
    }

    /// Makes it a page that stays where it is.
    pub fn into_page(self) -> Page {
        let this = ManuallyDrop::new(self);
        let pfn = this.give_up();
        // SAFETY: given up: the block is this value's, which is not dropped any more.
        unsafe { Page::from_pointer(this.depot, pfn, this.order) }
    }

    /// Takes the page out of compaction's reach. Called once, by `into_page` or `drop`.
    fn give_up(&self) -> Pfn {
        let table = self.shared().movables().table().expect("it was made before this page");
        Pfn::new(table.remove(self.slot))
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        let pfn = self.give_up();
        // SAFETY: given up: the block is this value's, which goes away.
        drop(unsafe { Page::from_pointer(self.depot, pfn, self.order) });
    }
}

impl fmt::Debug for Movable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Movable({:?}, {:?})", self.pfn(), self.order)
    }
}

/// The bytes of a [`Movable`] page, which stays where it is while this lives.
pub struct Bytes<'p> {
    start: NonNull<u8>,
    bytes: usize,
    page: &'p Movable,
}

// SAFETY: as `&[u8]`.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised; the access keeps compaction away, and the borrow of the
        // page keeps writers away.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Bytes<'_> {
    fn drop(&mut self) {
        self.page.place().end_access();
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} of {:?})", self.bytes, self.page)
    }
}

/// The bytes of a page like [`Bytes`], to write.
#[derive(Debug)]
pub struct BytesMut<'p>(Bytes<'p>);

impl Deref for BytesMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for BytesMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `Bytes`; made from a unique reference to the page.
        unsafe { slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.bytes) }
    }
}
