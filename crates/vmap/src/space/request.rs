//! A request to the free address space.

use crate::units::{PageRange, Vpn};

/// A request for free address space.
#[derive(Clone, Copy, Debug)]
pub struct AddressRequest {
    /// Size in pages, with guard.
    pub pages: u32,
    /// Alignment in pages, a power of two.
    pub align: u64,
    /// The pages it must lie in.
    pub window: PageRange,
    /// Number of the managed range's first page, counted from address 0.
    pub base_page: u64,
}

impl AddressRequest {
    /// All places that have the alignment and lie in the window, the lowest first.
    pub fn places(self) -> impl Iterator<Item = PageRange> {
        let first = (self.base_page + u64::from(self.window.start.0)).next_multiple_of(self.align);
        let last = u64::from(self.window.end.0) - u64::from(self.pages);
        let place = move |nth: u64| first - self.base_page + nth * self.align;
        (0..)
            .map(place)
            .take_while(move |&at| at <= last)
            .map(move |at| PageRange::new(Vpn(at as u32), self.pages))
    }

    /// Restricts the window to places behind `end`.
    pub fn skip_to(&mut self, end: Vpn) {
        let start =
            (self.base_page + u64::from(end.0)).next_multiple_of(self.align) - self.base_page;
        self.window.start = u32::try_from(start).map_or(self.window.end, Vpn);
    }

    /// The lowest place in a free range; `None`: it does not fit.
    pub fn place_in(&self, free: PageRange) -> Option<Vpn> {
        let from = u64::from(free.start.max(self.window.start).0);
        let end = u64::from(free.end.min(self.window.end).0);
        let aligned = (self.base_page + from).checked_add(self.align - 1)? & !(self.align - 1);
        let start = aligned - self.base_page;
        (start + u64::from(self.pages) <= end).then_some(Vpn(start as u32))
    }
}
