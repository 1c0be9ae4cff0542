//! The tests of core, rseq and linux on another processor: Debian's Linux for it, as it is, under
//! QEMU, with our test programs, which are built here, as its only ones.
//!
//! A machine is emulated, so nothing here is a time. Counted are tests, stops of sequences at their
//! instructions, pages lost at these, and the instructions of a hot pair.

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;

use self::programs::{Build, Program};
use crate::archive::{Archive, BOOKWORM, TRIXIE};
use crate::boot::{Boot, ConsoleLine};
use crate::cpio::Cpio;
use crate::results::{self, Results};
use crate::tools;

const QEMU: &str = "qemu-system-aarch64";
/// The prefix of the cross compiler's programs.
const CROSS: &str = "aarch64-linux-gnu-";
/// Longest time between two tests, on a slow host.
const TIMEOUT: Duration = Duration::from_secs(900);
const MEMORY_MIB: u32 = 4096;
/// The designs whose figures there are.
const DESIGNS: [&str; 3] = ["floor-rseq", "depot", "spin"];

/// Options of `cargo xtask guest`.
#[derive(Debug, Args)]
pub struct Options {
    /// The processor
    #[arg(long, value_enum)]
    arch: Arch,
    /// One machine, and the tests that concern sequences
    #[arg(long)]
    quick: bool,
    /// Fetch the kernel, print where it is, and boot none
    #[arg(long, conflicts_with = "kernel")]
    fetch: bool,
    /// KiB of the kernel's pages. Debian has kernels with 4 and with 16; for 64 give --kernel one
    #[arg(long, value_enum, default_value = "4", value_name = "KIB")]
    page_size: PageSize,
    /// Boot this kernel, and fetch none: an Image with restartable sequences
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Write the figures there, as the lab does
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Processors of guests.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Arch {
    Aarch64,
}

/// Pages of a guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PageSize {
    #[value(name = "4")]
    Kib4,
    #[value(name = "16")]
    Kib16,
    #[value(name = "64")]
    Kib64,
}

impl PageSize {
    fn bytes(self) -> u32 {
        match self {
            PageSize::Kib4 => 4 << 10,
            PageSize::Kib16 => 16 << 10,
            PageSize::Kib64 => 64 << 10,
        }
    }
}

/// A machine to boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    /// QEMU's model of the processor.
    model: &'static str,
    /// Whether that has atomic instructions (LSE), or exclusives alone.
    has_lse: bool,
    cpus: u32,
}

impl Machine {
    const MAX: Machine = Machine { model: "max", has_lse: true, cpus: 4 };

    /// The machines of a run: processors with and without LSE, one CPU and several. The older
    /// processor has no pages of 16 KiB.
    fn all(quick: bool, page_size: PageSize) -> Vec<Machine> {
        let older = Machine { model: "cortex-a57", has_lse: false, cpus: 4 };
        let one = Machine { cpus: 1, ..Machine::MAX };
        match (quick, page_size) {
            (true, _) => vec![Machine::MAX],
            (false, PageSize::Kib16) => vec![Machine::MAX, one],
            (false, _) => vec![Machine::MAX, older, one],
        }
    }

    fn command(self, kernel: &Path, files: &Path) -> Command {
        let mut command = Command::new(QEMU);
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .args(["-machine", "virt", "-accel", "tcg,thread=multi", "-cpu", self.model])
            .args(["-smp", &self.cpus.to_string(), "-m", &MEMORY_MIB.to_string(), "-kernel"])
            .arg(kernel)
            .arg("-initrd")
            .arg(files)
            .arg("-append")
            .arg("console=ttyAMA0 quiet panic=-1 psi=1 rcupdate.rcu_cpu_stall_timeout=300");
        command
    }
}

