//! Examples run under valgrind, which has neither restartable sequences nor all system calls.

use std::process::Command;

use crate::files::example;
use crate::skip::skip;

/// Runs an example with arguments; fails if valgrind finds an error.
fn run(name: &str, arguments: &[&str]) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip(format_args!("valgrind is not installed, so {name} did not run under it"));
    }
    let output = Command::new("valgrind")
        .args(["-q", "--error-exitcode=9", "--fair-sched=yes"])
        .arg(example(name))
        .args(arguments)
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && !out.is_empty(), "{name}: {}\n{out}\n{err}", output.status);
}

#[test]
fn growable_column() {
    run("growable_column", &["500000"]);
}

#[test]
fn packet_ring() {
    run("packet_ring", &[]);
}

#[test]
fn buffer_pool() {
    run("buffer_pool", &[]);
}

#[test]
fn quiet_drain() {
    run("quiet_drain", &["20"]);
}
