//! An architecture without sequences: [`Area::find`] finds no area, so no area's CPU is read.

use crate::Area;

pub const HAS_SEQUENCES: bool = false;

pub fn are_restarted(_area: Area) -> Option<bool> {
    Some(true)
}

pub fn cpu_id(_area: Area) -> u32 {
    u32::MAX
}
