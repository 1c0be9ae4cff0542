//! Models: owners and a drainer over a few frames, in all their interleavings (up to a bound of
//! preemptions). Frames carry marks, so that a model finds a frame handed out twice at once. At the
//! end every frame must be in exactly one place.
//!
//! Restartable sequences are assembly, which the model checker does not see. Here owners enter
//! through their lock (`Entry::Lock`), and fences are symmetric. The models check everything behind
//! the entry: the pointer, the grace periods, the chunks, the lists.

#[path = "../../../crates/core/src/loom_tests/explore.rs"]
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use pagedepot::cpus::Here;
use pagedepot::{CacheLimits, CpuId, Mobility, Mode, Order, Pfn, ZoneId};
use pagedepot_designs::{Buddy, LockMode, PageCache, Policy, Scope, Setup, Spin, Store};

use crate::left::WorkPlaces;
use crate::{Entry, Grace, Local, LocalDrain, Magazine, MagazineOptions, PcpBuddy, Qpw, Rcu};
use pagedepot_designs::prim::PlainU32;

const FRAMES: u32 = 4;

/// A machine of four frames whose CPUs hold at most two.
fn setup(cpus: u32) -> Setup {
    let mut setup = Setup::single(cpus, FRAMES);
    setup.zones[0].limits = Some(CacheLimits { batch: 1, high_min: 2, high_max: 2 });
    setup
}

/// A design, and the marks of frames that are held. Marks are not part of the model: they only
/// observe.
struct Ground<D> {
    design: D,
    marks: [AtomicU32; FRAMES as usize],
}

fn here(cpu: u32) -> Here {
    Here::task(CpuId::new(cpu))
}

impl<D: PageCache> Ground<D> {
    fn new(design: D) -> Arc<Self> {
        Arc::new(Ground { design, marks: std::array::from_fn(|_| AtomicU32::new(0)) })
    }

    fn take(&self, cpu: u32) -> Option<Pfn> {
        let pfn = self.design.alloc(here(cpu), Order::BASE, Mobility::Movable)?;
        assert_eq!(self.marks[pfn.index()].swap(1, Ordering::Relaxed), 0, "{pfn} twice");
        Some(pfn)
    }

    fn give(&self, cpu: u32, pfn: Pfn) {
        self.marks[pfn.index()].store(0, Ordering::Relaxed);
        self.design.free(here(cpu), pfn, Order::BASE);
    }

    /// Allocates two frames and frees them.
    fn turn(&self, cpu: u32) {
        let taken = [self.take(cpu), self.take(cpu)];
        taken.into_iter().flatten().for_each(|pfn| self.give(cpu, pfn));
    }

    /// Checks that every frame is in one place, and that all can be drained after owners were idle.
    fn settle(self, cpus: u32) {
        let mut design = self.design;
        assert_eq!(design.validate().unwrap().held_pages(), 0);
        (0..cpus).for_each(|cpu| design.idle(here(cpu)));
        design.drain(Scope::ALL, Mode::Full);
        (0..cpus).for_each(|cpu| design.idle(here(cpu)));
        assert_eq!(design.validate().unwrap().free_pages, u64::from(FRAMES));
    }
}

/// Explores all interleavings of two threads over a design.
fn explore<D: PageCache + Send + 'static>(
    cpus: u32,
    make: impl Fn(Buddy) -> D + Send + Sync + 'static,
    [other, own]: [fn(&Ground<D>); 2],
) {
    run::explore(3, move || {
        let ground = Ground::new(make(Buddy::new(&setup(cpus)).unwrap()));
        // A page is cached from the start, so that a drain finds it.
        if let Some(pfn) = ground.take(0) {
            ground.give(0, pfn);
        }
        let shared = Arc::clone(&ground);
        let thread = thread::spawn(move || other(&shared));
        own(&ground);
        thread.join().unwrap();
        let Some(ground) = Arc::into_inner(ground) else { panic!("a thread still uses it") };
        ground.settle(cpus);
    });
}

fn drain<D: PageCache>(ground: &Ground<D>) {
    ground.design.drain(Scope::ALL, Mode::Full);
}

