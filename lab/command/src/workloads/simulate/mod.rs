//! `simulate`: designs on 1 to 256 virtual CPUs.

mod here;
pub mod options;

use std::path::Path;

use pagedepot_sim::simulate::{Simulation, SimulationResult, names, simulate};
use pagedepot_sim::topology::Topology;
use pagedepot_sim::{Disturbances, FreeHighLimit, Mode};

pub use pagedepot_sim::workloads::Workload as SimulatedWorkload;

use self::options::{CPUS_MAX, Cpus, SimulateOptions};
use pagedepot_cli::design::variant::{FreeHighPages, WITH_POLICY};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::{Design, list};
use pagedepot_cli::report::document;
use pagedepot_cli::report::json::ExtraOptions;
use pagedepot_cli::report::rows::{Metric, Params};
use pagedepot_cli::report::{Report, table};

const OPS: Metric = ("ops_per_s", "1/s");
const EFFICIENCY: Metric = ("efficiency", "");
const LOCK_WAIT: Metric = ("lock_wait_share", "");
/// Number of drains with `--drains`, which may be fewer than the param of this name asks for.
const DRAINS: Metric = ("drains_per_s", "1/s");
const EVENTS: Metric = ("events_per_host_s", "1/s");
const HOST: Metric = ("host_s", "s");

/// Time for which a preemption takes the CPU away.
const PREEMPTED_PS: u64 = 100_000_000;
/// Places in the code that a table names.
const FIGHTS_SHOWN: usize = 5;
/// The part of all CPUs' time from which on a place is worth naming.
const FIGHT_SHOWN: f64 = 0.005;

/// The machine that the options ask for, and what of the options changes figures.
///
/// # Errors
/// Why the file cannot be used, or this machine not be measured.
pub fn machine(options: &SimulateOptions) -> Result<(Topology, ExtraOptions), Failure> {
    let topology = match options.topology.as_deref() {
        None => Topology::default(),
        Some(path) if path == Path::new("here") => here::measure()?,
        Some(path) => {
            let bad = |why: &dyn std::fmt::Display| {
                let path = path.display();
                Failure::Usage(format!("{path}: {why}; docs/simulate.md lists the fields"))
            };
            let text = document::text(path).map_err(|why| bad(&why))?;
            Topology::parse(&text).map_err(|error| bad(&error))?
        }
    };
    let mut more = ExtraOptions::from([
        ("topology", serde_json::to_value(&topology).expect("numbers and names")),
        ("retry_locks", options.retry_locks.into()),
    ]);
    more.extend(options.milliseconds.map(|ms| ("milliseconds", ms.into())));
    more.extend(options.warm_up.map(|ms| ("warm_up_ms", ms.into())));
    Ok((topology, more))
}

