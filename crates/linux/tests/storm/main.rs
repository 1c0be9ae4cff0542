//! Everything at once, at random: pages of all kinds and orders, movable ones among them, ranges,
//! pages at given addresses, collections, buffers that are resized, pins, waits, forks and signal
//! handlers, beside drains of all modes, compaction, trims, ceilings, a monitor, readers of what is
//! published, a system that refuses to take memory back, and every switch.
//!
//! 1. *No page has two holders.* Each has its holder's mark, and keeps what its holder wrote, when
//!    it is moved, too. Zeroed pages are.
//! 2. *No page is lost.* After each round the depot counts as held what is held.
//! 3. *No request for a page fails* while less than 60 percent of the memory is in use.
//! 4. *A pinned page stays*, and a forked child gets errors, and waits for nothing.
//! 5. *Every pair of features meets* that the [table](../pairs/table.txt) says does.
//!
//! A storm takes a second, or `PAGEDEPOT_SOAK_SECONDS`, and longer until all pairs have met.
//! `PAGEDEPOT_SEED` repeats its choices. Each round has a depot of its own, whose last pages go
//! when its handles are gone. In a depot that does not grow, movable blocks of all orders must have
//! moved. Two members share a segment in one process, and others are killed. Under ThreadSanitizer
//! all storms have lock fronts, and end in time; each prints what else it does without.

#[path = "../common/mod.rs"]
mod common;
mod control;
mod feature;
mod handler;
#[path = "../../../rseq/tests/interrupts/mod.rs"]
mod interrupts;
mod item;
mod worker;
mod world;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::meetings::Set;
use common::pairs::Table;
use common::rng::{Rng, seed};
use common::skip::skip;
use common::{mib, page_bytes, soak};
use control::Control;
use feature::Feature;
use interrupts::{Interrupts, install};
use item::Item;
use pagedepot_linux::builder::{CpuSet, Topology};
use pagedepot_linux::reclaim::Pressure;
use pagedepot_linux::shared::{SharedDepot, SharedOptions};
use pagedepot_linux::{CpuId, Depot, MemoryKind, Mode, Scope, Vmalloc};
use worker::{Members, Pool, Worker};
use world::World;

/// Pages of a depot.
const PAGES: usize = 56 * 256;
/// Pages that a depot may grow to, which are also the pages it grows by at a time.
const PAGES_MAX: usize = 1100 * 256;
const WORKERS: u32 = 4;
const ROUND: Duration = Duration::from_millis(400);
/// Factor of a storm's time for which it goes on for pairs that have not met.
const LONGER: u32 = 480;
/// Most pages that an address space keeps for later.
const SPACE_PAGES: i64 = 1200;

/// One storm at a time: the handler's depot is one for the process, and children are forked.
static ALONE: Mutex<()> = Mutex::new(());

/// The options of a storm.
#[derive(Clone, Copy)]
struct Options {
    checked: bool,
    locks: bool,
    /// Whether the depot grows; otherwise ceilings are set.
    grows: bool,
    isolates: bool,
    /// Whether the depot is over a segment.
    shares: bool,
}

/// Storms by the name of their test.
const STORMS: [(&str, Options); 5] = [
    ("sequences", Options { grows: true, ..PLAIN }),
    ("sequences_checked", Options { checked: true, ..PLAIN }),
    ("locks", Options { locks: true, isolates: true, ..PLAIN }),
    ("locks_checked", Options { checked: true, locks: true, grows: true, isolates: true, ..PLAIN }),
    ("segment", Options { isolates: true, shares: true, ..PLAIN }),
];

const PLAIN: Options =
    Options { checked: false, locks: false, grows: false, isolates: false, shares: false };

/// Features that a segment lacks: see the reasons of the table.
const NOT_SHARED: [Feature; 11] = [
    Feature::Growing,
    Feature::Ceiling,
    Feature::Removal,
    Feature::Adding,
    Feature::Compaction,
    Feature::Isolation,
    Feature::Reporting,
    Feature::EvacuationOff,
    Feature::EvacuationGoal,
    Feature::EvacuationAdaptive,
    Feature::Checked,
];

/// Features of a segment.
const SHARED: [Feature; 7] = [
    Feature::Segment,
    Feature::Messages,
    Feature::Deaths,
    Feature::Heirs,
    Feature::SegmentSize,
    Feature::Share,
    Feature::Shortage,
];

/// Whether this is built for ThreadSanitizer, as `.ci/steps/tsan` says.
fn is_sanitized() -> bool {
    cfg!(pagedepot_tsan)
}

