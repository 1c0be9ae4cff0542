//! A build, recorded: `make` of a generated program under `pagedepot-lab record`.
//!
//! The recorder runs as a process of its own, as it is: it blocks signals and takes descriptors
//! that a measurement has other uses for.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use super::generate;
use pagedepot_cli::replay::Plan;
use pagedepot_trace::ExpandLimit;

/// Runs the build and writes what the shell and its children took; $1 is the number of jobs, $2
/// the directory.
const SCRIPT: &str = r#"make -s -j "$1" -C "$2"; status=$?; times >"$2/times"; exit "$status""#;

/// A build that was recorded.
pub struct Build {
    pub plan: Plan,
    pub elapsed_s: f64,
    pub user_s: f64,
    pub system_s: f64,
}

/// Builds a program of so many files with so many jobs, and records it.
///
/// # Errors
/// Says why there is no recording.
pub fn record(files: u32, jobs: usize, seed: u64) -> Result<Build, String> {
    for needed in ["make", "cc"] {
        if !is_in_path(needed) {
            return Err(format!("{needed} is not installed"));
        }
    }
    let directory = tempfile::tempdir().map_err(|error| format!("no temporary files: {error}"))?;
    let at = directory.path();
    generate::write(at, files, seed).map_err(|error| format!("no temporary files: {error}"))?;
    let name = at.join("build");
    let own = env::current_exe().map_err(|error| format!("cannot find this command: {error}"))?;
    let jobs = jobs.to_string();
    let command = ["sh", "-c", SCRIPT, "sh", &jobs].map(OsStr::new);
    let ran = Command::new(own)
        .args([OsStr::new("record"), OsStr::new("-o"), name.as_os_str(), OsStr::new("--")])
        .args(command)
        .arg(at)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run this command again: {error}"))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let line = said.lines().last().unwrap_or_default();
        let line = line.strip_prefix("pagedepot: ").unwrap_or(line);
        return Err(format!("the recording failed ({}): {line}", ran.status));
    }
    read(at, &name, files)
}

/// Reads what the recording left.
fn read(at: &Path, name: &Path, files: u32) -> Result<Build, String> {
    let text = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("no {}: {error}", path.display()))
    };
    let machine = text(&name.with_extension("machine.json"))?;
    let machine: serde_json::Value =
        serde_json::from_str(&machine).map_err(|error| error.to_string())?;
    let elapsed_s = machine["seconds"].as_f64().ok_or("the recording has no time")?;
    let [user_s, system_s] =
        children(&text(&at.join("times"))?).ok_or("the shell's `times` is odd")?;
    let trace = name.with_extension("perf.txt.zst");
    let mut plan = Plan::load(&trace, None, ExpandLimit::default()).map_err(|e| e.to_string())?;
    plan.name = format!("a build of {files} files");
    Ok(Build { plan, elapsed_s, user_s, system_s })
}

/// User and system seconds of the children, from what the shell's `times` wrote: `0m0.01s 0m0.00s`
/// of the shell itself, and a line of its children.
fn children(times: &str) -> Option<[f64; 2]> {
    let seconds = |time: &str| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let mut times = times.lines().nth(1)?.split_whitespace().map(seconds);
    Some([times.next()??, times.next()??])
}

fn is_in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_children_are_read() {
        assert_eq!(children("0m0.00s 0m0.00s\n1m2.50s 0m0.25s\n"), Some([62.5, 0.25]));
        for odd in ["", "0m0.00s 0m0.00s\n", "a\nb c\n", "0m0s 0m0s\n1m2.5s\n"] {
            assert_eq!(children(odd), None, "{odd}");
        }
    }
}
