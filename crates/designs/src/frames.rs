//! The side array: a record per frame, through which free lists run without a heap.
//!
//! A frame is in at most one list at any time (a buddy list or a per-CPU list), so both use the
//! same links, as `struct page` does. The holder of the zone lock or of a per-CPU lock, or the
//! owner of a CPU, has a list for itself while it changes it.

#[cfg(not(loom))]
use std::alloc::{Layout, alloc_zeroed};
#[cfg(not(loom))]
use std::ptr::NonNull;

use pagedepot::{Order, Pfn};

use crate::prim::PlainU32;

/// A frame's place in the side array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u32);

/// No slot.
const NIL: u32 = u32::MAX;

/// A frame's record: 16 bytes, four to a cache line.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(16)))]
struct Record {
    next: PlainU32,
    prev: PlainU32,
    /// 1 + the order of the free block in the buddy lists that begins here; 0: none does.
    head: PlainU32,
    /// 1 + the number of the list of a pcp, of the block there that begins here and may merge; 0:
    /// none does. Only `PcpBuddy` has such blocks.
    merging: PlainU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Record>() == 16);

/// All records, from the first frame of the lowest zone on.
pub struct Frames {
    records: Box<[Record]>,
    base: u32,
}

impl Frames {
    /// Records for the frames from `base` up to (not including) `end`. `None` when the system has
    /// no memory for so many, as when a large machine is set up on a small one.
    pub fn new(base: u32, end: u32) -> Option<Self> {
        let count = (end - base) as usize;
        #[cfg(not(loom))]
        let records = zeroed(count)?;
        #[cfg(loom)]
        let records = std::iter::repeat_with(|| Record {
            next: PlainU32::new(0),
            prev: PlainU32::new(0),
            head: PlainU32::new(0),
            merging: PlainU32::new(0),
        })
        .take(count)
        .collect();
        Some(Frames { records, base })
    }

    #[inline]
    pub fn slot(&self, pfn: Pfn) -> Slot {
        Slot(pfn.get() - self.base)
    }

    #[inline]
    pub fn pfn(&self, slot: Slot) -> Pfn {
        Pfn::new(self.base + slot.0)
    }

    /// The slot of a frame, if it has a record.
    pub fn at(&self, pfn: u32) -> Option<Slot> {
        let slot = pfn.checked_sub(self.base)?;
        ((slot as usize) < self.records.len()).then_some(Slot(slot))
    }

    #[inline]
    fn record(&self, slot: Slot) -> &Record {
        &self.records[slot.0 as usize]
    }

    /// The order of the free block that begins at `slot`, if one does. The caller holds the zone
    /// lock.
    #[inline]
    pub fn head(&self, slot: Slot) -> Option<Order> {
        Order::new(self.record(slot).head.get().wrapping_sub(1))
    }

    #[inline]
    pub fn set_head(&self, slot: Slot, order: Option<Order>) {
        self.record(slot).head.set(order.map_or(0, |order| order.get() + 1));
    }

    /// The list of a pcp that holds the block that begins at `slot`, if it may merge there. The
    /// caller holds the lock of that pcp, or of the pcp whose CPU owns the frame.
    #[inline]
    pub fn merging(&self, slot: Slot) -> Option<u32> {
        self.record(slot).merging.get().checked_sub(1)
    }

    #[inline]
    pub fn set_merging(&self, slot: Slot, list: Option<u32>) {
        self.record(slot).merging.set(list.map_or(0, |list| list + 1));
    }
}

/// Zeroed memory. The system backs it at first use, so a machine's holes cost nothing.
#[cfg(not(loom))]
fn zeroed(count: usize) -> Option<Box<[Record]>> {
    if count == 0 {
        return Some(Box::default());
    }
    let layout = Layout::array::<Record>(count).ok()?;
    // SAFETY: of more than no bytes.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast();
    // SAFETY: allocated above with the layout of such a slice, and zeroes are valid records (four
    // integers in atomics).
    Some(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(start, count).as_ptr()) })
}

