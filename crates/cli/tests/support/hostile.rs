//! Running the command where files and readers misbehave. The file that includes this one names the
//! program and the folder of the shipped trace: `COMMAND`, `TRACES`.

#![allow(dead_code, reason = "each file that includes this one uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{COMMAND, TRACES};

pub fn pagedepot(arguments: &[&str]) -> Command {
    let mut command = Command::new(COMMAND);
    command.args(arguments).stderr(Stdio::piped());
    command
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The one line that refuses.
pub fn refused(mut command: Command) -> String {
    let output = command.output().unwrap();
    let line = stderr(&output);
    assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.starts_with("pagedepot"), "{line}");
    line.to_owned()
}

pub fn shipped() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(TRACES).join("build.perf.txt.zst")
}

pub fn results(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// Runs `command` with a stdout whose reading end is closed.
pub fn unread(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

/// A MiB of a trace, an event and long comments, compressed; hundreds of times smaller.
pub fn bomb() -> Vec<u8> {
    let event = " a 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0\n";
    let text = event.to_owned() + &format!("#{}\n", "x".repeat(60_000)).repeat(17);
    ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
}
