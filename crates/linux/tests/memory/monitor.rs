//! The monitor of memory pressure.
//! 1. Levels take the steps that they name, in that order; callbacks by priority.
//! 2. What rests is given back, and what is used is not.
//! 3. Its thread ends with it, or with the depot, and keeps off isolated CPUs.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::skip::skip;
use crate::common::{self, mib, order, page_bytes, present_bytes, unit, usable_cpus};
use pagedepot_linux::pressure::{Level, Monitor, MonitorError, Policy, Sources, Step};
use pagedepot_linux::reclaim::{Ceiling, CeilingError};
use pagedepot_linux::shared::{SharedDepot, SharedOptions};
use pagedepot_linux::{AllocError, CpuId, Depot, MemoryKind, Mode, Order, Page, Scope, Vmalloc};

/// A cgroup made of plain files; removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("pagedepot-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let group = Group(root);
        group
            .put("memory.max", "1000\n")
            .put("memory.high", "max\n")
            .put("memory.stat", "anon 9\n");
        group.put("memory.events", "high 0\nmax 0\noom 0\n");
        group.put("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        group.used(10);
        group
    }

    fn put(&self, file: &str, text: &str) -> &Self {
        fs::write(self.0.join(file), text).unwrap();
        self
    }

    /// Changes the limit in one step: a monitor that reads meanwhile finds one of the two.
    fn limit(&self, bytes: usize) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(self.0.join("memory.max")).unwrap();
        file.write_all_at(format!("{bytes:020}\n").as_bytes(), 0).unwrap();
    }

    fn used(&self, percent: u32) {
        self.put("memory.current", &format!("{}\n", percent * 10));
    }

    fn sources(&self) -> Sources {
        Sources::none().and_cgroup_v2(&self.0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A policy without the rules for what rests, and without a ceiling.
fn busy() -> Policy {
    Policy { idle_ms: 0, margin_percent: None, ..Policy::default() }
}

#[test]
fn levels_take_their_steps() {
    let group = Group::new("levels");
    let builder = Depot::builder(32 * mib()).memory(MemoryKind::Memfd).populate(true);
    let depot = builder.build().unwrap();
    let held = depot.page(Order::BASE).unwrap();
    let space = Vmalloc::builder(&depot).lazy_bytes(64 * mib()).build().unwrap();
    let called: Arc<Mutex<Vec<(i32, u64)>>> = Arc::default();
    let callback = |priority: i32, frees: u64| {
        let called = called.clone();
        move |wanted: u64| {
            called.lock().unwrap().push((priority, wanted));
            frees
        }
    };
    let mut watcher = Monitor::builder(&depot)
        .policy(busy())
        .sources(group.sources())
        .on_pressure(7, callback(7, 0))
        .on_pressure(-1, callback(-1, 50))
        .on_pressure(3, callback(3, 1 << 40))
        .watcher()
        .unwrap();
    let runs = |counts: pagedepot_linux::pressure::MonitorCounts| {
        Step::ALL.map(|step| counts.step(step).runs)
    };
    assert_eq!(watcher.look_at(0).level, Level::None);
    assert_eq!(runs(watcher.counts()), [0; 7]);

    group.used(86);
    drop(space.buf(mib()).unwrap()); // Lazy.
    let look = watcher.look_at(10);
    assert_eq!(look.level, Level::Low);
    assert!(look.given_back_bytes > 24 * mib() as u64, "{look:?}");
    assert_eq!(runs(watcher.counts()), [1, 0, 0, 0, 1, 0, 0]);
    let low = present_bytes(&depot);
    assert!(low < 8 * mib(), "{low}");

    group.used(93);
    assert_eq!(watcher.look_at(20).level, Level::Medium);
    let counts = watcher.counts();
    assert_eq!(runs(counts), [2, 1, 1, 0, 2, 1, 0]);
    assert!(counts.step(Step::Purge).bytes >= mib() as u64, "{counts:?}");
    assert!(counts.step(Step::HandoverDrain).bytes > 0, "{counts:?}");
    assert!(present_bytes(&depot) < 2 * mib(), "{}", present_bytes(&depot));
    assert!(called.lock().unwrap().is_empty());

    // 97 % of 1000 bytes: 163 bytes above what is relaxed (80.75 %).
    group.used(97);
    assert_eq!(watcher.look_at(30).level, Level::Critical);
    assert_eq!(*called.lock().unwrap(), [(-1, 163), (3, 113)], "and 7 was not needed");
    assert_eq!(watcher.counts().rounds, [1, 1, 1]);
    // The next round comes after a second, and levels end one by one.
    watcher.look_at(500);
    assert_eq!(watcher.counts().rounds, [1, 1, 1]);
    watcher.look_at(1030);
    assert_eq!(watcher.counts().rounds, [1, 1, 2]);
    group.used(10);
    let levels = [2000, 5000, 8000, 11_000].map(|now_ms| watcher.look_at(now_ms).level);
    assert_eq!(levels, [Level::Critical, Level::Medium, Level::Low, Level::None]);
    drop((held, space));
    common::all_back(&depot);
}

/// Rounds that yield nothing become rare.
#[test]
fn rounds_in_vain_become_rare() {
    let group = Group::new("vain");
    let depot = Depot::new(4 * mib()).unwrap();
    let mut watcher =
        Monitor::builder(&depot).policy(busy()).sources(group.sources()).watcher().unwrap();
    group.put("memory.pressure", "some avg10=20.00 avg60=0.00 avg300=0.00 total=0\n");
    for second in 0..120 {
        watcher.look_at(second * 1000);
    }
    let counts = watcher.counts();
    assert_eq!(counts.level, Level::Medium);
    // After 1, 2, 4, ... 32 seconds.
    assert!((6..=10).contains(&counts.rounds[1]), "{counts:?}");
    assert!(counts.looks == 120 && counts.unreadable == 0, "{counts:?}");
}

#[test]
fn a_callback_that_panics_is_dropped() {
    let group = Group::new("panics");
    let depot = Depot::new(4 * mib()).unwrap();
    let builder = Monitor::builder(&depot).policy(busy()).sources(group.sources());
    let mut watcher = builder.on_pressure(0, |_| panic!("on purpose")).watcher().unwrap();
    let held = depot.page(order(9)).unwrap();
    group.put("memory.events", "high 0\nmax 0\noom 1\n");
    assert_eq!(watcher.look_at(0).level, Level::Critical);
    watcher.look_at(100_000);
    let counts = watcher.counts();
    assert_eq!((counts.panics, counts.step(Step::Callbacks).runs), (1, 0));
    drop(held);
}

/// A cgroup that vanishes, and one that says nonsense.
#[test]
fn hostile_sources_do_nothing() {
    let group = Group::new("hostile");
    let depot = Depot::new(4 * mib()).unwrap();
    let mut watcher =
        Monitor::builder(&depot).policy(busy()).sources(group.sources()).watcher().unwrap();
    let texts = ["", "max", "-5", "99999999999999999999999", "\u{0}\u{0}", "some avg10=NaN"];
    for (round, text) in texts.into_iter().enumerate() {
        for file in ["memory.current", "memory.stat", "memory.events", "memory.pressure"] {
            group.put(file, text);
        }
        assert_eq!(watcher.look_at(round as u64).level, Level::None, "{text:?}");
    }
    fs::remove_dir_all(&group.0).unwrap();
    assert_eq!(watcher.look_at(100).level, Level::None);
    assert_eq!(watcher.counts().unreadable, 2 * (texts.len() as u64 + 1));
}

/// Each file of a cgroup of version 2, and what a change of it leads to.
#[test]
fn every_file_of_a_cgroup_v2_counts() {
    let group = Group::new("v2");
    group.put("memory.reclaim", "");
    let depot = Depot::new(4 * mib()).unwrap();
    let policy = Policy { calm_ms: 0, kernel_reclaim_bytes: 12_345, ..busy() };
    let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let mut watcher = builder.watcher().unwrap();
    let mut now_ms = 0;
    let mut level = || {
        now_ms += 100_000;
        watcher.look_at(now_ms).level
    };
    assert_eq!(level(), Level::None);
    // The working set is 900 of 1000 bytes; then 600, because page cache is not counted.
    group.used(90);
    assert_eq!(level(), Level::Low);
    group.put("memory.stat", "anon 600\ninactive_file 300\n");
    assert_eq!(level(), Level::None);
    // The lower limit counts.
    group.put("memory.high", "640\n");
    assert_eq!(level(), Level::Medium);
    group.put("memory.high", "max\n");
    while level() != Level::None {}
    for (events, expected) in [
        ("high 1\nmax 0\noom 0\n", Level::Low),
        ("high 1\nmax 1\noom 0\n", Level::Medium),
        ("high 1\nmax 1\noom 1\n", Level::Critical),
    ] {
        group.put("memory.events", events);
        assert_eq!(level(), expected, "{events}");
        while level() != Level::None {}
    }
    assert_eq!(fs::read_to_string(group.0.join("memory.reclaim")).unwrap(), "12345");
    for (avg10, expected) in [(2, Level::Low), (15, Level::Medium), (60, Level::Critical)] {
        let text = format!("some avg10={avg10}.00 avg60=0.00 avg300=0.00 total=9\n");
        group.put("memory.pressure", &text);
        assert_eq!(level(), expected, "{avg10} percent");
    }
}

/// The thread, and a cgroup that fills while it runs.
#[test]
fn the_thread_follows_a_cgroup_v2() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("thread");
    let depot = Depot::builder(16 * mib()).populate(true).build().unwrap();
    let policy = Policy { look_ms: 10, ..busy() };
    let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let monitor = builder.start().unwrap();
    let until = |is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < end, "{:?}", monitor.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(&|| monitor.counts().looks > 3);
    assert_eq!(monitor.counts().level, Level::None);
    group.used(99);
    // A level is counted before its steps, and a round after them.
    until(&|| monitor.counts().rounds[2] > 0 && present_bytes(&depot) == 0);
    assert_eq!(monitor.counts().level, Level::Critical);
    let counts = monitor.counts();
    assert!(counts.given_back_bytes >= 16 * mib() as u64 && counts.rounds[2] > 0, "{counts:?}");
}

#[test]
fn what_rests_is_given_back() {
    let depot = Depot::new(64 * mib()).unwrap();
    let mut watcher = Monitor::builder(&depot).sources(Sources::none()).watcher().unwrap();
    let touch = |count: usize| -> Vec<Page> {
        let page = || depot.page(Order::BASE).unwrap();
        (0..count)
            .map(|_| page())
            .map(|mut page| {
                page[0] = 1;
                page
            })
            .collect()
    };
    let mut pages = touch(8192);
    let peak = present_bytes(&depot);
    assert!(peak >= 32 * mib());
    // In use: nothing is free.
    for second in 0..5 {
        watcher.look_at(1 + second * 1000);
    }
    // One of ten stays.
    let mut nth = 0;
    pages.retain(|_| {
        nth += 1;
        nth % 10 == 0
    });
    let unused = peak - pages.len() * page_bytes();
    watcher.look_at(10_000);
    let (early, rounds) = (watcher.look_at(12_900).given_back_bytes, watcher.counts().idle_rounds);
    assert_eq!(early, 0, "not for three seconds yet");
    let look = watcher.look_at(13_000);
    let left = present_bytes(&depot) - pages.len() * page_bytes();
    assert!(left * 20 <= unused, "95 % of {unused} bytes: {left} left, {look:?}");
    assert_eq!(watcher.counts().idle_rounds, rounds + 1);
    // Once is enough.
    watcher.look_at(20_000);
    watcher.look_at(30_000);
    assert_eq!(watcher.counts().idle_rounds, rounds + 1);
    pages.iter().for_each(|page| assert_eq!(page[0], 1));
    drop(pages);
    common::all_back(&depot);
}

/// A byte that one step gave back is not given back by the next, and what was never touched is
/// not given back at all.
#[test]
fn bytes_given_back_count_once() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot = Depot::builder(64 * mib()).memory(kind).build().unwrap();
        let mut watcher = Monitor::builder(&depot).sources(Sources::none()).watcher().unwrap();
        let mut blocks: Vec<_> = (0..8).map(|_| depot.page(order(9)).unwrap()).collect();
        blocks.iter_mut().for_each(|block| block.fill(1));
        let present = present_bytes(&depot) as u64;
        assert!(present >= 16 * mib() as u64);
        watcher.look_at(1);
        drop(blocks);
        // At rest a trim gives all of it back; pageblocks are surplus afterwards, and looked at
        // once more.
        let given: u64 =
            (1..8).map(|second| watcher.look_at(second * 3_000).given_back_bytes).sum();
        let busy = (8..16).map(|second| {
            drop(depot.pages(3 + second, Default::default()).unwrap());
            watcher.look_at(u64::from(second) * 3_000).given_back_bytes
        });
        let given = given + busy.sum::<u64>();
        let counts = watcher.counts();
        assert!(counts.step(Step::Trim).runs > 0, "{counts:?}");
        assert_eq!((given, counts.given_back_bytes), (present, present), "{counts:?}");
        assert_eq!(present_bytes(&depot), 0);
    }
}

