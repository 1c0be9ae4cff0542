//! The allocator and its fast paths.
#![allow(unsafe_code, reason = "zeroes pages; shares raw pointers between threads")]

use core::marker::PhantomData;
use core::ptr::NonNull;

use super::config::Checks;
use super::error::{AllocError, FreeError};
use super::flags::Flags;
use super::globals::Globals;
use super::layout::Layout;
use crate::cpus::{Cpus, Environment};
use crate::frame::pageblock::Tag;
use crate::frame::{Class, LinearMap, NodeId, Order, PageSize, Pfn, ZoneId};
use crate::front::{Here, WordOffset};
use crate::pcp::{Caches, NO_ZONE, Pcps};
use crate::store::Store;
use crate::zone::Zones;

/// A page allocator over memory that its caller supplies.
///
/// `C` is how code reaches the CPU it runs on; see [`Cpus`]. All methods take `&self` and may be
/// called from any number of threads, and from interrupt or signal handlers at any moment, also in
/// the middle of another call on the same CPU.
///
/// No method waits for another caller, but for a request that may reclaim and is about to fail:
/// what is shared is changed by single atomic operations. That request sleeps
/// ([`Environment::wait`](crate::cpus::Environment::wait)) while another caller runs a
/// [`Reclaim`](crate::Reclaim) callback, a second at most for each, and some milliseconds while
/// others have pages in their hands; how long is bounded. Over a [`Backing`](crate::Backing) that
/// has a lock, what reaches it waits there.
pub struct Allocator<'m, C> {
    pub(super) cpus: C,
    pub(super) pcps: Pcps<'m>,
    pub(super) store: Store<'m>,
    pub(super) zones: Zones<'m>,
    pub(super) layout: Layout,
    pub(super) page_size: PageSize,
    pub(super) linear_map: Option<LinearMap>,
    pub(super) checks: Checks,
    /// Whether there are any checks.
    pub(super) tracks_frames: bool,
    /// The level of the only zone; more than any request takes where there are several, or options
    /// that make an allocation more than a pop.
    pub(super) simple_level: u8,
    pub(super) globals: &'m Globals<'m>,
    pub(super) base: NonNull<u8>,
    pub(super) memory: PhantomData<&'m mut [u8]>,
}

/// Where an allocator's fronts are: see [`Allocator::fronts_at`].
#[derive(Clone, Copy, Debug)]
pub struct FrontsAt(*mut u8);

// SAFETY: an address, which only the allocator that it is of uses.
unsafe impl Send for FrontsAt {}
// SAFETY: as above.
unsafe impl Sync for FrontsAt {}

// SAFETY: everything behind the pointers is atomics, or written before the allocator exists;
// `Pressure` callbacks are `Sync`.
unsafe impl<C: Send> Send for Allocator<'_, C> {}
// SAFETY: as above.
unsafe impl<C: Sync> Sync for Allocator<'_, C> {}

impl<'m, C: Cpus> Allocator<'m, C> {
    /// Allocates a block of 2^order frames, aligned to its size.
    ///
    /// A cached order (0..=6 and 9) costs one sequence on this CPU while its front has rounds, and
    /// one refill per magazine. Others search the store.
    ///
    /// # Errors
    /// [`AllocError`]; see [`shortage`](Self::shortage) for where the pages are.
    #[inline]
    pub fn alloc(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        if flags.takes_level(self.simple_level)
            && flags.is_plain()
            && let Some(class) = Class::of(order)
        {
            let word = WordOffset::new(ZoneId::new(0), class, flags.mobility());
            if let Some(frame) = self.cpus.pop(self.pcps.blocks(), word) {
                return Ok(Pfn::new(frame));
            }
        }
        self.alloc_general(order, flags)
    }

