//! `kernbench`: the recorded build of a kernel module, replayed at speed: a thread for each CPU of
//! the recording, which allocates and frees what that CPU did, in the same order, without the time
//! in between. A block that another CPU freed goes to that CPU's thread. `replay` runs a trace in
//! one thread, exactly, to count what a design does; this workload shows how designs bear the load.

mod actors;
mod script;

use std::sync::Arc;

use self::actors::{AHEAD_MAX, Actors, METRICS};
use self::script::Script;
use super::settings::{Settings, samples_of};
use super::workload::Workload;
use crate::design::dispatch::with_design;
use crate::failure::Failure;
use crate::harness::{Contender, Pace, Schedule, Series};
use crate::names::Design;
use crate::replay::shipped;
use crate::report::rows::{Metric, params};
use crate::report::{Report, table};

const NAME: &str = "kernbench";

/// See the module.
pub const WORKLOAD: Workload = Workload {
    name: NAME,
    designs: Design::PAGED,
    tunes: false,
    orders: false,
    drains: false,
    fills: false,
    measure: run,
};

const METRIC_NAMES: [Metric; METRICS] = [
    ("elapsed_s", "s"),
    ("events_per_s", "1/s"),
    ("refilled_blocks", "blocks"),
    ("spilled_blocks", "blocks"),
];

/// Measures it: the threads share the CPUs in use.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let script = Arc::new(Script::shipped()?);
    let threads = script.threads.len();
    let seats: Vec<_> = settings.cpus.iter().copied().cycle().take(threads).collect();
    // What the trace holds, twice, and what threads that are ahead hold besides.
    let held = script.held_pages_peak as u32 + AHEAD_MAX * threads as u32;
    let demand = settings.demand(settings.cpus.len(), held, 1);
    let mut contenders: Vec<Box<dyn Contender<METRICS>>> = Vec::new();
    for design in settings.designs(NAME, WORKLOAD.designs)? {
        contenders.push(
            with_design!(paged design, &demand, |allocator| -> Box<dyn Contender<METRICS>> {
                Box::new(Actors::new(allocator, &script))
            })?,
        );
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
