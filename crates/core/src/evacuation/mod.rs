//! Evacuation: sparsely used pageblocks leave circulation, so that they become whole.
//!
//! # Vocabulary
//! * A pageblock *evacuates* while the store avoids it for this policy: searches pass it by, and
//!   frees of its frames lead to the store. It is *settled* when that ends.
//! * *hand*: where a CPU looks next at pageblocks, to see which should evacuate.
//!
//! # Theory
//! Fronts are last in, first out: the frame that was freed last is the next one allocated, whatever
//! pageblock it pins. However many magazines are exchanged with the store, the same frames
//! circulate, and no pageblock becomes whole (decision 0008). So the frames of some pageblocks must
//! not come on top. Their tags lead `free` to fronts of their own, of which no allocation pops: at
//! no cost, because `free` reads the tag anyway. Such a front has one magazine. When it is full it
//! goes to the store, never to a shelf. There searches pass by these pageblocks until they would
//! have to break up a whole one, or fail; they settle those that they take from.
//!
//! The argument why a tag may change while frames are held or cached is in `store/avoided.rs`.
//! How many pageblocks evacuate is in `policy.rs`.
//!
//! # What the rest knows
//! The store and the caches know the mark alone (`store/avoided.rs`), and not why it is set. The
//! caches keep a [`Hand`] for each CPU and zone, and call it on slow paths by [`HandStep`]; what a
//! step asks for in return, they do themselves. So the policy takes no frame and changes no cache.
//!
//! | module | what |
//! |---|---|
//! | `policy` | [`Evacuation`], and how many pageblocks of a zone evacuate |
//! | `hand` | what a CPU has seen of a zone, and the spare magazines on its shelves; its step: which pageblocks begin to evacuate, and which end |

mod hand;
mod policy;

pub use hand::{Hand, HandStep, Spares};
#[cfg(all(test, not(any(loom, shuttle))))]
pub use policy::State;
pub use policy::{Evacuation, ZonePolicy};
