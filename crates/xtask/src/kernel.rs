//! Building the example kernel and running its tests.

use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::machine::{self, Arch, Line, Machine};
use crate::tools;

/// The most CPUs the kernel starts.
const CPUS_MAX: i64 = 64;
/// MiB of the smallest machine that boots, and of the largest whose page tables fit below 4 GiB.
const MEMORY_MIB: RangeInclusive<i64> = 64..=65536;

/// Options of `cargo xtask kernel`.
#[derive(Debug, Args)]
pub struct Options {
    /// The test; without it, all tests run, one after the other
    test: Option<Test>,
    /// The processor of the machine
    #[arg(long, value_name = "NAME", default_value = "x86_64")]
    arch: Arch,
    /// CPUs of the machine
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=CPUS_MAX),
    )]
    cpus: u32,
    /// The design by which CPUs cache pages
    #[arg(long, value_name = "NAME", default_value = "depot")]
    design: Design,
    /// Rounds of a test by rounds (default: its own, 100 for oom)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rounds: Option<u64>,
    /// Seconds of a test by time (default: its own, 10 per rate of isolate)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// MiB of memory, five eighths of them in the lower zone, on x86_64 2048 at most (default:
    /// what the test needs)
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(MEMORY_MIB))]
    memory: Option<u32>,
    /// Give up on a test after this many seconds (default: 600, and 20 for each CPU)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    /// Emulate all CPUs by one host thread, in turns (default: when there are many more CPUs than
    /// host CPUs, because a CPU that spins would keep the CPU it waits for from running)
    #[arg(long)]
    one_thread: bool,
}

/// The kernel's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Pages by page faults; then a shared page is unmapped while all CPUs read it
    Pft,
    /// The suite of Linux's test_vmalloc by 64 workers, then a purge
    Vmalloc,
    /// One half of the CPUs allocates, the other frees
    ProducerConsumer,
    /// All memory is allocated while caches are drained
    Oom,
    /// CPUs stop, their caches are taken, and the CPUs start again
    CpuUnplug,
    /// Timer and NMI (on aarch64 FIQ) handlers allocate, above tasks that allocate
    Reentry,
    /// Isolated CPUs are drained, and count their interrupts
    Isolate,
    /// CPUs that allocate, compute, halt or are isolated hand over what they cache
    Handover,
    /// A task and a handler allocate and free 1 to 64 blocks at a time
    Rhythms,
    /// Mapped pages are moved by their page tables while CPUs read them
    Compact,
}

/// The kernel's designs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Design {
    /// Fronts and shelves: the allocator's own
    Depot,
    /// Lists that only their CPU touches: a drain interrupts it
    Local,
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().to_owned()
}

/// Builds the kernel and runs the tests.
pub fn run(options: &Options) -> Result<()> {
    machine::check_installed(options.arch)?;
    let root = tools::root()?;
    let progress = Progress::new();
    progress.show("building examples/kernel");
    let kernel = build(&root, options.arch)?;
    let tests = options.test.map_or(Test::value_variants().to_vec(), |test| vec![test]);
    for test in tests {
        run_test(&kernel, options, test, &progress).with_context(|| {
            let design = name(options.design);
            let (test, arch) = (name(test), name(options.arch));
            format!("test {test} on {arch} with {} CPUs and design {design} failed", options.cpus)
        })?;
    }
    Ok(())
}

/// Builds with the flags of the kernel's own `.cargo/config.toml`, without the flags of the
/// environment, which would replace them. Returns the kernel's path.
fn build(root: &Path, arch: Arch) -> Result<PathBuf> {
    let target = arch.target();
    let target_dir = tools::build_folder(root, "kernel")?;
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .current_dir(root.join("examples/kernel"))
        .args(["build", "--release", "--quiet", "--target", target, "--target-dir"])
        .arg(&target_dir)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("examples/kernel does not build; its target is needed: rustup target add {target}");
    }
    Ok(target_dir.join(target).join("release/pagedepot-kernel"))
}

fn run_test(kernel: &Path, options: &Options, test: Test, progress: &Progress) -> Result<()> {
    let machine = Machine {
        arch: options.arch,
        kernel,
        cpus: options.cpus,
        memory_mib: options.memory.unwrap_or(memory_mib(test, options.cpus)),
        one_thread: options.one_thread,
        command_line: command_line(options, test),
        timeout: Duration::from_secs(options.timeout.unwrap_or(600 + 20 * u64::from(options.cpus))),
    };
    progress.show(&format!("booting {} CPUs", options.cpus));
    figure(&format!("test={}", name(test)));
    figure(&format!("design={}", name(options.design)));
    let mut boot_time = None;
    let passed = machine.run(|line, elapsed| match line {
        Line::Progress(text) => {
            boot_time.get_or_insert(elapsed);
            progress.show(text);
        }
        Line::Figure(text) => progress.above(|| figure(text)),
        Line::Other(text) => progress.above(|| eprintln!("{text}")),
    })?;
    // From the start of QEMU to the kernel's first line about the test.
    if let Some(boot_time) = boot_time {
        figure(&format!("boot_ms={}", boot_time.as_millis()));
    }
    figure(&format!("passed={}", u8::from(passed)));
    if !passed {
        bail!("see the kernel's last lines above");
    }
    Ok(())
}

/// Prints `name=value`. A closed stdout is no error: the exit code still tells the outcome.
fn figure(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Small for `oom`, which allocates all of it again and again; more where there are more CPUs to
/// hold pages.
fn memory_mib(test: Test, cpus: u32) -> u32 {
    match test {
        // With less, the limits of the CPUs' caches are so low that they hold nothing to drain.
        Test::Oom => (10 * cpus).max(64),
        Test::Vmalloc => 512 + 16 * cpus,
        // As for `oom`.
        Test::Isolate => 256 + 16 * cpus,
        _ => 256 + 4 * cpus,
    }
}

fn command_line(options: &Options, test: Test) -> String {
    let mut words = format!("test={} design={}", name(test), name(options.design));
    for (name, value) in [("rounds", options.rounds), ("seconds", options.seconds)] {
        if let Some(value) = value {
            words += &format!(" {name}={value}");
        }
    }
    words
}

/// A test's progress: one changing line on a terminal, further lines elsewhere.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}")
                .expect("a valid template"),
        );
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    fn show(&self, text: &str) {
        if self.0.is_hidden() {
            eprintln!("{text}");
        } else {
            self.0.set_message(text.to_owned());
        }
    }

    /// Prints above the progress line.
    fn above(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
