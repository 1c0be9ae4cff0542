//! The comparison itself: rows matched over columns, each against the base's.

use std::collections::BTreeMap;

use super::columns::{self, Column};
use super::document::ResultRow;
use super::metric::{self, Better};
use super::rule::{self, Rule, Verdict};
use super::stats::{Figures, Stat};
use crate::design::variant;
use crate::failure::Failure;

/// Columns side by side.
#[derive(Debug)]
pub struct Comparison {
    pub columns: Vec<String>,
    /// The column that percentages refer to.
    pub base: usize,
    pub rule: Rule,
    pub lines: Vec<TableLine>,
}

/// A figure of a workload, in each column that has it.
#[derive(Debug)]
pub struct TableLine {
    pub key: Key,
    /// As mmtests would call it.
    pub label: String,
    pub unit: String,
    pub better: Better,
    pub cells: Vec<Option<Cell>>,
}

/// What tells lines apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub workload: String,
    pub metric: String,
    pub cpus: u32,
    pub params: BTreeMap<String, i64>,
}

/// A column's part of a line.
#[derive(Debug)]
pub struct Cell {
    pub figures: Figures,
    /// How it compares with the base; the base itself has none.
    pub verdict: Option<Verdict>,
}

impl Comparison {
    /// Compares columns, wherever their rows come from, with the one called `base`, or the first. A
    /// column alone is a table of its figures.
    ///
    /// # Errors
    /// When there is no such column, nothing to compare, or one thing measured twice.
    pub fn new(columns: &[Column], base: Option<&str>, rule: Rule) -> Result<Self, Failure> {
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let base = match base {
            None => 0,
            Some(base) => names
                .iter()
                .position(|name| name == base)
                .ok_or_else(|| columns::no_column(base, names.iter().map(String::as_str)))?,
        };
        let mut lines = Vec::new();
        for row in columns.iter().flat_map(|column| &column.rows) {
            let key = Key::of(row);
            if !lines.iter().any(|line: &TableLine| line.key == key) {
                lines.push(TableLine::new(key, row, columns, base)?);
            }
        }
        if names.len() > 1 && !lines.iter().any(|line| line.cells.iter().flatten().count() > 1) {
            return Err(Failure::Usage(
                "no two columns measured the same thing; give files of the same workload"
                    .to_owned(),
            ));
        }
        let cells = lines.iter_mut().flat_map(|line| line.cells.iter_mut().flatten());
        rule::judge(cells.filter_map(|cell| cell.verdict.as_mut()).collect(), rule);
        Ok(Comparison { columns: names, base, rule, lines })
    }

    /// By how many percent a cell's figure is better than the base's.
    pub fn percent(&self, line: &TableLine, column: usize, stat: Stat) -> Option<f64> {
        let of = |column: usize| line.cells[column].as_ref()?.figures.get(stat);
        stat.better(line.better).percent(of(column)?, of(self.base)?)
    }

    /// The workloads, in order.
    pub fn workloads(&self) -> Vec<&str> {
        let mut workloads: Vec<&str> =
            self.lines.iter().map(|line| line.key.workload.as_str()).collect();
        let mut seen = Vec::new();
        workloads.retain(|workload| {
            let new = !seen.contains(workload);
            seen.push(*workload);
            new
        });
        workloads
    }
}

impl Key {
    /// Params that tell variants of designs apart tell no lines apart: variants are what is
    /// compared.
    fn of(row: &ResultRow) -> Self {
        let mut params = row.params.clone();
        params.retain(|name, _| !variant::PARAMS.contains(&name.as_str()));
        Key { workload: row.workload.clone(), metric: row.metric.clone(), cpus: row.cpus, params }
    }
}

impl TableLine {
    fn new(key: Key, row: &ResultRow, columns: &[Column], base: usize) -> Result<Self, Failure> {
        let (better, label) = (metric::better(row), metric::label(row));
        let mut rows = Vec::new();
        for column in columns {
            let mut matching = column.rows.iter().filter(|row| Key::of(row) == key);
            rows.push(matching.next());
            if matching.next().is_some() {
                let (workload, column) = (&key.workload, &column.name);
                return Err(Failure::Usage(format!(
                    "{column} has {workload} {label} twice; give files with one result for each"
                )));
            }
        }
        let cells = rows.iter().enumerate().map(|(at, row)| {
            let against = if at == base { None } else { rows[base] };
            row.map(|row| {
                Cell::new(row, against, better, columns[at].stars_are_against(&columns[base]))
            })
        });
        Ok(TableLine { cells: cells.collect(), key, label, unit: row.unit.clone(), better })
    }
}

impl Cell {
    fn new(row: &ResultRow, base: Option<&ResultRow>, better: Better, stars_apply: bool) -> Self {
        let figures = match &row.printed {
            Some(printed) if row.samples.is_empty() => Figures::of_printed(printed),
            _ => Figures::of_samples(&row.samples, better),
        };
        Cell { figures, verdict: base.map(|base| Verdict::new(row, base, better, stars_apply)) }
    }
}
