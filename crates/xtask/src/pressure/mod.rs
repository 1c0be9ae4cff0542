//! The monitor of memory pressure in a kernel with cgroups of version 2 and PSI, and huge pages
//! that are set aside, which hosts often lack: Debian's Linux 6.1, as it is, under QEMU, with tests
//! of `crates/linux` as its only programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::archive::{Archive, BOOKWORM};
use crate::boot::{Boot, ConsoleLine};
use crate::cpio::Cpio;
use crate::machine::{self, Arch};
use crate::tools;

/// The package that depends on the newest kernel of the release.
const PACKAGE: &str = "linux-image-amd64";
/// The tests that run in the machine: programs, and parts of the names of their tests.
const TESTS: [(&str, &str); 3] =
    [("cgroup", ""), ("depot", "set_aside"), ("memory", "counts_no_huge_pages")];
const TIMEOUT: Duration = Duration::from_secs(900);

/// Options of `cargo xtask pressure`.
#[derive(Debug, Args)]
pub struct Options {
    /// Fetch the kernel, print where it is, and boot none; the exit code is 3 when Debian's archive
    /// cannot be had
    #[arg(long, conflicts_with = "kernel")]
    fetch: bool,
    /// Boot this kernel, and fetch none: a bzImage with memory cgroups and PSI
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
}

/// Fetches, builds, boots; fails when a test does.
///
/// # Errors
/// When something is missing, cannot be fetched or built, or when a test fails in the machine.
pub fn run(options: &Options) -> Result<()> {
    machine::check_installed(Arch::X86_64)?;
    let root = &tools::root()?;
    let cache = tools::build_folder(root, "pressure")?;
    let kernel = match &options.kernel {
        Some(kernel) => kernel.clone(),
        None => kernel(&cache)?,
    };
    if options.fetch {
        println!("{}", kernel.display());
        return Ok(());
    }
    let files = cache.join("files.cpio");
    fs::write(&files, pack(&init(root, &cache)?, &build(root)?)?)?;
    let (log, mut figures) = (cache.join("console"), Vec::new());
    let boot = Boot {
        command: command(&kernel, &files),
        what: "the machine",
        is_fault,
        log: &log,
        timeout: TIMEOUT,
    };
    eprintln!("booting {}", kernel.display());
    boot.run(|said| match said {
        ConsoleLine::Figure { metric, value, .. } => figures.push((metric, value)),
        ConsoleLine::Begin(test) => eprintln!("  {test}"),
        ConsoleLine::Untested(what) => eprintln!("  NOT TESTED: {what}"),
        ConsoleLine::Check { .. } | ConsoleLine::Done => {}
    })?;
    ensure!(!figures.is_empty(), "the tests told no figures; the console is in {}", log.display());
    for (metric, value) in figures {
        println!("{metric:<28} {value:>8}");
    }
    Ok(())
}

/// The release's newest kernel.
fn kernel(cache: &Path) -> Result<PathBuf> {
    eprintln!("reading the archive's lists");
    let archive = Archive::open(cache, &BOOKWORM)?;
    let package = archive.dependency(PACKAGE, "linux-image-")?;
    let version = archive.version(&package)?;
    let at = cache.join(format!("{package}_{version}"));
    let kernel = at.join("vmlinuz");
    if !kernel.exists() {
        eprintln!("fetching {package} {version}");
        let file = archive.fetch(cache, &package, &version)?;
        let name = package.trim_start_matches("linux-image-");
        let unpack = format!(
            "dpkg-deb --fsys-tarfile \"$1\" | tar xO ./boot/vmlinuz-{name} >\"$2\"/vmlinuz"
        );
        archive.unpack(&unpack, &file, &at)?;
    }
    Ok(kernel)
}

/// Compiles the machine's first program.
fn init(root: &Path, cache: &Path) -> Result<PathBuf> {
    let program = cache.join("init");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Wextra", "-static", "-o"]).arg(&program);
    compiler.arg(root.join("crates/xtask/src/pressure/init.c"));
    tools::run(&mut compiler, &cache.join("cc.log"))
        .context("a static program needs the C library's archive (libc6-dev)")?;
    Ok(program)
}

/// Builds the tests as `cargo test --workspace` does, so that they are built once. Returns their
/// programs.
fn build(root: &Path) -> Result<Vec<PathBuf>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["test", "--workspace", "--no-run"]);
    cargo.args(TESTS.iter().flat_map(|(test, _)| ["--test", test]));
    cargo.arg("--message-format=json-render-diagnostics");
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo could not build the tests");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let program = |(test, filter): &(&str, &str)| {
        let is_it = |message: &&serde_json::Value| {
            message["target"]["name"] == *test && message["profile"]["test"] == true
        };
        let found = messages.iter().filter(is_it).find_map(|one| one["executable"].as_str());
        let program = PathBuf::from(found.with_context(|| format!("cargo built no test {test}"))?);
        let tests = tools::output(Command::new(&program).args(["--list", filter]))?;
        ensure!(tests.contains(": test"), "the test {test} has none with {filter} in its name");
        Ok(program)
    };
    TESTS.iter().map(program).collect()
}

/// The files that the machine begins with.
fn pack(init: &Path, tests: &[PathBuf]) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("no {}", path.display()));
    let mut cpio = Cpio::default();
    for folder in ["/dev", "/proc", "/sys", "/tmp"] {
        cpio.folder(folder);
    }
    for (device, numbers) in [("console", (5, 1)), ("null", (1, 3)), ("urandom", (1, 9))] {
        cpio.device(&format!("/dev/{device}"), numbers);
    }
    cpio.program("/init", &read(init)?);
    let mut libraries = BTreeSet::new();
    for (file, (test, filter)) in tests.iter().zip(TESTS) {
        let name = format!("/tests/{test}.{filter}");
        cpio.program(name.trim_end_matches('.'), &read(file)?);
        let needed = tools::output(Command::new("ldd").arg(file))?;
        libraries.extend(needed.lines().filter_map(library).map(str::to_owned));
    }
    for library in libraries {
        cpio.program(&library, &read(Path::new(&library))?);
    }
    Ok(cpio.end())
}

/// The file in a line of ldd.
fn library(line: &str) -> Option<&str> {
    let path = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
    path.split(' ').next().filter(|path| path.starts_with('/'))
}

fn command(kernel: &Path, files: &Path) -> Command {
    let mut command = Command::new(Arch::X86_64.qemu());
    command
        .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
        .args(["-machine", "q35", "-cpu", "max", "-accel", "tcg,thread=multi"])
        .args(["-smp", "2", "-m", "768", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(files)
        .args(["-append", "console=ttyS0 quiet psi=1 panic=-1 rcupdate.rcu_cpu_stall_timeout=300"]);
    command
}

/// Words of a kernel at fault. That a cgroup runs out of memory is what a test wants.
fn is_fault(line: &str) -> bool {
    ["Kernel panic", "BUG:", "Oops", "general protection"].iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found() {
        let lines = "\tlinux-vdso.so.1 (0x00007ffc)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\
            \tlibnone.so => not found\n";
        let found: Vec<_> = lines.lines().filter_map(library).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
