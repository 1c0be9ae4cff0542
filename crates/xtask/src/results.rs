//! Writes measurements as the lab's JSON and as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::output::OutputFile;
use crate::tools;

/// The pages, and the means by which they are measured: the key of a figure's row.
type Key = (String, BTreeMap<String, Param>, u32, &'static str);

/// The value of a figure's parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Param {
    /// A number.
    Number(i64),
    /// The name of one of several.
    Word(String),
}

impl Param {
    /// The number, or the word, that a console's line has. `None`: it has neither.
    pub fn parse(text: &str) -> Option<Self> {
        let number = || text.parse().ok().map(Param::Number);
        let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic());
        if is_word { Some(Param::Word(text.to_owned())) } else { number() }
    }

    fn json(&self) -> Value {
        match self {
            Param::Number(number) => json!(number),
            Param::Word(word) => json!(word),
        }
    }
}

impl From<i64> for Param {
    fn from(number: i64) -> Self {
        Param::Number(number)
    }
}

impl From<&str> for Param {
    fn from(word: &str) -> Self {
        Param::Word(word.to_owned())
    }
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Number(number) => number.fmt(f),
            Param::Word(word) => word.fmt(f),
        }
    }
}

/// Figures of all boots.
#[derive(Default)]
pub struct Results {
    rows: BTreeMap<Key, Vec<f64>>,
}

impl Results {
    /// Adds a sample that a machine with `cpus` CPUs gave.
    pub fn add(
        &mut self,
        design: &'static str,
        cpus: u32,
        metric: &str,
        params: BTreeMap<String, Param>,
        value: f64,
    ) {
        self.rows.entry((metric.to_owned(), params, cpus, design)).or_default().push(value);
    }

    /// A design's samples of a metric without params.
    pub fn samples(&self, design: &'static str, metric: &str) -> &[f64] {
        let key = (metric.to_owned(), BTreeMap::new(), 1, design);
        self.rows.get(&key).map_or(&[], Vec::as_slice)
    }

    /// The document of `command` that `pagedepot-lab compare` reads.
    pub fn document(&self, command: &str, settings: &Value) -> Value {
        let results: Vec<Value> = self
            .rows
            .iter()
            .map(|((metric, params, cpus, design), samples)| {
                let params: BTreeMap<_, _> =
                    params.iter().map(|(name, value)| (name, value.json())).collect();
                json!({
                    "workload": command, "design": design, "metric": metric, "unit": unit(metric),
                    "cpus": cpus, "params": params, "median": median(samples), "samples": samples,
                })
            })
            .collect();
        json!({
            "schema": 1, "machine": machine(), "command": command, "seed": 0,
            "settings": settings, "results": results,
        })
    }

    /// A line for each metric, with the least of each of `designs`, or of rates the greatest: the
    /// host's other work only adds to times; but for those that have none. Last the ratio of the
    /// second, ours, to the first. Columns have the last words of designs' names.
    pub fn table(&self, designs: &[&str]) -> String {
        let mut lines: BTreeMap<(&str, u32, String), BTreeMap<&str, f64>> = BTreeMap::new();
        for ((metric, params, cpus, design), samples) in &self.rows {
            let samples = samples.iter().copied();
            let least = match metric.ends_with("_per_s") {
                true => samples.fold(0.0, f64::max),
                false => samples.fold(f64::INFINITY, f64::min),
            };
            let params: Vec<_> =
                params.iter().map(|(name, value)| format!("{name}={value}")).collect();
            lines.entry((metric, *cpus, params.join(" "))).or_default().insert(design, least);
        }
        let row = |metric: &str, cpus: &str, params: &str, cells: &[String], ratio: &str| {
            let cells: String = cells.iter().map(|cell| format!(" {cell:>11}")).collect();
            format!("{metric:<22} {cpus:>4}  {params:<30}{cells} {ratio:>7}\n")
        };
        let has_figures_of = |design: &&str| lines.values().any(|of| of.contains_key(*design));
        let shown: Vec<&str> = designs.iter().copied().filter(has_figures_of).collect();
        let names: Vec<String> = shown.iter().map(|design| last_word(design)).collect();
        let mut table = row("metric", "cpus", "", &names, "ratio");
        for ((metric, cpus, params), of) in lines {
            let cell =
                |design: &str| of.get(design).map_or("-".to_owned(), |value| format!("{value:.1}"));
            let cells: Vec<String> = shown.iter().map(|&design| cell(design)).collect();
            let ratio = match designs {
                [theirs, ours, ..] => match (of.get(ours), of.get(theirs)) {
                    (Some(ours), Some(theirs)) if *theirs > 0.0 => format!("{:.2}", ours / theirs),
                    _ => String::new(),
                },
                _ => String::new(),
            };
            table += &row(metric, &cpus.to_string(), &params, &cells, &ratio);
        }
        table
    }
}