/// Fetches, builds, boots; fails when a test does.
///
/// # Errors
/// When something is missing, cannot be fetched or built, or when a test fails in a machine.
pub fn run(options: &Options) -> Result<()> {
    let Arch::Aarch64 = options.arch;
    if let Some(path) = &options.json {
        results::check_writable(path)?;
    }
    let root = &tools::root()?;
    let cache = tools::build_folder(root, "guest")?;
    let kernel = match (&options.kernel, options.page_size) {
        (Some(kernel), _) => kernel.clone(),
        (None, PageSize::Kib4) => fetch(&cache, &BOOKWORM, "linux-image-arm64")?,
        (None, PageSize::Kib16) => fetch(&cache, &TRIXIE, "linux-image-arm64-16k")?,
        (None, PageSize::Kib64) => bail!(
            "Debian has no kernel with pages of 64 KiB: build one with CONFIG_ARM64_64K_PAGES and \
             CONFIG_RSEQ, and name it with --kernel"
        ),
    };
    if options.fetch {
        println!("{}", kernel.display());
        return Ok(());
    }
    check_installed()?;
    let build = Build { root, cache: &cache, quick: options.quick };
    let files = cache.join("files.cpio");
    fs::write(&files, pack(&cache, &build.programs()?)?)?;
    let mut figures = Figures::default();
    for machine in Machine::all(options.quick, options.page_size) {
        figures.boot(&cache, machine, &kernel, &files, options.page_size)?;
    }
    print!("{}", figures.results.table(&DESIGNS));
    if let Some(path) = &options.json {
        let settings = json!({
            "arch": "aarch64", "quick": options.quick, "page_bytes": options.page_size.bytes(),
            "left_out": programs::LEFT_OUT.map(|(program, why)| format!("{program}: {why}")),
        });
        results::write(path, &figures.results.document("guest", &settings))?;
    }
    let failed = figures.failed;
    ensure!(failed.is_empty(), "tests failed; consoles are in {}:\n  {}", cache.display(), {
        failed.join("\n  ")
    });
    Ok(())
}

/// Fails unless there are QEMU and the cross compiler, and says what to install.
fn check_installed() -> Result<()> {
    let compiler = format!("{CROSS}gcc");
    for (program, package) in
        [(QEMU, "qemu-system-arm"), (&*compiler, "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")]
    {
        let found = tools::output(Command::new(program).arg("--version"));
        found.with_context(|| format!("{program} is needed (Debian: {package})"))?;
    }
    Ok(())
}

/// The newest kernel of a release, of those that `package` stands for.
fn fetch(cache: &Path, release: &[(&str, &str)], package: &str) -> Result<PathBuf> {
    eprintln!("reading the archive's lists");
    let archive = Archive::open_for(cache, release, "arm64")?;
    let package = archive.dependency(package, "linux-image-")?;
    let version = archive.version(&package)?;
    let at = cache.join(format!("{package}_{version}"));
    let kernel = at.join("vmlinuz");
    if !kernel.exists() {
        eprintln!("fetching {package} {version}");
        let file = archive.fetch(cache, &package, &version)?;
        let unpack = "dpkg-deb --fsys-tarfile \"$1\" \
            | tar xO --wildcards './boot/vmlinuz-*' >\"$2\"/vmlinuz";
        archive.unpack(unpack, &file, &at)?;
    }
    Ok(kernel)
}

/// The files that the machine begins with.
fn pack(cache: &Path, programs: &[Program]) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("no {}", path.display()));
    let mut cpio = Cpio::default();
    for folder in ["/dev/shm", "/proc", "/sys", "/tmp", "/arguments"] {
        cpio.folder(folder);
    }
    let devices = [("console", (5, 1)), ("null", (1, 3)), ("zero", (1, 5)), ("urandom", (1, 9))];
    for (device, numbers) in devices {
        cpio.device(&format!("/dev/{device}"), numbers);
    }
    cpio.program("/init", &read(&programs::init(cache)?)?);
    for program in programs {
        cpio.program(&format!("/tests/{}", program.name), &read(&program.file)?);
        if !program.arguments.is_empty() {
            let arguments = program.arguments.join("\n") + "\n";
            cpio.program(&format!("/arguments/{}", program.name), arguments.as_bytes());
        }
    }
    for library in programs::libraries()? {
        let name = library.file_name().context("a library has a name")?;
        cpio.program(&format!("/lib/{}", name.display()), &read(&library)?);
    }
    Ok(cpio.end())
}