/// Whether this is a run in an emulated machine, which `cargo xtask guest` tells it.
fn is_emulated() -> bool {
    std::env::var_os("PAGEDEPOT_GUEST").is_some()
}

/// A feature that storms must do without here.
struct Lack {
    feature: Feature,
    why: &'static str,
}

/// The features that storms must do without here. They print them.
fn lacking() -> Vec<Lack> {
    let mut lacks = Vec::new();
    if is_sanitized() {
        let why = "ThreadSanitizer's runtime does not survive a fork of a program with threads";
        lacks.push(Lack { feature: Feature::Forks, why });
    }
    if cfg!(not(feature = "allocator-api2")) {
        let why = "built without the feature allocator-api2";
        lacks.push(Lack { feature: Feature::Collections, why });
    }
    if cfg!(not(feature = "publish")) {
        let why = "built without the feature publish";
        lacks.push(Lack { feature: Feature::Publishing, why });
    }
    // A filter ends with the thread that installed it.
    if !std::thread::spawn(control::refuses_this_thread).join().unwrap() {
        let why = "the system takes no filters (seccomp)";
        lacks.push(Lack { feature: Feature::Refusing, why });
    }
    lacks
}

impl Options {
    fn features(self) -> Set {
        let lacks = Set::NONE
            .and_if(!self.checked, Feature::Checked)
            .and_if(!self.locks && !self.shares, Feature::Locks)
            .and_if(!self.isolates, Feature::IsolatedCpus)
            .and_if(!self.grows, Feature::Growing)
            .and_if(self.grows, Feature::Ceiling)
            .and_if(self.grows, Feature::Removal)
            // A depot that grows seldom runs short.
            .and_if(self.grows, Feature::Pressure);
        let others = if self.shares { &NOT_SHARED[..] } else { &SHARED[..] };
        let lacks = others.iter().fold(lacks, |lacks, &feature| lacks.and(feature));
        let lacks = lacking().iter().fold(lacks, |lacks, lack| lacks.and(lack.feature));
        Set(Feature::ALL.iter().fold(Set::NONE, |all, &one| all.and(one)).0 & !lacks.0)
    }

    /// The pairs of the table that it must cross.
    fn pairs(self, table: &Table<'_>) -> Vec<(usize, usize)> {
        let features = self.features();
        let has = |number: usize| features.0 >> number & 1 == 1;
        table.of_storm().filter(|&(one, other)| has(one) && has(other)).collect()
    }

    fn depot(self) -> Depot {
        let builder = Depot::builder(PAGES * page_bytes()).memory(MemoryKind::Memfd);
        let builder = builder.checked(self.checked);
        let builder = builder.per_cpu_locks(self.locks);
        let builder = if self.grows { builder.grow_to(PAGES_MAX * page_bytes()) } else { builder };
        let builder = if self.isolates { builder.isolated_cpus(isolated()) } else { builder };
        builder.build().unwrap()
    }

    fn members(self) -> Option<Members> {
        let options = |bytes| {
            let options = SharedOptions::new(bytes).per_cpu_locks(self.locks);
            if self.isolates { options.isolated_cpus(isolated()) } else { options }
        };
        self.shares.then(|| {
            let own = SharedDepot::create_memfd("storm", &options(PAGES * page_bytes())).unwrap();
            let peer = SharedDepot::adopt(own.file(), &options(0)).unwrap();
            Members { own, peer }
        })
    }

    /// The features that are there all the time.
    fn always(self) -> Set {
        Set::NONE
            .and_if(self.checked, Feature::Checked)
            .and_if(self.locks, Feature::Locks)
            .and_if(self.isolates, Feature::IsolatedCpus)
            .and_if(self.shares, Feature::Segment)
    }
}

/// The CPUs that nothing is to interrupt.
fn isolated() -> CpuSet {
    common::usable_cpus().into_iter().take(1).map(CpuId::new).collect()
}

fn table() -> Table<'static> {
    let table = Table::parse(include_str!("../pairs/table.txt"));
    assert_eq!(&table.names()[..Feature::NAMES.len()], Feature::NAMES);
    table
}

