//! Everything at once, at random: all orders, ranges, frames at given addresses, bulk requests,
//! parts of blocks, zeroed pages, movers, pins, removal, reporting, drains of all modes and every
//! switch, by more threads than there are CPUs.
//!
//! 1. *No frame has two holders.* Each has its holder's mark, and keeps what its holder wrote, when
//!    it is moved, too. Requests for zeroed pages get zeroes.
//! 2. *No frame is lost.* After each round the allocator counts as held what is held.
//! 3. *No request for a frame fails* while less than 60 percent of the memory is in use.
//! 4. *Every pair of features meets* that the [table](../pairs/table.txt) says does.
//!
//! A storm takes a second, or `PAGEDEPOT_SOAK_SECONDS`, and longer until all pairs have met.
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
use common::threads::{Claimed, Kernel};
use control::Control;
use device::Device;
use feature::Feature;
use mover::Slots;
use pagedepot::cpus::{CpuLock, Cpus, LockedCpus, PinnedCpus};
use pagedepot::{
    Allocator, Backing, Class, Classes, Config, Mobility, Mode, NodeId, Pfn, Scope, Watermarks,
    ZoneConfig, ZoneId,
};
use pagedepot_contiguity::{Compactor, Reporting};
use pool::Pool;
use worker::{AtWork, CPUS, Worker};
use world::{FIRST, FRAMES, LATE, LOW, NORMAL, REMOTE, World};

/// Threads that allocate and free.
const WORKERS: u32 = 5;
const ROUND: Duration = Duration::from_millis(250);
/// Factor of a storm's time for which it goes on for pairs that have not met.
const LONGER: u32 = 480;

/// The options of a storm.
#[derive(Clone, Copy, Default)]
struct Options {
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
            Feature::Removal,
            Feature::Reporting,
            Feature::Refusing,
            Feature::EvacuationOff,
            Feature::EvacuationGoal,
            Feature::EvacuationAdaptive,
            Feature::Classes,
        ];
        let lacks = of_store.iter().fold(lacks, |lacks, &one| lacks.and_if(is_backed, one));
        let lacks = lacks
            .and_if(!is_backed, Feature::Backing)
            .and_if(self.backing == Some(false), Feature::Ranges)
            .and_if(self.backing == Some(false), Feature::At);
        Set(Feature::ALL.iter().fold(Set::NONE, |all, &one| all.and(one)).0 & !lacks.0)
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

const PLAIN: Options = Options { checked: false, backing: None };
/// Storms by the name of their test.
const STORMS: [(&str, Options); 6] = [
    ("locked", PLAIN),
    ("locked_and_checked", Options { checked: true, ..PLAIN }),
    ("pinned", PLAIN),
    ("pinned_and_checked", Options { checked: true, ..PLAIN }),
    ("over_a_backing", Options { backing: Some(false), ..PLAIN }),
    ("over_a_backing_with_ranges", Options { backing: Some(true), checked: true }),
];

fn table() -> Table<'static> {
    let table = Table::parse(include_str!("../pairs/table.txt"));
    assert_eq!(&table.names()[..Feature::NAMES.len()], Feature::NAMES);
    table
}

/// The function that isolates CPUs of the kind that a storm runs on.
type Isolate<C> = fn(&C, u64);

