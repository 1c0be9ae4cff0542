//! Memory added while a depot is in use: [`Depot::grow`](crate::Depot::grow).
//!
//! Pages are found by their distance from the first page, so memory can only be added at the
//! addresses behind the last. [`Builder::grow_to`](crate::Builder::grow_to) reserves these, and
//! [`Growth::add`] puts memory there. Memory is added in whole units of the allocator's metadata,
//! and each unit is added once.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

use pagedepot::{AddError, ConfigError, FrameRange, NodeId, PageSize, Pfn, ZoneId};

use crate::error::{BuildError, no_mapping, no_memory};
use crate::memory::frames::MappedFrames;
use crate::system::fork_mark::ForkMark;
use crate::system::mapping::Mapping;
use crate::system::numa;
use crate::system::sync::ForkLock;

/// Frames per unit of added memory, see
/// [`Allocator::add_memory`](pagedepot::Allocator::add_memory).
const UNIT_FRAMES: usize = 1 << 18;

/// Bytes per unit of added memory.
pub(crate) fn unit(page_size: PageSize) -> usize {
    UNIT_FRAMES << page_size.shift()
}

/// The state of a depot that can grow.
pub(crate) struct Growth {
    is_bound: bool,
    is_populated: bool,
    /// The metadata of added memory, which the allocator refers to. A caller that adds memory holds
    /// the lock. Boxed, because growing changes it (see `Depot`).
    metadata: Box<ForkLock<Vec<Mapping>>>,
}

impl Growth {
    /// Added memory is bound to its zone's node with `is_bound`, made present with `is_populated`.
    pub fn new(is_bound: bool, is_populated: bool, fork_mark: ForkMark<'static>) -> Self {
        Growth { is_bound, is_populated, metadata: Box::new(ForkLock::new(fork_mark, Vec::new())) }
    }

    /// Holds the lock that adding memory takes.
    #[cfg(test)]
    pub fn lock_for_tests(&self) -> impl Sized + '_ {
        self.metadata.lock().unwrap()
    }

    /// Adds memory to a zone; see [`Depot::grow`](crate::Depot::grow). `ready` gets the memory
    /// before any thread can get one of the pages.
    pub fn add(
        &self,
        mapped: &MappedFrames,
        zone: ZoneId,
        bytes: usize,
        ready: impl FnOnce(NonNull<u8>, usize),
    ) -> Result<Pfn, BuildError> {
        mapped.check_parent().map_err(|_| BuildError::Forked)?;
        if bytes == 0 {
            return Err(BuildError::ZeroGrowth);
        }
        let Some(stats) = mapped.frames().zone_stats(zone) else {
            return Err(ConfigError::NoSuchZone { zone: zone.get() }.into());
        };
        let _bringing = mapped.bringing();
        let mut kept = self.metadata.lock()?;
        let (memory, shift) = (mapped.memory(), mapped.page_size().shift());
        let (start, room) = (memory.bytes(), memory.own_bytes() - memory.bytes());
        let unit = unit(mapped.page_size());
        let bytes = bytes.checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        if bytes > room {
            return Err(BuildError::CannotGrow { bytes, room });
        }
        let part = start..start + bytes;
        let first = Pfn::new((start >> shift) as u32);
        let range = FrameRange::new(first, (bytes >> shift) as u32);
        let metadata_bytes = mapped.frames().section_bytes(range);
        let mapping = Mapping::anonymous(metadata_bytes).map_err(no_memory(metadata_bytes))?;
        memory.put(part.clone())?;
        if let Err(error) = self.prepare(mapped, &part, stats.node) {
            memory.take_away(part);
            return Err(error);
        }
        // SAFETY: inside the memory.
        ready(unsafe { mapped.base().add(part.start) }, part.len());
        // SAFETY: the mapping's only reference. `growth` keeps the mapping, and is dropped after
        // the allocator.
        let metadata: &'static mut [MaybeUninit<u8>] = unsafe {
            std::slice::from_raw_parts_mut(mapping.start().as_ptr().cast(), mapping.bytes())
        };
        kept.push(mapping);
        // Before any thread can get one of the pages.
        memory.set_bytes(part.end);
        match mapped.frames().add_memory(zone, range, metadata) {
            // A child, which a signal handler has forked above this.
            Err(AddError { why: ConfigError::Forked, .. }) => Err(BuildError::Forked),
            added => Ok(added.map(|()| first).expect("one caller adds, and each range once")),
        }
    }

    /// Binds and populates a part of the memory, if the depot's memory is bound or populated.
    fn prepare(
        &self,
        mapped: &MappedFrames,
        part: &Range<usize>,
        node: NodeId,
    ) -> Result<(), BuildError> {
        if self.is_bound {
            // SAFETY: inside the memory.
            let start = unsafe { mapped.base().add(part.start) };
            numa::bind(start, part.len(), node)
                .map_err(|errno| no_mapping(BuildError::Numa { node, errno })(errno))?;
        }
        if self.is_populated { mapped.memory().populate(part.clone()) } else { Ok(()) }
    }
}
