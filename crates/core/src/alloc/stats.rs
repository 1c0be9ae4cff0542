//! Statistics and reports: where pages are, what moved them, and how long a CPU's slow path has not
//! run. Linux shows none of these.

use core::fmt;

use super::allocator::Allocator;
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::SECTION_PAGEBLOCKS;
use crate::frame::{CpuId, NodeId, Pfn, ZoneId};
use crate::front::Magazine;
use crate::store::hints::{Group, Summary};
use crate::store::section::Section;
use crate::sync::prim::{AtomicU64, AtomicUsize, Ordering};
use crate::zone::counts::{Compactions, Counts};
use crate::zone::{CacheLimits, Watermarks, ZoneName};

/// A CPU's caches in a zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuStats {
    /// Counters since construction.
    pub counts: Counts,
    /// Pages in fronts: out of a quiet drain's reach.
    pub unreachable_pages: u64,
    /// Pages on shelves.
    pub shelved_pages: u64,
    /// Handed over to drains, and not collected yet.
    pub handed_pages: u64,
    /// Pages in flight: in this CPU's slow paths, or in drains of it.
    pub in_flight_pages: u64,
    /// Capacity of the magazines outside the stacks of empties, in pages; bounded by `high`.
    pub charged_pages: u64,
    /// The most pages that it may cache now.
    pub high_pages: u64,
    /// Milliseconds of the coarse clock since its slow path ran: the age of pages stranded there. 0
    /// without a clock, or if it never ran.
    pub idle_ms: u64,
}

impl CpuStats {
    /// Fronts, shelves, and what was handed over.
    pub fn cached_pages(&self) -> u64 {
        self.unreachable_pages + self.shelved_pages + self.handed_pages
    }
}

/// A zone, in pages.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ZoneStats {
    /// Name of the zone, as configured.
    pub name: ZoneName,
    /// The NUMA node of its memory.
    pub node: NodeId,
    /// All pages that were given to it, but those removed again.
    pub managed_pages: u64,
    /// Free in the store, by the counters.
    pub free_pages: u64,
    /// Pages in CPUs' fronts and shelves, and handed over.
    pub cached_pages: u64,
    /// Taken by the allocator for magazines.
    pub carved_pages: u64,
    /// Watermarks in force.
    pub watermarks: Watermarks,
    /// Limits in force.
    pub limits: CacheLimits,
    /// Sums over all CPUs, and over callers on none.
    pub counts: Counts,
    /// Sums over all compactions of the zone.
    pub compactions: Compactions,
}

/// Memory that the allocator itself uses, in bytes, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetadataUse {
    /// Bitmaps, hints, and the bytes of `checked`.
    pub sections: usize,
    /// Zones, zone lists, the table of sections, tags.
    pub tables: usize,
    /// Per-CPU words, shelves, accounts.
    pub cpus: usize,
    /// Magazines in the caller's memory, added ones included.
    pub magazines: usize,
    /// Pages carved for further magazines.
    pub carved: usize,
}

impl MetadataUse {
    /// The sum of all purposes.
    pub fn total(&self) -> usize {
        self.sections + self.tables + self.cpus + self.magazines + self.carved
    }
}

/// The number of a zone's pages in each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZoneShortage {
    /// Number of the zone.
    pub zone: ZoneId,
    /// Name of the zone, as configured.
    pub name: ZoneName,
    /// All pages that were given to it, but those removed again.
    pub managed_pages: u64,
    /// Free in the store: too few, too scattered, or below a watermark.
    pub free_pages: u64,
    /// Kept back from requests that may not use reserves.
    pub min_pages: u64,
    /// Pages on shelves, and handed over.
    pub cached_pages: u64,
    /// Pages in fronts.
    pub unreachable_pages: u64,
    /// Pages in flight.
    pub in_flight_pages: u64,
    /// Freed by their users, but held back by a layer above until it is safe to reuse them.
    pub quarantined_pages: u64,
}

/// A report for the log: where are the pages? Made by [`Allocator::shortage`]; its `Display` has a
/// line per zone.
#[derive(Clone, Copy)]
pub struct Shortage<'a> {
    zones: &'a dyn ShortageSource,
}

trait ShortageSource {
    fn count(&self) -> u32;
    fn zone(&self, zone: ZoneId) -> ZoneShortage;
}

