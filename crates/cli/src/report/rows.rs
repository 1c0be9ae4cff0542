//! Result rows, and the tables and notes that go with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::account::Account;
use super::block::{self, Block};
use super::output::OutputFile;
use crate::harness::samples;
use crate::names::Design;

/// Named numbers that distinguish rows of the same metric, such as `order` or `batch`.
pub type Params = BTreeMap<&'static str, i64>;

/// A figure and its samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: &'static str,
    /// The design's name.
    pub design: &'static str,
    /// The metric's name. It ends in the unit where there is one.
    pub metric: &'static str,
    /// The unit of the samples.
    pub unit: &'static str,
    /// Number of CPUs in use.
    pub cpus: u32,
    /// The params that tell the row from others.
    pub params: Params,
    /// The median of the samples.
    pub median: f64,
    /// One per round.
    pub samples: Vec<f64>,
}

/// A figure over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub workload: String,
    pub design: String,
    /// Name of the values; it ends in the unit.
    pub metric: String,
    /// Unit of the positions: `ms`, or `events`.
    pub over: String,
    /// Pairs of a position and a value, by position.
    pub points: Vec<(f64, f64)>,
}

/// The share of each pageblock of a design's memory that was used at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockMap {
    pub workload: String,
    pub design: String,
    /// Free frames of each pageblock, by address, in percent.
    pub free_percent: Vec<u8>,
}

/// The rows and tables of one or more workloads.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    blocks: Vec<Block>,
    series: Vec<Series>,
    maps: Vec<BlockMap>,
    notes: Vec<String>,
    accounts: Vec<Account>,
    drawings: Vec<(OutputFile, String)>,
}

/// A metric's name and unit.
pub type Metric = (&'static str, &'static str);

impl Report {
    /// Adds a row of the samples that are numbers, if there are any.
    pub fn add(
        &mut self,
        workload: &'static str,
        design: Design,
        (metric, unit): Metric,
        (cpus, params): (usize, &Params),
        samples: &[f64],
    ) {
        let samples: Vec<f64> =
            samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        if let Some(median) = samples::median(&samples) {
            let (design, cpus, params) = (design.name(), cpus as u32, params.clone());
            self.rows.push(Row { workload, design, metric, unit, cpus, params, median, samples });
        }
    }

    /// Adds params to all rows of each design.
    pub fn tag(&mut self, params: impl Fn(&str) -> Params) {
        for row in &mut self.rows {
            row.params.extend(params(row.design));
        }
    }

    /// Adds lines or a table to the text.
    pub fn say(&mut self, block: impl Into<Block>) {
        self.blocks.push(block.into());
    }

    /// Adds a line that belongs to the rows, whatever form they are shown in.
    pub fn note(&mut self, line: impl std::fmt::Display) {
        self.say(line.to_string());
        self.notes.push(line.to_string());
    }

    /// Adds what was read of an input, in one line.
    pub fn account(&mut self, account: Account) {
        self.say(account.to_string());
        self.accounts.push(account);
    }

    /// The accounts of each input.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Adds a figure over time, if there are points.
    pub fn add_series(&mut self, series: Series) {
        if !series.points.is_empty() {
            self.series.push(series);
        }
    }

    /// Adds a map of pageblocks, if there are any.
    pub fn add_map(&mut self, map: BlockMap) {
        if !map.free_percent.is_empty() {
            self.maps.push(map);
        }
    }

    /// Adds a drawing, which is written with the other results.
    pub fn draw(&mut self, file: OutputFile, drawing: String) {
        self.drawings.push((file, drawing));
    }

    /// Takes the drawings out.
    pub fn take_drawings(&mut self) -> Vec<(OutputFile, String)> {
        std::mem::take(&mut self.drawings)
    }

    /// Figures over time.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Maps of pageblocks.
    pub fn maps(&self) -> &[BlockMap] {
        &self.maps
    }

    /// The lines added by [`note`](Self::note).
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Appends another report.
    pub fn append(&mut self, other: Report) {
        self.rows.extend(other.rows);
        for note in other.notes {
            // Workloads measured together give the same notes.
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        if !self.blocks.is_empty() && !other.blocks.is_empty() {
            self.say("");
        }
        self.blocks.extend(other.blocks);
        self.series.extend(other.series);
        self.accounts.extend(other.accounts);
        self.maps.extend(other.maps);
        self.drawings.extend(other.drawings);
    }

    /// The rows: workloads and metrics in the order in which they were added, and the rows of each
    /// metric by number of CPUs.
    pub fn rows(&self) -> Vec<Row> {
        let mut metrics = Vec::new();
        for row in &self.rows {
            let metric = (row.workload, row.metric);
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
        let mut rows = self.rows.clone();
        // Stable: rows with equal keys stay in order.
        rows.sort_by_key(|row| {
            (metrics.iter().position(|&metric| metric == (row.workload, row.metric)), row.cpus)
        });
        rows
    }

    /// The tables and notes, and what their columns mean, in lines of at most `width` columns.
    pub fn text(&self, width: usize) -> String {
        let legend = block::legend(&self.blocks, width);
        let blank = if legend.is_empty() { "" } else { "\n" };
        block::laid_out(&self.blocks, width) + blank + &legend
    }
}

/// Params from pairs of a name and a value.
pub fn params<const N: usize>(pairs: [(&'static str, i64); N]) -> Params {
    pairs.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_cpu_rows_come_first_and_gaps_are_left_out() {
        let mut report = Report::default();
        let none = Params::new();
        report.add("hot", Design::Depot, ("pair_ns", "ns"), (2, &none), &[3.0]);
        report.add("hot", Design::Depot, ("other", "ns"), (2, &none), &[f64::NAN]);
        report.add("hot", Design::Depot, ("other", "ns"), (1, &none), &[f64::NAN, 5.0, 7.0]);
        report.add("hot", Design::FloorTls, ("pair_ns", "ns"), (1, &none), &[1.0, 4.0, 2.0]);
        let rows: Vec<_> =
            report.rows().iter().map(|r| (r.design, r.metric, r.cpus, r.median)).collect();
        assert_eq!(
            rows,
            [
                ("floor-tls", "pair_ns", 1, 2.0),
                ("depot", "pair_ns", 2, 3.0),
                ("depot", "other", 1, 6.0)
            ]
        );
    }
}
