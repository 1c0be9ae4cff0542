//! Places that 32 bits hold, and sums of them that they do not.

#![cfg(not(any(loom, shuttle)))]

use super::*;

/// A reader sees the new start of an area that is on its way to the end of the largest range,
/// and the old size.
#[test]
fn a_torn_place_ends_with_the_last_page() {
    let area = Area::new();
    area.place(PageRange::new(Vpn(0), 1 << 31));
    area.start.store(u32::MAX - 20, Ordering::Release);
    let torn = PageRange { start: Vpn(u32::MAX - 20), end: Vpn(u32::MAX) };
    assert_eq!((area.run(), area.body()), (torn, torn));
}
