//! Units of address space, a type for each: addresses, page numbers, ranges of pages.

use core::fmt;

use pagedepot::PageSize;

/// A virtual address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtAddr(usize);

impl VirtAddr {
    /// The address with this value.
    pub const fn new(n: usize) -> Self {
        VirtAddr(n)
    }

    /// The value of the address.
    pub const fn get(self) -> usize {
        self.0
    }

    /// The address `bytes` bytes above this one.
    ///
    /// # Panics
    /// In debug builds, past the last address.
    #[must_use]
    pub const fn add(self, bytes: usize) -> Self {
        VirtAddr(self.0 + bytes)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Whole pages of address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte, at a page boundary.
    pub start: VirtAddr,
    /// Size in pages.
    pub pages: u32,
}

impl Span {
    /// The `pages` pages that begin at `start`.
    pub const fn new(start: VirtAddr, pages: u32) -> Self {
        Span { start, pages }
    }

    /// Size in bytes.
    pub const fn bytes(self, page_size: PageSize) -> usize {
        (self.pages as usize) << page_size.shift()
    }

    /// The address behind the last byte.
    pub const fn end(self, page_size: PageSize) -> VirtAddr {
        VirtAddr(self.start.0 + self.bytes(page_size))
    }
}

/// Accesses that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protection(u8);

impl Protection {
    /// Allows reading.
    pub const READ: Protection = Protection(1);
    /// Allows reading and writing: the default.
    pub const READ_WRITE: Protection = Protection(3);
    /// Allows reading and executing.
    pub const READ_EXECUTE: Protection = Protection(5);

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Protection(bits)
    }

    /// Whether it allows writing.
    pub const fn may_write(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether it allows executing.
    pub const fn may_execute(self) -> bool {
        self.0 & 4 != 0
    }
}

impl Default for Protection {
    fn default() -> Self {
        Protection::READ_WRITE
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (w, x) = (self.may_write(), self.may_execute());
        write!(f, "r{}{}", if w { 'w' } else { '-' }, if x { 'x' } else { '-' })
    }
}

/// Number of a page, counted from the start of the managed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vpn(pub u32);

impl Vpn {
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub const fn add(self, pages: u32) -> Self {
        Vpn(self.0 + pages)
    }

    /// Distance from `start` in pages.
    pub const fn since(self, start: Vpn) -> u32 {
        self.0 - start.0
    }
}

/// Pages `start..end` of the managed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    pub start: Vpn,
    pub end: Vpn,
}

impl PageRange {
    #[inline]
    pub const fn new(start: Vpn, pages: u32) -> Self {
        PageRange { start, end: start.add(pages) }
    }

    pub const fn pages(self) -> u32 {
        self.end.since(self.start)
    }

    pub fn contains(self, page: Vpn) -> bool {
        self.start <= page && page < self.end
    }

    pub fn iter(self) -> impl Iterator<Item = Vpn> {
        (self.start.0..self.end.0).map(Vpn)
    }
}

/// The range of addresses that a vmap manages. Translates addresses to page numbers and back.
#[derive(Clone, Copy, Debug)]
pub struct ManagedRange {
    pub base: VirtAddr,
    pub pages: u32,
    pub page_size: PageSize,
}

impl ManagedRange {
    /// The page that contains an address; `None` outside of the range.
    #[inline]
    pub fn page_of(&self, addr: VirtAddr) -> Option<Vpn> {
        let page = addr.0.wrapping_sub(self.base.0) >> self.page_size.shift();
        (page < self.pages as usize).then_some(Vpn(page as u32))
    }

    /// The page that begins at an address; `None` also for an address inside a page.
    #[inline]
    pub fn page_at(&self, addr: VirtAddr) -> Option<Vpn> {
        let offset = addr.0.wrapping_sub(self.base.0);
        let page = offset >> self.page_size.shift();
        let exact = page << self.page_size.shift() == offset;
        (exact && page < self.pages as usize).then_some(Vpn(page as u32))
    }

    #[inline]
    pub fn addr(&self, page: Vpn) -> VirtAddr {
        VirtAddr(self.base.0 + (page.index() << self.page_size.shift()))
    }

    #[inline]
    pub fn span(&self, run: PageRange) -> Span {
        Span { start: self.addr(run.start), pages: run.pages() }
    }

    /// Number of the first page counted from address 0: alignments are those of addresses.
    pub fn base_page(&self) -> u64 {
        (self.base.0 >> self.page_size.shift()) as u64
    }
}