/// Checks that the bytes which a sinking ceiling gives back count once, however often it sinks, and
/// that partly used pageblocks count by the pages that were present.
#[test]
fn a_sinking_ceiling_gives_back_each_byte_once() {
    let group = Group::new("sinks");
    let limit = |mibs: usize| group.put("memory.max", &format!("{}\n", mibs * mib()));
    let used = |bytes: usize| group.put("memory.current", &format!("{bytes}\n"));
    let policy = Policy { idle_ms: 0, ..Policy::default() };
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot = Depot::builder(64 * mib()).memory(kind).build().unwrap();
        limit(1000);
        used(0);
        let builder = Monitor::builder(&depot).sources(group.sources()).policy(policy);
        let mut watcher = builder.watcher().unwrap();
        let mut given = 0;
        for touched in [2 * mib(), page_bytes()] {
            let mut blocks: Vec<_> = (0..31).map(|_| depot.page(order(9)).unwrap()).collect();
            blocks.iter_mut().for_each(|block| block[..touched].fill(1));
            drop(blocks);
            depot.drain(Scope::ALL, Mode::Full);
            let before = present_bytes(&depot);
            used(before);
            for (mibs, is_low) in [(20, true), (1000, false), (20, true), (1000, false)] {
                limit(mibs);
                let look = watcher.look_at(0);
                assert_eq!(Ceiling::of(&depot).bytes() < 64 * mib(), is_low, "{look:?}");
                given += look.given_back_bytes;
                used(present_bytes(&depot));
            }
            assert!(present_bytes(&depot) < before, "{before}");
            let left = before - present_bytes(&depot);
            assert_eq!(given, left as u64, "{kind:?} {touched}");
            given = 0;
            depot.trim().unwrap();
        }
        let counts = watcher.counts();
        assert!(counts.given_back_bytes > 0, "{counts:?}");
        common::all_back(&depot);
    }
}

