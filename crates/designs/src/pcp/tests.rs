//! The policy against numbers worked out by hand from the formulas of `mm/page_alloc.c`.

use pagedepot::cpus::Here;
use pagedepot::{CacheLimits, CpuId, Mobility, Order, Pfn, Watermarks, ZoneId};

use super::free_high::{FreeHighLimit, FreeHighPolicy, FreeHighRule};
use super::policy::{Policy, Tuning};
use super::{ListIndex, Lists, Pcp, PcpContext};
use crate::counters::Counters;
use crate::report::Volume;
use crate::store::Store;
use crate::zones::{Mark, Zones};
use crate::{Buddy, PageCache, Setup, ZoneSetup};

const ADAPTIVE: CacheLimits = CacheLimits { batch: 63, high_min: 252, high_max: 2000 };
const FIXED: CacheLimits = CacheLimits { batch: 63, high_min: 252, high_max: 252 };
const ZONE: ZoneId = ZoneId::new(0);

fn order(n: u32) -> Order {
    Order::new(n).unwrap()
}

fn setup(frames: u32, limits: CacheLimits) -> Setup {
    let mut setup = Setup::single(1, frames);
    setup.zones[0].limits = Some(limits);
    setup.zones[0].watermarks = Some(Watermarks { min: 0, low: 100, high: 1000 });
    setup
}

fn zones(limits: CacheLimits) -> Zones {
    Zones::new(&setup(1 << 14, limits)).unwrap()
}

/// Frees blocks without allocating until the policy says to spill. Returns the pages held then, and
/// the pages to spill. `None`: not within 4096 pages.
fn freed_until_spill(
    policy: &Policy,
    tuning: &Tuning,
    zones: &Zones,
    size: Order,
) -> Option<(u32, u32)> {
    (1..=4096 >> size.get()).map(|blocks| blocks * size.frames()).find_map(|held| {
        let pages = tuning.on_free(policy, zones.zone(ZONE), size, held);
        (pages > 0).then_some((held, pages))
    })
}

#[test]
fn refills_double_within_what_may_be_held() {
    let zones = zones(ADAPTIVE);
    let tuning = Tuning::new(zones.zone(ZONE));
    let policy = Policy::default();
    let refill = |size| tuning.refill_blocks(&policy, zones.zone(ZONE), size, 0);
    let sizes: Vec<_> = (0..7).map(|_| refill(Order::BASE)).collect();
    // The sixth would be 2016, but high - batch is 2000 - 63.
    assert_eq!(sizes, [63, 126, 252, 504, 1008, 1937, 1937]);
    assert_eq!([1, 2, 3, 9].map(|n| refill(order(n))), [31, 15, 7, 2]);
    assert_eq!(tuning.high(), 2000);
}

#[test]
fn high_grows_with_refills_only_above_the_high_watermark() {
    let zones = zones(ADAPTIVE);
    let (zone, policy) = (zones.zone(ZONE), Policy::default());
    let tuning = Tuning::new(zone);
    assert_eq!(tuning.refill_blocks(&policy, zone, Order::BASE, 0), 63);
    assert_eq!(tuning.high(), 315);
    assert!(zone.may_take(1000, Order::BASE, Mark::Low));
    // 1000 free is not above the mark of 1000.
    assert!(zone.is_below_high());
    // 126; there is room for 315 - 0 - 63 = 252.
    assert_eq!(tuning.refill_blocks(&policy, zone, Order::BASE, 0), 126);
    assert_eq!(tuning.high(), 315);
    zone.note_freed(1000);
    assert!(zone.is_below_high());
    zone.note_freed(1001);
    assert!(!zone.is_below_high());
}

