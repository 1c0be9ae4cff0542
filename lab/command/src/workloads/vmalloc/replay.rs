//! Replays a trace's vmalloc events over each design.
//!
//! One thread acts as each CPU in turn, in the order of the trace. Before it starts, it allocates
//! what the recording lacks, at the size that the trace asks for most: areas that it frees without
//! having allocated them, and those that were lazy already when it began. Purges are the designs'
//! own; the kernel's are shown beside them.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use pagedepot::{AllocError, CpuId, Flags, FreeManyError, Order, PageSize, Pfn};
use pagedepot_lab_designs::vmap::{VmapCounts, VmapDesign};
use pagedepot_vmap::{Host, NullMapper, Span, VirtAddr};

use super::events::{RANGE_PAGES_MAX, VmapStep, VmapTrace};
use super::frames::{self, ADDRESSES_START};
use super::options::NAME;
use crate::design::dispatch::with_vmap;
use crate::design::vmap::VmapDemand;
use pagedepot_cli::design::PAGE_BYTES;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::stop;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Params, Series};
use pagedepot_cli::report::{Report, table};
use pagedepot_cli::workloads::settings::Settings;
use pagedepot_trace::ExpandLimit;

thread_local! {
    static ACTING_AS: Cell<u32> = const { Cell::new(0) };
}

/// A host whose CPU is the one that the trace says.
struct ActingHost<H>(H);

// SAFETY: frames are the inner host's, in a process that does not fork.
unsafe impl<H: Host> Host for ActingHost<H> {
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

/// The result of a design for the trace.
#[derive(Clone, Debug, Default)]
struct VmapReplayed {
    /// Times of each run, per event.
    event_ns: Vec<f64>,
    /// Bytes of page tables after so many events of the last run.
    table_bytes: Vec<(f64, f64)>,
    before: VmapCounts,
    after: VmapCounts,
    failures: u64,
}

/// Groups of events. The clock is read around each, and page tables are counted between them.
const GROUPS: usize = 200;

/// Replays the trace at `path` with each design.
///
/// # Errors
/// When it is no trace, or has nothing to replay.
pub fn run(
    (path, limit): (&Path, ExpandLimit),
    designs: &[Design],
    settings: &Settings,
) -> Result<Report, Failure> {
    let plan = VmapTrace::load(path, limit)?;
    let mut replayed = Vec::new();
    for &design in designs.iter().filter(|design| Design::VMAPS.contains(design)) {
        let step =
            settings.progress.task(&format!("{NAME}, replay, {design}"), settings.rounds.into());
        let mut all = VmapReplayed::default();
        for _ in 0..settings.rounds {
            if stop::is_asked() {
                break;
            }
            all = once(&plan, design, all)?;
            step.tick();
        }
        replayed.push((design, all));
    }
    let mut report = Report::default();
    report.say(heading(&plan, path));
    plan.account.iter().for_each(|account| report.account(account.clone()));
    report.say(show(&plan, &replayed));
    for (design, replayed) in &replayed {
        report.add(NAME, *design, ("event_ns", "ns"), (1, &Params::new()), &replayed.event_ns);
        report.add_series(Series {
            workload: NAME.to_owned(),
            design: design.name().to_owned(),
            metric: "page_table_bytes".to_owned(),
            over: "events".to_owned(),
            points: replayed.table_bytes.clone(),
        });
    }
    Ok(report)
}

/// One more run, over a new instance of the design.
fn once(plan: &VmapTrace, design: Design, so_far: VmapReplayed) -> Result<VmapReplayed, Failure> {
    // Twice, because what was freed comes back only with a purge.
    let pages =
        (2 * plan.pages() + (1 << 16)).next_multiple_of(1 << 15).min(RANGE_PAGES_MAX) as u32;
    let areas_max = (4 * plan.allocs() + pages as u64 / 2).clamp(1 << 12, (1 << 24) - 1) as u32;
    let demand =
        VmapDemand { lazy_pages_max: plan.lazy_pages_max, ..VmapDemand::new(plan.cpus, areas_max) };
    frames::with_numbers(plan.cpus, pages, |numbers| {
        let mapper = NullMapper::new(Span::new(ADDRESSES_START, pages), PageSize::Kib4);
        // SAFETY: nothing is mapped, and the numbers are this design's alone.
        unsafe {
            with_vmap!(design, &demand, (mapper, ActingHost(numbers)), |vmap| {
                steps(plan, &vmap, so_far)
            })
        }
    })
}

/// Runs the steps once over a design.
fn steps(plan: &VmapTrace, design: &impl VmapDesign, mut so_far: VmapReplayed) -> VmapReplayed {
    let mut unknown = begin(plan, design).into_iter();
    let mut areas: Vec<Option<VirtAddr>> = Vec::with_capacity(plan.allocated as usize);
    so_far.before = design.counts();
    let (mut elapsed, mut done) = (Duration::ZERO, 0);
    so_far.table_bytes.clear();
    for group in plan.steps.chunks(plan.steps.len().div_ceil(GROUPS).max(1)) {
        let start = Instant::now();
        for &step in group {
            match step {
                VmapStep::Alloc { cpu, pages, align } => {
                    ACTING_AS.set(cpu.into());
                    areas.push(design.vmalloc(pages, align).ok());
                }
                VmapStep::Free { cpu, area } => {
                    ACTING_AS.set(cpu.into());
                    let area =
                        areas.get_mut(area as usize).map_or_else(|| unknown.next(), Option::take);
                    if let Some(area) = area {
                        design.vfree(area).expect("it was allocated");
                    }
                }
            }
        }
        elapsed += start.elapsed();
        done += group.len();
        let bytes = design.counts().tables * PAGE_BYTES as u64;
        so_far.table_bytes.push((done as f64, bytes as f64));
    }
    so_far.event_ns.push(elapsed.as_nanos() as f64 / plan.steps.len() as f64);
    so_far.after = design.counts();
    so_far.failures =
        areas.len() as u64 - (so_far.after.allocated_areas - so_far.before.allocated_areas);
    so_far
}

/// Makes what was there before the recording began; returns what it frees.
fn begin(plan: &VmapTrace, design: &impl VmapDesign) -> Vec<VirtAddr> {
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

fn heading(plan: &VmapTrace, path: &Path) -> String {
    format!(
        "{NAME}: {} replayed: {} allocations, {} frees ({} of areas from before it, {} that it \
         lacks); the kernel purged {} times, {} areas, in hulls of {} pages",
        path.display(),
        plan.allocs(),
        plan.frees(),
        plan.unknown.len(),
        plan.missed_frees,
        plan.kernel_purges,
        plan.kernel_purged,
        plan.kernel_flushed_pages,
    )
}

fn show(plan: &VmapTrace, replayed: &[(Design, VmapReplayed)]) -> comfy_table::Table {
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
    use super::super::events::tests::small;
    use super::*;

    #[test]
    fn every_design_replays_all_of_it() {
        let trace = small();
        for design in Design::VMAPS.iter().copied() {
            let replayed = once(&trace, design, VmapReplayed::default()).unwrap();
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
