//! `examples/linux/glue/zone_shelf.c` as a program: threads over a small buddy allocator, without a
//! kernel to boot.

#[path = "../../../crates/core/tests/common/skip.rs"]
mod skip;

use std::path::Path;
use std::process::Command;

/// The status of a program that held, and whose threads got no real-time class.
const STATUS_UNTESTED: i32 = 77;

/// Compiles a program; what the compiler complains of, if it fails.
fn compile(flags: &[&str], source: &Path, program: &Path) -> Result<(), String> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-g", "-Wall", "-Werror", "-pthread"]);
    let output = gcc.args(flags).arg("-o").arg(program).arg(source).output().expect("gcc");
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said()) }
}

fn storm(name: &str, flags: &[&str], rounds: u32) {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zone_shelf/storm.c");
    if let Err(said) = compile(flags, &source, &program) {
        let empty = program.with_extension("c");
        std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
        assert!(compile(flags, &empty, &program).is_err(), "{said}");
        return skip::skip(format_args!("this gcc has not {flags:?}"));
    }
    let output = Command::new(&program).arg(rounds.to_string()).output().expect("the program");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(STATUS_UNTESTED) {
        return skip::skip(said.lines().next().unwrap_or_default());
    }
    assert!(output.status.success(), "{}: {said}", output.status);
}

#[test]
fn no_frame_is_lost_or_in_two_hands() {
    storm("zone_shelf", &["-O2"], 200_000);
}

#[test]
fn threads_share_nothing_unordered() {
    storm("zone_shelf_tsan", &["-O1", "-fsanitize=thread"], 3_000);
}

#[test]
fn a_thread_that_needs_what_a_lower_one_has_does_not_spin() {
    storm("zone_shelf_rt", &["-O2", "-D_GNU_SOURCE", "-DCONFIG_PREEMPT_RT"], 20_000);
}

#[test]
fn preempted_threads_share_nothing_unordered() {
    let flags = ["-O1", "-D_GNU_SOURCE", "-DCONFIG_PREEMPT_RT", "-fsanitize=thread"];
    storm("zone_shelf_rt_tsan", &flags, 2_000);
}
