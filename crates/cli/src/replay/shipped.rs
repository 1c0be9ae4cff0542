//! The trace that is compiled into the command, so that it is available wherever the command is.

/// The trace of a build.
pub const TRACE: &[u8] = include_bytes!("../../traces/build.perf.txt.zst");
/// The zoneinfo before it.
pub const ZONEINFO: &str = include_str!("../../traces/build.zoneinfo.before.txt");
/// The name in errors and reports.
pub const NAME: &str = "traces/build.perf.txt.zst";