/// A trim counts the pages that were present, not the runs that they lie in.
#[test]
fn a_trim_counts_present_pages() {
    for kind in [MemoryKind::Anonymous, MemoryKind::Memfd] {
        let depot = Depot::builder(8 * mib()).memory(kind).build().unwrap();
        let mut block = depot.page(order(10)).unwrap();
        for at in [0, 9, 700] {
            block[at * page_bytes()] = 1;
        }
        drop(block);
        depot.drain(Scope::ALL, Mode::Full);
        let present = present_bytes(&depot);
        assert_eq!(depot.trim().unwrap().bytes as usize, present);
        assert_eq!(present_bytes(&depot), 0);
    }
}

/// Checks that a depot in use gives back the pageblocks that were free all the while.
#[test]
fn surplus_is_given_back_while_the_depot_is_in_use() {
    let depot = Depot::new(64 * mib()).unwrap();
    let mut watcher = Monitor::builder(&depot).sources(Sources::none()).watcher().unwrap();
    let mut blocks: Vec<_> = (0..24).map(|_| depot.page(order(9)).unwrap()).collect();
    blocks.iter_mut().for_each(|block| block.fill(1));
    blocks.truncate(2);
    depot.drain(Scope::ALL, Mode::Full);
    for second in 1..10 {
        drop(depot.pages(3, Default::default()).unwrap());
        let held = depot.pages(second, Default::default()).unwrap();
        watcher.look_at(u64::from(second) * 1000);
        drop(held);
    }
    let counts = watcher.counts();
    assert!(counts.surplus_rounds > 0, "{counts:?}");
    assert_eq!(counts.idle_rounds, 0, "{counts:?}");
    assert!(present_bytes(&depot) <= 8 * mib(), "{}", present_bytes(&depot));
}

/// Pages that are touched and kept.
fn touched(depot: &Depot, count: usize) -> Vec<Page> {
    let mut pages: Vec<_> = (0..count).map(|_| depot.page(Order::BASE).unwrap()).collect();
    pages.iter_mut().for_each(|page| page[0] = 1);
    pages
}

/// A depot in use gives back free parts of pageblocks that are held in part. What it needed again
/// stays for a minute, and goes then.
#[test]
fn refaults_keep_memory_for_a_minute() {
    const LOOKS: u32 = 100;
    let depot = Depot::new(64 * mib()).unwrap();
    let mut watcher = Monitor::builder(&depot).sources(Sources::none()).watcher().unwrap();
    let mut now_ms = 1;
    // The depot is in use all the time.
    let mut pass = |watcher: &mut pagedepot_linux::pressure::Watcher, seconds: u64| {
        for _ in 0..seconds {
            drop(touched(&depot, 128));
            watcher.look_at(now_ms);
            now_ms += 1000;
        }
    };
    let mut kept = touched(&depot, 8192);
    pass(&mut watcher, 4);
    let mut nth = 0;
    kept.retain(|_| {
        nth += 1;
        nth % 16 == 0
    });
    // Of the 30 MiB that were freed, nine tenths go back, beside what CPUs cache. There are few
    // looks where one takes long.
    let kept_bytes = kept.len() * page_bytes();
    let most = kept_bytes + 3 * mib();
    (0..LOOKS).find(|_| {
        pass(&mut watcher, 10);
        present_bytes(&depot) <= most
    });
    let least = present_bytes(&depot);
    assert!(least <= most, "{least} {:?}", watcher.counts());

    drop(touched(&depot, 8192 - kept.len()));
    let peak = present_bytes(&depot);
    pass(&mut watcher, 20);
    let needed = peak - least;
    let left = present_bytes(&depot);
    assert!(left + 2 * mib() >= least + needed / 2, "{needed} needed again, {left} left");
    (0..LOOKS).find(|_| {
        pass(&mut watcher, 70);
        present_bytes(&depot) <= least + 4 * mib()
    });
    let left = present_bytes(&depot);
    assert!(left <= least + 4 * mib(), "{left} {:?}", watcher.counts());
    kept.iter().for_each(|page| assert_eq!(page[0], 1));
    drop(kept);
    common::all_back(&depot);
}

/// The ceiling follows the limit of a container up and down, below the program's own.
#[test]
fn a_ceiling_follows_the_limit() {
    let text = |mibs: usize| format!("{}\n", mibs * mib());
    let group = Group::new("ceiling");
    // The program uses 4 MiB beside its depot, and a page cache that counts for nothing.
    group.put("memory.max", &text(64)).put("memory.current", &text(12));
    group.put("memory.stat", &format!("inactive_file {}\nactive_file {}", 5 * mib(), 3 * mib()));
    let depot = Depot::new(256 * mib()).unwrap();
    let growing = Depot::builder(1).grow_to(2 * unit()).build().unwrap();
    let builder = Monitor::builder(&depot).sources(group.sources());
    let mut watcher = builder.watcher().unwrap();
    let ceiling = || Ceiling::of(&depot).bytes() / mib();
    // Four fifths, less 4 MiB, in whole pageblocks; before the first look.
    assert_eq!((ceiling(), watcher.counts().ceiling_bytes), (46, 46 * mib() as u64));
    let held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    for (limit, expected) in [(text(32), 20), ("max\n".into(), 256), (text(128), 98)] {
        group.put("memory.max", &limit);
        watcher.look_at(0);
        assert_eq!(ceiling(), expected, "{limit}");
    }
    // The heap takes what the depot gives back: what is left stays the same.
    let present = held.len() * 2;
    let mut held = held;
    held.iter_mut().for_each(|block| block.fill(1));
    group.put("memory.current", &text(12 + present));
    watcher.look_at(0);
    assert_eq!(ceiling(), 98);
    held.clear();
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.trim().unwrap().bytes as usize, present * mib());
    watcher.look_at(0);
    assert_eq!(ceiling(), 98 - present);
    let held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    group.put("memory.current", &text(12));
    // The program's own is lower; then the container's.
    assert_eq!(Ceiling::of(&depot).set(50 * mib()), Ok(50 * mib()));
    group.put("memory.max", &text(64));
    watcher.look_at(0);
    assert_eq!(ceiling(), 46);
    // What is held stays until it is free.
    group.put("memory.max", &text(8));
    watcher.look_at(0);
    assert!(ceiling() >= 8, "{}", ceiling());
    drop(held);
    watcher.look_at(0);
    assert_eq!((ceiling(), watcher.counts().unprotected), (2, 0));
    drop(watcher);
    assert_eq!(ceiling(), 50, "the program's own");
    let builder = Monitor::builder(&growing).sources(group.sources());
    assert_eq!(builder.watcher().unwrap().counts().unprotected, 1);
    assert_eq!(Ceiling::of(&depot).set(256 * mib()), Ok(256 * mib()));
    common::all_back(&depot);
}

