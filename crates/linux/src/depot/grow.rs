//! Memory added while a depot is in use.
//!
//! Pages are found by their distance from the first page, so memory can only be added at the
//! addresses behind the last. [`Builder::grow_to`](crate::Builder::grow_to) reserves these, and
//! [`Depot::grow`] puts memory there. Memory is added in whole units of the allocator's metadata,
//! and each unit is added once.

use std::mem::MaybeUninit;
use std::ops::Range;

use pagedepot::{ConfigError, FrameRange, NodeId, Pfn, ZoneId};

use crate::depot::handle::Depot;
use crate::error::{BuildError, no_mapping, no_memory};
use crate::memory::growth::unit;
use crate::system::mapping::Mapping;
use crate::system::numa;

impl Depot {
    /// Adds memory to a zone while other threads use the depot, and returns the first page of it.
    /// `bytes` is rounded up to a multiple of 2^18 pages (1 GiB of 4 KiB pages). The memory is of
    /// the kind that the depot was built with, and is bound and populated if the depot's memory is.
    /// Watermarks and cache limits do not change; [`settings`](Self::settings) changes them.
    ///
    /// Over a store of the program's own ([`Builder::build_over`](crate::Builder::build_over)) the
    /// pages may be put there once this has returned.
    ///
    /// ```
    /// use pagedepot_linux::{Depot, ZoneId};
    ///
    /// let depot = Depot::builder(1 << 30).grow_to(4 << 30).build()?;
    /// depot.grow(ZoneId::new(0), 1 << 30)?;
    /// assert_eq!(depot.bytes(), 2 << 30);
    /// # Ok::<(), pagedepot_linux::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::ZeroGrowth`] for 0 bytes. [`BuildError::CannotGrow`] beyond
    /// [`Builder::grow_to`](crate::Builder::grow_to). [`BuildError::Forked`] in a child.
    /// [`ConfigError::NoSuchZone`]. Errors of the system, as in
    /// [`Builder::build`](crate::Builder::build). After an error nothing was added.
    pub fn grow(&self, zone: ZoneId, bytes: usize) -> Result<Pfn, BuildError> {
        let raw = self.shared();
        raw.check_parent().map_err(|_| BuildError::Forked)?;
        if bytes == 0 {
            return Err(BuildError::ZeroGrowth);
        }
        let Some(stats) = self.zone_stats(zone) else {
            return Err(ConfigError::NoSuchZone { zone: zone.get() }.into());
        };
        let _bringing = raw.bringing();
        let mut kept = raw.growth().metadata.lock().map_err(|_| BuildError::Forked)?;
        let (memory, shift) = (raw.memory(), self.page_size().shift());
        let (start, room) = (memory.bytes(), memory.bytes_max() - memory.bytes());
        let unit = unit(self.page_size());
        let bytes = bytes.checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        if bytes > room {
            return Err(BuildError::CannotGrow { bytes, room });
        }
        let part = start..start + bytes;
        let first = Pfn::new((start >> shift) as u32);
        let range = FrameRange::new(first, (bytes >> shift) as u32);
        let metadata_bytes = raw.frames().section_bytes(range);
        let mapping = Mapping::anonymous(metadata_bytes).map_err(no_memory(metadata_bytes))?;
        memory.put(part.clone())?;
        if let Err(error) = self.prepare(&part, stats.node) {
            memory.take_away(part);
            return Err(error);
        }
        // SAFETY: the mapping's only reference. `growth` keeps the mapping, and is dropped after
        // the allocator.
        let metadata: &'static mut [MaybeUninit<u8>] = unsafe {
            std::slice::from_raw_parts_mut(mapping.start().as_ptr().cast(), mapping.bytes())
        };
        kept.push(mapping);
        // Before any thread can get one of the pages.
        memory.set_bytes(part.end);
        raw.frames()
            .add_memory(zone, range, metadata)
            .expect("one caller adds at a time, and each range once");
        Ok(first)
    }

    /// Binds and populates a part of the memory, if the depot's memory is bound or populated.
    fn prepare(&self, part: &Range<usize>, node: NodeId) -> Result<(), BuildError> {
        let raw = self.shared();
        if raw.growth().is_bound {
            // SAFETY: inside the memory.
            let start = unsafe { raw.base().add(part.start) };
            numa::bind(start, part.len(), node)
                .map_err(|errno| no_mapping(BuildError::Numa { node, errno })(errno))?;
        }
        if raw.growth().is_populated { raw.memory().populate(part.clone()) } else { Ok(()) }
    }
}
