//! The monitor of memory pressure in the kernel's own cgroups.
//! 1. A program that would be killed lives below its limit.
//! 2. Of version 2, events and stalls each wake the monitor, without a look in between.
//! 3. The kernel reclaims when it is asked to.
//! 4. A ceiling that follows the limit keeps a program alive that allocates faster than a monitor
//!    can look, without a word of the program's.
//! 5. A program finds the sources of its cgroup and of the cgroups above it.
//!
//! Each test runs a copy of this program in a cgroup of its own. Where none can be made, the test
//! says SKIPPED. `cargo xtask pressure` boots a kernel that has all of it, and runs them there.

mod common;

use std::collections::VecDeque;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::skip::skip;
use common::{order, page_bytes, present_bytes};
use pagedepot_linux::pressure::{Level, Monitor, Policy, Sources, Step};
use pagedepot_linux::reclaim::{Ceiling, Pressure};
use pagedepot_linux::{Depot, Order, Page};

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;

/// Tells a copy of this program which cgroup to live in.
const GROUP: &str = "PAGEDEPOT_TEST_CGROUP";

/// The cgroups that a test is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Any,
    /// Version 2, with PSI.
    Two,
}

/// A cgroup that is removed at the end, after those in it.
struct Group(PathBuf);

impl Group {
    /// Makes a group below this program's own. The error says why there is none.
    fn new(name: &str, version: Version) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let of = |mark: &str| own.lines().find_map(|line| Some(line.split_once(mark)?.1));
        let (above, limit) = match (of(":memory:"), of("0::")) {
            (Some(_), _) if version == Version::Two => {
                return Err("memory cgroups are of version 1 here".into());
            }
            (Some(path), _) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            (None, Some(path)) => (format!("/sys/fs/cgroup{path}"), "memory.max"),
            _ => return Err("no memory cgroup in /proc/self/cgroup".into()),
        };
        let group = Path::new(&above).join(format!("pagedepot-{name}-{}", std::process::id()));
        fs::create_dir(&group).map_err(|error| format!("cannot make {group:?}: {error}"))?;
        let group = Group(group);
        let needed = [limit, "memory.pressure"];
        let count = if version == Version::Two { 2 } else { 1 };
        match needed[..count].iter().find(|file| !group.0.join(file).exists()) {
            Some(file) => Err(format!("there is no {:?}", group.0.join(file))),
            None => Ok(group),
        }
    }

    fn put(&self, file: &str, text: impl ToString) -> &Self {
        let path = self.0.join(file);
        fs::write(&path, text.to_string()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        self
    }

    /// The most bytes that it may use.
    fn limit(&self, bytes: usize) {
        match self.0.join("memory.max").exists() {
            // Without swap, where the kernel has any.
            true => {
                let _ = fs::write(self.0.join("memory.swap.max"), "0");
                self.put("memory.max", bytes)
            }
            false => self.put("memory.limit_in_bytes", bytes),
        };
    }

    fn read(&self, file: &str) -> u64 {
        read(&self.0, file)
    }

    /// The most memory that it has used.
    fn peak(&self) -> u64 {
        match self.0.join("memory.peak").exists() {
            true => self.read("memory.peak"),
            false => self.read("memory.max_usage_in_bytes"),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Ok(inside) = fs::read_dir(&self.0) else { return };
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for entry in inside.filter_map(Result::ok).filter(is_folder) {
            drop(Group(entry.path()));
        }
        // A process that was killed leaves its cgroup a little later.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("{:?} is left", self.0);
    }
}

/// A file with one number.
fn read(group: &Path, file: &str) -> u64 {
    let path = group.join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    text.trim().parse().unwrap_or_else(|_| panic!("{path:?}: {text}"))
}

/// Runs `live` in a copy of this program, in a cgroup that `prepare` has set up (and may put the
/// program deeper into). Returns the cgroup and how the copy ended; in the copy, and where there
/// are no such cgroups, nothing.
fn in_group(
    test: &str,
    version: Version,
    prepare: impl FnOnce(&Group) -> PathBuf,
    live: impl FnOnce(&Path),
) -> Option<(Group, Output)> {
    if let Some(group) = std::env::var_os(GROUP) {
        let group = PathBuf::from(group);
        fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        live(&group);
        return None;
    }
    let group = match Group::new(test, version) {
        Ok(group) => group,
        Err(why) => {
            skip(format_args!("{why} (cargo xtask pressure tests it)"));
            return None;
        }
    };
    let place = prepare(&group);
    let copy = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(GROUP, place)
        .output()
        .unwrap();
    // Figures, for `cargo xtask pressure`.
    let text = String::from_utf8_lossy(&copy.stdout);
    text.lines().filter(|line| line.starts_with("= ")).for_each(|line| println!("\n{line}"));
    Some((group, copy))
}

fn check(copy: &Output) {
    let [out, err] = [&copy.stdout, &copy.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(copy.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", copy.status);
}

/// A line that `cargo xtask pressure` passes on.
fn figure(name: &str, value: u64) {
    println!("\n= {name} {value}");
}

/// Allocates three times the limit, a MiB after the other.
fn fill(depot: &Depot, cache: &Mutex<Vec<Page>>) {
    for _ in 0..3 * LIMIT / MIB {
        for _ in 0..MIB / page_bytes() {
            let mut page = depot.page(Order::BASE).unwrap();
            page[0] = 1;
            cache.lock().unwrap().push(page);
        }
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// A program whose cache would take three times its limit.
fn with_a_monitor(group: &Path) {
    let depot = Depot::new(256 * MIB).unwrap();
    let cache: Arc<Mutex<Vec<Page>>> = Arc::default();
    let given = cache.clone();
    let free = move |wanted: u64| {
        let mut cache = given.lock().unwrap();
        let count = cache.len().min(wanted.div_ceil(page_bytes() as u64) as usize);
        drop(cache.drain(..count));
        (count * page_bytes()) as u64
    };
    let policy =
        Policy { look_ms: 20, round_ms: 10, used_percent: [40, 50, 60], ..Policy::default() };
    let is_v2 = group.join("memory.current").exists();
    let sources = match is_v2 {
        true => Sources::none().and_cgroup_v2(group),
        false => Sources::none().and_cgroup_v1(group),
    };
    let monitor = Monitor::builder(&depot).policy(policy).sources(sources);
    let monitor = monitor.on_pressure(0, free).start().unwrap();
    fill(&depot, &cache);
    let counts = monitor.counts();
    println!("{counts:?}");
    assert!(counts.rounds[2] > 0, "{counts:?}");
    assert!(counts.given_back_bytes > LIMIT as u64, "{counts:?}");
    // Version 2 has no thresholds: the kernel has nothing to say of a program below its limit.
    assert!(is_v2 || counts.wakes > 0, "{counts:?}");
    figure("limit_rounds_at_critical", counts.rounds[2]);
    figure("limit_given_back_mib", counts.given_back_bytes >> 20);
}

#[test]
fn a_program_lives_below_its_limit() {
    let prepare = |group: &Group| {
        group.limit(LIMIT);
        group.0.clone()
    };
    let test = "a_program_lives_below_its_limit";
    let Some((group, copy)) = in_group(test, Version::Any, prepare, with_a_monitor) else { return };
    check(&copy);
    figure("limit_peak_mib", group.peak() >> 20);
}

/// The limit of a container, and a depot that is larger.
const CONTAINER: usize = 200 * MIB;
const DEPOT: usize = 512 * MIB;

/// Fills a cache of three times the limit as fast as it can, below a monitor with its defaults.
/// What it evicts, it evicts when the monitor asks.
fn never_looked_at(_: &Path) {
    let depot = Depot::new(DEPOT).unwrap();
    let cache: Arc<Mutex<VecDeque<Page>>> = Arc::default();
    let given = cache.clone();
    let free = move |wanted: u64| {
        let mut cache = given.lock().unwrap();
        let count = cache.len().min(wanted.div_ceil(page_bytes() as u64) as usize);
        drop(cache.drain(..count));
        (count * page_bytes()) as u64
    };
    let monitor = Monitor::builder(&depot).on_pressure(0, free).start().unwrap();
    // What else the program has, before and after.
    let heap = vec![1u8; 16 * MIB];
    for _ in 0..3 * CONTAINER / page_bytes() {
        let mut page = depot.page(Order::BASE).unwrap();
        page[0] = 1;
        cache.lock().unwrap().push_back(page);
    }
    let counts = monitor.counts();
    println!("{counts:?}");
    let ceiling = Ceiling::of(&depot).bytes();
    assert_eq!(counts.ceiling_bytes, ceiling as u64);
    assert!(ceiling > CONTAINER / 2 && ceiling < CONTAINER * 4 / 5, "{ceiling}");
    assert!(counts.rings > 0 && counts.step(Step::Callbacks).runs > 0, "{counts:?}");
    assert!(present_bytes(&depot) <= ceiling);
    assert!(heap.iter().all(|&byte| byte == 1));
    drop(monitor);
    assert_eq!(Ceiling::of(&depot).bytes(), DEPOT, "without a monitor no limit is followed");
}

#[test]
fn a_ceiling_follows_the_limit() {
    let test = "a_ceiling_follows_the_limit";
    let mut peak = 0;
    for _ in 0..10 {
        let prepare = |group: &Group| {
            group.limit(CONTAINER);
            group.0.clone()
        };
        let Some((group, copy)) = in_group(test, Version::Any, prepare, never_looked_at) else {
            return;
        };
        check(&copy);
        peak = group.peak().max(peak);
    }
    figure("ceiling_peak_mib", peak >> 20);
}

/// Checks that the depot gives up the memory that the heap takes, and may have what the limit
/// gains.
fn beside_a_heap(group: &Path) {
    let depot = Depot::new(DEPOT).unwrap();
    let cache: Arc<Mutex<Vec<Page>>> = Arc::default();
    let given = cache.clone();
    depot
        .on_pressure(move |pressure: Pressure| {
            let Ok(mut cache) = given.try_lock() else { return 0 };
            let count = cache.len().min(pressure.wanted_pages.max(64) as usize);
            drop(cache.drain(..count));
            count as u64
        })
        .unwrap();
    let policy = Policy { look_ms: 20, ..Policy::default() };
    let monitor = Monitor::builder(&depot).policy(policy).start().unwrap();
    let fill = || {
        for _ in 0..2 * CONTAINER / page_bytes() {
            let mut page = depot.page(Order::BASE).unwrap();
            page[0] = 1;
            cache.lock().unwrap().push(page);
        }
    };
    fill();
    let alone = Ceiling::of(&depot).bytes();
    let until = |is_so: &dyn Fn(usize) -> bool| {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_so(Ceiling::of(&depot).bytes()) {
            assert!(Instant::now() < end, "{:?}, {:?}", Ceiling::of(&depot), monitor.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // Slower than the monitor looks: what a margin of 40 MiB is for.
    let mut heap = Vec::new();
    for _ in 0..10 {
        heap.push(vec![1u8; 8 * MIB]);
        std::thread::sleep(Duration::from_millis(60));
    }
    until(&|bytes| bytes < alone - 60 * MIB);
    fill();
    drop(heap);
    until(&|bytes| bytes > alone - 20 * MIB);
    let limit =
        if group.join("memory.max").exists() { "memory.max" } else { "memory.limit_in_bytes" };
    fs::write(group.join(limit), (2 * CONTAINER).to_string()).unwrap();
    until(&|bytes| bytes > alone + 100 * MIB);
    fill();
    println!("{:?}", monitor.counts());
}

#[test]
fn a_ceiling_makes_room_for_the_heap() {
    let prepare = |group: &Group| {
        group.limit(CONTAINER);
        group.0.clone()
    };
    let test = "a_ceiling_makes_room_for_the_heap";
    let Some((_group, copy)) = in_group(test, Version::Any, prepare, beside_a_heap) else { return };
    check(&copy);
}

/// Checks that the program is killed without a monitor.
#[test]
fn without_a_monitor_it_is_killed() {
    let prepare = |group: &Group| {
        group.limit(LIMIT);
        group.0.clone()
    };
    let live = |_: &Path| fill(&Depot::new(256 * MIB).unwrap(), &Mutex::default());
    let test = "without_a_monitor_it_is_killed";
    let Some((group, copy)) = in_group(test, Version::Two, prepare, live) else { return };
    assert_eq!(copy.status.signal(), Some(libc::SIGKILL), "{copy:?}");
    let events = fs::read_to_string(group.0.join("memory.events")).unwrap();
    assert!(events.lines().any(|line| line == "oom_kill 1"), "{events}");
}

/// A limit that slows programs down, but kills none.
fn high(group: &Group) -> PathBuf {
    let _ = fs::write(group.0.join("memory.swap.max"), "0");
    group.put("memory.high", LIMIT).0.clone()
}

/// Goes above `memory.high` while a depot has memory that it does not use. The monitor looks but
/// once a minute: what it does sooner, the kernel has woken it for.
fn above_high(sources: Sources, what: &str) {
    let depot = Depot::new(128 * MIB).unwrap();
    let mut blocks: Vec<Page> = (0..24).map(|_| depot.page(order(9)).unwrap()).collect();
    blocks.iter_mut().for_each(|block| block.fill(1));
    drop(blocks);
    assert!(present_bytes(&depot) >= 48 * MIB);
    // Without a ceiling, which would be set below the limit at once.
    let policy = Policy { look_ms: 60_000, idle_ms: 0, margin_percent: None, ..Policy::default() };
    let monitor = Monitor::builder(&depot).policy(policy).sources(sources).start().unwrap();
    while monitor.counts().looks == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    let heap = vec![1u8; 32 * MIB];
    // A few blocks are in the fronts of CPUs, where a quiet drain does not reach.
    while present_bytes(&depot) > 16 * MIB {
        assert!(begin.elapsed() < Duration::from_secs(50), "{:?}", monitor.counts());
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts = monitor.counts();
    println!("{counts:?} after {:?}", begin.elapsed());
    assert!(counts.wakes > 0 && counts.rounds.iter().sum::<u64>() > 0, "{counts:?}");
    assert!(counts.step(Step::GiveBackWhole).runs > 0, "{counts:?}");
    assert!(heap.iter().all(|&byte| byte == 1));
    figure(&format!("{what}_wakes"), counts.wakes);
    figure(&format!("{what}_relief_ms"), begin.elapsed().as_millis() as u64);
}

#[test]
fn events_wake_the_monitor() {
    let live = |group: &Path| {
        let sources = Sources::none().and_cgroup_v2(group);
        above_high(sources, "events");
    };
    let prepare = |group: &Group| {
        // Without PSI, where it can be turned off for a cgroup, so that events are left.
        let _ = fs::write(group.0.join("cgroup.pressure"), "0");
        high(group)
    };
    let test = "events_wake_the_monitor";
    let Some((_group, copy)) = in_group(test, Version::Two, prepare, live) else { return };
    check(&copy);
}

#[test]
fn stalls_wake_the_monitor() {
    let live = |group: &Path| {
        let sources = Sources::none().and_stalls(group.join("memory.pressure"));
        above_high(sources, "stalls");
    };
    let test = "stalls_wake_the_monitor";
    let Some((_group, copy)) = in_group(test, Version::Two, high, live) else { return };
    check(&copy);
}

/// Memory that the kernel may take at any time: it does so when the monitor asks.
fn reclaimed(group: &Path) {
    const BYTES: usize = 24 * MIB;
    let (protection, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, of which only this function knows.
    let start = unsafe {
        let start = libc::mmap(std::ptr::null_mut(), BYTES, protection, kind, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>().write_bytes(1, BYTES);
        assert_eq!(libc::madvise(start, BYTES, libc::MADV_FREE), 0);
        start
    };
    // What the kernel may take does not count as used.
    let depot = Depot::new(32 * MIB).unwrap();
    let mut held: Vec<Page> = (0..12).map(|_| depot.page(order(9)).unwrap()).collect();
    held.iter_mut().for_each(|block| block.fill(1));
    let asked = 16 * MIB as u64;
    let policy =
        Policy { used_percent: [10, 20, 30], kernel_reclaim_bytes: asked, ..Policy::default() };
    let sources = Sources::none().and_cgroup_v2(group);
    let builder = Monitor::builder(&depot).policy(policy).sources(sources);
    let mut watcher = builder.watcher().unwrap();
    let before = read(group, "memory.current");
    let look = watcher.look_at(0);
    let after = read(group, "memory.current");
    assert_eq!(look.level, Level::Critical, "{look:?}");
    assert_eq!(watcher.counts().step(Step::KernelReclaim).bytes, asked);
    assert!(before - after > asked / 2, "{before} bytes, then {after}");
    figure("reclaim_mib", (before - after) >> 20);
    // SAFETY: the mapping made above.
    unsafe { libc::munmap(start, BYTES) };
}

#[test]
fn the_kernel_reclaims_when_asked() {
    let prepare = |group: &Group| {
        group.limit(LIMIT);
        group.0.clone()
    };
    let test = "the_kernel_reclaims_when_asked";
    let Some((_group, copy)) = in_group(test, Version::Two, prepare, reclaimed) else { return };
    check(&copy);
}

/// Runs in a cgroup without a limit, below one that has it.
fn below_the_limit(group: &Path) {
    let depot = Depot::new(LIMIT).unwrap();
    let mut held: Vec<Page> = (0..16).map(|_| depot.page(order(9)).unwrap()).collect();
    held.iter_mut().for_each(|block| block.fill(1));
    let found = format!("{:?}", Sources::find());
    let above = group.parent().unwrap();
    let files = [Path::new("/proc/pressure/memory"), &group.join("memory.pressure")];
    for path in [files[0], files[1], &above.join("memory.pressure"), group, above] {
        assert!(found.contains(&format!("\"{}\"", path.display())), "{path:?} of {found}");
    }
    let mut watcher = Monitor::builder(&depot).watcher().unwrap();
    let reading = watcher.look().reading;
    let used = read(above, "memory.current") * 100 / LIMIT as u64;
    assert!((reading.used_percent - used as f64).abs() < 10.0, "{reading:?}, {used} %");
    assert_eq!(watcher.counts().unreadable, 0, "{found}");
}

#[test]
fn sources_are_found_up_to_the_limit() {
    let prepare = |group: &Group| {
        group.limit(LIMIT);
        group.put("cgroup.subtree_control", "+memory");
        let inner = group.0.join("inner");
        fs::create_dir(&inner).unwrap();
        inner
    };
    let test = "sources_are_found_up_to_the_limit";
    let Some((_group, copy)) = in_group(test, Version::Two, prepare, below_the_limit) else {
        return;
    };
    check(&copy);
}