/// The limit of a container bounds what one process takes of a segment, and takes nothing from
/// others. What others hold is not room.
#[test]
fn a_ceiling_of_a_segment_follows_the_limit() {
    let text = |mibs: usize| format!("{}\n", mibs * mib());
    let group = Group::new("segment-ceiling");
    group.put("memory.max", &text(40)).put("memory.current", &text(12));
    group.put("memory.stat", "anon 0\n");
    let inner = SharedDepot::create_memfd("test", &SharedOptions::new(64 * mib())).unwrap();
    let outer = SharedDepot::adopt(inner.file(), &SharedOptions::join()).unwrap();
    let take = |depot: &SharedDepot, blocks: usize| -> Vec<_> {
        let mut blocks: Vec<_> = (0..blocks).map(|_| depot.page(order(9)).unwrap()).collect();
        blocks.iter_mut().for_each(|block| block.fill(1));
        blocks
    };
    // 8 MiB that another process holds, and 6 that are free and present.
    let others = take(&outer, 4);
    drop(take(&outer, 3));
    outer.drain(Scope::ALL, Mode::Full);
    let mut watcher = Monitor::builder(&inner).sources(group.sources()).watcher().unwrap();
    let ceiling = || Ceiling::of(&inner).bytes() / mib();
    // Four fifths, less 12 MiB.
    assert_eq!(ceiling(), 6 + 20);
    let counts = watcher.counts();
    assert_eq!((counts.ceiling_bytes, counts.unprotected), (26 * mib() as u64, 0));
    let own = take(&inner, 13);
    assert_eq!(inner.page(order(9)).unwrap_err(), AllocError::Exhausted);
    assert_eq!(take(&outer, 15).len(), 15);
    outer.drain(Scope::ALL, Mode::Full);
    assert_eq!(outer.segment_stats().free_pages, (64 - 8 - 26) << 8);
    // Another monitor of this process, which leaves more.
    let policy = Policy { margin_percent: Some(10), ..Policy::default() };
    let other = Monitor::builder(&inner).sources(group.sources()).policy(policy);
    let other = other.watcher().unwrap();
    assert_eq!(ceiling(), 26);
    drop(other);
    assert_eq!(ceiling(), 26);
    // The program's own is lower.
    inner.set_ceiling(10 * mib());
    watcher.look_at(0);
    assert_eq!((ceiling(), inner.taken_pages().0), (10, 26 << 8));
    drop((own, watcher));
    assert_eq!(ceiling(), 10);
    inner.set_ceiling(0);
    assert_eq!(ceiling(), 64);
    drop(others);
}

/// Pages that others hold of a segment and have not touched cost the container nothing.
#[test]
fn untouched_pages_of_others_lower_no_ceiling() {
    let group = Group::new("untouched");
    group.put("memory.max", &format!("{}\n", 40 * mib()));
    group.put("memory.current", &format!("{}\n", 12 * mib())).put("memory.stat", "anon 0\n");
    let inner = SharedDepot::create_memfd("test", &SharedOptions::new(64 * mib())).unwrap();
    let outer = SharedDepot::adopt(inner.file(), &SharedOptions::join()).unwrap();
    let take = |depot: &SharedDepot, blocks: usize| -> Vec<_> {
        (0..blocks).map(|_| depot.page(order(9)).unwrap()).collect()
    };
    let others = take(&outer, 10);
    let mut own = take(&inner, 3);
    own.iter_mut().for_each(|block| block.fill(1));
    let watcher = Monitor::builder(&inner).sources(group.sources()).watcher().unwrap();
    // Four fifths, less 12 MiB.
    assert_eq!(Ceiling::of(&inner).bytes() / mib(), 6 + 20);
    drop((watcher, own, others));
}

/// A monitor that a callback ends while a ceiling is being set leaves none.
#[test]
fn a_monitor_that_ends_in_a_callback_leaves_no_ceiling() {
    let group = Group::new("ends-in-callback");
    group.put("memory.max", &format!("{}\n", 10 * mib())).put("memory.current", "0\n");
    let depot = Depot::new(16 * mib()).unwrap();
    let watcher = Monitor::builder(&depot).sources(group.sources()).watcher().unwrap();
    assert_eq!(Ceiling::of(&depot).bytes(), 8 * mib());
    let last = Arc::new(Mutex::new(Some(watcher)));
    let ended = last.clone();
    depot.on_pressure(move |_| ended.lock().unwrap().take().map_or(0, |_| 0)).unwrap();
    let held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    let ceiling = Ceiling::of(&depot);
    let lower = ceiling.set(2 * mib());
    assert!(matches!(lower, Err(CeilingError::Held { .. })), "{lower:?}");
    assert!(last.lock().unwrap().is_none());
    assert_eq!(ceiling.set(usize::MAX), Ok(16 * mib()));
    drop(held);
    common::all_back(&depot);
}

/// The call that sets a ceiling lifts that of a monitor which its callback ends.
#[test]
fn a_ceiling_ends_with_a_monitor_that_ends_in_a_callback() {
    let group = Group::new("lifted-in-callback");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 5 * block)).put("memory.current", "0\n");
    let depot = Depot::new(8 * block).unwrap();
    let blocks: Vec<_> = (0..7).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    let watcher = Monitor::builder(&depot).sources(group.sources()).watcher().unwrap();
    let ceiling = Ceiling::of(&depot);
    assert_eq!(ceiling.bytes(), 7 * block, "too much is held for 4 blocks");
    let last = Arc::new(Mutex::new((Some(watcher), blocks)));
    let given = last.clone();
    depot
        .on_pressure(move |_| {
            let (watcher, blocks) = &mut *given.lock().unwrap();
            if watcher.take().is_some() {
                blocks.truncate(4);
            }
            0
        })
        .unwrap();
    assert_eq!(ceiling.set(6 * block), Ok(6 * block));
    assert_eq!((ceiling.bytes(), last.lock().unwrap().1.len()), (6 * block, 4));
    last.lock().unwrap().1.clear();
    ceiling.set(usize::MAX).unwrap();
    common::all_back(&depot);
}

