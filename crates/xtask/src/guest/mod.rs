//! The tests of the libraries on another processor: Linux for it under QEMU, with our test
//! programs, which are built here, as its only ones.
//!
//! | options | kernel | programs |
//! |---|---|---|
//! | none | Debian's 6.1 | all; on machines after the first, those that concern sequences, and storms |
//! | `--quick` | the same | a few that concern sequences, on one machine |
//! | `--page-size 16` | Debian's 6.12 with such pages | all |
//! | `--page-size 64` | 6.1, built from Debian's source | all |
//! | `--newest` | the newest that Debian has, which checks what programs write to the area | those of rseq, linux and C, with glibc's registration and without |
//!
//! A machine is emulated, so nothing here is a time. Counted are tests, stops of sequences at their
//! instructions, pages lost at these, and the instructions of a hot pair.

mod kernels;
mod programs;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;

use self::kernels::Kernel;
use self::programs::{Build, Extent, Machines, Program};
use self::records::Records;
use crate::boot::{Boot, ConsoleLine};
use crate::cpio::Cpio;
use crate::results::{self, Results};
use crate::tools;

const QEMU: &str = "qemu-system-aarch64";
/// The prefix of the cross compiler's programs.
const CROSS: &str = "aarch64-linux-gnu-";
/// Longest time between two tests, on a slow host.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Words for the kernel. It kills programs that break the ABI of restartable sequences if it knows
/// `rseq_debug` (6.19 and later); a kernel that does not ignores the word.
const KERNEL_WORDS: &str = "console=ttyAMA0 quiet panic=-1 psi=1 rseq_debug=1 \
    rcupdate.rcu_cpu_stall_timeout=300";
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
    /// Fetch the kernel, print where it is, and boot none; the exit code is 3 when Debian's archive
    /// cannot be had
    #[arg(long, conflicts_with = "kernel")]
    fetch: bool,
    /// KiB of the kernel's pages. Debian has kernels with 4 and with 16; one with 64 is built here
    #[arg(long, value_enum, default_value = "4", value_name = "KIB")]
    page_size: PageSize,
    /// The newest kernel and C library that Debian has, and the tests of the crates for Linux with
    /// glibc's registration and without
    #[arg(long, conflicts_with_all = ["quick", "page_size"])]
    newest: bool,
    /// Only programs with this in their names, such as `linux-storm`; may be repeated
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    /// Leave out programs that an earlier run of the same build saw pass on the same kernel, and
    /// take their figures from it
    #[arg(long)]
    resume: bool,
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
    /// MiB of a machine's memory. Tests take as many pages whatever a page is, and depots grow by
    /// 2^18 of them. The host provides what is touched.
    fn memory_mib(self) -> u32 {
        match self {
            PageSize::Kib4 | PageSize::Kib16 => 8 << 10,
            PageSize::Kib64 => 20 << 10,
        }
    }

    /// Words for the kernel. A depot that grows six times may have more memory than the machine.
    fn kernel_words(self) -> String {
        let overcommit = u32::from(self != PageSize::Kib4);
        format!("{KERNEL_WORDS} sysctl.vm.overcommit_memory={overcommit}")
    }

    fn kib(self) -> u32 {
        match self {
            PageSize::Kib4 => 4,
            PageSize::Kib16 => 16,
            PageSize::Kib64 => 64,
        }
    }

    fn bytes(self) -> u32 {
        self.kib() << 10
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
    fn all(extent: Extent, page_size: PageSize) -> Vec<Machine> {
        let older = Machine { model: "cortex-a57", has_lse: false, cpus: 4 };
        let one = Machine { cpus: 1, ..Machine::MAX };
        let many = Machine { cpus: 16, ..Machine::MAX };
        match (extent, page_size) {
            (Extent::Quick | Extent::Registration, _) => vec![Machine::MAX],
            (Extent::All, PageSize::Kib16) => vec![Machine::MAX, one],
            (Extent::All, PageSize::Kib64) => vec![Machine::MAX, older],
            (Extent::All, PageSize::Kib4) => vec![Machine::MAX, older, one, many],
        }
    }

    /// Whether a program runs on it, which is the first of its run or not.
    fn runs(self, program: &Program, is_first: bool) -> bool {
        match program.machines {
            Machines::First => is_first,
            Machines::Each => true,
            Machines::EachWithLse => self.has_lse,
        }
    }

    /// The command that boots it with these files.
    fn command(self, kernel: &Path, page_size: PageSize, files: &Path) -> Command {
        let memory_mib = page_size.memory_mib();
        let mut command = Command::new(QEMU);
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            // The interrupt controller of version 2 has eight CPUs at most.
            .args(["-machine", "virt,gic-version=3", "-accel", "tcg,thread=multi"])
            .args(["-cpu", self.model])
            .args(["-smp", &self.cpus.to_string(), "-m", &memory_mib.to_string(), "-kernel"])
            .arg(kernel)
            .arg("-initrd")
            .arg(files)
            .args(["-append", &page_size.kernel_words()]);
        command
    }
}

