//! Tests of compaction, removal and page reporting, a room each: one program, because each would
//! compile the allocator again. Tests that cross them with all else are the core's: its storm, its
//! model, its handlers.

#[path = "../../../core/tests/common/mod.rs"]
mod common;
mod compacting;
mod compacting_large;
mod confining;
mod removing;
mod reporting;
