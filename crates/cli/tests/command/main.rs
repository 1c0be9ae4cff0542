//! The command as people and scripts use it. Each test starts processes of its own.

mod confined;
mod hostile;
mod inputs;
#[path = "../support/terminal.rs"]
mod pty;
mod results;
#[path = "../support/confined.rs"]
mod sandboxes;
#[path = "../support/command.rs"]
mod scripts;
#[path = "../../../core/tests/common/skip.rs"]
mod skip;
#[path = "../support/hostile.rs"]
mod surroundings;
mod terminal;
mod top;

const COMMAND: &str = env!("CARGO_BIN_EXE_pagedepot");
/// The folder of the shipped trace.
const TRACES: &str = "traces";
