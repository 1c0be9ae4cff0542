//! A system for unit tests whose code runs on one CPU, and the configuration of an allocator for
//! it.

use core::ops::Range;

use super::config::ZoneConfig;
use crate::cpus::{Environment, WhichCpu};
use crate::frame::pageblock::SECTION_FRAMES;
use crate::frame::{CpuId, FrameRange, NodeId, Pfn};

/// Always runs on this CPU.
pub(crate) struct On(pub u32);

impl WhichCpu for On {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(self.0))
    }
}

impl Environment for On {}

/// One zone of those frames.
pub(crate) fn zone(ranges: &[FrameRange]) -> ZoneConfig<'_> {
    ZoneConfig { name: "a", node: NodeId::new(0), level: 0, ranges, watermarks: None }
}

/// The frames of these sections.
pub(crate) fn sections(numbers: Range<u32>) -> FrameRange {
    FrameRange::new(Pfn::new(numbers.start * SECTION_FRAMES), numbers.len() as u32 * SECTION_FRAMES)
}
