//! Pages that free themselves.
//!
//! | type | holds | keeps the memory mapped | a free past the CPU's cache |
//! |---|---|---|---|
//! | [`Page`] | a block of 2^order pages | yes | two atomic operations more than a raw one |
//! | [`Pages`] | contiguous pages, up to 1 GiB | yes | the same; every free is one |
//!
//! A block that the CPU's cache serves and takes back costs the same in both: what a number
//! costs ([`RawDepot`]) and three loads, since a free finds the depot through the page. `pagedepot
//! bench hot` shows both.

use std::borrow::{Borrow, BorrowMut};
use std::fmt;
use std::io;
use std::mem::forget;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::slice;

use pagedepot::{AllocError, Flags, FreeError, Order, Pfn};

use crate::depot::handle::Depot;
use crate::depot::state::DepotState;
use crate::depot::teardown;
use crate::giving_back::discard;
use crate::giving_back::trim::TrimError;

impl Depot {
    /// Allocates a block of 2^order pages that frees itself. Its contents are whatever its last
    /// user left, zeroes at first.
    ///
    /// A page allocated and freed, both in the CPU's cache, costs no atomic operation.
    /// [`Order::for_bytes`] finds the order for a size.
    ///
    /// # Errors
    /// [`AllocError`]; after [`AllocError::Exhausted`], [`shortage`](Self::shortage) tells where
    /// the pages are.
    #[inline]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn page(&self, order: Order) -> Result<Page, AllocError> {
        self.page_with(order, Flags::default())
    }

    /// Allocates a page like [`page`](Self::page), with flags: zeroed, mobility, whether it may
    /// reclaim.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Flags, Order};
    ///
    /// let page = Depot::new(1 << 20)?.page_with(Order::BASE, Flags::default().zeroed())?;
    /// assert!(page.iter().all(|&byte| byte == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`page`](Self::page).
    #[inline]
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn page_with(&self, order: Order, flags: Flags) -> Result<Page, AllocError> {
        let pfn = self.raw().alloc(order, flags)?;
        // SAFETY: just allocated, and no other value holds it.
        Ok(unsafe { Page::from_raw(self, pfn, order) })
    }

    /// Allocates `count` contiguous pages, up to 1 GiB of 4 KiB pages, that free themselves;
    /// [`Pages`] has an example. They are looked for past the caches, as
    /// [`Allocator::alloc_contiguous`](crate::raw::Allocator::alloc_contiguous) says: quickly at
    /// first, then among all runs of free pages. Before the request fails, it takes back what CPUs
    /// cache, calls callbacks and waits for a trim's pages, as requests for single pages do.
    ///
    /// # Errors
    /// [`AllocError::BadSize`] for none or too many; [`AllocError::Exhausted`] when no run of so
    /// many pages is free, which scattered pages can cause while many are free.
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn pages(&self, count: u32, flags: Flags) -> Result<Pages, AllocError> {
        let start = self.raw().alloc_contiguous(count, 1, flags)?;
        // SAFETY: just allocated, and no other value holds them.
        Ok(unsafe { Pages::from_raw(self, start, count) })
    }
}

/// A block of 2^order pages, as bytes. Freed when dropped, on any thread. It needs no handle to its
/// depot: it can be stored, sent and returned, and keeps its memory mapped.
///
/// ```
/// use std::collections::HashMap;
/// use pagedepot_linux::{Depot, Order, Page};
///
/// struct Cache {
///     blocks: HashMap<u64, Page>,
/// }
/// let depot = Depot::new(1 << 20)?;
/// let mut cache = Cache { blocks: HashMap::new() };
/// cache.blocks.entry(7).or_insert(depot.page(Order::BASE)?).fill(7);
/// let sent = cache.blocks.remove(&7).unwrap();
/// std::thread::spawn(move || assert!(sent.iter().all(|&byte| byte == 7))).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A table or a queue that keeps numbers takes it apart and puts it together again:
/// ```
/// use pagedepot_linux::{Depot, Order, Page};
///
/// let depot = Depot::new(1 << 20)?;
/// let (pfn, order) = depot.page(Order::BASE)?.into_raw();
/// // SAFETY: `into_raw` gave the block up, and nothing else holds it.
/// let page = unsafe { Page::from_raw(&depot, pfn, order) };
/// assert_eq!(page.len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Page {
    depot: NonNull<DepotState>,
    block: PackedBlock,
}

/// A block's first page and order in one register: a page is two. One of three fields would be
/// written to the stack in parts and read back as a whole, which no processor forwards: it waits
/// until the parts are in the cache, for each page that is moved.
#[derive(Clone, Copy)]
struct PackedBlock(u64);

