//! The command `replay`.

use std::path::Path;

use crate::design::variant::Variant;
use crate::failure::Failure;
use crate::names::{Design, list};
use crate::replay::options::ZoneinfoPaths;
use crate::replay::threads::ReplayLineup;
use crate::replay::{self, Plan, Zoneinfos};
use crate::report::{Progress, Report};
use crate::workloads::options::MeasureOptions;
use pagedepot_trace::{ExpandLimit, TraceError};

/// Timed runs of a trace.
const REPLAYS: u32 = 5;
const REPLAYS_QUICK: u32 = 1;

/// Replays the trace in a file.
///
/// # Errors
/// When it is no trace, holds nothing to replay, or a design fails the replay.
pub fn replay_file<L: ReplayLineup>(
    (trace, limit): (&Path, ExpandLimit),
    zoneinfo: &ZoneinfoPaths,
    options: (&MeasureOptions, &Variant),
) -> Result<Report, Failure> {
    let usage = |e: TraceError| Failure::Usage(e.to_string());
    let (before, after) = (zoneinfo.before.as_deref(), zoneinfo.after.as_deref());
    let zoneinfos = Zoneinfos::find(trace, before, after).map_err(usage)?;
    let mut plan = Plan::load(trace, zoneinfos.before.as_ref(), limit).map_err(usage)?;
    let unknown_frees = if zoneinfos.before.is_some() { plan.work.unknown_frees } else { 0 };
    if plan.work.allocs.blocks() + plan.work.frees.blocks() + unknown_frees == 0 {
        return Err(Failure::Usage(format!(
            "{} holds no allocation that succeeded and no free of a known block, so there is \
             nothing to replay; record for longer, or give --zoneinfo",
            plan.name
        )));
    }
    if let Some(wanted) = options.0.cpus {
        plan.fold(wanted).map_err(|there| {
            Failure::Usage(format!(
                "{wanted} CPUs asked for, and {} was recorded on {there}: give --cpus {there} or \
                 less",
                plan.name
            ))
        })?;
    }
    replay_plan::<L>(&plan, &zoneinfos, options)
}

/// Replays a plan.
///
/// # Errors
/// When a design cannot replay, or fails.
pub fn replay_plan<L: ReplayLineup>(
    plan: &Plan,
    zoneinfos: &Zoneinfos,
    (options, variant): (&MeasureOptions, &Variant),
) -> Result<Report, Failure> {
    let designs = designs::<L>(&options.designs, variant)?;
    let runs = options.runs.unwrap_or(if options.quick { REPLAYS_QUICK } else { REPLAYS });
    let ticks = u64::from(runs + 1) * designs.len() as u64;
    let step = Progress::on_stderr().task(&format!("replaying {}", plan.name), ticks);
    let result =
        replay::replay::<L>(plan, zoneinfos, (&designs, variant), runs as usize, || step.tick());
    drop(step);
    let replayed = result.map_err(|e| {
        if e.is_bad_input() { Failure::Usage(e.to_string()) } else { Failure::Run(e.to_string()) }
    })?;
    Ok(replayed.to_report(&options.designs))
}

/// The designs to replay into: the depot unless others are asked for. The kernel's own figures are
/// always there.
///
/// # Errors
/// When one of them cannot replay, or not in this variant.
fn designs<L: ReplayLineup>(wanted: &[Design], variant: &Variant) -> Result<Vec<Design>, Failure> {
    let mut designs: Vec<Design> =
        wanted.iter().copied().filter(|&design| design != Design::Kernel).collect();
    if let Some(design) = designs.iter().find(|design| !Design::PAGED.contains(design)) {
        let there = list(Design::PAGED);
        return Err(Failure::Usage(format!(
            "design {design} cannot replay; there are {there}, kernel"
        )));
    }
    if designs.is_empty() {
        designs.push(Design::Depot);
    }
    let refused = if variant.drained_by.is_some() {
        Some("--drained-by is for bench: a replay's one thread executes all drains itself".into())
    } else {
        let lineup = L::default();
        let refuses = |&design| lineup.unavailable(design).or_else(|| variant.refuses(design));
        let mut refusals = designs.iter().filter_map(refuses);
        refusals.next().or_else(|| variant.unused(&designs))
    };
    match refused {
        Some(why) => Err(Failure::Usage(why)),
        None => Ok(designs),
    }
}
