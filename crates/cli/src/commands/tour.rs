//! The command without arguments: what a page costs here, what taking cached pages back costs, and
//! how a recorded kernel build goes, in about a minute. The page ends with what came out.

use super::finish::{RunResult, show};
use super::replay::replay_plan;
use crate::design::Product;
use crate::design::variant::Variant;
use crate::failure::Failure;
use crate::harness::{cpus, stop};
use crate::names::Design;
use crate::replay::{Plan, Zoneinfos, shipped};
use crate::report::block::{Block, laid_out, legend, wrapped};
use crate::report::document::ResultRow;
use crate::report::terminal::width;
use crate::report::{Report, table};
use crate::workloads::options::MeasureOptions;
use crate::workloads::{Effort, Settings, Workload, drain, hot, pagealloc};
use pagedepot_trace::Zoneinfo;

/// The depot, mainline's lists, which every kernel has, and the bounds.
const DESIGNS: [Design; 5] =
    [Design::Depot, Design::Spin, Design::FloorTls, Design::FloorRseq, Design::FloorSpin];

/// The rate of the drains that the short table shows.
const DRAINS_PER_S: i64 = 1000;

/// Measures, and prints the page; with `full` every table stands before it.
///
/// # Errors
/// When stdout cannot be written, a workload fails, or the user stopped it.
pub fn tour(full: bool) -> Result<(), Failure> {
    let settings = Settings::new(&Product, &MeasureOptions::default(), Effort::Short)?;
    let measured = RunResult::new(|| measure(&settings))?;
    let signal = stop::signal();
    let figures = measured.report.rows().len();
    if let (Some(signal), 0) = (signal, figures) {
        return Err(Failure::Signal(signal));
    }
    let width = width();
    let mut text = page(&measured, width);
    if full {
        text = format!("Every table\n\n{}\n{text}", measured.report.text(width));
    }
    let shown = show(&text);
    shown.and(signal.map_or(Ok(()), |signal| Err(Failure::Stopped(signal, figures))))
}

fn measure(settings: &Settings) -> Result<Report, Failure> {
    let mut report = Report::default();
    let benches = cpus::check_seats(&settings.cpus);
    if let Err(why) = &benches {
        report.note(format!("benches are left out: {why}"));
    }
    let drain = drain::workload::<Product>();
    for workload in [&hot::workload::<Product>(), &pagealloc::workload::<Product>(), &drain] {
        if benches.is_err() || stop::is_asked() {
            break;
        }
        if workload.name == drain.name && settings.cpus.len() < 2 {
            report.note("drain: left out, because it needs two CPUs");
            continue;
        }
        report.append(workload.run(&with_designs(settings, workload))?);
    }
    if !stop::is_asked() {
        report.append(replayed()?);
    }
    Ok(report)
}

/// The settings, with those of the tour's designs that can do the workload here.
fn with_designs(settings: &Settings, workload: &Workload) -> Settings {
    let can =
        |design: &Design| workload.designs.contains(design) && settings.why_not(*design).is_none();
    Settings { designs: DESIGNS.into_iter().filter(can).collect(), ..settings.clone() }
}

fn replayed() -> Result<Report, Failure> {
    let failed = |e: pagedepot_trace::TraceError| Failure::Run(e.to_string());
    let zoneinfo = Zoneinfo::parse(shipped::ZONEINFO, "the shipped zoneinfo").map_err(failed)?;
    let plan = Plan::read(shipped::TRACE, shipped::NAME, Some(&zoneinfo)).map_err(failed)?;
    let zoneinfos = Zoneinfos { before: Some(zoneinfo), ..Zoneinfos::default() };
    let designs = vec![Design::Depot, Design::Spin, Design::Kernel];
    let options = MeasureOptions { designs, ..MeasureOptions::default() };
    replay_plan::<Product>(&plan, &zoneinfos, (&options, &Variant::default()))
}

/// The page that the tour ends with.
fn page(measured: &RunResult, width: usize) -> String {
    let rows = measured.rows();
    let mut blocks = Vec::new();
    for (heading, table) in [
        (
            "1. What an allocation and its free cost, in ns; of several, all are allocated, then \
             all freed",
            costs(&rows),
        ),
        ("2. Taking back what a CPU caches, 1000 times per second", drains(&rows)),
        (
            "3. A recorded kernel build, replayed: blocks that CPUs took from the store, and \
             spilled to it",
            replays(&rows),
        ),
    ] {
        if let Some(table) = table {
            blocks.extend([Block::from("\n".to_owned() + heading), Block::from(table)]);
        }
    }
    let notes: String = measured.report.notes().iter().map(|note| wrapped(note, width)).collect();
    let explained = legend(&blocks, width);
    [
        wrapped(ABOUT, width),
        wrapped(&measured.machine.to_string(), width),
        laid_out(&blocks, width),
        if explained.is_empty() { explained } else { format!("\n{explained}") },
        format!("\n{}", measured.quietness(width)),
        notes,
        wrapped(NEXT, width),
        // Last, so that it stays in view where the page is longer than the terminal.
        format!("\n{}", measured.conclusion(width)),
    ]
    .concat()
}