impl Shortage<'_> {
    /// Figures of each zone, read when the iterator gets there.
    pub fn zones(&self) -> impl Iterator<Item = ZoneShortage> {
        (0..self.zones.count()).map(|zone| self.zones.zone(ZoneId::new(zone)))
    }
}

impl fmt::Display for Shortage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, zone) in self.zones().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(
                f,
                "{}: managed {} free {} (min {}) cached {} unreachable {} in flight {} quarantined \
                 {} pages",
                zone.name.as_str(),
                zone.managed_pages,
                zone.free_pages,
                zone.min_pages,
                zone.cached_pages,
                zone.unreachable_pages,
                zone.in_flight_pages,
                zone.quarantined_pages
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for Shortage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.zones()).finish()
    }
}

impl<C: Cpus> ShortageSource for Allocator<'_, C> {
    fn count(&self) -> u32 {
        self.caches.zones.all().len() as u32
    }

    fn zone(&self, zone: ZoneId) -> ZoneShortage {
        let state = self.caches.zones.get(zone);
        let cpus = self.caches.pcps.all_cpus().filter_map(|cpu| self.cpu_stats(cpu, zone));
        let (cached_pages, unreachable_pages) = cpus.fold((0, 0), |(cached, unreachable), cpu| {
            (cached + cpu.shelved_pages + cpu.handed_pages, unreachable + cpu.unreachable_pages)
        });
        ZoneShortage {
            zone,
            name: state.name,
            managed_pages: state.managed(),
            free_pages: self.free_pages(zone),
            min_pages: state.watermarks().min,
            cached_pages,
            unreachable_pages,
            in_flight_pages: self.caches.in_flight_pages(zone),
            quarantined_pages: state.quarantined.load(Ordering::Relaxed),
        }
    }
}

impl<C: Cpus> Allocator<'_, C> {
    /// A report of where the pages are, zone by zone, for the log when a request failed.
    pub fn shortage(&self) -> Shortage<'_> {
        Shortage { zones: self }
    }

    /// A CPU's caches in a zone; `None` when there is no such CPU or zone.
    pub fn cpu_stats(&self, cpu: CpuId, zone: ZoneId) -> Option<CpuStats> {
        if !self.caches.pcps.has(cpu, zone) {
            return None;
        }
        let pcp = self.caches.pcps.pcp(cpu, zone);
        let mut counts = pcp.counts();
        // Operations that the front words still count.
        let used = self.caches.pcps.used_fronts(cpu, zone);
        counts.hits += used.map(|(_, _, word)| word.operations()).sum::<u64>();
        let (now_ms, active) = (self.caches.cpus.environment().now_ms(), pcp.high.active_ms());
        Some(CpuStats {
            counts,
            unreachable_pages: self.caches.pcps.front_pages(cpu, zone),
            shelved_pages: pcp.shelved_pages(),
            handed_pages: self.caches.pcps.handed_pages(cpu, zone),
            in_flight_pages: crate::sync::InFlight::in_flight_pages(pcp.in_flight.read()),
            charged_pages: pcp.charged(),
            high_pages: pcp.high.pages(),
            idle_ms: if active == 0 { 0 } else { now_ms.saturating_sub(active) },
        })
    }

    /// A zone; `None` when there is no such zone. O(CPUs).
    pub fn zone_stats(&self, zone: ZoneId) -> Option<ZoneStats> {
        let state = self.caches.zones.all().get(zone.index())?;
        let mut counts = state.counters.read();
        let mut cached_pages = 0;
        for stats in self.caches.pcps.all_cpus().filter_map(|cpu| self.cpu_stats(cpu, zone)) {
            counts += stats.counts;
            cached_pages += stats.cached_pages();
        }
        Some(ZoneStats {
            name: state.name,
            node: state.node,
            managed_pages: state.managed(),
            free_pages: self.free_pages(zone),
            cached_pages,
            carved_pages: state.carved.load(Ordering::Relaxed),
            watermarks: state.watermarks(),
            limits: state.limits(),
            counts,
            compactions: state.compactions.read(),
        })
    }

    /// Free pages of a zone's store, the CPUs' shares of the count included. O(CPUs).
    ///
    /// # Panics
    /// When there is no such zone; over a [`Backing`](crate::Backing) it is asked for that zone.
    pub fn free_pages(&self, zone: ZoneId) -> u64 {
        self.caches.free_pages(zone)
    }

    /// The numbers of all zones, ascending.
    pub fn zone_ids(&self) -> impl Iterator<Item = ZoneId> {
        self.caches.pcps.all_zones()
    }

    /// Claims of several words that found a frame gone on the way and rolled back.
    pub fn failed_claims(&self) -> u64 {
        self.globals.failed_claims.load(Ordering::Relaxed)
    }

    /// Bytes that the allocator itself uses. O(sections + zones).
    pub fn metadata_use(&self) -> MetadataUse {
        let (bitmap, all) = (&self.caches.store.bitmap, self.caches.store.bitmap.sections_max());
        let sections = (0..all).filter(|&number| bitmap.section(number).is_some()).count();
        let carved: u64 =
            self.caches.zones.all().iter().map(|zone| zone.carved.load(Ordering::Relaxed)).sum();
        MetadataUse {
            sections: sections * self.layout.section_bytes.max(size_of::<Section<'_>>()),
            tables: self.caches.zones.bytes()
                + all * (size_of::<AtomicUsize>() + SECTION_PAGEBLOCKS * size_of::<u32>())
                + Summary::groups(all) * size_of::<Group>()
                + self.layout.carved_words * size_of::<AtomicU64>(),
            // Gates of numbers that no CPU has are never written.
            cpus: self.layout.cpu_bytes()
                - (self.layout.gates - self.caches.pcps.cpus() as usize) * size_of::<AtomicU64>(),
            magazines: (self.layout.magazines_count + self.caches.pcps.added_magazines() as usize)
                * size_of::<Magazine>(),
            carved: carved as usize * self.options.page_size.bytes(),
        }
    }

    /// Tells the reports that a layer above holds back `pages` pages of the zone of `pfn`, freed by
    /// their users but not yet safe to reuse (negative: gives them back). `false`: no such memory.
    pub fn note_quarantined(&self, pfn: Pfn, pages: i64) -> bool {
        let Some(tag) = self.caches.store.tags.tag(pfn) else { return false };
        // Wrapping: a negative count is added in two's complement.
        self.caches.zones.get(tag.zone()).quarantined.fetch_add(pages as u64, Ordering::Relaxed);
        true
    }

    /// The node of the zone that `pfn` belongs to.
    pub fn node_of(&self, pfn: Pfn) -> Option<NodeId> {
        self.caches.store.tags.tag(pfn).map(|tag| self.caches.zones.get(tag.zone()).node)
    }

    /// Whether `pfn` is free in the store at this moment.
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.caches.store.is_free(pfn)
    }
}

