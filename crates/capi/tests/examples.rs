//! The example in Rust runs. `.ci/steps/c` runs those in C and C++.

use std::process::Command;

#[test]
fn examples_run() {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let output = Command::new(built.join("call_cost")).arg("10000").output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.lines().count() == 6, "{}\n{out}\n{err}", output.status);
}