/// A doubly linked list of frames. `first` and `last` name its ends, so the outer links of the end
/// frames are never read and need not be valid: taking the first frame writes to no other.
pub struct List {
    first: PlainU32,
    last: PlainU32,
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl List {
    pub fn new() -> Self {
        List { first: PlainU32::new(NIL), last: PlainU32::new(NIL) }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.get() == NIL
    }

    #[inline]
    pub fn first(&self) -> Option<Slot> {
        let first = self.first.get();
        (first != NIL).then_some(Slot(first))
    }

    #[inline]
    pub fn push_front(&self, frames: &Frames, slot: Slot) {
        let first = self.first.get();
        if first == NIL {
            self.last.set(slot.0);
        } else {
            frames.record(slot).next.set(first);
            frames.record(Slot(first)).prev.set(slot.0);
        }
        self.first.set(slot.0);
    }

    #[inline]
    pub fn push_back(&self, frames: &Frames, slot: Slot) {
        let last = self.last.get();
        if self.is_empty() {
            self.first.set(slot.0);
        } else {
            frames.record(slot).prev.set(last);
            frames.record(Slot(last)).next.set(slot.0);
        }
        self.last.set(slot.0);
    }

    /// Takes the first: the hottest of a per-CPU list.
    #[inline]
    pub fn pop_front(&self, frames: &Frames) -> Option<Slot> {
        let first = self.first()?;
        if first.0 == self.last.get() {
            self.clear();
        } else {
            self.first.set(frames.record(first).next.get());
        }
        Some(first)
    }

    /// Takes the last: the coldest of a per-CPU list.
    #[inline]
    pub fn pop_back(&self, frames: &Frames) -> Option<Slot> {
        if self.is_empty() {
            return None;
        }
        let last = Slot(self.last.get());
        if self.first.get() == last.0 {
            self.clear();
        } else {
            self.last.set(frames.record(last).prev.get());
        }
        Some(last)
    }

    /// Takes a frame that is in this list.
    pub fn remove(&self, frames: &Frames, slot: Slot) {
        if self.first.get() == slot.0 {
            self.pop_front(frames);
        } else if self.last.get() == slot.0 {
            self.pop_back(frames);
        } else {
            let record = frames.record(slot);
            let (prev, next) = (record.prev.get(), record.next.get());
            frames.record(Slot(prev)).next.set(next);
            frames.record(Slot(next)).prev.set(prev);
        }
    }

    /// Puts all of `other` before this list's first.
    pub fn splice_front(&self, frames: &Frames, other: &List) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.last.set(other.last.get());
        } else {
            frames.record(Slot(other.last.get())).next.set(self.first.get());
            frames.record(Slot(self.first.get())).prev.set(other.last.get());
        }
        self.first.set(other.first.get());
        other.clear();
    }

    fn clear(&self) {
        self.first.set(NIL);
        self.last.set(NIL);
    }

    /// Iterates from first to last. The caller excludes changes. Ends after `max` frames at the
    /// latest, so that a walk over a broken list ends.
    pub fn iter<'l>(&'l self, frames: &'l Frames, max: usize) -> impl Iterator<Item = Slot> + 'l {
        let last = self.last.get();
        std::iter::successors(self.first(), move |&slot| {
            (slot.0 != last).then(|| Slot(frames.record(slot).next.get()))
        })
        .take(max)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares a list with a deque: both ends, and removal from anywhere.
        #[test]
        fn lists_are_deques(steps in proptest::collection::vec((0u8..6, 0u32..16), 0..200)) {
            let frames = Frames::new(100, 116).unwrap();
            let (list, mut model) = (List::new(), VecDeque::new());
            for (step, at) in steps {
                let slot = Slot(at);
                match step {
                    0 if !model.contains(&slot) => {
                        list.push_front(&frames, slot);
                        model.push_front(slot);
                    }
                    1 if !model.contains(&slot) => {
                        list.push_back(&frames, slot);
                        model.push_back(slot);
                    }
                    2 => assert_eq!(list.pop_front(&frames), model.pop_front()),
                    3 => assert_eq!(list.pop_back(&frames), model.pop_back()),
                    4 => if let Some(place) = model.iter().position(|&s| s == slot) {
                        list.remove(&frames, slot);
                        model.remove(place);
                    },
                    5 => {
                        let other = List::new();
                        let apart = (0..16).map(Slot).filter(|slot| !model.contains(slot));
                        for s in apart.take(3).collect::<Vec<_>>() {
                            other.push_front(&frames, s);
                            model.push_front(s);
                        }
                        list.splice_front(&frames, &other);
                    }
                    _ => {}
                }
                prop_assert!(list.iter(&frames, 100).eq(model.iter().copied()));
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }
}
