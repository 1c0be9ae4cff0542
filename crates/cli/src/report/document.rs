//! Result files: the documents that `--json` writes, and those made from printed tables.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{printable, rows};
use crate::failure::Failure;
use crate::harness::noise::Noise;

/// Most bytes read: more than the longest measurement writes.
const BYTES_MAX: u64 = 256 << 20;
/// The only schema there is.
const SCHEMA: u64 = 1;

/// A result file.
#[derive(Debug, Default, Deserialize)]
pub struct Document {
    /// Facts about the machine, by the names that `--json` uses.
    #[serde(default)]
    pub machine: BTreeMap<String, Value>,
    #[serde(default)]
    pub command: String,
    #[serde(default)]
    pub seed: Option<u64>,
    /// The settings of the measurement, where the file has them.
    #[serde(default)]
    pub settings: Option<Value>,
    /// The source of printed figures.
    #[serde(default)]
    pub source: Option<String>,
    pub results: Vec<ResultRow>,
    /// The disturbances of the run, where the file has them.
    #[serde(default)]
    pub noise: Option<Noise>,
    /// Whether the user ended the run before all was measured.
    #[serde(default)]
    pub stopped: bool,
    #[serde(default)]
    pub series: Vec<rows::Series>,
    #[serde(default)]
    pub maps: Vec<rows::BlockMap>,
}

/// A figure of a design: its samples, or what a published table prints of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ResultRow {
    pub workload: String,
    pub design: String,
    pub metric: String,
    #[serde(default)]
    pub unit: String,
    pub cpus: u32,
    #[serde(default)]
    pub params: BTreeMap<String, i64>,
    #[serde(default)]
    pub samples: Vec<f64>,
    /// Given in place of samples.
    #[serde(default)]
    pub printed: Option<TableLine>,
}

/// A line of a printed table.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TableLine {
    pub min: Option<f64>,
    pub mean: Option<f64>,
    pub stddev: Option<f64>,
    pub max: Option<f64>,
    /// Whether the mean had a star: a difference found significant.
    #[serde(default)]
    pub star: bool,
}

impl From<rows::Row> for ResultRow {
    fn from(row: rows::Row) -> Self {
        let rows::Row { workload, design, metric, unit, cpus, params, samples, .. } = row;
        ResultRow {
            workload: workload.to_owned(),
            design: design.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            cpus,
            params: params.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            samples,
            printed: None,
        }
    }
}

/// The text of a file of at most 256 MiB, without a byte-order mark; `-` is standard input.
///
/// # Errors
/// Why it cannot be read.
pub fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file: io::Result<Box<dyn Read>> = if path == Path::new("-") {
        Ok(Box::new(io::stdin()))
    } else {
        File::open(path).map(|file| Box::new(file) as _)
    };
    // Devices may have no end.
    let read = file.and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    if read.map_err(|error| error.to_string())? as u64 > BYTES_MAX {
        return Err(format!("it holds more than {} MiB", BYTES_MAX >> 20));
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

impl Document {
    /// Reads a file; `-` is standard input.
    ///
    /// # Errors
    /// When it cannot be read or is no result file.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = text(path).map_err(|why| {
            Failure::Usage(format!("cannot read {name}: {why}; give a file that --json FILE wrote"))
        })?;
        Self::parse(&text, &name)
    }

    /// Reads the text of the file called `name`.
    ///
    /// # Errors
    /// When it is no result file, or one without results.
    pub fn parse(text: &str, name: &str) -> Result<Self, Failure> {
        let bad = |what: String| {
            Failure::Usage(format!(
                "{name} is not a result file: {what}; give one that --json FILE wrote"
            ))
        };
        let mut value: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        match value.get("schema").and_then(Value::as_u64) {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(bad(format!("its schema is {other}, and {SCHEMA} is known")));
            }
            None => return Err(bad("it has no schema".to_owned())),
        }
        name_by_words(&mut value);
        let document: Document = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
        if document.results.is_empty() {
            return Err(bad("it has no results".to_owned()));
        }
        let names =
            document.results.iter().flat_map(|row| [&row.workload, &row.design, &row.metric]);
        let params = document.results.iter().flat_map(|row| row.params.keys());
        let units = document.results.iter().map(|row| &row.unit).filter(|unit| !unit.is_empty());
        let curves = document
            .series
            .iter()
            .flat_map(|series| [&series.workload, &series.design, &series.metric, &series.over]);
        let maps = document.maps.iter().flat_map(|map| [&map.workload, &map.design]);
        for name in names.chain(params).chain(units).chain(curves).chain(maps) {
            if name.is_empty() || *name != printable(name) {
                return Err(bad(format!("{name:?} is no name")));
            }
        }
        if let Some(number) = document.numbers().find(|&number| !is_figure(number)) {
            return Err(bad(format!("{number:e} is no figure")));
        }
        Ok(document)
    }

    /// All figures, and the places of those over time.
    fn numbers(&self) -> impl Iterator<Item = f64> {
        let samples = self.results.iter().flat_map(|row| row.samples.iter().copied());
        let printed = self.results.iter().filter_map(|row| row.printed.as_ref());
        let printed = printed.flat_map(|it| [it.min, it.mean, it.stddev, it.max]).flatten();
        let points = self.series.iter().flat_map(|series| &series.points);
        samples.chain(printed).chain(points.flat_map(|&(at, value)| [at, value]))
    }
}

