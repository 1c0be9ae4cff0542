//! Whole pageblocks are given back once, and used again as if nothing had happened.

use crate::common::{all_back, check, in_child, mark, mib, order, page_bytes, present_bytes};
use pagedepot_linux::reclaim::{ReportEnd, Reporting, TrimError};
use pagedepot_linux::{Depot, MemoryKind, Mode, Movable, Order, Page, Scope, ZoneId};

/// Bytes that the depot's memory file has.
fn file_bytes(depot: &Depot) -> Option<usize> {
    use std::os::fd::AsRawFd;
    // SAFETY: only looked at.
    let file = unsafe { depot.raw().fd() }?;
    // SAFETY: written by the call, which cannot fail for a file that is open.
    let blocks = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(file.as_raw_fd(), &mut stat), 0);
        stat.st_blocks
    };
    Some(blocks as usize * 512)
}

fn depots() -> impl Iterator<Item = Depot> {
    [MemoryKind::Anonymous, MemoryKind::Memfd]
        .into_iter()
        .map(|kind| Depot::builder(64 * mib()).memory(kind).populate(true).build().unwrap())
}

#[test]
fn pageblocks_are_given_back_once() {
    for depot in depots() {
        let mut held: Vec<Page> = (0..100).map(|_| depot.page(order(1)).unwrap()).collect();
        held.iter_mut().for_each(|page| mark(page, 7));
        depot.drain(Scope::ALL, Mode::Full);
        let whole = depot.pageblock_stats(ZoneId::new(0)).unwrap().whole;
        let reporting = Reporting::of(&depot);
        assert_eq!(reporting.pass(3).unwrap().pageblocks, 3);
        assert_eq!(present_bytes(&depot), depot.bytes() - 6 * mib());
        let done = reporting.pass(u64::MAX).unwrap();
        assert_eq!((done.pageblocks, done.end), (whole - 3, ReportEnd::NothingLeft));
        let left = depot.bytes() - whole as usize * 2 * mib();
        assert_eq!(present_bytes(&depot), left);
        assert!(file_bytes(&depot).is_none_or(|bytes| bytes == left));
        let done = reporting.pass(u64::MAX).unwrap();
        assert_eq!((done.pageblocks, done.calls), (0, 0));
        held.iter().for_each(|page| check(page, 7));

        // Used again: zeroed, and there.
        let mut page = depot.page(Order::MAX).unwrap();
        assert!(page.iter().all(|&byte| byte == 0));
        mark(&mut page, 8);
        check(&page, 8);
        assert!(!reporting.is_reported(page.pfn()));
        assert_eq!(reporting.counts().needed, 2);
        drop(page);
        drop(held);
        depot.drain(Scope::ALL, Mode::Full);
        assert!(reporting.pass(u64::MAX).unwrap().pageblocks > 2);
        assert_eq!(present_bytes(&depot), 0);
        all_back(&depot);
    }
}

/// A trim finds nothing where pageblocks were reported.
#[test]
fn a_trim_afterwards_gives_back_the_rest() {
    for depot in depots() {
        let held = depot.page(Order::BASE).unwrap();
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(Reporting::of(&depot).pass(u64::MAX).unwrap().pageblocks, 31);
        let trimmed = depot.trim().unwrap();
        let rest = 511 * page_bytes() as u64;
        assert_eq!((trimmed.bytes, trimmed.whole_pageblocks), (rest, 0));
        drop(held);
        all_back(&depot);
    }
}

#[test]
fn pinned_pages_keep_their_memory() {
    for depot in depots() {
        let page = depot.page(Order::BASE).unwrap();
        let pin = depot.pin_range(page.pfn(), 1).unwrap();
        drop(page);
        depot.drain(Scope::ALL, Mode::Full);
        let done = Reporting::of(&depot).pass(u64::MAX).unwrap();
        assert_eq!(done.pageblocks, 32);
        assert!(present_bytes(&depot) >= 2 * mib(), "the run of the pinned page is kept");
        drop(pin);
        all_back(&depot);
    }
    let pinned = Depot::builder(4 * mib()).pinned(true).build().unwrap();
    assert_eq!(Reporting::of(&pinned).pass(1), Err(TrimError::Pinned));
}

#[test]
fn a_child_gives_nothing_back() {
    for depot in depots() {
        in_child(|| assert_eq!(Reporting::of(&depot).pass(1), Err(TrimError::Forked)));
        assert_eq!(Reporting::of(&depot).pass(1).unwrap().pageblocks, 1);
    }
}

/// Checks that pageblocks which compaction made whole are given back, and that the pages it moved
/// keep their contents.
#[test]
fn what_was_compacted_is_given_back() {
    for depot in depots() {
        let movable = |_| depot.movable(Order::BASE, Default::default()).unwrap();
        let mut all: Vec<Movable> = (0..4096).map(movable).collect();
        for (n, page) in all.iter_mut().enumerate() {
            page.write()[..8].copy_from_slice(&n.to_ne_bytes());
        }
        // One in 16 stays, so that each pageblock has some.
        let kept: Vec<(usize, Movable)> =
            all.into_iter().enumerate().filter(|(n, _)| n % 16 == 0).collect();
        depot.drain(Scope::ALL, Mode::Full);
        let before = depot.pageblock_stats(ZoneId::new(0)).unwrap().whole;
        let mut handover = depot.drain_handover(Scope::ALL, Some(0));
        assert!(handover.wait(10_000));
        let done = depot.compact(pagedepot_linux::reclaim::Compaction::all()).unwrap();
        assert!(done.emptied_pageblocks > 0 && done.whole_pageblocks > before, "{done:?}");
        let given = Reporting::of(&depot).pass(u64::MAX).unwrap().pageblocks;
        assert!(given >= done.whole_pageblocks, "{given} of {done:?}");
        depot.trim().unwrap();
        let present = present_bytes(&depot);
        assert_eq!(present, kept.len() * page_bytes(), "only what is held is present");
        assert!(file_bytes(&depot).is_none_or(|bytes| bytes == present));
        for (n, page) in &kept {
            assert_eq!(page.read()[..8], n.to_ne_bytes());
        }
        drop(kept);
        all_back(&depot);
    }
}