/// Fetches, builds, boots; fails when a test does.
///
/// # Errors
/// When something is missing, cannot be fetched or built, or when a test fails in a machine.
pub fn run(options: &Options) -> Result<()> {
    let Arch::Aarch64 = options.arch;
    let json = results::open(options.json.as_deref())?;
    let root = &tools::root()?;
    let cache = tools::build_folder(root, "guest")?;
    let kernel = match &options.kernel {
        Some(image) => Kernel { image: image.clone(), libraries: None },
        None => kernels::kernel(&cache, options.page_size, options.newest)?,
    };
    if options.fetch {
        println!("{}", kernel.image.display());
        return Ok(());
    }
    check_installed()?;
    let extent = match (options.quick, options.newest) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Registration,
        _ => Extent::All,
    };
    let programs = Build { root, cache: &cache, extent, names: &options.program }.programs()?;
    ensure!(!programs.is_empty(), "no program's name contains {}", options.program.join(" or "));
    let common = Common::read(&cache, &kernel, options)?;
    let mut figures = Figures::default();
    for (number, machine) in Machine::all(extent, options.page_size).into_iter().enumerate() {
        let runs = programs.iter().filter(|program| machine.runs(program, number == 0));
        figures.of_machine(&common, machine, &runs.collect::<Vec<_>>())?;
    }
    print!("{}", figures.results.table(&DESIGNS));
    let left_out = programs::LEFT_OUT.map(|(program, why)| format!("{program}: {why}"));
    println!("not tested:");
    for what in figures.untested.iter().chain(&left_out) {
        println!("  {what}");
    }
    if let Some(file) = json {
        let settings = json!({
            "arch": "aarch64", "quick": options.quick, "page_bytes": options.page_size.bytes(),
            "kernel": kernel.image.display().to_string(), "left_out": left_out,
            "untested": figures.untested,
        });
        results::write(file, &figures.results.document("guest", &settings))?;
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

/// Files and options of all machines of a run.
struct Common<'c> {
    cache: &'c Path,
    kernel: &'c Path,
    page_size: PageSize,
    /// Whether records of earlier runs are taken for runs.
    resume: bool,
    init: Vec<u8>,
    /// The C library's files, by their paths there.
    libraries: Vec<(String, Vec<u8>)>,
}

impl<'c> Common<'c> {
    fn read(cache: &'c Path, kernel: &'c Kernel, options: &Options) -> Result<Self> {
        let libraries = programs::libraries(kernel.libraries.as_deref())?;
        let library = |path: PathBuf| {
            let name = path.file_name().context("a library has a name")?;
            Ok((format!("/lib/{}", name.display()), read(&path)?))
        };
        Ok(Common {
            cache,
            kernel: &kernel.image,
            page_size: options.page_size,
            resume: options.resume,
            init: read(&programs::init(cache)?)?,
            libraries: libraries.into_iter().map(library).collect::<Result<_>>()?,
        })
    }

    /// The records of a machine of this name.
    fn records(&self, machine: &str) -> Result<Records> {
        let kernel = read(self.kernel)?;
        let libraries = self.libraries.iter().map(|(_, bytes)| bytes.as_slice());
        let files: Vec<_> = [kernel.as_slice(), &self.init].into_iter().chain(libraries).collect();
        Records::open(self.cache, machine, &files)
    }

    /// The files that a machine begins with, and the list of the programs that it runs.
    fn pack(&self, programs: &[&Program]) -> Result<Vec<u8>> {
        let mut cpio = Cpio::default();
        for folder in ["/dev/shm", "/proc", "/sys", "/tmp"] {
            cpio.folder(folder);
        }
        let devices =
            [("console", (5, 1)), ("null", (1, 3)), ("zero", (1, 5)), ("urandom", (1, 9))];
        for (device, numbers) in devices {
            cpio.device(&format!("/dev/{device}"), numbers);
        }
        cpio.program("/init", &self.init);
        let files: BTreeSet<_> = programs.iter().map(|program| &program.file).collect();
        for file in files {
            cpio.program(&path_in_guest(file), &read(file)?);
        }
        let list: String = programs.iter().map(|program| line(program) + "\n").collect();
        cpio.program("/list", list.as_bytes());
        for (path, library) in &self.libraries {
            cpio.program(path, library);
        }
        Ok(cpio.end())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("no {}", path.display()))
}

