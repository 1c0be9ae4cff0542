//! A stack that any thread may push to, pop from, or take whole, by one atomic operation.
//!
//! Its elements are in an array that never moves; each has a number and a link ([`Links`]). The
//! shelves of full magazines are such stacks, and so are vmap's pools and spare descriptors. Taking
//! a stack whole does what the 2022 remote-drain series calls "atomically switch the pointer to the
//! per-cpu lists". It needs no grace period: the elements taken have one owner at once.
//!
//! # The head
//! | bits | field | meaning |
//! |---|---|---|
//! | the lowest `INDEX_BITS` | index | the top element, 0: none |
//! | the next `COUNT_BITS` | count | elements in the stack |
//! | the rest | tag | operations so far, modulo 2^(bits) |
//!
//! With `COUNT_BITS` 0 a stack counts nothing and has no limit.
//!
//! Transitions, each a compare-and-swap that adds 1 to the tag: push `(top, n) -> (e, n + 1)`,
//! pop `(e, n) -> (next of e, n - 1)`, take-all `(e, n) -> (none, 0)`. Push and pop also move
//! several elements that are linked.
//!
//! # Argument
//! An element is linked into at most one stack, and while it is, its link is not written: the
//! pusher writes it before the compare-and-swap that publishes it (Release), and it has an owner
//! again only after a pop or take-all (Acquire). A popper may read the link of an element that
//! another thread has taken. The memory is still an element, the value is stale, and the tag has
//! moved, so the popper's compare-and-swap fails. Take-all is a compare-and-swap too: an exchange
//! would have to write a tag it has not read, and a popper that slept across it could find its old
//! head again (six steps suffice).
//!
//! # When a tag repeats
//! A popper is deceived only if it stalls between its load of the head and its compare-and-swap,
//! and continues when the tag, the top and the count are the old ones again. Each operation has a
//! slow path around it, so one stack sees less than 20 million of them per second. With the fields
//! of a shelf (22 bits of index, 10 of count) the tag wraps after 2^32 / 2*10^7 per second = 215
//! seconds of nothing else; with 22 bits of index alone, as for empty magazines, after
//! 2^42 / 2*10^7 per second = 61 hours. Only a thread that is stopped from outside (a signal, a
//! debugger, a frozen group, a virtual CPU) stalls that long, and it must go on within the one
//! operation in 2^32 (2^42) that has its tag. This is accepted, not excluded.

use super::model::{Mutant, is_mutant};
use super::prim::{AtomicU32, AtomicU64, Ordering};
use super::total::SHELVES;

/// The elements that a stack is made of.
pub trait Links {
    /// An element's number, which is never 0.
    type Index: Copy;

    /// The number as an integer.
    fn number(index: Self::Index) -> u32;

    /// The element with this number; `None` for 0.
    fn index(number: u32) -> Option<Self::Index>;

    /// The element's link. It stays readable for as long as there are stacks of these elements.
    fn link(&self, index: Self::Index) -> &AtomicU32;

    /// The element after `at` in a chain or stack that the caller owns.
    fn next(&self, at: Self::Index) -> Option<Self::Index> {
        // Relaxed: the chain was acquired by the operation that took it.
        Self::index(self.link(at).load(Ordering::Relaxed))
    }
}

/// A stack; see the module.
#[derive(Default)]
pub struct Stack<const INDEX_BITS: u32, const COUNT_BITS: u32>(AtomicU64);

#[derive(Clone, Copy)]
struct Head<const INDEX_BITS: u32, const COUNT_BITS: u32>(u64);

impl<const INDEX_BITS: u32, const COUNT_BITS: u32> Head<INDEX_BITS, COUNT_BITS> {
    /// First bit of the tag.
    const TAG_SHIFT: u32 = INDEX_BITS + COUNT_BITS;
    const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

    fn top(self) -> u32 {
        (self.0 & ((1 << INDEX_BITS) - 1)) as u32
    }

    fn count(self) -> u32 {
        (self.0 >> INDEX_BITS) as u32 & Self::COUNT_MAX
    }

