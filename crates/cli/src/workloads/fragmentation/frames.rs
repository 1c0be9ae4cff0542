//! Sources of single frames: an allocator of frames, or the kernel.

use pagedepot::Mode;
use pagedepot_designs::FreeMap;

use crate::design::Allocator;
use crate::harness::Subject;

/// A source of single frames that all threads share.
pub trait Frames: Subject {
    /// The name of a frame.
    type Block: Copy + Send;

    /// A frame; `None` when there is none.
    fn alloc(&self) -> Option<Self::Block>;

    /// Frees a frame that `alloc` returned, once.
    fn free(&self, block: Self::Block);

    /// Called once, when the memory has been filled and nothing has been freed yet.
    fn filled(&self) {}

    /// Takes back what all CPUs cache, by this drain or the only one that the design has.
    fn drain(&self, mode: Mode);

    /// Contiguity of the free memory, of `pages` pages of which `held` yields those held.
    ///
    /// # Errors
    /// What is wrong with the design's metadata.
    fn contiguity(&self, pages: u64, held: &[&[Self::Block]]) -> Result<Contiguity, String>;
}

/// Contiguity of free memory; not-a-number where the source cannot tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contiguity {
    /// Pageblocks that are wholly free, as a fraction of all.
    pub whole_share: f64,
    /// Aligned ranges of 1 GiB that are wholly free.
    pub gib_ranges: f64,
    /// Pageblocks that hold an unmovable frame, as a fraction of all.
    pub tainted_share: f64,
}

impl Contiguity {
    /// The values for a source that cannot tell.
    pub const UNKNOWN: Contiguity =
        Contiguity { whole_share: f64::NAN, gib_ranges: f64::NAN, tainted_share: f64::NAN };

    /// Contiguity by a map of `pages` pages. All frames are movable, so none taints its pageblock.
    fn of(map: &FreeMap, pages: u64) -> Self {
        let pageblocks = (pages / u64::from(pagedepot::Order::PAGEBLOCK.frames())) as f64;
        Contiguity {
            whole_share: map.whole_pageblocks() as f64 / pageblocks,
            gib_ranges: map.gib_ranges() as f64,
            tainted_share: 0.0,
        }
    }
}

impl<A: Allocator> Frames for A {
    type Block = A::Block;

    #[inline]
    fn alloc(&self) -> Option<A::Block> {
        Allocator::alloc::<0>(self)
    }

    #[inline]
    fn free(&self, block: A::Block) {
        Allocator::free::<0>(self, block);
    }

    fn drain(&self, mode: Mode) {
        let mode = if A::DRAINS.contains(&mode) { mode } else { Mode::Quiet };
        Allocator::drain(self, None, mode);
    }

    /// Peers have no map; every frame that is not held counts as free, cached ones included.
    fn contiguity(&self, pages: u64, held: &[&[A::Block]]) -> Result<Contiguity, String> {
        let map = match self.free_map()? {
            Some(map) => map,
            None => {
                let mut map = FreeMap::by_frame(0, pages, |_| true);
                for &block in held.iter().copied().flatten() {
                    map.remove(
                        pagedepot::Pfn::new(self.frame(block) as u32),
                        pagedepot::Order::BASE,
                    );
                }
                map
            }
        };
        Ok(Contiguity::of(&map, pages))
    }
}
