//! The example runs, and says what it did.

#[path = "../../../crates/linux/tests/common/examples.rs"]
mod examples;
#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;

use std::process::Command;

#[test]
fn fixed_buffers_runs() {
    let output = Command::new(examples::example("fixed_buffers")).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && !out.is_empty(), "{}\n{out}\n{err}", output.status);
    if let Some(why) = out.lines().find(|line| line.starts_with("skipped")) {
        skip::skip(why);
    }
}