fn turn_0<D: PageCache>(ground: &Ground<D>) {
    ground.turn(0);
}

fn turn_1<D: PageCache>(ground: &Ground<D>) {
    ground.turn(1);
}

fn spin(mode: LockMode) {
    explore(1, move |buddy| Spin::new(buddy, mode, Policy::default()), [drain, turn_0]);
}

#[test]
fn spin_trylock_owner_and_drainer() {
    spin(LockMode::TryLock);
}

#[test]
fn spin_plain_owner_and_drainer() {
    spin(LockMode::Plain);
}

#[test]
fn spin_two_owners_of_one_zone() {
    explore(2, |buddy| Spin::new(buddy, LockMode::TryLock, Policy::default()), [turn_1, turn_0]);
}

#[test]
fn local_owner_does_what_it_was_asked() {
    let make = |buddy| Local::new(buddy, Entry::Lock, LocalDrain::Owner, Policy::default());
    explore(1, make, [drain, turn_0]);
}

/// One CPU's lists are under its spinlock, the other's under its local lock; both use one store.
#[test]
fn qpw_owners_under_different_locks() {
    explore(2, |buddy| qpw(buddy, LocalDrain::Owner), [turn_1, turn_0]);
}

/// The drain does the work of the CPU with the spinlock, and queues that of the other.
#[test]
fn qpw_drain_beside_an_owner_that_spins() {
    explore(2, |buddy| qpw(buddy, LocalDrain::Owner), [drain, turn_0]);
}

#[test]
fn qpw_drain_beside_an_owner_that_does_not() {
    explore(2, |buddy| qpw(buddy, LocalDrain::Owner), [drain, turn_1]);
}

fn qpw(buddy: Buddy, drain: LocalDrain) -> Qpw<Buddy> {
    Qpw::new(buddy, |cpu| cpu.get() == 0, Entry::Lock, drain, Policy::default())
}

/// CPUs own pairs of frames, and hold three frames: one more than a pair.
fn pairs(buddy: Buddy) -> PcpBuddy<Buddy> {
    let limits = CacheLimits { batch: 1, high_min: 3, high_max: 3 };
    buddy.zones().zone(ZoneId::new(0)).set_limits(limits).unwrap();
    PcpBuddy::with_blocks(buddy, Policy::default(), Order::new(1).unwrap())
}

fn pcp_buddy(cpus: u32, threads: [fn(&Ground<PcpBuddy<Buddy>>); 2]) {
    explore(cpus, pairs, threads);
}

#[test]
fn pcp_buddy_owner_and_drainer() {
    pcp_buddy(1, [drain, turn_0]);
}

/// Each CPU takes three frames, more than its own pair: they meet in the store.
#[test]
fn pcp_buddy_two_owners_of_one_zone() {
    pcp_buddy(2, [three::<1>, three::<0>]);
}

fn three<const CPU: u32>(ground: &Ground<PcpBuddy<Buddy>>) {
    let taken = [ground.take(CPU), ground.take(CPU), ground.take(CPU)];
    taken.into_iter().flatten().for_each(|pfn| ground.give(CPU, pfn));
}

/// CPU 1 frees what CPU 0 allocated: it reads the owner without a lock, and frees to the lists of
/// CPU 0, which uses them at the same time.
#[test]
fn pcp_buddy_frees_go_to_the_owner() {
    run::explore(3, || {
        let ground = Ground::new(pairs(Buddy::new(&setup(2)).unwrap()));
        let passed = ground.take(0).unwrap();
        assert_eq!(ground.design.owner(passed), Some(CpuId::new(0)));
        let shared = Arc::clone(&ground);
        let thread = thread::spawn(move || shared.give(1, passed));
        turn_0(&ground);
        thread.join().unwrap();
        let Some(ground) = Arc::into_inner(ground) else { panic!("a thread still uses it") };
        ground.settle(2);
    });
}

/// A drain gives back the pair of CPU 0 while CPU 1 takes three frames: its own pair, and what it
/// finds of that one. CPU 0 frees them all.
#[test]
fn pcp_buddy_pairs_change_hands() {
    let claim = |ground: &Ground<PcpBuddy<Buddy>>| {
        let taken = [ground.take(1), ground.take(1), ground.take(1)];
        taken.into_iter().flatten().for_each(|pfn| ground.give(0, pfn));
    };
    pcp_buddy(2, [drain, claim]);
}

