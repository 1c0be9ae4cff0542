//! The result of a replay.

use pagedepot::{Mobility, Order};

use super::look::Look;
use super::outcome::Outcome;
use super::plan::{ByOrder, KernelCounts, Plan, Work};
use super::verify::Story;
use super::zoneinfos::Zoneinfos;
use crate::design::variant::Store;
use crate::harness::samples;
use crate::names::Design;
use pagedepot_trace::{EventKind, Skipped, Tally, printable};

/// How many command names a report lists.
const COMMANDS_SHOWN: usize = 4;

/// What was replayed, what each design did with it, and what the kernel had done.
#[derive(Clone, Debug)]
pub struct Replayed {
    pub trace: Trace,
    pub work: Work,
    /// One per design.
    pub replays: Vec<Replay>,
    pub kernel: Kernel,
}

/// What a design did with the trace.
#[derive(Clone, Debug)]
pub struct Replay {
    pub design: Design,
    /// The number of what kept its free frames, as in the rows of `bench`: 0 buddy, 1 bitmap.
    pub store: i64,
    /// The outcome of every run: all must be equal.
    pub outcome: Outcome,
    /// Nanoseconds per event of each run.
    pub event_ns: Vec<f64>,
    /// Pages each CPU had cached when the trace ended.
    pub cached_pages: Vec<CpuPages>,
    /// What the checked run went through.
    pub story: Story,
}

/// The recording.
#[derive(Clone, Debug)]
pub struct Trace {
    pub name: String,
    pub lines: u64,
    pub duration_s: f64,
    /// The CPUs that the replay acted as.
    pub cpus: Vec<u16>,
    /// Number of CPUs in the recording.
    pub cpus_recorded: usize,
    /// Events by the kernel's names.
    pub events: Vec<(&'static str, u64)>,
    /// The busiest commands and their events.
    pub commands: Vec<(String, u64)>,
    pub unknown: Lines,
    pub unfinished: Lines,
    pub unreadable: Lines,
    /// Whether more lines were written than could be read.
    pub is_cut_short: bool,
    /// Events that the recorder says it dropped.
    pub lost_events: u64,
    pub out_of_order: u64,
    /// Whether a zoneinfo told what there was before.
    pub machine_known: bool,
    /// CPUs and the time of their first periodic work in ms, where that was told from `high`.
    pub ticks_fitted: Vec<(u16, u32)>,
}

/// Skipped lines of one sort.
#[derive(Clone, Debug)]
pub struct Lines {
    pub count: u64,
    /// Numbers and beginnings of the first few.
    pub examples: Vec<(u64, String)>,
}

/// The recorded kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub allocs: u64,
    pub frees: u64,
    pub counts: KernelCounts,
    /// Pages each CPU had cached after the recording, if a zoneinfo tells.
    pub cached_pages: Option<Vec<CpuPages>>,
    /// How contiguous free memory was before and after the recording, as far as that was saved.
    pub looks: Vec<Look>,
}

/// Pages cached by a CPU, which the kernel numbers so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPages {
    pub cpu: u32,
    pub pages: u64,
}

impl Replayed {
    /// Puts together what designs did, and what the kernel told of itself.
    pub fn new(plan: &Plan, replays: Vec<Replay>, kernel: &Zoneinfos) -> Self {
        Replayed {
            trace: Trace::new(plan),
            work: plan.work.clone(),
            replays,
            kernel: Kernel::new(plan, kernel),
        }
    }
}

impl Replay {
    /// What the checked run of a plan ended with, and how long the others took.
    pub fn new(
        plan: &Plan,
        (design, store): (Design, Store),
        outcome: Outcome,
        event_ns: Vec<f64>,
        story: Story,
    ) -> Self {
        let cached = plan.cpus.iter().zip(&outcome.counts.cached_pages);
        Replay {
            design,
            store: store as i64,
            event_ns,
            story,
            cached_pages: cached
                .map(|(&cpu, &pages)| CpuPages { cpu: cpu.into(), pages })
                .collect(),
            outcome,
        }
    }

    /// The middle one of the runs' times per event.
    pub fn event_ns_median(&self) -> f64 {
        samples::median(&self.event_ns).unwrap_or(f64::NAN)
    }
}

impl Trace {
    fn new(plan: &Plan) -> Self {
        let summary = &plan.trace;
        let Skipped { unknown, unfinished, unreadable } = &summary.skipped;
        let mut commands: Vec<_> = summary.commands.clone().into_iter().collect();
        commands.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        commands.truncate(COMMANDS_SHOWN);
        let commands =
            commands.into_iter().map(|(comm, count)| (printable(&comm), count)).collect();
        let ticks =
            plan.ticks_fitted.iter().map(|tick| (plan.cpus[usize::from(tick.cpu)], tick.ms));
        let events = EventKind::ALL.into_iter().map(|kind| (kind.name(), summary.counts.get(kind)));
        Trace {
            name: printable(&plan.name),
            lines: summary.lines,
            duration_s: summary.duration_ns() as f64 / 1e9,
            cpus: plan.cpus.clone(),
            cpus_recorded: plan.cpus_recorded,
            events: events.filter(|&(_, count)| count > 0).collect(),
            commands,
            unknown: Lines::new(unknown),
            unfinished: Lines::new(unfinished),
            unreadable: Lines::new(unreadable),
            is_cut_short: summary.is_cut_short,
            lost_events: summary.lost_events,
            out_of_order: summary.out_of_order,
            machine_known: plan.machine_known,
            ticks_fitted: ticks.collect(),
        }
    }
}

impl Lines {
    fn new(tally: &Tally) -> Self {
        let examples = tally.examples.iter().map(|example| (example.line, example.excerpt.clone()));
        Lines { count: tally.count, examples: examples.collect() }
    }
}

impl Kernel {
    fn new(plan: &Plan, told: &Zoneinfos) -> Self {
        let cached = told.after.as_ref().map(|zoneinfo| {
            zoneinfo
                .cached_pages()
                .into_iter()
                .map(|(cpu, pages)| CpuPages { cpu, pages })
                .collect()
        });
        Kernel {
            allocs: plan.trace.counts.get(EventKind::PageAlloc) - plan.work.failed_allocs,
            frees: plan.trace.counts.get(EventKind::PageFree),
            counts: plan.kernel,
            cached_pages: cached,
            looks: told.looks(),
        }
    }
}

/// The orders that occur, with their numbers by mobility.
pub fn orders_in_use(
    allocs: &ByOrder,
    frees: &ByOrder,
) -> Vec<(u32, [u64; Mobility::COUNT], [u64; Mobility::COUNT])> {
    Order::all()
        .map(|order| (order.get(), allocs.0[order.index()], frees.0[order.index()]))
        .filter(|(_, allocs, frees)| allocs.iter().chain(frees).any(|&n| n > 0))
        .collect()
}
