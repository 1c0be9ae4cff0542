//! Replaying a trace's vmalloc events: what each design makes of what a kernel was asked.
//!
//! One thread acts as each CPU in turn, in the order of the trace. What the recording lacks is
//! made up before it starts, at the size that the trace asks for most: areas that it frees without
//! having allocated them, and those that were lazy already when it began. Purges are the designs'
//! own; the kernel's are shown beside them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use pagedepot::{AllocError, CpuId, Flags, FreeManyError, Order, PageSize, Pfn};
use pagedepot_designs::vmap::{VmapCounts, VmapDesign};
use pagedepot_vmap::{Host, NullMapper, Span, VirtAddr};

use super::frames;
use super::subject::{self, Demand, WithVmap};
use super::{BOOKS_START, NAME};
use crate::design::{Design, PAGE_BYTES};
use crate::failure::Failure;
use crate::report::rows::Params;
use crate::report::{Report, table};
use crate::trace::{self, Event, ExpandLimit, Record};
use crate::workloads::Settings;

/// Pages of the range of addresses, at most: a terabyte.
const RANGE_PAGES_MAX: u64 = 1 << 28;

/// Pages that may be lazy when a trace begins. A kernel purges at half of it on 8192 CPUs
/// (`lazy_max_pages` in `mm/vmalloc.c`); designs take longer than in proportion to have more.
const LAZY_PAGES_MAX: u64 = 1 << 18;

thread_local! {
    static ACTING_AS: Cell<u32> = const { Cell::new(0) };
}

/// A host whose CPU is the one that the trace says.
struct ActingAs<H>(H);

// SAFETY: frames are the inner host's, in a process that does not fork.
unsafe impl<H: Host> Host for ActingAs<H> {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(ACTING_AS.get()))
    }

    fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        self.0.alloc_block(order, flags)
    }

    fn alloc_frames(&self, flags: Flags, out: &mut [Pfn]) -> Result<usize, AllocError> {
        self.0.alloc_frames(flags, out)
    }

    unsafe fn free_blocks(&self, blocks: &[(Pfn, Order)]) -> Result<(), FreeManyError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_blocks(blocks) }
    }
}

/// One step of a replay. Areas are numbered in the order in which they come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Alloc { cpu: u16, pages: u32, align: usize },
    Free { cpu: u16, area: u32 },
}

/// A trace, ready to run.
#[derive(Debug, Default)]
struct Plan {
    steps: Vec<Step>,
    /// Frees of areas that the trace did not allocate, by their place among the steps.
    unknown: Vec<usize>,
    /// Allocations that failed in the kernel, and frees that the recording lacks.
    failed: u64,
    missed_frees: u64,
    allocated: u32,
    cpus: u32,
    live: BTreeMap<u64, u32>,
    /// Pages that the trace holds at a time, guards included, and most of them.
    live_pages: u64,
    live_pages_max: u64,
    pages_of: Vec<u32>,
    sizes: BTreeMap<(u32, usize), u32>,
    /// Pages lazy in the kernel when its first free in the trace was done.
    lazy_pages_before: Option<u64>,
    lazy_pages_max: Option<u64>,
    kernel_purges: u64,
    kernel_purged: u64,
    /// Pages in the hulls that the kernel flushed.
    kernel_flushed_pages: u64,
    /// The last line of a file that ends early.
    cut_after_line: Option<u64>,
}

