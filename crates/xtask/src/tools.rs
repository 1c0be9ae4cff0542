//! Programs of the host, run with their output in a log, and files.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// Runs `command` to its end with its output appended to `log`; an error quotes the log's last
/// lines.
pub fn run(command: &mut Command, log: &Path) -> Result<()> {
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .status()
        .map_err(|error| cannot_run(command, error))?;
    if !status.success() {
        bail!("{} ended with {status}; {} ends:\n{}", shown(command), log.display(), tail(log));
    }
    Ok(())
}

/// Runs `command` and returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| cannot_run(command, error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", shown(command), output.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn cannot_run(command: &Command, error: std::io::Error) -> anyhow::Error {
    let name = command.get_program().display();
    match error.kind() {
        ErrorKind::NotFound => anyhow!("{name} is not installed"),
        _ => anyhow!(error).context(format!("cannot run {name}")),
    }
}

/// The program and what it was first told.
fn shown(command: &Command) -> String {
    let words: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let mut shown = words.join(" ");
    if let Some((at, _)) = shown.char_indices().nth(160) {
        shown.truncate(at);
        shown += " ...";
    }
    shown
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Creates a folder and those above it.
pub fn folder(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Writes a file if its contents would change, so that what is built from it stays.
pub fn write_if_changed(path: &Path, contents: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|now| now == contents) {
        return Ok(());
    }
    fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

/// The repository that `cargo run` is called in: clones may share a build directory, and this
/// binary.
pub fn root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&package).ancestors().nth(2).context("the repository has a root")?;
    Ok(root.to_owned())
}

/// A folder of what is built and of logs; absolute, because commands run in other folders.
pub fn build_folder(root: &Path, name: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    folder(std::path::absolute(target)?.join(name))
}
