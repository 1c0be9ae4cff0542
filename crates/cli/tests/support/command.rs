//! Running the command as scripts do, and what all of its results have in common. The file that
//! includes this one names the program: `COMMAND`.

#![allow(dead_code, reason = "each file that includes this one uses a part of it")]

use std::process::{Command, Output};

use serde_json::Value;

use super::COMMAND;
use crate::skip::skip;

/// Runs the command, with standard input at its end.
pub fn pagedepot(arguments: &[&str]) -> Output {
    Command::new(COMMAND).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line that refuses these arguments.
pub fn refused(arguments: &[&str]) -> String {
    let output = pagedepot(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    stderr.trim_end().to_owned()
}

/// The results of a run with two windows, or of fewer workloads where there is one CPU.
pub fn results(workload: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let mut arguments = workload.to_vec();
    arguments.extend(["--quick", "--runs", "2", "--seed", "7", "--json", file.to_str().unwrap()]);
    let output = pagedepot(&arguments);
    assert!(output.status.success(), "{workload:?}: {}", text(&output.stderr));
    assert!(text(&output.stdout).contains('─'), "{workload:?} shows a table");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Checks all cases side by side. A command sleeps before it measures, to look at the machine, and
/// between drains.
pub fn check_all<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            let check = &check;
            scope.spawn(move || check(case));
        }
    });
}

/// Whether there are two CPUs; otherwise a part of the test is skipped, which it says.
pub fn has_two_cpus() -> bool {
    let has_two = std::thread::available_parallelism().unwrap().get() >= 2;
    if !has_two {
        skip("there is one CPU");
    }
    has_two
}

/// Checks what all documents have in common; the names of metrics, in order.
pub fn check(document: &Value, command: &str) -> Vec<String> {
    assert_eq!(document["schema"], 1);
    assert_eq!(document["seed"], 7);
    assert_eq!(document["command"], command);
    for field in ["cpu", "kernel", "rustc"] {
        assert!(document["machine"][field].is_string(), "{field}");
    }
    for field in ["cpus", "memory_bytes", "page_bytes"] {
        assert!(document["machine"][field].as_u64().unwrap() > 0, "{field}");
    }
    let mut metrics = Vec::new();
    for row in document["results"].as_array().unwrap() {
        let keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected =
            ["workload", "design", "metric", "unit", "cpus", "params", "median", "samples"];
        expected.sort_unstable();
        assert_eq!(sorted(keys), expected);
        assert!(row["params"].as_object().unwrap().values().all(Value::is_number), "{row}");
        assert!(
            row["median"].is_number() && !row["samples"].as_array().unwrap().is_empty(),
            "{row}"
        );
        let metric = row["metric"].as_str().unwrap().to_owned();
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    check_single_cpu_first(document);
    metrics
}

pub fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}

pub fn check_single_cpu_first(document: &Value) {
    let rows = document["results"].as_array().unwrap();
    for (at, row) in rows.iter().enumerate().filter(|(_, row)| row["cpus"] == 1) {
        let larger = rows[..at]
            .iter()
            .find(|before| before["metric"] == row["metric"] && before["cpus"] != 1);
        assert!(larger.is_none(), "{row} comes after {larger:?}");
    }
}

pub fn rows<'d>(
    document: &'d Value,
    design: &'d str,
    metric: &'d str,
) -> impl Iterator<Item = &'d Value> {
    let rows = document["results"].as_array().unwrap().iter();
    rows.filter(move |row| row["design"] == design && row["metric"] == metric)
}

/// Checks that each of the threads' designs has rows: the command would fail if one lost a page.
pub fn check_threads(document: &Value, metric: &str, designs: &[&str]) {
    for design in designs {
        let row = rows(document, design, metric).next();
        assert_eq!(row.expect(design)["params"]["store"], 0, "{design}");
    }
}

/// Checks that options of `bench hot` are params of a design's rows.
pub fn check_params(options: &str, design: &str, param: &str, value: i64) {
    let arguments = ["bench", "hot", "--cpus", "1", "--design", design];
    let document = results(&arguments.into_iter().chain(options.split(' ')).collect::<Vec<_>>());
    let row = rows(&document, design, "pair_ns").next().unwrap();
    assert_eq!(row["params"][param], value, "{options}");
}
