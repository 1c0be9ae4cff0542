//! What comes out: rows for scripts, tables for people, progress for the waiting.

pub mod json;
pub mod machine;
pub mod progress;
pub mod report;
pub mod table;

pub use progress::Progress;
pub use report::Report;