#[test]
fn frees_spill_all_but_a_batch_and_raise_high() {
    let zones = zones(ADAPTIVE);
    let tuning = Tuning::new(zones.zone(ZONE));
    let policy = Policy::default();
    // At 252 held, 252 were freed: clamp(252, 63, 252 - 63) go, and high becomes 252 + 63.
    assert_eq!(freed_until_spill(&policy, &tuning, &zones, Order::BASE), Some((252, 189)));
    assert_eq!(tuning.high(), 315);
    // 63 stay; at 315 held 252 more were freed, 504 in all: clamp(504, 63, 315 - 63).
    let next = (64..).find_map(|held| {
        let pages = tuning.on_free(&policy, zones.zone(ZONE), Order::BASE, held);
        (pages > 0).then_some((held, pages))
    });
    assert_eq!(next, Some((315, 252)));
    assert_eq!(tuning.high(), 567);
}

#[test]
fn a_fixed_high_stays() {
    let zones = zones(FIXED);
    let tuning = Tuning::new(zones.zone(ZONE));
    assert_eq!(
        freed_until_spill(&Policy::default(), &tuning, &zones, Order::BASE),
        Some((252, 189))
    );
    assert_eq!(tuning.high(), 252);
    assert_eq!(tuning.refill_blocks(&Policy::default(), zones.zone(ZONE), Order::BASE, 0), 63);
    assert_eq!(tuning.high(), 252);
}

#[test]
fn allocations_halve_the_run_of_frees() {
    let zones = zones(ADAPTIVE);
    let tuning = Tuning::new(zones.zone(ZONE));
    let policy = Policy::default();
    for _ in 0..1000 {
        assert_eq!(tuning.on_free(&policy, zones.zone(ZONE), Order::BASE, 100), 0);
    }
    for _ in 0..10 {
        tuning.on_alloc();
    }
    // 1000 >> 10 = 0, and this one: max(1, 63) = 63.
    assert_eq!(tuning.on_free(&policy, zones.zone(ZONE), Order::BASE, 252), 63);
}

#[test]
fn reclaim_limits_caches_to_four_batches_and_lowers_high() {
    let zones = zones(ADAPTIVE);
    let zone = zones.zone(ZONE);
    let tuning = Tuning::new(zone);
    tuning.set_high(1000);
    zone.set_reclaim_active(true);
    assert_eq!(tuning.on_free(&Policy::default(), zone, Order::BASE, 251), 0);
    assert_eq!(tuning.high(), 937);
    assert_eq!(tuning.on_free(&Policy::default(), zone, Order::BASE, 252), 63);
    assert_eq!(tuning.high(), 874);
    zone.set_reclaim_active(false);
    assert_eq!(tuning.on_free(&Policy::default(), zone, Order::BASE, 253), 0);
}

#[test]
fn below_the_high_watermark_every_free_spills() {
    let zones = zones(ADAPTIVE);
    let zone = zones.zone(ZONE);
    let tuning = Tuning::new(zone);
    tuning.set_high(1000);
    assert!(zone.may_take(500, Order::BASE, Mark::Low));
    // high_min pages are held all the same.
    assert_eq!(tuning.on_free(&Policy::default(), zone, Order::BASE, 251), 0);
    assert_eq!(tuning.on_free(&Policy::default(), zone, Order::BASE, 300), 63);
    assert_eq!(tuning.high(), 1000 - 63 - 63);
}

#[test]
fn a_cpu_that_only_frees_high_orders_keeps_what_the_policy_says() {
    let zones = zones(ADAPTIVE);
    let run = |rule, limit, cache_slice_pages| {
        let policy = Policy {
            free_high: FreeHighPolicy { rule, limit },
            cache_slice_pages,
            ..Policy::default()
        };
        let tuning = Tuning::new(zones.zone(ZONE));
        freed_until_spill(&policy, &tuning, &zones, order(3))
    };
    let today = |limit| run(FreeHighRule::FreeCount, limit, 1024);
    // Before the 25th block 192 pages were freed, and 63 + 252 / 2 = 189 are enough.
    assert_eq!(today(FreeHighLimit::Zero), Some((200, 200)));
    assert_eq!(today(FreeHighLimit::Batch), Some((200, 200)));
    // 4 * 63 = 252: the 32nd block.
    assert_eq!(today(FreeHighLimit::FourBatches), Some((256, 256)));
    // As without the rule: clamp(256, 63, 189).
    assert_eq!(today(FreeHighLimit::High), Some((256, 189)));
    assert_eq!(run(FreeHighRule::FreeFactor, FreeHighLimit::Zero, 1024), Some((256, 189)));
}

