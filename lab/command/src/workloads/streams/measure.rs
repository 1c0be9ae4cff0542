//! Cases measured in turn, their rows and their table.

use super::channel;
use super::sockets::Sockets;
use super::stream::{self, METRICS, Made, Reuse, Shape};
use crate::design::dispatch::with_design;
use pagedepot_cli::design::variant::{FreeHighPages, WITH_POLICY};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::Series;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::{Metric, Params, params};
use pagedepot_cli::report::{Report, table};
use pagedepot_cli::workloads::settings::{Settings, checked};

/// The channel of an exchange's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Ring,
    Udp,
    ManySockets,
}

/// A way to exchange messages.
#[derive(Debug, PartialEq)]
pub struct Exchange {
    /// netperf's name of it.
    pub name: &'static str,
    pub through: Through,
    /// Messages and MiB per second.
    pub metrics: [Metric; METRICS],
}

/// An exchange of a design, with what varies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub exchange: &'static Exchange,
    pub shape: Shape,
    pub design: Design,
    /// The policy that is measured in place of `--free-high`.
    pub policy: Option<FreeHighPages>,
}

const REUSE_MEDIAN: Metric = ("reuse_distance_bytes", "bytes");
const REUSE_P90: Metric = ("reuse_distance_p90_bytes", "bytes");
const CROSSED: Metric = ("crossed_percent", "%");

const POLICIES: [FreeHighPages; 4] =
    [FreeHighPages::Zero, FreeHighPages::Batch, FreeHighPages::FourBatches, FreeHighPages::High];

/// All policies, unless one was asked for, of a design that has a policy.
pub fn policies(settings: &Settings, design: Design) -> Vec<Option<FreeHighPages>> {
    if WITH_POLICY.contains(&design) && settings.variant.free_high.is_none() {
        POLICIES.map(Some).into()
    } else {
        vec![None]
    }
}

type CaseRow = (Case, Series<METRICS>, Reuse);

/// Measures cases, those of one exchange and shape in turn, and reports what came out under the
/// workload's name.
///
/// # Errors
/// With one CPU, and when a design or a socket cannot be had.
pub fn report(
    settings: &Settings,
    (name, what): (&'static str, &str),
    cases: &[Case],
) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut rows = Vec::new();
    for cases in cases.chunk_by(|a, b| (a.exchange, a.shape) == (b.exchange, b.shape)) {
        rows.extend(measure(settings, name, cases)?);
    }
    rows.iter().for_each(|row| add_rows(&mut report, name, row));
    report.say(format!("{name}: {what}{}", settings.caveat()));
    report.say(show(&rows));
    Ok(report)
}

/// Measures cases of one exchange and shape, in turn.
fn measure(settings: &Settings, name: &str, cases: &[Case]) -> Result<Vec<CaseRow>, Failure> {
    let Case { exchange, shape, .. } = cases[0];
    let seats = shape.seats(&settings.cpus);
    // Twice what is under way, and what receivers have of their own.
    let buffers = 2 * (shape.in_flight + 1) * shape.streams;
    let mut demand = settings.demand(settings.cpus.len(), buffers, stream::ORDER.frames());
    let mut made: Vec<Made> = Vec::new();
    for case in cases {
        demand.variant.free_high = case.policy.or(settings.variant.free_high);
        let (pages, design) = (demand.pages(), case.design);
        made.push(with_design!(paged design, &demand, |allocator| -> Result<Made, Failure> {
            match exchange.through {
                Through::Ring => {
                    let ring = || channel::Through::new(shape.in_flight);
                    stream::streams(allocator, shape, pages, ring)
                }
                Through::Udp => stream::streams(allocator, shape, pages, Sockets::udp),
                Through::ManySockets => stream::streams(allocator, shape, pages, Sockets::many),
            }
        })??);
    }
    let (mut contenders, counted): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let what = format!(
        "{name}, {}, {} streams, {} buffers in flight",
        exchange.name, shape.streams, shape.in_flight
    );
    let series = settings.interleave_on(&what, &mut contenders, &seats, settings.schedule())?;
    drop(contenders);
    let mut rows = Vec::new();
    for ((case, series), mut counted) in cases.iter().zip(series).zip(counted) {
        checked(counted.subject())?;
        rows.push((*case, series, counted.reuse()));
    }
    Ok(rows)
}

fn add_rows(report: &mut Report, name: &'static str, (case, series, reuse): &CaseRow) {
    let Shape { streams, in_flight, bytes } = case.shape;
    let mut params: Params = params([
        ("streams", streams.into()),
        ("in_flight", in_flight.into()),
        ("message_bytes", bytes.into()),
    ]);
    // Not `free_high`, which names a variant: here policies are what is measured, line by line.
    params.extend(case.policy.map(|policy| ("policy", policy as i64)));
    let mut add = |metric: Metric, samples: &[f64]| {
        report.add(name, case.design, metric, (2 * streams as usize, &params), samples);
    };
    let metrics = case.exchange.metrics.into_iter().zip(&series.samples);
    metrics.for_each(|(metric, samples)| add(metric, samples));
    add(REUSE_MEDIAN, &[reuse.median_bytes]);
    add(REUSE_P90, &[reuse.p90_bytes]);
    add(CROSSED, &[reuse.crossed_percent]);
}

fn show(rows: &[CaseRow]) -> comfy_table::Table {
    let headings = [
        "exchange",
        "design",
        "free high",
        "streams",
        "in flight",
        "MiB/s",
        "quartiles",
        "reuse KiB",
        "p90",
        "crossed %",
    ];
    let mut table = table::new(headings);
    for (case, series, reuse) in rows {
        let kib = |bytes: f64| table::median(&[bytes / 1024.0]);
        table.add_row([
            case.exchange.name.to_owned(),
            case.design.name().to_owned(),
            case.policy.map_or(table::NONE, FreeHighPages::name).to_owned(),
            case.shape.streams.to_string(),
            case.shape.in_flight.to_string(),
            table::median(&series.samples[1]),
            table::quartiles(&series.samples[1]),
            kib(reuse.median_bytes),
            kib(reuse.p90_bytes),
            table::median(&[reuse.crossed_percent]),
        ]);
    }
    table::align(table, 3)
}