    /// The head after one more operation.
    fn next(self, top: u32, count: u32) -> u64 {
        // `top` may be a stale link of an element that has an owner, which keeps other things
        // there: the tag refuses such a head.
        debug_assert!(count <= Self::COUNT_MAX);
        // The tag is what the shift leaves of it: it wraps without reaching the other fields.
        let one = if is_mutant(Mutant::Untagged) { 0 } else { 1 };
        let tag = (self.0 >> Self::TAG_SHIFT).wrapping_add(one);
        tag << Self::TAG_SHIFT | u64::from(count) << INDEX_BITS | u64::from(top)
    }
}

/// The stack could not count as many elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Elements linked from the first, owned by the holder.
#[derive(Clone, Copy)]
pub struct Chain<I> {
    pub first: I,
    /// Number of elements; 0 if the stack they come from counts nothing.
    pub count: u32,
}

/// Elements linked from the first to the last, owned by the holder; what the last links to is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoppedChain<I> {
    pub first: I,
    pub last: I,
    pub count: u32,
}

impl<I: Copy> PoppedChain<I> {
    /// The elements of a chain of one or two, the last first. No link is read.
    pub fn each(self) -> impl Iterator<Item = I> {
        debug_assert!(self.count <= 2);
        [self.last, self.first].into_iter().take(self.count as usize)
    }
}

impl<I: Copy> From<I> for PoppedChain<I> {
    fn from(element: I) -> Self {
        PoppedChain { first: element, last: element, count: 1 }
    }
}

impl<const INDEX_BITS: u32, const COUNT_BITS: u32> Stack<INDEX_BITS, COUNT_BITS> {
    /// Most elements that a stack which counts can hold.
    pub const COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;

    fn head(&self, ordering: Ordering) -> Head<INDEX_BITS, COUNT_BITS> {
        Head(self.0.load(ordering))
    }

    /// Elements in it now; 0 if it counts nothing.
    #[inline]
    pub fn count(&self) -> u32 {
        // SeqCst: a disabler of caches writes the gate and then looks here, see `push_chain`.
        self.head(SHELVES.look()).count()
    }