impl Plan {
    fn load(path: &Path, limit: ExpandLimit) -> Result<Self, Failure> {
        let mut plan = Plan::default();
        let read = trace::read_file(path, limit, |record| plan.record(record));
        let summary = read.map_err(|error| Failure::Usage(error.to_string()))?;
        plan.cut_after_line = summary.is_cut_short.then_some(summary.lines);
        if plan.steps.is_empty() {
            return Err(Failure::Usage(format!(
                "{} holds no alloc_vmap_area and no free_vmap_area_noflush event, so there is nothing to replay; \
                 record with `perf record -a -e vmalloc:alloc_vmap_area,vmalloc:free_vmap_area_noflush`",
                path.display()
            )));
        }
        let pages = plan.pages_at_a_time();
        if pages > RANGE_PAGES_MAX / 2 {
            return Err(Failure::Usage(format!(
                "{} holds {pages} pages of addresses at a time, and a replay at most {}: give a shorter part of it",
                path.display(),
                RANGE_PAGES_MAX / 2
            )));
        }
        if let Some(pages) = plan.lazy_pages_before.filter(|&pages| pages > LAZY_PAGES_MAX) {
            return Err(Failure::Usage(format!(
                "{} begins with {pages} pages of lazy areas, and a replay can have {LAZY_PAGES_MAX}: give another trace",
                path.display()
            )));
        }
        Ok(plan)
    }

    fn record(&mut self, record: &Record<'_>) {
        self.cpus = self.cpus.max(u32::from(record.cpu) + 1);
        match record.event {
            Event::AllocVmapArea { failed: true, .. } => self.failed += 1,
            Event::AllocVmapArea { va_start, size, align, .. } => {
                if let Some(area) = self.remove(va_start) {
                    self.missed_frees += 1;
                    self.steps.push(Step::Free { cpu: record.cpu, area });
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
                self.steps.push(Step::Alloc { cpu: record.cpu, pages, align });
            }
            Event::FreeVmapArea { va_start, nr_lazy, nr_lazy_max } => {
                self.lazy_pages_max = Some(nr_lazy_max);
                self.lazy_pages_before.get_or_insert(nr_lazy);
                match self.remove(va_start) {
                    Some(area) => self.steps.push(Step::Free { cpu: record.cpu, area }),
                    None => {
                        self.unknown.push(self.steps.len());
                        // Its number follows in `areas_before`.
                        self.steps.push(Step::Free { cpu: record.cpu, area: u32::MAX });
                    }
                }
            }
            Event::PurgeVmapAreas { start, end, num_purged } => {
                self.kernel_purges += 1;
                self.kernel_purged = self.kernel_purged.saturating_add(num_purged);
                let pages = end.saturating_sub(start) / PAGE_BYTES as u64;
                self.kernel_flushed_pages = self.kernel_flushed_pages.saturating_add(pages);
            }
            _ => {}
        }
    }

    /// The area at this address, which is no more.
    fn remove(&mut self, va_start: u64) -> Option<u32> {
        let area = self.live.remove(&va_start)?;
        self.live_pages -= u64::from(self.pages_of[area as usize]) + 1;
        Some(area)
    }

    /// What the trace asks for most.
    fn usual(&self) -> (u32, usize) {
        let usual = self.sizes.iter().max_by_key(|&(_, count)| count);
        usual.map_or((4, PAGE_BYTES), |(&size, _)| size)
    }

    fn allocs(&self) -> u64 {
        u64::from(self.allocated)
    }

    fn frees(&self) -> u64 {
        self.steps.len() as u64 - self.allocs()
    }

    /// Pages of addresses that were there before the trace began, guards included.
    fn pages_before(&self) -> u64 {
        let unknown = self.unknown.len() as u64 * u64::from(self.usual().0 + 1);
        unknown.saturating_add(self.lazy_pages_before.unwrap_or_default())
    }

    /// Most pages of addresses that are held or lazy at a time.
    fn pages_at_a_time(&self) -> u64 {
        self.live_pages_max.saturating_add(self.pages_before())
    }

    /// Pages of addresses with which nothing need ever come back.
    fn pages(&self) -> u64 {
        let all: u64 = self.pages_of.iter().map(|&pages| u64::from(pages) + 1).sum();
        all + self.pages_before()
    }
}

/// What a design did.
#[derive(Clone, Debug, Default)]
struct Replayed {
    /// Of each run, per event.
    event_ns: Vec<f64>,
    before: VmapCounts,
    after: VmapCounts,
    failures: u64,
}

/// Replays the trace at `path` with each design.
///
/// # Errors
/// When it is no trace, or has nothing to replay.
pub fn run(
    (path, limit): (&Path, ExpandLimit),
    designs: &[Design],
    settings: &Settings,
) -> Result<Report, Failure> {
    let plan = Plan::load(path, limit)?;
    let mut replayed = Vec::new();
    for &design in designs.iter().filter(|design| subject::DESIGNS.contains(design)) {
        let step =
            settings.progress.step(&format!("{NAME}, replay, {design}"), settings.rounds.into());
        let mut all = Replayed::default();
        for _ in 0..settings.rounds {
            all = once(&plan, design, all)?;
            step.tick();
        }
        replayed.push((design, all));
    }
    let mut report = Report::default();
    report.say(heading(&plan, path));
    report.say(show(&plan, &replayed));
    for (design, replayed) in &replayed {
        report.add(NAME, *design, ("event_ns", "ns"), (1, &Params::new()), &replayed.event_ns);
    }
    Ok(report)
}

/// One more run, over a new instance of the design.
fn once(plan: &Plan, design: Design, so_far: Replayed) -> Result<Replayed, Failure> {
    // Twice, because what was freed comes back only with a purge.
    let pages =
        (2 * plan.pages() + (1 << 16)).next_multiple_of(1 << 15).min(RANGE_PAGES_MAX) as u32;
    let areas_max = (4 * plan.allocs() + pages as u64 / 2).clamp(1 << 12, (1 << 24) - 1) as u32;
    let demand =
        Demand { lazy_pages_max: plan.lazy_pages_max, ..Demand::new(plan.cpus, areas_max) };
    frames::with_numbers(plan.cpus, pages, |numbers| {
        let mapper = NullMapper::new(Span::new(BOOKS_START, pages), PageSize::Kib4);
        // SAFETY: nothing is mapped, and the numbers are this design's alone.
        unsafe {
            subject::make(design, &demand, (mapper, ActingAs(numbers)), Steps { plan, so_far })
        }
    })
}

struct Steps<'s> {
    plan: &'s Plan,
    so_far: Replayed,
}

