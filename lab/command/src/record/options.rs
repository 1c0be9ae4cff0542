//! Options of `record`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use pagedepot_cli::args;

/// Options of `record`.
#[derive(Clone, Debug, Args)]
pub struct RecordOptions {
    /// Write NAME.perf.txt.zst, NAME.zoneinfo.before.txt and .after.txt, and NAME.machine.json
    #[arg(short, long = "output", value_name = "NAME")]
    pub output: PathBuf,
    /// The recorder (default: perf if it works, else tracefs)
    #[arg(long, value_name = "WHAT")]
    pub with: Option<Recorder>,
    /// Buffer per CPU in MiB: a larger one loses fewer samples (perf rounds up to a power of two)
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 64,
        value_parser = args::whole::<4096>,
        allow_negative_numbers = true,
    )]
    pub buffer: u32,
    /// Replace an earlier recording of that name
    #[arg(long)]
    pub force: bool,
    /// The command to record, with its arguments. Its exit status becomes that of `record`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The program or interface that collects the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Recorder {
    /// `perf record -a`
    Perf,
    /// The kernel's tracefs, in an instance of its own
    Tracefs,
}

impl Recorder {
    /// The name in options, messages and `NAME.machine.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Recorder::Perf => "perf",
            Recorder::Tracefs => "tracefs",
        }
    }
}
