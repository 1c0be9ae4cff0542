//! Every example runs, and says what it did. Some run under valgrind, too, which has neither
//! restartable sequences nor all system calls.

#[path = "common/examples.rs"]
mod examples;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Programs, and the arguments that make them short.
const PROGRAMS: [(&str, &[&str]); 13] = [
    ("batches", &["10000"]),
    ("buffer_pool", &[]),
    ("call_sites", &["1000"]),
    ("growable_column", &[]),
    ("grown_again", &["32", "64", "2"]),
    ("healing_pool", &[]),
    ("large_frames", &["1000"]),
    ("monitored", &[]),
    ("packet_path", &["500"]),
    ("packet_ring", &[]),
    ("quiet_drain", &["20"]),
    ("watched", &["1000"]),
    ("write_back", &[]),
];

/// Programs that run under valgrind, and their arguments.
const UNDER_VALGRIND: [(&str, &[&str]); 4] = [
    ("growable_column", &["500000"]),
    ("packet_ring", &[]),
    ("buffer_pool", &[]),
    ("quiet_drain", &["20"]),
];

/// Runs a command for an example; fails unless it succeeds and says something. Returns its output.
fn run(name: &str, command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && !out.is_empty(), "{name}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

#[test]
fn examples_run() {
    for (name, arguments) in PROGRAMS {
        let out = run(name, Command::new(examples::example(name)).args(arguments));
        if let Some(why) = out.lines().find(|line| line.starts_with("skipped")) {
            eprintln!("SKIPPED: {name}: {why}");
        }
    }
}

/// Fails if valgrind finds an error.
#[test]
fn examples_run_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED: valgrind is not installed, so no example ran under it");
        return;
    }
    for (name, arguments) in UNDER_VALGRIND {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--error-exitcode=9", "--fair-sched=yes"]);
        run(name, valgrind.arg(examples::example(name)).args(arguments));
    }
}

/// A new example is added above. `shared_object` is loaded by `tests/unload.rs`.
#[test]
fn no_example_is_missing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let name = |entry: std::fs::DirEntry| entry.path().file_stem()?.to_str().map(str::to_owned);
    let there: BTreeSet<String> =
        std::fs::read_dir(folder).unwrap().filter_map(|entry| name(entry.unwrap())).collect();
    let run = PROGRAMS.iter().map(|&(name, _)| name).chain(["shared_object"]).map(str::to_owned);
    assert_eq!(there, run.collect());
}
