//! A trace's vmalloc events as steps of a replay.

use std::collections::BTreeMap;
use std::path::Path;

use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::report::account::Account;
use pagedepot_trace::{self as trace, Event, ExpandLimit, Record};

/// Pages of the range of addresses, at most: a terabyte.
pub const RANGE_PAGES_MAX: u64 = 1 << 28;

/// Pages that may be lazy when a trace begins. A kernel purges at half of it on 8192 CPUs
/// (`lazy_max_pages` in `mm/vmalloc.c`); designs take longer than in proportion to have more.
const LAZY_PAGES_MAX: u64 = 1 << 18;

/// One step of a replay. Areas are numbered in the order in which they come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmapStep {
    Alloc { cpu: u16, pages: u32, align: usize },
    Free { cpu: u16, area: u32 },
}

/// A trace's vmalloc events, ready to run.
#[derive(Debug, Default)]
pub struct VmapTrace {
    pub steps: Vec<VmapStep>,
    /// Frees of areas that the trace did not allocate, by their place among the steps.
    pub unknown: Vec<usize>,
    /// Allocations that failed in the kernel, and frees that the recording lacks.
    pub failed: u64,
    pub missed_frees: u64,
    /// Events of pages.
    other_events: u64,
    pub allocated: u32,
    pub cpus: u32,
    live: BTreeMap<u64, u32>,
    /// Pages that the trace holds at a time, guards included, and most of them.
    live_pages: u64,
    pub live_pages_max: u64,
    pages_of: Vec<u32>,
    sizes: BTreeMap<(u32, usize), u32>,
    /// Pages lazy in the kernel when its first free in the trace was done.
    pub lazy_pages_before: Option<u64>,
    pub lazy_pages_max: Option<u64>,
    pub kernel_purges: u64,
    pub kernel_purged: u64,
    /// Pages in the hulls that the kernel flushed.
    pub kernel_flushed_pages: u64,
    /// The account of the trace: what was read, and what was not.
    pub account: Option<Account>,
}

impl VmapTrace {
    /// Reads the trace at `path`.
    ///
    /// # Errors
    /// When it is no trace, has no vmalloc event, or asks for more than a replay can have.
    pub fn load(path: &Path, limit: ExpandLimit) -> Result<Self, Failure> {
        let mut events = VmapTrace::default();
        let read = trace::read_file(path, limit, |record| events.record(record));
        let summary = read.map_err(|error| Failure::Usage(error.to_string()))?;
        let mut account = Account::new(&path.display().to_string(), &summary);
        account.add("other_events", events.other_events, "events of pages: `replay` replays them");
        account.add("failed", events.failed, "allocations failed in the kernel: left out");
        events.account = Some(account);
        if events.steps.is_empty() {
            return Err(Failure::Usage(format!(
                "{} holds no alloc_vmap_area and no free_vmap_area_noflush event, so there is \
                 nothing to replay; record with \
                 `perf record -a -e vmalloc:alloc_vmap_area,vmalloc:free_vmap_area_noflush`",
                path.display()
            )));
        }
        let pages = events.pages_at_a_time();
        if pages > RANGE_PAGES_MAX / 2 {
            return Err(Failure::Usage(format!(
                "{} holds {pages} pages of addresses at a time, and a replay at most {}: give a \
                 shorter part of it",
                path.display(),
                RANGE_PAGES_MAX / 2
            )));
        }
        if let Some(pages) = events.lazy_pages_before.filter(|&pages| pages > LAZY_PAGES_MAX) {
            return Err(Failure::Usage(format!(
                "{} begins with {pages} pages of lazy areas, and a replay can have \
                 {LAZY_PAGES_MAX}: give another trace",
                path.display()
            )));
        }
        Ok(events)
    }

    fn record(&mut self, record: &Record<'_>) {
        self.cpus = self.cpus.max(u32::from(record.cpu) + 1);
        match record.event {
            Event::AllocVmapArea { failed: true, .. } => self.failed += 1,
            Event::AllocVmapArea { va_start, size, align, .. } => {
                if let Some(area) = self.remove(va_start) {
                    self.missed_frees += 1;
                    self.steps.push(VmapStep::Free { cpu: record.cpu, area });
                }
                // Sizes have the guard in them.
                let pages = (size / PAGE_BYTES as u64).saturating_sub(1).clamp(1, 1 << 20) as u32;
                let align = align.clamp(1, 1 << 30).next_power_of_two() as usize;
                *self.sizes.entry((pages, align)).or_default() += 1;
                self.live.insert(va_start, self.allocated);
                self.allocated += 1;
                self.pages_of.push(pages);
                self.live_pages += u64::from(pages) + 1;
                self.live_pages_max = self.live_pages_max.max(self.live_pages);
                self.steps.push(VmapStep::Alloc { cpu: record.cpu, pages, align });
            }
            Event::FreeVmapArea { va_start, nr_lazy, nr_lazy_max } => {
                self.lazy_pages_max = Some(nr_lazy_max);
                self.lazy_pages_before.get_or_insert(nr_lazy);
                match self.remove(va_start) {
                    Some(area) => self.steps.push(VmapStep::Free { cpu: record.cpu, area }),
                    None => {
                        self.unknown.push(self.steps.len());
                        // Its number follows in `areas_before`.
                        self.steps.push(VmapStep::Free { cpu: record.cpu, area: u32::MAX });
                    }
                }
            }
            Event::PurgeVmapAreas { start, end, num_purged } => {
                self.kernel_purges += 1;
                self.kernel_purged = self.kernel_purged.saturating_add(num_purged);
                let pages = end.saturating_sub(start) / PAGE_BYTES as u64;
                self.kernel_flushed_pages = self.kernel_flushed_pages.saturating_add(pages);
            }
            _ => self.other_events += 1,
        }
    }

