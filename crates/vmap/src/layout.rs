//! Layout of the metadata in the caller's memory.
//!
//! The locks lie there, too. An environment that zeroes the memory in a forked child zeroes them
//! with it: in the child they are free, whatever a thread of the parent held at the fork, and what
//! they protect is empty. A holder or waiter that the forking handler interrupted goes on as well:
//! a free lock can be unlocked, and a waiter's next look finds it free.

use core::mem::MaybeUninit;

use crate::config::{VmapConfig, VmapConfigError};
use crate::lock::Lock;
use crate::map::Mappings;
use crate::map::tables::Tables;
use crate::metadata::area::{Area, Areas};
use crate::metadata::arena::{ALIGN, Arena};
use crate::metadata::directory::Directory;
use crate::metadata::frames::FrameTable;
use crate::metadata::index::{SEGMENT_PAGES, SegmentIndex};
use crate::node::{Node, Nodes};
use crate::seams::host::Host;
use crate::seams::mapper::Mapper;
use crate::space::Space;
use crate::state::{PlacedParts, VmapState};
use crate::units::{ManagedRange, Span};
use pagedepot::sync::prim::{AtomicU8, AtomicU32};

/// Largest range in pages: whole segments, so that the end of a segment has a number.
const PAGES_MAX: u32 = u32::MAX / SEGMENT_PAGES * SEGMENT_PAGES;

/// Number of elements of each array.
#[derive(Clone, Copy)]
struct Lengths {
    areas: usize,
    pages: usize,
    tables: usize,
    nodes: usize,
}

impl Lengths {
    fn new(config: &VmapConfig, range: &ManagedRange, table_pages: u32) -> Self {
        Lengths {
            areas: config.areas_max as usize + 1,
            pages: range.pages as usize,
            tables: Tables::count(range, table_pages),
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

/// Bytes of metadata for a configuration and a mapper.
pub fn bytes<M: Mapper>(config: &VmapConfig, mapper: &M) -> Result<usize, VmapConfigError> {
    config.check()?;
    let lengths = Lengths::new(config, &range_of(mapper)?, mapper.table_pages());
    lengths.bytes().ok_or(VmapConfigError::TooLarge)
}

/// Makes the state of a vmap, all addresses free.
pub fn build<'m, M: Mapper, H: Host>(
    config: &VmapConfig,
    memory: &'m mut [MaybeUninit<u8>],
    mapper: M,
    host: H,
) -> Result<VmapState<'m, M, H>, VmapConfigError> {
    let (needed, given) = (bytes(config, &mapper)?, memory.len());
    let range = range_of(&mapper)?;
    let table_pages = mapper.table_pages();
    let lengths = Lengths::new(config, &range, table_pages);
    let mut arena = Arena::new(memory, config.metadata_is_zero);
    let carved = carve(&mut arena, lengths, &range, table_pages);
    let carved = carved.ok_or(VmapConfigError::TooLittleMetadata { needed, given })?;
    let nodes = Nodes::new(
        carved.nodes,
        config.pool_pages_max(range.pages),
        config.warm_pages_max(range.page_size),
        config.large_pages_max(range.page_size),
    );
    let mappings = Mappings::new(mapper, range, carved.frames, carved.tables, config.stale);
    let (directory, space, purge_lock) = (carved.directory, carved.space, carved.purge_lock);
    let placed = PlacedParts { directory, nodes, space, purge_lock };
    let state = VmapState::new(config, host, mappings, placed);
    state.lock_space().open(range.pages);
    Ok(state)
}

/// The arrays.
struct CarvedArrays<'m> {
    directory: Directory<'m>,
    frames: FrameTable<'m>,
    tables: Tables<'m>,
    nodes: &'m [Node],
    space: &'m Space,
    purge_lock: &'m Lock,
}

fn carve<'m>(
    arena: &mut Arena<'m>,
    lengths: Lengths,
    range: &ManagedRange,
    table_pages: u32,
) -> Option<CarvedArrays<'m>> {
    let zero = || AtomicU32::new(0);
    let areas = Areas(arena.slice_zero(lengths.areas, Area::new)?);
    let index = SegmentIndex(arena.slice_zero(lengths.pages, zero)?);
    Some(CarvedArrays {
        directory: Directory::new(areas, index, *range),
        frames: FrameTable {
            frames: arena.slice_zero(lengths.pages, zero)?,
            orders: arena.slice_zero(lengths.pages, || AtomicU8::new(0))?,
        },
        tables: Tables::new(arena.slice_zero(lengths.tables, zero)?, range, table_pages),
        nodes: arena.slice(lengths.nodes, Node::new)?,
        space: arena.one(Space::new())?,
        purge_lock: arena.one(Lock::new())?,
    })
}

fn range_of<M: Mapper>(mapper: &M) -> Result<ManagedRange, VmapConfigError> {
    let (span, page_size, tables) = (mapper.span(), mapper.page_size(), mapper.table_pages());
    let Span { start, pages } = span;
    let bytes = (pages as usize).checked_mul(page_size.bytes());
    let fits = bytes.is_some_and(|bytes| start.get().checked_add(bytes).is_some());
    if pages == 0
        || pages > PAGES_MAX
        || start.get() == 0
        || start.get() % page_size.bytes() != 0
        || !fits
    {
        return Err(VmapConfigError::BadRange { start, pages });
    }
    if !tables.is_power_of_two() || tables > 1 << 15 {
        return Err(VmapConfigError::BadTables { pages: tables });
    }
    Ok(ManagedRange { base: start, pages, page_size })
}
