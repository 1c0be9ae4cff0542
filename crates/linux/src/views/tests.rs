//! Snapshots of views, on a depot whose pages always come out in the same order: of one thread, on
//! one CPU.

use std::fmt::Display;
use std::path::Path;

use pagedepot::{CpuId, Flags, Mobility, Mode, Order, Scope};

use super::*;
use crate::skip::skip;
use crate::test_units::{mib, page_bytes};
use crate::{Depot, MemoryKind, Page, Vmalloc};

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// A depot of 4096 pages, some of which are held. On CPU 0 alone, by a lock: so what is cached does
/// not depend on the machine.
fn depot() -> (Depot, Vec<Page>) {
    // Elsewhere nothing is cached, which `is_on_cpu_0` is for.
    let _ = pagedepot_rseq::affinity::pin(CpuId::new(0));
    let builder = Depot::builder(16 * mib()).memory(MemoryKind::Memfd).cpus(1).per_cpu_locks(true);
    let depot = builder.build().unwrap();
    let movable = (0..300).map(|_| depot.page(Order::BASE).unwrap());
    let mut held: Vec<Page> = movable.collect();
    let unmovable = Flags::new(Mobility::Unmovable);
    held.extend((0..20).map(|_| depot.page_with(order(3), unmovable).unwrap()));
    held.extend((0..3).map(|_| depot.page(order(9)).unwrap()));
    let mut number = 0;
    held.retain(|_| {
        number += 1;
        number % 3 > 0
    });
    (depot, held)
}

/// Whether figures of caches are those of the snapshots.
fn is_on_cpu_0() -> bool {
    let is_there =
        pagedepot_rseq::affinity::allowed().is_ok_and(|cpus| cpus.contains(CpuId::new(0)));
    if !is_there {
        skip("this process may not run on CPU 0, so nothing was compared");
    }
    is_there
}

/// Compares with `snapshots/NAME.txt`. `PAGEDEPOT_SNAPSHOTS=write` writes that file anew.
macro_rules! assert_looks_like {
    ($name:literal, $shown:expr) => {
        compare($name, include_str!(concat!("snapshots/", $name, ".txt")), $shown)
    };
}

fn compare(name: &str, expected: &str, shown: impl Display) {
    let shown = format!("{}\n", shown.to_string().trim_end());
    if std::env::var_os("PAGEDEPOT_SNAPSHOTS").is_some_and(|what| what == "write") {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/views/snapshots");
        return std::fs::write(folder.join(name).with_extension("txt"), &shown).unwrap();
    }
    // A batch is of fewer pages where they are larger.
    if page_bytes() != 4096 {
        return skip(format_args!("{name} is compared where pages have 4 KiB"));
    }
    assert!(
        shown == expected,
        "{name} was\n{expected}\nand is\n{shown}\nIf that is meant: PAGEDEPOT_SNAPSHOTS=write"
    );
}

/// Ages are the only figures that differ from run to run.
fn cache_info(depot: &Depot) -> CacheInfo {
    let mut info = CacheInfo::of(depot);
    for cache in &mut info.caches {
        cache.idle_ms = 12_345;
    }
    info
}

#[test]
#[cfg_attr(miri, ignore = "pins its thread")]
fn views_look_like_this() {
    let (depot, _held) = depot();
    if !is_on_cpu_0() {
        return;
    }
    assert_looks_like!("zoneinfo", ZoneInfo::of(&depot));
    assert_looks_like!("buddyinfo", BuddyInfo::of(&depot));
    assert_looks_like!("pagetypeinfo", PageTypeInfo::of(&depot));
    assert_looks_like!("cacheinfo", cache_info(&depot));
    assert_looks_like!("fragmentation", FragmentationInfo::of(&depot));
}

/// The kernel's tables are as wide as the kernel's; ours fit.
#[test]
#[cfg_attr(miri, ignore = "pins its thread")]
fn own_views_fit_a_terminal() {
    let (depot, _held) = depot();
    let texts = [
        CacheInfo::of(&depot).to_string(),
        FragmentationInfo::of(&depot).to_string(),
        ZoneInfo::of(&depot).to_string(),
    ];
    for line in texts.iter().flat_map(|text| text.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "pins its thread")]
