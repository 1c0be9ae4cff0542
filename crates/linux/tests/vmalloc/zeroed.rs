//! Memory that promises zeroes holds zeroes, whatever its protection, although its frames were
//! written before.

use crate::common::{mib, page_bytes};
use pagedepot_linux::vmalloc::{Options, Protection, StaleData, Vmalloc};
use pagedepot_linux::{Depot, Flags, Order};

use crate::{all_back, depot};

const PROTECTIONS: [Protection; 3] =
    [Protection::READ, Protection::READ_WRITE, Protection::READ_EXECUTE];

/// Writes data to every free page of a depot.
fn dirty(depot: &Depot) {
    let flags = Flags::default().no_reclaim();
    let mut pages: Vec<_> =
        std::iter::from_fn(|| depot.page_with(Order::BASE, flags).ok()).collect();
    assert!(pages.len() > 300, "there is memory");
    pages.iter_mut().for_each(|page| page.fill(7));
}

/// Checks that `pages` pages at `start` are zeroes.
fn check(start: std::ptr::NonNull<u8>, pages: u32, what: &dyn std::fmt::Debug) {
    // SAFETY: just allocated, readable.
    let bytes =
        unsafe { std::slice::from_raw_parts(start.as_ptr(), pages as usize * page_bytes()) };
    assert_eq!(bytes.iter().position(|&byte| byte != 0), None, "{what:?}");
}

#[test]
fn memory_is_zero_with_every_protection() {
    let depot = depot(4 * mib());
    for (stale, ask) in
        [(StaleData::Zero, false), (StaleData::Keep, true), (StaleData::Poison(0x6b), true)]
    {
        let space = Vmalloc::builder(&depot).stale(stale).build().unwrap();
        for protection in PROTECTIONS {
            let plain = Options::DEFAULT.protection(protection);
            let plain = if ask { plain.zeroed() } else { plain };
            for options in [plain, plain.align(2 * mib()), plain.guard_pages(0), plain.no_wait()] {
                for pages in [1, 5, 64, 200] {
                    space.shrink();
                    dirty(&depot);
                    let start = space.vmalloc(pages, options).unwrap();
                    check(start, pages, &(stale, pages, options));
                    // SAFETY: used no more at the old address.
                    let grown = unsafe { space.vrealloc(start, pages + 50, options) }.unwrap();
                    check(grown, pages + 50, &(stale, pages, options));
                    // SAFETY: used no more.
                    unsafe { space.vfree(grown) }.unwrap();
                    dirty(&depot);
                    let mut buf = space.buf_with(pages as usize * page_bytes(), options).unwrap();
                    assert!(buf.iter().all(|&byte| byte == 0), "{stale:?} {options:?}");
                    buf.fill(9);
                }
            }
        }
        drop(space);
    }
    let space = Vmalloc::new(&depot).unwrap();
    drop(depot);
    all_back(space);
}
