//! `udp-stream` and `sctp-many`: buffers of order 3 that a sender fills and a receiver on another
//! CPU reads and frees, as in netperf's benchmarks of these names.
//!
//! On one machine the thread "netperf -18.0% regression" (2022) saw the first lose 18 % and the
//! second gain 13 % by the same change of what a CPU may cache that only frees high orders. So the
//! size of caches alone does not decide; `--tune` varies the policy, the working set and the number
//! of streams, and shows beside the throughput how pages came back: see [`reuse`].

mod reuse;
mod stream;

use self::stream::{METRICS, Made, Reuse, Shape};
use super::settings::{Settings, checked};
use super::workload::Workload;
use crate::design::dispatch::with_design;
use crate::design::variant::{FreeHighPages, WITH_POLICY};
use crate::failure::Failure;
use crate::harness::Series;
use crate::names::Design;
use crate::report::rows::{Metric, Params, params};
use crate::report::{Report, table};

/// One stream, messages of 16 KiB.
pub const UDP_STREAM: Workload = Workload {
    name: "udp-stream",
    designs: Design::PAGED,
    tunes: true,
    orders: false,
    drains: false,
    fills: false,
    measure: |settings| run(settings, &UDP_STREAM, udp_shape()),
};

/// A stream for each four CPUs, messages of 10 KiB.
pub const SCTP_MANY: Workload = Workload {
    name: "sctp-many",
    designs: Design::PAGED,
    tunes: true,
    orders: false,
    drains: false,
    fills: false,
    measure: |settings| run(settings, &SCTP_MANY, sctp_shape(settings.cpus.len())),
};

const METRIC_NAMES: [Metric; METRICS] = [("buffers_per_s", "1/s"), ("mib_per_s", "MiB/s")];
const REUSE_MEDIAN: Metric = ("reuse_distance_bytes", "bytes");
const REUSE_P90: Metric = ("reuse_distance_p90_bytes", "bytes");
const CROSSED: Metric = ("crossed_percent", "%");

/// Buffers in flight per stream: what a receiver lags behind before its sender waits.
const IN_FLIGHT: u32 = 64;
const TUNED_IN_FLIGHT: [u32; 3] = [16, 64, 256];

const POLICIES: [FreeHighPages; 4] =
    [FreeHighPages::Zero, FreeHighPages::Batch, FreeHighPages::FourBatches, FreeHighPages::High];

fn udp_shape() -> Shape {
    Shape { streams: 1, in_flight: IN_FLIGHT, bytes: 16 << 10 }
}

fn sctp_shape(cpus: usize) -> Shape {
    Shape { streams: (cpus as u32 / 4).max(1), in_flight: IN_FLIGHT, bytes: 10 << 10 }
}

/// Measures `workload`, whose streams have this shape unless `--tune` varies it.
fn run(settings: &Settings, workload: &Workload, shape: Shape) -> Result<Report, Failure> {
    if settings.cpus.len() < 2 {
        return Err(Failure::Usage(format!(
            "`bench {}` needs two CPUs: give --cpus 2, or run it where there are two",
            workload.name
        )));
    }
    let designs = settings.designs(workload.name, workload.designs)?;
    let cases: Vec<Case> = if settings.tune {
        shapes_to_tune(shape)
            .into_iter()
            .flat_map(|shape| cases_to_tune(settings, &designs, shape))
            .collect()
    } else {
        designs.iter().map(|&design| Case { design, policy: None, shape }).collect()
    };
    let mut report = Report::default();
    let mut rows = Vec::new();
    for cases in cases.chunk_by(|a, b| a.shape == b.shape) {
        rows.extend(measure(settings, workload, cases)?);
    }
    for (case, series, reuse) in &rows {
        add_rows(&mut report, workload, case, series, *reuse);
    }
    report.say(format!(
        "{}: a sender fills {} KiB of each buffer, a receiver on another CPU reads and frees it{}",
        workload.name,
        shape.bytes >> 10,
        settings.caveat()
    ));
    report.say(show(&rows));
    Ok(report)
}

