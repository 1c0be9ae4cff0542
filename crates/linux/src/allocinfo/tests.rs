//! Each way to allocate has a site, and each way to free takes it away.

use std::panic::Location;

use pagedepot::{Flags, Order, Pfn};

use super::*;
use crate::reclaim::Compaction;
use crate::test_units::{mib, page_bytes};
use crate::{Depot, MemoryKind, Pages, Vmalloc};

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// Bytes and calls of the site at a line of this file.
fn at(info: &AllocInfo, line: u32) -> (u64, u64) {
    let sites = info.sites.iter().filter(|info| info.site.file == file!());
    sites
        .filter(|info| info.site.line == line)
        .fold((0, 0), |sum, info| (sum.0 + info.bytes, sum.1 + info.calls))
}

#[track_caller]
fn line() -> u32 {
    Location::caller().line()
}

#[test]
fn every_kind_of_page_has_its_site() {
    let depot = Depot::new(64 * mib()).unwrap();
    let raw = depot.raw();
    let mut sites: Vec<(u32, u64, u64)> = Vec::new();
    let mut kinds: Vec<Box<dyn FnOnce() + '_>> = Vec::new();
    macro_rules! allocates {
        ($bytes:expr, $calls:expr, $made:expr) => {
            let made = $made;
            sites.push((line!(), $bytes, $calls));
            kinds.push(Box::new(move || drop(made)));
        };
    }
    let page = page_bytes() as u64;
    allocates!(page, 1, depot.page(Order::BASE).unwrap());
    allocates!(8 * page, 1, depot.page_with(order(3), Flags::default().zeroed()).unwrap());
    allocates!(1000 * page, 1, depot.pages(1000, Flags::default()).unwrap());
    allocates!(100 * page, 100, depot.alloc_pages(Order::BASE, 100).unwrap());
    allocates!(2 * page, 1, depot.movable(order(1), Flags::default()).unwrap());
    let mut all = Vec::new();
    depot.alloc_pages_into(order(1), 70, &mut all).unwrap();
    sites.push((line() - 1, 140 * page, 70));
    let handle = depot.clone();
    kinds.push(Box::new(move || handle.free_pages(all)));
    let pfn = raw.alloc(order(2), Flags::default()).unwrap();
    sites.push((line() - 1, 4 * page, 1));
    // SAFETY: allocated above with this order, and not used.
    kinds.push(Box::new(move || unsafe { raw.free(pfn, order(2)) }.unwrap()));
    let start = raw.alloc_contiguous(7, 1, Flags::default()).unwrap();
    sites.push((line() - 1, 7 * page, 1));
    // SAFETY: as above.
    kinds.push(Box::new(move || unsafe { raw.free_contiguous(start, 7) }.unwrap()));
    let far = Pfn::new(16000);
    raw.alloc_at(far, 3, Flags::default()).unwrap();
    sites.push((line() - 1, 3 * page, 1));
    // SAFETY: as above.
    kinds.push(Box::new(move || unsafe { raw.free_contiguous(far, 3) }.unwrap()));
    let mut many = [Pfn::new(0); 90];
    let got = raw.alloc_many(Order::BASE, Flags::default(), &mut many).unwrap();
    sites.push((line() - 1, got as u64 * page, got as u64));
    // SAFETY: as above.
    kinds.push(Box::new(move || unsafe { raw.free_many(Order::BASE, &many[..got]) }.unwrap()));

    for (nth, free) in kinds.into_iter().enumerate() {
        let info = AllocInfo::of(&depot);
        for &(line, bytes, calls) in &sites[nth..] {
            assert_eq!(at(&info, line), (bytes, calls), "line {line}\n{info}");
        }
        assert_eq!(info.bytes(), sites[nth..].iter().map(|site| site.1).sum::<u64>(), "{info}");
        free();
    }
    assert_eq!(AllocInfo::of(&depot).sites, []);
}

#[test]
fn parts_of_a_block_keep_its_site() {
    let depot = Depot::new(4 * mib()).unwrap();
    let four = depot.page(order(2)).unwrap();
    let made = line() - 1;
    let mut parts = four.split(Order::BASE).map_err(|(_, error)| error).unwrap();
    assert_eq!(at(&AllocInfo::of(&depot), made), (4 * page_bytes() as u64, 4));
    let kept = parts.next();
    drop(parts);
    assert_eq!(at(&AllocInfo::of(&depot), made), (page_bytes() as u64, 1));
    drop(kept);
    assert_eq!(AllocInfo::of(&depot).bytes(), 0);
}

