//! The blocks that CPUs cache, magazine by magazine.

use core::ops::ControlFlow;

use crate::frame::{CpuId, Order, Pfn, ZoneId};
use crate::front::MagazineIndex;
use crate::pcp::Pcps;
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;

/// The magazines that CPUs cache. Beside a CPU that runs, what a visit finds may be stale.
pub(crate) struct CachedBlocks<'a, 'm>(pub &'a Pcps<'m>);

impl CachedBlocks<'_, '_> {
    /// Visits every magazine of a CPU in a zone that may hold frames.
    pub fn visit<B>(
        &self,
        cpu: CpuId,
        zone: ZoneId,
        mut visit: impl FnMut(MagazineVisit) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let blocks = self.0.blocks();
        let mut charged = |order, magazine, rounds| {
            visit(MagazineVisit { order, magazine, rounds, is_charged: true })
        };
        for (front, _, word) in self.0.used_fronts(cpu, zone) {
            if let Some(loaded) = word.loaded() {
                charged(front.order, loaded, word.rounds())?;
            }
            if let Some((previous, fill)) = word.previous() {
                charged(front.order, previous, fill.rounds(front.order.rounds()))?;
            }
        }
        for (order, _, shelf) in self.0.pcp(cpu, zone).shelves() {
            let mut at = shelf.peek(blocks);
            for _ in 0..shelf.count() {
                let Some(magazine) = at else { break };
                charged(order, magazine, order.rounds())?;
                at = blocks.next(magazine);
            }
        }
        self.0.handed(cpu, zone).try_for_each(|part| {
            let (magazine, order, rounds) = part.unpack();
            visit(MagazineVisit { order, magazine, rounds, is_charged: false })
        })
    }

    /// The first frames of the blocks in a magazine.
    pub fn frames_of(&self, magazine: MagazineIndex, rounds: u32) -> impl Iterator<Item = Pfn> {
        let slots = &self.0.blocks().magazine(magazine).slots[..rounds as usize];
        // Relaxed: `validate` runs alone, and others take what they find for a hint.
        slots.iter().map(|slot| Pfn::new(slot.load(Ordering::Relaxed)))
    }
}

/// A magazine that may hold frames.
pub(crate) struct MagazineVisit {
    pub order: Order,
    pub magazine: MagazineIndex,
    pub rounds: u32,
    /// Whether its CPU is charged with it: in a front or on a shelf, not handed over.
    pub is_charged: bool,
}
