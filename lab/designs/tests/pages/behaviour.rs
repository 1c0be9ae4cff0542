//! Behaviour that only one design has.

use crate::common::{self, Entry, allowed_cpus, interrupt, pin, task, three_zones};
use pagedepot::{CacheLimits, CpuId, Mobility, Mode, Order, Pfn, ZoneId};
use pagedepot_designs::*;
use pagedepot_lab_designs::{Magazine, MagazineOptions};
use pagedepot_rseq::affinity;

const NORMAL: ZoneId = ZoneId::new(2);

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

/// Allocates one block on a CPU and frees it there, so that the CPU caches a refill.
fn warm(design: &impl PageCache, cpu: u32) {
    let pfn = design.alloc(task(cpu), Order::BASE, Mobility::Movable).unwrap();
    design.free(task(cpu), pfn, Order::BASE);
}

#[test]
fn a_local_drain_left_to_the_owner_is_done_when_it_comes_by() {
    let local = common::local_owner(&three_zones(2), Entry::Pretend);
    warm(&local, 0);
    warm(&local, 1);
    let cached = local.cached_pages(CpuId::new(0));
    assert_eq!(cached, 7);
    let done = local.drain(Scope::ALL, Mode::Full);
    assert_eq!((done.taken_pages, done.left_pages, done.interruptions), (0, 14, 0));
    // CPU 0's next operation first drains its pages, then refills. CPU 1 sleeps.
    let pfn = local.alloc(task(0), Order::BASE, Mobility::Movable).unwrap();
    let counts = local.counts();
    assert_eq!((counts.drained.pages, counts.interruptions), (7, 1));
    assert_eq!(local.cached_pages(CpuId::new(1)), 7);
    local.free(task(0), pfn, Order::BASE);
    local.idle(task(1));
    assert_eq!((local.cached_pages(CpuId::new(1)), local.counts().interruptions), (0, 2));
}

#[test]
fn a_helper_goes_to_the_cpus_that_have_pages_and_comes_back() {
    let cpus = allowed_cpus();
    let most = cpus.iter().max().unwrap() + 1;
    std::thread::spawn(move || {
        let local = common::local_helper(&three_zones(most), Entry::OnCpu);
        let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
        pin(last);
        warm(&local, last);
        pin(first);
        let done = local.drain(Scope::ALL, Mode::Full);
        assert_eq!((done.taken_pages, done.left_pages, done.interruptions), (7, 0, 1));
        assert_eq!(affinity::allowed().unwrap(), [CpuId::new(first)].into_iter().collect());
        assert_eq!(local.drain(Scope::ALL, Mode::Full), DrainResult::default());
    })
    .join()
    .unwrap();
}

#[test]
fn the_switch_flips_for_all_cpus_and_loses_nothing() {
    let mut nohz = common::nohz_local(&three_zones(2), Entry::Pretend);
    let held = nohz.alloc(task(0), Order::BASE, Mobility::Movable).unwrap();
    warm(&nohz, 1);
    nohz.set_isolated(true);
    assert!(nohz.is_isolated());
    assert_eq!((nohz.cached_pages_total(), nohz.counts().drained.pages), (0, 13));
    nohz.free(task(1), held, Order::BASE);
    // Locked lists: the drain interrupts no CPU.
    let done = nohz.drain(Scope::ALL, Mode::Full);
    assert_eq!((done.taken_pages, done.interruptions), (1, 0));
    nohz.set_isolated(false);
    warm(&nohz, 0);
    assert_eq!(nohz.drain(Scope::ALL, Mode::Full).interruptions, 1);
    assert_eq!(nohz.validate().unwrap().held_pages(), 0);
    assert_eq!(nohz.counts().refilled.pages, 21);
}

#[test]
fn qpw_drains_cpus_that_spin_itself_and_interrupts_the_others() {
    let mut qpw = common::qpw_mixed(&three_zones(4), Entry::Pretend);
    assert!((0..4).map(|cpu| qpw.spins(CpuId::new(cpu))).eq([false, true, false, true]));
    (0..4).for_each(|cpu| warm(&qpw, cpu));
    let done = qpw.drain(Scope::cpu(CpuId::new(1)), Mode::Full);
    assert_eq!((done.taken_pages, done.interruptions), (7, 0));
    let done = qpw.drain(Scope::ALL, Mode::Full);
    assert_eq!((done.taken_pages, done.left_pages, done.interruptions), (21, 0, 2));
    assert_eq!((qpw.counts().drains, qpw.counts().refilled.pages), (2, 28));
    assert_eq!(qpw.validate().unwrap().held_pages(), 0);
}

