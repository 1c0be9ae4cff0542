//! A comparison for programs: CSV and JSON, a record per line and column.

use std::collections::BTreeMap;

use serde::Serialize;

use super::stats::Stat;
use super::table::{Comparison, TableLine};

/// One design's figures on one line of the table, and how they compare.
#[derive(Debug, Serialize)]
struct ComparedFigure<'c> {
    workload: &'c str,
    metric: &'c str,
    unit: &'c str,
    label: &'c str,
    cpus: u32,
    #[serde(serialize_with = "joined")]
    params: &'c BTreeMap<String, i64>,
    column: &'c str,
    base: &'c str,
    n: usize,
    median: Option<f64>,
    median_percent: Option<f64>,
    mean_kind: &'static str,
    min: Option<f64>,
    mean: Option<f64>,
    stddev: Option<f64>,
    coeffvar: Option<f64>,
    max: Option<f64>,
    bamean_95: Option<f64>,
    min_percent: Option<f64>,
    mean_percent: Option<f64>,
    stddev_percent: Option<f64>,
    coeffvar_percent: Option<f64>,
    max_percent: Option<f64>,
    bamean_95_percent: Option<f64>,
    p: Option<f64>,
    p_holm: Option<f64>,
    interval_low_percent: Option<f64>,
    interval_high_percent: Option<f64>,
    effect: Option<f64>,
    star: bool,
}

/// `batch=16 order=0`: one field, which CSV needs, and the same in JSON.
fn joined<S: serde::Serializer>(params: &BTreeMap<String, i64>, to: S) -> Result<S::Ok, S::Error> {
    let pairs: Vec<String> = params.iter().map(|(name, value)| format!("{name}={value}")).collect();
    to.serialize_str(&pairs.join(" "))
}

#[derive(Serialize)]
struct ComparisonFile<'c> {
    schema: u32,
    base: &'c str,
    columns: &'c [String],
    comparisons: Vec<ComparedFigure<'c>>,
}

/// All records as CSV with a line of headings.
///
/// # Errors
/// None that memory does not have.
pub fn csv(comparison: &Comparison) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for record in records(comparison) {
        writer.serialize(record)?;
    }
    let bytes = writer.into_inner().map_err(|e| e.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All records as one JSON document.
///
/// # Errors
/// None that memory does not have.
pub fn json(comparison: &Comparison) -> Result<String, serde_json::Error> {
    let comparisons = records(comparison);
    let base = &comparison.columns[comparison.bases.first().copied().unwrap_or(0)];
    let document = ComparisonFile { schema: 1, base, columns: &comparison.columns, comparisons };
    Ok(serde_json::to_string(&document)? + "\n")
}

fn records(comparison: &Comparison) -> Vec<ComparedFigure<'_>> {
    let columns = 0..comparison.columns.len();
    let of_line = |line| columns.clone().filter_map(move |column| record(comparison, line, column));
    comparison.lines.iter().flat_map(of_line).collect()
}

fn record<'c>(
    comparison: &'c Comparison,
    line: &'c TableLine,
    column: usize,
) -> Option<ComparedFigure<'c>> {
    let cell = line.cells[column].as_ref()?;
    let verdict = cell.verdict.as_ref();
    let interval = verdict.and_then(|verdict| verdict.interval_percent);
    let percent = |stat| comparison.percent(line, column, stat);
    Some(ComparedFigure {
        workload: &line.key.workload,
        metric: &line.key.metric,
        unit: &line.unit,
        label: &line.label,
        cpus: line.key.cpus,
        params: &line.key.params,
        column: &comparison.columns[column],
        base: &comparison.columns[comparison.bases[column]],
        n: cell.figures.n,
        median: cell.figures.get(Stat::Median),
        median_percent: percent(Stat::Median),
        mean_kind: Stat::Mean.title(line.better),
        min: cell.figures.get(Stat::Min),
        mean: cell.figures.get(Stat::Mean),
        stddev: cell.figures.get(Stat::Stddev),
        coeffvar: cell.figures.get(Stat::Coeffvar),
        max: cell.figures.get(Stat::Max),
        bamean_95: cell.figures.get(Stat::Bamean),
        min_percent: percent(Stat::Min),
        mean_percent: percent(Stat::Mean),
        stddev_percent: percent(Stat::Stddev),
        coeffvar_percent: percent(Stat::Coeffvar),
        max_percent: percent(Stat::Max),
        bamean_95_percent: percent(Stat::Bamean),
        p: verdict.and_then(|verdict| verdict.p),
        p_holm: verdict.and_then(|verdict| verdict.p_holm),
        interval_low_percent: interval.map(|(low, _)| low),
        interval_high_percent: interval.map(|(_, high)| high),
        effect: verdict.and_then(|verdict| verdict.effect),
        star: verdict.is_some_and(|verdict| verdict.star),
    })
}
