//! A whole recording.

use super::files::Files;
use super::machine::Recording;
use super::options::{RecordOptions, Recorder};
use super::signals::Signals;
use super::text::KeptCounts;
use super::window::Window;
use super::{perf, permission, tracefs};
use pagedepot_cli::failure::Failure;

/// The events to record, and whether a replay needs them.
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

/// The result of a recording.
pub struct RecordingResult {
    /// The summary for people.
    pub text: String,
    /// The command's exit code, or 128 and the signal that ended it.
    pub exit_code: u8,
}

/// Records a command.
///
/// # Errors
/// When permissions are missing, the command cannot be started, or files cannot be written.
pub fn record(options: &RecordOptions) -> Result<RecordingResult, Failure> {
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
    let kept_files = files.keep()?;
    let (trace, files) = (&kept_files[0], format!("wrote {}", kept_files.join(", ")));
    let text = format!(
        "{}\n{files}\nreplay with: pagedepot replay {trace} --design spin\n",
        summary(recorder, &window, &kept)
    );
    Ok(RecordingResult { text, exit_code: window.exit_code() })
}

fn summary(recorder: Recorder, window: &Window, kept: &KeptCounts) -> String {
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