/// A machine whose CPUs may cache a pageblock.
fn pageblocks(cpus: u32) -> Setup {
    let mut setup = Setup::single(cpus, 1 << 14);
    setup.zones[0].limits = Some(CacheLimits { batch: 63, high_min: 252, high_max: 2048 });
    setup
}

fn alloc_pages(design: &impl PageCache, cpu: u32, pages: usize) -> Vec<(Pfn, Order)> {
    let alloc = |_| (design.alloc(task(cpu), Order::BASE, Mobility::Movable).unwrap(), Order::BASE);
    (0..pages).map(alloc).collect()
}

#[test]
fn a_cpu_owns_the_pageblocks_that_it_takes_and_frees_go_there() {
    let mut design = common::pcp_buddy(&pageblocks(2), Entry::Pretend);
    let held = alloc_pages(&design, 0, 600);
    // Two visits of the store, for a pageblock each.
    let counts = design.counts();
    assert_eq!((counts.refills, counts.refilled), (2, Volume { blocks: 2, pages: 1024 }));
    assert!(held.iter().all(|&(pfn, _)| design.owner(pfn) == Some(CpuId::new(0))));
    // Another CPU frees: the pages are cached where they came from.
    design.free_many(task(1), &held[..300]);
    let cached = |cpu| design.cached_pages(CpuId::new(cpu));
    assert_eq!((cached(0), cached(1)), (1024 - 300, 0));
    // The rest, too: both pageblocks merge, and go back by a drain as two blocks.
    design.free_many(task(1), &held[300..]);
    assert_eq!((design.drain(Scope::ALL, Mode::Full).taken_pages, cached(0)), (1024, 0));
    assert_eq!(design.counts().drained, Volume { blocks: 2, pages: 1024 });
    assert_eq!(design.owner(held[0].0), None);
    assert_eq!(design.validate().unwrap().held_pages(), 0);
}

#[test]
fn fragments_of_own_pageblocks_come_back_before_a_new_one_is_taken() {
    let mut design = common::pcp_buddy(&pageblocks(2), Entry::Pretend);
    let held = alloc_pages(&design, 0, 512);
    let pageblock = held[0].0.get() / 512;
    // Every second page is freed, and drained: nothing merges.
    let (freed, kept): (Vec<_>, Vec<_>) = held.iter().partition(|(pfn, _)| pfn.get() % 2 == 0);
    design.free_many(task(0), &freed);
    design.drain(Scope::ALL, Mode::Full);
    assert_eq!(design.counts().drained, Volume { blocks: 256, pages: 256 });
    assert_eq!(design.owner(kept[0].0), Some(CpuId::new(0)));
    // CPU 0 takes these again; CPU 1 takes a pageblock of its own.
    let again = alloc_pages(&design, 0, 1);
    let other = alloc_pages(&design, 1, 1);
    assert_eq!(again[0].0.get() / 512, pageblock);
    assert_ne!(other[0].0.get() / 512, pageblock);
    assert_eq!(design.cached_pages(CpuId::new(0)), 255);
    // A pair of which one page is freed by each CPU merges all the same.
    design.free_many(task(1), &kept);
    design.free_many(task(1), &again);
    design.free_many(task(0), &other);
    design.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    let drained = design.counts().drained;
    assert_eq!(drained, Volume { blocks: 256 + 1, pages: 256 + 512 });
    assert_eq!((design.owner(kept[0].0), design.validate().unwrap().held_pages()), (None, 0));
}

#[test]
fn small_caches_refill_as_mainline_does_and_own_nothing() {
    let design = common::pcp_buddy(&three_zones(1), Entry::Pretend);
    let held = alloc_pages(&design, 0, 100);
    assert!(held.iter().all(|&(pfn, _)| design.owner(pfn).is_none()));
    // Smaller blocks are taken whole, and split here.
    let refilled = design.counts().refilled;
    assert!(refilled.blocks < refilled.pages / 2, "{refilled:?}");
    design.free_many(task(0), &held);
    assert!(design.cached_pages(CpuId::new(0)) <= 200);
}

