//! The state of a zone, its watermarks, and the limits on the pages that a CPU may cache of it; all
//! zones, and for each node the order in which a request from there tries them; and the pages that
//! a group of CPUs has not told its zone yet, the second level of `zone/delta.rs`, where the theory
//! is.

use super::counts::{CompactionCounters, Counters};
use super::delta::{Delta, DriftMark, GROUP_CPUS, GROUP_DELTAS};
use crate::frame::{NodeId, PageSize, ZoneId};
use crate::sync::model::bound;
use crate::sync::prim::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use crate::sync::total::DRIFT_MARK;
use crate::sync::{CachePadded, InFlight};

/// The drift mark is so many drifts above the high watermark; see [`DriftMark`].
const MARK_DRIFTS: i64 = 4;

/// A zone's metadata.
///
/// The atomics here are Relaxed, but for those that the drift mark follows: they are counts, bounds
/// and estimates, and what a caller reads publishes no other memory. Frames that the span or the
/// counts speak of are published by the store's own words.
pub struct Zone {
    pub name: ZoneName,
    pub node: NodeId,
    pub level: u8,
    /// Sections with frames of this zone: first, and one past the last.
    span: [AtomicU32; 2],
    /// Frames given to the zone, in pages.
    managed: AtomicU64,
    /// Pages the allocator took for its own magazines.
    pub carved: AtomicU64,
    /// Pages that a layer above holds back.
    pub quarantined: AtomicU64,
    /// Pages of pageblocks that compactions empty.
    pub hidden: InFlight,
    marks: [AtomicU64; 3],
    limits: [AtomicU64; 3],
    /// CPUs with caches.
    cpus: u32,
    /// Largest change of the free count that a CPU keeps to itself.
    delta_max: AtomicI64,
    /// Whether the free count is so high that requests need not read it.
    drift_mark: DriftMark,
    /// Free pages of the store, without the deltas of CPUs and groups. On a line of its own: every
    /// slow path reads the fields above, while drains and callers that move many pages write this
    /// one.
    free: CachePadded<AtomicI64>,
    /// Whether a backing counts the free pages. Then this zone does not count them.
    pub is_backed: bool,
    /// Set from the first refill below `low` until one above `high`.
    pub below_low: AtomicBool,
    /// Moves by callers that run on no CPU with caches.
    pub in_flight: InFlight,
    /// Events of callers that run on no CPU with caches.
    pub counters: Counters,
    pub compactions: CompactionCounters,
}

/// Bounds of the change that a CPU keeps to itself, in pages. All CPUs together keep at most a 64th
/// of the zone, where the lower bound allows, and groups of CPUs half as much again. The upper
/// bound has room for a drain of 8 magazines and more, so that a CPU that is drained and refilled
/// leaves the zone's count alone. More would make requests sum all CPUs' changes on a zone that is
/// further above its watermarks.
const DELTA_MIN: i64 = bound(64, 1);
const DELTA_MAX: i64 = bound(4096, 2);

impl Zone {
    pub fn new(name: &str, node: NodeId, level: u8, cpus: u32, is_backed: bool) -> Self {
        Zone {
            name: ZoneName::new(name),
            node,
            level,
            span: [AtomicU32::new(u32::MAX), AtomicU32::new(0)],
            managed: AtomicU64::new(0),
            cpus,
            drift_mark: DriftMark::default(),
            delta_max: AtomicI64::new(DELTA_MIN),
            free: CachePadded::new(AtomicI64::new(0)),
            carved: AtomicU64::new(0),
            quarantined: AtomicU64::new(0),
            hidden: InFlight::default(),
            marks: core::array::from_fn(|_| AtomicU64::new(0)),
            limits: core::array::from_fn(|_| AtomicU64::new(1)),
            is_backed,
            below_low: AtomicBool::new(false),
            in_flight: InFlight::default(),
            counters: Counters::default(),
            compactions: CompactionCounters::default(),
        }
    }

    /// The sections to search. Empty for a zone without memory.
    #[inline]
    pub fn span(&self) -> (u32, u32) {
        let (start, end) =
            (self.span[0].load(Ordering::Relaxed), self.span[1].load(Ordering::Relaxed));
        if start < end { (start, end) } else { (0, 0) }
    }

