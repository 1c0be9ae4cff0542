//! `pagedepot-lab simulate` as scripts and people use it. The model itself is tested in `lab/sim`.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use std::process::Command;

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagedepot-lab"));
    command.arg("simulate").args(arguments).env("NO_COLOR", "1").output().unwrap()
}

/// The one line that refuses these arguments.
fn refused(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    stderr
}

/// Rows of a short run: (design, metric, CPUs, value).
fn rows(arguments: &[&str], file: &Path) -> Vec<(String, String, u64, f64)> {
    let mut arguments = arguments.to_vec();
    arguments.extend(["--milliseconds", "0.05", "--warm-up", "0.05"]);
    arguments.extend(["--json", file.to_str().unwrap()]);
    let output = simulate(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(document["schema"], 1);
    let rows = document["results"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.map(|row| {
        assert_eq!(row["workload"], arguments[0]);
        let (design, metric) = (text(&row["design"]), text(&row["metric"]));
        (design, metric, row["cpus"].as_u64().unwrap(), row["median"].as_f64().unwrap())
    })
    .collect()
}

const METRICS: [&str; 5] =
    ["ops_per_s", "efficiency", "lock_wait_share", "events_per_host_s", "host_s"];

/// Designs without the policy have no variants by it.
#[test]
fn limits_of_designs_that_have_none_are_refused() {
    let hot = ["hot", "--cpus", "1", "--free-high", "high"];
    assert!(refused(&[&hot[..], &["--design", "zone-lock"]].concat()).contains("changes none"));
}

#[test]
fn a_window_in_which_no_operation_ends_is_told() {
    // CPUs begin one after another, and a process of 8192 pages takes longer than the window.
    let window = ["--warm-up", "0.01", "--milliseconds", "0.01"];
    let output =
        simulate(&[&["mass-exit", "--cpus", "4", "--design", "spin"][..], &window].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("No operation ended in the window: spin on 4."), "{said}");
    assert!(!["inf", "NaN", "waits for lines"].iter().any(|text| said.contains(text)), "{said}");
}

#[test]
fn each_design_has_its_rows_on_each_number_of_cpus() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("curve.json");
    let arguments = ["hot", "--cpus", "4,1", "--design", "depot", "--design", "zone-lock"];
    let rows = rows(&arguments, &file);
    let keys: Vec<_> = rows.iter().map(|(d, m, n, _)| (d.as_str(), m.as_str(), *n)).collect();
    for design in ["depot", "zone-lock"] {
        for cpus in [1, 4] {
            for metric in METRICS {
                assert!(keys.contains(&(design, metric, cpus)), "{design}, {metric}, {cpus}");
            }
        }
    }
    assert_eq!(keys.len(), 2 * 2 * METRICS.len());
    let of = |design, metric, cpus| {
        rows[keys.iter().position(|key| *key == (design, metric, cpus)).unwrap()].3
    };
    // Four CPUs that share nothing do four times the work; those that share a lock wait for it.
    assert!(of("depot", "efficiency", 4) > 0.9 && of("depot", "lock_wait_share", 4) == 0.0);
    assert!(of("zone-lock", "efficiency", 4) < 0.5 && of("zone-lock", "lock_wait_share", 4) > 0.3);
    assert!(of("depot", "ops_per_s", 1) > of("zone-lock", "ops_per_s", 1));
}

#[test]
fn drainers_say_how_many_drains_they_reached() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drains.json");
    let reached = |drainers: &str| {
        let run = ["touch", "--cpus", "4", "--design", "depot", "--full-drains"];
        let drains = ["--drains", "2000000", "--drainers", drainers];
        let rows = rows(&[&run[..], &drains].concat(), &file);
        rows.iter().find(|(_, metric, ..)| metric == "drains_per_s").unwrap().3
    };
    // Asked for is twice what four CPUs can drain.
    let (one, four) = (reached("1"), reached("4"));
    assert!(one > 0.0 && four > 2.0 * one && four < 2e6, "{one} and {four}");
    let table = simulate(&[
        "touch",
        "--cpus",
        "1",
        "--design",
        "depot",
        "--drains",
        "10000",
        "--milliseconds",
        "1",
        "--warm-up",
        "1",
    ]);
    assert!(String::from_utf8(table.stdout).unwrap().contains("drains/s"));
}

#[test]
fn topologies_come_from_files_and_mistakes_in_them_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let (file, json) = (directory.path().join("machine.json"), directory.path().join("out.json"));
    let name = file.to_str().unwrap();
    let run = ["hot", "--cpus", "1", "--design", "zone-lock", "--topology"];
    let with = |text: &str| {
        std::fs::write(&file, text).unwrap();
        [&run[..], &[name]].concat()
    };
    let ops_per_s = |arguments: &[&str]| rows(arguments, &json)[0].3;
    let fast = ops_per_s(&with(r#"{"rmw_ns": 5}"#));
    let slow = ops_per_s(&with(r#"{"rmw_ns": 50}"#));
    assert!(fast > 2.0 * slow, "{fast} and {slow}");
    for wrong in ["", "[]", r#"{"rmw": 5}"#, r#"{"rmw_ns": -1}"#, r#"{"complex_cpus": 0}"#, "\0"] {
        let line = refused(&with(wrong));
        assert!(line.contains(name) && line.contains("docs/simulate.md"), "{wrong}: {line}");
    }
    assert!(refused(&[&run[..], &["/no/such/file"]].concat()).contains("/no/such/file"));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let line = refused(&["producer-consumer", "--cpus", "3"]);
    assert!(line.contains("an even number instead of 3"), "{line}");
    assert!(refused(&["hot", "--design", "mimalloc"]).contains("no design mimalloc; there are"));
    assert!(refused(&["vmalloc", "--cpus", "1", "--drains", "10"]).contains("--drains is for"));
    for drainers in ["0", "257", "-1", "two"] {
        let line = refused(&["touch", "--drains", "10", "--drainers", drainers]);
        assert!(line.contains("at least 1, and at most 256"), "{drainers}: {line}");
    }
    assert!(refused(&["touch", "--drainers", "2"]).contains("--drains"));
    for cpus in ["0", "257", "", "1,,2", "-1", "two"] {
        let output = simulate(&["hot", "--cpus", cpus]);
        assert_eq!(output.status.code(), Some(2), "{cpus}");
    }
}
