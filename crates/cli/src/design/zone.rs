//! The zone of allocators that are made of frame numbers.

use pagedepot::{FrameRange, NodeId, Watermarks, ZoneConfig};

/// One ordinary zone on one node; with `None` for watermarks, those that the kernel would compute.
pub const fn normal(ranges: &[FrameRange], watermarks: Option<Watermarks>) -> ZoneConfig<'_> {
    ZoneConfig { name: "Normal", node: NodeId::new(0), level: 2, ranges, watermarks }
}
