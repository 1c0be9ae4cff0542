//! What was measured, as the lab's JSON and as a table.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::tools;

/// Which pages, and by which means: what tells a figure's row from another.
type Key = (String, BTreeMap<String, i64>, u32, &'static str);

/// Figures of all boots.
#[derive(Default)]
pub struct Results {
    rows: BTreeMap<Key, Vec<f64>>,
}

/// The designs, in the order of tables.
pub const STOCK: &str = "linux-stock";
/// Linux with its per-CPU lists in the library.
pub const DEPOT: &str = "linux-depot";
/// Linux's own lists, drained by a work item on every CPU, as it was before 6.0.
pub const WORK: &str = "linux-work";

impl Results {
    /// Adds a sample of what a machine with `cpus` CPUs said.
    pub fn add(
        &mut self,
        design: &'static str,
        cpus: u32,
        metric: &str,
        mut params: BTreeMap<String, i64>,
        value: f64,
    ) {
        let (metric, design) = match metric {
            "drain_quiet_ns" | "drain_full_ns" | "drain_work_ns" => {
                params.insert("full".to_owned(), i64::from(metric != "drain_quiet_ns"));
                let by_work = metric == "drain_work_ns";
                // By work, the lists are what they are: one design, whichever was booted.
                if by_work && design != STOCK {
                    return;
                }
                ("drain_ns", if by_work { WORK } else { design })
            }
            "isolated_interrupts" => {
                params.remove("drains");
                match params.get("mode") {
                    Some(2) if design == STOCK => {
                        params.insert("mode".to_owned(), 1);
                        (metric, WORK)
                    }
                    Some(2) => return,
                    _ => (metric, design),
                }
            }
            "depot" | "cpus" => return,
            _ => (metric, design),
        };
        self.rows.entry((metric.to_owned(), params, cpus, design)).or_default().push(value);
    }

    /// The document that `pagedepot compare` reads.
    pub fn document(&self, quick: bool, kernels: &BTreeMap<&str, String>) -> Value {
        let results: Vec<Value> = self
            .rows
            .iter()
            .map(|((metric, params, cpus, design), samples)| {
                json!({
                    "workload": "linux", "design": design, "metric": metric, "unit": unit(metric),
                    "cpus": cpus, "params": params, "median": median(samples), "samples": samples,
                })
            })
            .collect();
        json!({
            "schema": 1, "machine": machine(), "command": "linux", "seed": 0,
            "settings": { "quick": quick, "kernels": kernels }, "results": results,
        })
    }

    /// A line for each metric, with the least of each design: the host's other work only adds.
    pub fn table(&self) -> String {
        let mut lines: BTreeMap<(&str, u32, String), BTreeMap<&str, f64>> = BTreeMap::new();
        for ((metric, params, cpus, design), samples) in &self.rows {
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let params: Vec<_> =
                params.iter().map(|(name, value)| format!("{name}={value}")).collect();
            lines.entry((metric, *cpus, params.join(" "))).or_default().insert(design, least);
        }
        let mut table = format!(
            "{:<22} {:>4}  {:<30} {STOCK:>11} {DEPOT:>11} {WORK:>11} {:>7}\n",
            "metric", "cpus", "", "ratio"
        );
        for ((metric, cpus, params), designs) in lines {
            let cell =
                |design| designs.get(design).map_or("-".to_owned(), |value| format!("{value:.1}"));
            let ratio = match (designs.get(DEPOT), designs.get(STOCK)) {
                (Some(ours), Some(stock)) if *stock > 0.0 => format!("{:.2}", ours / stock),
                _ => String::new(),
            };
            table += &format!(
                "{metric:<22} {cpus:>4}  {params:<30} {:>11} {:>11} {:>11} {ratio:>7}\n",
                cell(STOCK),
                cell(DEPOT),
                cell(WORK)
            );
        }
        table
    }
}

fn unit(metric: &str) -> &'static str {
    match metric.rsplit('_').next() {
        Some("ns") => "ns",
        Some("pages") => "pages",
        Some("instructions") => "instructions",
        Some("interrupts") => "interrupts",
        _ => "",
    }
}

fn median(samples: &[f64]) -> f64 {
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

/// Writes the document beside its place, then moves it there: an older one stays until then.
pub fn write(path: &Path, document: &Value) -> Result<()> {
    let text = format!("{document}\n");
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn rows_have_the_names_that_scripts_read() {
        let mut results = Results::default();
        for (design, metric, given) in [
            (STOCK, "pair_ns", params(&[("order", 0)])),
            (DEPOT, "pair_ns", params(&[("order", 0)])),
            (DEPOT, "drain_quiet_ns", params(&[])),
            (STOCK, "drain_work_ns", params(&[])),
            (DEPOT, "drain_work_ns", params(&[])),
            (STOCK, "isolated_interrupts", params(&[("mode", 2), ("busy", 1), ("drains", 100)])),
            (STOCK, "cpus", params(&[])),
        ] {
            results.add(design, 2, metric, given, 4.0);
        }
        results.add(DEPOT, 2, "pair_ns", params(&[("order", 0)]), 2.0);
        let document = results.document(true, &BTreeMap::from([("um", "7.2".to_owned())]));
        assert_eq!(document["schema"], 1);
        let rows = document["results"].as_array().unwrap();
        let find = |design: &str, metric: &str| -> Vec<_> {
            let is_it = |row: &&Value| row["design"] == design && row["metric"] == metric;
            rows.iter().filter(is_it).cloned().collect()
        };
        assert_eq!(rows.len(), 5);
        assert_eq!(find(DEPOT, "pair_ns")[0]["samples"], json!([4.0, 2.0]));
        assert_eq!(find(DEPOT, "pair_ns")[0]["median"], 3.0);
        assert_eq!(find(DEPOT, "drain_ns")[0]["params"], json!({ "full": 0 }));
        assert_eq!(find(WORK, "drain_ns")[0]["params"], json!({ "full": 1 }));
        assert_eq!(find(WORK, "isolated_interrupts")[0]["params"], json!({ "mode": 1, "busy": 1 }));
        let table = results.table();
        assert!(table.contains("0.50"), "the least of ours by the least of stock's:\n{table}");
    }
}