/// A monitor that such a callback drops is not waited for: its thread may wait for that call.
#[test]
fn a_monitor_with_a_thread_that_ends_in_a_callback_leaves_no_ceiling() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("thread-ends-in-callback");
    group.put("memory.max", &format!("{}\n", 10 * mib())).put("memory.current", "0\n");
    let depot = Depot::new(16 * mib()).unwrap();
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let last = Arc::new(Mutex::new(Some(builder.start().unwrap())));
    let ended = last.clone();
    depot.on_pressure(move |_| ended.lock().unwrap().take().map_or(0, |_| 0)).unwrap();
    let held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    let ceiling = Ceiling::of(&depot);
    let lower = ceiling.set(2 * mib());
    assert!(matches!(lower, Err(CeilingError::Held { .. })), "{lower:?}");
    assert!(last.lock().unwrap().is_none());
    let began = Instant::now();
    while ceiling.set(usize::MAX) != Ok(16 * mib()) {
        assert!(began.elapsed() < Duration::from_secs(60), "{ceiling:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    common::all_back(&depot);
}

/// A callback for a ceiling starts no monitor: its thread would wait for that ceiling, and the
/// callback for the thread.
#[test]
fn no_monitor_starts_in_a_callback_for_a_ceiling() {
    let depot = Depot::new(16 * mib()).unwrap();
    let (weak, (told, starts)) = (depot.downgrade(), std::sync::mpsc::channel());
    depot
        .on_pressure(move |_| {
            let Some(depot) = weak.upgrade() else { return 0 };
            let started = Monitor::builder(&depot).sources(Sources::none()).start();
            let _ = told.send(started.map(drop));
            0
        })
        .unwrap();
    let held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    let other = depot.clone();
    // Not joined: it would not end.
    std::thread::spawn(move || Ceiling::of(&other).set(2 * mib()));
    let started = starts.recv_timeout(Duration::from_secs(60)).expect("it waits for itself");
    assert!(matches!(started, Err(MonitorError::Reentrant)), "{started:?}");
    drop(held);
}

/// A child that a callback for a ceiling forks sets none, and starts monitors.
#[test]
fn a_child_of_a_callback_for_a_ceiling_starts_a_monitor() {
    let depot = Depot::new(16 * mib()).unwrap();
    let forked = Arc::new(Mutex::new(false));
    let forks = forked.clone();
    depot
        .on_pressure(move |_| {
            if !std::mem::replace(&mut *forks.lock().unwrap(), true) {
                common::in_child(|| {
                    let own = Depot::new(4 * mib()).unwrap();
                    Monitor::builder(&own).sources(Sources::none()).start().unwrap();
                });
            }
            0
        })
        .unwrap();
    let held: Vec<_> = (0..4).map(|_| depot.page(order(9)).unwrap()).collect();
    let lower = Ceiling::of(&depot).set(2 * mib());
    assert!(matches!(lower, Err(CeilingError::Held { .. })), "{lower:?}");
    assert!(*forked.lock().unwrap());
    drop(held);
}

/// A look in a callback for a ceiling sets and lifts none, and the next look does.
#[test]
fn a_look_in_a_callback_for_a_ceiling_is_made_up_for() {
    let group = Group::new("look-in-callback");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let put = |blocks: usize| format!("{}\n", blocks * block);
    group.put("memory.max", "max\n").put("memory.current", "0\n");
    let depot = Depot::new(32 * block).unwrap();
    let policy = Policy { idle_ms: 0, ..Policy::default() };
    let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let watcher = Arc::new(Mutex::new(builder.watcher().unwrap()));
    let looked = watcher.clone();
    let look = move |_| {
        looked.try_lock().map_or(0, |mut watcher| {
            watcher.look_at(1);
            0
        })
    };
    depot.on_pressure(look).unwrap();
    let mut held: Vec<_> = (0..4).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    let ceiling = Ceiling::of(&depot);
    for (limit, expected) in [(put(10), 8), ("max\n".into(), 32)] {
        group.put("memory.max", &limit);
        let looks = watcher.lock().unwrap().counts().looks;
        let lower = ceiling.set(2 * block);
        assert!(matches!(lower, Err(CeilingError::Held { .. })), "{lower:?}");
        assert!(watcher.lock().unwrap().counts().looks > looks);
        ceiling.set(usize::MAX).unwrap();
        watcher.lock().unwrap().look_at(2);
        assert_eq!(ceiling.bytes(), expected * block, "{limit}");
    }
    held.clear();
    drop(watcher);
    common::all_back(&depot);
}

/// The lowest ceiling is in force, and the end of a monitor lifts its own alone.
#[test]
fn each_monitor_of_a_depot_has_a_ceiling_of_its_own() {
    let group = Group::new("several");
    group.put("memory.max", &format!("{}\n", 64 * mib())).put("memory.current", "0\n");
    let depot = Depot::new(256 * mib()).unwrap();
    let watcher = |margin_percent: u32| {
        let policy =
            Policy { idle_ms: 0, margin_percent: Some(margin_percent), ..Policy::default() };
        let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
        builder.watcher().unwrap()
    };
    let ceiling = || Ceiling::of(&depot).bytes() / mib();
    let (low, mut high) = (watcher(50), watcher(25));
    assert_eq!(ceiling(), 32);
    high.look_at(0);
    assert_eq!(ceiling(), 32);
    drop(low);
    assert_eq!(ceiling(), 48);
    let again = watcher(25);
    drop(high);
    assert_eq!(ceiling(), 48);
    drop(again);
    assert_eq!(ceiling(), 256);
    common::all_back(&depot);
}

/// Takes all `pageblocks` below the ceiling, and requests pages until the monitor is rung for.
fn check_rings(depot: &Depot, monitor: &Monitor, pageblocks: usize) {
    let held: Vec<_> = std::iter::from_fn(|| depot.page(Order::PAGEBLOCK).ok()).collect();
    assert_eq!(held.len(), pageblocks);
    let start = Instant::now();
    while monitor.counts().rings == 0 {
        assert_eq!(depot.page(Order::BASE).unwrap_err(), AllocError::Exhausted);
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", monitor.counts());
    }
}

/// A monitor that takes the place of another is rung for by requests at the ceiling.
#[test]
fn a_monitor_replaces_another() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("replaces");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 10 * block)).put("memory.current", "0\n");
    let depot = Depot::new(32 * block).unwrap();
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let start = || {
        let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
        builder.start().unwrap()
    };
    let first = start();
    let second = start();
    drop(first);
    check_rings(&depot, &second, 8);
    drop(second);
    common::all_back(&depot);
}

/// The end of a monitor is no answer for a request that rang for another one.
#[test]
fn a_monitor_that_ends_answers_for_no_other() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("answers");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 10 * block)).put("memory.current", "0\n");
    let depot = Depot::new(32 * block).unwrap();
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let builder = || Monitor::builder(&depot).policy(policy).sources(group.sources());
    let first = builder().start().unwrap();
    let stock = Arc::new(Mutex::new(Vec::new()));
    let (rings, is_rung) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let given = stock.clone();
    let frees = move |_| {
        let _ = rings.send(());
        let _ = goes.recv();
        let pages: Vec<Page> = std::mem::take(&mut *given.lock().unwrap());
        pages.iter().map(|page| page.len()).sum::<usize>() as u64
    };
    let second = builder().on_pressure(0, frees).start().unwrap();
    let mut held: Vec<_> = (0..8).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    stock.lock().unwrap().extend(held.pop());
    std::thread::scope(|scope| {
        let request = scope.spawn(|| {
            let began = Instant::now();
            (depot.page(Order::BASE).map(drop), began.elapsed())
        });
        is_rung.recv().unwrap();
        drop(first);
        // The time in which a request that took the end for an answer would fail.
        std::thread::sleep(Duration::from_millis(100));
        drop(go);
        let (result, elapsed) = request.join().unwrap();
        // No request waits for longer than a second, by a clock that may lag by a tick of 10 ms.
        assert!(result.is_ok() || elapsed >= Duration::from_millis(980), "{elapsed:?}");
    });
    drop((held, second));
    common::all_back(&depot);
}

/// A monitor whose limit is gone answers for no other whose ceiling leaves no more pages.
#[test]
fn a_limit_that_is_lifted_answers_for_no_other() {
    let _alone = THREADS.lock().unwrap();
    let [group, lifted] = ["stays", "lifted"].map(Group::new);
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let depot = Depot::new(32 * block).unwrap();
    let mut held: Vec<_> = (0..8).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    let mut stock = held.pop();
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let start = |group: &Group, bytes: usize, free: Box<dyn FnMut(u64) -> u64 + Send>| {
        group.put("memory.max", &format!("{bytes}\n")).put("memory.current", "0\n");
        let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
        builder.on_pressure(0, free).start().unwrap()
    };
    let free = move |_| stock.take().map_or(0, |page: Page| page.len() as u64);
    // Less than a pageblock above the ceiling that is lifted, which is rung for.
    let other = start(&group, 10 * block + block / 2, Box::new(free));
    let monitor = start(&lifted, 10 * block, Box::new(|_| 0));
    while monitor.counts().looks == 0 {
        std::thread::yield_now();
    }
    lifted.put("memory.max", "max\n");
    let began = Instant::now();
    let result = depot.page(Order::BASE).map(drop);
    // No request waits for longer than a second, by a clock that may lag by a tick.
    assert!(result.is_ok() || began.elapsed() >= Duration::from_millis(980), "{result:?}");
    drop((held, monitor, other));
    common::all_back(&depot);
}

