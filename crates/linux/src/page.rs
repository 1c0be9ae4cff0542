//! Pages that free themselves.

use std::fmt;
use std::mem::forget;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use pagedepot::{FreeError, Order, Pfn};

use crate::depot::Depot;

/// A block of 2^order pages, as bytes. Freed when dropped.
///
/// A table or a queue that keeps numbers takes it apart and puts it together again:
/// ```
/// use pagedepot_linux::{Depot, Order, Page};
///
/// let depot = Depot::new(1 << 20)?;
/// let mut page = depot.page(Order::BASE)?;
/// page.fill(7);
/// let (pfn, order) = page.into_raw();
/// // SAFETY: out of charge above, and nobody else took charge of it.
/// let page = unsafe { Page::from_raw(&depot, pfn, order) };
/// assert!(page.len() == 4096 && page.iter().all(|&byte| byte == 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Page<'d> {
    depot: &'d Depot,
    pfn: Pfn,
    order: Order,
}

impl<'d> Page<'d> {
    /// Takes charge of a block.
    ///
    /// # Safety
    /// As for freeing it: the caller holds it, with this order, and nobody else uses its memory.
    pub const unsafe fn from_raw(depot: &'d Depot, pfn: Pfn, order: Order) -> Self {
        Page { depot, pfn, order }
    }

    /// Gives the block out of charge: it is freed by [`Depot::free`], or a new `Page`.
    #[must_use = "a block that nobody frees stays allocated"]
    pub fn into_raw(self) -> (Pfn, Order) {
        let raw = (self.pfn, self.order);
        forget(self);
        raw
    }

    /// Its number.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Its order.
    pub fn order(&self) -> Order {
        self.order
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
    pub fn split(self, to: Order) -> Result<Parts<'d>, (Self, FreeError)> {
        // SAFETY: this value holds the block, and gives it up below.
        if let Err(error) = unsafe { self.depot.split(self.pfn, self.order, to) } {
            return Err((self, error));
        }
        let depot = self.depot;
        let (pfn, from) = self.into_raw();
        Ok(Parts { depot, next: pfn, left: 1 << (from.get() - to.get()), order: to })
    }

    fn bytes(&self) -> (NonNull<u8>, usize) {
        (self.depot.address(self.pfn), self.depot.page_size().bytes() << self.order.get())
    }
}

impl Drop for Page<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this value holds the block, and goes away.
        check_freed(unsafe { self.depot.free(self.pfn, self.order) });
    }
}

/// The parts of a block that [`Page::split`] split. Those not taken are freed when it is dropped.
pub struct Parts<'d> {
    depot: &'d Depot,
    next: Pfn,
    left: u32,
    order: Order,
}

impl<'d> Iterator for Parts<'d> {
    type Item = Page<'d>;

    fn next(&mut self) -> Option<Page<'d>> {
        self.left = self.left.checked_sub(1)?;
        let pfn = self.next;
        if self.left > 0 {
            self.next = pfn.add(self.order.frames());
        }
        // SAFETY: this value holds the parts from `next` on, and gives this one up.
        Some(unsafe { Page::from_raw(self.depot, pfn, self.order) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Parts<'_> {}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// Contiguous pages, as bytes. Freed when dropped.
///
/// ```
/// use pagedepot_linux::{Depot, Flags};
///
/// let depot = Depot::new(16 << 20)?;
/// let table = depot.pages(1000, Flags::default().zeroed())?;
/// assert_eq!(table.len(), 1000 * 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pages<'d> {
    depot: &'d Depot,
    start: Pfn,
    count: u32,
}

impl<'d> Pages<'d> {
    /// Takes charge of contiguous pages.
    ///
    /// # Safety
    /// As for freeing them: the caller holds them, and nobody else uses their memory.
    pub const unsafe fn from_raw(depot: &'d Depot, start: Pfn, count: u32) -> Self {
        Pages { depot, start, count }
    }

    /// Gives them out of charge: freed by [`Depot::free_contiguous`], or new `Pages`.
    #[must_use = "pages that nobody frees stay allocated"]
    pub fn into_raw(self) -> (Pfn, u32) {
        let raw = (self.start, self.count);
        forget(self);
        raw
    }

    /// The number of the first.
    pub fn start(&self) -> Pfn {
        self.start
    }

    /// How many pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    fn bytes(&self) -> (NonNull<u8>, usize) {
        (self.depot.address(self.start), (self.count as usize) << self.depot.page_size().shift())
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        // SAFETY: this value holds the pages, and goes away.
        check_freed(unsafe { self.depot.free_contiguous(self.start, self.count) });
    }
}

/// In a forked child nothing is freed, which is as it should be: the pages are the parent's.
#[inline]
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

macro_rules! bytes {
    ($($type:ident),+) => {$(
        impl Deref for $type<'_> {
            type Target = [u8];

            #[inline]
            fn deref(&self) -> &[u8] {
                let (start, bytes) = self.bytes();
                // SAFETY: this value alone holds these bytes, which are mapped and initialised.
                unsafe { slice::from_raw_parts(start.as_ptr(), bytes) }
            }
        }

        impl DerefMut for $type<'_> {
            #[inline]
            fn deref_mut(&mut self) -> &mut [u8] {
                let (start, bytes) = self.bytes();
                // SAFETY: as above.
                unsafe { slice::from_raw_parts_mut(start.as_ptr(), bytes) }
            }
        }

        impl AsRef<[u8]> for $type<'_> {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl AsMut<[u8]> for $type<'_> {
            fn as_mut(&mut self) -> &mut [u8] {
                self
            }
        }
    )+};
}

bytes!(Page, Pages);

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:?}, {:?})", self.pfn, self.order)
    }
}

impl fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({:?}, {} of {:?})", self.next, self.left, self.order)
    }
}

impl fmt::Debug for Pages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({:?}, {} frames)", self.start, self.count)
    }
}