    /// Whether there was no element at this moment: a hint, by which no drain is left out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: nothing is read through the head; a pop looks again.
        self.head(Ordering::Relaxed).top() == 0
    }

    /// A number that every operation changes: while it stays the same, the stack was not used.
    pub fn version(&self) -> u64 {
        // Relaxed: it is compared with an earlier one, and no element is read through it.
        self.head(Ordering::Relaxed).0
    }

    /// The top element, for a walk that nothing else disturbs, or as a hint.
    pub fn peek<L: Links>(&self, _: &L) -> Option<L::Index> {
        L::index(self.head(Ordering::Acquire).top())
    }

    /// Puts an element the caller owns on top; `Err` gives it back when the stack is full.
    pub fn push<L: Links>(&self, links: &L, index: L::Index) -> Result<(), L::Index> {
        self.push_chain(links, index, index, 1).map_err(|Full| index)
    }

    /// Puts `count` elements, linked from `first` to `last`, on top, or fails when the stack
    /// could not count them.
    pub fn push_chain<L: Links>(
        &self,
        links: &L,
        first: L::Index,
        last: L::Index,
        count: u32,
    ) -> Result<(), Full> {
        self.push_chain_within(Self::COUNT_MAX, links, first, last, count)
    }

    /// Pushes a chain like [`push_chain`](Self::push_chain), and fails when the stack would have
    /// more than `limit` elements, which is at most [`COUNT_MAX`](Self::COUNT_MAX). After an error
    /// `last` may link to an element of the stack.
    #[inline]
    pub fn push_chain_within<L: Links>(
        &self,
        limit: u32,
        links: &L,
        first: L::Index,
        last: L::Index,
        count: u32,
    ) -> Result<(), Full> {
        // Relaxed: the compare-and-swap verifies it.
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            let old = Head::<INDEX_BITS, COUNT_BITS>(head);
            let count = if COUNT_BITS > 0 { old.count() + count } else { 0 };
            if count > limit {
                return Err(Full);
            }
            // Relaxed: published by the Release below.
            links.link(last).store(old.top(), Ordering::Relaxed);
            let new = old.next(L::number(first), count);
            // SeqCst: Release pairs with the Acquire of pop and take_all and publishes elements and
            // links; SeqCst because a disabler of a CPU's caches closes the gate and then takes the
            // shelf, while the owner pushes and then looks at the gate (Dekker).
            match self.0.compare_exchange_weak(head, new, SHELVES.change(), Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes the top element.
    pub fn pop<L: Links>(&self, links: &L) -> Option<L::Index> {
        self.pop_if(links, |_| true)
    }

    /// Takes the top element if it `fits`. `fits` may be called for an element that has an owner by
    /// then; its answer for that one is not used.
    #[inline]
    pub fn pop_if<L: Links>(&self, links: &L, fits: impl Fn(L::Index) -> bool) -> Option<L::Index> {
        // Acquire: pairs with the Release of `push_chain`, so that the link read below is at
        // least as new as this head.
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let old = Head::<INDEX_BITS, COUNT_BITS>(head);
            let top = L::index(old.top()).filter(|&top| fits(top))?;
            let below = links.link(top).load(Ordering::Relaxed);
            let new = old.next(below, old.count().saturating_sub(1));
            match self.0.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }

    /// Takes up to `most` elements from the top, by one operation; `most` is not 0.
    ///
    /// Follows `most` links, all of which may be stale: only for elements whose links are numbers
    /// of elements also while they have owners.
    pub fn pop_chain<L: Links>(&self, links: &L, most: u32) -> Option<PoppedChain<L::Index>> {
        // Acquire: as in `pop`.
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let old = Head::<INDEX_BITS, COUNT_BITS>(head);
            let first = L::index(old.top())?;
            let (mut last, mut count) = (first, 1);
            let mut below = links.next(first);
            while let Some(next) = below.filter(|_| count < most) {
                (last, count, below) = (next, count + 1, links.next(next));
            }
            let new = old.next(below.map_or(0, L::number), old.count().saturating_sub(count));
            match self.0.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(PoppedChain { first, last, count }),
                Err(now) => head = now,
            }
        }
    }

    /// Takes all elements at once.
    pub fn take_all<L: Links>(&self, _: &L) -> Option<Chain<L::Index>> {
        // Relaxed: the exchange acquires; no link is read before it.
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            let old = Head::<INDEX_BITS, COUNT_BITS>(head);
            let first = L::index(old.top())?;
            // SeqCst: Acquire pairs with the Release of `push_chain`; see there for the rest.
            match self.0.compare_exchange_weak(
                head,
                old.next(0, 0),
                SHELVES.change(),
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

    type Counted = Stack<22, 10>;
    type Uncounted = Stack<22, 0>;
    const COUNT_MAX: u32 = Counted::COUNT_MAX;
    const TOP_MAX: u32 = (1 << 22) - 1;

    /// Elements 1, 2, ...: links alone.
    struct Elements(Vec<AtomicU32>);

    impl Elements {
        fn new(count: u32) -> Self {
            Elements((0..=count).map(|_| AtomicU32::new(0)).collect())
        }
    }

    impl Links for Elements {
        type Index = u32;

        fn number(index: u32) -> u32 {
            index
        }

        fn index(number: u32) -> Option<u32> {
            (number != 0).then_some(number)
        }

        fn link(&self, index: u32) -> &AtomicU32 {
            &self.0[index as usize]
        }
    }

    #[test]
    fn every_field_of_a_head_comes_back_and_the_tag_wraps() {
        for tag in [0, 1, u32::MAX - 1, u32::MAX] {
            for count in [0, 1, COUNT_MAX - 1, COUNT_MAX] {
                for top in [0, 1, TOP_MAX] {
                    let head = Head::<22, 10>(u64::from(tag) << 32).next(top, count);
                    assert_eq!(Head::<22, 10>(head).top(), top);
                    assert_eq!(Head::<22, 10>(head).count(), count);
                    assert_eq!((head >> 32) as u32, tag.wrapping_add(1));
                }
            }
        }
    }

    #[test]
    fn without_a_count_the_tag_has_its_bits() {
        const TAG_MAX: u64 = (1 << 42) - 1;
        for tag in [0, 1, u64::from(u32::MAX), 1 << 32, TAG_MAX - 1, TAG_MAX] {
            for top in [0, 1, TOP_MAX] {
                let head = Head::<22, 0>(tag << 22).next(top, 0);
                assert_eq!((Head::<22, 0>(head).top(), Head::<22, 0>(head).count()), (top, 0));
                assert_eq!(head >> 22, (tag + 1) & TAG_MAX);
            }
        }
        // 2^32 operations ago the head looked otherwise.
        let stack = Stack::<22, 0>(AtomicU64::new(u64::from(u32::MAX) << 22));
        stack.push(&Elements::new(1), 1).unwrap();
        assert_eq!(stack.0.load(Ordering::Relaxed) >> 22, 1 << 32);
    }

    #[test]
    fn last_in_first_out_up_to_the_limit() {
        let elements = Elements::new(COUNT_MAX + 2);
        let stack = Counted::default();
        assert!(stack.pop(&elements).is_none() && stack.take_all(&elements).is_none());
        for index in 1..=COUNT_MAX {
            assert_eq!(stack.push(&elements, index), Ok(()));
            assert_eq!((stack.count(), stack.peek(&elements)), (index, Some(index)));
        }
        assert_eq!(stack.push(&elements, COUNT_MAX + 1), Err(COUNT_MAX + 1));
        for index in (1..=COUNT_MAX).rev() {
            assert_eq!(stack.pop(&elements), Some(index));
            assert_eq!(stack.count(), index - 1);
        }
        assert!(stack.pop(&elements).is_none());
    }

    #[test]
    fn chains_come_and_go_whole() {
        let elements = Elements::new(10);
        let stack = Counted::default();
        (1..=5).for_each(|index| stack.push(&elements, index).unwrap());
        let chain = stack.take_all(&elements).unwrap();
        assert_eq!((chain.first, chain.count, stack.count()), (5, 5, 0));
        stack.push(&elements, 6).unwrap();
        stack.push_chain(&elements, chain.first, 1, chain.count).unwrap();
        let order: Vec<u32> = std::iter::from_fn(|| stack.pop(&elements)).collect();
        assert_eq!(order, [5, 4, 3, 2, 1, 6]);
        // A chain that would not fit changes nothing.
        stack.push(&elements, 7).unwrap();
        assert!(stack.push_chain(&elements, 8, 9, COUNT_MAX).is_err());
        assert_eq!((stack.count(), stack.peek(&elements)), (1, Some(7)));
    }

    #[test]
    fn several_come_from_the_top() {
        let elements = Elements::new(5);
        let stack = Counted::default();
        assert_eq!(stack.pop_chain(&elements, 1), None);
        (1..=5).for_each(|index| stack.push(&elements, index).unwrap());
        let top = stack.pop_chain(&elements, 2).unwrap();
        assert_eq!(top, PoppedChain { first: 5, last: 4, count: 2 });
        assert_eq!((elements.next(5), stack.count(), stack.peek(&elements)), (Some(4), 3, Some(3)));
        let rest = stack.pop_chain(&elements, u32::MAX).unwrap();
        assert_eq!(rest, PoppedChain { first: 3, last: 1, count: 3 });
        assert_eq!((stack.count(), stack.pop(&elements)), (0, None));
    }

    #[test]
    fn a_stack_that_counts_nothing_has_no_limit() {
        let elements = Elements::new(2 * COUNT_MAX);
        let stack = Uncounted::default();
        (1..=2 * COUNT_MAX).for_each(|index| stack.push(&elements, index).unwrap());
        assert_eq!(stack.count(), 0);
        for index in (1..=2 * COUNT_MAX).rev() {
            assert_eq!(stack.pop(&elements), Some(index));
        }
        assert!(stack.pop(&elements).is_none());
    }
}