/// A request that rings while the monitor frees pages of another depot waits for the next answer.
#[test]
fn an_answer_for_one_depot_is_none_for_another() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("answers-two");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 10 * block)).put("memory.current", "0\n");
    let depots = [(); 2].map(|()| Depot::new(16 * block).unwrap());
    let mut held: Vec<_> = depots
        .iter()
        .flat_map(|depot| (0..4).map(|_| depot.page(Order::PAGEBLOCK).unwrap()))
        .collect();
    let mut stock = [0, 3].map(|at| held.remove(at)).into_iter();
    let (rings, is_rung) = std::sync::mpsc::channel();
    // Pages of the first depot, and then of the other.
    let frees = move |_| {
        let _ = rings.send(());
        // The time that the other request takes to ring, and would then take to fail. If it rings
        // later, it gets its answer, too.
        std::thread::sleep(Duration::from_millis(100));
        stock.next().map_or(0, |page| page.len() as u64)
    };
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let builder = Monitor::builder(&depots[0]).and(&depots[1]).policy(policy);
    let monitor = builder.sources(group.sources()).on_pressure(0, frees).start().unwrap();
    let request = |depot: &Depot| {
        let began = Instant::now();
        (depot.page(Order::BASE).map(drop), began.elapsed())
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| request(&depots[0]));
        is_rung.recv().unwrap();
        let second = scope.spawn(|| request(&depots[1]));
        for request in [first, second] {
            let (result, elapsed) = request.join().unwrap();
            // No request waits for longer than a second, by a clock that may lag by a tick.
            assert!(result.is_ok() || elapsed >= Duration::from_millis(980), "{elapsed:?}");
        }
    });
    drop((held, monitor));
    depots.iter().for_each(common::all_back);
}

/// Has a depot that is at its ceiling get a page by the first answer of a monitor, which has a
/// depot 31 times as large, too. Its callback may free the page that fills the ceiling.
fn first_answer_beside_a_larger_depot(
    name: &str,
    mut callback: impl FnMut(&Group, &mut Vec<Page>) -> u64 + Send + 'static,
    prepare: impl FnOnce(&Group, &Depot),
) {
    let _alone = THREADS.lock().unwrap();
    let (group, block) = (Group::new(name), page_bytes() << Order::PAGEBLOCK.get());
    // A fifth is left free.
    group.put("memory.current", "0\n").limit(41 * block);
    let depots = [62, 2].map(|blocks| Depot::new(blocks * block).unwrap());
    let [large, small] = &depots;
    let mut held = vec![small.page(Order::PAGEBLOCK).unwrap()];
    let of_callback = Group(group.0.clone());
    let callback = move |_| callback(&of_callback, &mut held);
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let builder = Monitor::builder(large).and(small).policy(policy).sources(group.sources());
    let monitor = builder.on_pressure(0, callback).start().unwrap();
    assert_eq!(depots.each_ref().map(|depot| Ceiling::of(depot).bytes() / block), [31, 1]);
    prepare(&group, large);
    assert!(small.page(Order::BASE).is_ok(), "{:?}", monitor.counts());
    assert_eq!(monitor.counts().rings, 1);
}

fn free_one(_: &Group, held: &mut Vec<Page>) -> u64 {
    held.pop().map_or(0, |page| page.len() as u64)
}

/// A higher ceiling of another depot is no answer to a request.
#[test]
fn an_answer_asks_callbacks_though_another_depot_may_have_more() {
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let raise = |group: &Group, _: &Depot| group.limit(48 * block);
    first_answer_beside_a_larger_depot("other-rises", free_one, raise);
}

/// Ceilings rise before the answer by the heap that callbacks free.
#[test]
fn an_answer_follows_what_callbacks_free() {
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let free_others = move |group: &Group, _: &mut Vec<Page>| {
        group.limit(100 * block);
        60 * block as u64
    };
    first_answer_beside_a_larger_depot("frees-heap", free_others, |_, _| ());
}

/// A request is answered though the ceiling of another depot cannot be set for a panic.
#[test]
fn a_panic_for_one_depot_is_no_answer_to_another() {
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let held = std::cell::Cell::new(Vec::new());
    let hold = |group: &Group, large: &Depot| {
        held.set((0..30).map(|_| large.page(Order::PAGEBLOCK).unwrap()).collect());
        let callback = |_| match std::thread::current().name() {
            Some("pagedepot-mon") => panic!("a bug in a callback of the program"),
            _ => 0,
        };
        large.on_pressure(callback).unwrap();
        group.limit(20 * block);
    };
    first_answer_beside_a_larger_depot("panics", free_one, hold);
}

/// The end of a monitor with the lower ceiling has requests ring for the one with the other.
#[test]
fn a_monitor_is_rung_for_when_a_lower_one_ends() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("lower-ends");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 16 * block)).put("memory.current", "0\n");
    let depot = Depot::new(32 * block).unwrap();
    let start = |margin_percent: u32| {
        let margin_percent = Some(margin_percent);
        let policy = Policy { idle_ms: 0, look_ms: 600_000, margin_percent, ..Policy::default() };
        let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
        builder.start().unwrap()
    };
    let (low, high) = (start(75), start(50));
    assert_eq!(Ceiling::of(&depot).bytes(), 4 * block);
    drop(low);
    assert_eq!(Ceiling::of(&depot).bytes(), 8 * block);
    check_rings(&depot, &high, 8);
    drop(high);
    common::all_back(&depot);
}

/// The ceiling of a monitor comes into force when a lower one rises or ends, of the program or of a
/// monitor without a thread.
#[test]
fn a_monitor_is_rung_for_when_lower_ceilings_rise() {
    let _alone = THREADS.lock().unwrap();
    let [group, lower] = ["rises", "rises-lower"].map(Group::new);
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let put = |group: &Group, blocks: usize| {
        group.put("memory.max", &format!("{}\n", blocks * block)).put("memory.current", "0\n");
    };
    put(&group, 10);
    for way in 0..3 {
        let depot = Depot::new(32 * block).unwrap();
        put(&lower, 5);
        let builder = || Monitor::builder(&depot).policy(policy);
        let mut low = (way > 0).then(|| builder().sources(lower.sources()).watcher().unwrap());
        if way == 0 {
            Ceiling::of(&depot).set(4 * block).unwrap();
        }
        let monitor = builder().sources(group.sources()).start().unwrap();
        assert_eq!(Ceiling::of(&depot).bytes(), 4 * block);
        match &mut low {
            None => _ = Ceiling::of(&depot).set(usize::MAX).unwrap(),
            Some(low) if way == 1 => {
                put(&lower, 100);
                low.look_at(0);
            }
            Some(_) => low = None,
        }
        check_rings(&depot, &monitor, 8);
        drop((monitor, low));
        common::all_back(&depot);
    }
}

/// The ceiling of a monitor comes into force when the program lifts its own of a segment.
#[test]
fn a_monitor_is_rung_for_when_a_ceiling_of_a_segment_rises() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("segment-rises");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 10 * block)).put("memory.current", "0\n");
    let depot = SharedDepot::create_memfd("test", &SharedOptions::new(32 * block)).unwrap();
    depot.set_ceiling(4 * block);
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let monitor = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let monitor = monitor.start().unwrap();
    assert_eq!(Ceiling::of(&depot).bytes(), 4 * block);
    depot.set_ceiling(0);
    assert_eq!(Ceiling::of(&depot).bytes(), 8 * block);
    check_rings(&depot, &monitor, 8);
}

