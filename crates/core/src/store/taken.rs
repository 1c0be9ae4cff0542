//! The blocks that a search has taken so far.

use core::ops::ControlFlow;

use super::found::WordBlocks;

/// The blocks that a search for up to `want` blocks has taken.
pub(super) struct Harvest<F> {
    want: u32,
    blocks: u32,
    give: F,
}

impl<F: FnMut(WordBlocks)> Harvest<F> {
    /// Makes the list of a search that has taken nothing yet. Blocks are passed to `give`.
    pub fn new(want: u32, give: F) -> Self {
        Harvest { want, blocks: 0, give }
    }

    /// Number of blocks taken.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of blocks that are still wanted.
    pub fn left(&self) -> u32 {
        self.want - self.blocks
    }

    pub fn is_done(&self) -> bool {
        self.blocks == self.want
    }

    /// Whether an eighth of what is wanted is there.
    pub fn is_an_eighth(&self) -> bool {
        8 * self.blocks >= self.want
    }

    /// Whether the search goes on.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_done() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes some more.
    #[inline]
    pub fn give(&mut self, found: WordBlocks) {
        self.blocks += found.blocks();
        (self.give)(found);
    }
}