    /// The area at this address, which is no more.
    fn remove(&mut self, va_start: u64) -> Option<u32> {
        let area = self.live.remove(&va_start)?;
        self.live_pages -= u64::from(self.pages_of[area as usize]) + 1;
        Some(area)
    }

    /// The size that the trace asks for most.
    pub fn usual(&self) -> (u32, usize) {
        let usual = self.sizes.iter().max_by_key(|&(_, count)| count);
        usual.map_or((4, PAGE_BYTES), |(&size, _)| size)
    }

    /// Number of allocations.
    pub fn allocs(&self) -> u64 {
        u64::from(self.allocated)
    }

    /// Number of frees.
    pub fn frees(&self) -> u64 {
        self.steps.len() as u64 - self.allocs()
    }

    /// Pages of addresses that were there before the trace began, guards included.
    fn pages_before(&self) -> u64 {
        let unknown = self.unknown.len() as u64 * u64::from(self.usual().0 + 1);
        unknown.saturating_add(self.lazy_pages_before.unwrap_or_default())
    }

    /// Most pages of addresses that are held or lazy at a time.
    pub fn pages_at_a_time(&self) -> u64 {
        self.live_pages_max.saturating_add(self.pages_before())
    }

    /// Pages of addresses with which nothing need ever come back.
    pub fn pages(&self) -> u64 {
        let all: u64 = self.pages_of.iter().map(|&pages| u64::from(pages) + 1).sum();
        all + self.pages_before()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use pagedepot_trace::Notation;

    fn record(cpu: u16, event: Event) -> Record<'static> {
        Record { comm: "x", pid: 1, cpu, time_ns: 0, event, notation: Notation::default() }
    }

    fn alloc(va_start: u64, size: u64, failed: bool) -> Event {
        Event::AllocVmapArea { va_start, size, align: 16384, vstart: 0, vend: 0, failed }
    }

    fn free(va_start: u64, nr_lazy: u64) -> Event {
        Event::FreeVmapArea { va_start, nr_lazy, nr_lazy_max: 1000 }
    }

    /// One of each oddity.
    pub fn small() -> VmapTrace {
        let mut trace = VmapTrace::default();
        for (cpu, event) in [
            (1, alloc(0x1000, 20480, false)),
            (0, alloc(0x9000, 20480, false)),
            (0, alloc(0, 4096, true)),
            (0, free(0x1000, 50)),
            // Allocated before the recording.
            (0, free(0x77000, 55)),
            // Its free is missing.
            (2, alloc(0x9000, 8192, false)),
            (0, Event::PurgeVmapAreas { start: 0x1000, end: 0xa000, num_purged: 3 }),
        ] {
            trace.record(&record(cpu, event));
        }
        trace
    }

    #[test]
    fn steps_know_their_areas_and_what_the_recording_lacks() {
        let trace = small();
        let align = 16384;
        assert_eq!(
            trace.steps,
            [
                VmapStep::Alloc { cpu: 1, pages: 4, align },
                VmapStep::Alloc { cpu: 0, pages: 4, align },
                VmapStep::Free { cpu: 0, area: 0 },
                VmapStep::Free { cpu: 0, area: u32::MAX },
                VmapStep::Free { cpu: 2, area: 1 },
                VmapStep::Alloc { cpu: 2, pages: 1, align },
            ]
        );
        assert_eq!(
            (trace.unknown.len(), trace.missed_frees, trace.failed, trace.cpus),
            (1, 1, 1, 3)
        );
        assert_eq!(
            (trace.usual(), trace.lazy_pages_before, trace.lazy_pages_max),
            ((4, align), Some(50), Some(1000))
        );
        assert_eq!(
            (trace.kernel_purges, trace.kernel_purged, trace.kernel_flushed_pages),
            (1, 3, 9)
        );
    }
}