/// A ceiling that the program sets asks no monitor for memory: its answer would wait for the call.
#[test]
fn a_lower_ceiling_rings_for_no_monitor() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("lower");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 10 * block)).put("memory.current", "0\n");
    let depot = Depot::new(32 * block).unwrap();
    let policy = Policy { idle_ms: 0, look_ms: 600_000, ..Policy::default() };
    let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let monitor = builder.start().unwrap();
    let held: Vec<_> = (0..8).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    let lower = Ceiling::of(&depot).set(4 * block);
    assert_eq!(lower, Err(CeilingError::Held { bytes: 4 * block, reached: 8 * block }));
    assert_eq!(monitor.counts().rings, 0);
    drop((held, monitor));
    assert_eq!(Ceiling::of(&depot).set(usize::MAX), Ok(32 * block));
    common::all_back(&depot);
}

/// The memory controller does not count huge pages of the system's pool: its limit is for other
/// depots alone.
#[test]
fn a_limit_that_counts_no_huge_pages_is_not_for_them() {
    let mounts = fs::read("/proc/self/mountinfo").unwrap();
    if String::from_utf8_lossy(&mounts).contains("memory_hugetlb_accounting") {
        return skip("the memory controller counts huge pages here");
    }
    let Ok(huge) = Depot::builder(8 * mib()).hugetlb(true).build() else {
        return skip("there are no huge pages in the system's pool");
    };
    let group = Group::new("hugetlb");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 10 * block)).put("memory.current", "0\n");
    let other = Depot::new(16 * block).unwrap();
    let builder = Monitor::builder(&huge).and(&other).sources(group.sources());
    let watcher = builder.watcher().unwrap();
    let ceilings = [&huge, &other].map(|depot| Ceiling::of(depot).bytes());
    assert_eq!(ceilings, [8 * mib(), 8 * block]);
    let counts = watcher.counts();
    assert_eq!((counts.unprotected, counts.ceiling_bytes), (1, 8 * block as u64));
}

/// Threads of this process with the monitor's name: their CPUs.
fn monitors() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    let statuses =
        tasks.filter_map(status).filter(|text| text.starts_with("Name:\tpagedepot-mon\n"));
    let cpus = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
        line.unwrap().to_owned()
    };
    statuses.map(cpus).collect()
}

/// Held by tests that start threads: one of them counts these.
static THREADS: Mutex<()> = Mutex::new(());

