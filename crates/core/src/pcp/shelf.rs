//! A stack of magazines that anyone may push to, pop from, or take whole, by one atomic operation.
//!
//! This is the "atomically switch the pointer to the per-cpu lists" of the 2022 remote-drain
//! series, with no grace period to wait for: the magazines taken have one owner at once.
//!
//! # The head
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..=21 | index | the top magazine, 0: none |
//! | 22..=31 | count | magazines in the stack |
//! | 32..=63 | tag | operations so far, modulo 2^32 |
//!
//! A stack of empties counts nothing: its tag begins at bit 22 and counts modulo 2^42.
//!
//! Transitions, each a compare-and-swap that adds 1 to the tag: push `(top, n) -> (m, n + 1)`,
//! pop `(m, n) -> (next of m, n - 1)`, take-all `(m, n) -> (none, 0)`.
//!
//! # Argument
//! A magazine is linked into at most one stack, and while it is, its link is written by nobody:
//! the pusher writes it before the compare-and-swap that publishes it (Release), and it has an
//! owner again only after a pop or take-all (Acquire). A popper may read the link of a magazine
//! that has been taken meanwhile: the memory is still a magazine, the value is stale, and the tag
//! has moved, so its compare-and-swap fails. Take-all is a compare-and-swap too: an exchange would
//! have to write a tag it has not read, and a popper that slept across it could find its old head
//! again (six steps suffice).
//!
//! # When a tag repeats
//! A popper is deceived only if it stalls between its load of the head and its compare-and-swap,
//! and goes on when the tag, the top and the count are the old ones again. Each operation has a
//! slow path around it, so one stack sees less than 20 million of them per second. The tag of a
//! shelf then wraps after 2^32 / 2*10^7 per second = 215 seconds of nothing else, that of a stack
//! of empties after 2^42 / 2*10^7 per second = 61 hours. Only a thread that is stopped from outside
//! (a signal, a debugger, a frozen group, a virtual CPU) stalls that long, and it must go on within
//! the one operation in 2^32 (2^42) that has its tag. This is accepted, not excluded.

use crate::front::{BlockArray, MagazineIndex};
use crate::sync::model::{Mutant, is_mutant};
use crate::sync::prim::{AtomicU64, Ordering};

/// Most magazines in one stack.
pub const COUNT_MAX: u32 = (1 << 10) - 1;

/// A stack that counts its magazines and holds at most [`COUNT_MAX`].
pub type Shelf = Stack<true>;
/// A stack of empty magazines: uncounted, and without a limit.
pub type Empties = Stack<false>;

/// A stack of magazines.
pub struct Stack<const COUNTED: bool>(AtomicU64);

#[derive(Clone, Copy)]
struct Head<const COUNTED: bool>(u64);

/// Bits of the index of a head.
const INDEX_BITS: u32 = 22;
const _: () = assert!(MagazineIndex::BITS <= INDEX_BITS);

impl<const COUNTED: bool> Head<COUNTED> {
    /// Where the tag begins.
    const TAG_SHIFT: u32 = if COUNTED { INDEX_BITS + COUNT_MAX.count_ones() } else { INDEX_BITS };

    fn top(self) -> Option<MagazineIndex> {
        MagazineIndex::new((self.0 & ((1 << INDEX_BITS) - 1)) as u32)
    }

    fn count(self) -> u32 {
        if COUNTED { (self.0 >> INDEX_BITS & u64::from(COUNT_MAX)) as u32 } else { 0 }
    }

    /// The head after one more operation.
    fn next(self, top: Option<MagazineIndex>, count: u32) -> u64 {
        debug_assert!(count <= if COUNTED { COUNT_MAX } else { 0 });
        // The tag is what the shift leaves of it: it wraps without reaching the other fields.
        let tag = (self.0 >> Self::TAG_SHIFT).wrapping_add(one_operation());
        tag << Self::TAG_SHIFT
            | u64::from(count) << INDEX_BITS
            | u64::from(top.map_or(0, MagazineIndex::get))
    }
}

/// What an operation adds to the tag.
#[inline]
fn one_operation() -> u64 {
    if is_mutant(Mutant::Untagged) {
        return 0;
    }
    1
}