impl PackedBlock {
    const ORDER_SHIFT: u32 = 32;

    #[inline]
    fn new(pfn: Pfn, order: Order) -> Self {
        PackedBlock(u64::from(order.get()) << Self::ORDER_SHIFT | u64::from(pfn.get()))
    }

    #[inline]
    fn pfn(self) -> Pfn {
        Pfn::new(self.0 as u32)
    }

    #[inline]
    fn order(self) -> Order {
        // SAFETY: `new` is the only maker.
        unsafe { Order::new((self.0 >> Self::ORDER_SHIFT) as u32).unwrap_unchecked() }
    }
}

impl Page {
    /// A page of a block that the caller holds by its number.
    ///
    /// # Safety
    /// The caller holds the block with this order, gives it up, and its memory is not used
    /// otherwise.
    #[inline]
    pub unsafe fn from_raw(depot: &Depot, pfn: Pfn, order: Order) -> Self {
        Page { depot: depot.pointer(), block: PackedBlock::new(pfn, order) }
    }

    /// Makes a page like [`from_raw`](Self::from_raw), of a depot that the block itself keeps
    /// mapped.
    ///
    /// # Safety
    /// Requires what `from_raw` requires.
    pub(crate) unsafe fn from_pointer(depot: NonNull<DepotState>, pfn: Pfn, order: Order) -> Self {
        Page { depot, block: PackedBlock::new(pfn, order) }
    }

    /// The block's number and order, without freeing it: the caller frees it by
    /// [`RawDepot::free`](crate::RawDepot::free), or makes a page of it again.
    #[must_use = "a block that is not freed stays allocated"]
    #[inline]
    pub fn into_raw(self) -> (Pfn, Order) {
        let raw = (self.pfn(), self.order());
        forget(self);
        raw
    }

    /// Splits the block into pages of order `to`, in ascending order, which keep their contents.
    /// Each frees itself, and so do those that the iterator still has when it is dropped.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, Order};
    ///
    /// let depot = Depot::new(1 << 20)?;
    /// let four = depot.page(Order::new(2).unwrap())?;
    /// let mut pages = four.split(Order::BASE).map_err(|(_, error)| error)?;
    /// let first = pages.next().unwrap();
    /// drop(pages); // the other three
    /// assert_eq!(first.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The page as it was, with [`FreeError::Misaligned`] if `to` is larger than its order, or
    /// [`FreeError::Forked`].
    pub fn split(self, to: Order) -> Result<Parts, (Self, FreeError)> {
        if let Err(error) = self.raw().split(self.pfn(), self.order(), to) {
            return Err((self, error));
        }
        let depot = self.depot;
        let (pfn, from) = self.into_raw();
        Ok(Parts { depot, next: pfn, left: 1 << (from.get() - to.get()), order: to })
    }

    /// Whether this is a page of that depot.
    #[inline]
    pub(crate) fn is_of(&self, depot: &Depot) -> bool {
        self.depot == depot.pointer()
    }

    #[inline]
    fn raw(&self) -> &DepotState {
        // SAFETY: mapped while this page is outstanding (`teardown`, invariant 1).
        unsafe { self.depot.as_ref() }
    }
}

impl Page {
    /// Whether the CPU's front took the block: then this value no longer holds it. A front that a
    /// lock guards takes nothing here: that way, a call, would make drops too large for the
    /// compiler to inline.
    #[inline]
    fn push(&self) -> bool {
        let depot = self.raw();
        depot.sites().clear(self.pfn());
        let frames = depot.frames();
        frames.cpus().sequences().area().is_some() && frames.free_fast(self.pfn(), self.order())
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        if !self.push() {
            // SAFETY: this value holds the block, and goes away.
            unsafe { free_to_store(self.depot, self.pfn(), self.order()) };
        }
    }
}

/// Frees a block that its front did not take, or, where a lock guards that, was not asked to take.
///
/// # Safety
/// The caller holds the block, and gives it up.
#[cold]
#[inline(never)]
unsafe fn free_to_store(depot: NonNull<DepotState>, pfn: Pfn, order: Order) {
    // SAFETY: the block keeps it mapped until a front takes the block; then nothing is read.
    if unsafe { depot.as_ref() }.frames().free_to_front(pfn, order) {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        past_the_front(depot, order.frames(), |depot| depot.frames().free_refused(pfn, order));
    }
}

