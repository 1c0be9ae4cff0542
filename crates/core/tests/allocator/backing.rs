//! An allocator over a store of the embedder's: what it keeps, what it refuses, and what it finds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::common::backing::Sets;
use crate::common::{Anywhere, Single, metadata, open_zone, order, range};
use pagedepot::cpus::PinnedCpus;
use pagedepot::{
    AllocError, Backing, BackingRanges, BackingRequest, BackingWords, Block, Config, ConfigError,
    DoubleFree, Fault, Flags, FrameRange, FreeError, Misuse, Mobility, Mode, Order, Pfn,
    RangeRequest, Scope, ZoneConfig, ZoneId,
};

const RANGES: [FrameRange; 1] = [range(512, 4096)];
const ZONE: ZoneId = ZoneId::new(0);

fn with_depot(
    has_ranges: bool,
    config: impl FnOnce(&mut Config<'_>),
    test: impl FnOnce(Single<'_>, &Sets),
) {
    let zones = [open_zone("Normal", &RANGES)];
    let mut plain = Config::new(2, &zones);
    config(&mut plain);
    let sets = Sets::new(&zones, has_ranges);
    let builder = Single::builder(&plain).backing(Some(&sets));
    let mut memory = vec![std::mem::MaybeUninit::uninit(); builder.metadata_bytes().unwrap()];
    test(builder.build(&mut memory, PinnedCpus(Anywhere::new())).unwrap(), &sets);
}

#[test]
fn no_bitmap_is_kept() {
    let zones = [open_zone("Normal", &RANGES)];
    let config = Config::new(2, &zones);
    let sets = Sets::new(&zones, false);
    let backed = Single::builder(&config).backing(Some(&sets));
    let saved = metadata(&config).len() - backed.metadata_bytes().unwrap();
    // A bit per frame of a section, and its hints.
    assert!((32768 + 128..34_100).contains(&saved), "{saved}");
    with_depot(false, |_| {}, |depot, _| assert_eq!(depot.metadata_use().sections, 0));
    // The place of the options' bytes follows from the sections.
    let checked = Config { checked: true, ..config };
    let backed = Single::builder(&checked).backing(Some(&sets));
    assert_eq!(backed.metadata_bytes(), Single::metadata_bytes(&checked));
}

#[test]
fn magazines_move_between_fronts_and_the_backing() {
    with_depot(
        false,
        |_| {},
        |mut depot, sets| {
            let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
            assert_eq!((sets.free_pages(ZONE), depot.free_pages(ZONE)), (4096 - 64, 4096 - 64));
            assert_eq!(depot.cpu_stats(pagedepot::CpuId::new(0), ZONE).unwrap().cached_pages(), 63);
            depot.free(pfn, Order::BASE).unwrap();
            assert_eq!(depot.drain(Scope::ALL, Mode::Full).taken_pages, 64);
            assert_eq!(sets.free_pages(ZONE), 4096);
            assert_eq!(depot.validate().unwrap().free_pages, 4096);
        },
    );
}

#[test]
fn batches_of_a_cpu_without_caches_come_back_in_chunks() {
    with_depot(
        false,
        |config| config.caches = false,
        |mut depot, sets| {
            let mut list = [Pfn::new(0); 100];
            assert_eq!(depot.alloc_many(Order::BASE, Flags::default(), &mut list), Ok(100));
            let before = sets.puts();
            depot.free_many_of(Order::BASE, &list).unwrap();
            assert!(sets.puts() - before <= 2, "{}", sets.puts() - before);
            assert_eq!(depot.validate().unwrap().free_pages, 4096);
        },
    );
}

#[test]
fn bits_of_a_request_reach_the_backing() {
    with_depot(
        true,
        |_| {},
        |mut depot, sets| {
            let flags = Flags::default().backing_bits(0x141);
            let first = depot.alloc(Order::BASE, flags).unwrap();
            assert_eq!(sets.last_bits(), 0x141);
            // From the front: the backing hears of nothing.
            let second = depot.alloc(Order::BASE, flags.backing_bits(2)).unwrap();
            assert_eq!(sets.last_bits(), 0x141);
            // Past the front, by list, and by number.
            let block = depot.alloc(order(10), flags.backing_bits(3)).unwrap();
            assert_eq!(sets.last_bits(), 3);
            let mut list = [Pfn::new(0); 200];
            assert_eq!(depot.alloc_many(Order::BASE, flags.backing_bits(4), &mut list), Ok(200));
            assert_eq!(sets.last_bits(), 4);
            let run = depot.alloc_contiguous(48, 16, flags.backing_bits(5)).unwrap();
            assert_eq!(sets.last_bits(), 5);
            depot.free_contiguous(run, 48).unwrap();
            let run = depot.alloc_contiguous(2000, 1, flags.backing_bits(6)).unwrap();
            assert_eq!(sets.last_bits(), 6);
            depot.free_contiguous(run, 2000).unwrap();
            depot.free(block, order(10)).unwrap();
            let ours = [&list[..], &[first, second]].concat();
            depot
                .free_many(&ours.iter().map(|&pfn| (pfn, Order::BASE)).collect::<Vec<_>>())
                .unwrap();
            depot.drain(Scope::ALL, Mode::Full);
            depot.alloc(Order::BASE, Flags::default()).unwrap();
            assert_eq!(sets.last_bits(), 0);
            assert_eq!(depot.validate().unwrap().held_pages(), 1);
        },
    );
}

#[test]
fn blocks_are_cached_for_the_mobility_that_the_backing_says() {
    with_depot(
        false,
        |_| {},
        |depot, sets| {
            let movable = depot.alloc(Order::BASE, Flags::new(Mobility::Movable)).unwrap();
            // The lowest pageblock serves movable pages now, for every request: its freed frames go
            // to movable fronts.
            let unmovable = depot.alloc(Order::BASE, Flags::new(Mobility::Unmovable)).unwrap();
            assert_eq!((movable.get() / 512, unmovable.get() / 512), (1, 1));
            depot.free(unmovable, Order::BASE).unwrap();
            assert_eq!(depot.alloc(Order::BASE, Flags::new(Mobility::Movable)), Ok(unmovable));
            assert_eq!(sets.free_pages(ZONE), 4096 - 128);
        },
    );
}

#[test]
fn what_others_hold_is_not_cached() {
    with_depot(
        false,
        |_| {},
        |mut depot, sets| {
            let mut theirs = [Block::new(Pfn::new(0), order(6), Mobility::Movable); 60];
            let request = BackingRequest::new(ZONE, order(6), Mobility::Movable);
            assert_eq!(sets.take(request, &mut theirs), 60);
            assert_eq!(depot.validate().unwrap().held_pages(), 60 * 64);
            let mut ours = Vec::new();
            while let Ok(pfn) = depot.alloc(Order::BASE, Flags::default()) {
                ours.push((pfn, Order::BASE));
            }
            assert_eq!((ours.len(), sets.free_pages(ZONE)), (256, 0));
            depot.free_many(&ours).unwrap();
            assert_eq!(sets.put(ZONE, &theirs), DoubleFree::NONE);
            depot.drain(Scope::ALL, Mode::Full);
            assert_eq!(depot.validate().unwrap().free_pages, 4096);
        },
    );
}

#[test]
fn ranges_are_refused_where_the_backing_has_none() {
    with_depot(
        false,
        |_| {},
        |mut depot, sets| {
            let refused = Err(AllocError::Unsupported);
            assert_eq!(depot.alloc_at(Pfn::new(600), 1, Flags::default()), refused);
            assert_eq!(depot.alloc_contiguous(1025, 1, Flags::default()).map(drop), refused);
            assert_eq!(depot.alloc_contiguous(1, 2048, Flags::default()).map(drop), refused);
            // A block serves the request, and its surplus goes back.
            let start = depot.alloc_contiguous(700, 4, Flags::default()).unwrap();
            assert_eq!(sets.free_pages(ZONE), 4096 - 700);
            depot.free_contiguous(start, 700).unwrap();
            assert_eq!(depot.validate().unwrap().free_pages, 4096);
        },
    );
}

#[test]
fn ranges_are_had_where_the_backing_has_them() {
    with_depot(
        true,
        |config| config.checked = true,
        |mut depot, sets| {
            depot.alloc_at(Pfn::new(600), 3, Flags::default()).unwrap();
            assert_eq!(
                depot.alloc_at(Pfn::new(602), 3, Flags::default()),
                Err(AllocError::NotAvailable)
            );
            let start = depot.alloc_contiguous(1500, 512, Flags::default()).unwrap();
            assert_eq!((start, sets.free_pages(ZONE)), (Pfn::new(1024), 4096 - 1503));
            depot.free_contiguous(start, 1500).unwrap();
            assert_eq!(depot.free_contiguous(start, 1500), Err(FreeError::NotAllocated));
            depot.free_contiguous(Pfn::new(600), 3).unwrap();
            assert_eq!(depot.validate().unwrap().free_pages, 4096);
        },
    );
}

#[test]
fn frames_that_come_back_twice_are_reported() {
    fn ignore(_: Misuse) {}
    with_depot(
        false,
        |config| config.on_misuse = Some(ignore),
        |mut depot, _| {
            // A block of which a CPU may cache none reaches the backing at once.
            let pfn = depot.alloc(order(7), Flags::default()).unwrap();
            depot.free(pfn, order(7)).unwrap();
            assert_eq!(depot.free(pfn, order(7)), Err(FreeError::NotAllocated));
            assert_eq!(depot.validate().unwrap().free_pages, 4096);
            // The block is in a cache twice, and in a cache while it is free.
            let pfn = depot.alloc(Order::BASE, Flags::default()).unwrap();
            depot.free(pfn, Order::BASE).unwrap();
            depot.free(pfn, Order::BASE).unwrap();
            let fault = depot.validate().unwrap_err();
            assert!(matches!(fault, Fault::Doubled { pfn: its, .. } if its == pfn), "{fault}");
            depot.drain(Scope::ALL, Mode::Full);
            depot.free(pfn, Order::BASE).unwrap();
            let fault = depot.validate().unwrap_err();
            assert!(matches!(fault, Fault::Doubled { pfn: its, .. } if its == pfn), "{fault}");
        },
    );
}

/// A backing that hands out the frames that a test names, against its contract.
struct Broken {
    frame: AtomicU32,
    count: AtomicUsize,
    /// The bits of a word that blocks begin at.
    starts: AtomicU64,
    /// Times that it gives that word; 0: it gives lists.
    words: AtomicUsize,
}

// SAFETY: none; the test's allocator has no linear map, and nothing uses memory of its frames.
unsafe impl Backing for Broken {
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
        let pfn = Pfn::new(self.frame.load(Ordering::Relaxed));
        out.fill(Block::new(pfn, request.order, request.mobility));
        self.count.load(Ordering::Relaxed)
    }

    fn put(&self, _: ZoneId, _: &[Block]) -> DoubleFree {
        DoubleFree::NONE
    }

    fn free_pages(&self, _: ZoneId) -> u64 {
        4096
    }

    fn is_free(&self, _: Pfn) -> bool {
        false
    }

    fn words(&self) -> Option<&dyn BackingWords> {
        (self.words.load(Ordering::Relaxed) > 0).then_some(self)
    }

    fn ranges(&self) -> Option<&dyn BackingRanges> {
        Some(self)
    }
}

// SAFETY: as above.
unsafe impl BackingWords for Broken {
    fn take_words(&self, _: BackingRequest, _: u32, give: &mut dyn FnMut(Pfn, u64)) {
        let first = Pfn::new(self.frame.load(Ordering::Relaxed));
        for _ in 0..self.words.load(Ordering::Relaxed) {
            give(first, self.starts.load(Ordering::Relaxed));
        }
    }

    fn put_words(&self, _: ZoneId, _: &[(Pfn, u64)]) -> DoubleFree {
        DoubleFree { first: None, frames: 1 }
    }
}

// SAFETY: as above.
unsafe impl BackingRanges for Broken {
    fn take_contiguous(&self, _: RangeRequest) -> Option<Pfn> {
        Some(Pfn::new(self.frame.load(Ordering::Relaxed)))
    }

    fn claim(&self, _: ZoneId, _: Pfn, _: u32) -> bool {
        false
    }
}

/// Frames that a backing should not have handed out, by number.
static REFUSED: AtomicU32 = AtomicU32::new(0);

#[test]
fn what_a_backing_may_not_hand_out_is_reported_and_not_handed_on() {
    fn note(misuse: Misuse) {
        match misuse {
            Misuse::Backing { first, .. } => REFUSED.store(first.get(), Ordering::Relaxed),
            other => panic!("another misuse: {other:?}"),
        }
    }
    let others = [range(8192, 512)];
    let zones =
        [open_zone("Normal", &RANGES), ZoneConfig { level: 3, ..open_zone("Other", &others) }];
    let config = Config { on_misuse: Some(note), ..Config::new(1, &zones) };
    let broken = Broken {
        frame: AtomicU32::new(0),
        count: AtomicUsize::new(1),
        starts: AtomicU64::new(0),
        words: AtomicUsize::new(0),
    };
    let builder = Single::builder(&config).backing(Some(&broken));
    let mut memory = vec![std::mem::MaybeUninit::uninit(); builder.metadata_bytes().unwrap()];
    let depot = builder.build(&mut memory, PinnedCpus(Anywhere::new())).unwrap();
    let flags = Flags::default().at_most_level(2).atomic();
    // Frames without memory, of another zone, partly of another zone, misaligned.
    for (frame, sizes) in
        [(1 << 30, 0..11), (u32::MAX, 0..1), (8192, 0..10), (4096 + 511, 1..11), (4608 - 1, 1..11)]
    {
        broken.frame.store(frame, Ordering::Relaxed);
        for size in sizes.map(order) {
            REFUSED.store(0, Ordering::Relaxed);
            assert_eq!(depot.alloc(size, flags), Err(AllocError::Exhausted), "{frame} {size:?}");
            assert_eq!(REFUSED.load(Ordering::Relaxed), frame);
        }
        REFUSED.store(0, Ordering::Relaxed);
        assert_eq!(depot.alloc_contiguous(1000, 1024, flags), Err(AllocError::Exhausted));
        assert_eq!(REFUSED.load(Ordering::Relaxed), frame);
    }
    // Words without memory, of another zone, misaligned, without blocks; blocks misaligned, and too
    // many.
    for (frame, starts, size) in [
        (1 << 30, 1, 0),
        (u32::MAX, 1, 0),
        (8192, 1, 3),
        (4096 + 32, 1, 5),
        (4096, 0, 0),
        (4096, 2, 1),
        (4096, 1 << 32, 6),
        (4096, !0, 0),
    ] {
        broken.frame.store(frame, Ordering::Relaxed);
        broken.starts.store(starts, Ordering::Relaxed);
        broken.words.store(if starts == !0 { 2 } else { 1 }, Ordering::Relaxed);
        REFUSED.store(0, Ordering::Relaxed);
        let took = depot.alloc(order(size), flags);
        assert_eq!(REFUSED.load(Ordering::Relaxed), frame, "{frame} {starts:#x}");
        let is_first_taken = starts == !0 && took.is_ok();
        assert!(is_first_taken || took == Err(AllocError::Exhausted), "{frame} {starts:#x}");
    }
    broken.words.store(0, Ordering::Relaxed);
    // More blocks than were requested.
    broken.frame.store(1024, Ordering::Relaxed);
    broken.count.store(1000, Ordering::Relaxed);
    assert_eq!(depot.alloc(order(9), flags), Ok(Pfn::new(1024)));
}

/// A backing that hands out a block of no memory behind those it has, while it is told to.
struct Spoiled<'s> {
    sets: &'s Sets,
    is_spoiled: AtomicBool,
}

