//! Everything at once, at random: all orders, ranges, frames at given addresses, bulk requests,
//! parts of blocks, zeroed pages, movers, pins, removal, reporting, drains of all modes and every
//! switch, by more threads than there are CPUs.
//!
//! 1. *No frame has two holders.* Each has its holder's mark, and keeps what its holder wrote, when
//!    it is moved, too. Requests for zeroed pages get zeroes.
//! 2. *No frame is lost.* After each round the allocator counts as held what is held.
//! 3. *No request for a frame fails* while less than 60 percent of the memory is in use.
//! 4. *Every pair of features meets* that the [table](../pairs/table.txt) says does. A call that
//!    may come to nothing counts if it succeeds, a policy of evacuation while pageblocks evacuate,
//!    a device that refuses while a request waits for it.
//! 5. *Every deed is done* that [`Deed`] names.
//!
//! Workers prefer what has not met yet. In calm phases they leave few frames in many pageblocks, so
//! that these evacuate; in surges they ask for more unmovable blocks than others have room for.
//!
//! A storm takes a second, or `PAGEDEPOT_SOAK_SECONDS`, and longer until all pairs have met; under
//! ThreadSanitizer four times as long at most.
//! `PAGEDEPOT_SEED` repeats its choices.

mod arena;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod device;
mod feature;
mod mover;
mod pool;
mod worker;
mod world;

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arena::Arena;
use common::backing::Sets;
use common::meetings::Set;
use common::pairs::Table;
use common::rng::{Rng, seed};
use common::soak;
use common::threads::{Claimed, Kernel, Parked};
use control::Control;
use device::Device;
use feature::{Deed, Feature};
use mover::{Slots, WatchedCompactor};
use pagedepot::cpus::{CpuLock, Cpus, LockedCpus, PinnedCpus};
use pagedepot::seam::register_relief;
use pagedepot::{
    Allocator, Backing, Class, Classes, Config, HighPolicy, Mobility, Mode, NodeId, Pfn, Scope,
    Watermarks, ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{Compactor, Reporting};
use pool::Pool;
use worker::{AtWork, Worker};
use world::{FIRST, FRAMES, LATE, LOW, NORMAL, REMOTE, World};

/// Threads that allocate and free.
const WORKERS: u32 = 5;
/// CPUs of most storms, and of one whose counts of free pages are grouped.
const CPUS: u32 = 3;
const CPUS_GROUPED: u32 = 17;
/// Bytes that the metadata of all storms fits into.
const METADATA_BYTES: usize = 8 << 20;
/// Magazines that are added during the run, in bytes.
const MAGAZINE_BYTES: usize = 1 << 16;
const ROUND: Duration = Duration::from_millis(250);
/// Time between looks at which pairs have not met yet.
const LOOK: Duration = Duration::from_millis(10);
/// Factor of a storm's time for which it goes on for pairs that have not met.
const LONGER: u32 = 480;
/// Factor after which it ends all the same under ThreadSanitizer, where threads take ten times as
/// long to meet: there it is to see accesses that nothing orders, and not all pairs.
const LONGER_SANITIZED: u32 = 4;

/// The options of a storm.
#[derive(Clone, Copy)]
struct Options {
    cpus: u32,
    /// Whether fronts are behind locks, so that drains take those of isolated CPUs, too.
    locked: bool,
    checked: bool,
    /// Whether the store is a backing, with ranges or without.
    backing: Option<bool>,
}

impl Options {
    /// The features that the storm has.
    fn features(self) -> Set {
        let lacks = Set::NONE.and_if(!self.checked, Feature::Checked);
        let is_backed = self.backing.is_some();
        let of_store = [
            Feature::Compaction,
            Feature::Mover,
            Feature::Pins,
            Feature::Reporting,
            Feature::Refusing,
            Feature::EvacuationOff,
            Feature::EvacuationGoal,
            Feature::EvacuationAdaptive,
            Feature::Classes,
            Feature::Thinning,
        ];
        let lacks = of_store.iter().fold(lacks, |lacks, &one| lacks.and_if(is_backed, one));
        let lacks = lacks
            .and_if(!is_backed, Feature::Backing)
            // There are more magazines than these CPUs fill.
            .and_if(is_backed && self.cpus > CPUS, Feature::Carving)
            .and_if(self.locked, Feature::IsolatedCpus)
            .and_if(self.cpus <= CPUS, Feature::Grouped)
            .and_if(self.backing == Some(false), Feature::Ranges)
            .and_if(self.backing == Some(false), Feature::Removal)
            .and_if(self.backing == Some(false), Feature::At);
        Set(Feature::ALL.iter().fold(Set::NONE, |all, &one| all.and(one)).0 & !lacks.0)
    }

    /// Whether the storm must have done this at its end.
    fn must(self, deed: Deed) -> bool {
        match deed {
            Deed::LeftAlone => !self.locked,
            Deed::Reclaimed => true,
            Deed::Removed => self.backing != Some(false),
            _ => self.backing.is_none(),
        }
    }

    /// The pairs of the table that it must cross.
    fn pairs(self, table: &Table<'_>) -> Vec<(usize, usize)> {
        let has = |number: usize| self.features().0 >> number & 1 == 1;
        // Over a backing most features are those of the backing.
        let backing = Feature::Backing as usize;
        let is_ours = |pair: &(usize, usize)| {
            has(pair.0) && has(pair.1) && (self.backing.is_none() || pair.0 == backing)
        };
        table.of_storm().filter(is_ours).collect()
    }
}

const PLAIN: Options = Options { cpus: CPUS, locked: false, checked: false, backing: None };
const LOCKED: Options = Options { locked: true, ..PLAIN };
/// Storms by the name of their test.
const STORMS: [(&str, Options); 6] = [
    ("locked", LOCKED),
    ("locked_and_checked", Options { checked: true, ..LOCKED }),
    ("pinned", PLAIN),
    ("pinned_and_checked", Options { cpus: CPUS_GROUPED, checked: true, ..PLAIN }),
    ("over_a_backing", Options { cpus: CPUS_GROUPED, backing: Some(false), ..PLAIN }),
    ("over_a_backing_with_ranges", Options { backing: Some(true), checked: true, ..PLAIN }),
];

fn table() -> Table<'static> {
    let table = Table::parse(include_str!("../pairs/table.txt"));
    assert_eq!(&table.names()[..Feature::NAMES.len()], Feature::NAMES);
    table
}

