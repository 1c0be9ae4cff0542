//! The machine that results are from.

use std::fmt;
use std::fs;

use serde::Serialize;

/// The machine and the settings under which figures were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The CPUs' model, as the kernel names it.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: u32,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The compiler that made this command.
    pub rustc: String,
    /// The system's base page, in bytes.
    pub page_bytes: u64,
}

impl Machine {
    /// The machine that the command runs on, with so many usable CPUs.
    pub fn here(cpus: usize) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Machine {
            cpu: model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cpus: cpus as u32,
            memory_bytes: meminfo("MemTotal").unwrap_or(0),
            kernel,
            rustc: env!("PAGEDEPOT_RUSTC").to_owned(),
            page_bytes: rustix::param::page_size() as u64,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cpus, memory_bytes, kernel, rustc, .. } = self;
        let gib = *memory_bytes as f64 / f64::from(1 << 30);
        let cpus = super::counted(*cpus as usize, "CPU");
        write!(f, "{cpu}, {cpus}, {gib:.1} GiB, Linux {kernel}, {rustc}")
    }
}

fn model(cpuinfo: &str) -> Option<&str> {
    cpuinfo
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
}

/// Bytes of memory available without swapping; `None` where the kernel does not tell.
pub fn available_bytes() -> Option<u64> {
    meminfo("MemAvailable")
}

fn meminfo(name: &str) -> Option<u64> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files() {
        assert_eq!(model("processor\t: 0\nmodel name\t: Some CPU: fast\n"), Some("Some CPU: fast"));
        assert_eq!(model(""), None);
        let text = "MemTotal:       24683520 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(field(text, "MemAvailable"), Some(1 << 20));
        assert_eq!(field(text, "Mem"), None);
    }
}