#[test]
fn parts_of_a_run_are_freed_by_themselves() {
    let depot = Depot::builder(4 * mib()).checked(true).build().unwrap();
    let (raw, page) = (depot.raw(), page_bytes() as u64);
    let run = raw.alloc_contiguous(600, 1, Flags::default()).unwrap();
    let made = line() - 1;
    let held = |pages: u64, calls| {
        let info = AllocInfo::of(&depot);
        assert_eq!((at(&info, made), info.bytes()), ((pages * page, calls), pages * page));
    };
    held(600, 1);
    // SAFETY: parts of the run, which nothing uses; `checked` refuses what is wrong.
    unsafe {
        raw.free_contiguous(run.add(500), 100).unwrap();
        held(500, 1);
        raw.free_contiguous(run.add(400), 200).unwrap_err();
        raw.free_contiguous(run.add(200), u32::MAX).unwrap_err();
        held(500, 1);
        raw.free_contiguous(run.add(200), 100).unwrap();
        raw.free(run.add(450), Order::BASE).unwrap();
        raw.free_many(Order::BASE, &[run.add(451)]).unwrap();
        held(398, 1);
        raw.free_contiguous(run, 100).unwrap();
        held(298, 0);
        // What lies in between says what its own call holds.
        raw.alloc_at(run.add(200), 64, Flags::default()).unwrap();
        let other = line() - 1;
        raw.attribute(run.add(200), ForeignSite::at("part.c", 5));
        let info = AllocInfo::of(&depot);
        assert_eq!((at(&info, made), at(&info, other)), ((298 * page, 0), (0, 0)));
        let sites = info.sites.iter().filter(|info| info.site.file == "part.c");
        let sums: Vec<_> = sites.map(|info| (info.site.line, info.bytes, info.calls)).collect();
        assert_eq!(sums, [(5, 64 * page, 1)]);
        raw.free_contiguous(run.add(200), 64).unwrap();
        raw.free_contiguous(run.add(100), 100).unwrap();
        raw.free_contiguous(run.add(300), 150).unwrap();
        held(48, 0);
        drop(Pages::from_raw(&depot, run.add(452), 48));
    }
    // Blocks over what the run's words say.
    let blocks = depot.alloc_pages(order(3), 100).unwrap();
    assert_eq!(AllocInfo::of(&depot).bytes(), 800 * page);
    drop(blocks);
    assert_eq!(AllocInfo::of(&depot).sites, []);
}

#[test]
fn moved_blocks_keep_their_site() {
    let depot = Depot::new(16 * mib()).unwrap();
    let mut all: Vec<_> =
        std::iter::from_fn(|| depot.movable(Order::BASE, Flags::default()).ok()).collect();
    let mut number = 0;
    all.retain(|_| {
        number += 1;
        number % 4 == 0
    });
    let before = AllocInfo::of(&depot);
    let places: Vec<_> = all.iter().map(|page| page.pfn()).collect();
    depot.compact(Compaction::all()).unwrap();
    assert!(all.iter().zip(places).any(|(page, place)| page.pfn() != place), "some moved");
    assert_eq!(AllocInfo::of(&depot), before);
    assert_eq!(before.bytes(), all.len() as u64 * page_bytes() as u64);
    drop(all);
    assert_eq!(AllocInfo::of(&depot).bytes(), 0);
}

#[test]
fn a_refused_free_changes_nothing() {
    let depot = Depot::builder(4 * mib()).checked(true).build().unwrap();
    let pfn = depot.raw().alloc(order(1), Flags::default()).unwrap();
    let made = line() - 1;
    // SAFETY: `checked` refuses wrong frees; nothing uses the memory.
    unsafe {
        depot.raw().free(pfn, Order::BASE).unwrap_err();
        depot.raw().free(Pfn::new(u32::MAX), Order::BASE).unwrap_err();
        depot.raw().free_many(order(2), &[pfn]).unwrap_err();
        depot.raw().free_mixed(&[(pfn, order(3)), (Pfn::new(u32::MAX), order(1))]).unwrap_err();
        assert_eq!(at(&AllocInfo::of(&depot), made), (2 * page_bytes() as u64, 1));
        depot.raw().free_many(order(1), &[pfn]).unwrap();
    }
    assert_eq!(AllocInfo::of(&depot).bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "maps a file twice")]
fn areas_have_their_sites() {
    let depot = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let space = Vmalloc::new(&depot).unwrap();
    let buf = space.buf(5 * page_bytes()).unwrap();
    let made = line() - 1;
    let info = AllocInfo::with_spaces(&depot, [&space]);
    let found: Vec<_> = info
        .sites
        .iter()
        .map(|info| (info.site.line, info.site.kind, info.bytes, info.calls))
        .collect();
    assert_eq!(found, [(made, SiteKind::Areas, 5 * page_bytes() as u64, 1)]);
    assert!(info.to_string().ends_with(" [areas]\n"), "{info}");
    drop(buf);
    assert_eq!(AllocInfo::with_spaces(&depot, [&space]).sites, []);
}

fn info(sites: &[(&str, u32, u64, u64)]) -> AllocInfo {
    let info = |&(file, line, bytes, calls): &(&str, u32, u64, u64)| SiteInfo {
        site: Site { file: file.to_owned(), line, column: 9, kind: SiteKind::Pages },
        bytes,
        calls,
    };
    AllocInfo { sites: sites.iter().map(info).collect() }
}

#[test]
fn listings_look_like_this() {
    let before = info(&[("src/cache.rs", 31, 8192, 2), ("src/a;b.rs", 7, 4096, 1)]);
    let after = info(&[
        ("src/cache.rs", 31, 4096, 1),
        ("src/new.rs", 5, 1 << 30, 3),
        ("src/a;b.rs", 7, 4096, 1),
    ]);
    let listing = "\
allocinfo - version: 1.0
#     <size>  <calls> <tag info>
        8192        2 src/cache.rs:31:9 [pages]
        4096        1 src/a;b.rs:7:9 [pages]
";
    assert_eq!(before.to_string(), listing);
    let growth: Vec<String> = after.since(&before).iter().map(ToString::to_string).collect();
    let grown = [
        " +1073741824       +3 src/new.rs:5:9 [pages]",
        "       -4096       -1 src/cache.rs:31:9 [pages]",
    ];
    assert_eq!(growth, grown);
    let stacks = "\
src;cache.rs;cache.rs:31:9 [pages] 8192
src;a_b.rs;a_b.rs:7:9 [pages] 4096
";
    assert_eq!(before.folded().to_string(), stacks);
}