/// A block of no memory.
fn nowhere(order: Order) -> Block {
    Block::new(Pfn::new(0), order, Mobility::Movable)
}

// SAFETY: none; the test's allocator has no linear map, and nothing uses memory of its frames.
unsafe impl Backing for Spoiled<'_> {
    fn take(&self, request: BackingRequest, out: &mut [Block]) -> usize {
        let is_spoiled = self.is_spoiled.load(Ordering::Relaxed) && out.len() > 1;
        let most = out.len() - usize::from(is_spoiled);
        let got = self.sets.take(request, &mut out[..most]);
        // In the middle of the others.
        if is_spoiled && got == most {
            out[most] = out[most / 2];
            out[most / 2] = nowhere(request.order);
        }
        got + usize::from(is_spoiled && got == most)
    }

    fn put(&self, zone: ZoneId, blocks: &[Block]) -> DoubleFree {
        self.sets.put(zone, blocks)
    }

    fn free_pages(&self, zone: ZoneId) -> u64 {
        self.sets.free_pages(zone)
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        self.sets.is_free(pfn)
    }
}

/// A report of such a block may panic: what came with it, and what the call had, stays.
#[test]
fn what_comes_with_a_block_that_is_refused_is_not_lost() {
    type Request = fn(&Single<'_>);
    let requests: [Request; 4] = [
        |depot| _ = depot.alloc(Order::BASE, Flags::default()),
        |depot| _ = depot.alloc(order(4), Flags::default()),
        |depot| _ = depot.alloc_many(Order::BASE, Flags::default(), &mut [Pfn::new(0); 128]),
        |depot| _ = depot.alloc_many(order(3), Flags::default(), &mut [Pfn::new(0); 20]),
    ];
    for request in requests {
        let zones = [open_zone("Normal", &RANGES)];
        let config = Config::new(1, &zones);
        let sets = Sets::new(&zones, false);
        let spoiled = Spoiled { sets: &sets, is_spoiled: AtomicBool::new(true) };
        let builder = Single::builder(&config).backing(Some(&spoiled));
        let mut memory = vec![std::mem::MaybeUninit::uninit(); builder.metadata_bytes().unwrap()];
        let mut depot = builder.build(&mut memory, PinnedCpus(Anywhere::new())).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| request(&depot))).unwrap_err();
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains("the backing handed out"), "{message}");
        spoiled.is_spoiled.store(false, Ordering::Relaxed);
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
        depot.drain(Scope::ALL, Mode::Full);
        assert_eq!(depot.validate().unwrap().free_pages, 4096);
    }
}

#[test]
fn memory_is_added_once() {
    with_depot(
        false,
        |config| config.pfn_limit = Some(Pfn::new(1 << 19)),
        |mut depot, sets| {
            let metadata = || Box::leak(Box::new([std::mem::MaybeUninit::uninit(); 255]));
            let added = range((1 << 18) + 1030, 1000);
            assert_eq!(depot.section_bytes(added), 0);
            depot.add_memory(ZONE, added, metadata()).unwrap();
            sets.add(ZONE, added);
            let overlapping = range(1 << 18, 1100);
            let again = depot.add_memory(ZONE, overlapping, metadata()).unwrap_err().why;
            let first = Pfn::new((1 << 18) + 1024);
            assert_eq!(again, ConfigError::HasMemory { first });
            let census = depot.validate().unwrap();
            assert_eq!((census.managed_pages, census.free_pages), (5096, 5096));
            // The pageblocks that were tagged before the overlap was found have no memory any more.
            assert_eq!(depot.free(Pfn::new(1 << 18), order(9)), Err(FreeError::OutOfRange));
        },
    );
}