/// Checks the CPUs on which the thread runs, and that it ends.
#[test]
fn the_thread_keeps_off_isolated_cpus_and_ends() {
    let _alone = THREADS.lock().unwrap();
    let cpus = usable_cpus();
    let isolated = CpuId::new(*cpus.last().unwrap());
    let depot = Depot::builder(4 * mib()).isolated_cpus([isolated].into_iter().collect());
    let depot = depot.build().unwrap();
    // The thread has the callback, and so this, until it ends.
    let of_thread = Arc::new(());
    let held = of_thread.clone();
    let free = move |_| Arc::strong_count(&held) as u64;
    let builder = Monitor::builder(&depot).sources(Sources::none());
    let started = builder.on_pressure(0, free).start();
    if cpus.len() == 1 {
        assert!(matches!(started, Err(MonitorError::OnlyIsolated)), "{started:?}");
        return;
    }
    let monitor = started.unwrap();
    let until = |count: usize| {
        let end = Instant::now() + Duration::from_secs(20);
        while monitors().len() != count {
            assert!(Instant::now() < end, "{:?}", monitors());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(1);
    let list: pagedepot_linux::builder::CpuSet = monitors()[0].parse().unwrap();
    assert!(!list.contains(isolated) && !list.is_empty(), "{list}");
    drop(monitor);
    assert_eq!(Arc::strong_count(&of_thread), 1, "dropping it waits for the thread");
    // The kernel lists a thread some time longer than it can be waited for.
    until(0);

    let policy = Policy { look_ms: 10, ..Policy::default() };
    let monitor = Monitor::builder(&depot).policy(policy).sources(Sources::none()).start().unwrap();
    until(1);
    drop(depot);
    until(0);
    assert!(monitor.counts().looks > 0);
}

/// A callback of the program panics while a ceiling sinks, on the monitor's thread: the ceiling
/// stays, and the thread goes on.
#[test]
fn a_panic_in_a_depots_callback_does_not_lift_its_ceiling() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("raises");
    let put = |bytes: usize| _ = group.put("memory.max", &format!("{bytes}\n"));
    let block = page_bytes() << Order::PAGEBLOCK.get();
    put(32 * block);
    group.put("memory.current", &format!("{}\n", 6 * block));
    let depot = Depot::new(128 * block).unwrap();
    depot.on_pressure(|_| panic!("a bug in a callback of the program")).unwrap();
    let policy = Policy { idle_ms: 0, look_ms: 20, ..Policy::default() };
    let builder = Monitor::builder(&depot).policy(policy).sources(group.sources());
    let monitor = builder.start().unwrap();
    let before = Ceiling::of(&depot).bytes();
    assert!(before < 32 * block);
    let held: Vec<_> = (0..14).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    put(16 * block);
    let start = Instant::now();
    while monitor.counts().panics < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", monitor.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Ceiling::of(&depot).bytes() <= before);
    drop(held);
}

/// A callback drops the last handle of what owns the monitor, on the monitor's own thread.
#[test]
fn a_monitor_may_be_dropped_by_its_callback() {
    struct Pool {
        monitor: Mutex<Option<Monitor>>,
        depot: Depot,
    }
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("own");
    let depot = Depot::new(16 * mib()).unwrap();
    let pool = Arc::new(Pool { monitor: Mutex::new(None), depot });
    let held = pool.depot.page(Order::MAX).unwrap();
    let (weak, depot) = (Arc::downgrade(&pool), pool.depot.clone());
    let (has_pool, is_last) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let (tell, wait) = (has_pool.0, Mutex::new(is_last.1));
    let policy = Policy { look_ms: 20, ..busy() };
    let builder = Monitor::builder(&pool.depot).policy(policy).sources(group.sources());
    let builder = builder.on_pressure(0, move |_| {
        let Some(pool) = weak.upgrade() else { return 0 };
        tell.send(()).unwrap();
        wait.lock().unwrap().recv().unwrap();
        drop(pool);
        tell.send(()).unwrap();
        0
    });
    *pool.monitor.lock().unwrap() = Some(builder.start().unwrap());
    group.put("memory.events", "high 0\nmax 0\noom 1\n");
    has_pool.1.recv().unwrap();
    drop(pool);
    is_last.0.send(()).unwrap();
    has_pool.1.recv_timeout(Duration::from_secs(60)).expect("the drop returns");
    drop((held, depot));
    let start = Instant::now();
    while !monitors().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", monitors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A limit that cannot be read now is still there, and so is the ceiling.
#[test]
fn a_limit_that_cannot_be_read_stays() {
    let group = Group::new("unreadable");
    let put = |mibs: usize| _ = group.put("memory.max", &format!("{}\n", mibs * mib()));
    put(20);
    group.put("memory.current", "0\n");
    common::in_child(|| {
        let depot = Depot::new(64 * mib()).unwrap();
        let mut watcher = Monitor::builder(&depot).sources(group.sources()).watcher().unwrap();
        assert_eq!(Ceiling::of(&depot).bytes(), 16 * mib());
        let may_open = |files| {
            let limit = libc::rlimit { rlim_cur: files, rlim_max: 1000 };
            // SAFETY: a limit of this child.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        };
        may_open(0);
        watcher.look_at(0);
        assert_eq!(Ceiling::of(&depot).bytes(), 16 * mib());
        assert!(watcher.counts().unreadable > 0 && watcher.counts().ceiling_bytes > 0);
        may_open(1000);
        put(10);
        watcher.look_at(1);
        assert_eq!(Ceiling::of(&depot).bytes(), 8 * mib());
        fs::remove_file(group.0.join("memory.max")).unwrap();
        watcher.look_at(2);
        assert_eq!(Ceiling::of(&depot).bytes(), 64 * mib());
    });
}

/// A depot of which the system does not say any more what is present keeps its ceiling.
#[test]
fn a_ceiling_stays_where_what_is_present_is_not_known() {
    let group = Group::new("mincore");
    let put = |mibs: usize| _ = group.put("memory.max", &format!("{}\n", mibs * mib()));
    put(40);
    group.put("memory.current", &format!("{}\n", 16 * mib()));
    common::in_child(|| {
        let depot = Depot::new(64 * mib()).unwrap();
        let _held = touched(&depot, 16 * 256);
        let mut watcher = Monitor::builder(&depot).sources(group.sources()).watcher().unwrap();
        assert_eq!(Ceiling::of(&depot).bytes(), 32 * mib());
        if let Err(error) = common::refuse_with(libc::SYS_mincore, libc::EPERM) {
            return skip(format_args!("the system takes no filters (seccomp): {error}"));
        }
        put(80);
        watcher.look_at(0);
        assert_eq!(Ceiling::of(&depot).bytes(), 32 * mib());
        assert_eq!(watcher.counts().unprotected, 1);
    });
}

/// A depot whose callback panics while its ceiling sinks keeps no other above the limit, nor below
/// one that is gone.
#[test]
fn a_panic_in_a_depots_callback_concerns_no_other_depot() {
    let group = Group::new("pair");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    let put = |blocks: usize| _ = group.put("memory.max", &format!("{}\n", blocks * block));
    put(1000);
    group.put("memory.current", "0\n");
    let [one, two] = [0; 2].map(|_| Depot::new(32 * block).unwrap());
    let ceilings = || [&one, &two].map(|depot| Ceiling::of(depot).bytes() / block);
    one.on_pressure(|_| panic!("a bug in a callback of the program")).unwrap();
    let policy = Policy { idle_ms: 0, ..Policy::default() };
    let builder = Monitor::builder(&one).and(&two).policy(policy).sources(group.sources());
    let mut watcher = builder.watcher().unwrap();
    let held: Vec<_> = (0..16).map(|_| one.page(Order::PAGEBLOCK).unwrap()).collect();
    put(20);
    let look = std::panic::AssertUnwindSafe(|| watcher.look_at(0));
    assert!(std::panic::catch_unwind(look).is_err());
    assert_eq!(ceilings()[1], 8);
    group.put("memory.max", "max\n");
    watcher.look_at(1);
    assert_eq!(ceilings(), [32, 32]);
    drop(held);
}

/// A callback of the program panics as the monitor's thread begins.
#[test]
fn a_thread_that_begins_by_a_panic_goes_on() {
    let _alone = THREADS.lock().unwrap();
    let group = Group::new("begins");
    let block = page_bytes() << Order::PAGEBLOCK.get();
    group.put("memory.max", &format!("{}\n", 16 * block)).put("memory.current", "0\n");
    let depot = Depot::new(128 * block).unwrap();
    let callback = |_| match std::thread::current().name() {
        Some("pagedepot-mon") => panic!("a bug in a callback of the program"),
        _ => 0,
    };
    depot.on_pressure(callback).unwrap();
    let held: Vec<_> = (0..14).map(|_| depot.page(Order::PAGEBLOCK).unwrap()).collect();
    let monitor = Monitor::builder(&depot).sources(group.sources()).start().unwrap();
    assert!(monitor.counts().panics > 0, "{:?}", monitor.counts());
    drop((monitor, held));
}

/// A callback and a clock may give any number.
#[test]
fn any_number_is_no_panic() {
    let group = Group::new("numbers");
    // Large enough that each of many CPUs caches a page.
    let depot = Depot::new(64 * mib()).unwrap();
    drop(depot.page(Order::BASE).unwrap());
    let builder = Monitor::builder(&depot).policy(busy()).sources(group.sources());
    let mut watcher = builder.on_pressure(0, |_| u64::MAX).watcher().unwrap();
    // More is wanted than what CPUs cache.
    group.put("memory.max", &format!("{}\n", 100 * mib()));
    group.put("memory.current", &format!("{}\n", 99 * mib()));
    assert_eq!(watcher.look_at(u64::MAX).level, Level::Critical);
    let counts = watcher.counts();
    assert!(counts.step(Step::HandoverDrain).bytes > 0, "{counts:?}");
    assert_eq!(counts.step(Step::Callbacks).bytes, u64::MAX, "{counts:?}");
}

/// A sandbox takes the right to open files away when the program has opened what it needs. The
/// system then refuses to poll, and the monitor goes on and ends all the same.
#[test]
fn a_monitor_works_where_no_file_can_be_opened() {
    let _alone = THREADS.lock().unwrap();
    common::in_child(|| {
        let depot = Depot::new(4 * mib()).unwrap();
        let policy = Policy { look_ms: 10, ..Policy::default() };
        let builder = Monitor::builder(&depot).policy(policy).sources(Sources::none());
        let monitor = builder.start().unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this child, which ends by a signal if the monitor does not.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &none), 0);
            libc::alarm(60);
        }
        let looks = monitor.counts().looks;
        while monitor.counts().looks < looks + 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(monitor);
    });
}

/// The first process of a container forks one that is the first of another: both have the number
/// 1. The child's copy of a monitor does nothing.
#[test]
fn a_child_with_the_same_number_ends_no_monitor() {
    let _alone = THREADS.lock().unwrap();
    common::in_child(|| {
        // SAFETY: children of this process begin a PID namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return skip("no PID namespace can be made");
        }
        common::in_child(|| {
            assert_eq!(std::process::id(), 1);
            let depot = Depot::new(4 * mib()).unwrap();
            let policy = Policy { look_ms: 10, ..Policy::default() };
            let builder = Monitor::builder(&depot).policy(policy).sources(Sources::none());
            let monitor = builder.start().unwrap();
            // SAFETY: as above; and this child ends by a signal if its monitor does not go on.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_NEWPID), 0);
                libc::alarm(60);
            }
            common::in_child(|| {
                assert_eq!(std::process::id(), 1);
                // SAFETY: the child's copy, which nothing else uses there; and it ends by a signal
                // if the copy waits for the thread of its parent.
                unsafe {
                    libc::alarm(60);
                    drop(std::ptr::read(&raw const monitor));
                }
            });
            let looks = monitor.counts().looks;
            while monitor.counts().looks < looks + 3 {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    });
}

#[test]
fn contradictions_are_refused() {
    let depot = Depot::new(mib()).unwrap();
    let policy = Policy { used_percent: [97, 92, 85], ..Policy::default() };
    let error = Monitor::builder(&depot).policy(policy).start().unwrap_err();
    assert!(error.to_string().contains("ascend"), "{error}");
}
