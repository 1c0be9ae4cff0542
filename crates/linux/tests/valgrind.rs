//! The examples run under valgrind, which has neither restartable sequences nor all system calls.

#[path = "common/examples.rs"]
mod examples;

use std::process::Command;

/// Runs an example with arguments; fails if valgrind finds an error.
fn run((name, arguments): (&str, &[&str])) {
    let output = Command::new("valgrind")
        .args(["-q", "--error-exitcode=9", "--fair-sched=yes"])
        .arg(examples::example(name))
        .args(arguments)
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && !out.is_empty(), "{name}: {}\n{out}\n{err}", output.status);
}

#[test]
fn examples_run_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED: valgrind is not installed, so no example ran under it");
        return;
    }
    let examples: [(&str, &[&str]); 4] = [
        ("growable_column", &["500000"]),
        ("packet_ring", &[]),
        ("buffer_pool", &[]),
        ("quiet_drain", &["20"]),
    ];
    examples.into_iter().for_each(run);
}
