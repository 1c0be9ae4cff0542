//! The trace shipped with the command, so that it is there wherever the command is.

/// The trace of a build.
pub const TRACE: &[u8] = include_bytes!("../../traces/build.perf.txt.zst");
/// The zoneinfo before it.
pub const ZONEINFO: &str = include_str!("../../traces/build.zoneinfo.before.txt");
/// What errors and reports call it.
pub const NAME: &str = "traces/build.perf.txt.zst";
