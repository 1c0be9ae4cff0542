//! Merging, splitting, claiming and stealing on memory small enough to follow by hand.

use pagedepot::CpuId;

use super::*;
use crate::ZoneSetup;
use crate::seen::FrameSet;

const HERE: Here = Here::task(CpuId::new(0));
const ZONE: ZoneId = ZoneId::new(0);

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

fn take(buddy: &Buddy, order: Order, mobility: Mobility) -> Option<Pfn> {
    let mut got = None;
    buddy.take(HERE, ZONE, order, mobility, 1, |pfn| {
        got = Some(pfn);
        true
    });
    got
}

fn check(buddy: &Buddy) -> u64 {
    let mut seen = FrameSet::new(&buddy.zones);
    buddy.check(&mut |zone, pfn, order| seen.mark(&buddy.zones, zone, pfn, order)).unwrap();
    buddy.free_pages(ZONE)
}

#[test]
fn halves_are_returned_and_merge_again() {
    let buddy = Buddy::new(&Setup::single(1, 1024)).unwrap();
    let pfn = take(&buddy, Order::BASE, Mobility::Movable).unwrap();
    assert_eq!(pfn, Pfn::new(0));
    // One block of each order remains: 1 + 2 + ... + 512.
    assert_eq!(check(&buddy), 1023);
    assert_eq!(take(&buddy, order(9), Mobility::Movable), Some(Pfn::new(512)));
    assert_eq!(take(&buddy, order(9), Mobility::Movable), None);
    buddy.give(HERE, ZONE, [(pfn, Order::BASE), (Pfn::new(512), order(9))].into_iter());
    assert_eq!(check(&buddy), 1024);
    assert_eq!(take(&buddy, Order::MAX, Mobility::Movable), Some(Pfn::new(0)));
}

#[test]
fn a_refill_comes_ascending() {
    let buddy = Buddy::new(&Setup::single(1, 1024)).unwrap();
    let mut got = Vec::new();
    let taken = buddy.take(HERE, ZONE, Order::BASE, Mobility::Movable, 63, |pfn| {
        got.push(pfn.get());
        true
    });
    assert_eq!(taken, 63);
    assert!(got.iter().copied().eq(0..63));
}

#[test]
fn a_request_claims_the_largest_block_of_another_mobility() {
    let buddy = Buddy::new(&Setup::single(1, 1024)).unwrap();
    let mobility = |pfn| buddy.zones.lookup(pfn).unwrap().1;
    let first = take(&buddy, Order::BASE, Mobility::Unmovable).unwrap();
    // All 1024 frames were one block: both pageblocks are taken over.
    assert_eq!(
        (mobility(first), mobility(Pfn::new(512))),
        (Mobility::Unmovable, Mobility::Unmovable)
    );
    // The largest left is the second pageblock.
    let second = take(&buddy, Order::BASE, Mobility::Movable).unwrap();
    assert_eq!((second, mobility(second)), (Pfn::new(512), Mobility::Movable));
    // A reclaimable request looks at unmovable lists first: it claims the first pageblock, 511
    // of whose frames are free.
    let third = take(&buddy, Order::BASE, Mobility::Reclaimable).unwrap();
    assert_eq!((third, mobility(third)), (Pfn::new(1), Mobility::Reclaimable));
    assert_eq!(check(&buddy), 1021);
}

#[test]
fn a_pageblock_less_than_half_free_is_not_claimed() {
    let buddy = Buddy::new(&Setup::single(1, 512)).unwrap();
    let held: Vec<_> =
        (0..257).map(|_| take(&buddy, Order::BASE, Mobility::Movable).unwrap()).collect();
    let stolen = take(&buddy, Order::BASE, Mobility::Unmovable).unwrap();
    assert_eq!(buddy.zones.lookup(stolen).unwrap().1, Mobility::Movable);
    buddy.give(HERE, ZONE, held[..2].iter().map(|&pfn| (pfn, Order::BASE)));
    // 255 - 1 + 2 = 256 free: half.
    let claimed = take(&buddy, Order::BASE, Mobility::Unmovable).unwrap();
    assert_eq!(buddy.zones.lookup(claimed).unwrap().1, Mobility::Unmovable);
    check(&buddy);
}

#[test]
fn zones_do_not_merge_and_ragged_ranges_come_back_whole() {
    let range = |start, frames| pagedepot::FrameRange::new(Pfn::new(start), frames);
    let zones = vec![
        ZoneSetup::new("DMA", vec![range(513, 511)]),
        ZoneSetup::new("empty", vec![]),
        ZoneSetup::new("Normal", vec![range(1024, 512), range(2048, 100), range(2200, 7)]),
    ];
    let buddy = Buddy::new(&Setup::new(1, zones)).unwrap();
    check(&buddy);
    for (zone, pages) in [(0, 511), (1, 0), (2, 619)] {
        let zone = ZoneId::new(zone);
        assert_eq!(buddy.free_pages(zone), pages);
        let mut held = Vec::new();
        buddy.take(HERE, zone, Order::BASE, Mobility::Movable, u32::MAX, |pfn| {
            held.push((pfn, Order::BASE));
            true
        });
        assert_eq!(held.len() as u64, pages);
        assert!(held.iter().all(|&(pfn, _)| buddy.zones.lookup(pfn).unwrap().0 == zone));
        buddy.give(HERE, zone, held.into_iter().rev());
        check(&buddy);
    }
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_block_freed_twice_is_noticed() {
    let buddy = Buddy::new(&Setup::single(1, 1024)).unwrap();
    let pfn = take(&buddy, Order::MAX, Mobility::Movable).unwrap();
    buddy.give(HERE, ZONE, [(pfn, Order::MAX), (pfn, Order::MAX)].into_iter());
}
