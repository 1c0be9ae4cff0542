//! The comparison itself: rows matched over columns, each against the base's.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::{self, Column};
use super::metric;
use super::rule::{self, RUNS_PERCENT, Rule, Verdict};
use super::stats::{Figures, Stat};
use pagedepot_cli::design::variant;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::report::better::{Better, better};
use pagedepot_cli::report::document::ResultRow;

/// Columns side by side.
#[derive(Debug)]
pub struct Comparison {
    pub columns: Vec<String>,
    /// The column that each column's percentages refer to; of bases, themselves.
    pub bases: Vec<usize>,
    pub rule: Rule,
    pub lines: Vec<TableLine>,
}

/// A figure of a workload, in each column that has it.
#[derive(Debug)]
pub struct TableLine {
    pub key: Key,
    /// The label that mmtests would give it.
    pub label: String,
    pub unit: String,
    pub better: Better,
    pub cells: Vec<Option<Cell>>,
}

/// The values that tell lines apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The comparison with the base; the base itself has none.
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
        let bases = match base {
            None => columns::bases(columns),
            Some(base) => {
                let at = names.iter().position(|name| name == base);
                let at =
                    at.ok_or_else(|| columns::no_column(base, names.iter().map(String::as_str)))?;
                vec![at; columns.len()]
            }
        };
        let by_key: Vec<RowsByKey<'_>> = columns.iter().map(rows_by_key).collect();
        let (mut lines, mut seen) = (Vec::new(), BTreeSet::new());
        for row in columns.iter().flat_map(|column| &column.rows) {
            let key = Key::of(row);
            if seen.insert(key.clone()) {
                lines.push(TableLine::new(key, row, (columns, &by_key), &bases, rule)?);
            }
        }
        if names.len() > 1 && !lines.iter().any(|line| line.cells.iter().flatten().count() > 1) {
            return Err(Failure::Usage(
                "no two columns measured the same thing; give files of the same workload"
                    .to_owned(),
            ));
        }
        allow_for_runs(&mut lines, columns, &bases);
        judge(&mut lines, rule);
        Ok(Comparison { columns: names, bases, rule, lines })
    }

    /// Percent by which a cell's figure is better than the base's.
    pub fn percent(&self, line: &TableLine, column: usize, stat: Stat) -> Option<f64> {
        let of = |column: usize| line.cells[column].as_ref()?.figures.get(stat);
        stat.better(line.better).percent(of(column)?, of(self.bases[column])?)
    }

    /// Whether a column is compared with another.
    pub fn is_compared(&self, column: usize) -> bool {
        self.bases[column] != column
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

/// Notes by how much two runs may differ where a column is of another run than its base: by what
/// the bounds in both differ in the same metric, which no change of an allocator explains, and at
/// least by [`RUNS_PERCENT`].
fn allow_for_runs(lines: &mut [TableLine], columns: &[Column], bases: &[usize]) {
    let is_other_run = |at: usize| columns[at].origin.file != columns[bases[at]].origin.file;
    let others: Vec<usize> = (0..columns.len()).filter(|&at| is_other_run(at)).collect();
    let is_bound = |at: usize| Design::parse(&columns[at].design).is_ok_and(Design::is_bound);
    let bounds = || others.iter().copied().filter(|&at| is_bound(at));
    let differ = |line: &TableLine, at: usize| {
        let of = |at: usize| line.cells[at].as_ref()?.figures.get(Stat::Median);
        Some(line.better.percent(of(at)?, of(bases[at])?)?.abs())
    };
    let mut most: BTreeMap<(String, String), f64> = BTreeMap::new();
    for line in lines.iter() {
        let most = most.entry(line.key.metric()).or_insert(RUNS_PERCENT);
        *most = bounds().filter_map(|at| differ(line, at)).fold(*most, f64::max);
    }
    for line in lines {
        let most = most[&line.key.metric()];
        for &at in &others {
            if let Some(verdict) = line.cells[at].as_mut().and_then(|cell| cell.verdict.as_mut()) {
                verdict.runs_percent = most;
            }
        }
    }
}

/// Corrects the p of all verdicts, by our rule within each metric of a workload, by the others not
/// at all, and gives stars.
fn judge(lines: &mut [TableLine], rule: Rule) {
    let mut metrics: BTreeMap<(String, String), Vec<&mut Verdict>> = BTreeMap::new();
    for line in lines {
        let verdicts = metrics.entry(line.key.metric()).or_default();
        let cells = line.cells.iter_mut().flatten();
        verdicts.extend(cells.filter_map(|cell| cell.verdict.as_mut()));
    }
    metrics.into_values().for_each(|verdicts| rule::judge(verdicts, rule));
}

impl Key {
    /// The workload and the metric.
    fn metric(&self) -> (String, String) {
        (self.workload.clone(), self.metric.clone())
    }

    /// Params that tell variants of designs apart tell no lines apart: variants are what is
    /// compared.
    fn of(row: &ResultRow) -> Self {
        let mut params = row.params.clone();
        params.retain(|name, _| !variant::PARAMS.contains(&name.as_str()));
        Key { workload: row.workload.clone(), metric: row.metric.clone(), cpus: row.cpus, params }
    }
}

/// The rows of a column, by the line that they are of.
type RowsByKey<'r> = BTreeMap<Key, Vec<&'r ResultRow>>;

fn rows_by_key(column: &Column) -> RowsByKey<'_> {
    let mut rows = RowsByKey::new();
    for row in &column.rows {
        rows.entry(Key::of(row)).or_default().push(row);
    }
    rows
}

impl TableLine {
    fn new(
        key: Key,
        row: &ResultRow,
        (columns, by_key): (&[Column], &[RowsByKey<'_>]),
        bases: &[usize],
        rule: Rule,
    ) -> Result<Self, Failure> {
        let (better, label) = (better(row), metric::label(row));
        let mut rows = Vec::new();
        for (column, by_key) in columns.iter().zip(by_key) {
            let matching = by_key.get(&key).map_or(&[][..], Vec::as_slice);
            rows.push(matching.first().copied());
            if matching.len() > 1 {
                let (workload, column) = (&key.workload, &column.name);
                return Err(Failure::Usage(format!(
                    "{column} has {workload} {label} twice; give files with one result for each"
                )));
            }
        }
        let cells = rows.iter().enumerate().map(|(at, row)| {
            let base = bases[at];
            let against = if at == base { None } else { rows[base] };
            let stars_apply = columns[at].stars_are_against(&columns[base]);
            row.map(|row| Cell::new(row, against, (better, rule), stars_apply))
        });
        Ok(TableLine { cells: cells.collect(), key, label, unit: row.unit.clone(), better })
    }
}

impl Cell {
    fn new(
        row: &ResultRow,
        base: Option<&ResultRow>,
        (better, rule): (Better, Rule),
        stars_apply: bool,
    ) -> Self {
        let figures = match &row.printed {
            Some(printed) if row.samples.is_empty() => Figures::of_printed(printed),
            _ => Figures::of_samples(&row.samples, better),
        };
        let verdict = base.map(|base| Verdict::new(row, base, (better, rule), stars_apply));
        Cell { figures, verdict }
    }
}