    /// Widens the span.
    pub fn cover(&self, first: u32, end: u32) {
        // Relaxed: a search with an older span finds less, and is repeated before a request fails.
        self.span[0].fetch_min(first, Ordering::Relaxed);
        self.span[1].fetch_max(end, Ordering::Relaxed);
    }

    pub fn managed(&self) -> u64 {
        self.managed.load(Ordering::Relaxed)
    }

    /// Counts frames given to the zone, free or not.
    pub fn add_managed(&self, pages: u64) {
        let managed = self.managed.fetch_add(pages, Ordering::Relaxed) + pages;
        let share = (managed / 64 / u64::from(self.cpus)).min(DELTA_MAX as u64) as i64;
        // SeqCst: part of the drift mark, see `drift_level`. Until the change is noted, CPUs may
        // keep more than the old mark allows for: less than the memory that is being added.
        self.delta_max.fetch_max(share, DRIFT_MARK.change());
        self.note_mark();
    }

    /// Subtracts frames that were removed from the zone. The bound of what a CPU keeps to itself
    /// does not change, because CPUs may keep that much at this moment.
    pub fn remove_managed(&self, pages: u64) {
        self.managed.fetch_sub(pages, Ordering::Relaxed);
    }

    pub fn watermarks(&self) -> Watermarks {
        let [min, low, high] = [0, 1, 2].map(|i| self.marks[i].load(Ordering::Relaxed));
        Watermarks { min, low, high }
    }

    pub fn set_watermarks(&self, marks: Watermarks) {
        for (cell, value) in self.marks.iter().zip([marks.min, marks.low, marks.high]) {
            // SeqCst: `high` is part of the drift mark, see `drift_level`.
            cell.swap(value.min(PAGES_MAX), DRIFT_MARK.change());
        }
        self.note_mark();
    }

    pub fn limits(&self) -> CacheLimits {
        let [batch, high_min, high_max] = [0, 1, 2].map(|i| self.limits[i].load(Ordering::Relaxed));
        // A reader beside `set_limits` may see parts of two settings. The bounds ascend all the
        // same.
        CacheLimits { batch, high_min, high_max: high_max.max(high_min) }
    }

    pub fn set_limits(&self, limits: CacheLimits) {
        for (cell, value) in
            self.limits.iter().zip([limits.batch, limits.high_min, limits.high_max])
        {
            cell.store(value.min(PAGES_MAX), Ordering::Relaxed);
        }
    }

    /// Free pages, without the changes that CPUs and groups keep to themselves.
    #[inline]
    pub fn free_estimate(&self) -> i64 {
        // Acquire: pairs with the Release in `add_reported`: a reader that sees a change also sees
        // that it was announced, and that a delta of freed pages was forgotten.
        self.free.load(Ordering::Acquire)
    }

    /// Largest change of the free count that a CPU keeps to itself, in pages.
    #[inline]
    pub fn delta_max(&self) -> i64 {
        self.delta_max.load(Ordering::Relaxed)
    }

    /// Largest change that a group of CPUs keeps to itself, in pages; `None`: there are none.
    #[inline]
    pub fn group_delta_max(&self) -> Option<i64> {
        (self.cpus > GROUP_CPUS).then(|| GROUP_DELTAS * self.delta_max())
    }

    /// Whether a CPU adds a change to the zone's count by one operation: it is too large to keep,
    /// and no group keeps it either. It need not be announced as a report is: no sum misses what
    /// was there before.
    #[inline]
    pub fn takes_at_once(&self, pages: i64) -> bool {
        pages.abs() >= self.delta_max() && self.cpus <= GROUP_CPUS
    }

    /// Deltas of [`delta_max`](Self::delta_max) that all CPUs and groups together keep at most.
    fn deltas(&self) -> i64 {
        let groups = if self.cpus > GROUP_CPUS { self.cpus.div_ceil(GROUP_CPUS) } else { 0 };
        i64::from(self.cpus) + i64::from(groups) * GROUP_DELTAS
    }

    /// Records `pages` more (or fewer) free pages. A CPU with caches records its own by
    /// `Pcp::add_free`.
    pub fn add_free(&self, pages: i64) {
        if !self.is_backed {
            self.add_reported(pages);
        }
    }