#[test]
fn a_blocking_rcu_switches_all_cpus_and_drains_them_after_one_period() {
    let mut rcu = common::rcu_blocking(&three_zones(3), Entry::Pretend);
    (0..3).for_each(|cpu| warm(&rcu, cpu));
    let done = rcu.drain(Scope::ALL, Mode::Full);
    assert_eq!((done.taken_pages, done.left_pages, done.pending_pages), (21, 0, 0));
    assert_eq!((done.interruptions, rcu.counts().collected), (0, 3));
    // Its lists are free again, so the next drain switches back.
    warm(&rcu, 1);
    assert_eq!(rcu.drain(Scope::cpu(CpuId::new(1)), Mode::Full).taken_pages, 7);
    // Nothing to take, no wait.
    assert_eq!(rcu.drain(Scope::ALL, Mode::Full), DrainResult::default());
    assert_eq!(rcu.validate().unwrap().held_pages(), 0);
}

#[test]
fn a_request_that_finds_no_memory_waits_for_the_grace_period() {
    let mut setup = Setup::single(2, 64);
    setup.zones[0].limits = Some(CacheLimits { batch: 7, high_min: 28, high_max: 200 });
    let rcu = common::rcu_blocking(&setup, Entry::Lock);
    let mut held = Vec::new();
    while let Some(pfn) = rcu.alloc(task(0), Order::BASE, Mobility::Movable) {
        held.push(pfn);
    }
    assert_eq!(held.len(), 64);
    // The request finds what another CPU has cached since, by a drain of its own that collects.
    held.drain(..8).for_each(|pfn| rcu.free(task(1), pfn, Order::BASE));
    let collected = rcu.counts().collected;
    assert!(rcu.alloc(task(0), Order::BASE, Mobility::Movable).is_some());
    assert_eq!(rcu.counts().collected, collected + 1);
}

#[test]
fn rcu_by_fence_collects_at_once() {
    let rcu = common::rcu_membarrier(&three_zones(2), Entry::Pretend);
    warm(&rcu, 0);
    warm(&rcu, 1);
    let done = rcu.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    assert_eq!(
        (done.taken_pages, done.pending_pages, done.fences, done.interruptions),
        (7, 0, 1, 1)
    );
    assert_eq!(rcu.counts().collected, 1);
    // Nothing to take: no fence.
    let done = rcu.drain(Scope::cpu(CpuId::new(0)), Mode::Full);
    assert_eq!((done.taken_pages, done.fences), (0, 0));
    assert_eq!(rcu.cached_pages_total(), 7);
}

#[test]
fn rcu_by_quiescent_states_does_not_wait_and_collects_later() {
    let mut rcu = common::rcu_qsbr(&three_zones(2), Entry::Pretend);
    warm(&rcu, 0);
    warm(&rcu, 1);
    rcu.idle(task(1));
    // CPU 1 is offline, so its lists are collected; CPU 0 has not been heard of since.
    let done = rcu.drain(Scope::ALL, Mode::Full);
    assert_eq!((done.taken_pages, done.pending_pages, done.interruptions), (7, 7, 0));
    assert_eq!((rcu.pending_pages(), rcu.collect().taken_pages), (7, 0));
    assert_eq!(rcu.validate().unwrap().pending_pages, 7);
    // CPU 1 goes on with the other set; a drain now leaves that set, because both are in use.
    let held = rcu.alloc(task(1), Order::BASE, Mobility::Movable).unwrap();
    let again = rcu.drain(Scope::ALL, Mode::Full);
    assert_eq!((again.taken_pages, again.pending_pages), (0, 13));
    warm(&rcu, 0);
    // One operation after the switch ends the grace period.
    let done = rcu.collect();
    assert_eq!((done.taken_pages, done.pending_pages), (7, 6));
    rcu.free(task(1), held, Order::BASE);
    assert_eq!(rcu.collect().taken_pages, 6);
    let counts = rcu.counts();
    assert_eq!((counts.collected, counts.interruptions), (3, 0));
    assert!(counts.collect_ns >= counts.collect_ns_max && counts.collect_ns_max > 0);
}

