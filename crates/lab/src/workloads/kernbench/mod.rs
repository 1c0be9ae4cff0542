//! `kernbench`: the recorded build of a kernel module, replayed at speed: a thread for each CPU of
//! the recording, which allocates and frees what that CPU did, in the same order, without the time
//! in between. Blocks that another CPU freed go there. `replay` is the other way to run a trace: by
//! one thread, exactly, to count what a design does; this one is to see how designs bear the load.

mod actors;
mod script;

use std::sync::Arc;

use self::actors::{AHEAD_MAX, METRICS, ToActors};
use self::script::Script;
use super::{Settings, Workload, samples_of};
use crate::design::{self, Design};
use crate::failure::Failure;
use crate::harness::{Pace, Schedule, Series};
use crate::replay::{Plan, shipped};
use crate::report::rows::{Metric, params};
use crate::report::{Report, table};

const NAME: &str = "kernbench";
const METRIC_NAMES: [Metric; METRICS] = [
    ("elapsed_s", "s"),
    ("events_per_s", "1/s"),
    ("refilled_blocks", "blocks"),
    ("spilled_blocks", "blocks"),
];

/// The script of the trace that comes with the command.
fn shipped() -> Result<Script, Failure> {
    let plan =
        Plan::read(shipped::TRACE, shipped::NAME, None).map_err(|e| Failure::Run(e.to_string()))?;
    Ok(Script::new(&plan))
}

/// Measures it: the threads share the CPUs in use.
pub fn run(settings: &Settings) -> Result<Report, Failure> {
    let script = Arc::new(shipped()?);
    let threads = script.threads.len();
    let seats: Vec<_> = settings.cpus.iter().copied().cycle().take(threads).collect();
    // What the trace holds, twice, and what threads that are ahead hold besides.
    let held = script.held_pages_peak as u32 + AHEAD_MAX * threads as u32;
    let demand = settings.demand(settings.cpus.len(), held, 1);
    let mut contenders = Vec::new();
    for design in settings.designs(Workload::Kernbench)? {
        let with = ToActors(Arc::clone(&script));
        contenders.push(design::make_allocator(design, &demand, demand.pages(), with)?);
    }
    let what = format!("{NAME}, {threads} threads");
    let schedule = Schedule { pace: Pace::Units(1), ..settings.schedule() };
    let series = settings.interleave_on(&what, &mut contenders, &seats, schedule)?;
    let mut report = Report::default();
    for one in &series {
        for (metric, samples) in METRIC_NAMES.into_iter().zip(&one.samples) {
            let params = params([("threads", threads as i64)]);
            report.add(
                NAME,
                one.design,
                metric,
                (settings.cpus.len().min(threads), &params),
                samples,
            );
        }
    }
    report.say(format!(
        "{NAME}: {} events of {} at speed, by {threads} threads{}",
        script.events,
        shipped::NAME,
        settings.caveat()
    ));
    report.say(show(&series));
    Ok(report)
}

fn show(series: &[Series<METRICS>]) -> comfy_table::Table {
    let headings = [
        "design",
        "elapsed ms",
        "quartiles",
        "million events per s",
        "x depot",
        "refilled",
        "spilled",
    ];
    let mut table = table::new(headings);
    for one in series {
        let [elapsed, events, refilled, spilled] = &one.samples;
        let scaled = |samples: &[f64], by: f64| samples.iter().map(|x| x * by).collect::<Vec<_>>();
        table.add_row([
            one.design.name().to_owned(),
            table::median(&scaled(elapsed, 1e3)),
            table::quartiles(&scaled(elapsed, 1e3)),
            table::median(&scaled(events, 1e-6)),
            table::ratio(elapsed, samples_of(series, Design::Depot, 0)),
            table::median(refilled),
            table::median(spilled),
        ]);
    }
    table::align(table, 1)
}
