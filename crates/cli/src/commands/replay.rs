//! The command `replay`.

use std::path::{Path, PathBuf};

use crate::design::variant::Variant;
use crate::failure::Failure;
use crate::harness::stop;
use crate::names::Design;
use crate::replay::options::ZoneinfoPaths;
use crate::replay::threads::ReplayLineup;
use crate::replay::{self, Plan, Zoneinfos, contiguity};
use crate::report::account::Account;
use crate::report::{Progress, Report};
use crate::workloads::options::MeasureOptions;
use pagedepot_trace::{ExpandLimit, TraceError};

/// Timed runs of a trace.
const REPLAYS: u32 = 5;
const REPLAYS_QUICK: u32 = 1;

/// Replays the traces in files: one into each design, then all of them one after the other into one
/// depot.
///
/// # Errors
/// When one is no trace, holds nothing to replay, or a design fails the replay.
pub fn replay_files<L: ReplayLineup>(
    (traces, limit): (&[PathBuf], ExpandLimit),
    zoneinfo: &ZoneinfoPaths,
    options: (&MeasureOptions, &Variant),
) -> Result<Report, Failure> {
    let [trace] = traces else { return replay_in_a_row::<L>((traces, limit), zoneinfo, options) };
    let (plan, zoneinfos) = load((trace, limit), zoneinfo, options.0)?;
    let mut report = replay_plan::<L>(&plan, &zoneinfos, options)?;
    let designs = &options.0.designs;
    if !stop::is_asked() && (designs.is_empty() || designs.contains(&Design::Depot)) {
        add_contiguity(&[&plan], options.1, &mut report)?;
    }
    Ok(report)
}

/// Replays several traces one after the other into one depot, which tells of contiguity alone.
fn replay_in_a_row<L: ReplayLineup>(
    (traces, limit): (&[PathBuf], ExpandLimit),
    zoneinfo: &ZoneinfoPaths,
    (options, variant): (&MeasureOptions, &Variant),
) -> Result<Report, Failure> {
    if let Some(design) = options.designs.iter().find(|&&design| design != Design::Depot) {
        return Err(Failure::Usage(format!(
            "design {design} cannot replay several traces in a row: give one trace, or --design \
             depot"
        )));
    }
    designs::<L>(&[Design::Depot], variant)?;
    let load = |trace: &PathBuf| load((trace, limit), zoneinfo, options);
    let plans = traces.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let mut report = Report::default();
    for (plan, _) in &plans {
        report.account(Account::new(&plan.name, &plan.trace));
    }
    let plans: Vec<_> = plans.iter().map(|(plan, _)| plan).collect();
    add_contiguity(&plans, variant, &mut report)?;
    Ok(report)
}

fn add_contiguity(plans: &[&Plan], variant: &Variant, report: &mut Report) -> Result<(), Failure> {
    let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let found = contiguity::replay_in_a_row(plans, variant).map_err(|e| run(&e))?;
    let params = variant.replay_params(Design::Depot);
    found.map_err(|e| run(&e))?.add_to(report, &params);
    Ok(())
}

/// Reads a trace, with what lies beside it.
fn load(
    (trace, limit): (&Path, ExpandLimit),
    zoneinfo: &ZoneinfoPaths,
    options: &MeasureOptions,
) -> Result<(Plan, Zoneinfos), Failure> {
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
    if let Some(wanted) = options.cpus {
        plan.fold(wanted).map_err(|there| {
            Failure::Usage(format!(
                "{wanted} CPUs asked for, and {} was recorded on {there}: give --cpus {there} or \
                 less",
                plan.name
            ))
        })?;
    }
    Ok((plan, zoneinfos))
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
        let there = L::default().list(Design::PAGED);
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
