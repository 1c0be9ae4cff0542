//! Stacks of magazines; the theory is in [`stack`](crate::sync::stack).

use super::part::Part;
use crate::front::MagazineIndex;
use crate::sync::stack;

/// Bits of an index in a head.
const INDEX_BITS: u32 = 22;
const _: () = assert!(MagazineIndex::BITS <= INDEX_BITS);

/// A CPU's full magazines of one class and mobility: counted, at most 1023.
pub type Shelf = stack::Stack<INDEX_BITS, 10>;
/// Empty magazines: uncounted, and without a limit.
pub type Empties = stack::Stack<INDEX_BITS, 0>;
/// Magazines that an owner handed over, each named with what it holds: uncounted.
pub type HandedStack = stack::Stack<{ Part::BITS }, 0>;
/// Magazines linked by their `next`, owned by the holder.
pub type Chain = stack::Chain<MagazineIndex>;
