//! Recording what a replay needs: a command's page events, and the machine before and after it.
//!
//! # Vocabulary
//! * *recorder*: what collects events: `perf`, or the kernel's tracefs where perf is missing.
//! * *window*: from one look at `/proc/zoneinfo` to the next, with the command in between. Events
//!   outside are dropped, so that the caches' balance holds from the first look to the second.
//!
//! # Files
//! | file | holds |
//! |---|---|
//! | `NAME.perf.txt.zst` | the events, as `pagedepot replay` reads them |
//! | `NAME.zoneinfo.before.txt`, `NAME.zoneinfo.after.txt` | `/proc/zoneinfo` at both ends of the window |
//! | `NAME.machine.json` | machine, command, recorder, settings, lost samples |
//!
//! perf runs this command again, hidden, as its own command: so the window lies inside the
//! recording, whatever perf itself does before and after.

mod files;
mod machine;
mod perf;
mod permission;
mod signals;
mod text;
mod tracefs;
mod window;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli;
use crate::failure::Failure;
use files::Files;
use machine::Recording;
use signals::Signals;
use text::Kept;
pub use window::Inside;

/// Options of `record`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Write NAME.perf.txt.zst, NAME.zoneinfo.before.txt and .after.txt, and NAME.machine.json
    #[arg(short, long = "output", value_name = "NAME")]
    pub output: PathBuf,
    /// What records (default: perf if it can, else tracefs)
    #[arg(long, value_name = "WHAT")]
    pub with: Option<Recorder>,
    /// MiB of buffer per CPU: more loses fewer samples (perf rounds up to a power of two)
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = cli::whole::<4096>, allow_negative_numbers = true)]
    pub buffer: u32,
    /// Replace an earlier recording of that name
    #[arg(long)]
    pub force: bool,
    /// The command to record, with its arguments. Its exit status becomes that of `record`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Recorder {
    /// `perf record -a`
    Perf,
    /// The kernel's tracefs, in an instance of its own
    Tracefs,
}

impl Recorder {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Recorder::Perf => "perf",
            Recorder::Tracefs => "tracefs",
        }
    }
}

/// What every recording has. The second column: replays need it.
const EVENTS: [(&str, bool); 9] = [
    ("kmem:mm_page_alloc", true),
    ("kmem:mm_page_free", true),
    ("kmem:mm_page_free_batched", true),
    ("kmem:mm_page_pcpu_drain", true),
    ("kmem:mm_page_alloc_zone_locked", true),
    ("vmalloc:alloc_vmap_area", false),
    ("vmalloc:free_vmap_area_noflush", false),
    ("vmalloc:purge_vmap_area_lazy", false),
    // `vmstat_update`, which lowers `high`; text.rs drops the others.
    ("workqueue:workqueue_execute_start", false),
];

/// What came of it.
pub struct Recorded {
    /// To be shown.
    pub text: String,
    /// What the command exited with, or 128 and the signal that ended it.
    pub exit_code: u8,
}

/// Records a command; says what was recorded.
///
/// # Errors
/// When permissions are missing, the command cannot be started, or files cannot be written.
pub fn record(options: &Options) -> Result<Recorded, Failure> {
    let signals = Signals::block()?;
    let files = Files::new(&options.output, options.force)?;
    let recorder = permission::choose(options.with)?;
    let events = events_here();
    let place = (&files, &signals);
    let (window, kept) = match recorder {
        Recorder::Perf => perf::record(options, &events, place)?,
        Recorder::Tracefs => tracefs::record(options, &events, place)?,
    };
    if kept.page_events == 0 {
        return Err(Failure::Run(format!(
            "{} recorded no page event in {:.3} s: give a command that allocates memory",
            recorder.name(),
            window.seconds()
        )));
    }
    Recording::new(options, recorder, &window, &kept).write(&files.machine)?;
    let [trace, before, after, machine] = files.keep()?;
    let files = format!("wrote {trace}, {before}, {after} and {machine}");
    let text = format!(
        "{}\n{files}\nreplay with: pagedepot replay {trace} --design spin\n",
        summary(recorder, &window, &kept)
    );
    Ok(Recorded { text, exit_code: window.exit_code() })
}

fn summary(recorder: Recorder, window: &window::Window, kept: &Kept) -> String {
    let lost = match kept.lost {
        0 => "no samples lost".to_owned(),
        lost => format!("{lost} SAMPLES LOST: record again with a larger --buffer"),
    };
    let status =
        window.status_text().map(|status| format!("the command {status}\n")).unwrap_or_default();
    let (events, seconds, recorder) = (kept.events, window.seconds(), recorder.name());
    format!("{status}{events} events in {seconds:.3} s with {recorder}, {lost}")
}

/// The events that this kernel has.
fn events_here() -> Vec<&'static str> {
    let tracefs = permission::tracefs();
    let exists = |event: &str| {
        let path = event.replace(':', "/");
        tracefs.as_ref().is_some_and(|tracefs| tracefs.join("events").join(path).exists())
    };
    // What a replay needs is asked for in any case: the recorder then says that it is missing.
    EVENTS
        .into_iter()
        .filter(|&(event, needed)| needed || exists(event))
        .map(|(event, _)| event)
        .collect()
}
