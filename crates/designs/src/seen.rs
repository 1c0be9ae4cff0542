//! The set of frames that a validation has met: a frame that it meets twice is in two places.

use pagedepot::{Order, Pfn, ZoneId};

use crate::census::Fault;
use crate::zones::Zones;

/// The frames that a validation has seen.
pub struct FrameSet {
    words: Vec<u64>,
    base: u32,
}

impl FrameSet {
    /// An empty set.
    pub fn new(zones: &Zones) -> Self {
        let ranges = || {
            zones
                .ids()
                .flat_map(|id| zones.zone(id).ranges.clone())
                .filter(|range| range.frames > 0)
        };
        let base = ranges().map(|range| range.start.get()).min().unwrap_or(0);
        let end = ranges().map(|range| range.end()).max().unwrap_or(0);
        FrameSet { words: vec![0; end.saturating_sub(u64::from(base)).div_ceil(64) as usize], base }
    }

    /// Marks a block of a zone.
    ///
    /// # Errors
    /// When one of its frames was seen before, or is not the zone's, or the block is not aligned.
    pub fn mark(
        &mut self,
        zones: &Zones,
        zone: ZoneId,
        pfn: Pfn,
        order: Order,
    ) -> Result<(), Fault> {
        let end = u64::from(pfn.get()) + u64::from(order.frames());
        let inside = |range: &pagedepot::FrameRange| range.start <= pfn && end <= range.end();
        if !pfn.is_aligned(order) || !covered(&zones.zone(zone).ranges, pfn, end, inside) {
            return Err(Fault::Misplaced { pfn });
        }
        for frame in (0..order.frames()).map(|i| pfn.add(i)) {
            let at = (frame.get() - self.base) as usize;
            if self.words[at / 64] >> (at % 64) & 1 == 1 {
                return Err(Fault::Doubled { pfn: frame });
            }
            self.words[at / 64] |= 1 << (at % 64);
        }
        Ok(())
    }
}

/// Whether a block lies in one range, or in several that touch.
fn covered(
    ranges: &[pagedepot::FrameRange],
    pfn: Pfn,
    end: u64,
    inside: impl Fn(&pagedepot::FrameRange) -> bool,
) -> bool {
    ranges.iter().any(inside)
        || (u64::from(pfn.get())..end).all(|frame| {
            ranges.iter().any(|r| u64::from(r.start.get()) <= frame && frame < r.end())
        })
}
