//! The example runs, and says what it measured.

use std::process::Command;

#[test]
fn examples_run() {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let output = Command::new(built.join("vmap_pair")).arg("1").output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let figures = out.lines().filter(|line| line.ends_with(" ns")).count();
    assert!(output.status.success() && figures == 6, "{}\n{out}\n{err}", output.status);
}