fn areas_are_listed() {
    let (depot, _held) = depot();
    let space = Vmalloc::new(&depot).unwrap();
    let buf = space.buf(10 * page_bytes()).unwrap();
    drop(space.buf(3 * page_bytes()).unwrap());
    let info = VmallocInfo::of(&space);
    let text = info.to_string();
    let busy: Vec<_> = info.areas.iter().filter(|area| area.is_busy).collect();
    assert_eq!(
        (busy.len(), busy[0].mapped_pages, busy[0].bytes),
        (1, 10, 11 * page_bytes() as u64),
        "{text}"
    );
    assert_eq!(busy[0].start, buf.as_ptr().addr() as u64);
    assert_eq!(busy[0].caller.as_ref().unwrap().0, file!());
    // Addresses and lines change; the rest does not.
    let (start, end) = (busy[0].start, busy[0].start + busy[0].bytes);
    let (file, line, _) = busy[0].caller.as_ref().unwrap();
    let shown = busy[0].line.replace(&format!("{start:#018x}-{end:#018x}"), "START-END");
    let shown = shown.replace(&format!("{file}:{line}"), "FILE:LINE");
    assert_looks_like!("vmallocinfo", shown);
    assert!(text.contains(&busy[0].line), "{text}");
    assert_eq!(text, space.vmallocinfo().to_string());
}

/// The listing names the call that made an area, or moved it, and for an area that a writer grew
/// the line at which the writer was made.
#[test]
fn areas_name_the_line_of_the_call() {
    use std::io::Write as _;

    let depot = Depot::builder(64 * mib()).memory(MemoryKind::Memfd).build().unwrap();
    let space = Vmalloc::new(&depot).unwrap();
    let line_at = |addr: usize| {
        let areas = VmallocInfo::of(&space).areas;
        let area = areas.into_iter().find(|area| area.is_busy && area.start == addr as u64);
        area.and_then(|area| area.caller).map(|(file, line, _)| (file, line))
    };
    let here = |line: u32| Some((file!().to_owned(), line));
    let (first, line) = (space.buf(page_bytes()).unwrap(), line!());
    assert_eq!(line_at(first.addr()), here(line));
    drop(first);
    let (mut warm, line) = (space.buf(page_bytes()).unwrap(), line!());
    assert_eq!(line_at(warm.addr()), here(line));
    let (behind, line) = (space.buf(page_bytes()).unwrap(), line!());
    assert_eq!(line_at(behind.addr()), here(line));
    let before = warm.addr();
    let (grown, line) = (warm.grow(mib()), line!());
    assert!(grown.is_ok() && warm.addr() != before, "it has moved");
    assert_eq!(line_at(warm.addr()), here(line));
    let (reserved, line) = (space.reserve(mib()).unwrap(), line!());
    assert_eq!(line_at(reserved.addr()), here(line));
    let page = depot.page(Order::BASE).unwrap();
    let (mapped, line) = (space.vmap(&[page.pfn()], Default::default()).unwrap(), line!());
    assert_eq!(line_at(mapped.addr().get()), here(line));
    let mut log = space.empty();
    let (mut writer, line) = (log.writer(0), line!());
    for number in 0..10_000 {
        writeln!(writer, "a line of text, {number}").unwrap();
    }
    assert_eq!(line_at(log.addr()), here(line));
    let other = std::panic::Location::caller();
    let options = crate::vmalloc::Options::DEFAULT.caller(other);
    let told = space.buf_with(page_bytes(), options).unwrap();
    assert_eq!(line_at(told.addr()), here(other.line()));
    // SAFETY: nothing uses the mapping.
    unsafe { space.vunmap(mapped) }.unwrap();
}