fn storm(name: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the handler allocates and frees without waiting, which depots allow.
    unsafe { install(libc::SIGUSR1, handler::allocate_and_free) };
    let mut options = STORMS.iter().find(|storm| storm.0 == name).unwrap().1;
    if is_sanitized() && options.shares {
        return skip("to ThreadSanitizer the mappings of two members are two memories");
    }
    if is_sanitized() && !options.locks {
        skip("sequences: ThreadSanitizer does not see into them");
        options.locks = true;
    }
    for lack in lacking() {
        skip(format_args!("{}: {}", Feature::NAMES[lack.feature as usize], lack.why));
    }
    let world = Arc::new(World::new(2 * PAGES_MAX as u32));
    let seed = seed(name);
    let pairs = options.pairs(&table());
    let missing = || -> Vec<_> {
        let name = |number: usize| Feature::NAMES[number];
        let missing = world.meetings.missing(&pairs).into_iter();
        missing.map(|pair| (name(pair.0), name(pair.1))).collect()
    };
    let (began, time) = (Instant::now(), soak(Duration::from_secs(1)));
    let mut rounds = 0_u64;
    let moved = || world.moved.each_ref().map(|moved| moved.load(Ordering::Relaxed));
    // A depot that has grown is large enough for large blocks to stay where they are.
    let needs_no_moves = options.grows || options.shares;
    let moves_all = || needs_no_moves || !moved().contains(&0);
    // Under ThreadSanitizer, and in an emulated machine, it would take minutes.
    let is_slow = is_sanitized() || is_emulated();
    let is_complete =
        || world.usage.counts().0 > 0 && (is_slow || missing().is_empty() && moves_all());
    while began.elapsed() < time || !is_complete() {
        let (missing, moved) = (missing(), moved());
        let is_late = began.elapsed() >= time * LONGER;
        assert!(!is_late, "{name}: never met: {missing:?}; moves by order: {moved:?}");
        rounds += 1;
        if options.shares {
            options.locks = rounds.is_multiple_of(2);
        }
        let _always = world.meetings.begin(options.always());
        round(options, &world, seed + 1000 * rounds);
    }
    let (sure, failed) = world.usage.counts();
    println!(
        "{name}: {rounds} rounds, {} of {} pairs met, {failed} failed, {sure} could not, \
         moved {:?}",
        pairs.len() - missing().len(),
        pairs.len(),
        moved(),
    );
    assert!(sure > 0);
}

/// Storms a depot, counts its pages, and takes it down.
fn round(options: Options, world: &Arc<World>, seed: u64) {
    let rng = |n| Rng::new(seed + n);
    let members = options.members();
    let depot = members.as_ref().map_or_else(|| options.depot(), |both| both.own.depot().clone());
    let peer = members.as_ref().map_or_else(|| depot.clone(), |both| both.peer.depot().clone());
    let builder = Vmalloc::builder(&depot).bytes(256 * mib());
    let space = builder.pool_bytes(mib()).lazy_bytes(mib()).warm_bytes(mib()).build().unwrap();
    let usage = &world.usage;
    usage.manage(PAGES as i64 - usage.managed());
    usage.use_pages(SPACE_PAGES - usage.used());
    usage.set_goal([40, 55, 100, 100][rng(0).index(4)]);
    world.stop.store(false, Ordering::Relaxed);
    // Members of a segment have a pool each.
    let pools = [Pool::default(), Pool::default()];
    let (given, callers) = (pools[0].clone(), world.clone());
    depot.on_pressure(move |pressure| reclaim(&given, &callers, pressure)).unwrap();
    if let Some(both) = &members {
        let (given, callers) = (pools[0].clone(), world.clone());
        both.own.on_shortage(move || give_others(&given, &callers)).unwrap();
    }
    let mut workers: Vec<Worker> = (1..=WORKERS)
        .map(|owner| {
            // Half of them work by the other member of a segment, which has no address space.
            let is_peer = options.shares && owner > WORKERS / 2;
            let members = members.as_ref();
            Worker {
                world: world.clone(),
                depot: if is_peer { peer.clone() } else { depot.clone() },
                members: members.map(|both| if is_peer { both.turned() } else { both.clone() }),
                space: (!is_peer).then(|| space.clone()),
                pool: pools[usize::from(is_peer)].clone(),
                rng: rng(owner.into()),
                owner,
                held: Vec::new(),
                last_fork: (owner == 1 && !is_sanitized()).then(Instant::now),
            }
        })
        .collect();
    let control = |n: u64| Control {
        world: world.clone(),
        // Some of them are at the other member.
        depot: if n % 2 == 1 { &peer } else { &depot },
        space: Some(space.clone()),
        rng: rng(100 + n),
        cpus: Topology::read().cpu_count(),
    };
    let kept = handler::while_over(&depot, world, || {
        std::thread::scope(|scope| {
            for worker in &mut workers {
                start(scope, world, || {
                    let _signals = Interrupts::every(libc::SIGUSR1, Duration::from_micros(700));
                    worker.run();
                });
            }
            let mut controls = (0..14).map(control);
            let mut next = || controls.next().unwrap();
            let (drains, drains_too) = (next(), next());
            let (switches, switches_too) = (next(), next());
            let (compacts, compacts_too) = (next(), next());
            let (gives_back, reports, sizes, is_refused) = (next(), next(), next(), next());
            start(scope, world, || drains.drain());
            start(scope, world, || drains_too.drain());
            start(scope, world, || switches.switch());
            start(scope, world, || switches_too.switch());
            start(scope, world, || compacts.compact());
            start(scope, world, || compacts_too.compact());
            start(scope, world, || gives_back.give_back());
            start(scope, world, || reports.report());
            let (kills, shares) = (next(), next());
            let (watches, publishes) = (next(), next());
            start(scope, world, || watches.watch(&pools[0]));
            start(scope, world, || publishes.publish());
            let has_ceiling = !options.grows && !options.shares;
            start(scope, world, move || is_refused.be_refused(has_ceiling));
            match &members {
                Some(both) => {
                    start(scope, world, || shares.share(both));
                    start(scope, world, || kills.kill(both));
                }
                None if options.grows => start(scope, world, || sizes.grow()),
                None => start(scope, world, || sizes.limit()),
            }
            std::thread::sleep(ROUND);
            world.stop.store(true, Ordering::Relaxed);
        });
    });
    for worker in &mut workers {
        let pooled = std::mem::take(&mut *worker.pool.lock().unwrap());
        worker.held.extend(pooled);
    }
    // To one member pages that the other caches are held.
    let cached = members.as_ref().map_or(0, Members::cached_by_peer);
    // Half of the rounds count the pages without those of the address space, which keeps some.
    if rng(9).one_in(2) {
        workers.iter_mut().for_each(Worker::leave_space);
        drop(space);
        let pages = |worker: &Worker| -> u64 {
            worker.held.iter().map(|item| u64::from(item.pages())).sum()
        };
        let held = workers.iter().map(pages).sum::<u64>() + kept + cached;
        let census = depot.validate().unwrap();
        assert_eq!(census.held_pages(), held, "{census:?}");
    } else {
        depot.validate().unwrap();
        drop(space);
    }
    handler::end(&depot, world);
    depot.cpu_caches().enable();
    depot.drain(Scope::ALL, Mode::Full);
    drop((depot, peer, members, pools));
    std::thread::scope(|scope| {
        workers.into_iter().for_each(|worker| start(scope, world, || worker.end()));
    });
    assert_eq!(world.marks.held(), 0);
}

