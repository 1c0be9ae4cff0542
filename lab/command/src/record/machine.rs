//! The machine of a recording, and how it was made.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use pagedepot::CpuId;
use serde::Serialize;

use super::files;
use super::options::{RecordOptions, Recorder};
use super::text::KeptCounts;
use super::window::Window;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::cpus;
use pagedepot_cli::report::machine::Machine;

/// The contents of `NAME.machine.json`.
#[derive(Serialize)]
pub struct Recording<'a> {
    schema: u32,
    machine: Machine,
    /// The command's arguments; bytes that are not UTF-8 are replaced.
    command: Vec<Cow<'a, str>>,
    /// Exit code, or the signal as a negative number.
    status: Option<i32>,
    recorder: &'static str,
    seconds: f64,
    events: u64,
    lost_samples: u64,
    /// `vm.percpu_pagelist_high_fraction`.
    percpu_pagelist_high_fraction: Option<u64>,
    /// `vm.stat_interval`.
    stat_interval_s: Option<u64>,
    /// Pages of the last-level cache that each CPU has for itself; decides when high orders are
    /// cached.
    cache_slice_pages: Option<u64>,
}

impl<'a> Recording<'a> {
    /// Describes a recording made on this machine.
    pub fn new(
        options: &'a RecordOptions,
        recorder: Recorder,
        window: &Window,
        kept: &KeptCounts,
    ) -> Self {
        Recording {
            schema: 1,
            machine: Machine::here(cpus::usable().map_or(0, |cpus| cpus.len())),
            command: options.command.iter().map(|argument| argument.to_string_lossy()).collect(),
            status: window.status.as_ref().ok().copied(),
            recorder: recorder.name(),
            seconds: window.seconds(),
            events: kept.events,
            lost_samples: kept.lost,
            percpu_pagelist_high_fraction: sysctl("percpu_pagelist_high_fraction"),
            stat_interval_s: sysctl("stat_interval"),
            cache_slice_pages: pagedepot_designs::cache_slice_pages(CpuId::new(0)),
        }
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let json =
            serde_json::to_string_pretty(self).map_err(|error| Failure::Run(error.to_string()))?;
        files::write(path, (json + "\n").as_bytes())
    }
}

fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?.trim().parse().ok()
}