fn rcu(grace: Grace, threads: [fn(&Ground<Rcu<Buddy>>); 2]) {
    explore(1, move |buddy| Rcu::new(buddy, Entry::Lock, grace, Policy::default()), threads);
}

#[test]
fn rcu_blocking_owner_and_drainer() {
    rcu(Grace::Blocking, [drain, turn_0]);
}

#[test]
fn rcu_blocking_two_drains_in_a_row() {
    rcu(Grace::Blocking, [drain_twice, turn_0]);
}

/// A drain that takes the lists while an owner still uses them.
#[test]
#[should_panic(expected = "Causality violation")]
fn rcu_blocking_without_a_wait_is_found() {
    crate::rcu::with_impatient_drainers(|| rcu(Grace::Blocking, [drain, turn_0]));
}

fn drain_twice<D: PageCache>(ground: &Ground<D>) {
    drain(ground);
    drain(ground);
}

#[test]
fn rcu_membarrier_owner_and_drainer() {
    rcu(Grace::Membarrier, [drain, turn_0]);
}

#[test]
fn rcu_membarrier_two_drains_in_a_row() {
    rcu(Grace::Membarrier, [drain_twice, turn_0]);
}

#[test]
fn rcu_qsbr_owner_and_drainer() {
    rcu(Grace::Qsbr, [drain, turn_0]);
}

#[test]
fn rcu_qsbr_collects_while_the_owner_goes_on() {
    let collect = |ground: &Ground<Rcu<Buddy>>| {
        drain(ground);
        ground.design.collect();
    };
    rcu(Grace::Qsbr, [collect, turn_0]);
}

#[test]
fn rcu_qsbr_owner_goes_offline_and_comes_back() {
    let sleep = |ground: &Ground<Rcu<Buddy>>| {
        ground.design.idle(here(0));
        if let Some(pfn) = ground.take(0) {
            ground.give(0, pfn);
        }
    };
    rcu(Grace::Qsbr, [drain, sleep]);
}

fn magazines(magazines: u32, threads: [fn(&Ground<Magazine<Buddy>>); 2]) {
    let options = MagazineOptions { magazines, limit: 2, refill: 1, spill: 1, min_batch: 1 };
    explore(2, move |buddy| Magazine::new(buddy, options).unwrap(), threads);
}

#[test]
fn magazine_shared_by_two_owners() {
    let pair = |ground: &Ground<Magazine<Buddy>>| {
        if let Some(pfn) = ground.take(1) {
            ground.give(1, pfn);
        }
    };
    magazines(1, [pair, turn_0]);
}

#[test]
fn magazine_owner_and_drainer() {
    magazines(2, [drain, turn_0]);
}

#[test]
fn magazine_of_a_process_and_a_drainer() {
    let process = |ground: &Ground<Magazine<Buddy>>| {
        let own = ground.design.process();
        let pfn = own.alloc(here(0), Order::BASE, Mobility::Movable);
        if let Some(pfn) = pfn {
            own.free(here(0), pfn, Order::BASE);
        }
    };
    magazines(1, [drain, process]);
}

/// Checks that work which a purger leaves to a CPU is done once, and before the purger ends.
#[test]
fn left_work_is_done_once_and_waited_for() {
    run::explore(3, || {
        let left = Arc::new(WorkPlaces::new(1));
        // Not ordered by itself: a wait that publishes nothing is found.
        let done = Arc::new(PlainU32::new(0));
        let (others, count) = (Arc::clone(&left), Arc::clone(&done));
        let cpu = thread::spawn(move || {
            (0..2).for_each(|_| others.do_at(0, |pages| count.add(pages)));
        });
        for pages in [1, 2] {
            left.leave(0, pages);
            left.do_at(0, |pages| done.add(pages));
            left.wait();
            assert_eq!(done.get(), pages * (pages + 1) / 2);
        }
        cpu.join().unwrap();
        assert_eq!(done.get(), 3);
    });
}
