//! Counters of compaction, by zone.

use crate::sync::count;
use crate::sync::prim::{AtomicU64, Ordering};

macro_rules! compactions {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of a zone's compactions since construction.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Compactions {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The cells behind [`Compactions`].
        #[derive(Default)]
        pub struct CompactionCounters {
            $($name: AtomicU64,)*
        }

        impl CompactionCounters {
            pub fn count(&self, done: &Compactions) {
                $(if done.$name > 0 { count(&self.$name, done.$name); })*
            }

            pub fn read(&self) -> Compactions {
                Compactions { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

compactions! {
    /// Compactions that ended, those for requests included. One that a panic of its mover ended is
    /// not counted.
    compactions,
    /// Compactions that reached their target.
    compact_reached,
    /// Pageblocks that became whole.
    emptied_pageblocks,
    /// Candidates looked at: pageblocks, or windows of them.
    compact_looks,
    /// Blocks moved.
    moved_blocks,
    /// Pages in them.
    moved_pages,
    /// Blocks that could not be moved.
    pinned_blocks,
    /// Blocks that were freed before they were moved.
    gone_blocks,
    /// Moves for which there was no destination.
    unplaced_blocks,
}