/// Frees `pages` pages by `free`, or counts them when the last handle has gone.
///
/// # Safety
/// The caller holds them, and gives them up.
unsafe fn past_the_front(
    depot: NonNull<DepotState>,
    pages: u32,
    free: impl FnOnce(&DepotState) -> Result<(), FreeError>,
) {
    // SAFETY: the pages keep it mapped.
    if unsafe { depot.as_ref() }.check_parent().is_err() {
        // The pages are the parent's.
        return;
    }
    // SAFETY: the caller's promise; this is the parent.
    unsafe {
        teardown::free(depot, pages.into(), |depot| {
            let _bringing = depot.bringing();
            match (free(depot), depot.common()) {
                (Err(_), Some(common)) => common.note_refused(pages),
                (freed, _) => check_freed(freed),
            }
        });
    }
}

/// The parts of a block that [`Page::split`] split. Those not taken are freed when it is dropped.
pub struct Parts {
    depot: NonNull<DepotState>,
    next: Pfn,
    left: u32,
    order: Order,
}

impl Iterator for Parts {
    type Item = Page;

    fn next(&mut self) -> Option<Page> {
        self.left = self.left.checked_sub(1)?;
        let pfn = self.next;
        if self.left > 0 {
            self.next = pfn.add(self.order.frames());
        }
        // This value holds the parts from `next` on, and gives this one up.
        Some(Page { depot: self.depot, block: PackedBlock::new(pfn, self.order) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Parts {}

impl Drop for Parts {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// Contiguous pages, as bytes. Freed when dropped, on any thread. As a [`Page`], they need no
/// handle to their depot.
///
/// ```
/// use pagedepot_linux::{Depot, Flags};
///
/// let depot = Depot::new(16 << 20)?;
/// let table = depot.pages(1000, Flags::default().zeroed())?;
/// assert_eq!(table.len(), 1000 * 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pages {
    depot: NonNull<DepotState>,
    start: Pfn,
    count: u32,
}

impl Pages {
    /// Contiguous pages that the caller holds by the number of the first.
    ///
    /// # Safety
    /// The caller holds them, gives them up, and their memory is not used otherwise.
    pub unsafe fn from_raw(depot: &Depot, start: Pfn, count: u32) -> Self {
        Pages { depot: depot.pointer(), start, count }
    }

    /// The number of the first page and the count, without freeing them: the caller frees them by
    /// [`RawDepot::free_contiguous`](crate::RawDepot::free_contiguous), or makes `Pages` of them
    /// again.
    #[must_use = "pages that are not freed stay allocated"]
    pub fn into_raw(self) -> (Pfn, u32) {
        let raw = (self.start, self.count);
        forget(self);
        raw
    }

    /// Page frame number of the first page.
    pub fn start(&self) -> Pfn {
        self.start
    }

    /// Number of pages of the base size.
    pub fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    fn raw(&self) -> &DepotState {
        // SAFETY: mapped while these pages are outstanding (`teardown`, invariant 1).
        unsafe { self.depot.as_ref() }
    }

    #[inline]
    fn first(&self) -> (Pfn, usize) {
        (self.start, (self.count as usize) << self.raw().page_size().shift())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let (start, count) = (self.start, self.count);
        self.raw().sites().take_run(start, count);
        // SAFETY: this value holds the pages, and goes away.
        unsafe {
            past_the_front(self.depot, count, |depot| depot.frames().free_contiguous(start, count));
        }
    }
}

/// Checks the result of a free: in a forked child none succeeds, because the pages are the
/// parent's.
fn check_freed(result: Result<(), FreeError>) {
    match result {
        Ok(()) | Err(FreeError::Forked) => {}
        Err(error) => not_freed(error),
    }
}

#[cold]
#[inline(never)]
fn not_freed(error: FreeError) {
    assert!(std::thread::panicking(), "a page was not what it was made from: {error}");
}

impl Page {
    /// Page frame number of the block's first page.
    #[inline]
    pub fn pfn(&self) -> Pfn {
        self.block.pfn()
    }

    /// The block has 2^order pages of the base size.
    #[inline]
    pub fn order(&self) -> Order {
        self.block.order()
    }

    #[inline]
    fn first(&self) -> (Pfn, usize) {
        (self.pfn(), self.raw().page_size().bytes() << self.order().get())
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:?}, {:?})", self.pfn(), self.order())
    }
}

macro_rules! bytes {
    ($($type:ty),+) => {$(
        // SAFETY: it owns its bytes, as a boxed slice does, and threads share the depot.
        unsafe impl Send for $type {}
        // SAFETY: as above; by shared reference its bytes are only read.
        unsafe impl Sync for $type {}
        // A panic leaves bytes half-written at worst, as in a vector.
        impl UnwindSafe for $type {}
        impl RefUnwindSafe for $type {}

        impl $type {
            /// A writer that begins at the first byte, and is full at the last one.
            ///
            /// ```
            /// use std::io::Write;
            /// use pagedepot_linux::{Depot, Order};
            ///
            /// let mut page = Depot::new(1 << 20)?.page(Order::BASE)?;
            /// write!(page.writer(), "record {}", 7)?;
            /// assert!(page.starts_with(b"record 7"));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn writer(&mut self) -> io::Cursor<&mut [u8]> {
                io::Cursor::new(self)
            }

            /// Gives the memory back to the system and keeps the page: its contents are zeroes
            /// from now on, and the next access brings memory again. Returns the bytes that were
            /// present. For a pool that keeps addresses, and for the host of a guest's depot.
            ///
            /// ```
            /// use pagedepot_linux::{Depot, Order};
            ///
            /// let mut page = Depot::new(16 << 20)?.page(Order::MAX)?;
            /// page.fill(7);
            /// assert_eq!(page.discard()?, page.len() as u64);
            /// assert!(page.iter().all(|&byte| byte == 0));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// Of a memory file and of a segment the memory goes for all processes that map it.
            /// Costs a system call, and interrupts every CPU that runs a process which has the
            /// memory mapped.
            ///
            /// # Errors
            /// [`TrimError::Pinned`] when the page is [pinned](Depot::pin_range), or the whole
            /// depot; [`TrimError::Forked`] in a child; [`TrimError::Refused`] when the system
            /// refuses: then the contents are zeroes in part. Huge pages that the administrator
            /// set aside go whole or are refused.
            pub fn discard(&mut self) -> Result<u64, TrimError> {
                let (start, bytes) = self.first();
                let depot = self.raw();
                discard::discard(depot, start, (bytes >> depot.page_size().shift()) as u32)
            }

            /// Returns the page's bytes as values of another type, as many as fit.
            ///
            /// ```
            /// use pagedepot_linux::{Depot, Flags, Order};
            ///
            /// let depot = Depot::new(1 << 20)?;
            /// let mut page = depot.page_with(Order::BASE, Flags::default().zeroed())?;
            /// page.values_mut::<u64>()[511] = 7;
            /// assert_eq!(page.values::<u64>().iter().sum::<u64>(), 7);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Panics
            /// For a type of no size, or one aligned to more than a page.
            #[cfg(feature = "bytemuck")]
            pub fn values<T: bytemuck::AnyBitPattern>(&self) -> &[T] {
                let bytes: &[u8] = self;
                bytemuck::cast_slice(&bytes[..bytes.len() / size_of::<T>() * size_of::<T>()])
            }

            /// Returns the page's values like [`values`](Self::values), to write.
            ///
            /// # Panics
            /// Panics like [`values`](Self::values).
            #[cfg(feature = "bytemuck")]
            pub fn values_mut<T: bytemuck::Pod>(&mut self) -> &mut [T] {
                let bytes: &mut [u8] = self;
                let end = bytes.len() / size_of::<T>() * size_of::<T>();
                bytemuck::cast_slice_mut(&mut bytes[..end])
            }
        }

        impl Deref for $type {
            type Target = [u8];

            #[inline]
            fn deref(&self) -> &[u8] {
                let (first, bytes) = self.first();
                let start = self.raw().address(first);
                // SAFETY: this value alone holds these bytes, which are mapped and initialised.
                unsafe { slice::from_raw_parts(start.as_ptr(), bytes) }
            }
        }

        impl DerefMut for $type {
            #[inline]
            fn deref_mut(&mut self) -> &mut [u8] {
                let (first, bytes) = self.first();
                let start = self.raw().address(first);
                // SAFETY: as above.
                unsafe { slice::from_raw_parts_mut(start.as_ptr(), bytes) }
            }
        }

        impl AsRef<[u8]> for $type {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl AsMut<[u8]> for $type {
            fn as_mut(&mut self) -> &mut [u8] {
                self
            }
        }

        impl Borrow<[u8]> for $type {
            fn borrow(&self) -> &[u8] {
                self
            }
        }

        impl BorrowMut<[u8]> for $type {
            fn borrow_mut(&mut self) -> &mut [u8] {
                self
            }
        }

        // As the bytes, which `Borrow` demands.
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                **self == **other
            }
        }

        impl Eq for $type {}

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $type {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                (**self).cmp(&**other)
            }
        }

        impl std::hash::Hash for $type {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                (**self).hash(state);
            }
        }
    )+};
}

bytes!(Page, Pages);

// SAFETY: as for pages: it holds some.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}
impl UnwindSafe for Parts {}
impl RefUnwindSafe for Parts {}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({:?}, {} of {:?})", self.next, self.left, self.order)
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({:?}, {} frames)", self.start, self.count)
    }
}