impl<'d> WithVmap<'d> for Steps<'_> {
    type Output = Replayed;

    fn with<D: VmapDesign + 'd>(self, design: D) -> Replayed {
        let Steps { plan, mut so_far } = self;
        let mut unknown = begin(plan, &design).into_iter();
        let mut areas: Vec<Option<VirtAddr>> = Vec::with_capacity(plan.allocated as usize);
        so_far.before = design.counts();
        let start = Instant::now();
        for &step in &plan.steps {
            match step {
                Step::Alloc { cpu, pages, align } => {
                    ACTING_AS.set(cpu.into());
                    areas.push(design.vmalloc(pages, align).ok());
                }
                Step::Free { cpu, area } => {
                    ACTING_AS.set(cpu.into());
                    let area =
                        areas.get_mut(area as usize).map_or_else(|| unknown.next(), Option::take);
                    if let Some(area) = area {
                        design.vfree(area).expect("it was allocated");
                    }
                }
            }
        }
        so_far.event_ns.push(start.elapsed().as_nanos() as f64 / plan.steps.len() as f64);
        so_far.after = design.counts();
        so_far.failures =
            areas.len() as u64 - (so_far.after.allocated_areas - so_far.before.allocated_areas);
        so_far
    }
}

/// Makes what was there before the recording began; returns what it frees.
fn begin(plan: &Plan, design: &impl VmapDesign) -> Vec<VirtAddr> {
    let (pages, align) = plan.usual();
    let alloc = |nth: usize| {
        ACTING_AS.set(nth as u32 % plan.cpus.max(1));
        design.vmalloc(pages, align).ok()
    };
    let freed_later: Vec<VirtAddr> = (0..plan.unknown.len()).filter_map(alloc).collect();
    // All at once, or a pool would hand the same one out again and again.
    let lazy = plan.lazy_pages_before.unwrap_or_default() / u64::from(pages + 1);
    let lazy: Vec<VirtAddr> = (0..lazy.saturating_sub(1) as usize).filter_map(alloc).collect();
    lazy.into_iter().for_each(|area| design.vfree(area).expect("it was allocated"));
    freed_later
}

