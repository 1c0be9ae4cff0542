//! Requests that only try, and sequences under a guard that the caller holds already: for kernels
//! that choose the zone, watch the watermarks and reclaim themselves.
#![allow(unsafe_code, reason = "trusts its caller with CPUs and fronts")]

use super::allocator::Allocator;
use super::error::FreeError;
use super::flags::Flags;
use crate::cpus::{Context, Cpus, Pinned, Processor, sequence};
use crate::frame::{Class, CpuId, Mobility, Order, Pfn, ZoneId};
use crate::front::WordOffset;
use crate::front::word::ONE_ROUND;

impl<C: Cpus> Allocator<'_, C> {
    /// Allocates a block if this CPU's caches have one, or a zone has one at the first look, down to
    /// the `min` watermark, or below it with [`Flags::atomic`].
    ///
    /// Where [`alloc`](Self::alloc) would go on to reclaim, to wait for blocks in flight and to
    /// drain other CPUs, this returns `None`. A caller that has its own ways of making room, as
    /// Linux has, asks this.
    ///
    /// Costs what [`alloc`](Self::alloc) costs past its first sequence, which this leaves to a caller
    /// with a [front](Self::front) in hand: a look at the shelf, or a refill.
    #[cold]
    #[inline(never)]
    pub fn try_alloc(&self, order: Order, flags: Flags) -> Option<Pfn> {
        self.blocks().attempt(order, flags)
    }

    /// Frees a block as [`free`](Self::free) does, but caches it for requests of `mobility`, whatever
    /// the mobility that its pageblock had when the allocator last saw it: for frames of a
    /// [`Backing`](crate::Backing), whose owner changes the types of pageblocks itself.
    ///
    /// # Errors
    /// As for `free`.
    #[cold]
    #[inline(never)]
    pub fn free_as(&self, pfn: Pfn, order: Order, mobility: Mobility) -> Result<(), FreeError> {
        self.blocks().free_as(pfn, order, mobility)
    }
}

/// A front of an allocator's only zone: what its sequences need to know of it, in 32 bits.
///
/// | bits | what |
/// |---|---|
/// | 0..=15 | bytes from the start of a CPU's block to the front's word |
/// | 16..=23 | bytes of the slots of a full magazine |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontHandle(u32);

impl FrontHandle {
    /// As an integer, to keep in a table of another language.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// From [`to_bits`](Self::to_bits).
    pub const fn from_bits(bits: u32) -> Self {
        FrontHandle(bits)
    }

    #[inline]
    fn word(self) -> usize {
        self.0 as usize & 0xffff
    }

    #[inline]
    fn full_bytes(self) -> u64 {
        u64::from(self.0 >> 16)
    }
}

impl<P: Processor> Allocator<'_, Pinned<P>> {
    /// The front for blocks of `order` and `mobility` in code of `context`. `None`: the order is not
    /// cached, or the allocator has several zones, or options that make an allocation more than a
    /// pop.
    pub fn front(&self, context: Context, order: Order, mobility: Mobility) -> Option<FrontHandle> {
        if !Flags::new(mobility).takes_level(self.simple_level) {
            return None;
        }
        let class = Class::of(order)?;
        let word = WordOffset::new(ZoneId::new(0), class, mobility);
        let at = word.bytes() + self.pcps.blocks().context_bytes(context);
        let full_bytes = class.rounds() * ONE_ROUND as u32;
        u16::try_from(at).ok().map(|at| FrontHandle(u32::from(at) | full_bytes << 16))
    }

    /// Takes the newest block of a front: one sequence, for kernels that know where they run.
    /// `None`: it has none now; ask [`try_alloc`](Self::try_alloc) or [`alloc`](Self::alloc), without
    /// the guard.
    ///
    /// # Safety
    /// The caller holds a guard of the [`Processor`] for `cpu`, below [`cpu_count`](Self::cpu_count),
    /// and for the context that [`front`](Self::front) of this allocator got, or of one with as many
    /// zones.
    #[inline]
    pub unsafe fn pop_front(&self, cpu: CpuId, front: FrontHandle) -> Option<Pfn> {
        // SAFETY: the caller's promise.
        unsafe { sequence::pop_at(self.pcps.blocks(), cpu, front.word()) }.map(Pfn::new)
    }

    /// Puts a block into a front: one sequence. `false`: nothing has changed, and the caller still
    /// holds the block; give it to [`free_as`](Self::free_as), without the guard.
    ///
    /// # Safety
    /// As for [`pop_front`](Self::pop_front); the caller holds the block, which came from this
    /// allocator, in the order of the front.
    #[inline]
    pub unsafe fn push_front(&self, cpu: CpuId, front: FrontHandle, pfn: Pfn) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            sequence::push_at(self.pcps.blocks(), cpu, front.word(), front.full_bytes(), pfn.get())
        }
    }
}