/// A design, with what varies.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    design: Design,
    /// What `--tune` makes of `--free-high`.
    policy: Option<FreeHighPages>,
    shape: Shape,
}

/// Streams up to one for each CPU: then every CPU sends and receives.
fn shapes_to_tune(shape: Shape) -> Vec<Shape> {
    let streams = [shape.streams, 2 * shape.streams];
    let with = |streams| TUNED_IN_FLIGHT.map(|in_flight| Shape { streams, in_flight, ..shape });
    streams.into_iter().flat_map(with).collect()
}

/// All policies, unless one was asked for, of designs that have a policy.
fn cases_to_tune(settings: &Settings, designs: &[Design], shape: Shape) -> Vec<Case> {
    let policies = |design: Design| -> Vec<Option<FreeHighPages>> {
        if WITH_POLICY.contains(&design) && settings.variant.free_high.is_none() {
            POLICIES.map(Some).into()
        } else {
            vec![None]
        }
    };
    let cases =
        |design| policies(design).into_iter().map(move |policy| Case { design, policy, shape });
    designs.iter().copied().flat_map(cases).collect()
}

type Measured = (Case, Series<METRICS>, Reuse);

/// Measures cases of one shape, in turn.
fn measure(
    settings: &Settings,
    workload: &Workload,
    cases: &[Case],
) -> Result<Vec<Measured>, Failure> {
    let shape = cases[0].shape;
    let seats = shape.seats(&settings.cpus);
    let mut demand = settings.demand(
        settings.cpus.len(),
        2 * shape.in_flight * shape.streams,
        stream::ORDER.frames(),
    );
    let mut made: Vec<Made> = Vec::new();
    for case in cases {
        demand.variant.free_high = case.policy.or(settings.variant.free_high);
        let (pages, design) = (demand.pages(), case.design);
        made.push(with_design!(paged design, &demand, |allocator| -> Made {
            stream::streams(allocator, shape, pages)
        })?);
    }
    let (mut contenders, counted): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let what = format!(
        "{}, {} streams, {} buffers in flight",
        workload.name, shape.streams, shape.in_flight
    );
    let series = settings.interleave_on(&what, &mut contenders, &seats, settings.schedule())?;
    drop(contenders);
    let mut rows = Vec::new();
    for ((case, series), mut counted) in cases.iter().zip(series).zip(counted) {
        checked(counted.design(), counted.check())?;
        rows.push((*case, series, counted.reuse()));
    }
    Ok(rows)
}

fn add_rows(
    report: &mut Report,
    workload: &Workload,
    case: &Case,
    series: &Series<METRICS>,
    reuse: Reuse,
) {
    let Shape { streams, in_flight, .. } = case.shape;
    let mut params: Params = params([("streams", streams.into()), ("in_flight", in_flight.into())]);
    // Not `free_high`, which names a variant: here policies are what is measured, line by line.
    params.extend(case.policy.map(|policy| ("policy", policy as i64)));
    let mut add = |metric: Metric, samples: &[f64]| {
        report.add(workload.name, case.design, metric, (2 * streams as usize, &params), samples);
    };
    METRIC_NAMES
        .into_iter()
        .zip(&series.samples)
        .for_each(|(metric, samples)| add(metric, samples));
    add(REUSE_MEDIAN, &[reuse.median_bytes]);
    add(REUSE_P90, &[reuse.p90_bytes]);
    add(CROSSED, &[reuse.crossed_percent]);
}

fn show(rows: &[Measured]) -> comfy_table::Table {
    let headings = [
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
    table::align(table, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_cpus_are_streams_and_at_least_one() {
        let streams = [2, 4, 7, 8, 64].map(|cpus| sctp_shape(cpus).streams);
        assert_eq!(streams, [1, 1, 1, 2, 16]);
        assert_eq!(udp_shape().streams, 1);
    }

    #[test]
    fn every_ring_that_is_tuned_has_a_size_that_rings_have() {
        let shapes = shapes_to_tune(udp_shape());
        assert!(shapes.iter().all(|shape| shape.in_flight.is_power_of_two()));
        assert_eq!(shapes.len(), 6);
    }
}