fn last_word(design: &str) -> String {
    design.rsplit('-').next().unwrap_or(design).to_owned()
}

fn unit(metric: &str) -> &'static str {
    match metric.rsplit('_').next() {
        _ if metric.ends_with("mib_per_s") => "MiB/s",
        _ if metric.ends_with("_per_s") => "1/s",
        _ if metric.contains("_bytes_") => "bytes",
        Some("s") => "s",
        Some("percent") => "%",
        Some("share") => "1",
        Some("ns") => "ns",
        Some("pages") => "pages",
        Some("instructions") => "instructions",
        Some("interrupts") => "interrupts",
        _ => "",
    }
}

/// The median of samples, of which there are some.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The host, by the names that the lab uses.
fn machine() -> Value {
    let first = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
    };
    let memory = first("/proc/meminfo", "MemTotal");
    let memory = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let said = |program: &str, argument: &str| {
        let output = tools::output(Command::new(program).arg(argument));
        output.map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    json!({
        "cpu": first("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": memory.unwrap_or(0) * 1024,
        "kernel": said("uname", "-r"),
        "rustc": said("rustc", "--version"),
        "page_bytes": 4096,
    })
}

/// The file that `--json` names. Fails where [`write()`] would, before anything is measured.
///
/// # Errors
/// When the file cannot be written.
pub fn open(path: Option<&Path>) -> Result<Option<OutputFile>> {
    let open = |path: &Path| {
        let opened = OutputFile::open(path);
        opened.with_context(|| {
            format!("cannot write {}: give --json a file that you may write to", path.display())
        })
    };
    path.map(open).transpose()
}

/// Writes the document; an older one stays until it is complete.
///
/// # Errors
/// When it cannot be written.
pub fn write(file: OutputFile, document: &Value) -> Result<()> {
    let path = file.path().to_owned();
    let written = file.write(format!("{document}\n").as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_the_lab_writes_them() {
        let mut results = Results::default();
        let params = BTreeMap::from([("order".to_owned(), Param::Number(0))]);
        for (design, value) in [("theirs", 4.0), ("ours", 4.0), ("ours", 2.0)] {
            results.add(design, 2, "pair_ns", params.clone(), value);
        }
        let document = results.document("linux", &json!({ "quick": true }));
        assert_eq!((&document["schema"], &document["command"]), (&json!(1), &json!("linux")));
        assert_eq!(document["settings"], json!({ "quick": true }));
        let rows = document["results"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        let ours = rows.iter().find(|row| row["design"] == "ours").unwrap();
        assert_eq!((&ours["workload"], &ours["unit"]), (&json!("linux"), &json!("ns")));
        assert_eq!((&ours["median"], &ours["samples"]), (&json!(3.0), &json!([4.0, 2.0])));
        assert_eq!((&ours["cpus"], &ours["params"]), (&json!(2), &json!({ "order": 0 })));
        let table = results.table(&["theirs", "ours", "other"]);
        assert!(!table.contains("other"), "it has no figure:\n{table}");
        assert!(table.contains("0.50"), "the least of ours by the least of theirs:\n{table}");
        assert_eq!(results.table(&[]).lines().count(), 2);
    }

    #[test]
    fn files_that_cannot_be_written_are_refused_before_anything_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let (new, there) = (folder.path().join("new.json"), folder.path().join("there.json"));
        fs::write(&there, "older").unwrap();
        for refused in ["/proc/x.json", "/no/such/folder/x.json", "/"] {
            assert!(open(Some(Path::new(refused))).is_err(), "{refused}");
        }
        assert!(open(Some(&folder.path().join("x").join("y"))).is_err());
        for path in [&new, &there] {
            let file = open(Some(path)).unwrap().unwrap();
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
            assert_eq!(fs::read_to_string(&there).unwrap(), "older");
            drop(file);
        }
        write(open(Some(&there)).unwrap().unwrap(), &json!({ "schema": 1 })).unwrap();
        assert_eq!(fs::read_to_string(&there).unwrap(), "{\"schema\":1}\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
