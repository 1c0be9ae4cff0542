//! A machine under QEMU that boots a kernel, and ends.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::ValueEnum;

use crate::console::MachineProcess;

/// Exit statuses that the kernel has QEMU end with.
const STATUS_PASSED: i32 = 33;
const STATUS_FAILED: i32 = 35;
/// The kernel's first line where firmware writes to the same console.
const KERNEL_BEGINS: &str = "kernel";
/// Most memory below 4 GiB: `q35` puts its devices above that by default.
const BELOW_4G_MIB_MAX: u32 = 2048;
/// Emulated CPUs per host CPU, above which all emulated CPUs take turns on one thread.
const OVERCOMMIT_MAX: usize = 4;

/// The processors that QEMU emulates here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    /// A PC
    #[value(name = "x86_64")]
    X86_64,
    /// QEMU's `virt`, with a GICv3
    #[value(name = "aarch64")]
    AArch64,
    /// QEMU's `virt`, with OpenSBI
    #[value(name = "riscv64")]
    RiscV64,
}

impl Arch {
    /// The emulator.
    pub const fn qemu(self) -> &'static str {
        match self {
            Arch::X86_64 => "qemu-system-x86_64",
            Arch::AArch64 => "qemu-system-aarch64",
            Arch::RiscV64 => "qemu-system-riscv64",
        }
    }

    /// The emulator's package: Debian's, Fedora's, Arch's.
    const fn packages(self) -> [&'static str; 3] {
        match self {
            Arch::X86_64 => ["qemu-system-x86", "qemu-system-x86-core", "qemu-system-x86"],
            Arch::AArch64 => ["qemu-system-arm", "qemu-system-aarch64-core", "qemu-system-aarch64"],
            // Debian's has the firmware in a package that it recommends.
            Arch::RiscV64 => {
                ["qemu-system-misc opensbi", "qemu-system-riscv-core", "qemu-system-riscv"]
            }
        }
    }

    /// The kernel's target. On x86-64 it is the host's own, whose `core` is installed.
    pub const fn target(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-unknown-linux-gnu",
            Arch::AArch64 => "aarch64-unknown-none",
            Arch::RiscV64 => "riscv64gc-unknown-none-elf",
        }
    }

    /// The emulator's options for the board, with a way for the kernel to end it.
    fn board(self, memory_mib: u32) -> Vec<String> {
        let options: &[&str] = match self {
            Arch::X86_64 => {
                // Some memory above 4 GiB, so that there are two zones.
                let below_4g_mib = (memory_mib * 5 / 8).min(BELOW_4G_MIB_MAX);
                let machine = format!("q35,max-ram-below-4g={below_4g_mib}M");
                let exit = "isa-debug-exit,iobase=0xf4,iosize=4";
                return ["-device", exit, "-machine", &machine].map(str::to_owned).into();
            }
            Arch::AArch64 => &["-machine", "virt,gic-version=3", "-cpu", "max", "-semihosting"],
            Arch::RiscV64 => &["-machine", "virt", "-cpu", "rv64"],
        };
        options.iter().map(|&option| option.to_owned()).collect()
    }
}

/// A kernel, and the machine to boot it on.
pub struct Machine<'m> {
    pub arch: Arch,
    pub kernel: &'m Path,
    pub cpus: u32,
    pub memory_mib: u32,
    pub one_thread: bool,
    pub command_line: String,
    pub timeout: Duration,
}

/// A line of the serial console.
pub enum Line<'l> {
    /// Progress, for people.
    Progress(&'l str),
    /// A figure: `name=value`.
    Figure(&'l str),
    /// Any other line: most likely of a panic.
    Other(&'l str),
}

impl<'l> Line<'l> {
    fn parse(line: &'l str) -> Self {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if let Some(text) = line.strip_prefix("progress: ") {
            Line::Progress(text)
        } else if line.split_once('=').is_some_and(|(name, _)| is_name(name)) {
            Line::Figure(line)
        } else {
            Line::Other(line)
        }
    }
}

/// Checks that QEMU is installed, before the kernel is built for it.
pub fn check_installed(arch: Arch) -> Result<()> {
    let qemu = arch.qemu();
    let version = Command::new(qemu).arg("--version").stdout(Stdio::null()).status();
    match version.map_err(|error| cannot_start(arch, error))? {
        status if status.success() => Ok(()),
        status => bail!("{qemu} --version ended with {status}: is it installed completely?"),
    }
}

fn cannot_start(arch: Arch, error: io::Error) -> Error {
    let qemu = arch.qemu();
    let [debian, fedora, arch_linux] = arch.packages();
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{qemu} is not installed: the package is {debian} \
             (Debian, Ubuntu: apt-get install --no-install-recommends {debian}; \
             Fedora: dnf install {fedora}; Arch: pacman -S {arch_linux})"
        ),
        _ => anyhow!(error).context(format!("cannot start {qemu}")),
    }
}

impl Machine<'_> {
    /// Boots, and passes each line to `heard` with the time since the start. Returns whether the
    /// test passed.
    pub fn run(&self, mut heard: impl FnMut(Line<'_>, Duration)) -> Result<bool> {
        let started = Instant::now();
        let mut qemu = MachineProcess(self.start()?);
        let lines = qemu.lines()?;
        let mut is_firmware = self.arch == Arch::RiscV64;
        loop {
            let left = self.timeout.saturating_sub(started.elapsed());
            match lines.recv_timeout(left) {
                // The firmware's lines on the same console.
                Ok(line) if is_firmware => is_firmware = line.trim_end() != KERNEL_BEGINS,
                Ok(line) => heard(Line::parse(line.trim_end()), started.elapsed()),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "no end after {} s: give it more time with --timeout",
                        self.timeout.as_secs()
                    )
                }
            }
        }
        passed(qemu.0.wait().context("cannot wait for QEMU")?)
    }

    fn start(&self) -> Result<Child> {
        let mut command = Command::new(self.arch.qemu());
        let threads = if self.takes_turns() { "single" } else { "multi" };
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .args(self.arch.board(self.memory_mib))
            .args(["-accel", &format!("tcg,thread={threads}")])
            .args(["-smp", &self.cpus.to_string()])
            .args(["-m", &self.memory_mib.to_string()])
            .args(["-append", &self.command_line])
            .arg("-kernel")
            .arg(self.kernel)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.spawn().map_err(|error| cannot_start(self.arch, error))
    }

    fn takes_turns(&self) -> bool {
        let host_cpus = thread::available_parallelism().map_or(1, usize::from);
        self.one_thread || self.cpus as usize > OVERCOMMIT_MAX * host_cpus
    }
}

fn passed(status: ExitStatus) -> Result<bool> {
    match status.code() {
        Some(STATUS_PASSED) => Ok(true),
        Some(STATUS_FAILED) => Ok(false),
        // -no-reboot turns a triple fault into a normal end.
        Some(0) => bail!("the machine reset itself: a fault that the kernel could not handle"),
        _ => bail!("QEMU ended with {status}"),
    }
}
