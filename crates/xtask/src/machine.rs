//! A machine under QEMU that boots a kernel, and ends.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};

use crate::console::MachineProcess;

pub const QEMU: &str = "qemu-system-x86_64";
/// Exit statuses of `isa-debug-exit` for the values that the kernel writes: 2 * value + 1.
const STATUS_PASSED: i32 = 2 * 0x10 + 1;
const STATUS_FAILED: i32 = 2 * 0x11 + 1;
/// Most memory below 4 GiB: `q35` puts its devices above that by default.
const BELOW_4G_MIB_MAX: u32 = 2048;
/// Emulated CPUs per host CPU, above which all emulated CPUs take turns on one thread.
const OVERCOMMIT_MAX: usize = 4;

/// A kernel, and the machine to boot it on.
pub struct Machine<'m> {
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
pub fn check_installed() -> Result<()> {
    let version = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status();
    match version.map_err(cannot_start)? {
        status if status.success() => Ok(()),
        status => bail!("{QEMU} --version ended with {status}: is it installed completely?"),
    }
}

fn cannot_start(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{QEMU} is not installed: the package is qemu-system-x86 \
             (Debian, Ubuntu: apt-get install --no-install-recommends qemu-system-x86; \
             Fedora: dnf install qemu-system-x86-core; Arch: pacman -S qemu-system-x86)"
        ),
        _ => anyhow!(error).context(format!("cannot start {QEMU}")),
    }
}

impl Machine<'_> {
    /// Boots, and passes each line to `heard` with the time since the start. Returns whether the
    /// test passed.
    pub fn run(&self, mut heard: impl FnMut(Line<'_>, Duration)) -> Result<bool> {
        let started = Instant::now();
        let mut qemu = MachineProcess(self.start()?);
        let lines = qemu.lines()?;
        loop {
            let left = self.timeout.saturating_sub(started.elapsed());
            match lines.recv_timeout(left) {
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
        let mut command = Command::new(QEMU);
        let threads = if self.takes_turns() { "single" } else { "multi" };
        // Some memory above 4 GiB, so that there are two zones.
        let below_4g_mib = (self.memory_mib * 5 / 8).min(BELOW_4G_MIB_MAX);
        command
            .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
            .args(["-machine", &format!("q35,max-ram-below-4g={below_4g_mib}M")])
            .args(["-accel", &format!("tcg,thread={threads}")])
            .args(["-smp", &self.cpus.to_string()])
            .args(["-m", &self.memory_mib.to_string()])
            .args(["-append", &self.command_line])
            .arg("-kernel")
            .arg(self.kernel)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.spawn().map_err(cannot_start)
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