fn storm<C: Cpus + Send>(name: &str, cpus: C, isolate: Isolate<C>) {
    let options = STORMS.iter().find(|storm| storm.0 == name).unwrap().1;
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
    let arena = Arena::new(FIRST, FRAMES);
    let config = Config {
        cpu_nodes: &[NodeId::new(0), NodeId::new(1)],
        pfn_limit: Some(Pfn::new(FIRST + FRAMES)),
        checked: options.checked,
        linear_map: Some(arena.linear_map()),
        classes: Classes::ALIKE
            .apart(Mobility::Movable, Class::PAGE_CACHE)
            .apart(Mobility::Unmovable, Class::SHORT_LIVED),
        ..Config::new(CPUS, &zones)
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
    let bytes = builder.metadata_bytes().unwrap();
    let mut metadata = vec![MaybeUninit::uninit(); bytes + (1 << 16)];
    let (metadata, magazines) = metadata.split_at_mut(bytes);
    let mut late_metadata = vec![MaybeUninit::uninit(); 1 << 20];
    let mut late = Some((&mut late_metadata[..], magazines));
    let compactor = Compactor::new(&slots);
    let mut depot = builder.build(metadata, cpus).unwrap();
    depot.register_reclaim(&pool).unwrap();
    compactor.register(&depot).unwrap();
    Reporting::of(&depot).register(&device).unwrap();

    let seed = seed(name);
    let rng = |n| Rng::new(seed + n);
    let mut workers: Vec<_> = (1..=WORKERS)
        .map(|owner| Worker::new(&world, &device, &pool, rng(owner.into()), owner))
        .collect();
    let always = Set::NONE
        .and_if(options.checked, Feature::Checked)
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
    let mut round = 0_u64;
    while began.elapsed() < time || !missing().is_empty() || !moves_all() {
        let (missing, moved) = (missing(), moved());
        let is_late = began.elapsed() >= time * LONGER;
        assert!(!is_late, "{name}: never met: {missing:?}; moves by order: {moved:?}");
        round += 1;
        // Callbacks are called where memory is short.
        let is_short = world.meetings.wants(Feature::Reclaim) && choices.one_in(2);
        world.usage.set_goal(if is_short { 100 } else { [30, 50, 55, 100][choices.index(4)] });
        world.stop.store(false, Ordering::Relaxed);
        let isolate_cpus = |bits| isolate(depot.cpus(), bits);
        let control = |n| Control {
            world: &world,
            device: &device,
            depot: &depot,
            rng: rng(1000 * round + n),
            sets_policies: n == 1 && options.backing.is_none(),
            isolate_cpus: if n == 1 { Some(&isolate_cpus) } else { None },
        };
        pool.while_over(&depot, || {
            std::thread::scope(|scope| {
                for worker in &mut workers {
                    let at_work = AtWork { worker, depot: &depot };
                    start(scope, &world, || at_work.run());
                }
                let [switches, switches_too, drains, drains_too] = [1, 2, 3, 8].map(control);
                start(scope, &world, || drains.drain());
                start(scope, &world, || drains_too.drain());
                start(scope, &world, || switches.switch());
                start(scope, &world, || switches_too.switch());
                if options.backing.is_none() {
                    let [compacts, compacts_too, reports, removes] = [4, 5, 6, 7].map(control);
                    start(scope, &world, || compacts.compact());
                    start(scope, &world, || compacts_too.compact());
                    start(scope, &world, || reports.report());
                    start(scope, &world, || removes.remove());
                }
                std::thread::sleep(ROUND / 2);
                if let Some((metadata, magazines)) = late.take() {
                    assert!(depot.cpu_caches().add_magazines(magazines).unwrap() > 200);
                    world.add_late(&depot, metadata);
                    if let Some(sets) = &sets {
                        sets.add(ZoneId::new(3), LATE);
                    }
                }
                std::thread::sleep(ROUND / 2);
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
    let (sure, failed) = world.usage.counts();
    println!(
        "{name}: {round} rounds, {} pairs met, {} requests failed, {} could not; moved {:?}, {:?}",
        pairs.len(),
        failed,
        sure,
        moved(),
        Reporting::of(&depot).counts(),
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

fn locks() -> [CpuLock; CPUS as usize] {
    std::array::from_fn(|_| CpuLock::new())
}

fn on_locks(name: &str) {
    let isolate = |cpus: &LockedCpus<'_, Claimed>, bits| cpus.environment().spare(bits);
    storm(name, LockedCpus::new(&locks(), Claimed::new()), isolate);
}

fn on_guards(name: &str) {
    storm(name, PinnedCpus(Kernel::new(CPUS)), |cpus, bits| cpus.0.spare(bits));
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
    on_guards("pinned_and_checked");
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