fn heading(plan: &Plan, path: &Path) -> String {
    let cut_short = plan.cut_after_line.map(|line| format!("; {}", trace::cut_short(line)));
    format!(
        "{NAME}: {} replayed: {} allocations, {} frees ({} of areas from before it, {} that it lacks), {} failed \
         allocations left out; the kernel purged {} times, {} areas, in hulls of {} pages{}",
        path.display(),
        plan.allocs(),
        plan.frees(),
        plan.unknown.len(),
        plan.missed_frees,
        plan.failed,
        plan.kernel_purges,
        plan.kernel_purged,
        plan.kernel_flushed_pages,
        cut_short.unwrap_or_default(),
    )
}

fn show(plan: &Plan, replayed: &[(Design, Replayed)]) -> comfy_table::Table {
    let headings = [
        "design",
        "ns per event",
        "quartiles",
        "failed",
        "pool hits",
        "purges",
        "flushed pages",
        "needed",
        "tables KiB",
    ];
    let mut table = table::new(headings);
    for (design, replayed) in replayed {
        let (before, after) = (&replayed.before, &replayed.after);
        let hits = (after.pool_hits - before.pool_hits) as f64 / plan.allocs().max(1) as f64;
        table.add_row([
            design.name().to_owned(),
            table::median(&replayed.event_ns),
            table::quartiles(&replayed.event_ns),
            replayed.failures.to_string(),
            format!("{:.1} %", hits * 100.0),
            (after.purges - before.purges).to_string(),
            (after.flushed_pages - before.flushed_pages).to_string(),
            (after.needed_pages - before.needed_pages).to_string(),
            (after.tables * (PAGE_BYTES as u64 >> 10)).to_string(),
        ]);
    }
    table::align(table, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cpu: u16, event: Event) -> Record<'static> {
        Record { comm: "x", pid: 1, cpu, time_ns: 0, event }
    }

    fn alloc(va_start: u64, size: u64, failed: bool) -> Event {
        Event::AllocVmapArea { va_start, size, align: 16384, vstart: 0, vend: 0, failed }
    }

    fn free(va_start: u64, nr_lazy: u64) -> Event {
        Event::FreeVmapArea { va_start, nr_lazy, nr_lazy_max: 1000 }
    }

    fn plan() -> Plan {
        let mut plan = Plan::default();
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
            plan.record(&record(cpu, event));
        }
        plan
    }

    #[test]
    fn steps_know_their_areas_and_what_the_recording_lacks() {
        let plan = plan();
        let align = 16384;
        assert_eq!(
            plan.steps,
            [
                Step::Alloc { cpu: 1, pages: 4, align },
                Step::Alloc { cpu: 0, pages: 4, align },
                Step::Free { cpu: 0, area: 0 },
                Step::Free { cpu: 0, area: u32::MAX },
                Step::Free { cpu: 2, area: 1 },
                Step::Alloc { cpu: 2, pages: 1, align },
            ]
        );
        assert_eq!((plan.unknown.len(), plan.missed_frees, plan.failed, plan.cpus), (1, 1, 1, 3));
        assert_eq!(
            (plan.usual(), plan.lazy_pages_before, plan.lazy_pages_max),
            ((4, align), Some(50), Some(1000))
        );
        assert_eq!((plan.kernel_purges, plan.kernel_purged, plan.kernel_flushed_pages), (1, 3, 9));
    }

    #[test]
    fn every_design_replays_all_of_it() {
        let plan = plan();
        for design in subject::DESIGNS {
            let replayed = once(&plan, design, Replayed::default()).unwrap();
            assert_eq!(replayed.failures, 0, "{design}");
            assert_eq!(
                replayed.after.allocated_areas - replayed.before.allocated_areas,
                3,
                "{design}"
            );
            assert_eq!(replayed.event_ns.len(), 1);
        }
    }
}