/// Simulates each design on each number of CPUs, and on as few as the workload needs.
///
/// # Errors
/// When a design cannot do the workload, or its metadata is wrong afterwards.
pub fn run(
    workload: SimulatedWorkload,
    options: &SimulateOptions,
    topology: &Topology,
) -> Result<Report, Failure> {
    let designs = designs(workload, &options.designs)?;
    if options.free_high.is_some() && !designs.iter().any(|&it| has_policy(workload, it)) {
        return Err(Failure::Usage(format!(
            "--free-high changes none of the designs simulated; it is for pages of {}",
            list(&WITH_POLICY)
        )));
    }
    let mut cpus = options.cpus.clone().unwrap_or_else(|| {
        Cpus(std::iter::successors(Some(1), |n| (n * 2 <= CPUS_MAX).then_some(n * 2)).collect())
    });
    let least = if workload.is_in_pairs() { 2 } else { 1 };
    if workload.is_in_pairs()
        && options.cpus.is_some()
        && let Some(odd) = cpus.0.iter().find(|cpus| !cpus.is_multiple_of(2))
    {
        let name = workload.name();
        return Err(Failure::Usage(format!(
            "`simulate {name}` has CPUs in pairs: give --cpus an even number instead of {odd}"
        )));
    }
    cpus.0.retain(|&cpus| cpus >= least);
    let mut report = Report::default();
    let headings = ["design", "CPUs", "ns", "ops/s", "efficiency", "lock wait %"];
    let drains = options.drains.map(|_| "drains/s");
    let mut shown = table::new(headings.into_iter().chain(drains).chain(["M events/s", "host s"]));
    let (mut fights, mut unended) = (Vec::new(), Vec::new());
    for design in designs {
        let base = one(workload, design, least, options, topology)?;
        for &count in &cpus.0 {
            let found = if count == least {
                base.clone()
            } else {
                one(workload, design, count, options, topology)?
            };
            let efficiency =
                found.ops_per_s / f64::from(count) / (base.ops_per_s / f64::from(least));
            let events = found.events as f64 / found.host_s;
            let mut params = params(options);
            if has_policy(workload, design) {
                params.extend(options.free_high.map(|pages| ("free_high", pages as i64)));
            }
            let mut add = |metric, value| {
                report.add(workload.name(), design, metric, (count as usize, &params), &[value]);
            };
            add(OPS, found.ops_per_s);
            add(EFFICIENCY, efficiency);
            add(LOCK_WAIT, found.lock_wait_share);
            if options.drains.is_some() {
                add(DRAINS, found.drains_per_s);
            }
            add(EVENTS, events);
            add(HOST, found.host_s);
            let mut row = vec![design.name().to_owned(), count.to_string()];
            if found.ops_per_s > 0.0 {
                row.extend([
                    table::figure(f64::from(count) * 1e9 / found.ops_per_s),
                    format!("{:.3e}", found.ops_per_s),
                    if base.ops_per_s > 0.0 { format!("{efficiency:.3}") } else { "-".to_owned() },
                    format!("{:.1}", 100.0 * found.lock_wait_share),
                ]);
                fights.extend(fought(design, count, &found));
            } else {
                row.extend(std::iter::repeat_n("-".to_owned(), 4));
                unended.push(format!("{design} on {count}"));
            }
            row.extend(options.drains.map(|_| table::figure(found.drains_per_s)));
            row.extend([table::figure(events / 1e6), table::figure(found.host_s)]);
            shown.add_row(row);
        }
    }
    report.say(format!(
        "{}: simulated on {}; ns of CPU time per operation, and efficiency beside {}",
        workload.name(),
        topology.name,
        if least == 1 { "one CPU" } else { "one pair of CPUs" }
    ));
    report.say(table::align(shown, 1));
    if !unended.is_empty() {
        report.say(format!(
            "No operation ended in the window: {}. Longer ones have some: --warm-up, \
             --milliseconds",
            unended.join(", ")
        ));
    }
    for line in fights {
        report.say(line);
    }
    Ok(report)
}

/// The designs to simulate.
fn designs(workload: SimulatedWorkload, given: &[Design]) -> Result<Vec<Design>, Failure> {
    let there = names(workload)
        .iter()
        .map(|name| Design::parse(name).expect("the simulator's names are the lab's"));
    let there: Vec<Design> = there.collect();
    if let Some(design) = given.iter().find(|design| !there.contains(design)) {
        let (name, there) = (workload.name(), list(&there));
        return Err(Failure::Usage(format!(
            "`simulate {name}` has no design {design}; there are {there}"
        )));
    }
    Ok(if given.is_empty() { there } else { given.to_vec() })
}

fn one(
    workload: SimulatedWorkload,
    design: Design,
    cpus: u32,
    options: &SimulateOptions,
    topology: &Topology,
) -> Result<SimulationResult, Failure> {
    let per_s = |rate: Option<std::num::NonZeroU32>| rate.map_or(0.0, |rate| rate.get().into());
    let is_dense = matches!(workload, SimulatedWorkload::Hot | SimulatedWorkload::Pagealloc);
    let (window, warm_up) = if is_dense { (0.5, 1.0) } else { (5.0, 20.0) };
    let simulation = Simulation {
        seed: options.seed,
        topology: topology.clone(),
        drains_per_s: per_s(options.drains),
        drainers: options.drainers.unwrap_or(1),
        drain_mode: if options.full_drains { Mode::Full } else { Mode::Quiet },
        disturbances: Disturbances {
            preemptions_per_s: per_s(options.preemptions),
            preempted_ps: PREEMPTED_PS,
            interrupts_per_s: per_s(options.interrupts),
        },
        window_ms: options.milliseconds.unwrap_or(window),
        warm_up_ms: options.warm_up.unwrap_or(warm_up),
        queued_locks: !options.retry_locks,
        free_high: options.free_high.map(free_high),
        ..Simulation::new(workload, design.name(), cpus)
    };
    if simulation.drains_per_s > 0.0 && workload == SimulatedWorkload::Vmalloc {
        return Err(Failure::Usage(
            "--drains is for workloads of pages; vmalloc purges by itself".to_owned(),
        ));
    }
    simulate(&simulation).map_err(|fault| Failure::Run(format!("{design}: {fault}")))
}