    /// Adds the change that a CPU or a group has kept to itself.
    pub fn add_reported(&self, pages: i64) {
        // SeqCst: its Release pairs with the Acquire in `free_estimate`: a reader that sees the
        // change also sees that it was announced as in flight. The rest is the drift mark's.
        let count = self.free.fetch_add(pages, DRIFT_MARK.change()) + pages;
        self.note_count(count);
    }

    /// The largest possible error of [`free_estimate`](Self::free_estimate).
    pub fn estimate_error(&self) -> i64 {
        if self.is_backed { 0 } else { self.deltas() * self.delta_max() }
    }

    /// Whether the zone is so far above its watermarks that a request for `pages` is none that they
    /// forbid, whatever its reserve.
    #[inline]
    pub fn is_above_drift(&self, pages: u64) -> bool {
        self.drift_mark.is_above() && pages <= self.delta_max() as u64
    }

    /// The drift mark, and the drift.
    fn drift_level(&self) -> (i64, i64) {
        // SeqCst: pairs with the changes of both in `set_watermarks` and `add_managed`, which look
        // at the drift mark's word afterwards.
        let high = self.marks[2].load(DRIFT_MARK.look()) as i64;
        let drift = self.deltas() * self.delta_max.load(DRIFT_MARK.look());
        (high + MARK_DRIFTS * drift, drift)
    }

    /// Notes a change of the watermarks or of the drift.
    fn note_mark(&self) {
        DRIFT_MARK.fence();
        // SeqCst: a report that this does not see sees the new mark.
        self.note_count(self.free.load(DRIFT_MARK.look()));
    }

    #[inline]
    fn note_count(&self, count: i64) {
        let recount = || self.free.load(DRIFT_MARK.look());
        self.drift_mark.note(count, || self.drift_level(), recount);
    }
}

/// A zone's name, kept by value: at most 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ZoneName {
    bytes: [u8; 15],
    length: u8,
}

impl ZoneName {
    fn new(name: &str) -> Self {
        let mut bytes = [0; 15];
        let mut length = 0;
        for c in name.chars() {
            if length + c.len_utf8() > bytes.len() {
                break;
            }
            c.encode_utf8(&mut bytes[length..]);
            length += c.len_utf8();
        }
        ZoneName { bytes, length: length as u8 }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("?")
    }
}

impl core::fmt::Debug for ZoneName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// All zones, and for each node the order in which its requests try them.
pub struct Zones<'m> {
    zones: &'m [Zone],
    /// Nodes of zones, then of CPUs without a zone on their node.
    nodes: &'m [NodeId],
    /// Zones in order of preference, seen from each node.
    lists: &'m [u8],
}

impl<'m> Zones<'m> {
    /// `lists` holds `zones.len()` entries for each of `nodes`.
    pub fn new(zones: &'m [Zone], nodes: &'m [NodeId], lists: &'m [u8]) -> Self {
        debug_assert_eq!(lists.len(), zones.len() * nodes.len());
        Zones { zones, nodes, lists }
    }

    /// The zone with this number.
    ///
    /// # Panics
    /// When there is none.
    #[inline]
    pub fn get(&self, zone: ZoneId) -> &'m Zone {
        &self.zones[zone.index()]
    }

    /// All zones, by number.
    pub fn all(&self) -> &'m [Zone] {
        self.zones
    }

    /// All zones, in order of preference seen from `node`: nearest node first, and there the zone
    /// that fewest requests need.
    pub fn from(&self, node: NodeId) -> impl Iterator<Item = ZoneId> + use<'m> {
        let place = self.nodes.iter().position(|&other| other == node).unwrap_or(0);
        let list = &self.lists[place * self.zones.len()..][..self.zones.len()];
        list.iter().map(|&zone| ZoneId::new(u32::from(zone)))
    }

    /// Bytes that all this takes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.zones) + size_of_val(self.nodes) + self.lists.len()
    }
}

/// The pages that a group of CPUs has not told the zone yet.
#[derive(Default)]
pub struct GroupDelta(Delta);