/// The function that isolates CPUs of the kind that a storm runs on.
type Isolate<C> = fn(&C, u64);

fn options(name: &str) -> Options {
    STORMS.iter().find(|storm| storm.0 == name).unwrap().1
}

fn storm<C: Cpus + Send>(name: &str, cpus: C, isolate: Isolate<C>) {
    let options = options(name);
    let zone = |name, node, level, ranges| ZoneConfig {
        name,
        node: NodeId::new(node),
        level,
        ranges,
        watermarks: Some(Watermarks { min: 64, low: 128, high: 256 }),
    };
    let zones = [
        zone("low", 0, 1, &LOW),
        zone("normal", 0, 2, &NORMAL),
        zone("remote", 1, 2, &REMOTE),
        zone("late", 1, 3, &[]),
    ];
    let arena = Arena::new(FIRST, FRAMES, METADATA_BYTES);
    let config = Config {
        cpu_nodes: &[NodeId::new(0), NodeId::new(1)],
        pfn_limit: Some(Pfn::new(FIRST + FRAMES)),
        checked: options.checked,
        // So few magazines that frames are carved for more.
        high: HighPolicy::Fixed(8),
        linear_map: Some(arena.linear_map()),
        classes: Classes::ALIKE
            .apart(Mobility::Movable, Class::PAGE_CACHE)
            .apart(Mobility::Unmovable, Class::SHORT_LIVED),
        ..Config::new(options.cpus, &zones)
    };
    let managed = zones.iter().flat_map(|zone| zone.ranges).map(|range| range.frames).sum();
    let world = World::new(&arena, managed);
    let device = Device::new(&world);
    let pool = Pool::new(&world);
    let slots = Slots::new(&world, Feature::Mover);
    let sets = options.backing.map(|has_ranges| Sets::new(&zones, has_ranges));
    let under = sets.as_ref().map(|sets| sets as &dyn Backing);
    let builder = Allocator::builder(&config).backing(under);
    // Magazines are in reach of the metadata.
    // SAFETY: this is the only call.
    let (metadata, magazines) =
        unsafe { arena.metadata() }.split_at_mut(METADATA_BYTES - MAGAZINE_BYTES);
    let metadata = &mut metadata[..builder.metadata_bytes().unwrap()];
    let mut late_metadata = vec![MaybeUninit::uninit(); 1 << 20];
    let (mut late, mut magazines) = (Some(&mut late_metadata[..]), Some(magazines));
    let compactor = WatchedCompactor { world: &world, compactor: Compactor::new(&slots) };
    let mut depot = builder.build(metadata, cpus).unwrap();
    depot.register_reclaim(&pool).unwrap();
    assert!(register_relief(&depot, &compactor));
    Reporting::of(&depot).register(&device).unwrap();

    let seed = seed(name);
    let rng = |n| Rng::new(seed + n);
    let mut workers: Vec<_> = (1..=WORKERS)
        .map(|owner| Worker::new(&world, &device, &pool, rng(owner.into()), owner))
        .collect();
    let always = Set::NONE
        .and_if(options.checked, Feature::Checked)
        .and_if(options.cpus > CPUS, Feature::Grouped)
        .and_if(options.backing.is_some(), Feature::Backing);
    let _always = world.meetings.begin(always);
    let pairs = options.pairs(&table());
    let missing = || -> Vec<_> {
        let name = |number: usize| Feature::NAMES[number];
        let missing = world.meetings.missing(&pairs).into_iter();
        missing.map(|pair| (name(pair.0), name(pair.1))).collect()
    };
    let mut choices = rng(7);
    let (began, time) = (Instant::now(), soak(Duration::from_secs(1)));
    let moved = || world.moved.each_ref().map(|moved| moved.load(Ordering::Relaxed));
    let moves_all = || options.backing.is_some() || !moved().contains(&0);
    let times = || {
        Deed::ALL.iter().filter(|&&deed| options.must(deed)).map(|&deed| (deed, world.times(deed)))
    };
    let has_done_all =
        || missing().is_empty() && moves_all() && times().all(|(_, times)| times > 0);
    let is_enough =
        || cfg!(pagedepot_tsan) && began.elapsed() >= time * LONGER_SANITIZED || has_done_all();
    let is_over = || began.elapsed() >= time && is_enough();
    let mut carving = None;
    let has = |feature| options.features().0 & Set::from(feature).0 != 0;
    let mut round = 0_u64;
    while !is_over() {
        let (missing, moved) = (missing(), moved());
        let is_late = began.elapsed() >= time * LONGER;
        assert!(
            !is_late,
            "{name}: never met: {missing:?}; moves by order: {moved:?}; {:?}",
            times().collect::<Vec<_>>()
        );
        round += 1;
        // Callbacks are called where memory is short.
        let is_short = world.meetings.wants(Feature::Reclaim) && !choices.one_in(4);
        world.usage.set_goal(if is_short { 100 } else { [30, 50, 55, 100][choices.index(4)] });
        world.stop.store(false, Ordering::Relaxed);
        let isolate_cpus = |bits| isolate(depot.cpus(), bits);
        let control = |n| Control {
            world: &world,
            device: &device,
            depot: &depot,
            rng: rng(1000 * round + n),
            sets: sets.as_ref(),
            isolate_cpus: if n == 1 { Some(&isolate_cpus) } else { None },
        };
        pool.while_over(&depot, || {
            std::thread::scope(|scope| {
                for worker in &mut workers {
                    let at_work = AtWork { worker, depot: &depot };
                    start(scope, &world, || at_work.run());
                }
                let [switches, switches_too, drains, drains_too, evacuates] =
                    [1, 2, 3, 8, 9].map(control);
                start(scope, &world, || evacuates.evacuate());
                start(scope, &world, || drains.drain());
                start(scope, &world, || drains_too.drain());
                start(scope, &world, || switches.switch());
                start(scope, &world, || switches_too.switch());
                if options.backing.is_none() {
                    let [compacts, compacts_too, reports] = [4, 5, 6].map(control);
                    start(scope, &world, || compacts.compact());
                    start(scope, &world, || compacts_too.compact());
                    start(scope, &world, || reports.report());
                }
                if has(Feature::Removal) {
                    let removes = control(7);
                    start(scope, &world, || removes.remove());
                }
                let began = Instant::now();
                while began.elapsed() < ROUND && !is_over() {
                    std::thread::sleep(LOOK);
                    let has_carved = |zone| depot.zone_stats(zone).unwrap().carved_pages > 0;
                    if carving.is_none() && depot.zone_ids().any(has_carved) {
                        carving = Some(world.meetings.begin(Feature::Carving));
                    }
                    let is_late = began.elapsed() > ROUND / 2;
                    if let Some(metadata) = if is_late { late.take() } else { None } {
                        world.add_late(&depot, metadata);
                        if let Some(sets) = &sets {
                            sets.add(ZoneId::new(3), LATE);
                        }
                    }
                    // Frames are carved before.
                    let has_carved = carving.is_some() || !has(Feature::Carving);
                    if let Some(magazines) = if has_carved { magazines.take() } else { None } {
                        assert!(depot.cpu_caches().add_magazines(magazines).unwrap() > 200);
                    }
                }
                world.stop.store(true, Ordering::Relaxed);
            });
        });
        let held = workers.iter().map(Worker::held_pages).sum::<u64>() + pool.pages();
        let census = depot.validate().unwrap();
        assert_eq!(census.held_pages(), held, "{census:?}");
        assert_eq!(world.marks.held(), held);
        assert_eq!(census.managed_pages as i64, world.usage.managed());
    }
    for worker in &mut workers {
        AtWork { worker, depot: &depot }.end();
    }
    while let Some(block) = pool.take() {
        world.give_back(&block);
        depot.free(block.start, block.order.unwrap()).unwrap();
    }
    depot.cpu_caches().enable();
    let drained = depot.drain(Scope::ALL, Mode::Full);
    assert_eq!((drained.busy_cpus, drained.unreachable_pages, drained.in_flight_pages), (0, 0, 0));
    let census = depot.validate().unwrap();
    assert_eq!(census.free_pages + census.carved_pages, census.managed_pages);
    assert_eq!(world.marks.held(), 0);
    let counted: u64 = depot.zone_ids().map(|zone| depot.free_pages(zone)).sum();
    assert_eq!(counted, census.free_pages);
    let (sure, failed) = world.usage.counts();
    println!(
        "{name}: {round} rounds, {} pairs met, {} requests failed, {} could not; moved {:?}, {:?}, \
         {:?}, {} pages carved",
        pairs.len() - missing().len(),
        failed,
        sure,
        moved(),
        Reporting::of(&depot).counts(),
        times().collect::<Vec<_>>(),
        census.carved_pages,
    );
    assert!(sure > 0);
}