#[test]
fn magazines_are_searched_round_robin_and_preferred_by_number() {
    let setup = three_zones(2);
    let magazine = common::magazine(&setup, Entry::Pretend);
    // CPU 1's free goes to its own magazine; CPU 0 finds it there rather than refill.
    let pfn = magazine.alloc(task(0), Order::BASE, Mobility::Movable).unwrap();
    magazine.drain(Scope::ALL, Mode::Full);
    magazine.free(task(1), pfn, Order::BASE);
    assert_eq!(
        (magazine.cached_pages(CpuId::new(0)), magazine.cached_pages(CpuId::new(1))),
        (0, 1)
    );
    let refills = magazine.counts().refills;
    assert_eq!(magazine.alloc(task(0), Order::BASE, Mobility::Movable), Some(pfn));
    assert_eq!(magazine.counts().refills, refills);
}

#[test]
fn interrupts_and_high_orders_go_past_magazines() {
    let magazine = common::magazine(&three_zones(2), Entry::Pretend);
    let pfn = magazine.alloc(interrupt(0), Order::BASE, Mobility::Movable).unwrap();
    magazine.free(interrupt(0), pfn, Order::BASE);
    let pair = magazine.alloc(task(0), order(1), Mobility::Movable).unwrap();
    magazine.free(task(0), pair, order(1));
    let counts = magazine.counts();
    assert_eq!((counts.refills, magazine.cached_pages_total()), (0, 0));
    assert_eq!(counts.direct_allocated, Volume { blocks: 2, pages: 3 });
    assert_eq!(counts.direct_freed, Volume { blocks: 2, pages: 3 });
}

#[test]
fn a_batch_goes_into_one_magazine_and_what_is_too_much_to_the_zone() {
    let magazine = common::magazine(&three_zones(2), Entry::Pretend);
    let alloc = |_| (magazine.alloc(task(0), Order::BASE, Mobility::Movable).unwrap(), Order::BASE);
    let batch: Vec<(Pfn, Order)> = (0..250).map(alloc).collect();
    magazine.drain(Scope::ALL, Mode::Full);
    magazine.free_many(task(0), &batch);
    // 250 are 150 above the limit of 100.
    assert_eq!((magazine.cached_pages_total(), magazine.counts().spilled.pages), (100, 150));
    // One by one, 16 go at a time.
    let pfn = magazine.alloc(task(0), Order::BASE, Mobility::Movable).unwrap();
    magazine.free(task(0), pfn, Order::BASE);
    assert_eq!((magazine.cached_pages_total(), magazine.counts().spilled.pages), (84, 166));
}

#[test]
fn a_process_has_its_own_magazine_and_drains_find_it() {
    let mut magazine = common::magazine(&three_zones(2), Entry::Pretend);
    {
        let process = magazine.process();
        let other = magazine.process();
        let pfn = process.alloc(task(0), Order::BASE, Mobility::Movable).unwrap();
        assert_eq!((process.cached_pages(), magazine.cached_pages(CpuId::new(0))), (39, 0));
        process.free(task(1), pfn, Order::BASE);
        let theirs = other.alloc(task(0), Order::BASE, Mobility::Movable).unwrap();
        assert_eq!(
            (process.cached_pages(), other.cached_pages(), magazine.cached_pages_total()),
            (40, 39, 79)
        );
        // A drain of one CPU does not look for processes, one of all CPUs does.
        assert_eq!(magazine.drain(Scope::cpu(CpuId::new(0)), Mode::Full).taken_pages, 0);
        assert_eq!(magazine.drain(Scope::zone(NORMAL), Mode::Full).taken_pages, 79);
        let pair = process.alloc(task(0), order(2), Mobility::Movable).unwrap();
        process.free(task(0), pair, order(2));
        other.free(task(0), theirs, Order::BASE);
        assert_eq!(other.cached_pages(), 1);
    }
    // Both magazines are gone; their pages and counters are not.
    assert_eq!(magazine.cached_pages_total(), 0);
    assert_eq!(magazine.validate().unwrap().held_pages(), 0);
    let counts = magazine.counts();
    assert_eq!((counts.refilled.pages, counts.drained.pages), (80, 80));
}

#[test]
fn magazine_options_are_checked() {
    let options = MagazineOptions { magazines: 0, ..MagazineOptions::default() };
    assert!(matches!(
        Magazine::new(Buddy::new(&three_zones(1)).unwrap(), options),
        Err(SetupError::Option(_))
    ));
}
