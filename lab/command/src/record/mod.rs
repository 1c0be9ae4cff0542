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
//! | `NAME.buddyinfo.*.txt`, `NAME.pagetypeinfo.*.txt` | the same of `/proc/buddyinfo` and `/proc/pagetypeinfo`, where they can be read |
//! | `NAME.machine.json` | machine, command, recorder, settings, lost samples |
//!
//! perf runs this command again, hidden, as its own command: so the window lies inside the
//! recording, whatever perf itself does before and after.

mod files;
mod machine;
mod options;
mod perf;
mod permission;
mod recording;
mod signals;
mod text;
mod tracefs;
mod window;

pub use options::RecordOptions;
pub use recording::record;
pub use window::{INSIDE, Inside};
