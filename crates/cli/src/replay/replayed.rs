//! The result of a replay.

use pagedepot::{Mobility, Order};

use super::look::Look;
use super::outcome::Outcome;
use super::plan::{ByOrder, KernelCounts, Plan, Work};
use super::verify::Story;
use super::zoneinfos::Zoneinfos;
use crate::harness::samples;
use crate::names::Design;
use crate::report::account::Account;
use crate::report::rows::Params;
use pagedepot_trace::{EventKind, printable};

/// Most command names that a report lists.
const COMMANDS_SHOWN: usize = 4;

/// A trace that was replayed, the results of each design, and the kernel's.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    pub trace: Trace,
    pub work: Work,
    /// One per design.
    pub replays: Vec<Replay>,
    pub kernel: Kernel,
}

/// The result of a design for the trace.
#[derive(Clone, Debug)]
pub struct Replay {
    pub design: Design,
    /// The variant that was replayed into, as params of its rows.
    pub params: Params,
    /// The outcome of every run: all must be equal.
    pub outcome: Outcome,
    /// Nanoseconds per event of each run.
    pub event_ns: Vec<f64>,
    /// Pages each CPU had cached when the trace ended.
    pub cached_pages: Vec<CpuPages>,
    /// The story of the checked run.
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
    /// The account of the recording, and of the files beside it: what was read and what was not.
    pub account: Account,
    /// Whether a zoneinfo told what there was before.
    pub machine_known: bool,
    /// CPUs and the time of their first periodic work in ms, where that was told from `high`.
    pub ticks_fitted: Vec<(u16, u32)>,
}

/// The recorded kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub allocs: u64,
    pub frees: u64,
    /// Zeros of an event that was not recorded.
    pub counts: KernelCounts,
    /// Whether its refills were recorded, and its allocations past the lists.
    pub has_refills: bool,
    /// Whether its spills were recorded.
    pub has_spills: bool,
    /// Pages each CPU had cached after the recording, if a zoneinfo tells.
    pub cached_pages: Option<Vec<CpuPages>>,
    /// Contiguity of free memory before and after the recording, as far as that was saved.
    pub looks: Vec<Look>,
}

/// Pages cached by a CPU, which the kernel numbers so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPages {
    pub cpu: u32,
    pub pages: u64,
}

impl ReplayResult {
    /// Puts together what designs did, and what the kernel told of itself.
    pub fn new(plan: &Plan, replays: Vec<Replay>, kernel: &Zoneinfos) -> Self {
        ReplayResult {
            trace: Trace::new(plan, kernel),
            work: plan.work.clone(),
            replays,
            kernel: Kernel::new(plan, kernel),
        }
    }
}

impl Replay {
    /// Makes the result from the end of the checked run of a plan, and the times of the others.
    pub fn new(
        plan: &Plan,
        (design, params): (Design, Params),
        outcome: Outcome,
        event_ns: Vec<f64>,
        story: Story,
    ) -> Self {
        let cached = plan.cpus.iter().zip(&outcome.counts.cached_pages);
        Replay {
            design,
            params,
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
    fn new(plan: &Plan, kernel: &Zoneinfos) -> Self {
        let summary = &plan.trace;
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
            account: account(plan, kernel),
            machine_known: plan.machine_known,
            ticks_fitted: ticks.collect(),
        }
    }
}

/// The events of virtual areas, which a replay of pages leaves out.
const VMAP_EVENTS: [EventKind; 3] =
    [EventKind::AllocVmapArea, EventKind::FreeVmapArea, EventKind::PurgeVmapAreas];

fn account(plan: &Plan, kernel: &Zoneinfos) -> Account {
    let (trace, work) = (&plan.trace, &plan.work);
    let mut account = Account::new(&plan.name, trace);
    if plan.old_migratetypes {
        let text = "migratetypes are numbered as before Linux 4.4".to_owned();
        account.push("old_migratetypes", trace.counts.get(EventKind::PageAlloc), text);
    }
    let too_large = format!(
        "events of blocks above order {}, up to order {}: not replayed",
        Order::MAX.get(),
        work.too_large_order_max
    );
    let vmap_events = VMAP_EVENTS.iter().map(|&kind| trace.counts.get(kind)).sum();
    for (what, count, text) in [
        ("vmap_events", vmap_events, "events of vmalloc: `vmalloc --trace` replays them"),
        ("failed_allocs", work.failed_allocs, "allocations failed in the kernel: not replayed"),
        ("implausible", work.implausible, "events have an impossible order or frame: not replayed"),
        ("too_large", work.too_large, &too_large),
        (
            "outside_zones",
            work.outside_zones,
            "events of frames in no zone of the zoneinfo: is a zone missing?",
        ),
    ] {
        account.add(what, count, text);
    }
    if !plan.machine_known {
        let text = "unknown frees, of blocks allocated before the recording: not replayed without \
                    a zoneinfo";
        account.add("unknown_frees", work.unknown_frees, text);
    }
    kernel.tell(&mut account);
    account
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
        let has = |kind| plan.trace.counts.get(kind) > 0;
        Kernel {
            allocs: plan.trace.counts.get(EventKind::PageAlloc) - plan.work.failed_allocs,
            frees: plan.trace.counts.get(EventKind::PageFree),
            counts: plan.kernel,
            has_refills: has(EventKind::ZoneLocked),
            has_spills: has(EventKind::PcpuDrain),
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