fn path_in_guest(file: &Path) -> String {
    format!("/tests/{}", file.file_name().unwrap_or_default().display())
}

/// The line of a program in a list: see `init.c`.
fn line(program: &Program) -> String {
    let environment = program.environment.iter().map(|variable| format!("@{variable}"));
    [program.name.clone(), path_in_guest(&program.file)]
        .into_iter()
        .chain(environment)
        .chain(program.arguments.iter().cloned())
        .collect::<Vec<_>>()
        .join("\t")
}

/// Figures that the machines have printed.
#[derive(Default)]
struct Figures {
    results: Results,
    failed: Vec<String>,
    /// Tests that a machine left out, and why.
    untested: BTreeSet<String>,
}

impl Figures {
    /// Adds what a machine's programs say: in an earlier run, or when the machine is booted now.
    fn of_machine(
        &mut self,
        common: &Common<'_>,
        machine: Machine,
        programs: &[&Program],
    ) -> Result<()> {
        let name = format!("{}, {} CPUs", machine.model, machine.cpus);
        let file = format!("{}k-{}-{}", common.page_size.kib(), machine.model, machine.cpus);
        let records = common.records(&file)?;
        let mut told = MachineFigures::default();
        let mut left = Vec::new();
        for &program in programs {
            let digest = records.digest(&line(program), &read(&program.file)?);
            match records.read(&program.name, digest).filter(|_| common.resume) {
                Some(said) => said.iter().for_each(|said| told.hear(said)),
                None => left.push((program, digest)),
            }
        }
        if left.len() < programs.len() {
            eprintln!(
                "{name}: {} of {} passed before",
                programs.len() - left.len(),
                programs.len()
            );
        }
        if !left.is_empty() {
            let boot = MachineBoot { common, machine, name: &name, file: &file, programs: &left };
            boot.run(&records, &mut told, &mut self.failed)?;
        }
        for what in told.untested {
            if has_no_reason(&what) {
                self.failed.push(format!("ignored without a reason: {what}"));
            }
            self.untested.insert(format!("{what} ({name})"));
        }
        let params = BTreeMap::from([("lse".to_owned(), i64::from(machine.has_lse).into())]);
        for ((design, metric), value) in told.sums {
            if !design.is_empty() {
                self.results.add(design, machine.cpus, &metric, params.clone(), value);
            }
        }
        Ok(())
    }
}

/// The boot of a machine, for the programs that are left, each with its digest.
struct MachineBoot<'b> {
    common: &'b Common<'b>,
    machine: Machine,
    name: &'b str,
    /// The name of the machine's files.
    file: &'b str,
    programs: &'b [(&'b Program, u64)],
}

impl MachineBoot<'_> {
    /// Boots; `told` hears all, and each program that passes leaves a record.
    fn run(
        &self,
        records: &Records,
        told: &mut MachineFigures,
        failed: &mut Vec<String>,
    ) -> Result<()> {
        let Self { common, machine, name, file, .. } = *self;
        let files = common.cache.join(format!("files-{file}.cpio"));
        let programs: Vec<_> = self.programs.iter().map(|(program, _)| *program).collect();
        fs::write(&files, common.pack(&programs)?)?;
        let log = common.cache.join(format!("console-{file}"));
        let command = machine.command(common.kernel, common.page_size, &files);
        eprintln!("booting {name}");
        let boot = Boot { command, what: name, is_fault, log: &log, timeout: TIMEOUT };
        let (mut said_since, mut begun, mut kept) = (Vec::new(), Instant::now(), Ok(()));
        let mut is_sound = true;
        let outcome = boot.run(|said| {
            told.hear(&said);
            if let ConsoleLine::Begin(program) = &said
                && let Some(at) = programs.iter().position(|one| one.name == *program)
            {
                eprintln!("  {program} ({} of {})", at + 1, programs.len());
                (said_since, begun) = (Vec::new(), Instant::now());
            }
            said_since.push(said);
            let Some(ConsoleLine::Check { name, failed }) = said_since.last() else { return };
            let has_passed = failed.is_none();
            match self.programs.iter().find(|(program, _)| program.name == *name) {
                Some((program, digest)) => {
                    eprintln!("    {} s", begun.elapsed().as_secs());
                    if has_passed && is_sound && kept.is_ok() {
                        kept = records.write(&program.name, *digest, &said_since);
                    }
                }
                // The kernel's fault, or init's: what passes from now on proves nothing.
                None => is_sound &= has_passed,
            }
        });
        fs::remove_file(&files)?;
        let page_bytes = told.sums.get(&("", "page_bytes".to_owned())).copied();
        match outcome {
            // It has not come as far as to say what it is.
            Err(error) if page_bytes.is_none() => return Err(error),
            Err(error) => failed.push(format!("{error:#}")),
            Ok(()) => {}
        }
        let (page_bytes, asked) = (page_bytes.unwrap_or(0.0), common.page_size.bytes());
        ensure!(
            page_bytes == f64::from(asked),
            "{name}: the kernel has pages of {page_bytes} bytes; --page-size says {asked}"
        );
        kept
    }
}