impl GroupDelta {
    /// Reads the pages, like [`Delta::read`].
    pub fn read(&self) -> i64 {
        self.0.read()
    }

    /// Records what a CPU of the group has kept to itself so far.
    pub fn add(&self, zone: &Zone, pages: i64) {
        let Some(most) = zone.group_delta_max() else { return zone.add_reported(pages) };
        if zone.is_above_drift(0) {
            if self.0.add_from_below(pages).abs() <= most {
                return;
            }
        } else {
            zone.add_reported(pages);
        }
        self.0.report(|pages| zone.add_reported(pages));
    }
}

/// Free pages below which a zone becomes careful, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Free pages below which only requests that may use reserves are served.
    pub min: u64,
    /// Free pages below which reclaim callbacks are called.
    pub low: u64,
    /// Pressure is over, and caches may grow, above this.
    pub high: u64,
}

impl Watermarks {
    /// Computes Linux's watermarks: `min` is 4 * sqrt(KiB managed) KiB, between 128 KiB and 256
    /// MiB; `low` and `high` are a quarter and a half above it (`mm/page_alloc.c`,
    /// `calculate_min_free_kbytes`, `__setup_per_zone_wmarks`).
    pub fn kernel(managed_pages: u64, page_size: PageSize) -> Self {
        let kib_per_page = page_size.bytes() as u64 / 1024;
        let min_kib =
            managed_pages.saturating_mul(kib_per_page * 16).isqrt().clamp(128, 256 * 1024);
        let min = (min_kib / kib_per_page).min(managed_pages / 4);
        Watermarks { min, low: min + min / 4, high: min + min / 2 }
    }

    pub(crate) fn ascend(self) -> bool {
        self.min <= self.low && self.low <= self.high
    }

    /// Computes watermarks like [`kernel`](Self::kernel), but with nothing held back: every page
    /// can be allocated.
    pub fn without_reserve(managed_pages: u64, page_size: PageSize) -> Self {
        Watermarks { min: 0, ..Self::kernel(managed_pages, page_size) }
    }
}

/// The watermark down to which a request may take a zone's free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reserve {
    AboveLow,
    AboveMin,
    /// All free pages: for requests that may not wait.
    All,
}

impl Reserve {
    /// Free pages that the request must leave.
    pub(crate) fn floor_pages(self, marks: Watermarks) -> u64 {
        match self {
            Reserve::AboveLow => marks.low,
            Reserve::AboveMin => marks.min,
            Reserve::All => 0,
        }
    }
}

/// Watermarks and limits above this many pages mean this many: more than there are frame numbers,
/// and sums of a few of them still fit.
pub const PAGES_MAX: u64 = 1 << 40;

/// The policy for the number of pages that a CPU may cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HighPolicy {
    /// Adapted to demand between the kernel's `high_min` and `high_max`. While pageblocks are
    /// avoided, all CPUs together shelve a 32nd of what is free at most, but each as much as
    /// `high_min`.
    #[default]
    Auto,
    /// Fixed at `managed / n / cpus` pages (`percpu_pagelist_high_fraction`; at least 8).
    Fraction(u32),
    /// Fixed, in pages.
    Fixed(u64),
}

/// The most pages a CPU caches of a zone, and how many move at once (`zone_highsize`,
/// `zone_batchsize` in `mm/page_alloc.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Pages per refill of order 0.
    pub batch: u64,
    /// Least value of `high`, in pages.
    pub high_min: u64,
    /// Greatest value of `high`, in pages.
    pub high_max: u64,
}

impl CacheLimits {
    /// The kernel's formula for a zone of `managed` pages and `cpus` CPUs near it.
    pub fn new(managed: u64, low: u64, cpus: u64, page_size: PageSize, policy: HighPolicy) -> Self {
        let cpus = cpus.max(1);
        let batch = match (managed >> 12).min(256 * 1024 / page_size.bytes() as u64) {
            0 | 1 => 1,
            b => {
                let b = b + b / 2;
                (1 << b.ilog2()) - 1
            }
        };
        let (high_min, high_max) = match policy {
            HighPolicy::Auto => ((low / cpus).max(4 * batch), (managed / 8 / cpus).max(4 * batch)),
            HighPolicy::Fraction(fraction) => {
                let high = (managed / u64::from(fraction.max(8)) / cpus).max(4 * batch);
                (high, high)
            }
            HighPolicy::Fixed(pages) => (pages.min(PAGES_MAX), pages.min(PAGES_MAX)),
        };
        CacheLimits { batch, high_min, high_max: high_max.max(high_min) }
    }