#[test]
fn the_rule_of_2022_follows_spills_and_is_ended_by_allocations() {
    let zones = zones(ADAPTIVE);
    let free_high = FreeHighPolicy { rule: FreeHighRule::FreeFactor, limit: FreeHighLimit::Zero };
    let policy = Policy { free_high, ..Policy::default() };
    let tuning = Tuning::new(zones.zone(ZONE));
    assert!(freed_until_spill(&policy, &tuning, &zones, Order::BASE).is_some());
    // free_factor is 1 now: a free of order 3 spills everything.
    assert_eq!(tuning.on_free(&policy, zones.zone(ZONE), order(3), 71), 71);
    tuning.on_alloc();
    assert_eq!(tuning.on_free(&policy, zones.zone(ZONE), order(3), 8), 0);
}

/// 5.18: each spill without an allocation in between is twice the last, up to `high - batch`, and
/// an allocation halves the next.
#[test]
fn spills_of_2022_double_and_leave_a_batch() {
    let zones = zones(ADAPTIVE);
    let policy = Policy::of_2022(FreeHighLimit::Zero);
    let tuning = Tuning::new(zones.zone(ZONE));
    let zone = zones.zone(ZONE);
    let spill = |held| tuning.on_free(&policy, zone, Order::BASE, held);
    // high is 252 and stays: 63, 126, then 252 - 63 = 189, for 63 << 2 is more.
    assert_eq!([251, 252, 252, 252, 252].map(spill), [0, 63, 126, 189, 189]);
    assert_eq!(tuning.high(), 252);
    // The factor is 2: an allocation makes it 1.
    tuning.on_alloc();
    assert_eq!(spill(252), 126);
    // Refills are a batch each, and there is no decay.
    let refill = |size| tuning.refill_blocks(&policy, zone, size, 0);
    assert_eq!([refill(Order::BASE), refill(Order::BASE), refill(order(3))], [63, 63, 7]);
    assert_eq!((tuning.decay(&policy, zone, 252), tuning.high()), (0, 252));
}

#[test]
fn under_free_high_everything_goes_in_2022() {
    let zones = zones(ADAPTIVE);
    let zone = zones.zone(ZONE);
    let free_high = |limit, held| {
        let policy = Policy::of_2022(limit);
        let tuning = Tuning::new(zone);
        // A spill, so that the factor is above 0.
        assert_eq!(tuning.on_free(&policy, zone, Order::BASE, 252), 63);
        tuning.on_free(&policy, zone, order(3), held)
    };
    // More than 32 batches, which are the most that goes today.
    assert_eq!(free_high(FreeHighLimit::Zero, 5000), 5000);
    assert_eq!(free_high(FreeHighLimit::Zero, 8), 8);
    assert_eq!([62, 63].map(|held| free_high(FreeHighLimit::Batch, held)), [0, 63]);
    // The thread's proposal, `batch << 2`, which is `high` here.
    assert_eq!([251, 252].map(|held| free_high(FreeHighLimit::FourBatches, held)), [0, 252]);
}

#[test]
fn reclaim_of_2022_limits_caches_and_leaves_high() {
    let mut setup = Setup::single(1, 4096);
    setup.zones[0].limits = Some(CacheLimits { batch: 63, high_min: 1000, high_max: 1000 });
    let zones = Zones::new(&setup).unwrap();
    let (zone, policy) = (zones.zone(ZONE), Policy::of_2022(FreeHighLimit::Zero));
    let tuning = Tuning::new(zone);
    assert_eq!(tuning.on_free(&policy, zone, Order::BASE, 252), 0);
    zone.set_reclaim_active(true);
    assert_eq!(tuning.on_free(&policy, zone, Order::BASE, 252), 63);
    assert_eq!(tuning.high(), 1000);
}

