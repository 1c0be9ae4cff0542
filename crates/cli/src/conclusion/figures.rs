//! Looking up the medians that sentences are made of.

use crate::harness::samples;
use crate::names::Design;
use crate::report::better::{Better, better};
use crate::report::document::ResultRow;
use crate::report::table::figure;

/// The rows of one workload.
pub struct Figures<'r> {
    pub workload: &'r str,
    rows: Vec<&'r ResultRow>,
}

/// The params that rows must have besides their metric and design.
pub type Params<'p> = &'p [(&'p str, i64)];

impl<'r> Figures<'r> {
    pub fn new(rows: &'r [ResultRow], workload: &'r str) -> Self {
        Figures { workload, rows: rows.iter().filter(|row| row.workload == workload).collect() }
    }

    /// Rows of a metric, of any design, with these params.
    pub fn of(&self, metric: &str, params: Params<'_>) -> Vec<&'r ResultRow> {
        let has = |row: &ResultRow| {
            params.iter().all(|&(name, value)| row.params.get(name) == Some(&value))
        };
        self.rows.iter().copied().filter(|row| row.metric == metric && has(row)).collect()
    }

    /// The median of a design, if it was measured with these params.
    pub fn median(&self, design: &str, metric: &str, params: Params<'_>) -> Option<f64> {
        let rows = self.of(metric, params);
        rows.into_iter().find(|row| row.design == design).and_then(median)
    }

    /// The workload's first metric.
    pub fn first_metric(&self) -> Option<&'r str> {
        self.rows.first().map(|row| row.metric.as_str())
    }

    /// The design to tell of: the depot, or else the best of those with this metric that are
    /// allocators, or else the first.
    pub fn subject(&self, metric: &str, params: Params<'_>) -> Option<&'r str> {
        let rows = self.of(metric, params);
        let depot = rows.iter().find(|row| row.design == Design::Depot.name()).copied();
        let best = || best_of(rows.iter().copied().filter(|row| is_allocator(row)));
        depot.or_else(best).or_else(|| rows.first().copied()).map(|row| row.design.as_str())
    }
}

/// The median of a row: of its samples, or the mean that was printed.
pub fn median(row: &ResultRow) -> Option<f64> {
    samples::median(&row.samples).or_else(|| row.printed.as_ref()?.mean)
}

/// The ratio of a row to a base: the median of those of each round, as tables have it, or that of
/// the medians where the two have not the same rounds.
pub fn ratio(row: &ResultRow, base: &ResultRow) -> Option<f64> {
    let by_round = samples::median_ratio(&row.samples, &base.samples);
    by_round.or_else(|| Some(median(row)? / median(base)?))
}

/// Whether the row's design is an allocator: no bound.
pub fn is_allocator(row: &ResultRow) -> bool {
    !is_bound(&row.design)
}

/// Whether the row's design is a rival of `subject`: another design that does the job, so neither a
/// bound nor a variant of the same.
pub fn is_rival(row: &ResultRow, subject: &str) -> bool {
    let is_depot = |design: &str| Design::parse(design).is_ok_and(Design::is_depot);
    let is_variant = is_depot(&row.design) && is_depot(subject);
    row.design != subject && !is_bound(&row.design) && !is_variant
}

/// Whether the name is a bound's.
pub fn is_bound(design: &str) -> bool {
    Design::parse(design).is_ok_and(Design::is_bound)
}

/// The best of rows of one metric, by their medians.
pub fn best_of<'r>(rows: impl Iterator<Item = &'r ResultRow>) -> Option<&'r ResultRow> {
    let sign = |row: &ResultRow| if better(row) == Better::Higher { -1.0 } else { 1.0 };
    rows.filter(|row| median(row).is_some()).min_by(|a, b| {
        let key = |row: &ResultRow| sign(row) * median(row).unwrap_or(f64::INFINITY);
        key(a).total_cmp(&key(b))
    })
}

/// Nanoseconds, in the unit that people would say them in.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{} ns", figure(ns)),
        ns if ns < 1e6 => format!("{} us", figure(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", figure(ns / 1e6)),
        ns => format!("{} s", figure(ns / 1e9)),
    }
}

/// A figure with its unit.
pub fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "ns" => time(value),
        "s" => time(value * 1e9),
        "" | "1" => figure(value),
        "1/s" => format!("{} per second", large(value)),
        unit => format!("{} {unit}", figure(value)),
    }
}

/// `2.1 million`.
fn large(value: f64) -> String {
    if value >= 1e6 { format!("{} million", figure(value / 1e6)) } else { figure(value) }
}
