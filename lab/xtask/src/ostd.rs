//! Kernels on the crate `ostd`: with our frame allocator and with OSDK's, booted, tested and
//! compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;

use xtask::boot::{Boot, ConsoleLine};
use xtask::machine::{self, Arch};
use xtask::results::{self, Results};
use xtask::tools;

/// The designs, in the order of tables; each is a kernel of this name.
const OSDK: &str = "osdk";
const DEPOT: &str = "depot";
const TARGET: &str = "x86_64-unknown-none";
/// Place and value of the machine in an ELF header: QEMU loads kernels by multiboot only if they
/// say that they are for the 386.
const MACHINE_AT: usize = 18;
const MACHINE_386: u8 = 3;

/// Options of `cargo xtask ostd`.
#[derive(Debug, Args)]
pub struct Options {
    /// Fewer rounds: 20 instead of 10,000
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Write the figures to FILE, for `pagedepot-lab compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds in which four CPUs allocate all memory and free it in random order
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    rounds: u64,
    /// The seed of the rounds' random numbers
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(0..1 << 32),
    )]
    seed: u64,
}

/// Longest time between two lines of a machine: 50 rounds take a minute on a busy host.
const SILENCE: Duration = Duration::from_secs(300);

/// A machine that is booted once.
struct Machine {
    design: &'static str,
    cpus: u32,
    memory_mib: u32,
    /// Whether its clock counts instructions.
    counts: bool,
    /// The kernel's command line.
    words: String,
}

/// Builds, boots, tests and compares.
pub fn run(options: &Options) -> Result<()> {
    let json = results::open(options.json.as_deref())?;
    machine::check_installed(Arch::X86_64)?;
    let root = tools::root()?;
    let folder = tools::build_folder(&root, "ostd")?;
    let channel = toolchain(&root.join("examples/ostd"), &folder)?;
    eprintln!("building examples/ostd with {channel}");
    build(&root.join("examples/ostd"), &channel, &folder)?;
    let rounds = if options.quick { 20 } else { options.rounds };
    let mut results = Results::default();
    let mut failed = Vec::new();
    for machine in machines(rounds, options.seed) {
        // What fails is told at the end, and the others are booted nevertheless.
        if let Err(error) = machine.run(&folder, &mut results) {
            eprintln!("{error:#}");
            failed.push(machine.name());
        }
    }
    print!("{}", results.table(&[OSDK, DEPOT]));
    if let Some(file) = json {
        let settings = json!({
            "quick": options.quick, "rounds": rounds, "seed": options.seed, "toolchain": channel,
        });
        results::write(file, &results.document("ostd", &settings))?;
    }
    ensure!(failed.is_empty(), "these failed, see above: {}", failed.join(", "));
    Ok(())
}

/// The pinned toolchain, which is installed if it is missing.
fn toolchain(package: &Path, folder: &Path) -> Result<String> {
    let file = package.join("rust-toolchain.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
    let channel = channel(&text).with_context(|| format!("no channel in {}", file.display()))?;
    if tools::output(rustup().args(["run", channel, "rustc", "--version"])).is_err() {
        eprintln!("installing {channel}");
        let mut install = rustup();
        install.args(["toolchain", "install", channel, "--profile", "minimal", "--target", TARGET]);
        tools::run(&mut install, &folder.join("log")).with_context(|| {
            format!("OSTD needs {channel}: rustup toolchain install {channel} --target {TARGET}")
        })?;
    }
    Ok(channel.to_owned())
}

fn channel(text: &str) -> Option<&str> {
    text.lines().find(|line| line.starts_with("channel"))?.split('"').nth(1)
}

/// Makes a `rustup` command without the variables that the toolchain of this program has set for
/// itself.
fn rustup() -> Command {
    let mut rustup = Command::new("rustup");
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        rustup.env_remove(name);
    }
    rustup
}

fn build(package: &Path, channel: &str, folder: &Path) -> Result<()> {
    let mut cargo = rustup();
    cargo
        .current_dir(package)
        .args(["run", channel, "cargo", "build", "--release", "--locked", "--target-dir"])
        .arg(folder);
    tools::run(&mut cargo, &folder.join("log")).context("examples/ostd does not build")?;
    for design in [OSDK, DEPOT] {
        let built = folder.join(TARGET).join("release").join(design);
        let mut image =
            fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
        ensure!(image.starts_with(b"\x7fELF"), "{} is no ELF file", built.display());
        image[MACHINE_AT] = MACHINE_386;
        tools::write_if_changed(&folder.join(design), &image)?;
    }
    Ok(())
}

/// The comparison, each design in turn; then the tests of ours.
fn machines(rounds: u64, seed: u64) -> Vec<Machine> {
    let machine = |design, cpus, words: &str| Machine {
        design,
        cpus,
        memory_mib: 256,
        counts: words == "run=counts",
        words: words.to_owned(),
    };
    let mut machines = Vec::new();
    for (cpus, words) in [(1, "run=counts"), (1, "run=refill"), (4, "run=refill")] {
        machines.extend([OSDK, DEPOT].map(|design| machine(design, cpus, words)));
    }
    machines.push(machine(DEPOT, 1, "run=edges"));
    machines.push(Machine {
        // Little memory: a round is short, and every round reaches the last page.
        memory_mib: 64,
        ..machine(DEPOT, 4, &format!("run=rounds rounds={rounds} seed={seed}"))
    });
    machines
}

impl Machine {
    /// Name of the machine in messages and logs.
    fn name(&self) -> String {
        let scenario = self.words.split([' ', '=']).nth(1).unwrap_or_default();
        format!("{}-{scenario}-{}cpus", self.design, self.cpus)
    }

    /// Boots it, and adds what it says.
    fn run(&self, folder: &Path, results: &mut Results) -> Result<()> {
        let name = self.name();
        eprintln!("booting {name}");
        let log = tools::folder(folder.join("consoles"))?.join(&name);
        let boot = Boot {
            command: self.command(folder),
            what: &name,
            // Errors are logged by tests that make them; panics come as checks.
            is_fault: |_| false,
            log: &log,
            timeout: SILENCE,
        };
        boot.run(|said| match said {
            ConsoleLine::Figure { metric, value, params } => {
                results.add(self.design, self.cpus, &metric, params, value);
            }
            ConsoleLine::Begin(what) => eprintln!("  {what}"),
            ConsoleLine::Untested(what) => eprintln!("  NOT TESTED: {what}"),
            ConsoleLine::Check { .. } | ConsoleLine::Done => {}
        })
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(Arch::X86_64.qemu());
        let threads = if self.counts { "single" } else { "multi" };
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .args(["-machine", "q35", "-cpu", "max"])
            .args(["-accel", &format!("tcg,thread={threads}")])
            .args(["-smp", &self.cpus.to_string(), "-m", &self.memory_mib.to_string()])
            .arg("-kernel")
            .arg(folder.join(self.design))
            .args(["-append", &self.words]);
        if self.counts {
            command.args(["-icount", "shift=0"]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_designs_run_the_comparison_and_ours_the_tests() {
        let machines = machines(7, 3);
        let of = |design: &str| -> Vec<String> {
            let is_it = |machine: &&Machine| machine.design == design;
            machines.iter().filter(is_it).map(|machine| machine.words.clone()).collect()
        };
        let (theirs, ours) = (of(OSDK), of(DEPOT));
        assert_eq!(theirs, ours[..theirs.len()]);
        assert_eq!(ours[theirs.len()..], ["run=edges", "run=rounds rounds=7 seed=3"]);
        let mut names: Vec<_> = machines.iter().map(Machine::name).collect();
        assert!(names.contains(&"depot-rounds-4cpus".to_owned()), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), machines.len(), "each has a log of its own");
    }

    #[test]
    fn only_counting_ties_time_to_instructions() {
        for machine in machines(1, 1) {
            let command = machine.command(Path::new("f"));
            let has = command.get_args().any(|word| word == "-icount");
            assert_eq!(has, machine.words == "run=counts");
        }
    }

    #[test]
    fn the_toolchain_is_the_one_in_the_file() {
        let text = "# Why\n[toolchain]\nchannel = \"nightly-2026-10-01\"\nprofile = \"minimal\"\n";
        assert_eq!(channel(text), Some("nightly-2026-10-01"));
        assert_eq!(channel("[toolchain]\n"), None);
    }
}