/// Magazines linked by their `next`, owned by the holder.
#[derive(Clone, Copy)]
pub struct Chain {
    pub first: MagazineIndex,
    pub count: u32,
}

impl Chain {
    /// The magazine after `at` in a chain or stack the caller owns.
    pub fn next(blocks: &BlockArray, at: MagazineIndex) -> Option<MagazineIndex> {
        // Relaxed: the chain was acquired by the operation that took it.
        MagazineIndex::new(blocks.magazine(at).next.load(Ordering::Relaxed))
    }
}

impl<const COUNTED: bool> Stack<COUNTED> {
    pub fn new() -> Self {
        Stack(AtomicU64::new(0))
    }

    fn head(&self, ordering: Ordering) -> Head<COUNTED> {
        Head(self.0.load(ordering))
    }

    /// Magazines in it now; 0 for a stack of empties.
    #[inline]
    pub fn count(&self) -> u32 {
        // SeqCst: a disabler writes the gate and then looks here, see `push_chain`.
        self.head(Ordering::SeqCst).count()
    }

    /// The top magazine, for a walk while nobody else is there.
    pub fn peek(&self) -> Option<MagazineIndex> {
        self.head(Ordering::Acquire).top()
    }

    /// Puts a magazine the caller owns on top; `Err` gives it back when the stack is full.
    pub fn push(&self, blocks: &BlockArray, magazine: MagazineIndex) -> Result<(), MagazineIndex> {
        self.push_chain(blocks, magazine, magazine, 1).map_err(|()| magazine)
    }