/// Checks that reclaim runs from the request that finds every zone below its low watermark to the
/// spill that finds the zone above the high one.
#[test]
fn reclaim_runs_while_memory_is_short() {
    let mut setup = Setup::single(1, 2048);
    setup.zones[0].watermarks = Some(Watermarks { min: 20, low: 60, high: 100 });
    let buddy = Buddy::new(&setup).unwrap();
    let spin =
        crate::Spin::new(buddy, crate::LockMode::TryLock, Policy::of_2022(FreeHighLimit::Zero));
    let zone = spin.store().zones().zone(ZONE);
    let here = Here::task(CpuId::new(0));
    let mut held = Vec::new();
    while spin.free_pages() > 60 {
        assert!(!zone.is_reclaim_active());
        held.push(spin.alloc(here, Order::BASE, Mobility::Movable).unwrap());
    }
    // What the CPU caches is taken without a look at watermarks.
    held.extend((0..200).map_while(|_| spin.alloc(here, Order::BASE, Mobility::Movable)));
    assert!(zone.is_reclaim_active());
    while zone.is_reclaim_active() {
        spin.free(here, held.pop().expect("it ends"), Order::BASE);
    }
    assert!(spin.free_pages() > 100);
}

#[test]
fn with_a_small_cache_less_than_a_batch_goes_too() {
    let zones = zones(ADAPTIVE);
    for (cache_slice_pages, spilled) in [(3 * 63, 16), (3 * 63 + 1, 0)] {
        let policy = Policy { cache_slice_pages, ..Policy::default() };
        let tuning = Tuning::new(zones.zone(ZONE));
        for _ in 0..30 {
            tuning.on_free(&policy, zones.zone(ZONE), order(3), 8);
        }
        assert_eq!(tuning.on_free(&policy, zones.zone(ZONE), order(3), 16), spilled);
    }
}

#[test]
fn high_decays_by_an_eighth_but_not_further_than_what_is_held() {
    let zones = zones(ADAPTIVE);
    let zone = zones.zone(ZONE);
    let policy = Policy { batch_scale: 1, ..Policy::default() };
    let tuning = Tuning::new(zone);
    tuning.set_high(1000);
    assert_eq!((tuning.decay(&policy, zone, 100), tuning.high()), (0, 875));
    // 875 - 109 = 766, less than 950 - 126 = 824.
    assert_eq!((tuning.decay(&policy, zone, 950), tuning.high()), (950 - 824, 824));
    tuning.set_high(260);
    assert_eq!((tuning.decay(&policy, zone, 300), tuning.high()), (48, 252));
}

#[test]
fn idle_remote_zones_are_given_back_after_three_ticks() {
    let zones = zones(ADAPTIVE);
    let zone = zones.zone(ZONE);
    let tuning = Tuning::new(zone);
    let ticks: Vec<_> = (0..5).map(|_| tuning.expire(zone, true, 200, 7)).collect();
    assert_eq!(ticks, [0, 0, 63, 0, 0]);
    assert_eq!(tuning.expire(zone, true, 200, 8), 0);
    assert_eq!(tuning.expire(zone, false, 200, 8), 0);
    assert_eq!(tuning.expire(zone, true, 200, 8), 0);
}

/// A pcp over a real store.
struct Rig {
    buddy: Buddy,
    lists: Lists,
    tuning: Tuning,
    counters: Counters,
    policy: Policy,
}

impl Rig {
    fn new() -> Self {
        Rig::with_frames(1 << 14)
    }

    fn with_frames(frames: u32) -> Self {
        let buddy = Buddy::new(&setup(frames, FIXED)).unwrap();
        let tuning = Tuning::new(buddy.zones().zone(ZONE));
        Rig {
            buddy,
            lists: Lists::new(),
            tuning,
            counters: Counters::default(),
            policy: Policy::default(),
        }
    }

    fn at(&self) -> PcpContext<'_, Buddy> {
        let here = Here::task(CpuId::new(0));
        PcpContext {
            store: &self.buddy,
            policy: &self.policy,
            counters: &self.counters,
            here,
            zone: ZONE,
        }
    }

    fn pcp(&self) -> Pcp<'_> {
        Pcp { lists: &self.lists, tuning: &self.tuning }
    }

    fn take(&self, size: Order, mobility: Mobility) -> Option<Pfn> {
        let index = ListIndex::of(size, mobility).unwrap();
        self.pcp().take(&self.at(), size, mobility, index, Mark::Low)
    }
}

