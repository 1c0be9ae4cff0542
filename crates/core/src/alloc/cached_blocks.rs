//! The blocks that CPUs cache, magazine by magazine.

use core::ops::ControlFlow;

use crate::frame::{CpuId, Pfn, ZoneId};
use crate::front::word::Word;
use crate::front::{Here, MagazineIndex};
use crate::pcp::{Front, Pcps};
use crate::sync::prim::Ordering;
use crate::sync::stack::Links;

/// See the module. Beside a CPU that runs, what a visit finds may be stale.
pub(super) struct CachedBlocks<'a, 'm>(pub &'a Pcps<'m>);

impl CachedBlocks<'_, '_> {
    /// Visits every magazine of a CPU in a zone with the number of its rounds.
    pub fn visit<B>(
        &self,
        cpu: CpuId,
        zone: ZoneId,
        mut visit: impl FnMut(Front, MagazineIndex, u32) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let blocks = self.0.blocks();
        for (front, offset) in self.0.fronts(cpu, zone) {
            // Acquire: pairs with the Release of the sequence that stored the word, publishes the
            // magazine's slots.
            let word = Word(blocks.word(front.here, offset).load(Ordering::Acquire));
            if let Some(loaded) = word.loaded() {
                visit(front, loaded, word.rounds())?;
            }
            if let Some((previous, full)) = word.previous() {
                visit(front, previous, if full { front.class.rounds() } else { 0 })?;
            }
        }
        for (class, mobility, shelf) in self.0.pcp(cpu, zone).shelves() {
            let front = Front { here: Here::task(cpu), zone, class, mobility };
            let mut at = shelf.peek(blocks);
            for _ in 0..shelf.count() {
                let Some(magazine) = at else { break };
                visit(front, magazine, class.rounds())?;
                at = blocks.next(magazine);
            }
        }
        ControlFlow::Continue(())
    }

    /// The first frames of the blocks in a magazine.
    pub fn frames_of(&self, magazine: MagazineIndex, rounds: u32) -> impl Iterator<Item = Pfn> {
        let slots = &self.0.blocks().magazine(magazine).slots[..rounds as usize];
        slots.iter().map(|slot| Pfn::new(slot.load(Ordering::Relaxed)))
    }
}
