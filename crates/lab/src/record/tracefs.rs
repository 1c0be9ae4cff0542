//! Recording with the kernel's tracefs, in an instance of its own, so that nobody else's tracing is
//! disturbed.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::text::{self, Kept};
use super::window::{Inside, Window};
use super::{Files, Options, permission};
use crate::failure::Failure;

/// Records a command and writes the events of its window.
///
/// # Errors
/// When tracefs refuses something.
pub fn record(options: &Options, events: &[&str], files: &Files) -> Result<(Window, Kept), Failure> {
    let instance = Instance::new(options.buffer, events)?;
    instance.set("tracing_on", "1")?;
    let ran = Inside::new(files, &options.command).run();
    instance.set("tracing_on", "0")?;
    ran?;
    let window = Window::read(files).ok_or_else(|| Failure::Run("the recording left no note".to_owned()))?;
    let window = window.started(&options.command)?;
    // As tracefs itself says it of events that were overwritten, so that replays know.
    let head = match instance.lost() {
        0 => String::new(),
        lost => format!("CPU:0 [LOST {lost} EVENTS]\n"),
    };
    let text = head.as_bytes().chain(File::open(instance.0.join("trace"))?);
    let kept = text::keep(text, File::create(&files.trace)?, &window)?;
    Ok((window, kept))
}

/// A trace instance; removed when dropped.
struct Instance(PathBuf);

impl Instance {
    /// With buffers of `buffer_mib` MiB per CPU. When they are full, new events are lost, not old
    /// ones: what remains is whole.
    fn new(buffer_mib: u32, events: &[&str]) -> Result<Self, Failure> {
        let tracefs = permission::tracefs().unwrap_or("/sys/kernel/tracing");
        let path = Path::new(tracefs).join("instances").join(format!("pagedepot-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| refused(&path, &error))?;
        let instance = Instance(path);
        instance.set("tracing_on", "0")?;
        instance.set("trace_clock", "mono")?;
        instance.set("options/overwrite", "0")?;
        instance.set("buffer_size_kb", &(u64::from(buffer_mib) * 1024).to_string())?;
        for event in events {
            instance.set(&format!("events/{}/enable", event.replace(':', "/")), "1")?;
        }
        Ok(instance)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), Failure> {
        let path = self.0.join(file);
        fs::write(&path, value).map_err(|error| refused(&path, &error))
    }

    /// Events that found no room.
    fn lost(&self) -> u64 {
        let cpus = fs::read_dir(self.0.join("per_cpu")).into_iter().flatten().flatten();
        let stats = cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("stats")).ok());
        stats.map(|stats| lost_in(&stats)).sum()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Cannot be removed while it traces.
        let _ = self.set("tracing_on", "0");
        let _ = fs::remove_dir(&self.0);
    }
}

fn lost_in(stats: &str) -> u64 {
    let number = |line: &str| line.split_once(':')?.1.trim().parse::<u64>().ok();
    let lost = stats.lines().filter(|line| line.starts_with("overrun") || line.starts_with("dropped events"));
    lost.filter_map(number).sum()
}

fn refused(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Run(format!(
        "tracefs: cannot write {}: {error}; is this kernel's tracing locked down?",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_counted() {
        let stats =
            "entries: 12\noverrun: 3\ncommit overrun: 9\nbytes: 500\ndropped events: 4\nread events: 1\n";
        assert_eq!(lost_in(stats), 7);
        assert_eq!(lost_in(""), 0);
    }
}