/// The figures of one machine, added up over its programs.
#[derive(Default)]
struct MachineFigures {
    untested: Vec<String>,
    sums: BTreeMap<(&'static str, String), f64>,
}

impl MachineFigures {
    fn hear(&mut self, said: &ConsoleLine) {
        match said {
            // `pair_instructions.spin`: of that design; without one of ours.
            ConsoleLine::Figure { metric, value, .. } => {
                let (metric, design) = match metric.split_once('.') {
                    Some((metric, design)) => (metric, DESIGNS.iter().find(|it| **it == design)),
                    None if ["page_bytes", "cpus"].contains(&&**metric) => (&**metric, Some(&"")),
                    None => (&**metric, Some(&"depot")),
                };
                if let Some(design) = design {
                    *self.sums.entry((design, metric.to_owned())).or_default() += value;
                }
            }
            ConsoleLine::Untested(what) => self.untested.push(what.clone()),
            ConsoleLine::Begin(_) | ConsoleLine::Check { .. } | ConsoleLine::Done => {}
        }
    }
}

/// Whether the harness says of a test that it is ignored, and no more.
fn has_no_reason(untested: &str) -> bool {
    untested.trim_end().ends_with("... ignored")
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
            told.hear(&ConsoleLine::parse(line).expect("a line of ours"));
        }
        let sum = |design, metric: &str| told.sums.get(&(design, metric.to_owned())).copied();
        assert_eq!(sum("depot", "tests_passed"), Some(7.0));
        assert_eq!(sum("floor-rseq", "pair_instructions"), Some(27.0));
        assert_eq!(sum("", "page_bytes"), Some(4096.0));
        assert_eq!(told.sums.len(), 3);
    }

    #[test]
    fn machines_have_the_pages_that_are_asked_for() {
        let machines = |extent, page_size| -> Vec<_> {
            let all = Machine::all(extent, page_size).into_iter();
            all.map(|machine| (machine.model, machine.cpus)).collect()
        };
        let all = machines(Extent::All, PageSize::Kib4);
        assert_eq!(all, [("max", 4), ("cortex-a57", 4), ("max", 1), ("max", 16)]);
        for extent in [Extent::Quick, Extent::Registration] {
            assert_eq!(machines(extent, PageSize::Kib64), [("max", 4)]);
        }
        let with_16 = machines(Extent::All, PageSize::Kib16);
        assert!(with_16.iter().all(|(model, _)| *model != "cortex-a57"));
    }

    #[test]
    fn a_program_is_one_line_of_a_list() {
        let program = Program {
            name: "a-without-rseq".to_owned(),
            file: "/built/a".into(),
            arguments: vec!["--nocapture".to_owned()],
            environment: vec!["B=c=0"],
            machines: Machines::EachWithLse,
        };
        assert_eq!(line(&program), "a-without-rseq\t/tests/a\t@B=c=0\t--nocapture");
        let older = Machine { has_lse: false, ..Machine::MAX };
        assert!(Machine::MAX.runs(&program, false) && !older.runs(&program, true));
    }

    #[test]
    fn tests_are_ignored_for_a_reason() {
        assert!(has_no_reason("a: test b ... ignored\r"));
        assert!(!has_no_reason("a: test b ... ignored, takes an hour"));
        assert!(!has_no_reason("a: SKIPPED: no c"));
    }
}
