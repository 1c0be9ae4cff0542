//! Rows and tables of `drain`.

use pagedepot::Mode;

use super::busy::{self, Rate};
use super::contenders::{OfBusy, OfHalted};
use super::halted::{self, State};
use super::owner::OwnerWork;
use crate::harness::Series;
use crate::harness::samples::median;
use crate::report::rows::{Metric, Params, params};
use crate::report::{Report, table};

/// The name of the workload.
pub const NAME: &str = "drain";

/// Names and units of the metrics of [`busy::METRICS`]; first those of an owner that works in
/// pairs, then of one that works in bursts.
const PAIRS: [Metric; busy::METRICS] = [
    ("owner_ns", "ns"),
    ("owner_p50_ns", "ns"),
    ("owner_p99_ns", "ns"),
    ("owner_p999_ns", "ns"),
    ("drain_ns", "ns"),
    ("drained_pages", "pages"),
    ("interrupts", "1"),
    ("interruptions", "1"),
    ("pending_pages", "pages"),
    ("collect_ns", "ns"),
];
const BURSTS: [Metric; busy::METRICS] = [
    ("burst_owner_ns", "ns"),
    ("burst_owner_p50_ns", "ns"),
    ("burst_owner_p99_ns", "ns"),
    ("burst_owner_p999_ns", "ns"),
    ("burst_drain_ns", "ns"),
    ("burst_drained_pages", "pages"),
    ("burst_interrupts", "1"),
    ("burst_interruptions", "1"),
    ("burst_pending_pages", "pages"),
    ("burst_collect_ns", "ns"),
];

/// Names and units of the metrics of [`halted::METRICS`].
const IDLE: [Metric; halted::METRICS] = [
    ("idle_drain_ns", "ns"),
    ("idle_drain_longest_ns", "ns"),
    ("idle_drained_pages", "pages"),
    ("idle_interrupts_per_drain", "1"),
    ("idle_pending_pages", "pages"),
];
const STOPPED: [Metric; halted::METRICS] = [
    ("stopped_drain_ns", "ns"),
    ("stopped_drain_longest_ns", "ns"),
    ("stopped_drained_pages", "pages"),
    ("stopped_interrupts_per_drain", "1"),
    ("stopped_pending_pages", "pages"),
];

const ISOLATED: [Metric; halted::METRICS] = [
    ("isolated_drain_ns", "ns"),
    ("isolated_drain_longest_ns", "ns"),
    ("isolated_drained_pages", "pages"),
    ("isolated_interrupts_per_drain", "1"),
    ("isolated_pending_pages", "pages"),
];

/// The value of the param `full`.
fn full(mode: Mode) -> i64 {
    match mode {
        Mode::Quiet => 0,
        Mode::Full => 1,
        Mode::Handover => 2,
    }
}

/// The drain's name in tables.
const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Quiet => "quiet",
        Mode::Full => "full",
        Mode::Handover => "handover",
    }
}

/// The owner in tables.
const fn owner(state: State) -> &'static str {
    match state {
        State::Idle => "asleep",
        State::Stopped => "stopped",
        State::Isolated => "isolated",
    }
}

/// Adds the rows of a contender whose owner works.
pub fn add_busy(report: &mut Report, what: OfBusy, series: &Series<{ busy::METRICS }>) {
    let metrics = if what.work == OwnerWork::Pairs { PAIRS } else { BURSTS };
    // Without drains there is nothing to be full or quiet: the same for all.
    let all = [Mode::Quiet, Mode::Full, Mode::Handover];
    let modes = if what.rate == Rate::PerSecond(0) { &all[..] } else { &[what.mode] };
    for &mode in modes {
        let params: Params = params([("drains_per_s", what.rate.as_param()), ("full", full(mode))]);
        for (metric, samples) in metrics.into_iter().zip(&series.samples) {
            report.add(NAME, what.design, metric, (2, &params), samples);
        }
    }
}

/// The table of contenders whose owner works.
pub fn busy_table(rows: &[(&OfBusy, &Series<{ busy::METRICS }>)]) -> comfy_table::Table {
    let mut table = table::new([
        "design",
        "drain",
        "per s",
        "owner ns",
        "change",
        "p50",
        "p99",
        "p99.9",
        "change",
        "drain us",
        "pages",
        "interrupts",
        "counted",
        "pending",
        "collected us",
    ]);
    for (what, series) in rows {
        let undrained = rows
            .iter()
            .find(|(base, _)| base.design == what.design && base.rate == Rate::PerSecond(0));
        let undrained = undrained.filter(|(base, _)| base != what).map(|(_, base)| base);
        let change = |metric: usize| {
            table::change(&series.samples[metric], undrained.map(|b| b.samples[metric].as_slice()))
        };
        let [mean, p50, p99, p999, drain_ns, pages, interrupts, counted, pending, collect_ns] =
            &series.samples;
        let per_s = match what.rate {
            Rate::PerSecond(rate) => rate.to_string(),
            Rate::BackToBack => "back to back".to_owned(),
        };
        table.add_row([
            what.design.name().to_owned(),
            if what.rate == Rate::PerSecond(0) { "none" } else { mode_name(what.mode) }.to_owned(),
            per_s,
            table::median(mean),
            change(0),
            table::median(p50),
            table::median(p99),
            table::median(p999),
            change(3),
            us(drain_ns),
            table::median(pages),
            table::median(interrupts),
            table::median(counted),
            table::median(pending),
            us(collect_ns),
        ]);
    }
    table::align(table, 2)
}

fn us(ns: &[f64]) -> String {
    table::median(&ns.iter().map(|ns| ns / 1e3).collect::<Vec<_>>())
}

/// Adds the rows of a contender whose owner does not run.
pub fn add_halted(report: &mut Report, what: OfHalted, series: &Series<{ halted::METRICS }>) {
    let metrics = match what.state {
        State::Idle => IDLE,
        State::Stopped => STOPPED,
        State::Isolated => ISOLATED,
    };
    let params = params([("full", full(what.mode))]);
    for (metric, samples) in metrics.into_iter().zip(&series.samples) {
        report.add(NAME, what.design, metric, (2, &params), samples);
    }
}

/// The table of contenders whose owner does not run.
pub fn halted_table(
    what: &[OfHalted],
    series: &[Series<{ halted::METRICS }>],
) -> comfy_table::Table {
    let headings = [
        "design",
        "drain",
        "owner",
        "drain us",
        "quartiles",
        "longest us",
        "pages",
        "interrupts per drain",
        "pending",
    ];
    let mut table = table::new(headings);
    for (what, one) in what.iter().zip(series) {
        let [ns, longest_ns, pages, interrupts, pending] = &one.samples;
        let quartiles = table::quartiles(&ns.iter().map(|ns| ns / 1e3).collect::<Vec<_>>());
        let longest = longest_ns.iter().copied().fold(f64::NAN, f64::max);
        table.add_row([
            what.design.name().to_owned(),
            mode_name(what.mode).to_owned(),
            owner(what.state).to_owned(),
            us(ns),
            quartiles,
            if median(&[longest]).is_some_and(f64::is_finite) {
                table::figure(longest / 1e3)
            } else {
                table::NONE.to_owned()
            },
            table::median(pages),
            table::median(interrupts),
            table::median(pending),
        ]);
    }
    table::align(table, 3)
}