#[test]
fn lists_are_numbered_as_the_kernels() {
    let index = |n, mobility| ListIndex::of(order(n), mobility).map(|index| index.0);
    assert_eq!(index(0, Mobility::Unmovable), Some(0));
    assert_eq!(index(2, Mobility::Reclaimable), Some(8));
    assert_eq!(index(3, Mobility::Movable), Some(10));
    assert_eq!(index(9, Mobility::Unmovable), Some(12));
    assert_eq!(index(9, Mobility::Reclaimable), Some(12));
    assert_eq!(index(9, Mobility::Movable), Some(13));
    assert_eq!(index(4, Mobility::Movable), None);
    assert_eq!(index(10, Mobility::Movable), None);
    for at in 0..14 {
        let size = ListIndex(at).order();
        assert!(
            Mobility::ALL
                .iter()
                .any(|&mobility| ListIndex::of(size, mobility) == Some(ListIndex(at)))
        );
    }
}

#[test]
fn spills_take_the_own_list_first_from_its_cold_end() {
    let rig = Rig::new();
    let base = ListIndex::of(Order::BASE, Mobility::Movable).unwrap();
    let pair = ListIndex::of(order(1), Mobility::Movable).unwrap();
    assert_eq!(rig.pcp().fill(&rig.at(), order(1), Mobility::Movable, pair, 2), 2);
    let frames: Vec<_> =
        (0..4).map(|_| rig.take(Order::BASE, Mobility::Movable).unwrap()).collect();
    rig.pcp().drain(&rig.at());
    assert_eq!(rig.pcp().fill(&rig.at(), order(1), Mobility::Movable, pair, 2), 2);
    for &pfn in &frames {
        assert_eq!(rig.pcp().put(&rig.at(), pfn, Order::BASE, base), 0);
    }
    // Five pages: the four single frames from the first freed on, then one block of order 1.
    let zones = rig.buddy.zones();
    let order_of_exit: Vec<_> = rig.lists.coldest(zones.frames(), 5, base).collect();
    assert_eq!(
        order_of_exit[..4],
        frames.iter().map(|&pfn| (pfn, Order::BASE)).collect::<Vec<_>>()
    );
    assert_eq!((order_of_exit.len(), order_of_exit[4].1, rig.lists.pages()), (5, order(1), 2));
}

#[test]
fn a_refill_stops_at_the_watermark() {
    // 63 + 126 + 85 * 189 + 80: refills end with 80 pages left.
    let rig = Rig::with_frames(16_334);
    let mut held = 0;
    while rig.take(Order::BASE, Mobility::Movable).is_some() {
        held += 1;
    }
    let free = rig.buddy.free_pages(ZONE);
    assert_eq!((held, free), (16_334 - 80, 80));
    let mut counts = crate::Counts::default();
    rig.counters.add_to(&mut counts);
    assert_eq!(counts.refilled, Volume { blocks: held, pages: held });
    // The rest can be allocated too, down to `min`, 0 here.
    let index = ListIndex::of(Order::BASE, Mobility::Movable).unwrap();
    assert!(rig.pcp().take(&rig.at(), Order::BASE, Mobility::Movable, index, Mark::Min).is_some());
}

/// zoneinfo of a recorded machine's zone DMA: 3840 managed pages, low 42, 2 CPUs.
#[test]
fn a_small_zone_has_the_kernels_limits() {
    let mut dma = ZoneSetup::new("DMA", vec![pagedepot::FrameRange::new(Pfn::new(1), 3840)]);
    dma.watermarks = Some(Watermarks { min: 34, low: 42, high: 50 });
    let limits = Zones::new(&Setup::new(2, vec![dma])).unwrap().zone(ZONE).limits();
    assert_eq!(limits, CacheLimits { batch: 1, high_min: 21, high_max: 240 });
}