    /// [`alloc`](Self::alloc) with several zones, options, or uncached orders, or when the front
    /// has no rounds: all that is left, behind one call, so that the fast path carries nothing
    /// of it.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_general(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        let found = match Class::of(order) {
            Some(_) => self.alloc_fast(order, flags).map(Pfn::new),
            None => self.alloc_at_once(order, flags)?,
        };
        match found {
            Some(pfn) => {
                self.on_alloc(pfn, order, flags);
                Ok(pfn)
            }
            None => self.alloc_slow(order, flags),
        }
    }

    /// One pop from the front of the zone to try first.
    #[inline]
    pub(super) fn alloc_fast(&self, order: Order, flags: Flags) -> Option<u32> {
        let class = Class::of(order)?;
        let zone = self.first_zone(self.here()?, flags)?;
        self.cpus.pop(self.pcps.blocks(), WordOffset::new(zone, class, flags.mobility()))
    }

    /// The zone to try first here, whatever its watermarks; `None` when that takes thought.
    pub(super) fn first_zone(&self, here: Here, flags: Flags) -> Option<ZoneId> {
        if flags.is_this_node() {
            return None;
        }
        match self.pcps.shared(here.cpu).first_zones[flags.level()] {
            NO_ZONE => None,
            zone => Some(ZoneId::new(u32::from(zone))),
        }
    }

    /// What is done to a block on its way out, by option.
    pub(super) fn on_alloc(&self, pfn: Pfn, order: Order, flags: Flags) {
        if self.tracks_frames {
            self.note_alloc(pfn, order);
        }
        if flags.is_zeroed() {
            self.zero(pfn, order);
        }
    }

    /// Frees a block that [`alloc`](Self::alloc) returned for this order, or a part that
    /// [`split`](Self::split) made. Any CPU may free it.
    ///
    /// # Errors
    /// [`FreeError`] when the block cannot be one of ours; nothing is changed then. Freeing what
    /// one does not hold is caught always by range, alignment and when the frames reach the store;
    /// at once if the frame holds the allocator's own magazines; and at once with
    /// [`Config::checked`](crate::Config::checked). Ranges are told by aligned runs
    /// of 512 frames: only `checked` tells frames of a smaller hole from allocated ones.
    #[inline]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        if self.free_fast(pfn, order) { Ok(()) } else { self.free_general(pfn, order) }
    }

    /// The fast path of [`free`](Self::free) alone: one push to this CPU's front. `false`: nothing
    /// has changed, and the caller still holds the block.
    ///
    /// After a push that succeeded this reads and writes nothing of the allocator. So an owner that
    /// has closed all gates ([`disable_caches`](Self::disable_caches)) may take the allocator away
    /// while callers return from here.
    #[inline]
    pub fn free_fast(&self, pfn: Pfn, order: Order) -> bool {
        if let Some(class) = Class::of(order)
            && let Some(tag) = self.store.simple_tag(pfn)
            && pfn.is_aligned(order)
        {
            return self.cpus.push(
                self.pcps.blocks(),
                WordOffset::expected(tag, class),
                class.rounds(),
                pfn.get(),
            );
        }
        false
    }

    /// Where this allocator's fronts are, for [`free_fast_at`](Self::free_fast_at).
    #[inline]
    pub fn fronts_at(&self) -> FrontsAt {
        FrontsAt(self.pcps.blocks().base())
    }

    /// As [`free_fast`](Self::free_fast), of a caller that has kept where the fronts are. In a loop
    /// that allocates and frees, `at` stays in a register. Without it the sequence reads the address
    /// anew for each block, and the processor forwards the front's word from store to load later.
    ///
    /// # Safety
    /// `at` is this allocator's.
    #[inline]
    pub unsafe fn free_fast_at(&self, at: FrontsAt, pfn: Pfn, order: Order) -> bool {
        // SAFETY: the caller's promise. Told to the compiler, it uses the address that is in a
        // register instead of reading it again.
        unsafe { core::hint::assert_unchecked(core::ptr::eq(self.pcps.blocks().base(), at.0)) };
        self.free_fast(pfn, order)
    }

    /// [`free`](Self::free) with options, of uncached orders, when the front has no room, or of
    /// what is not ours.
    #[cold]
    #[inline(never)]
    pub(super) fn free_general(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let tag = self.check_free(pfn, order)?;
        match Class::of(order) {
            Some(_) if self.push_if_room(pfn, order, tag) => Ok(()),
            Some(class) => self.free_slow(pfn, class, tag),
            None => self.free_direct(pfn, order, tag.zone()),
        }
    }

    /// The checks that every block passes on its way in.
    pub(super) fn check_free(&self, pfn: Pfn, order: Order) -> Result<Tag, FreeError> {
        let tag = self.store.tags().of_block(pfn, order).ok_or(FreeError::OutOfRange)?;
        if !pfn.is_aligned(order) {
            return Err(FreeError::Misaligned);
        }
        if self.are_carved(pfn, order.frames()) {
            return Err(FreeError::NotAllocated);
        }
        if self.tracks_frames {
            self.cpus.environment().check_usable()?;
            self.note_free(pfn, order)?;
        }
        Ok(tag)
    }

    /// Whether any of these frames, which are memory, is the allocator's own.
    pub(super) fn are_carved(&self, start: Pfn, frames: u32) -> bool {
        self.store.tags().are_carved_near(start, frames) && self.pcps.carved().any(start, frames)
    }

    /// Frees a block of a cached order if this CPU's front has room.
    pub(super) fn push_if_room(&self, pfn: Pfn, order: Order, tag: Tag) -> bool {
        Class::of(order).is_some_and(|class| {
            self.cpus.push(
                self.pcps.blocks(),
                WordOffset::of_tag(tag, class),
                class.rounds(),
                pfn.get(),
            )
        })
    }

    /// The zones a request from `node` may use, nearest first and in each node the highest level
    /// first.
    pub(super) fn zones_for(&self, node: NodeId, flags: Flags) -> impl Iterator<Item = ZoneId> {
        self.zones.from(node).filter(move |&zone| self.may_serve(zone, node, flags))
    }

    pub(super) fn may_serve(&self, zone: ZoneId, node: NodeId, flags: Flags) -> bool {
        let zone = self.zones.get(zone);
        flags.takes_level(zone.level) && (!flags.is_this_node() || zone.node == node)
    }

    pub(super) fn node_here(&self) -> NodeId {
        self.node_of_caller(self.here())
    }

    /// The node of a caller that runs `here`; node 0 for callers on no CPU of ours.
    pub(super) fn node_of_caller(&self, here: Option<Here>) -> NodeId {
        here.map_or(NodeId::new(0), |here| self.pcps.shared(here.cpu).node)
    }

    /// Where this runs, if that CPU has caches' metadata.
    #[inline]
    pub(super) fn here(&self) -> Option<Here> {
        self.cpus.here().filter(|here| here.cpu.get() < self.pcps.cpus())
    }

    /// How code reaches its CPU.
    pub fn cpus(&self) -> &C {
        &self.cpus
    }

    /// CPUs that have caches.
    pub fn cpu_count(&self) -> u32 {
        self.pcps.cpus()
    }

    /// The base page size.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The caches, and what their slow paths work against.
    #[inline]
    pub(super) fn caches(&self) -> Caches<'_, 'm, C> {
        Caches { cpus: &self.cpus, pcps: &self.pcps, store: &self.store, zones: &self.zones }
    }

    /// Zeroes a block, if the allocator can reach it.
    pub(super) fn zero(&self, pfn: Pfn, order: Order) {
        if let Some(map) = self.linear_map {
            // A frame that was freed twice may be in a cache while it holds magazines.
            assert!(
                !self.are_carved(pfn, order.frames()),
                "{pfn} is the allocator's own: it was freed twice"
            );
            let bytes = self.page_size.bytes() << order.get();
            let start =
                core::ptr::with_exposed_provenance_mut::<u8>(map.address(pfn, self.page_size));
            // SAFETY: mapped there, and the caller's alone, by the promise of `LinearMap::new`:
            // each frame is freed by its holder, once. Magazines are not among them.
            unsafe { start.write_bytes(0, bytes) };
        }
    }
}