/// Figures that the machines have printed.
#[derive(Default)]
struct Figures {
    results: Results,
    failed: Vec<String>,
}

impl Figures {
    fn boot(
        &mut self,
        cache: &Path,
        machine: Machine,
        kernel: &Path,
        files: &Path,
        page_size: PageSize,
    ) -> Result<()> {
        let name = format!("{}, {} CPUs", machine.model, machine.cpus);
        let log = cache.join(format!("console-{}-{}", machine.model, machine.cpus));
        let boot = Boot {
            command: machine.command(kernel, files),
            what: &name,
            is_fault,
            log: &log,
            timeout: TIMEOUT,
        };
        eprintln!("booting {name}: {}", kernel.display());
        let mut told = MachineFigures::default();
        let outcome = boot.run(|said| told.hear(said));
        if let Err(error) = outcome {
            self.failed.push(format!("{error:#}"));
        }
        let page_bytes = told.sums.get(&("", "page_bytes".to_owned())).copied().unwrap_or(0.0);
        ensure!(
            page_bytes == f64::from(page_size.bytes()),
            "{name}: the kernel has pages of {page_bytes} bytes; --page-size says {}",
            page_size.bytes()
        );
        let params = BTreeMap::from([("lse".to_owned(), i64::from(machine.has_lse))]);
        for ((design, metric), value) in told.sums {
            if !design.is_empty() {
                self.results.add(design, machine.cpus, &metric, params.clone(), value);
            }
        }
        Ok(())
    }
}

/// The figures of one machine, added up over its programs.
#[derive(Default)]
struct MachineFigures {
    sums: BTreeMap<(&'static str, String), f64>,
}

impl MachineFigures {
    fn hear(&mut self, said: ConsoleLine) {
        match said {
            // `pair_instructions.spin`: of that design; without one of ours.
            ConsoleLine::Figure { metric, value, .. } => {
                let (metric, design) = match metric.split_once('.') {
                    Some((metric, design)) => (metric, DESIGNS.iter().find(|it| **it == design)),
                    None if ["page_bytes", "cpus"].contains(&&*metric) => (&*metric, Some(&"")),
                    None => (&*metric, Some(&"depot")),
                };
                if let Some(design) = design {
                    *self.sums.entry((design, metric.to_owned())).or_default() += value;
                }
            }
            ConsoleLine::Begin(test) if !test.contains(' ') => eprintln!("  {test}"),
            ConsoleLine::Begin(_) | ConsoleLine::Check { .. } | ConsoleLine::Done => {}
        }
    }
}

/// Words of a kernel at fault. That a cgroup runs out of memory is what a test wants.
fn is_fault(line: &str) -> bool {
    ["Kernel panic", "BUG:", "Oops", "Internal error"].iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_programs_are_added_up_by_design() {
        let mut told = MachineFigures::default();
        for line in [
            "= tests_passed 3",
            "= tests_passed 4",
            "= pair_instructions.floor-rseq 27",
            "= pair_instructions.unknown 27",
            "= page_bytes 4096",
            "= begin a b",
        ] {
            told.hear(ConsoleLine::parse(line).expect("a line of ours"));
        }
        let sum = |design, metric: &str| told.sums.get(&(design, metric.to_owned())).copied();
        assert_eq!(sum("depot", "tests_passed"), Some(7.0));
        assert_eq!(sum("floor-rseq", "pair_instructions"), Some(27.0));
        assert_eq!(sum("", "page_bytes"), Some(4096.0));
        assert_eq!(told.sums.len(), 3);
    }

    #[test]
    fn machines_have_the_pages_that_are_asked_for() {
        let models = |quick, page_size| -> Vec<_> {
            Machine::all(quick, page_size).into_iter().map(|machine| machine.model).collect()
        };
        assert_eq!(models(true, PageSize::Kib64), ["max"]);
        assert_eq!(models(false, PageSize::Kib4), ["max", "cortex-a57", "max"]);
        assert!(!models(false, PageSize::Kib16).contains(&"cortex-a57"));
    }
}