/// Checks that the views count pages as `validate` does.
#[test]
#[cfg_attr(miri, ignore = "pins its thread")]
fn views_agree_with_the_census() {
    let (depot, held) = depot();
    let census = depot.validate().unwrap();
    let zone = &ZoneInfo::of(&depot).zones[0];
    assert_eq!(zone.free_pages, census.free_pages);
    assert_eq!(zone.cached_pages, census.cached_pages);
    assert_eq!(zone.pagesets.iter().map(|set| set.count).sum::<u64>(), census.cached_pages);
    let pages = |blocks: &[u64]| {
        (0..).zip(blocks).map(|(order, &blocks): (u32, _)| blocks << order).sum::<u64>()
    };
    assert_eq!(pages(&BuddyInfo::of(&depot).zones[0].blocks), census.free_pages);
    let types = PageTypeInfo::of(&depot);
    assert_eq!(
        types.zones[0].blocks.iter().map(|blocks| pages(blocks)).sum::<u64>(),
        census.free_pages
    );
    assert_eq!(types.zones[0].pageblocks.iter().sum::<u64>(), 8);
    let map = &FragmentationInfo::of(&depot).zones[0];
    assert_eq!(map.cells.iter().map(|cell| cell.free_pages).sum::<u64>(), census.free_pages);

    let caches = CacheInfo::of(&depot);
    assert_eq!(caches.cached_pages(), census.cached_pages);
    let quiet: u64 = caches.caches.iter().map(CpuCache::quietly_drainable_pages).sum();
    assert_eq!(depot.drain(Scope::ALL, Mode::Quiet).taken_pages, quiet);
    drop(held);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(CacheInfo::of(&depot).cached_pages(), 0);
    assert_eq!(CacheInfo::of(&depot).stranded_pages(0), 0);
}

/// Whole pageblocks merge with their buddies, and with nothing else.
#[test]
fn whole_memory_is_in_the_largest_blocks() {
    for (pageblocks, expected) in [(1, [1, 0]), (2, [0, 1]), (5, [1, 2])] {
        let depot = Depot::new(pageblocks * 2 * mib()).unwrap();
        let blocks = BuddyInfo::of(&depot).zones[0].blocks.clone();
        assert_eq!(blocks[9..], expected, "{pageblocks}");
        assert!(blocks[..9].iter().all(|&blocks| blocks == 0));
    }
}

#[test]
fn isolated_cpus_are_their_owners_business() {
    let cpu = CpuId::new(0);
    let isolating = Depot::builder(4 * mib()).isolated_cpus([cpu].into_iter().collect());
    let reach = |depot: &Depot| CacheInfo::of(depot).caches[0].fronts_reach;
    assert_eq!(reach(&isolating.clone().build().unwrap()), FrontReach::Lock);
    let without_locks = isolating.locked_cpus(Default::default()).build().unwrap();
    if without_locks.fronts().are_sequences() {
        assert_eq!(reach(&without_locks), FrontReach::Isolated);
    }
    let depot = Depot::builder(4 * mib()).per_cpu_locks(true).isolated_cpus(Default::default());
    let depot = depot.build().unwrap();
    assert_eq!(reach(&depot), FrontReach::Lock);
    depot.raw().frames().cpu_caches().retire(cpu);
    assert!(!CacheInfo::of(&depot).caches[0].is_enabled);
    assert!(CacheInfo::of(&depot).to_string().contains("caches are off"));
}

#[cfg(feature = "publish")] // which has a format, too
#[test]
#[cfg_attr(miri, ignore = "pins its thread")]
fn views_are_written_and_read() {
    fn again<T: serde::Serialize + serde::de::DeserializeOwned>(view: &T) -> T {
        serde_json::from_str(&serde_json::to_string(view).unwrap()).unwrap()
    }
    let (depot, _held) = depot();
    let space = Vmalloc::new(&depot).unwrap();
    let _buf = space.buf(page_bytes()).unwrap();
    let zones = ZoneInfo::of(&depot);
    assert_eq!(again(&zones), zones);
    let buddies = BuddyInfo::of(&depot);
    assert_eq!(again(&buddies), buddies);
    let types = PageTypeInfo::of(&depot);
    assert_eq!(again(&types), types);
    let areas = VmallocInfo::of(&space);
    assert_eq!(again(&areas), areas);
    let caches = CacheInfo::of(&depot);
    assert_eq!(again(&caches), caches);
    let maps = FragmentationInfo::of(&depot);
    assert_eq!(again(&maps).to_string(), maps.to_string());
}

#[cfg(feature = "prometheus")]
#[test]
#[cfg_attr(miri, ignore = "pins its thread")]
fn prometheus_reads_this() {
    let (depot, _held) = depot();
    if !is_on_cpu_0() {
        return;
    }
    let text = prometheus::text(&depot);
    let is_age = |line: &&str| line.starts_with("pagedepot_cpu_idle_seconds{");
    let lines: Vec<&str> = text.lines().filter(|line| !is_age(line)).collect();
    assert_looks_like!("prometheus", lines.join("\n"));

    let collector = prometheus::DepotCollector::new(&depot);
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(collector));
    drop(_held);
    drop(depot);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert_eq!(text, "# EOF\n", "a depot that has gone has no figures");
}
