//! Recording. What needs permissions is skipped where they are missing, and says so.

use std::io::Write;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn pagedepot() -> Command {
    Command::cargo_bin("pagedepot").unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line that refuses.
fn refused(output: &Output) -> &str {
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    stderr
}

/// Says so where it is seen although the test passes: only the print macros are captured.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED, because this process may not record: {}", why.trim_end());
}

/// Records a command that allocates a few thousand pages, and replays it; `None` where this process
/// may not record.
fn record(with: &str, directory: &Path) -> Option<()> {
    let name = directory.join("sort run");
    let command = ["sh", "-c", "head -c 16000000 /dev/zero | sort | wc -c; exit 3"];
    let mut record = pagedepot();
    record.args(["record", "--with", with, "-o"]).arg(&name).arg("--").args(command);
    let output = record.output().unwrap();
    if output.status.code() == Some(2) {
        skipped(refused(&output));
        return None;
    }
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("16000001\n") || said.starts_with("16000000\n"), "{said}");
    assert!(said.contains("the command exited with 3") && said.contains(with), "{said}");
    let file = |ending: &str| directory.join(format!("sort run.{ending}"));
    let machine: Value = serde_json::from_slice(&std::fs::read(file("machine.json")).unwrap()).unwrap();
    assert_eq!((&machine["status"], &machine["command"][0]), (&3.into(), &"sh".into()));
    assert!(machine["machine"]["kernel"].is_string() && machine["lost_samples"].is_u64());
    // Nothing else is left behind.
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 4);

    let json = directory.join("replay.json");
    let trace = file("perf.txt.zst");
    let mut replay = pagedepot();
    replay.args(["replay", "--quick", "--design", "spin", "--design", "kernel", "--json"]).arg(&json);
    let output = replay.arg(trace).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let rows = document["results"].as_array().unwrap();
    let of = |design: &str, metric: &str| -> f64 {
        let its = rows.iter().filter(|row| row["design"] == design && row["metric"] == metric);
        its.map(|row| row["median"].as_f64().unwrap()).sum()
    };
    assert!(of("spin", "allocs") > 1000.0 && of("spin", "lost_frames") == 0.0);
    assert!(of("kernel", "cached_pages") > 0.0, "zoneinfo from after the command");
    Some(())
}

#[test]
fn perf_records_what_replays() {
    record("perf", tempfile::tempdir().unwrap().path());
}

#[test]
fn tracefs_records_what_replays() {
    record("tracefs", tempfile::tempdir().unwrap().path());
}

#[test]
fn what_is_missing_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().join("x");
    let mut record = pagedepot();
    record.env("PATH", "/nonexistent").args(["record", "--with", "perf", "-o"]).arg(&name);
    let output = record.args(["--", "true"]).output().unwrap();
    let line = refused(&output);
    assert!(line.contains("perf: not installed"), "{line}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn places_that_cannot_be_written_are_refused_before_anything_runs() {
    let output = pagedepot().args(["record", "-o", "/no/such/place/x", "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("/no/such/place/x.perf.txt.zst"));
}

#[test]
fn commands_that_do_not_exist_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut record = pagedepot();
    record.args(["record", "-o"]).arg(directory.path().join("x")).args(["--", "/no/such/command"]);
    let output = record.output().unwrap();
    let line = refused(&output);
    if line.contains("cannot record") {
        skipped(line);
        return;
    }
    assert!(line.contains("cannot run /no/such/command"), "{line}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}
