//! The metadata of a [`Vmap`](super::Vmap): arrays in the caller's memory, and nothing that depends
//! on mapper or host. The one place that makes references out of that memory.
//!
//! The locks lie there too. An environment that wipes the memory in a forked child wipes them with
//! it: they are free there, whatever a thread of the parent held at the fork, and what they protect
//! is empty. A holder or waiter that was interrupted by the handler that forked goes on likewise: a
//! free lock can be unlocked, and a waiter's next look finds it free.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::area::{Area, Areas};
use super::config::{VmapConfig, VmapConfigError};
use super::frames::FrameTable;
use super::index::SegmentIndex;
use super::lock::Lock;
use super::node::Node;
use super::space::Space;
use super::tables::Tables;
use super::units::Range;
use pagedepot::sync::prim::{AtomicU8, AtomicU32, AtomicU64};

/// Alignment of each array: two cache lines, which prefetchers treat as one.
const ALIGN: usize = 128;

/// What is known about the memory for the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Nothing: all of it is written.
    Any,
    /// Every byte is zero: most of it need not be touched until it is used.
    Zeroed,
}

/// How many elements each array has.
#[derive(Clone, Copy)]
struct Counts {
    areas: usize,
    pages: usize,
    tables: usize,
    nodes: usize,
}

impl Counts {
    fn new(config: &VmapConfig, range: &Range, table_pages: u32) -> Self {
        Counts {
            areas: config.areas_max as usize + 1,
            pages: range.pages as usize,
            tables: Tables::count(range.base_page(), range.pages, table_pages),
            nodes: config.nodes() as usize,
        }
    }

    /// Bytes of all arrays, wherever the memory begins.
    fn bytes(&self) -> Option<usize> {
        let arrays = [
            (self.areas, size_of::<Area>()),
            (self.pages, 2 * size_of::<AtomicU32>() + size_of::<AtomicU8>()),
            (self.tables, size_of::<AtomicU32>()),
            (self.nodes, size_of::<Node>()),
            (1, size_of::<Space>()),
            (1, size_of::<Lock>()),
        ];
        // Each of the eight arrays may waste less than ALIGN.
        arrays
            .iter()
            .try_fold(8 * ALIGN, |sum, &(count, size)| sum.checked_add(count.checked_mul(size)?))
    }
}

/// The arrays.
pub struct Metadata<'m> {
    pub areas: Areas<'m>,
    pub index: SegmentIndex<'m>,
    pub frames: FrameTable<'m>,
    pub tables: Tables<'m>,
    pub nodes: &'m [Node],
    pub space: &'m Space,
    /// Held by the purger.
    pub purge_lock: &'m Lock,
}

impl<'m> Metadata<'m> {
    pub fn bytes(
        config: &VmapConfig,
        range: &Range,
        table_pages: u32,
    ) -> Result<usize, VmapConfigError> {
        config.check()?;
        Counts::new(config, range, table_pages).bytes().ok_or(VmapConfigError::TooLarge)
    }

    pub fn new(
        config: &VmapConfig,
        range: &Range,
        table_pages: u32,
        memory: &'m mut [MaybeUninit<u8>],
        known: Memory,
    ) -> Result<Self, VmapConfigError> {
        let (needed, given) = (Self::bytes(config, range, table_pages)?, memory.len());
        let counts = Counts::new(config, range, table_pages);
        let mut arena = Arena::new(memory, known);
        let mut carve = || -> Option<Metadata<'m>> {
            Some(Metadata {
                areas: Areas(arena.slice_zero(counts.areas, Area::new)?),
                index: SegmentIndex(arena.slice_zero(counts.pages, || AtomicU32::new(0))?),
                frames: FrameTable {
                    frames: arena.slice_zero(counts.pages, || AtomicU32::new(0))?,
                    orders: arena.slice_zero(counts.pages, || AtomicU8::new(0))?,
                },
                tables: Tables {
                    words: arena.slice_zero(counts.tables, || AtomicU32::new(0))?,
                    table_pages,
                    skew: (range.base_page() % u64::from(table_pages)) as u32,
                    range_pages: range.pages,
                    populated: AtomicU64::new(0),
                    populated_max: AtomicU64::new(0),
                    released: AtomicU64::new(0),
                },
                nodes: arena.slice(counts.nodes, Node::new)?,
                space: arena.one(Space::new())?,
                purge_lock: arena.one(Lock::new())?,
            })
        };
        carve().ok_or(VmapConfigError::TooLittleMetadata { needed, given })
    }
}

/// Types of which all zero bytes are the value that their constructor makes.
///
/// # Safety
/// Just that, in production builds.
unsafe trait Zero {}
// SAFETY: `Area::new` sets every field to 0, and all fields are integers; padding may be anything.
unsafe impl Zero for Area {}
// SAFETY: an integer; used with 0.
unsafe impl Zero for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zero for AtomicU8 {}

/// The caller's memory, cut from the front.
struct Arena<'m> {
    next: *mut u8,
    left: usize,
    known: Memory,
    memory: PhantomData<&'m mut [u8]>,
}

impl<'m> Arena<'m> {
    fn new(memory: &'m mut [MaybeUninit<u8>], known: Memory) -> Self {
        // Model checkers' atomics are not integers: zero bytes would not do.
        let known = if cfg!(loom) { Memory::Any } else { known };
        Arena { next: memory.as_mut_ptr().cast(), left: memory.len(), known, memory: PhantomData }
    }

    /// Cuts off room for `count` values.
    fn room<T>(&mut self, count: usize) -> Option<*mut T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let skip = self.next.align_offset(ALIGN);
        let bytes = count.checked_mul(size_of::<T>())?.checked_add(skip)?;
        self.left = self.left.checked_sub(bytes)?;
        let room = self.next.wrapping_add(skip);
        self.next = self.next.wrapping_add(bytes);
        Some(room.cast())
    }

    fn slice<T>(&mut self, count: usize, make: impl Fn() -> T) -> Option<&'m [T]> {
        let room = self.room::<T>(count)?;
        for i in 0..count {
            // SAFETY: `room` has space for `count` values, aligned, in memory that is the metadata'
            // for 'm.
            unsafe { room.add(i).write(make()) };
        }
        // SAFETY: all `count` values were written above, and nothing writes there but through
        // them.
        Some(unsafe { core::slice::from_raw_parts(room, count) })
    }

    fn one<T>(&mut self, value: T) -> Option<&'m T> {
        let room = self.room::<T>(1)?;
        // SAFETY: as in `slice`.
        unsafe {
            room.write(value);
            Some(&*room)
        }
    }

    fn slice_zero<T: Zero>(&mut self, count: usize, make: impl Fn() -> T) -> Option<&'m [T]> {
        if self.known == Memory::Any {
            return self.slice(count, make);
        }
        let room = self.room::<T>(count)?;
        // SAFETY: as in `slice`; the bytes are zero, which is a value of T.
        Some(unsafe { core::slice::from_raw_parts(room, count) })
    }
}
