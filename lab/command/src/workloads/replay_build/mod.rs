//! `replay-build`: a small build is recorded, and each design serves its page events. `make`
//! compiles a generated C program; then a thread for each CPU of the recording allocates and frees
//! what that CPU did, in the same order: at recorded speed, each event at its time, and at full
//! speed, without the time in between. A block that another CPU freed goes to that CPU's thread.
//!
//! The build itself is the row of the design `kernel`. What else ran meanwhile on the machine is in
//! the recording too. Where no build can be recorded, which needs root, `make` and `cc`, the
//! recording that comes with the command takes its place.
//!
//! The times of a replay are those of its threads: the design's work, and what drives it. At
//! recorded speed CPU % says what share of a CPU the design took for the whole build.
//!
//! `replay` runs a trace in one thread, exactly, to count what a design does; this workload shows
//! how designs bear the load.

mod actors;
mod build;
mod generate;
mod script;

use std::sync::Arc;

use self::actors::{AHEAD_MAX, Actors, METRICS, Speed};
use self::build::Build;
use self::script::Script;
use crate::design::dispatch::with_design;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::{Contender, Pace, Schedule, Series};
use pagedepot_cli::names::{Design, joined};
use pagedepot_cli::replay::Plan;
use pagedepot_cli::replay::shipped;
use pagedepot_cli::report::rows::{Metric, params};
use pagedepot_cli::report::{Report, table};
use pagedepot_cli::workloads::settings::{Effort, Settings};
use pagedepot_cli::workloads::workload::Workload;

const NAME: &str = "replay-build";

/// The workload `replay-build`.
pub const WORKLOAD: Workload = Workload::new(NAME, DESIGNS, run);

/// Designs that serve blocks of any order, and `kernel`, which served them to the build.
const DESIGNS: &[Design] = &joined::<10>(&[Design::PAGED, &[Design::Kernel]]);

const METRIC_NAMES: [Metric; METRICS] = [
    ("elapsed_s", "s"),
    ("user_s", "s"),
    ("system_s", "s"),
    ("cpu_percent", "%"),
    ("events_per_s", "1/s"),
    ("refilled_blocks", "blocks"),
    ("spilled_blocks", "blocks"),
];

/// Files of the program, in a full run and in a short one.
const FILES: [u32; 2] = [12, 2];
/// Most windows at recorded speed: each takes as long as the build.
const ROUNDS_RECORDED: [u32; 2] = [3, 1];

/// Measures it: the threads share the CPUs in use.
fn run(settings: &Settings) -> Result<Report, Failure> {
    let mut report = Report::default();
    let is_quick = usize::from(settings.effort == Effort::Quick);
    let mut designs = settings.designs(NAME, DESIGNS)?;
    let (plan, build) = plan(settings, FILES[is_quick], &mut report)?;
    let mut rows = Vec::new();
    if designs.contains(&Design::Kernel) {
        rows.extend(build.map(|build| (Speed::Recorded, build)));
    }
    designs.retain(|&design| design != Design::Kernel);
    let script = Arc::new(Script::new(&plan));
    let recorded = settings.rounds.min(ROUNDS_RECORDED[is_quick]);
    let speeds = [(Speed::Recorded, recorded), (Speed::Full, settings.rounds)];
    for (speed, rounds) in speeds.into_iter().filter(|_| !designs.is_empty()) {
        let series = measure(settings, &designs, &script, (speed, rounds))?;
        rows.extend(series.into_iter().map(|series| (speed, series)));
    }
    let threads = script.threads.len();
    for (speed, one) in &rows {
        let is_recorded = i64::from(*speed == Speed::Recorded);
        let params = params([("threads", threads as i64), ("recorded_speed", is_recorded)]);
        let place = (settings.cpus.len().min(threads), &params);
        for (metric, samples) in METRIC_NAMES.into_iter().zip(&one.samples) {
            report.add(NAME, one.design, metric, place, samples);
        }
    }
    report.say(format!(
        "{NAME}: {} page events of {}, by {threads} threads{}",
        script.events,
        plan.name,
        settings.caveat()
    ));
    report.say(show(&rows));
    Ok(report)
}

/// The page events to replay, and the figures of the build that they are from, if it was just
/// recorded.
fn plan(
    settings: &Settings,
    files: u32,
    report: &mut Report,
) -> Result<(Plan, Option<Series<METRICS>>), Failure> {
    match build::record(files, settings.cpus.len(), settings.seed) {
        Ok(Build { plan, elapsed_s, user_s, system_s }) => {
            let cpu_percent = (user_s + system_s) / elapsed_s * 100.0;
            // Blocks and events are of the whole machine.
            let unknown = f64::NAN;
            let samples = [elapsed_s, user_s, system_s, cpu_percent, unknown, unknown, unknown]
                .map(|it| vec![it]);
            Ok((plan, Some(Series { design: Design::Kernel, samples })))
        }
        Err(why) => {
            let shipped = shipped::NAME;
            report.note(format!("no build can be recorded here: {why}; {shipped} takes its place"));
            let plan = Plan::read(shipped::TRACE, shipped, None);
            Ok((plan.map_err(|e| Failure::Run(e.to_string()))?, None))
        }
    }
}

fn measure(
    settings: &Settings,
    designs: &[Design],
    script: &Arc<Script>,
    (speed, rounds): (Speed, u32),
) -> Result<Vec<Series<METRICS>>, Failure> {
    let threads = script.threads.len();
    let seats: Vec<_> = settings.cpus.iter().copied().cycle().take(threads).collect();
    // What the trace holds, twice, and what threads that are ahead hold besides.
    let held = script.held_pages_peak as u32 + AHEAD_MAX * threads as u32;
    let demand = settings.demand(settings.cpus.len(), held, 1);
    let mut contenders: Vec<Box<dyn Contender<METRICS>>> = Vec::new();
    for &design in designs {
        contenders.push(
            with_design!(paged design, &demand, |allocator| -> Box<dyn Contender<METRICS>> {
                Box::new(Actors::new(allocator, script, speed))
            })?,
        );
    }
    let what = format!("{NAME} at {} speed, {threads} threads", speed.name());
    let schedule = Schedule { rounds, pace: Pace::Units(1), ..settings.schedule() };
    settings.interleave_on(&what, &mut contenders, &seats, schedule)
}

fn show(rows: &[(Speed, Series<METRICS>)]) -> comfy_table::Table {
    let headings = [
        "speed",
        "design",
        "elapsed ms",
        "user ms",
        "system ms",
        "CPU %",
        "million events per s",
        "x depot",
        "refilled",
        "spilled",
    ];
    let mut table = table::new(headings);
    for (speed, one) in rows {
        let [elapsed, user, system, cpu_percent, events, refilled, spilled] = &one.samples;
        let scaled = |samples: &[f64], by: f64| {
            table::median(&samples.iter().map(|x| x * by).collect::<Vec<_>>())
        };
        let depot = rows
            .iter()
            .find(|(other, series)| other == speed && series.design == Design::Depot)
            .filter(|_| *speed == Speed::Full);
        table.add_row([
            speed.name().to_owned(),
            one.design.name().to_owned(),
            scaled(elapsed, 1e3),
            scaled(user, 1e3),
            scaled(system, 1e3),
            table::median(cpu_percent),
            scaled(events, 1e-6),
            table::ratio(elapsed, depot.map(|(_, series)| series.samples[0].as_slice())),
            table::median(refilled),
            table::median(spilled),
        ]);
    }
    table::align(table, 2)
}