const ABOUT: &str = "\
pagedepot hands out pages of memory from per-CPU caches that other CPUs can take back without \
interrupting the owner. Measured here: depot (this project), beside spin (Linux's per-CPU page \
lists, rebuilt as a library) and bounds (floor-*: what a per-CPU list must cost at least).";

const NEXT: &str = "\
More: `pagedepot --full` prints every table; `bench NAME` and `replay TRACE` measure your \
question; `top` watches a program; --help lists all. lab/ has more designs, and compares results.";

/// The cells of a table: a design's median of a metric, by its params.
fn median(
    rows: &[ResultRow],
    design: Design,
    metric: &str,
    (cpus, params): (Option<u32>, &[(&str, i64)]),
) -> String {
    let has = |row: &&ResultRow| {
        row.design == design.name()
            && row.metric == metric
            && cpus.is_none_or(|cpus| row.cpus == cpus)
            && params.iter().all(|&(name, value)| row.params.get(name) == Some(&value))
    };
    table::median(rows.iter().find(has).map_or(&[], |row| row.samples.as_slice()))
}

fn costs(rows: &[ResultRow]) -> Option<comfy_table::Table> {
    let hot = || rows.iter().filter(|row| row.workload == "hot");
    let cpus = hot().map(|row| row.cpus).max()?;
    let all = format!("one page, {cpus} CPUs");
    let mut headings = vec!["design", "one page", &all, "of 512 pages", "of 64 blocks of 8"];
    if cpus == 1 {
        headings.remove(2);
    }
    let mut table = table::new(headings);
    for design in DESIGNS.into_iter().filter(|d| hot().any(|row| row.design == d.name())) {
        let batch = |order, batch| {
            let params = [("order", order), ("batch", batch)];
            median(rows, design, "total_ns", (Some(1), &params))
        };
        let mut cells = vec![
            design.name().to_owned(),
            median(rows, design, "pair_ns", (Some(1), &[])),
            median(rows, design, "pair_ns", (Some(cpus), &[])),
            batch(0, 512),
            batch(3, 64),
        ];
        if cpus == 1 {
            cells.remove(2);
        }
        table.add_row(cells);
    }
    Some(table::align(table, 1))
}

/// The table of drains, without the bound, which drains a mere count.
fn drains(rows: &[ResultRow]) -> Option<comfy_table::Table> {
    let drained = |design: Design, full: i64| {
        let at = [("drains_per_s", DRAINS_PER_S), ("full", full)];
        let pages = median(rows, design, "drained_pages", (None, &at));
        (pages != table::NONE).then_some(pages)
    };
    let mut table = table::new([
        "design",
        "drain",
        "pages",
        "drain us",
        "owner ns",
        "undrained",
        "interrupts",
        "stopped us",
    ]);
    let mut is_empty = true;
    for (design, full, mode) in
        [(Design::Depot, 0, "quiet"), (Design::Depot, 1, "full"), (Design::Spin, 0, "quiet")]
    {
        let Some(pages) = drained(design, full) else { continue };
        is_empty = false;
        let at = [("drains_per_s", DRAINS_PER_S), ("full", full)];
        let us = |metric: &str, params: &[(&str, i64)]| {
            let of = |row: &&ResultRow| {
                row.design == design.name()
                    && row.metric == metric
                    && params.iter().all(|&(name, value)| row.params.get(name) == Some(&value))
            };
            let samples = rows.iter().find(of).map_or(&[][..], |row| row.samples.as_slice());
            table::median(&samples.iter().map(|ns| ns / 1e3).collect::<Vec<_>>())
        };
        table.add_row([
            design.name().to_owned(),
            mode.to_owned(),
            pages,
            us("drain_ns", &at),
            median(rows, design, "owner_ns", (None, &at)),
            median(rows, design, "owner_ns", (None, &[("drains_per_s", 0), ("full", full)])),
            median(rows, design, "interrupts", (None, &at)),
            us("stopped_drain_ns", &[("full", full)]),
        ]);
    }
    (!is_empty).then(|| table::align(table, 2))
}

fn replays(rows: &[ResultRow]) -> Option<comfy_table::Table> {
    let mut table = table::new(["design", "event ns", "allocs", "frees", "refilled", "spilled"]);
    let mut is_empty = true;
    for design in [Design::Depot, Design::Spin, Design::Kernel] {
        let replayed = |row: &ResultRow| row.workload == "replay" && row.design == design.name();
        if !rows.iter().any(replayed) {
            continue;
        }
        is_empty = false;
        let of = |metric| median(rows, design, metric, (None, &[]));
        table.add_row([
            design.name().to_owned(),
            of("event_ns"),
            of("allocs"),
            of("frees"),
            of("refilled_blocks"),
            of("spilled_blocks"),
        ]);
    }
    (!is_empty).then(|| table::align(table, 1))
}