    /// Whether `high` adapts to demand.
    pub fn adapts(self) -> bool {
        self.high_min < self.high_max
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::state::HighPolicy;
    use super::*;
    use crate::frame::PageSize;

    const GIB: u64 = 1 << 30;

    fn pages(bytes: u64, page_size: PageSize) -> u64 {
        bytes >> page_size.shift()
    }

    /// Computed by hand: 4 * sqrt(KiB) KiB, between 128 KiB and 256 MiB, at most a quarter.
    #[test]
    fn watermarks_are_the_kernels() {
        for (bytes, page_size, min) in [
            // 4 * sqrt(2^22) KiB = 8 MiB.
            (4 * GIB, PageSize::Kib4, 2048),
            (4 * GIB, PageSize::Kib16, 512),
            (4 * GIB, PageSize::Kib64, 128),
            // 4 * sqrt(2^24) KiB = 16 MiB.
            (16 * GIB, PageSize::Kib4, 4096),
            // 4 * sqrt(3 * 2^20) = 7094.8 KiB.
            (3 * GIB, PageSize::Kib4, 1773),
            // At most 256 MiB, from 4 TiB on.
            (4096 * GIB, PageSize::Kib4, 65536),
            (16384 * GIB, PageSize::Kib4, 65536),
            (4096 * GIB, PageSize::Kib64, 4096),
            // At least 128 KiB, but no more than a quarter.
            (1 << 20, PageSize::Kib4, 32),
            (256 << 10, PageSize::Kib4, 16),
            (64 << 10, PageSize::Kib64, 0),
            (0, PageSize::Kib4, 0),
        ] {
            let marks = Watermarks::kernel(pages(bytes, page_size), page_size);
            assert_eq!(
                marks,
                Watermarks { min, low: min + min / 4, high: min + min / 2 },
                "{bytes}"
            );
            assert!(marks.ascend());
            let open = Watermarks::without_reserve(pages(bytes, page_size), page_size);
            assert_eq!(open, Watermarks { min: 0, ..marks });
        }
        assert!(Watermarks::kernel(u64::MAX, PageSize::Kib64).ascend());
    }

    /// A reader between the stores of a setting sees the old maximum with the new minimum.
    #[test]
    fn limits_that_are_being_set_ascend() {
        let zone = Zone::new("z", NodeId::new(0), 0, 1, false);
        zone.set_limits(CacheLimits { batch: 63, high_min: 125, high_max: 250 });
        zone.limits[1].store(285, Ordering::Relaxed);
        assert_eq!(zone.limits(), CacheLimits { batch: 63, high_min: 285, high_max: 285 });
    }

    /// Computed by hand from `zone_batchsize` and `zone_highsize`.
    #[test]
    fn cache_limits_are_the_kernels() {
        let auto = |bytes, page_size, cpus| {
            let managed = pages(bytes, page_size);
            let low = Watermarks::kernel(managed, page_size).low;
            let CacheLimits { batch, high_min, high_max } =
                CacheLimits::new(managed, low, cpus, page_size, HighPolicy::Auto);
            (batch, high_min, high_max)
        };
        // Batch: 256 KiB are 64 pages; 96 rounded down to a power of two, less one. high_min: low
        // is 2560. high_max: an eighth of 2^20.
        assert_eq!(auto(4 * GIB, PageSize::Kib4, 4), (63, 640, 32768));
        assert_eq!(auto(4 * GIB, PageSize::Kib4, 1), (63, 2560, 131_072));
        // Many CPUs: four batches.
        assert_eq!(auto(4 * GIB, PageSize::Kib4, 4096), (63, 252, 252));
        // 256 KiB are 16 pages, or 4.
        assert_eq!(auto(64 * GIB, PageSize::Kib16, 4), (15, 640, 131_072));
        assert_eq!(auto(64 * GIB, PageSize::Kib64, 4), (3, 160, 32768));
        // Managed >> 12 is 0, 1, 2, 3, 8.
        assert_eq!(auto(4 << 20, PageSize::Kib4, 1), (1, 80, 128));
        assert_eq!(auto(16 << 20, PageSize::Kib4, 1), (1, 160, 512));
        assert_eq!(auto(32 << 20, PageSize::Kib4, 1).0, 1);
        assert_eq!(auto(48 << 20, PageSize::Kib4, 1).0, 3);
        assert_eq!(auto(128 << 20, PageSize::Kib4, 1).0, 7);
        assert_eq!(auto(0, PageSize::Kib4, 0), (1, 4, 4));
    }

    #[test]
    fn fixed_limits_do_not_adapt() {
        let limits = |policy| CacheLimits::new(1 << 20, 2560, 4, PageSize::Kib4, policy);
        for (policy, high) in [
            (HighPolicy::Fraction(8), 32768),
            (HighPolicy::Fraction(64), 4096),
            // At least 8, as the sysctl demands.
            (HighPolicy::Fraction(0), 32768),
            (HighPolicy::Fraction(7), 32768),
            // Four batches at least.
            (HighPolicy::Fraction(u32::MAX), 252),
            (HighPolicy::Fixed(0), 0),
            (HighPolicy::Fixed(17), 17),
            (HighPolicy::Fixed(u64::MAX), PAGES_MAX),
        ] {
            let fixed = CacheLimits { batch: 63, high_min: high, high_max: high };
            assert_eq!(limits(policy), fixed, "{policy:?}");
            assert!(!limits(policy).adapts());
        }
        assert!(limits(HighPolicy::Auto).adapts());
    }
}

#[cfg(all(test, not(loom)))]
mod group_delta_tests {
    use super::super::Watermarks;
    use super::super::delta::GROUP_CPUS;
    use super::*;
    use crate::frame::NodeId;