/// Whether a number can be measured: beyond these bounds no axis can be drawn, and squares have no
/// sums.
fn is_figure(number: f64) -> bool {
    number == 0.0 || (1e-18..=1e18).contains(&number.abs())
}

/// Takes params that are words into the names of their rows' metrics: what is not a number has no
/// place on a scale. `zone_lock_takes` with the workload `exit` is `zone_lock_takes.exit`.
fn name_by_words(document: &mut Value) {
    let rows = document.get_mut("results").and_then(Value::as_array_mut);
    for row in rows.into_iter().flatten() {
        let Some(params) = row.get_mut("params").and_then(Value::as_object_mut) else { continue };
        let words: String =
            params.values().filter_map(Value::as_str).flat_map(|word| [".", word]).collect();
        params.retain(|_, value| !value.is_string());
        if let Some(Value::String(metric)) = row.get_mut("metric") {
            metric.push_str(&words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_among_the_params_tell_metrics_apart() {
        let row = |workload: &str, value| {
            format!(
                r#"{{"workload":"linux","design":"b","metric":"takes","cpus":1,"samples":[{value}],
                "params":{{"order":2,"workload":"{workload}"}}}}"#
            )
        };
        let text = format!(r#"{{"schema":1,"results":[{},{}]}}"#, row("exit", 1), row("faults", 2));
        let rows = Document::parse(&text, "it").unwrap().results;
        let metrics: Vec<_> = rows.iter().map(|row| &*row.metric).collect();
        assert_eq!(metrics, ["takes.exit", "takes.faults"]);
        assert_eq!(rows[0].params, BTreeMap::from([("order".to_owned(), 2)]));
    }

    #[test]
    fn what_is_no_result_file_is_refused_with_a_reason() {
        for (text, says) in [
            ("", "EOF"),
            ("[]", "no schema"),
            (r#"{"schema":2,"results":[]}"#, "schema is 2"),
            (r#"{"schema":1}"#, "results"),
            (r#"{"schema":1,"results":[]}"#, "no results"),
            (r#"{"schema":1,"results":[{"workload":"hot"}]}"#, "design"),
            (
                r#"{"schema":1,
                    "results":[{"workload":"a\u001b[2J","design":"b","metric":"c","cpus":1}]}"#,
                r#""a\u{1b}[2J" is no name"#,
            ),
            (
                r#"{"schema":1,"results":[
                    {"workload":"a","design":"b","metric":"c","cpus":1,"samples":[1,1e-300]}]}"#,
                "1e-300 is no figure",
            ),
            (
                r#"{"schema":1,"results":[
                    {"workload":"a","design":"b","metric":"c","cpus":1,
                        "printed":{"mean":-1e308}}]}"#,
                "-1e308 is no figure",
            ),
            (
                r#"{"schema":1,
                    "results":[{"workload":"a","design":"b","metric":"c","cpus":1,"samples":[1]}],
                    "series":[{"workload":"a","design":"b","metric":"c","over":"ms",
                        "points":[[0,1],[1,1e19]]}]}"#,
                "1e19 is no figure",
            ),
        ] {
            let line =
                Document::parse(text, "file").err().map(|e| e.to_string()).unwrap_or_default();
            assert!(
                line.starts_with("file is not a result file: ") && line.contains(says),
                "{text}: {line}"
            );
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_result_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let row = r#"{"workload":"a","design":"b","metric":"c","cpus":1,"samples":[1]}"#;
        std::fs::write(file.path(), format!("\u{feff}{{\"schema\":1,\"results\":[{row}]}}\r\n"))
            .unwrap();
        assert_eq!(Document::load(file.path()).unwrap().results.len(), 1);
    }

    #[test]
    fn rows_of_a_report_become_rows_of_a_document() {
        use crate::names::Design;
        let mut report = rows::Report::default();
        let params = rows::params([("order", 3)]);
        report.add("hot", Design::Depot, ("pair_ns", "ns"), (1, &params), &[1.0, 2.0]);
        let ours: Vec<ResultRow> = report.rows().into_iter().map(Into::into).collect();
        let text = serde_json::to_string(&report.rows()).unwrap();
        let read: Vec<ResultRow> = serde_json::from_str(&text).unwrap();
        assert_eq!(ours, read);
        assert_eq!(ours[0].params["order"], 3);
    }
}
