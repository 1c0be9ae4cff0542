//! Units of address space: a newtype for each, as in `frame.rs`.

use core::fmt;

use pagedepot::PageSize;

/// A virtual address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtAddr(usize);

impl VirtAddr {
    /// Address `n`.
    pub const fn new(n: usize) -> Self {
        VirtAddr(n)
    }

    /// The number.
    pub const fn get(self) -> usize {
        self.0
    }

    /// The address `bytes` further on.
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
    /// How many pages.
    pub pages: u32,
}

impl Span {
    /// `pages` pages from `start`.
    pub const fn new(start: VirtAddr, pages: u32) -> Self {
        Span { start, pages }
    }

    /// Its size in bytes.
    pub const fn bytes(self, page_size: PageSize) -> usize {
        (self.pages as usize) << page_size.shift()
    }

    /// One past its last byte.
    pub const fn end(self, page_size: PageSize) -> VirtAddr {
        VirtAddr(self.start.0 + self.bytes(page_size))
    }
}

/// What a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protection(u8);

impl Protection {
    /// Reading.
    pub const READ: Protection = Protection(1);
    /// Reading and writing: the default.
    pub const READ_WRITE: Protection = Protection(3);
    /// Reading and executing.
    pub const READ_EXECUTE: Protection = Protection(5);

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    pub(super) const fn from_bits(bits: u8) -> Self {
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

/// A page of the managed range, by its number from the range's start.
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

    /// Pages from `start` to here.
    pub const fn since(self, start: Vpn) -> u32 {
        self.0 - start.0
    }
}

/// Pages `start..end` of the managed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub start: Vpn,
    pub end: Vpn,
}

impl Run {
    #[inline]
    pub const fn new(start: Vpn, pages: u32) -> Self {
        Run { start, end: start.add(pages) }
    }

    pub const fn pages(self) -> u32 {
        self.end.since(self.start)
    }

    pub fn iter(self) -> impl Iterator<Item = Vpn> {
        (self.start.0..self.end.0).map(Vpn)
    }
}

/// The managed range: turns addresses into page numbers and back.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub base: VirtAddr,
    pub pages: u32,
    pub page_size: PageSize,
}

impl Range {
    /// The page that contains an address, if it is in the range.
    #[inline]
    pub fn page_of(&self, addr: VirtAddr) -> Option<Vpn> {
        let page = addr.0.wrapping_sub(self.base.0) >> self.page_size.shift();
        (page < self.pages as usize).then_some(Vpn(page as u32))
    }

    /// As [`page_of`](Self::page_of) for an address that must be a page's first.
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
    pub fn span(&self, run: Run) -> Span {
        Span { start: self.addr(run.start), pages: run.pages() }
    }

    /// Number of the first page, counted from address 0: alignment is a matter of addresses.
    pub fn base_page(&self) -> u64 {
        (self.base.0 >> self.page_size.shift()) as u64
    }
}
