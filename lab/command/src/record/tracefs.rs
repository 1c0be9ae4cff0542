//! Recording with the kernel's tracefs, in an instance of its own, so that other tracing is not
//! disturbed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::files::Files;
use super::options::RecordOptions;
use super::permission;
use super::signals::Signals;
use super::text::{self, KeptCounts};
use super::window::{Inside, Window};
use pagedepot_cli::failure::Failure;

/// Prefix of our instances' names; the process's number and the time it began follow.
const PREFIX: &str = "pagedepot-";

/// Records a command and writes the events of its window.
///
/// # Errors
/// When tracefs refuses something.
pub fn record(
    options: &RecordOptions,
    events: &[&str],
    (files, signals): (&Files, &Signals),
) -> Result<(Window, KeptCounts), Failure> {
    let instance = Instance::new(options.buffer, events)?;
    instance.set("tracing_on", "1")?;
    let ran = Inside::new(files, &options.command).run(signals);
    instance.set("tracing_on", "0")?;
    ran?;
    let window =
        Window::read(files).ok_or_else(|| Failure::Run("the recording left no note".to_owned()))?;
    let window = window.started(&options.command)?;
    // As tracefs itself says it of events that were overwritten, so that replays know.
    let head = match instance.lost() {
        0 => String::new(),
        lost => format!("CPU:0 [LOST {lost} EVENTS]\n"),
    };
    let text = head.as_bytes().chain(File::open(instance.path.join("trace"))?);
    let kept = text::keep(text, files.create_trace()?, (&window, signals));
    let kept = kept.map_err(|failure| files.named(failure))?;
    Ok((window, kept))
}

/// A trace instance; removed when dropped.
struct Instance {
    path: PathBuf,
    /// The kernel removes no instance with an open file: this one stays while its process does,
    /// even where others cannot see that process.
    open: Option<File>,
}

impl Instance {
    /// Makes an instance with buffers of `buffer_mib` MiB per CPU. When they are full, new events
    /// are lost, not old ones: what remains is whole.
    fn new(buffer_mib: u32, events: &[&str]) -> Result<Self, Failure> {
        let tracefs = permission::tracefs().unwrap_or_else(|| "/sys/kernel/tracing".into());
        let instances = tracefs.join("instances");
        sweep(&instances);
        let id = std::process::id();
        let path = instances.join(format!("{PREFIX}{id}-{}", start_time(id).unwrap_or(0)));
        fs::create_dir(&path).map_err(|error| refused(&path, &error))?;
        let mut instance = Instance { path, open: None };
        instance.open = File::open(instance.path.join("tracing_on")).ok();
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
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|error| refused(&path, &error))
    }

    /// Events that found no room.
    fn lost(&self) -> u64 {
        let cpus = fs::read_dir(self.path.join("per_cpu")).into_iter().flatten().flatten();
        let stats = cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("stats")).ok());
        stats.map(|stats| lost_in(&stats)).sum()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Cannot be removed while a file of it is open.
        let _ = self.set("tracing_on", "0");
        self.open = None;
        let _ = fs::remove_dir(&self.path);
    }
}

fn lost_in(stats: &str) -> u64 {
    let number = |line: &str| line.split_once(':')?.1.trim().parse::<u64>().ok();
    let lost = stats
        .lines()
        .filter(|line| line.starts_with("overrun") || line.starts_with("dropped events"));
    lost.filter_map(number).sum()
}

/// Removes the instances of processes that were killed: they go on tracing, and keep their buffers.
fn sweep(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        if entry.file_name().to_str().and_then(Owner::of).is_some_and(|owner| !owner.is_alive()) {
            // Fails while a process has it open: then the owner runs after all, in another
            // namespace.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that made an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    id: u32,
    /// Start in ticks after boot: numbers are used again.
    start_time: u64,
}

impl Owner {
    /// Parses an instance's name; `None` for those of others.
    fn of(name: &str) -> Option<Self> {
        let (id, start_time) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some(Owner { id: id.parse().ok()?, start_time: start_time.parse().ok()? })
    }

    fn is_alive(self) -> bool {
        start_time(self.id) == Some(self.start_time)
    }
}

/// Start of a process, in ticks after boot; `None`: there is none.
fn start_time(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field, the name, may hold anything, also parentheses; the time is the 22nd.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::OutOfMemory => "give a smaller --buffer",
        io::ErrorKind::NotFound => "does this kernel have the event?",
        _ if error.raw_os_error() == Some(libc::EMFILE) => "raise `ulimit -n`",
        _ => "is this kernel's tracing locked down?",
    };
    Failure::Run(format!("tracefs: cannot write {}: {error}; {hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_by_number_and_time() {
        let id = std::process::id();
        let own = Owner { id, start_time: start_time(id).unwrap() };
        assert_eq!(Owner::of(&format!("pagedepot-{id}-{}", own.start_time)), Some(own));
        assert!(own.is_alive() && !Owner { start_time: own.start_time - 1, ..own }.is_alive());
        for name in ["pagedepot", "pagedepot-", "pagedepot-12", "pagedepot-x-1", "mine-1-2"] {
            assert_eq!(Owner::of(name), None, "{name}");
        }
    }

    #[test]
    fn lost_events_are_counted() {
        let stats = "entries: 12\noverrun: 3\ncommit overrun: 9\nbytes: 500\n\
            dropped events: 4\nread events: 1\n";
        assert_eq!(lost_in(stats), 7);
        assert_eq!(lost_in(""), 0);
    }
}
