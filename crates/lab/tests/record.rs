//! Recording. What needs permissions is skipped where they are missing, and says so.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

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
    assert!(refused(&output).contains("cannot write /no/such/place/x."));
    let directory = tempfile::tempdir().unwrap();
    let name = format!("{}/", directory.path().display());
    let output = pagedepot().args(["record", "-o", &name, "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("give -o a name in it"));
    std::fs::create_dir(directory.path().join("x.machine.json")).unwrap();
    let output = pagedepot().args(["record", "-o", &format!("{name}x"), "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("x.machine.json is a directory"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
}

/// Ctrl-C ends the command; what was recorded until then is kept, and no trace instance stays behind.
#[test]
fn interrupted_commands_are_recorded() {
    for with in ["tracefs", "perf"] {
        let directory = tempfile::tempdir().unwrap();
        let (name, ready) = (directory.path().join("x"), directory.path().join("ready"));
        let script = format!("head -c 16000000 /dev/zero | sort | wc -c; > '{}'; sleep 60", ready.display());
        let mut record = std::process::Command::new(assert_cmd::cargo::cargo_bin("pagedepot"));
        record.args(["record", "--with", with, "-o"]).arg(&name).args(["--", "sh", "-c", &script]);
        record.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = record.spawn().unwrap();
        while !ready.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        if child.try_wait().unwrap().is_none() {
            let group = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if output.status.code() == Some(2) {
            skipped(refused(&output));
            continue;
        }
        let said = text(&output.stdout);
        assert!(output.status.success(), "{with}: {said}{}", text(&output.stderr));
        assert!(said.contains("the command was ended by signal 2"), "{with}: {said}");
        std::fs::remove_file(&ready).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4, "{with}: nothing else is left");
    }
}

#[test]
fn commands_that_do_not_exist_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let earlier = directory.path().join("x.perf.txt.zst");
    std::fs::write(&earlier, "an earlier recording").unwrap();
    let mut record = pagedepot();
    record.args(["record", "-o"]).arg(directory.path().join("x")).args(["--", "/no/such/command"]);
    let output = record.output().unwrap();
    let line = refused(&output);
    if line.contains("cannot record") {
        skipped(line);
        return;
    }
    assert!(line.contains("cannot run /no/such/command"), "{line}");
    assert_eq!(std::fs::read(earlier).unwrap(), b"an earlier recording");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left behind");
}
