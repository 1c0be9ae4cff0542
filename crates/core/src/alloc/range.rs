//! Contiguous ranges, and memory at a given address.
//!
//! Ranges bypass the caches. Cached frames are in their way, so a request that finds no room
//! takes the caches back, quietly and then fully, before it fails.

use super::Allocator;
use super::drain::{Mode, Scope};
use super::pressure::Reserve;
use crate::cpus::Cpus;
use crate::error::{AllocError, FreeError};
use crate::flags::Flags;
use crate::frame::{Order, Pfn, ZoneId};
use crate::store::section::{HUGE_FRAMES, SECTION_FRAMES};

impl<C: Cpus> Allocator<'_, C> {
    /// Allocates `frames` contiguous frames (1 to 2^18, 1 GiB of 4 KiB pages), the first a
    /// multiple of `align` frames (a power of two, at most 2^18).
    ///
    /// The range is freed whole by [`free_contiguous`](Self::free_contiguous), or in parts as
    /// blocks of order 0. O(huges of the zone).
    ///
    /// # Errors
    /// [`AllocError::BadSize`]; [`AllocError::Unsupported`] for more than 1024 frames, or such an
    /// alignment, over a [`Backing`](crate::Backing) without ranges; or as [`alloc`](Self::alloc).
    pub fn alloc_contiguous(&self, frames: u32, align: u32, flags: Flags) -> Result<Pfn, AllocError> {
        if frames == 0 || frames > SECTION_FRAMES || !align.is_power_of_two() || align > SECTION_FRAMES {
            return Err(AllocError::BadSize);
        }
        self.cpus.check_usable()?;
        if !self.store.has_ranges() && frames.max(align) > Order::MAX.frames() {
            return Err(AllocError::Unsupported);
        }
        let node = self.node_here();
        if self.zones_for(node, flags).next().is_none() {
            return Err(AllocError::NoZone);
        }
        let reserve = if flags.is_atomic() { Reserve::All } else { Reserve::AboveMin };
        let search = || {
            self.zones_for(node, flags)
                .find_map(|zone| self.range_in_zone(zone, frames, align, flags, reserve))
        };
        let found = self.with_drains(flags, search).ok_or(AllocError::Exhausted)?;
        self.note_range(found, frames);
        if flags.is_zeroed() {
            (0..frames).for_each(|i| self.zero(found.add(i), Order::BASE));
        }
        Ok(found)
    }

    fn range_in_zone(
        &self,
        zone: ZoneId,
        frames: u32,
        align: u32,
        flags: Flags,
        reserve: Reserve,
    ) -> Option<Pfn> {
        if !self.zone_may_give(zone, u64::from(frames), reserve) {
            return None;
        }
        let here = self.here();
        // A block that contains the range and its alignment; what is too much goes back at once.
        let block = frames.max(align).next_power_of_two();
        let is_block = block < HUGE_FRAMES || !self.store.has_ranges();
        let taken = if is_block { block } else { frames.next_multiple_of(HUGE_FRAMES) };
        let _moving = self.flux(here, zone).begin(u64::from(taken));
        let start = self.wanted_from(here, zone, flags.mobility(), |wanted| {
            if is_block {
                self.store.take_block(wanted, Order::new(block.trailing_zeros())?)
            } else {
                self.store.take_contiguous(wanted, taken, align)
            }
        })?;
        self.store.put(start.add(frames), taken - frames);
        let books = self.cpu_zone_here(here, zone);
        self.zone(zone).add_free(books, -i64::from(frames));
        self.count_direct_alloc(books, zone, 0, u64::from(frames));
        Some(start)
    }

    /// Tries, takes shelves back, tries, takes fronts back, tries.
    fn with_drains(&self, flags: Flags, mut attempt: impl FnMut() -> Option<Pfn>) -> Option<Pfn> {
        attempt()
            .or_else(|| {
                self.drain(Scope::ALL, Mode::Quiet);
                attempt()
            })
            .or_else(|| {
                if !flags.may_reclaim() {
                    return None;
                }
                self.drain(Scope::ALL, Mode::Full);
                attempt()
            })
    }

    /// Allocates exactly the `frames` frames from `start` (1 to 2^18, all of one zone): memory at
    /// a given address. Freed like a range of [`alloc_contiguous`](Self::alloc_contiguous).
    ///
    /// Watermarks do not apply: nothing else will do for this caller.
    ///
    /// # Errors
    /// [`AllocError::NotAvailable`] when part of it is absent, in use, or cached where the request
    /// may not take it back; [`AllocError::Unsupported`] over a [`Backing`](crate::Backing) without
    /// ranges; [`AllocError::BadSize`].
    pub fn alloc_at(&self, start: Pfn, frames: u32, flags: Flags) -> Result<(), AllocError> {
        if frames == 0 || frames > SECTION_FRAMES {
            return Err(AllocError::BadSize);
        }
        self.cpus.check_usable()?;
        if !self.store.has_ranges() {
            return Err(AllocError::Unsupported);
        }
        let zone = self.store.tags().zone_of_range(start, frames).ok_or(AllocError::NotAvailable)?;
        let here = self.here();
        let moving = self.flux(here, zone).begin(u64::from(frames));
        let claimed = self.with_drains(flags, || self.store.claim(zone, start, frames).then_some(start));
        drop(moving);
        claimed.ok_or(AllocError::NotAvailable)?;
        let books = self.cpu_zone_here(here, zone);
        self.zone(zone).add_free(books, -i64::from(frames));
        self.count_direct_alloc(books, zone, 0, u64::from(frames));
        self.note_range(start, frames);
        if flags.is_zeroed() {
            (0..frames).for_each(|i| self.zero(start.add(i), Order::BASE));
        }
        Ok(())
    }

    /// Frees `frames` frames from `start` that came from
    /// [`alloc_contiguous`](Self::alloc_contiguous) or [`alloc_at`](Self::alloc_at), or a part of such a range.
    ///
    /// # Errors
    /// [`FreeError`]; nothing is freed then, except when a double free is found on the way
    /// ([`FreeError::NotAllocated`] without `checked`): then the others are.
    pub fn free_contiguous(&self, start: Pfn, frames: u32) -> Result<(), FreeError> {
        self.cpus.check_usable()?;
        let zone = self.store.tags().zone_of_range(start, frames).ok_or(FreeError::OutOfRange)?;
        self.note_range_free(start, frames)?;
        let here = self.here();
        let moving = self.flux(here, zone).begin(u64::from(frames));
        let doubled = self.store.put(start, frames);
        let books = self.cpu_zone_here(here, zone);
        self.zone(zone).add_free(books, i64::from(frames) - i64::from(doubled));
        drop(moving);
        self.count_direct_free(books, zone, 0, u64::from(frames - doubled));
        self.report_doubled(doubled);
        if doubled > 0 { Err(FreeError::NotAllocated) } else { Ok(()) }
    }
}