    /// Puts `count` magazines, linked from `first` to `last`, on top, or fails when the stack
    /// could not count them.
    pub fn push_chain(
        &self,
        blocks: &BlockArray,
        first: MagazineIndex,
        last: MagazineIndex,
        count: u32,
    ) -> Result<(), ()> {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            let old = Head::<COUNTED>(head);
            let count = if COUNTED { old.count() + count } else { 0 };
            if count > COUNT_MAX {
                return Err(());
            }
            // Relaxed: published by the Release below.
            blocks
                .magazine(last)
                .next
                .store(old.top().map_or(0, MagazineIndex::get), Ordering::Relaxed);
            let new = old.next(Some(first), count);
            // SeqCst: Release pairs with the Acquire of pop and take_all and publishes slots and
            // links; SeqCst because whoever disables a CPU's caches closes the gate and then takes
            // the shelf, while the owner pushes and then looks at the gate (Dekker).
            match self.0.compare_exchange_weak(head, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes the top magazine.
    pub fn pop(&self, blocks: &BlockArray) -> Option<MagazineIndex> {
        // Acquire: pairs with the Release of `push_chain`, so that the link read below is at
        // least as new as this head.
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let old = Head::<COUNTED>(head);
            let top = old.top()?;
            let below = MagazineIndex::new(blocks.magazine(top).next.load(Ordering::Relaxed));
            let new = old.next(below, old.count().saturating_sub(1));
            match self.0.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }

    /// Takes all magazines at once.
    pub fn take_all(&self) -> Option<Chain> {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            let old = Head::<COUNTED>(head);
            let first = old.top()?;
            // SeqCst: Acquire pairs with the Release of `push_chain`; see there for the rest.
            match self.0.compare_exchange_weak(
                head,
                old.next(None, 0),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Chain { first, count: old.count() }),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::front::Magazine;

    /// Calls `test` with `count` magazines.
    fn with_magazines(count: u32, test: impl FnOnce(&BlockArray)) {
        let magazines: Vec<Magazine> = (0..count).map(|_| Magazine::new()).collect();
        let first = magazines.as_ptr().expose_provenance();
        // Magazine 1 is the first.
        let base = std::ptr::with_exposed_provenance_mut(first - size_of::<Magazine>());
        test(&BlockArray {
            base,
            gates_from: 0,
            blocks_at: 0,
            stride: 0,
            cpus: 0,
            context_stride: 0,
        });
    }

    fn magazine(index: u32) -> MagazineIndex {
        MagazineIndex::new(index).unwrap()
    }

    #[test]
    fn every_field_of_a_head_comes_back_and_the_tag_wraps() {
        for tag in [0, 1, u32::MAX - 1, u32::MAX] {
            for count in [0, 1, COUNT_MAX - 1, COUNT_MAX] {
                for top in [None, Some(1), Some((1 << MagazineIndex::BITS) - 1)] {
                    let head = Head::<true>(u64::from(tag) << 32).next(top.map(magazine), count);
                    assert_eq!(Head::<true>(head).top(), top.map(magazine));
                    assert_eq!(Head::<true>(head).count(), count);
                    assert_eq!((head >> 32) as u32, tag.wrapping_add(1));
                }
            }
        }
    }

    /// Without a count there are ten bits more for the tag.
    #[test]
    fn the_tag_of_a_stack_of_empties_has_42_bits() {
        const TAG_MAX: u64 = (1 << 42) - 1;
        for tag in [0, 1, u64::from(u32::MAX), 1 << 32, TAG_MAX - 1, TAG_MAX] {
            for top in [None, Some(1), Some((1 << MagazineIndex::BITS) - 1)] {
                let head = Head::<false>(tag << 22).next(top.map(magazine), 0);
                assert_eq!(
                    (Head::<false>(head).top(), Head::<false>(head).count()),
                    (top.map(magazine), 0)
                );
                assert_eq!(head >> 22, (tag + 1) & TAG_MAX);
            }
        }
        with_magazines(1, |blocks| {
            // 2^32 operations ago the head looked otherwise.
            let empties = Stack::<false>(AtomicU64::new(u64::from(u32::MAX) << 22));
            empties.push(blocks, magazine(1)).unwrap();
            assert_eq!(empties.0.load(Ordering::Relaxed) >> 22, 1 << 32);
        });
    }

    #[test]
    fn last_in_first_out_up_to_the_limit() {
        with_magazines(COUNT_MAX + 2, |blocks| {
            let shelf = Shelf::new();
            assert!(shelf.pop(blocks).is_none() && shelf.take_all().is_none());
            for index in 1..=COUNT_MAX {
                assert_eq!(shelf.push(blocks, magazine(index)), Ok(()));
                assert_eq!((shelf.count(), shelf.peek()), (index, Some(magazine(index))));
            }
            let one_more = magazine(COUNT_MAX + 1);
            assert_eq!(shelf.push(blocks, one_more), Err(one_more));
            for index in (1..=COUNT_MAX).rev() {
                assert_eq!(shelf.pop(blocks), Some(magazine(index)));
                assert_eq!(shelf.count(), index - 1);
            }
            assert!(shelf.pop(blocks).is_none());
        });
    }

    #[test]
    fn chains_come_and_go_whole() {
        with_magazines(10, |blocks| {
            let shelf = Shelf::new();
            (1..=5).for_each(|index| shelf.push(blocks, magazine(index)).unwrap());
            let chain = shelf.take_all().unwrap();
            assert_eq!((chain.first, chain.count, shelf.count()), (magazine(5), 5, 0));
            shelf.push(blocks, magazine(6)).unwrap();
            shelf.push_chain(blocks, chain.first, magazine(1), chain.count).unwrap();
            let mut order = Vec::new();
            while let Some(top) = shelf.pop(blocks) {
                order.push(top.get());
            }
            assert_eq!(order, [5, 4, 3, 2, 1, 6]);
            // A chain that would not fit changes nothing.
            shelf.push(blocks, magazine(7)).unwrap();
            assert!(shelf.push_chain(blocks, magazine(8), magazine(9), COUNT_MAX).is_err());
            assert_eq!((shelf.count(), shelf.peek()), (1, Some(magazine(7))));
        });
    }

    #[test]
    fn a_stack_of_empties_counts_nothing_and_has_no_limit() {
        with_magazines(2 * COUNT_MAX, |blocks| {
            let empties = Empties::new();
            (1..=2 * COUNT_MAX).for_each(|index| empties.push(blocks, magazine(index)).unwrap());
            assert_eq!(empties.count(), 0);
            for index in (1..=2 * COUNT_MAX).rev() {
                assert_eq!(empties.pop(blocks), Some(magazine(index)));
            }
            assert!(empties.pop(blocks).is_none());
        });
    }
}
