//! Classes that the policy keeps apart fill pageblocks of their own, and no request fails for it.

use std::collections::HashSet;

use crate::common::backing::Sets;
use crate::common::{Single, metadata, open_zone, order, range, single};
use pagedepot::{
    Allocator, Class, Classes, Config, Evacuation, Flags, Mobility, Mode, Order, Pfn, Scope, ZoneId,
};
use pagedepot_contiguity::Contiguity;

const ZONE: ZoneId = ZoneId::new(0);
const PAGEBLOCK_FRAMES: u32 = 512;
const PAGEBLOCKS: u32 = 64;

const PLAIN: Flags = Flags::MOVABLE;
const CACHE: Flags = Flags::MOVABLE.class(Class::PAGE_CACHE);
const POLICY: Classes = Classes::ALIKE
    .apart(Mobility::Movable, Class::PAGE_CACHE)
    .apart(Mobility::Unmovable, Class::SHORT_LIVED);

fn depot(classes: Classes, more: impl FnOnce(&mut Config<'_>)) -> Single<'static> {
    let ranges = [range(0, PAGEBLOCKS * PAGEBLOCK_FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let mut config = Config { classes, ..Config::new(2, &zones) };
    more(&mut config);
    single(&config, Box::leak(metadata(&config).into_boxed_slice()))
}

/// Blocks of both, by turns and by CPUs in turn.
fn alternate(
    depot: &Single<'_>,
    order: Order,
    count: usize,
    both: [Flags; 2],
) -> [Vec<(Pfn, Order)>; 2] {
    let mut held = [vec![], vec![]];
    for at in 0..count {
        depot.cpus().0.run_on((at / 100 % 2) as u32);
        for (held, flags) in held.iter_mut().zip(both) {
            held.push((depot.alloc(order, flags).unwrap(), order));
        }
    }
    held
}

fn pageblocks(blocks: &[(Pfn, Order)]) -> HashSet<u32> {
    blocks.iter().map(|(pfn, _)| pfn.get() / PAGEBLOCK_FRAMES).collect()
}

fn share_some(held: &[Vec<(Pfn, Order)>; 2]) -> bool {
    !pageblocks(&held[0]).is_disjoint(&pageblocks(&held[1]))
}

fn free(depot: &mut Single<'_>, blocks: impl IntoIterator<Item = (Pfn, Order)>) {
    for (pfn, order) in blocks {
        depot.free(pfn, order).unwrap();
    }
    depot.validate().unwrap();
}

/// Drains look at the fronts of kinds that requests can have.
#[test]
fn a_full_drain_takes_fronts_of_classes_that_are_kept_apart() {
    let both = POLICY.apart(Mobility::Reclaimable, Class::PAGE_CACHE);
    for classes in [Classes::ALIKE, POLICY, both] {
        let depot = depot(classes, |_| ());
        for flags in [PLAIN, CACHE, Flags::UNMOVABLE.class(Class::SHORT_LIVED)] {
            let pfn = depot.alloc(Order::BASE, flags).unwrap();
            depot.free(pfn, Order::BASE).unwrap();
            let drained = depot.drain(Scope::ALL, Mode::Full);
            assert!(drained.taken_pages > 0 && drained.unreachable_pages == 0, "{drained:?}");
        }
        let all = u64::from(PAGEBLOCKS * PAGEBLOCK_FRAMES);
        assert_eq!(depot.zone_stats(ZONE).unwrap().free_pages, all);
    }
}

#[test]
fn what_others_free_becomes_whole() {
    let mut depot = depot(POLICY, |_| ());
    let [mut plain, mut cache] = alternate(&depot, Order::BASE, 4000, [PLAIN, CACHE]);
    for (held, more) in
        [&mut plain, &mut cache].into_iter().zip(alternate(&depot, order(3), 100, [PLAIN, CACHE]))
    {
        held.extend(more);
    }
    let kept = pageblocks(&cache);
    assert!(kept.is_disjoint(&pageblocks(&plain)));
    free(&mut depot, plain);
    depot.cpu_caches().disable();
    let stats = depot.pageblock_stats(ZONE).unwrap();
    assert_eq!(stats.whole, u64::from(PAGEBLOCKS) - kept.len() as u64);
    assert_eq!(stats.tainted, 0, "all of them are movable");
    free(&mut depot, cache);
    assert_eq!(depot.pageblock_stats(ZONE).unwrap().whole, u64::from(PAGEBLOCKS));
}

/// A class changes nothing without a policy; nor does one of another mobility than the policy has,
/// or one that is not named.
#[test]
fn a_class_that_is_not_kept_apart_changes_nothing() {
    for (classes, flags) in [
        (Classes::ALIKE, CACHE),
        (POLICY, PLAIN.class(Class::SHORT_LIVED)),
        (POLICY, CACHE.class(Class::UNKNOWN)),
        (Classes::ALIKE.apart(Mobility::Movable, Class::UNKNOWN), PLAIN),
    ] {
        let mut depot = depot(classes, |_| ());
        let held = alternate(&depot, Order::BASE, 1000, [PLAIN, flags]);
        assert!(share_some(&held), "{classes:?}, {flags:?}");
        free(&mut depot, held.into_iter().flatten());
    }
}

#[test]
fn short_lived_unmovable_blocks_share_the_pageblocks_of_reclaimable_ones() {
    let mut depot = depot(POLICY, |_| ());
    let short = Flags::UNMOVABLE.class(Class::SHORT_LIVED);
    let apart = alternate(&depot, Order::BASE, 1000, [Flags::UNMOVABLE, short]);
    assert!(!share_some(&apart));
    let shared = alternate(&depot, Order::BASE, 1000, [Flags::RECLAIMABLE, short]);
    assert!(share_some(&shared));
    free(&mut depot, apart.into_iter().chain(shared).flatten());
}

/// Tenants beyond the number of classes share those of others, and one that is kept apart still is.
#[test]
fn tenants_have_twelve_classes() {
    assert_eq!(Class::tenant(12), Class::tenant(0));
    let classes: HashSet<_> = (0..12).map(Class::tenant).collect();
    assert_eq!(classes.len(), 12);
    let named = [Class::UNKNOWN, Class::SHORT_LIVED, Class::LONG_LIVED, Class::PAGE_CACHE];
    assert!(named.iter().all(|class| !classes.contains(class)));
    let policy = Classes::ALIKE.apart(Mobility::Movable, Class::tenant(11));
    let mut depot = depot(policy, |_| ());
    let flags = [10, 11].map(|number| PLAIN.class(Class::tenant(number)));
    let held = alternate(&depot, Order::BASE, 1000, flags);
    assert!(!share_some(&held));
    free(&mut depot, held.into_iter().flatten());
}

/// Requests of every kind heed it, also with options that make each take the slow path.
#[test]
fn every_request_heeds_the_class() {
    for checked in [false, true] {
        let mut depot = depot(POLICY, |config| config.checked = checked);
        let mut held = [vec![], vec![]];
        for (held, flags) in held.iter_mut().zip([PLAIN, CACHE]) {
            let mut hold = |pfn: Pfn, order| held.push((pfn, order));
            hold(depot.alloc(Order::BASE, flags.zeroed().no_reclaim()).unwrap(), Order::BASE);
            hold(depot.alloc(Order::BASE, flags.this_node()).unwrap(), Order::BASE);
            hold(depot.try_alloc(order(2), flags).unwrap(), order(2));
            hold(depot.look(order(1), flags).unwrap(), order(1));
            for length in [5, 200] {
                let mut out = vec![Pfn::new(0); length];
                let got = depot.alloc_many(Order::BASE, flags, &mut out).unwrap();
                out[..got].iter().for_each(|&pfn| hold(pfn, Order::BASE));
            }
            let start = depot.alloc_contiguous(5, 1, flags).unwrap();
            (0..5).for_each(|i| hold(start.add(i), Order::BASE));
        }
        assert!(!share_some(&held), "checked: {checked}");
        for held in &held {
            let last = &held[held.len() - 5..];
            depot.free_contiguous(last[0].0, 5).unwrap();
            for &(pfn, order) in &held[..held.len() - 5] {
                depot.free(pfn, order).unwrap();
            }
        }
        assert_eq!(depot.validate().unwrap().held_pages(), 0);
    }
}

/// A range that is taken for a class is its own afterwards.
#[test]
fn a_range_goes_to_another_class_when_it_is_taken_and_freed() {
    let mut depot = depot(POLICY, |_| ());
    for at in 0..PAGEBLOCKS {
        let flags = if at < PAGEBLOCKS / 2 { CACHE } else { PLAIN };
        depot.alloc_at(Pfn::new(at * PAGEBLOCK_FRAMES), PAGEBLOCK_FRAMES, flags).unwrap();
    }
    // One frame of each stays, so that none is whole, and requests go by what they serve.
    let ranges = (0..PAGEBLOCKS).map(|at| Pfn::new(at * PAGEBLOCK_FRAMES + 1));
    ranges.for_each(|start| depot.free_contiguous(start, PAGEBLOCK_FRAMES - 1).unwrap());
    let held = alternate(&depot, Order::BASE, 2000, [CACHE, PLAIN]);
    assert!(pageblocks(&held[0]).iter().all(|&at| at < PAGEBLOCKS / 2));
    assert!(pageblocks(&held[1]).iter().all(|&at| at >= PAGEBLOCKS / 2));
    let kept = (0..PAGEBLOCKS).map(|at| (Pfn::new(at * PAGEBLOCK_FRAMES), Order::BASE));
    free(&mut depot, held.into_iter().flatten().chain(kept));
}

/// All of the memory can be had for any class, and what one class has freed for any other, without
/// evacuation, too.
#[test]
fn no_request_fails_for_its_class() {
    let short = Flags::UNMOVABLE.class(Class::SHORT_LIVED);
    for evacuation in [Evacuation::Adaptive, Evacuation::Off] {
        let mut depot = depot(POLICY, |config| config.evacuation = evacuation);
        let all = (PAGEBLOCKS * PAGEBLOCK_FRAMES) as usize;
        let fill = |depot: &Single<'_>, flags| -> Vec<(Pfn, Order)> {
            let alloc = || depot.alloc(Order::BASE, flags).ok();
            std::iter::from_fn(alloc).map(|pfn| (pfn, Order::BASE)).collect()
        };
        let mut held = fill(&depot, CACHE);
        assert_eq!(held.len(), all);
        for flags in [PLAIN, CACHE, short, Flags::RECLAIMABLE, PLAIN] {
            // Every other frame, so that no pageblock is whole.
            let (freed, kept): (Vec<_>, Vec<_>) =
                held.drain(..).partition(|(pfn, _)| pfn.get() % 2 == 0);
            free(&mut depot, freed);
            held = kept;
            held.extend(fill(&depot, flags));
            assert_eq!(held.len(), all, "{flags:?}, {evacuation:?}");
        }
        free(&mut depot, held);
    }
}

/// A backing keeps nothing apart: what is freed serves the next request, of whatever class.
#[test]
fn over_a_backing_classes_share_what_is_cached() {
    let ranges = [range(0, PAGEBLOCKS * PAGEBLOCK_FRAMES)];
    let zones = [open_zone("z", &ranges)];
    let config = Config { classes: POLICY, ..Config::new(1, &zones) };
    let sets = Sets::new(&zones, true);
    let builder = Allocator::builder(&config).backing(Some(&sets));
    let mut memory = vec![std::mem::MaybeUninit::uninit(); builder.metadata_bytes().unwrap()];
    let cpus = pagedepot::cpus::PinnedCpus(crate::common::Anywhere::new());
    let depot: Single<'_> = builder.build(&mut memory, cpus).unwrap();
    let pfn = depot.alloc(Order::BASE, CACHE).unwrap();
    depot.free(pfn, Order::BASE).unwrap();
    assert_eq!(depot.alloc(Order::BASE, PLAIN), Ok(pfn));
    assert_eq!(depot.free(pfn, Order::BASE), Ok(()));
}