/// Starts a thread of a round.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    world: &'scope World<'_>,
    work: impl FnOnce() + Send + 'scope,
) {
    scope.spawn(move || {
        let _stop = StopOnPanic(world);
        work();
    });
}

/// Ends a round when one of its threads fails.
struct StopOnPanic<'w>(&'w World<'w>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn on_locks(name: &str) {
    let isolate = |cpus: &LockedCpus<'_, Claimed>, bits| cpus.environment().spare(bits);
    let locks: Vec<CpuLock> = (0..options(name).cpus).map(|_| CpuLock::new()).collect();
    storm(name, LockedCpus::new(&locks, Claimed::new()), isolate);
}

fn on_guards(name: &str) {
    let cpus = PinnedCpus(Kernel::new(options(name).cpus));
    storm(name, cpus, |cpus, bits| cpus.0.spare(bits));
}

/// Threads have names, and sleep where they wait for one another.
fn with_names(name: &str) {
    let cpus = PinnedCpus(Parked::new(options(name).cpus));
    storm(name, cpus, |cpus, bits| cpus.0.kernel.spare(bits));
}

#[test]
fn locked() {
    on_locks("locked");
}

#[test]
fn locked_and_checked() {
    on_locks("locked_and_checked");
}

#[test]
fn pinned() {
    on_guards("pinned");
}

#[test]
fn pinned_and_checked() {
    with_names("pinned_and_checked");
}

#[test]
fn over_a_backing() {
    on_guards("over_a_backing");
}

#[test]
fn over_a_backing_with_ranges() {
    on_guards("over_a_backing_with_ranges");
}

#[test]
fn every_claim_of_the_table_is_checked_by_a_storm() {
    let table = table();
    let checked: Vec<_> = STORMS.iter().flat_map(|storm| storm.1.pairs(&table)).collect();
    for (one, other) in table.of_storm() {
        let names = table.names();
        assert!(checked.contains(&(one, other)), "{} and {}", names[one], names[other]);
    }
}
