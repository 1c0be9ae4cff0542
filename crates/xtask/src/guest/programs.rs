//! The programs of a guest, built here for its processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::CROSS;
use crate::tools;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The packages whose tests run.
const PACKAGES: [&str; 3] = ["pagedepot", "pagedepot-rseq", "pagedepot-linux"];

/// Programs that do not run in a guest, and why.
pub const LEFT_OUT: [(&str, &str); 8] = [
    ("pagedepot-layers", "reads the repository"),
    ("pagedepot-pairs", "reads the repository"),
    ("pagedepot-total_order", "reads the repository"),
    ("pagedepot-linux-layers", "reads the repository"),
    ("pagedepot-linux-pairs", "reads the repository"),
    ("pagedepot-linux-examples", "runs cargo"),
    ("pagedepot-linux-valgrind", "runs under valgrind"),
    ("pagedepot-linux-views_snapshots", "reads the repository"),
];

/// Programs of a quick run, with what is asked of them.
const QUICK: [(&str, &[&str]); 5] = [
    ("pagedepot-rseq-lib", &[]),
    ("pagedepot-rseq-sequence", &[]),
    ("pagedepot-linux-lib", &["sequences::"]),
    ("pagedepot-linux-depot", &[]),
    ("pagedepot-linux-instructions", &[]),
];

/// Arguments that build these, but for the instructions.
const QUICK_BUILD: [&str; 9] = [
    "-p",
    "pagedepot-rseq",
    "-p",
    "pagedepot-linux",
    "--lib",
    "--test",
    "sequence",
    "--test",
    "depot",
];

/// A program, and its arguments.
pub struct Program {
    pub name: String,
    pub file: PathBuf,
    pub arguments: Vec<String>,
}

/// A build of all programs.
pub struct Build<'b> {
    pub root: &'b Path,
    pub cache: &'b Path,
    pub quick: bool,
}

impl Build<'_> {
    /// Builds the programs, and strips them.
    pub fn programs(&self) -> Result<Vec<Program>> {
        eprintln!("building tests for {TARGET}");
        let mut programs = Vec::new();
        for (name, file) in self.tests()? {
            let quick = QUICK.iter().find(|(program, _)| *program == name);
            if self.quick && quick.is_none() || LEFT_OUT.iter().any(|(out, _)| *out == name) {
                continue;
            }
            let mut arguments = vec!["--test-threads=1".to_owned(), "--nocapture".to_owned()];
            if self.quick {
                arguments.extend(
                    quick.iter().flat_map(|(_, words)| words.iter().map(|word| (*word).to_owned())),
                );
            }
            programs.push(Program { file: self.strip(&name, &file)?, name, arguments });
        }
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(programs)
    }

    /// Tests by package and name, with their files. Instructions are counted in a program that is
    /// optimised as users build theirs.
    fn tests(&self) -> Result<Vec<(String, PathBuf)>> {
        let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
        let all: Vec<&str> = match self.quick {
            true => QUICK_BUILD.to_vec(),
            false => ["--lib", "--tests"].into_iter().chain(packages).collect(),
        };
        let counted = ["--release", "-p", "pagedepot-linux", "--test", "instructions"];
        let optimised = self.build(&counted)?;
        let mut tests = self.build(&all)?;
        tests.retain(|(name, _)| optimised.iter().all(|(other, _)| name != other));
        tests.extend(optimised);
        Ok(tests)
    }

    fn build(&self, what: &[&str]) -> Result<Vec<(String, PathBuf)>> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(self.root).args(["test", "--no-run"]).args(what);
        cargo.args(["--target", TARGET, "--target-dir"]).arg(self.cache);
        cargo.arg("--message-format=json-render-diagnostics");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", format!("{CROSS}gcc"));
        // Lines for backtraces would take a fifth of the time, and the memory of the machine.
        for profile in ["DEV", "TEST", "RELEASE"] {
            cargo.env(format!("CARGO_PROFILE_{profile}_DEBUG"), "0");
        }
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off");
        let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!(
                "cargo could not build the tests for {TARGET}; its standard library comes with \
                 `rustup target add {TARGET}`"
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| built(&serde_json::from_str(line).ok()?)).collect())
    }

    fn strip(&self, name: &str, file: &Path) -> Result<PathBuf> {
        let folder = tools::folder(self.cache.join("stripped"))?;
        let to = folder.join(name);
        let mut strip = Command::new(format!("{CROSS}strip"));
        tools::run(strip.arg("-o").arg(&to).arg(file), &self.cache.join("strip.log"))?;
        Ok(to)
    }
}

/// The test that a message of cargo tells of: by package and name, with its file.
fn built(message: &serde_json::Value) -> Option<(String, PathBuf)> {
    if message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let package = message["manifest_path"].as_str()?.strip_suffix("/Cargo.toml")?;
    let package = match package.rsplit('/').next()? {
        "core" => "pagedepot".to_owned(),
        folder => format!("pagedepot-{folder}"),
    };
    let is_lib = message["target"]["kind"][0] == "lib";
    let name = if is_lib { "lib" } else { message["target"]["name"].as_str()? };
    Some((format!("{package}-{name}"), file))
}

/// Compiles the machine's first program.
pub fn init(cache: &Path) -> Result<PathBuf> {
    let source = cache.join("init.c");
    fs::write(&source, include_str!("init.c"))?;
    let program = cache.join("init");
    let mut compiler = Command::new(format!("{CROSS}gcc"));
    compiler.args(["-O2", "-Wall", "-Wextra", "-static", "-o"]).arg(&program).arg(&source);
    tools::run(&mut compiler, &cache.join("cc.log"))
        .context("a static program needs the C library's archive (libc6-dev-arm64-cross)")?;
    Ok(program)
}

/// The C library's files that tests load.
pub fn libraries() -> Result<Vec<PathBuf>> {
    ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"]
        .into_iter()
        .map(|name| {
            let mut compiler = Command::new(format!("{CROSS}gcc"));
            let found = tools::output(compiler.arg(format!("-print-file-name={name}")))?;
            let path = PathBuf::from(found.trim());
            // Without a folder: it knows of no such file.
            match path.is_absolute() {
                true => Ok(path),
                false => bail!("the cross compiler has no {name}: install libc6-arm64-cross"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_are_named_by_package() {
        let message = |folder: &str, kind: &str, name: &str, test: bool| {
            json!({
                "manifest_path": format!("/a/crates/{folder}/Cargo.toml"),
                "target": { "kind": [kind], "name": name },
                "profile": { "test": test },
                "executable": "/a/b",
            })
        };
        let name = |message| built(&message).map(|(name, _)| name);
        assert_eq!(name(message("core", "lib", "pagedepot", true)).unwrap(), "pagedepot-lib");
        assert_eq!(name(message("linux", "test", "depot", true)).unwrap(), "pagedepot-linux-depot");
        assert_eq!(name(message("linux", "test", "depot", false)), None);
    }
}