#[cfg(test)]
impl<C: Cpus> Allocator<'_, C> {
    /// Moves the hand of this CPU, as a refill does.
    pub(crate) fn step_hand(&self, zone: ZoneId) {
        let here = self.caches.here().expect("tests run on CPUs with caches");
        self.caches.share(here.cpu, zone).step_hand(here);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use core::mem::MaybeUninit;

    use crate::alloc::allocator::Allocator;
    use crate::alloc::config::Config;
    use crate::alloc::tests::{On, sections, zone};
    use crate::cpus::{CpuLock, LockedCpus};
    use crate::evacuation::State;
    use crate::frame::ZoneId;

    /// The hand of CPU 1 begins in the middle of the zone. What it has seen when it comes to the
    /// end is not the zone: counted as all there is, it would send the hands of all CPUs over all
    /// memory with fewer rests.
    #[test]
    fn a_turn_that_begins_in_the_middle_is_no_count_of_the_zone() {
        let ranges = [sections(0..4)];
        let zones = [zone(&ranges)];
        let config = Config::new(2, &zones);
        let locks = [CpuLock::new(), CpuLock::new()];
        let mut metadata = vec![
            MaybeUninit::uninit();
            Allocator::<LockedCpus<'_, On>>::metadata_bytes(&config).unwrap()
        ];
        let allocator =
            Allocator::new(&config, &mut metadata, LockedCpus::new(&locks, On(1))).unwrap();
        let only = ZoneId::new(0);
        let pages = u64::from(ranges[0].frames);
        let state = State { free: pages, managed: pages, ..State::default() };
        let zone = allocator.caches.pcps.policy(only).unwrap();
        assert!(!zone.is_outdated(state) && !zone.wants_more(pages));
        // Two sections and their rests, and all four.
        for step in 0..64 {
            allocator.step_hand(only);
            assert!(!zone.is_outdated(state), "after {step} steps");
            assert!(!zone.wants_more(pages), "after {step} steps");
        }
    }
}