    fn zone(cpus: u32, pages: u64) -> Zone {
        let zone = Zone::new("z", NodeId::new(0), 0, cpus, false);
        zone.add_managed(pages);
        zone
    }

    #[test]
    fn few_cpus_form_no_group() {
        let (zone, group) = (zone(GROUP_CPUS, 1 << 20), GroupDelta::default());
        assert_eq!((zone.delta_max(), zone.group_delta_max()), (1024, None));
        assert_eq!(zone.estimate_error(), 16 * 1024);
        zone.add_free(1 << 20);
        group.add(&zone, -1);
        assert_eq!((zone.free_estimate(), group.read()), ((1 << 20) - 1, 0));
    }

    /// 17 CPUs in two groups, each of which keeps 8 times 963 pages.
    #[test]
    fn a_group_keeps_changes_above_the_mark() {
        let (zone, group) = (zone(17, 1 << 20), GroupDelta::default());
        let (most, drift) = (8 * 963, (17 + 2 * 8) * 963);
        assert_eq!((zone.delta_max(), zone.group_delta_max()), (963, Some(most)));
        assert_eq!(zone.estimate_error(), drift);
        zone.add_free(1 << 20);
        for sign in [1, -1] {
            let free = zone.free_estimate();
            group.add(&zone, sign * most);
            assert_eq!((zone.free_estimate(), group.read()), (free, sign * most));
            group.add(&zone, sign);
            assert_eq!((zone.free_estimate(), group.read()), (free + sign * (most + 1), 0));
        }
    }

    /// Checks that the zone's count has all that CPUs reported below the drift mark.
    #[test]
    fn a_group_keeps_nothing_below_the_mark() {
        let (zone, group) = (zone(17, 1 << 20), GroupDelta::default());
        group.add(&zone, 1000);
        assert_eq!((zone.free_estimate(), group.read()), (1000, 0));
        zone.add_free(1 << 20);
        group.add(&zone, 1000);
        assert_eq!((zone.free_estimate(), group.read()), (1000 + (1 << 20), 1000));
        zone.set_watermarks(Watermarks { min: 0, low: 0, high: 1 << 20 });
        group.add(&zone, -1);
        assert_eq!((zone.free_estimate(), group.read()), (1999 + (1 << 20), 0));
    }
}