/// Frees what workers left behind: the callback. In a handler it stays off the heap, whose locks
/// the code below may hold.
fn reclaim(pool: &Pool, world: &World, pressure: Pressure) -> u64 {
    let _now = world.meetings.begin(Feature::Pressure);
    let mut freed = 0;
    while freed < pressure.wanted_pages {
        // A worker may hold the lock, this one even.
        let Some(item) = pool.try_lock().ok().and_then(|mut pool| match handler::is_one() {
            true => pool.pop_if(|item| item.needs_no_heap()),
            false => pool.pop(),
        }) else {
            break;
        };
        world.meetings.meet(Feature::Pressure, item.via);
        freed += u64::from(item.pages());
        Item::free(item);
    }
    freed
}

/// Frees what workers left behind, for another member of the segment.
fn give_others(pool: &Pool, world: &World) {
    let _now = world.meetings.begin(Feature::Shortage);
    for _ in 0..4 {
        let Some(item) = pool.lock().unwrap().pop() else { return };
        world.meetings.meet(Feature::Shortage, item.via);
        item.free();
    }
}

/// Starts a thread that ends the round if it fails.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    world: &'scope Arc<World>,
    work: impl FnOnce() + Send + 'scope,
) {
    scope.spawn(move || {
        let _stop = StopOnPanic(world);
        work();
    });
}

struct StopOnPanic<'w>(&'w World);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn sequences() {
    storm("sequences");
}

#[test]
fn sequences_checked() {
    storm("sequences_checked");
}

#[test]
fn locks() {
    storm("locks");
}

#[test]
fn locks_checked() {
    storm("locks_checked");
}

#[test]
fn segment() {
    storm("segment");
}

#[test]
fn every_claim_of_the_table_is_checked_by_a_storm() {
    let table = table();
    let checked: Vec<_> = STORMS.iter().flat_map(|storm| storm.1.pairs(&table)).collect();
    let names = table.names();
    let lacks = lacking();
    let is_lacking = |number| lacks.iter().any(|lack| lack.feature as usize == number);
    for (one, other) in table.of_storm() {
        let is_checked = checked.contains(&(one, other)) || is_lacking(one) || is_lacking(other);
        assert!(is_checked, "{} and {}", names[one], names[other]);
    }
}