const fn free_high(pages: FreeHighPages) -> FreeHighLimit {
    match pages {
        FreeHighPages::Zero => FreeHighLimit::Zero,
        FreeHighPages::Batch => FreeHighLimit::Batch,
        FreeHighPages::FourBatches => FreeHighLimit::FourBatches,
        FreeHighPages::High => FreeHighLimit::High,
    }
}

fn params(options: &SimulateOptions) -> Params {
    let mut params = Params::new();
    params.extend(options.drains.map(|per_s| ("drains_per_s", per_s.get().into())));
    params.extend(options.full_drains.then_some(("full", 1)));
    params.extend(options.drainers.map(|drainers| ("drainers", drainers.into())));
    params.extend(options.preemptions.map(|per_s| ("preemptions_per_s", per_s.get().into())));
    params.extend(options.interrupts.map(|per_s| ("interrupts_per_s", per_s.get().into())));
    params
}

/// Whether a design limits what a CPU may cache that only frees blocks of high orders.
fn has_policy(workload: SimulatedWorkload, design: Design) -> bool {
    workload != SimulatedWorkload::Vmalloc && WITH_POLICY.contains(&design)
}

/// The places in the code whose lines CPUs fight over, if they cost anything to speak of.
fn fought(design: Design, cpus: u32, found: &SimulationResult) -> Vec<String> {
    let share = |wait_ps: u64| wait_ps as f64 / found.cpu_ps.max(1) as f64;
    let worth =
        found.fights.iter().take(FIGHTS_SHOWN).filter(|one| share(one.wait_ps) >= FIGHT_SHOWN);
    worth
        .map(|one| {
            let file = source(one.site.file());
            format!(
                "{design} on {cpus}: {:.1} % of the time waits for lines at {file}:{} ({} \
                 transfers)",
                100.0 * share(one.wait_ps),
                one.site.line(),
                one.transfers
            )
        })
        .collect()
}

/// The file of the repository that a file of the simulator is: its packages are links to the
/// sources that they compile.
fn source(file: &str) -> String {
    match file.strip_prefix("sim/lab-designs/") {
        Some(within) => format!("lab/designs/{within}"),
        None => file.replacen("sim/", "crates/", 1),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[test]
    fn places_are_named_by_the_files_that_are_linked_to() {
        assert_eq!(source("sim/core/src/lib.rs"), "crates/core/src/lib.rs");
        assert_eq!(source("sim/lab-designs/src/rcu/mod.rs"), "lab/designs/src/rcu/mod.rs");
    }

    #[test]
    fn options_that_change_figures_are_params() {
        let found = |arguments: &str| {
            let command = clap::Command::new("simulate").no_binary_name(true);
            let command = SimulateOptions::augment_args(command);
            let matches = command.get_matches_from(arguments.split(' '));
            params(&SimulateOptions::from_arg_matches(&matches).unwrap())
        };
        assert_eq!(found("--drains 7"), Params::from([("drains_per_s", 7)]));
        let full = found("--drains 7 --full-drains");
        assert_eq!(full, Params::from([("drains_per_s", 7), ("full", 1)]));
    }

    #[test]
    fn every_workload_has_designs_and_the_lab_names_them() {
        for &workload in SimulatedWorkload::ALL {
            assert!(!designs(workload, &[]).unwrap().is_empty());
        }
        let error = designs(SimulatedWorkload::Hot, &[Design::Mimalloc]).unwrap_err();
        assert!(error.to_string().contains("no design mimalloc; there are depot"), "{error}");
    }
}
